"""The viewer's pages in the system's Chromium, and what the browser complained about."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from closeout import Agent
from closeout.errors import ModelError
from closeout.journal.run_names import new_run_id
from viewer_server import find_chromium, serve_viewer, viewer_app

# The texts of a page whose contrast with what is behind them is below 4.5, the least that WCAG 2 (AA) allows.
FAINT_TEXTS = """() => {
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const colourOf = (css) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = css;
    context.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
    return { rgb: [red, green, blue], alpha: alpha / 255 };
  };
  const over = ({ rgb, alpha }, under) => rgb.map((value, at) => value * alpha + under[at] * (1 - alpha));
  const luminance = (rgb) => rgb.map((value) => value / 255)
    .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
  const faint = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const exempt = element.closest("noscript, script, option, :disabled, [aria-hidden=true]");
    if (exempt || !walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    const around = [];
    for (let each = element; each; each = each.parentElement) around.unshift(getComputedStyle(each));
    const behind = around.reduce((under, style) => over(colourOf(style.backgroundColor), under), [255, 255, 255]);
    const ink = colourOf(getComputedStyle(element).color);
    ink.alpha *= around.reduce((product, style) => product * Number(style.opacity), 1);
    const [dark, light] = [luminance(over(ink, behind)), luminance(behind)].sort((a, b) => a - b);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) faint.add(`${element.className || element.tagName} ${contrast.toFixed(2)}`);
  }
  return [...faint];
}"""


@contextmanager
def open_chromium() -> Iterator[Any]:
    """Open the system's Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=arguments)
        yield browser
        browser.close()


@contextmanager
def held_back(page: Any, request: re.Pattern[str]) -> Iterator[None]:
    """Hold back the page's requests while the block runs; then let them go, and wait for a response."""
    held: list[Any] = []
    page.route(request, lambda route: held.append(route))
    yield
    while not held:
        page.wait_for_timeout(10)
    with page.expect_response(request):
        for route in held:
            route.continue_()
    page.wait_for_timeout(100)  # for what the page does with it


@dataclass
class Viewer:
    """The viewer's address and what browsers complained about."""

    address: str
    browser: Any
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
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

    def begin(self, task: str) -> Any:
        """Begin a run of the served agent from a page of the viewer, and return the page, which shows it."""
        page = self.open()
        start = """(task) => fetch("/v1/runs", {
            method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ task }),
        }).then((response) => response.json()).then((run) => run.run_id)"""
        run_id = page.evaluate(start, task)
        page.goto(f"{self.address}#/run/{run_id}")
        return page

    def foreign(self, url: str) -> None:
        if not url.startswith((self.address.removesuffix("viewer/"), "file:", "data:", "blob:")):
            self.problems.append(f"request to {url}")

    def expect_status(self, status: int) -> None:
        """Expect that Chromium reports responses with this status, now and later: the test has asked for them."""
        assert any(str(status) in problem for problem in self.problems)
        self.expected.append(str(status))

    def unexpected(self) -> list[str]:
        return [problem for problem in self.problems if not any(status in problem for status in self.expected)]


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
        assert viewer.unexpected() == [], viewer.problems


def run_apart(agent: Agent[Any], task: str, **options: Any) -> str:
    """Run an agent in a thread of its own, since Playwright's event loop runs in this one. Return the run's id."""

    async def run() -> str:
        run_id: str = options.setdefault("run_id", new_run_id())
        with suppress(ModelError):  # the run has failed
            await agent.run(task, **options)
        return run_id

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, run()).result()


def check_accessible(page: Any) -> None:
    """Check that axe finds no serious problem in a page."""
    axe = pytest.importorskip("axe_playwright_python")
    page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text("utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    shown = [(each["id"], each["help"], [node["html"][:200] for node in each["nodes"][:3]]) for each in serious]
    assert shown == [], f"{page.url}: {shown}"


def check_looks(page: Any) -> None:
    """Check that a page is no wider than its window, has one first heading, and that every text is readable."""
    page.wait_for_selector("main h1", state="attached")
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width, page.url
    assert page.locator("h1").count() == 1, page.url
    assert page.evaluate(FAINT_TEXTS) == [], page.url


def texts(page: Any, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


def wait_until(page: Any, expression: str) -> None:
    """Wait until an expression is true. A page whose policy forbids `eval` cannot look for itself."""
    for _ in range(400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")
