"""The raw block: one line of columnar JSON, then the long texts lifted out of it, verbatim, each with its length.

Code and pages carry no escapes there. A string of the value that looks like our reference gets one more "#".
"""

from __future__ import annotations

import re
from typing import Any

from closeout.outputs.normal import SURROGATE, compact_json

__all__ = ["read_raw_block", "worth_lifting", "write_raw_block"]

LIFT_LENGTH = 80  # characters; shorter strings stay in the head
LIFT_ESCAPES = 4  # signs that JSON would escape
_REFERENCE = re.compile(r"#+raw:\d+")
_BLOCK = re.compile(r"\n#raw:(\d+) (\d+)\n")


def worth_lifting(text: str) -> bool:
    """Whether a string would be long and full of escapes in JSON, and can stand as it is."""
    if len(text) < LIFT_LENGTH:
        return False
    escapes = text.count("\n") + text.count('"') + text.count("\\") + text.count("\t") + text.count("\r")
    return escapes >= LIFT_ESCAPES and (text.isascii() or not SURROGATE.search(text))


def write_raw_block(columnar: Any) -> str:
    """The block for a value that `to_columns` made."""
    lifted: list[str] = []
    head = compact_json(_lift(columnar, lifted))
    return head + "".join(f"\n#raw:{number} {len(text)}\n{text}" for number, text in enumerate(lifted, 1))


def _lift(value: Any, lifted: list[str]) -> Any:
    if type(value) is str:
        if worth_lifting(value):
            lifted.append(value)
            return f"#raw:{len(lifted)}"
        return f"#{value}" if _REFERENCE.fullmatch(value) else value
    if type(value) is dict:
        return {key: _lift(item, lifted) for key, item in value.items()}
    return [_lift(item, lifted) for item in value] if type(value) is list else value


def read_raw_block(text: str, parse_head: Any) -> Any:
    """The columnar value of a block. `parse_head` reads its JSON line. Raises ValueError if a length does not fit."""
    line_end = text.find("\n")
    head = parse_head(text if line_end < 0 else text[:line_end])
    texts: dict[str, str] = {}
    at = len(text) if line_end < 0 else line_end
    while at < len(text):
        found = _BLOCK.match(text, at)
        if found is None or found.end() + int(found[2]) > len(text):
            raise ValueError(f"A raw block breaks off or its length is wrong, at character {at}.")
        at = found.end() + int(found[2])
        texts[f"#raw:{int(found[1])}"] = text[found.end() : at]
    return _lower(head, texts)


def _lower(value: Any, texts: dict[str, str]) -> Any:
    if type(value) is str:
        if not _REFERENCE.fullmatch(value):
            return value
        if value.startswith("##"):
            return value[1:]
        if value not in texts:
            raise ValueError(f"The block refers to {value}, which is not in it.")
        return texts[value]
    if type(value) is dict:
        return {key: _lower(item, texts) for key, item in value.items()}
    return [_lower(item, texts) for item in value] if type(value) is list else value
