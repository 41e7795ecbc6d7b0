"""Paths into a JSON value as models write them: `rows[3].name`, `$.rows[10:20]`, `/rows/3/name`. Parse and walk."""

from __future__ import annotations

import json
import re
from typing import Any

from closeout.errors import ToolError

__all__ = ["drill"]

_STEP = re.compile(
    r"""\.?\[\s*(?:(?P<start>-?\d{0,18})\s*(?P<colon>:)\s*(?P<end>-?\d{0,18})|(?P<index>-?\d{1,18}|\*)
        |(?P<double>"(?:[^"\\]|\\.)*")|'(?P<single>(?:[^'\\]|\\.)*)')\s*\]
        |\.?(?P<name>[^.\[\]]+)""",
    re.VERBOSE,
)
_MAX_STEPS = 400
_LISTED = 12  # keys that an error names


def drill(value: Any, path: str) -> Any:
    """The part of a normal value that a path leads to; a slice of a list is a list, `[*]` each of its items.

    Raises ToolError, whose text says how far the path led and what is there.
    """
    here = value
    walked = ""
    for kind, step in _steps(path):
        here = _take(here, kind, step, walked)
        walked += f"[{step}]" if kind != "name" else f".{step}"
    return here


def _steps(path: str) -> list[tuple[str, Any]]:
    text = path.strip()
    if text.startswith("/"):
        return [("name", part.replace("~1", "/").replace("~0", "~")) for part in text[1:].split("/") if part]
    text = text.removeprefix("$")
    steps: list[tuple[str, Any]] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None or len(steps) >= _MAX_STEPS:
            raise ToolError(
                f'The path {path[:200]!r} cannot be read at character {at}. Write it like rows[3].name or a["b"].'
            )
        steps.append(_step(found))
        at = found.end()
    return steps


def _step(found: re.Match[str]) -> tuple[str, Any]:
    if found["colon"]:
        start, end = (int(part) if part.strip("-") else None for part in (found["start"], found["end"]))
        return "slice", slice(start, end)
    if found["index"]:
        return ("all", "*") if found["index"] == "*" else ("index", int(found["index"]))
    if found["double"]:
        try:
            return "name", str(json.loads(found["double"]))
        except ValueError:
            return "name", found["double"][1:-1]
    if found["single"] is not None:
        return "name", re.sub(r"\\(.)", r"\1", found["single"])
    return "name", found["name"].strip()


def _take(here: Any, kind: str, step: Any, walked: str) -> Any:
    place = f"At {walked.lstrip('.')}" if walked else "The value"
    if isinstance(here, list):
        if kind in ("slice", "all"):
            return here[step] if kind == "slice" else here
        index = step if kind == "index" else int(step) if re.fullmatch(r"\d{1,18}", step) else None
        if index is None:
            if here and all(isinstance(item, dict) and step in item for item in here):
                return [item[step] for item in here]  # rows[*].name, rows.name
            raise ToolError(f"{place} is a list of {len(here):,} items; take one by number, as in [0].")
        if -len(here) <= index < len(here):
            return here[index]
        raise ToolError(f"{place} has {len(here):,} items; there is no item {index}.")
    if isinstance(here, dict):
        name = str(step)
        if name in here:
            return here[name]
        raise ToolError(f"{place} has no key {name[:80]!r}. Its keys: {_listed(list(here))}.")
    raise ToolError(f"{place} is {_kind(here)}; the path leads no further.")


def _listed(keys: list[str]) -> str:
    shown = ", ".join(key[:60] for key in keys[:_LISTED])
    return shown + (f", … ({len(keys):,} in all)" if len(keys) > _LISTED else "")


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return f"a text of {len(value):,} characters"
    return "null" if value is None else "a number" if not isinstance(value, bool) else "true or false"
