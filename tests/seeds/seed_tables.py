"""The tables of docs/seeds that the code decides: names with their modules, and constants.

python tests/seeds/seed_tables.py writes them into the pages.
"""

from __future__ import annotations

import re
from pathlib import Path

import closeout
from closeout.compat import VOCABULARY

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- names {} -->", "<!-- end -->"


def pages(seed: str) -> tuple[Path, Path]:
    """The English and the Chinese page of a seed."""
    name = next((DOCS / "seeds").glob(f"{seed}-*.md")).name
    return DOCS / "seeds" / name, DOCS / "zh/seeds" / name


def table(seed: str, language: str) -> str:
    """The names of a seed: what each is, and where it lives."""
    lines = ["| 名字 | 位置 | 值 |" if language == "zh" else "| name | lives in | value |", "|---|---|---|"]
    homes = {name: module for module, names in closeout._HOMES.items() for name in names}
    for name in VOCABULARY[seed]:
        value = getattr(closeout, name)
        text = str(value).partition("\n")[0].replace("|", "\\|")
        shown = f"`{text}`" if name.isupper() else ""
        lines.append(f"| `closeout.{name}` | `closeout.{homes[name]}` | {shown} |")
    return "\n".join(lines)


def with_table(text: str, seed: str, language: str) -> str:
    """The text of a page with its table as it should be."""
    begin = BEGIN.format(seed)
    return re.sub(
        f"{re.escape(begin)}.*?{re.escape(END)}",
        lambda _: f"{begin}\n{table(seed, language)}\n{END}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for seed in VOCABULARY:
        for page, language in zip(pages(seed), ("en", "zh"), strict=True):
            page.write_text(with_table(page.read_text("utf-8"), seed, language), "utf-8")
