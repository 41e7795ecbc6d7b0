"""JSON as UTF-8 bytes, with pydantic's codec; half surrogate pairs; lists that grow, and what two of them share.

Measured on a chat reply with one tool call: `pydantic_core.from_json` 2.0 µs, `json.loads` 5.5 µs; writing a tool
message: 0.9 µs against 4.1 µs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, AnyStr, TypeVar, overload

from pydantic_core import PydanticSerializationError, from_json, to_json

__all__ = [
    "Snapshot",
    "decode_json",
    "encode_json",
    "join_surrogates",
    "json_of_any",
    "shared_items",
    "shared_prefix",
    "value_or_text",
    "without_surrogates",
]

T = TypeVar("T")

_SURROGATE = re.compile("[\ud800-\udfff]")


def encode_json(value: Any) -> bytes:
    """Return compact UTF-8 JSON. Lone surrogates, which UTF-8 cannot hold, become U+FFFD; NaN and infinities null."""
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        return join_surrogates(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)).encode()


def json_of_any(value: object) -> str:
    """Return the JSON of a value, with NaN and infinities, and in place of what JSON cannot hold its text."""
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except ValueError:
        return json.dumps(value, default=str)


def decode_json(data: bytes | str, *, keep_surrogates: bool = False) -> Any:
    """Return the value of a JSON text. Bytes that are not UTF-8 and lone escaped surrogates become U+FFFD.

    Args:
        data: The JSON text.
        keep_surrogates: Keep lone surrogates: for the pieces of a stream, which may be cut inside a pair.

    Raises:
        ValueError: The text is not JSON.
    """
    try:
        return from_json(data)
    except (ValueError, TypeError):  # TypeError: the text holds half a surrogate pair
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    try:
        value = json.loads(text)
        return value if keep_surrogates else without_surrogates(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def value_or_text(text: Any) -> Any:
    """Return the value of a JSON text, and anything else as it is."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return text


def join_surrogates(text: str) -> str:
    """Return the text with surrogate pairs joined to one character and lone surrogates replaced by U+FFFD."""
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def without_surrogates(value: Any) -> Any:
    """Return a JSON or YAML value with `join_surrogates` applied to all of its texts."""
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    return value


def shared_prefix(before: AnyStr, now: AnyStr) -> int:
    """Return the length of the common prefix of two texts."""
    return len(before) if now.startswith(before) else _common_length(before, now)


def _common_length(before: Sequence[Any], now: Sequence[Any]) -> int:
    """Return how many items two sequences begin with in common. Bisects, since comparing slices is fast."""
    low, high = 0, min(len(before), len(now))
    while low < high:
        middle = (low + high + 1) // 2
        if before[low:middle] == now[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Snapshot(Sequence[T]):
    """The items of a list at one moment, without a copy. The list may be appended to and must not change otherwise.

    A conversation of 20,000 turns is sent 20,000 times: copying and comparing it each time would take a minute.

    Args:
        items: The list.
        origin: The list that this one was made from, and how many items both begin with.
    """

    __slots__ = ("_items", "_length", "_origin")

    def __init__(self, items: list[T], origin: tuple[list[T], int] | None = None) -> None:
        self._items = items
        self._length = len(items)
        self._origin = origin

    def shares_list(self, other: object) -> bool:
        """True if both are snapshots of one list, so that one begins with the other."""
        return isinstance(other, Snapshot) and self._items is other._items

    def kept_from(self, other: object) -> int:
        """Return how many items were taken over from the list of another snapshot, 0 if that is not known."""
        if self._origin is None or not isinstance(other, Snapshot) or self._origin[0] is not other._items:
            return 0
        return min(self._origin[1], len(self), len(other))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._length)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return self._items[start:stop:step] if step > 0 else self._items[: self._length][index]
        return self._items[range(self._length)[index]]

    def __eq__(self, other: object) -> bool:
        if self.shares_list(other):
            return self._length == len(other)  # type: ignore[arg-type]
        if isinstance(other, Snapshot | list | tuple):
            return self[:] == list(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(self[:])


def shared_items(before: Sequence[Any], now: Sequence[Any]) -> int:
    """Return how many items two sequences begin with in common.

    For snapshots of one list it is the shorter length, and where one list was made from the other, only the rest is
    compared. Otherwise it bisects: comparing slices of mostly identical objects costs a few nanoseconds an item.
    """
    if isinstance(before, Snapshot) and isinstance(now, Snapshot) and before._items is now._items:
        return min(before._length, now._length)
    kept = now.kept_from(before) if isinstance(now, Snapshot) else 0
    if kept:
        return kept + _common_length(before[kept:], now[kept:])
    before, now = list(before), list(now)
    if now[: len(before)] == before:  # a slice touches every item: make one, not two
        return len(before)
    return _common_length(before, now)
