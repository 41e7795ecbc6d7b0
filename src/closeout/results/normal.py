"""Turn any Python value into a JSON value: dict with text keys, list, str, int, float, bool or None."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from io import BytesIO
from pathlib import PurePath
from types import MappingProxyType
from typing import Any
from uuid import UUID

from closeout.errors import UsageError
from closeout.file_values import File, shown_size

__all__ = [
    "MAX_DEPTH",
    "EncodingError",
    "compact_json",
    "count_lines",
    "error_text",
    "files_found",
    "is_large",
    "join_surrogates",
    "json_text",
    "map_texts",
    "normalise",
    "texts_in",
    "without_surrogates",
]

MAX_DEPTH = 200  # levels; far under the interpreter's recursion limit, far over any real tool result
MAX_INT_BITS = 14_000  # about 4,200 decimal digits; CPython refuses to print more than 4,300
LARGE = 2_000  # values: what is done with more takes 10 ms and longer, too long for an event loop
LARGE_TEXT = 1 << 20  # characters: what is done with more of them is done in parts of this size
REPR_LENGTH = 200  # characters of an unknown object's repr that are shown

# Receives the files in the values that are normalised.
files_found: ContextVar[list[File] | None] = ContextVar("closeout_files_found", default=None)

SURROGATE = re.compile("[\ud800-\udfff]")
_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class EncodingError(UsageError, ValueError):
    """A value that a form cannot hold. The text says which, where, and what to do instead."""


def compact_json(value: Any) -> str:
    """Write a normal value as JSON without blanks; Chinese stays as it is, a lone surrogate is escaped."""
    text = _dumps(value)
    if text.isascii() or not SURROGATE.search(text):
        return text
    return SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def join_surrogates(text: str) -> str:
    """Join split surrogate pairs into the characters that they encode; lone ones stay."""
    if text.isascii() or not any(SURROGATE.search(text, at, at + LARGE_TEXT) for at in range(0, len(text), LARGE_TEXT)):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def count_lines(text: str, start: int, end: int) -> int:
    """Count the line breaks between two places, in parts, so that other threads run meanwhile."""
    if end - start <= LARGE_TEXT:
        return text.count("\n", start, end)
    return sum(text.count("\n", at, min(at + LARGE_TEXT, end)) for at in range(start, end, LARGE_TEXT))


def without_surrogates(text: str) -> str:
    """Return the text as UTF-8 can hold it: a lone surrogate becomes U+FFFD."""
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)


def is_large(value: Any) -> bool:
    """Return whether a value is large enough to be handled beside the event loop. Looks at LARGE parts at most."""
    left = LARGE
    parts = [value]
    while parts and left > 0:
        part = parts.pop()
        if type(part) is str:
            left -= len(part) * LARGE // LARGE_TEXT
        elif type(part) in (dict, list, tuple):
            left -= len(part)
            if left > 0:
                parts.extend(part.values() if type(part) is dict else part)
        elif part is not None and type(part) not in (int, float, bool):
            left -= _length(part)
    return left <= 0


def _length(value: Any) -> int:
    """The length of a value of some other class, such as a table; the fields of a record are not looked at."""
    try:
        return max(len(value), int(getattr(value, "size", 0)))
    except Exception:  # foreign code
        return 1


def json_text(value: Any, *, before: str = "", after: str = "") -> str:
    """Write a normal value as `compact_json` does, between two texts, but a large one part by part.

    Other threads run between two parts: one call of the encoder would hold the interpreter's lock until the end.
    """
    text = before
    for part in _json_parts(value):
        text += part  # grows in place; "".join would copy everything in one call
    text += after
    return text


def _json_parts(value: Any) -> Iterator[str]:
    if type(value) is str and len(value) > LARGE_TEXT:
        yield '"'
        for at in range(0, len(value), LARGE_TEXT):
            yield compact_json(value[at : at + LARGE_TEXT])[1:-1]
        yield '"'
    elif type(value) not in (dict, list) or not is_large(value):
        yield compact_json(value)
    elif type(value) is dict:
        for number, (key, item) in enumerate(value.items()):
            yield f"{',' if number else '{'}{compact_json(key)}:"
            yield from _json_parts(item)
        yield "}"
    else:
        yield "["
        yield from _item_parts(value, 0, len(value))
        yield "]"


def _item_parts(items: list[Any], start: int, end: int) -> Iterator[str]:
    """Write the items from `start` to `end`, separated by commas, as many in one part as are not large together."""
    if end - start == 1:
        yield from _json_parts(items[start])
    elif not is_large(some := items[start:end]):
        yield compact_json(some)[1:-1]
    else:
        middle = (start + end) // 2
        yield from _item_parts(items, start, middle)
        yield ","
        yield from _item_parts(items, middle, end)


def map_texts(value: Any, change: Callable[[str], Any]) -> Any:
    """Return a normal value in which every string, keys excepted, is what `change` returns for it."""
    if type(value) is str:
        return change(value)
    if type(value) is dict:
        return {key: map_texts(item, change) for key, item in value.items()}
    return [map_texts(item, change) for item in value] if type(value) is list else value


def texts_in(value: Any) -> Iterator[str]:
    """Yield every string in a value, the keys of mappings too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts_in(key)
            yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)


def normalise(value: Any, *, strict: bool = False) -> Any:
    """Return the JSON value of any Python value; a JSON value is returned equal. Never raises unless `strict`.

    Dates and times become ISO 8601, durations and paths and UUIDs their text, enums their value, numbers of other
    kinds an int or float where that is exact and text where not, NaN and NaT None, infinities "Infinity", integers over
    14,000 bits hexadecimal text, bytes their UTF-8 text or "base64:…", sets a sorted list, tuples a list; named tuples,
    dataclasses, pydantic models, mappings, files an object; numpy and pandas values what they hold (a table a list of
    rows).

    Anything else (a function, a cycle, two keys with one text, nesting over 200 levels) becomes a short text in angle
    brackets; with `strict` it raises `EncodingError`, which names the place.
    """
    if value is None or (type(value) is str and value.isascii()):
        return value
    if type(value) is dict and not value:
        return {}
    return _Normaliser(strict).walk(value, 0)


class _Normaliser:
    """One walk over one value. It keeps the path of open containers, to see cycles and to name places."""

    __slots__ = ("open", "path", "strict")

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.open: set[int] = set()
        self.path: list[str] = []

    def walk(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return value if value.isascii() else join_surrogates(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -(1 << 63) <= value < (1 << 63) else _whole(value)
        if kind is float:
            return _real(value)
        if kind is dict or kind is list:
            return self.container(value, depth)
        return self.other(value, depth)

    def container(self, value: Any, depth: int) -> Any:
        if depth >= MAX_DEPTH:
            return self.refuse(f"nested deeper than {MAX_DEPTH} levels")
        if id(value) in self.open:
            return self.refuse("a cycle: the value contains itself")
        self.open.add(id(value))
        try:
            if isinstance(value, Mapping):
                return self.mapping(value, depth + 1)
            return [self.step(f"[{index}]", item, depth + 1) for index, item in enumerate(value)]
        finally:
            self.open.discard(id(value))

    def step(self, name: str, value: Any, depth: int) -> Any:
        if not self.strict:
            return self.walk(value, depth)
        self.path.append(name)
        found = self.walk(value, depth)
        self.path.pop()
        return found

    def mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in value.items():
            name = key if type(key) is str and key.isascii() else self.key(key, depth)
            if name in out:
                self.refuse(f"two keys are written {name!r}")
                name = f"{name} ({type(key).__name__})"
            out[name] = self.step(f".{name}" if self.strict else "", item, depth)
        return out

    def key(self, key: Any, depth: int) -> str:
        plain = self.walk(key, depth)
        return plain if isinstance(plain, str) else compact_json(plain)

    def other(self, value: Any, depth: int) -> Any:
        try:
            return self.foreign(value, depth)
        except EncodingError:
            raise
        except Exception as failure:  # foreign code runs in isinstance, len, hash and iteration, too
            return self.refuse(f"{type(value).__name__} cannot be read: {error_text(failure)}", _short_repr(value))

    def foreign(self, value: Any, depth: int) -> Any:
        for kind, convert in _CONVERSIONS:
            if isinstance(value, kind):
                return self.convert(convert, value, depth)
        foreign = _foreign(value)
        if foreign is not None:
            return self.convert(lambda _: foreign(), value, depth)
        if isinstance(value, (Mapping, list, tuple, deque, range, KeysView, ValuesView, ItemsView)):
            return self.container(value, depth)
        return self.refuse(f"no JSON value for {type(value).__name__}", _short_repr(value))

    def convert(self, convert: Callable[[Any], Any], value: Any, depth: int) -> Any:
        """Walk what a value converts to, with the value itself open, so that a cycle through it is seen."""
        try:
            converted = convert(value)
        except Exception as failure:  # foreign code: a property that raises, a model that cannot be dumped
            return self.refuse(f"{type(value).__name__} cannot be read: {error_text(failure)}", _short_repr(value))
        if type(converted) is str:
            return join_surrogates(converted)
        if depth >= MAX_DEPTH or id(value) in self.open:
            return self.refuse(f"a cycle, or nested deeper than {MAX_DEPTH} levels")
        self.open.add(id(value))
        try:
            return self.walk(converted, depth + 1 if type(converted) in (dict, list) else depth)
        finally:
            self.open.discard(id(value))

    def refuse(self, why: str, shown: str | None = None) -> str:
        if self.strict:
            place = "".join(self.path[:12]) + ("…" if len(self.path) > 12 else "")
            raise EncodingError(f"${place}: {why}. Convert it before it is encoded.")
        return shown or f"<{why}>"


def _whole(value: int) -> int | str:
    return int(value) if value.bit_length() <= MAX_INT_BITS else hex(value)


def _real(value: float) -> float | str | None:
    if value - value == 0:  # finite
        return value
    return None if value != value else ("Infinity" if value > 0 else "-Infinity")  # NaN differs from itself


def _decimal(value: Decimal) -> Any:
    if value.is_nan():
        return None
    if not value.is_finite():
        return "Infinity" if value > 0 else "-Infinity"
    near = float(value)
    return near if Decimal(repr(near)) == value else str(value)


def _file(value: File) -> dict[str, Any]:
    """The file as a model is shown it."""
    if (found := files_found.get()) is not None:
        found.append(value)
    return {"file": value.name, "media_type": value.media_type, "size": shown_size(value.size)}


def _bytes(value: bytes | bytearray | memoryview) -> str:
    data = bytes(value)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(data).decode()


def _sorted(value: Iterable[Any]) -> list[Any]:
    """A set's members in an order that does not depend on hashes."""
    members = list(value)
    if all(isinstance(item, (int, float)) for item in members) or all(isinstance(item, str) for item in members):
        return sorted(members)
    return sorted(members, key=lambda item: (type(item).__name__, repr(item)))


def error_text(failure: BaseException) -> str:
    """Return the text of an exception; "" if its `__str__` raises."""
    try:
        return str(failure)
    except Exception:
        return ""


def _short_repr(value: Any) -> str:
    try:
        text = str.__str__(repr(value))
    except Exception as failure:  # a broken __repr__ must not end a run
        text = f"<{type(value).__name__} whose repr raised {type(failure).__name__}>"
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text[: REPR_LENGTH * 2])  # addresses change from run to run
    return join_surrogates(text if len(text) <= REPR_LENGTH else text[:REPR_LENGTH] + "…")


_CONVERSIONS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Enum, lambda value: value.value),
    (str, lambda value: str.__str__(value)),
    (bool, bool),
    (int, lambda value: _whole(int(value))),
    (float, lambda value: float.__float__(value)),
    ((bytes, bytearray, memoryview), _bytes),
    ((date, time), lambda value: None if value != value else value.isoformat()),  # NaT, too
    ((timedelta, PurePath, UUID, Fraction), str),
    (Decimal, _decimal),
    (BaseException, lambda value: f"{type(value).__name__}: {error_text(value)}"),
    ((set, frozenset), _sorted),
    (MappingProxyType, dict),
    (File, _file),
)


def _foreign(value: Any) -> Callable[[], Any] | None:
    """Return the reader for a record of a library that we do not import: the method by which its kind is known."""
    kind: Any = type(value)
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return lambda: {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(kind, "model_dump"):  # pydantic
        return lambda: dict(value.model_dump())
    if isinstance(value, tuple) and hasattr(kind, "_asdict"):
        return lambda: dict(kind._asdict(value))
    module = kind.__module__.partition(".")[0]
    if module == "numpy":
        return lambda: value.tolist()
    if module == "pandas":
        return lambda: _pandas(value)
    for method in ("to_dicts", "to_pylist", "to_list", "as_py"):  # polars, pyarrow
        if hasattr(kind, method):
            return getattr(value, method)  # type: ignore[no-any-return]
    if (draw := _picture_of(kind, module)) is not None:
        return lambda: draw(value)
    if hasattr(kind, "__attrs_attrs__"):
        return lambda: {field.name: getattr(value, field.name) for field in kind.__attrs_attrs__}
    return None


def _picture_of(kind: Any, module: str) -> Callable[[Any], File] | None:
    """Return the function that draws a figure: of matplotlib, of plotly, or what shows itself in notebooks as a PNG."""
    if hasattr(kind, "savefig"):
        return lambda figure: _drawn("figure", "png", _saved(figure))
    if hasattr(kind, "_repr_png_"):  # Pillow and others
        return lambda picture: _drawn("picture", "png", picture._repr_png_())
    if module == "plotly" and hasattr(kind, "to_html"):
        return lambda figure: _drawn("figure", "html", figure.to_html(div_id="figure").encode())
    return None


def _saved(figure: Any) -> bytes:
    written = BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def _drawn(name: str, suffix: str, data: bytes) -> File:
    """The picture as a file whose name says what is in it: a run keeps one file of a name."""
    return File(f"{name}-{hashlib.sha256(data).hexdigest()[:8]}.{suffix}", data)


def _pandas(value: Any) -> Any:
    """A frame as rows, a series as its values; an index that says something comes first."""
    name = type(value).__name__
    if name == "DataFrame":
        plain = type(value.index).__name__ == "RangeIndex"
        return (value if plain else value.reset_index()).to_dict("records")
    if name == "Series":
        return value.tolist() if type(value.index).__name__ == "RangeIndex" else value.to_dict()
    if hasattr(value, "tolist"):
        return value.tolist()
    return None if name in ("NAType", "NaTType") else str(value)
