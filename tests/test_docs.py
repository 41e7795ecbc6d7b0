"""Every Python example in the docs and the README runs as it stands; one that cannot says so with `no-run`."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str]]:
    """The page's examples that run: line number and code."""
    text = page.read_text("utf-8")
    found = [(text[: b.start()].count("\n") + 2, b[1].strip(), b[2]) for b in BLOCK.finditer(text)]
    return [(line, code) for line, info, code in found if info != "no-run"]


@pytest.mark.parametrize("page", [p for p in PAGES if p.exists() and blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"example_{page.stem.replace('-', '_').lower()}"
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)  # pydantic and dataclasses look their module up
    for line, code in blocks(page):
        source = "\n" * (line - 1) + code
        compiled: Any = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if compiled.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(compiled, module.__dict__))
        else:
            exec(compiled, module.__dict__)


def test_every_link_between_pages_works() -> None:
    links = [(page, target) for page in PAGES for target in LINK.findall(page.read_text("utf-8"))]
    local = [(page, target) for page, target in links if "://" not in target]
    broken = [f"{page.relative_to(ROOT)} → {target}" for page, target in local if not (page.parent / target).exists()]
    assert not broken
