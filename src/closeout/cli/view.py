"""`closeout view`: serve the viewer on this computer, or write one run as an HTML file."""

from __future__ import annotations

import asyncio
import signal
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from closeout.config import home_folder
from closeout.errors import UsageError
from closeout.journal.readonly import open_to_read

__all__ = ["export_command", "view_command", "write_page"]


def view_command(run_id: str | None, port: int, *, browser: bool) -> int:
    """Serve the viewer until Ctrl-C. Return the exit code."""
    if run_id is not None:
        with open_to_read(home_folder()) as store:
            store.run(run_id)  # raises RunNotFound
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(run_id, port, browser))
    return 0


def export_command(run_id: str | None, file: str) -> int:
    """Write one run as a self-contained HTML file. Return the exit code."""
    from closeout.server.viewer.page_export import export_run

    if run_id is None:
        raise UsageError("--html writes one run. Name it: closeout view RUN_ID --html FILE.html")
    with open_to_read(home_folder()) as store:
        page = export_run(store, run_id)
    write_page(file, page)
    return 0


def write_page(file: str, page: str) -> None:
    """Write a page into a file, or with "-" to stdout.

    Raises:
        UsageError: It cannot be written.
    """
    if file == "-":
        sys.stdout.write(page)
        return
    try:
        Path(file).write_text(page, "utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write {file} ({error.strerror}).") from None
    print(f"Wrote {file} ({Path(file).stat().st_size:,} bytes).", file=sys.stderr)


async def _serve(run_id: str | None, port: int, browser: bool) -> None:
    from aiohttp import web

    from closeout.server.app import create_app
    from closeout.server.viewer.routes import add_viewer

    app = create_app(home_folder())
    add_viewer(app)
    stopped = asyncio.Event()
    with suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt instead
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        try:
            await site.start()
        except OSError:
            raise UsageError(f"Port {port} is in use. Choose another one with --port, or 0 for a free one.") from None
        address = f"http://{runner.addresses[0][0]}:{runner.addresses[0][1]}/viewer/"
        if run_id is not None:
            address += f"#/run/{quote(run_id, safe='')}"
        print(f"{address}\nCtrl-C stops the viewer.", file=sys.stderr, flush=True)
        if browser:
            await asyncio.to_thread(webbrowser.open, address)
        await stopped.wait()
    finally:
        await runner.cleanup()
