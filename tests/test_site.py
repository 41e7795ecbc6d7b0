"""The documentation site has every page in its navigation, and the reference has every public name."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import closeout
from agent_arguments import page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def pages(nav: list[dict[str, Any]]) -> Iterator[str]:
    """The files that a navigation lists, in order."""
    for entry in nav:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else pages(target)


def test_every_page_is_listed_once_and_the_navigation_has_those_that_most_people_need() -> None:
    nav = [*pages(tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"])]
    listed = re.findall(r"^- \[.+?\]\(([^)]+)\)", (DOCS / "pages.md").read_text("utf-8"), re.MULTILINE)
    there = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert sorted([*listed, "pages.md"]) == there
    assert len(nav) <= 30
    assert {*nav} <= {*there}


def test_the_page_of_all_arguments_is_that_of_the_code() -> None:
    written = (DOCS / "agent-arguments.md").read_text("utf-8")
    assert page() == written, "Run python tests/agent_arguments.py > docs/agent-arguments.md"
    groups = re.findall(r"^## (.+)$", written, re.MULTILINE)
    assert [each.split()[0] for each in groups] == ["Who", "How", "Where"]
    arguments = {*inspect.signature(closeout.Agent.__init__).parameters} - {"self", "unknown"}
    assert {*re.findall(r"^\| `(\w+)`", written, re.MULTILINE)} == arguments


def test_the_command_that_builds_the_site_says_how_its_search_works() -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\ndocs:")[2].partition("\n\n")[0]
    assert "http.server -d site" in recipe


def test_every_public_name_is_in_the_reference() -> None:
    reference = "\n".join(page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md"))
    documented = set(re.findall(r"^::: closeout\.(\w+)$", reference, re.MULTILINE))
    assert documented >= set(closeout.__all__), "Add a line `::: closeout.NAME` to a page in docs/reference."
