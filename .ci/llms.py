"""Print docs/llms.txt (llmstxt.org): each page of the documentation with its first sentence.

python .ci/llms.py > docs/llms.txt
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def first_sentence(path: Path) -> str:
    """Return the first sentence of running text, without markup; "" if the page has none."""
    text = re.sub(r"(?s)```.*?```|<!--.*?-->|:::.*?(?=\n\n|\Z)", "", path.read_text("utf-8"))
    paragraphs = [each.replace("\n", " ").strip() for each in text.split("\n\n")]
    prose = next((each for each in paragraphs if each[:1].isalnum() or each[:1] in "*`["), "")
    prose = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose).replace("**", "")
    return re.split(r"(?<=[.。])(?:\s|$)", prose, maxsplit=1)[0].rstrip(":：")


def lines() -> Iterator[str]:
    """Yield the lines of the file."""
    project = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
    yield "# Closeout"
    yield ""
    yield f"> {project['site_description']}"
    yield ""
    yield "A skill for coding agents with recipes for porting is in the wheel: closeout/skills/closeout/SKILL.md."
    for line in (ROOT / "docs" / "pages.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            yield from ("", line, "")
        elif found := re.fullmatch(r"- \[(.+)\]\((.+)\)", line):
            said = first_sentence(ROOT / "docs" / found[2])
            yield f"{line}{': ' + said if said else ''}"


if __name__ == "__main__":
    print("\n".join(lines()))
