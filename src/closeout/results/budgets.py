"""Cut a result to a budget by its structure. `artifacts` keeps the whole and reads it by handle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from closeout.results.normal import compact_json, count_lines

__all__ = [
    "DEFAULT_BUDGET",
    "TOOL_RESULT_MAX_LENGTH",
    "TRUNCATED",
    "Cut",
    "Elision",
    "More",
    "TextCut",
    "ValueCutter",
    "cut_text",
    "describe_missing",
    "largest_fit",
    "path_step",
    "read_call",
]

DEFAULT_BUDGET = 4_000  # tokens of one result, where neither the tool nor the run says otherwise
TOOL_RESULT_MAX_LENGTH = 100_000  # characters of one result, whatever its budget; about 25,000 tokens of English
TRUNCATED = "... [Result truncated]"  # ends a text that the character limit cut

T = TypeVar("T")

_SHARED_ITEMS = 30  # a list of up to so many large items keeps them all, each made smaller
_LARGE_ITEM = 200  # characters on average
_LEAST = 48  # characters that an item or a text must get, or it is counted instead of shown
_NOTE = 26  # characters that "… 1,234 more items" takes, with its quotes


class More(str):
    """The last item of a list that was cut: reads as "… 954 more items", knows the number."""

    number: int

    def __new__(cls, number: int) -> More:
        text = super().__new__(cls, f"… {number:,} more item{'s' * (number != 1)}")
        text.number = number
        return text


@dataclass(frozen=True, slots=True)
class Elision:
    """One place where something was left out: of `total` items, keys or characters the first `shown` are there.

    `path` leads there as `read_result` takes it ("rows[3].text"; "" is the whole value). Of cut texts also the end is
    shown, so there `shown` is where the gap begins.
    """

    path: str
    kind: str  # "items", "keys", "characters"
    shown: int
    total: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A value made smaller, and what was left out, the largest losses first."""

    value: Any
    elisions: tuple[Elision, ...] = ()


@dataclass(frozen=True, slots=True)
class TextCut:
    """A text made shorter: its head up to `head`, a line that says what is missing, its tail from `tail` on."""

    text: str
    head: int
    tail: int


def largest_fit(low: int, high: int, build: Callable[[int], T], fits: Callable[[T], bool]) -> T | None:
    """Return what `build` makes of the largest size that fits, found by bisection; None if nothing fits.

    If fitting is not quite monotone in the size, the result still fits.
    """
    best: T | None = None
    while low <= high:
        middle = (low + high) // 2
        built = build(middle)
        if fits(built):
            best, low = built, middle + 1 + (high - middle) // 64
        else:
            high = middle - 1 - (middle - low) // 64
    return best


# ------------------------------------------------------------------------------------------------ texts


def cut_text(text: str, length: int, *, breaks: int | None = None) -> TextCut:
    """Head and tail of a text in about `length` characters, two thirds head, cut at line borders if some are near.

    `breaks` is the number of its line breaks, if that is known.
    """
    if length >= len(text):
        return TextCut(text, len(text), len(text))
    head, tail = 2 * length // 3, len(text) - length // 3
    line = text.rfind("\n", head - head // 3, head)
    head = line + 1 if line >= 0 else head
    line = text.find("\n", tail, tail + (len(text) - tail) // 2)
    tail = line + 1 if line >= 0 else tail
    note = f"[… {tail - head:,} characters left out"
    if breaks is None:
        lines = count_lines(text, head, tail)
    else:
        lines = breaks - text.count("\n", 0, head) - text.count("\n", tail)
    note += f", {lines:,} lines …]" if lines else " …]"
    before = "" if not head or text[head - 1] == "\n" else "\n"
    return TextCut(f"{text[:head]}{before}{note}\n{text[tail:]}", head, tail)


def _short_text(text: str, room: int) -> tuple[int, str]:
    """A text inside a value, and where its gap begins: head, how much is missing, and with enough room a tail."""
    if room < 2 * _LEAST:
        head = max(room - 2, 0)
        return head, text[:head] + "…"
    room -= 30
    head, tail = room - room // 4, room // 4
    return head, f"{text[:head]} … {len(text) - head - tail:,} characters … {text[len(text) - tail :]}"


# ------------------------------------------------------------------------------------------------ values


class ValueCutter:
    """Cuts one normal value to any length, and measures it once.

    An object keeps its keys as long as there is space for something of each, and its small values whole: the space is
    shared so that only the largest are cut. A list of many items keeps the first ones whole, a list of few large
    ones keeps all of them, smaller. Long texts keep head and tail.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.sizes: dict[int, int] = {}
        self.elisions: list[Elision] = []
        self.measure(value)

    def cut(self, length: int) -> Cut:
        """The value in about `length` characters of JSON, and what was left out."""
        self.elisions = []
        cut = self.part(self.value, max(length, 1), "")
        return Cut(cut, tuple(sorted(self.elisions, key=_weight)))

    def measure(self, value: Any) -> int:
        """Characters of the value as compact JSON, nearly: escapes other than line breaks are not counted."""
        if isinstance(value, str):
            return len(value) + 2 + count_lines(value, 0, len(value))
        if type(value) is dict:
            size = 2 + sum(len(key) + 4 + self.measure(item) for key, item in value.items())
        elif type(value) is list:
            size = 2 + sum(1 + self.measure(item) for item in value)
        else:
            return len(str(value))
        self.sizes[id(value)] = size
        return size

    def size(self, value: Any) -> int:
        return self.sizes[id(value)] if type(value) in (dict, list) else self.measure(value)

    def part(self, value: Any, room: int, path: str) -> Any:
        if not value or self.size(value) <= room:
            return value
        if isinstance(value, str):
            head, text = _short_text(value, room)
            self.lose(path, "characters", head, len(value))
            return text
        if type(value) is dict:
            return self.cut_object(value, room, path)
        if type(value) is list:
            return self.cut_list(value, room, path)
        return value

    def lose(self, path: str, kind: str, shown: int, total: int) -> None:
        self.elisions.append(Elision(path, kind, max(shown, 0), total))

    def cut_object(self, value: dict[str, Any], room: int, path: str) -> Any:
        keys = list(value)
        needed = 0
        for count, key in enumerate(keys):
            needed += len(key) + 4 + min(self.size(value[key]), _LEAST // 2)
            if needed + _NOTE > room:
                keys = keys[:count]
                break
        missing = len(value) - len(keys)
        if missing:
            self.lose(path, "keys", len(keys), len(value))
        if not keys:
            return f"{{{len(value):,} keys}}"
        free = room - 2 - sum(len(key) + 4 for key in keys) - (_NOTE if missing else 0)
        shares = _share([self.size(value[key]) for key in keys], free)
        out = {
            key: self.part(value[key], share, f"{path}{path_step(key)}".lstrip("."))
            for key, share in zip(keys, shares, strict=True)
        }
        if missing:
            out["…" if "…" not in out else "… …"] = f"{missing:,} more key{'s' * (missing != 1)}"
        return out

    def cut_list(self, value: list[Any], room: int, path: str) -> Any:
        count, size = len(value), self.size(value)
        if count <= _SHARED_ITEMS and size / count > _LARGE_ITEM and room / count > _LEAST * 2:
            shares = _share([self.size(item) + 1 for item in value], room - 2)
            return [
                self.part(item, share - 1, f"{path}[{place}]")
                for place, (item, share) in enumerate(zip(value, shares, strict=True))
            ]
        left = room - 2 - _NOTE
        kept: list[Any] = []
        for item in value:
            left -= self.size(item) + 1
            if left < 0:
                break
            kept.append(item)
        if not kept and room - _NOTE > _LEAST:
            kept.append(self.part(value[0], room - 2 - _NOTE, f"{path}[0]"))
        if len(kept) < count:
            self.lose(path, "items", len(kept), count)
        if not kept:
            return f"[{count:,} items]"
        return kept if len(kept) == count else [*kept, More(count - len(kept))]


def read_call(handle: str, *, path: str = "", pattern: str = "", offset: int | None = None) -> str:
    """Return the call that reads a stored result, as a model writes it."""
    options = {"path": path, "pattern": pattern, "offset": offset}
    written = (f", {name}={compact_json(value)}" for name, value in options.items() if value not in ("", None))
    return f"read_result({compact_json(handle)}{''.join(written)})"


def describe_missing(cut: Cut) -> str:
    """The three largest losses in words: "954 of 1,000 items at rows; …"."""
    words = [
        f"{one.total - one.shown:,} of {one.total:,} {one.kind}" + (f" at {one.path}" if one.path else "")
        for one in cut.elisions[:3]
    ]
    if len(cut.elisions) > 3:
        words.append(f"and {len(cut.elisions) - 3:,} more places")
    return "; ".join(words)


def _weight(elision: Elision) -> int:
    """The largest losses first, an item or key as 40 characters."""
    missing = elision.total - elision.shown
    return -missing if elision.kind == "characters" else -40 * missing


def _share(sizes: Sequence[int], room: int) -> list[int]:
    """Room for each: the small get all they need, the others the same share of what is left."""
    shares = [0] * len(sizes)
    left = max(room, 0)
    for done, place in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[place] = min(sizes[place], left // (len(sizes) - done))
        left -= shares[place]
    return shares


def path_step(key: str) -> str:
    """Return one key as a step of a path: `.name`, or `["any text"]` where it is not a plain word."""
    return f".{key}" if key.isidentifier() else f"[{compact_json(key)}]"
