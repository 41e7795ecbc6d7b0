"""What a word without quotes means in broken JSON: a literal of some language, a number, a string without its quotes.

Where such a word begins and ends is decided in `json_scan`.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["is_atom", "read_word"]

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*+)(?:\.\d++)?+(?:[eE][+-]?\d++)?+")
_LOOSE_NUMBER = re.compile(r"[+-]?(?:\d++(?:_\d++)*+\.?\d*+|\.\d++)(?:[eE][+-]?\d*+)?+|-")

_WORDS: dict[str, tuple[Any, str]] = {
    "true": (True, ""),
    "false": (False, ""),
    "null": (None, ""),
    "True": (True, "python_literal"),
    "False": (False, "python_literal"),
    "None": (None, "python_literal"),
    "TRUE": (True, "python_literal"),
    "FALSE": (False, "python_literal"),
    "NULL": (None, "python_literal"),
    "undefined": (None, "javascript_literal"),
    "NaN": (None, "not_a_number"),
    "nan": (None, "not_a_number"),
    "Infinity": (None, "not_a_number"),
    "-Infinity": (None, "not_a_number"),
}


def is_atom(token: str, *, loosely: bool = False) -> bool:
    """Whether a token is a literal or a JSON number; `loosely` lets numbers in that only other languages write."""
    return token in _WORDS or bool(_NUMBER.fullmatch(token)) or (loosely and bool(_LOOSE_NUMBER.fullmatch(token)))


def read_word(token: str) -> tuple[Any, tuple[str, ...]]:
    """The token's value, and the names of what was put right."""
    if token in _WORDS:
        value, repair = _WORDS[token]
        return value, (repair,) if repair else ()
    if _NUMBER.fullmatch(token):
        return _number(token)
    if _LOOSE_NUMBER.fullmatch(token):
        return _loose_number(token)
    if token[-1] in "\"'":
        return token[:-1], ("unquoted_string", "missing_quote")
    return token, ("unquoted_string",)


def _number(token: str) -> tuple[Any, tuple[str, ...]]:
    try:
        return int(token) if token.lstrip("-").isdigit() else float(token), ()
    except ValueError:  # more digits than Python converts
        return token, ("huge_number",)


def _loose_number(token: str) -> tuple[Any, tuple[str, ...]]:
    digits = token.lstrip("+-")
    if not digits:  # a number that was cut off after its sign
        return 0, ("loose_number",)
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():  # a code such as 00789, not a quantity
        return token, ("unquoted_string",)
    mended = token.lstrip("+").replace("_", "")
    if mended[-1] in "eE+-":
        mended += "0"
    value, repairs = _number(mended)
    return value, ("loose_number", *repairs)
