"""Objects as tables of HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["html_table"]


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return a small table; all texts are escaped, and rows whose value is empty are left out."""
    cells = "".join(
        f'<tr><th style="text-align:left;vertical-align:top">{escape(label)}</th>'
        f'<td style="text-align:left;white-space:pre-wrap">{escape(str(value))}</td></tr>'
        for label, value in rows
        if str(value)
    )
    return f'<table><caption style="text-align:left"><b>{escape(title)}</b></caption>{cells}</table>'
