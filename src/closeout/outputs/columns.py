"""Columnar JSON: a list of like objects as `{"#cols": [names], "#rows": [[cells]]}`, at any depth; and back again.

A row may end early: the keys it has no cells for are absent. Keys of the value that look like ours get one more "#".
"""

from __future__ import annotations

import re
from typing import Any

from closeout.outputs.budgets import More

__all__ = ["COLS", "MORE", "ROWS", "from_columns", "table_columns", "to_columns"]

COLS, ROWS, MORE = "#cols", "#rows", "#more"
_OURS = re.compile(r"#+(?:cols|rows|more)")
_FRAME = len('{"#cols":[],"#rows":[]}')


def table_columns(rows: list[Any]) -> list[str] | None:
    """The column names of a list of objects if each row's keys are the first so many of them; else None.

    Columns that all rows have come first, in the order of the rows' keys.
    """
    if not rows or type(rows[0]) is not dict or not rows[0]:
        return None
    first = rows[0].keys()
    counts: dict[str, int] = {}
    uniform = True
    for row in rows:
        if type(row) is not dict or not row:
            return None
        uniform = uniform and row.keys() == first
        if not uniform and not counts:
            counts = dict.fromkeys(first, 0)
    if uniform:
        return list(first)
    return _nested_columns(rows, counts)


def _nested_columns(rows: list[dict[str, Any]], counts: dict[str, int]) -> list[str] | None:
    for row in rows:
        for key in row:
            counts[key] = counts.get(key, 0) + 1
    columns = sorted(counts, key=lambda key: -counts[key])
    places = {name: place for place, name in enumerate(columns)}
    fits = all(places[key] < len(row) for row in rows for key in row)
    return columns if fits else None


def to_columns(value: Any) -> Any:
    """A normal value with every list of like objects in columns, wherever that is shorter.

    Of a list that was cut, `#more` says how many rows are missing.
    """
    if type(value) is dict:
        return {f"#{key}" if _OURS.fullmatch(key) else key: to_columns(item) for key, item in value.items()}
    if type(value) is not list:
        return value
    more = value[-1] if value and type(value[-1]) is More else None
    rows = value if more is None else value[:-1]
    columns = table_columns(rows) if len(rows) > 1 else None
    if columns is None or (len(rows) - 1) * sum(len(name) + 3 for name in columns) <= _FRAME:
        return [to_columns(item) for item in value]
    table = {COLS: columns, ROWS: [[to_columns(row[name]) for name in columns[: len(row)]] for row in rows]}
    return table if more is None else {**table, MORE: more.number}


def from_columns(value: Any) -> Any:
    """What `to_columns` was given. Raises ValueError if a table has a row longer than its columns."""
    if type(value) is list:
        return [from_columns(item) for item in value]
    if type(value) is not dict:
        return value
    if COLS in value and ROWS in value:
        return _rows(value[COLS], value[ROWS])
    return {key[1:] if _OURS.fullmatch(key) else key: from_columns(item) for key, item in value.items()}


def _rows(columns: Any, rows: Any) -> list[dict[str, Any]]:
    if not isinstance(columns, list) or not isinstance(rows, list):
        raise ValueError("A columnar table needs a list of names in #cols and a list of lists in #rows.")
    if any(not isinstance(row, list) or len(row) > len(columns) for row in rows):
        raise ValueError("A row of a columnar table has more cells than the table has columns.")
    return [dict(zip(columns, map(from_columns, row), strict=False)) for row in rows]
