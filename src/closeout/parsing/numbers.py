"""Read a text as the number that it is, exactly; what could be another number, or a code, stays text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from closeout.codec import encode_json, without_surrogates

__all__ = [
    "MAX_DIGITS",
    "WrittenFloat",
    "exact_json",
    "exact_or_text",
    "may_be_inexact",
    "plain_numbers",
    "read_integer",
    "read_number",
    "read_with_digits",
    "written_json",
]

# A float keeps 15 digits of any number, and no exponent of less than three digits is too large for it.
_MAYBE_INEXACT = r"[\d.]{16}|\d[eE][+-]?\d{3}"
_IN_TEXT, _IN_BYTES = re.compile(_MAYBE_INEXACT), re.compile(_MAYBE_INEXACT.encode())
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
    return _with_numbers(value, float)


def _with_numbers(value: Any, change: Callable[[WrittenFloat], Any]) -> Any:
    if isinstance(value, WrittenFloat):
        return change(value)
    if isinstance(value, dict):
        return {name: _with_numbers(item, change) for name, item in value.items()}
    return [_with_numbers(item, change) for item in value] if isinstance(value, list) else value


def may_be_inexact(written: str | bytes) -> bool:
    """True if a JSON text may hold a number that a float cannot hold."""
    return (_IN_BYTES.search(written) if isinstance(written, bytes) else _IN_TEXT.search(written)) is not None


def read_with_digits(written: str | bytes, value: Any) -> Any:
    """Return the value of a strict JSON text with numbers that know how they were written.

    `value`, which was read from it, is returned if the text says something else, or cannot be read.
    """
    try:
        exact = json.loads(written, parse_float=WrittenFloat, parse_int=_whole)
    except (ValueError, RecursionError):
        return value
    return exact if exact == value else value


def exact_json(text: bytes | str) -> Any:
    """Return the value of a JSON text by a person, who would not notice that a number is another one as a float.

    Raises:
        ValueError: It is not JSON, or no float has the value of a number.
    """
    return without_surrogates(json.loads(text, parse_float=_exact_float, parse_constant=_exact_float))


def _exact_float(text: str) -> float:
    number = WrittenFloat(text)
    if number - number != 0 or not number.is_exact:
        shown = text[:60]
        raise ValueError(f'a JSON number cannot hold {shown}. Write "{shown}", as a text, where the tool takes it')
    return float(number)


def exact_or_text(value: Any, written: str) -> Any:
    """Return a JSON value with the numbers that no float can hold as texts, as its JSON text has them.

    A text that says something else changes nothing.
    """

    def exact(number: WrittenFloat) -> float | str:
        return float(number) if number - number == 0 and number.is_exact else number.text

    return _with_numbers(read_with_digits(written, value), exact) if may_be_inexact(written) else value


def written_json(value: Any) -> str:
    """Return a value as JSON, with each number as it was written, where that is known."""
    try:
        return _written(value)
    except RecursionError:  # deeper than any call that can be made
        return encode_json(value).decode()


def _written(value: Any) -> str:
    if isinstance(value, WrittenFloat):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{_written(name)}:{_written(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    return encode_json(value).decode()


def _whole(text: str) -> int | WrittenFloat:
    return WrittenFloat(text) if text == "-0" else int(text)
