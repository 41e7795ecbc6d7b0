"""The viewer for tests: served from a thread of this process, and looked at with the system's Chromium."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient

from closeout.server.app import create_app
from closeout.server.viewer.routes import add_viewer

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MACOS = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")


def find_chromium() -> str:
    """The browser's path: CHROME_PATH, or what the system has; empty if there is none."""
    named = os.environ.get("CHROME_PATH", "")
    if named:
        return named
    found = next((path for name in NAMES if (path := shutil.which(name))), "")
    return found or (str(MACOS) if MACOS.exists() else "")


def viewer_app(home: Path) -> web.Application:
    app = create_app(home)
    add_viewer(app)
    return app


@contextmanager
def serve_viewer(home: Path, make_app: Callable[[Path], web.Application] = viewer_app) -> Iterator[str]:
    """Serve the viewer of a folder on a free port, and yield its address."""
    address: Future[str] = Future()
    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(make_app(home), access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            address.set_result(f"http://127.0.0.1:{runner.addresses[0][1]}/viewer/")
            await stopped.wait()
        except BaseException as error:
            if not address.done():
                address.set_exception(error)
            raise
        finally:
            await runner.cleanup()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield address.result(timeout=60)
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(timeout=60)


async def get(client: TestClient, path: str) -> Any:
    """What the viewer's API returns for a path."""
    response = await client.get(f"/viewer/api/{path}")
    assert response.status == 200, await response.text()
    return await response.json()
