"""The viewer in a real browser: a run with 100,000 events, search over 10,000 runs, an evaluation of 10,000 trials.

Times are taken in the page: from the start of the navigation to the frame in which the first turn is painted, and from
a key to the frame that shows what was found. They are those of a machine that does nothing else: on a busy one, prepare
the folders with `--keep FOLDER` and measure again with `chrt -r 1`.

    python bench/viewer.py [--quick] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from many_runs import short_run, write_runs
from many_trials import write_evaluation
from viewer_server import find_chromium, serve_viewer

QUERIES = ("canal", "Rideau Panama", '"lock gate"', "task 77", "treaty 1234", "nothing of the kind")
# Notes when the selector first finds something, once that is painted.
WATCH = """
window.seen = {};
window.watch = (name, selector) => {
  const look = () => document.querySelector(selector)
    ? requestAnimationFrame(() => setTimeout(() => { window.seen[name] = performance.now(); }))
    : requestAnimationFrame(look);
  look();
};
watch("first turn", ".item.turn, .matrix-row");
"""
SCROLL = """async () => {
  const frames = [];
  let blank = 0, last = performance.now();
  for (let at = 0; at < 240; at += 1) {
    scrollBy(0, 400);
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - last);
    last = now;
    const there = document.elementFromPoint(innerWidth - 300, innerHeight / 2);
    if (!there?.closest(".item, .matrix-row, .run-main")) blank += 1;
  }
  frames.sort((a, b) => a - b);
  return { median: frames[120], p95: frames[228], longest: frames.at(-1), blank };
}"""
# From the input event to the frame that shows another list.
SEARCH = """(text) => new Promise((resolve) => {
  const list = document.querySelector(".runs"), note = document.querySelector(".foot");
  const input = document.querySelector("input[type=search]");
  const began = performance.now();
  const observer = new MutationObserver(() => {
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
  });
  observer.observe(list, { childList: true });
  observer.observe(note, { childList: true });
  input.value = text;
  input.dispatchEvent(new Event("input"));
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events and runs")
    parser.add_argument("--keep", type=Path, help="keep what is measured in this folder, and use what is there")
    options = parser.parse_args()
    chromium = find_chromium()
    if not chromium:
        print("bench viewer: not measured, there is no Chromium (set CHROME_PATH)")
        return
    if options.keep is None:
        with tempfile.TemporaryDirectory() as folder:
            measure(chromium, Path(folder), 10 if options.quick else 1)
    else:
        measure(chromium, options.keep, 10 if options.quick else 1)


def measure(chromium: str, folder: Path, share: int) -> None:
    from playwright.sync_api import sync_playwright

    turns, runs = 20_000 // share, 10_000 // share
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        home = prepared(folder / "long", lambda home: write_runs(home, [("long", short_run(0, turns=turns))]))
        first, whole, scroll = long_page(browser, home, "#/run/long", "text=events")
        print(f"  {5 * turns:,} events: first turn painted after {first:.0f} ms, all loaded after {whole / 1000:.1f} s")
        print(f"  scrolling: {frames(scroll)}")
        home = prepared(folder / "trials", lambda home: write_evaluation(home, "large", tasks=runs // 5, epochs=5))
        trials, _, scroll = long_page(browser, home, "#/evaluation/large", ".foot >> text=tasks")
        print(f"  {runs:,} trials: first row painted after {trials:.0f} ms")
        print(f"  scrolling: {frames(scroll)}")
        home = prepared(
            folder / "many", lambda home: write_runs(home, ((f"run{n:06d}", short_run(n)) for n in range(runs)))
        )
        searches = search(browser, home, runs)
        for query, ms in searches.items():
            print(f"  {runs:,} runs, {query}: {ms:.0f} ms")
        browser.close()
    print(
        f"bench viewer: {5 * turns:,} events first paint {first:.0f} ms; {runs:,} trials first paint {trials:.0f} ms; "
        f"{runs:,} runs search at most {max(searches.values()):.0f} ms"
    )


def prepared(home: Path, write: Callable[[Path], object]) -> Path:
    """Return a folder with what is measured, written unless it is there."""
    if not home.exists():
        home.mkdir(parents=True)
        write(home)
    return home


def frames(scroll: dict[str, float]) -> str:
    return (
        f"a frame {scroll['median']:.0f} ms, 95 % {scroll['p95']:.0f} ms, longest {scroll['longest']:.0f} ms, "
        f"{scroll['blank']} of 240 blank"
    )


def long_page(browser: Any, home: Path, address: str, loaded: str) -> tuple[float, float, dict[str, float]]:
    """Milliseconds to the first item and to the whole page, and the frames while scrolling. Medians of five visits."""
    firsts = []
    with serve_viewer(home) as viewer:
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.add_init_script(WATCH)
        for _ in range(5):
            page.goto("about:blank")
            page.goto(viewer + address)
            page.wait_for_selector(".item.turn, .matrix-row")
            page.wait_for_timeout(300)
            firsts.append(page.evaluate("seen['first turn']"))
        page.wait_for_selector(loaded, timeout=300_000)
        whole = page.evaluate("performance.now()")
        scroll = page.evaluate(SCROLL)
        page.close()
    return median(firsts), whole, scroll


def search(browser: Any, home: Path, runs: int) -> dict[str, float]:
    """Milliseconds from a query to its result in the page, the index made. Medians of five searches each."""
    with serve_viewer(home) as address:
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.goto(address)
        began = time.perf_counter()
        while page.evaluate("fetch('api/runs?limit=1').then((r) => r.json()).then((r) => r.indexed < r.total)"):
            page.wait_for_timeout(500)
        print(f"  {runs:,} runs indexed in {time.perf_counter() - began:.0f} s")
        found = {}
        for query in QUERIES:
            times = []
            for _ in range(5):
                page.evaluate(SEARCH, "")
                times.append(page.evaluate(SEARCH, query))
            found[query] = median(times)
        page.close()
    return found


if __name__ == "__main__":
    main()
