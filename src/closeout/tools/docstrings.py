"""What a docstring says of a function and its parameters: Google, NumPy and `:param` styles. Pure text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from inspect import cleandoc

__all__ = ["Docstring", "read_docstring"]

_SECTION = (
    r"Args|Arguments|Parameters|Params|Other Parameters|Keyword Args|Keyword Arguments|Returns?|Yields?|Raises|Warns|"
    r"Notes?|Examples?|References|See Also|Warnings?|Attributes|Todo"
)
_GOOGLE_HEAD = re.compile(rf"({_SECTION}):\s*$", re.IGNORECASE)
_NUMPY_HEAD = re.compile(rf"({_SECTION})\s*$", re.IGNORECASE)
_SPHINX = re.compile(r":(\w+)(?:[ \t]+([^:\n]*))?:(?:[ \t]+(.*))?$")
_SPHINX_PARAM = {"param", "parameter", "arg", "argument", "key", "keyword"}
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\(([^)]*)\))?\s*:\s*(.*)$")
_NUMPY_ITEM = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::\s*(.*))?$")
_PARAMETER_SECTIONS = {
    "args", "arguments", "parameters", "params", "other parameters", "keyword args", "keyword arguments",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Docstring:
    """`text` stands before the first section; `parameters` and `types` map names to what the docstring says of them."""

    text: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)


def read_docstring(docstring: str | None) -> Docstring:
    """Read any of the three styles; a docstring in none of them is all `text`."""
    lines = cleandoc(docstring or "").splitlines()
    intro: list[str] = []
    found = Docstring()
    rest: list[str] | None = None
    i = 0
    while i < len(lines):
        line = lines[i]
        if _NUMPY_HEAD.match(line) and i + 1 < len(lines) and re.fullmatch(r"-{3,}\s*", lines[i + 1]):
            rest, i = _take_until_head(lines, i + 2)
            if line.strip().lower() in _PARAMETER_SECTIONS:
                _read_numpy(rest, found)
        elif head := _GOOGLE_HEAD.match(line):
            rest, i = _take_until_head(lines, i + 1)
            if head[1].lower() in _PARAMETER_SECTIONS:
                _read_google(rest, found)
        elif line.startswith(":") and _SPHINX.match(line):
            rest, i = _take_until_head(lines, i)
            _read_sphinx(rest, found)
        else:
            if rest is None:  # text after a section belongs to no parameter and is not for the model
                intro.append(line)
            i += 1
    text = "\n".join(intro).strip()
    return Docstring(text, found.parameters, found.types)


def _take_until_head(lines: list[str], start: int) -> tuple[list[str], int]:
    """The lines of one section: up to the next head of any style."""
    end = start
    while end < len(lines):
        line = lines[end]
        underlined = end + 1 < len(lines) and re.fullmatch(r"-{3,}\s*", lines[end + 1])
        if line and not line[0].isspace() and (_GOOGLE_HEAD.match(line) or (_NUMPY_HEAD.match(line) and underlined)):
            break
        end += 1
    return lines[start:end], end


def _read_google(lines: list[str], into: Docstring) -> None:
    for head, body in _items(lines):
        if item := _GOOGLE_ITEM.match(head):
            into.parameters[item[1]] = _flow([item[3], *body])
            if item[2]:
                into.types[item[1]] = item[2]


def _read_numpy(lines: list[str], into: Docstring) -> None:
    for head, body in _items(lines):
        if item := _NUMPY_ITEM.match(head):
            for name in item[1].split(","):
                bare = name.strip().lstrip("*")
                into.parameters[bare] = _flow(body)
                if item[2]:
                    into.types[bare] = item[2]


def _read_sphinx(lines: list[str], into: Docstring) -> None:
    for head, body in _items(lines):
        item = _SPHINX.match(head)
        if item is None or not item[2]:
            continue
        kind, words, text = item[1].lower(), item[2].split(), _flow([item[3] or "", *body])
        if kind in _SPHINX_PARAM:
            into.parameters[words[-1].lstrip("*")] = text
            if len(words) > 1:
                into.types[words[-1].lstrip("*")] = " ".join(words[:-1])
        elif kind == "type":
            into.types[words[-1]] = text


def _items(lines: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Entries of a section: a line at the section's own indent, and the deeper lines below it."""
    items: list[tuple[str, list[str]]] = []
    margin: int | None = None
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if margin is None:
            margin = indent
        if indent <= margin:
            items.append((line.strip(), []))
        elif items:
            items[-1][1].append(line.strip())
    return items


def _flow(lines: Iterable[str]) -> str:
    return " ".join(line for line in lines if line).strip()
