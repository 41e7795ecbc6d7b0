"""Every Python example in the docs and the README runs as a file of its own, unless `<!-- no-run -->` is above it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import docs_model
from closeout.testing import serve_script
from closeout.testing.scripted_server import ScriptedServer

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
BLOCK = re.compile(r"^(<!-- no-run -->\n)?```python([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str]]:
    """The page's examples that run: line number and code."""
    text = page.read_text("utf-8")
    found = list(BLOCK.finditer(text))
    assert not any(block[2] for block in found), f"{page}: write only ```python, or the site does not show it as code."
    return [(text[: block.start()].count("\n") + 2, block[3]) for block in found if not block[1]]


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedServer]:
    with serve_script(docs_model.reply, record=False) as server:
        yield server


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_each_example_of_a_page_runs_as_a_file(
    page: Path, model: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    for line, code in blocks(page):
        folder = tmp_path / str(line)
        folder.mkdir()
        monkeypatch.chdir(folder)
        module = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)  # pydantic and dataclasses look their module up
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), module.__dict__)


def test_every_link_between_pages_works() -> None:
    links = [(page, target) for page in PAGES for target in LINK.findall(page.read_text("utf-8"))]
    local = [(page, target) for page, target in links if "://" not in target]
    broken = [f"{page.relative_to(ROOT)} → {target}" for page, target in local if not (page.parent / target).exists()]
    assert not broken
