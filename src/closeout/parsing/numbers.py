"""Read a text as the number that it is, exactly; what could be another number, or a code, stays text."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

__all__ = ["MAX_DIGITS", "WrittenFloat", "plain_numbers", "read_integer", "read_number"]

MAX_DIGITS = 400  # digits of a number that is written out; 1e999999999 would fill the memory

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


class WrittenFloat(float):
    """A number with a fraction or an exponent that knows how it was written: `3.10` is not the version "3.1"."""

    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        number = super().__new__(cls, text)
        number.text = text
        return number

    @property
    def exact(self) -> Decimal:
        """The number that was written, as far as a Decimal can hold its exponent."""
        try:
            return Decimal(self.text)
        except InvalidOperation:
            return Decimal(self)

    @property
    def is_exact(self) -> bool:
        """True if the float is the number that was written."""
        return Decimal(repr(float(self))) == self.exact

    @property
    def digits(self) -> str:
        """The number without an exponent, if that is of a reasonable length; otherwise as it was written."""
        number = self.exact
        return f"{number:f}" if number.is_finite() and abs(number.adjusted()) < MAX_DIGITS else self.text


def plain_numbers(value: Any) -> Any:
    """Return a JSON value with plain numbers, which do not know how they were written."""
    if isinstance(value, WrittenFloat):
        return float(value)
    if isinstance(value, dict):
        return {name: plain_numbers(item) for name, item in value.items()}
    return [plain_numbers(item) for item in value] if isinstance(value, list) else value
