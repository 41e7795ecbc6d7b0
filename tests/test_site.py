"""The documentation site has every page in its navigation, and the reference has every public name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import closeout

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def pages(nav: list[dict[str, Any]]) -> Iterator[str]:
    """The files that a navigation lists, in order."""
    for entry in nav:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else pages(target)


def test_every_page_is_in_the_navigation_of_zensical_toml_once() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    assert sorted(pages(nav)) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_the_command_that_builds_the_site_says_how_its_search_works() -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\ndocs:")[2].partition("\n\n")[0]
    assert "http.server -d site" in recipe


def test_every_public_name_is_in_the_reference() -> None:
    reference = "\n".join(page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md"))
    documented = set(re.findall(r"^::: closeout\.(\w+)$", reference, re.MULTILINE))
    assert documented >= set(closeout.__all__), "Add a line `::: closeout.NAME` to a page in docs/reference."
