"""Read a text as the number that it is, exactly; what could be another number, or a code, stays text."""

from __future__ import annotations

import re
from decimal import Decimal

__all__ = ["read_integer", "read_number"]

# JSON's numbers, and what other languages write without doubt. ".000" behind an integer may group thousands.
_INTEGER = re.compile(
    r"([+-]?)(\d{1,400})(?:\.00?)?|[+-]?(?:[1-9]\d{0,2}(?:_\d{3}){1,99}|0[xX][0-9a-fA-F]{1,99})", re.ASCII
)
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d{0,399})(?:\.\d{1,399})?|\.\d{1,399})(?:[eE][+-]?\d{1,3})?", re.ASCII)


def read_integer(text: str) -> int | None:
    """Return a text as a whole number; None if it is not one, or may be another one."""
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    sign, digits = found.groups()
    if digits is None:
        return int(text, 0)
    if digits[0] == "0" and not {"8", "9"}.intersection(digits) and int(digits, 8) != int(digits):
        return None  # 0644 is octal in many places
    return int(sign + digits)


def read_number(text: str) -> int | float | None:
    """Return a text as a number; None if it is not one, may be another one, or if no float has just this value."""
    if (whole := read_integer(text)) is not None:
        return whole
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if Decimal(repr(number)) == Decimal(text) else None
