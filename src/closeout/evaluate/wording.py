"""Write the shares, intervals, amounts and tables of reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["SLICE_COLUMNS", "amount", "finite", "markdown_table", "percent", "span"]

SLICE_COLUMNS = ("value", "score", "95 % interval", "right", "tasks", "cost")


def percent(share: float) -> str:
    """Return `41.2 %`."""
    return "n/a" if math.isnan(share) else f"{100 * share:.1f} %"


def span(low: float, high: float) -> str:
    """Return `38.1–44.3 %`."""
    return "n/a" if math.isnan(low) or math.isnan(high) else f"{100 * low:.1f}–{100 * high:.1f} %"


def amount(number: int, thing: str) -> str:
    """Return `1 trial`, `1,200 trials`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose cells cannot break it."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"

    return "\n".join([line(columns), "|" + "---|" * len(columns), *map(line, rows)])


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with None for NaN, which JSON does not have."""
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in values.items()}
