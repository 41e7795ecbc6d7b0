"""The viewer's pages in the system's Chromium, and what the browser complained about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from closeout import Agent
from viewer_server import find_chromium, serve_viewer, viewer_app


@contextmanager
def open_chromium() -> Iterator[Any]:
    """Open the system's Chromium. The test is skipped if it or Playwright is not installed."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the extra `dev` has it)")
    from playwright.sync_api import sync_playwright

    chromium = find_chromium()
    if not chromium:
        pytest.skip("no Chromium: install the system's package `chromium`, or set CHROME_PATH")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()


@dataclass
class Viewer:
    """The viewer's address and what browsers complained about."""

    address: str
    browser: Any
    problems: list[str] = field(default_factory=list)
    contexts: list[Any] = field(default_factory=list)

    def open(self, path: str = "", *, address: str | None = None, **options: Any) -> Any:
        options = {"viewport": {"width": 1200, "height": 800}, "locale": "en-US", **options}
        context = self.browser.new_context(accept_downloads=True, **options)
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: (self.problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.foreign(request.url))
        page.goto((self.address if address is None else address) + path)
        return page

    def foreign(self, url: str) -> None:
        if not url.startswith((self.address.removesuffix("viewer/"), "file:", "data:", "blob:")):
            self.problems.append(f"request to {url}")

    def expect_status(self, status: int) -> None:
        """Forget that Chromium reported responses with this status: the test has asked for them."""
        assert any(str(status) in problem for problem in self.problems)
        self.problems = [problem for problem in self.problems if str(status) not in problem]


@contextmanager
def watched_viewer(
    home: Path, browser: Any, make_app: Callable[[Path], web.Application] = viewer_app
) -> Iterator[Viewer]:
    """Serve the viewer of a folder; fail if a page complained."""
    with serve_viewer(home, make_app) as address:
        viewer = Viewer(address, browser)
        try:
            yield viewer
        finally:
            for context in viewer.contexts:
                context.close()
        assert viewer.problems == []


def run_apart(agent: Agent[Any], task: str) -> str:
    """Run an agent in a thread of its own: Playwright's event loop runs in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(agent.run_sync, task).result().run_id


def texts(page: Any, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_inner_texts()]
