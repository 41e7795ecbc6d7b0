"""Every Python example in the docs and the README runs as a file of its own, unless `<!-- no-run -->` is above it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import docs_model
from closeout import Agent
from closeout.testing import ScriptedClient, answer, serve_script
from closeout.testing.scripted_server import ScriptedServer

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")])
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


def test_llms_txt_lists_every_page() -> None:
    pages = re.findall(r"^- \[.+?\]\(([^)]+)\)", (ROOT / "docs" / "pages.md").read_text("utf-8"), re.MULTILINE)
    listed = re.findall(r"^- \[.+?\]\(([^)]+)\)", (ROOT / "docs" / "llms.txt").read_text("utf-8"), re.MULTILINE)
    assert listed == pages, "Run python .ci/llms.py > docs/llms.txt"


def test_the_skill_for_coding_agents_is_a_valid_skill() -> None:
    model = ScriptedClient([answer("done")])
    Agent(model, skills=[ROOT / "src" / "closeout" / "skills"], home=False).run_sync("Port it.")
    assert "Build, test and port" in model.requests[0].messages[0].text
