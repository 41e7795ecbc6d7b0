"""JSON values in a text of tool calls: where they end, and their reading with named repairs within a budget."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from closeout.messages import Repair
from closeout.parsing.json_text import read_broken_json

__all__ = [
    "BLANKS",
    "SEPARATORS",
    "Loaded",
    "Pairs",
    "Source",
    "json_or_text",
    "load",
    "load_at",
    "refusal_in",
    "refusal_of",
]

# A bracket, or a string with its closing quote. One set of characters comes first, which the search skips to.
_STRUCTURE = re.compile(r'(?P<mark>[{}\[\]"])(?:(?<=")[^"\\]*+(?:\\.[^"\\]*+)*+(?P<quote>"?))?', re.DOTALL)
BLANKS = re.compile(r"\s*+")
SEPARATORS = re.compile(r"(?:\s|[,;])*+")
_MAX_DEPTH = 1000  # open brackets; Python reads no deeper JSON
_MAX_REPAIRED = 1 << 18  # characters; a broken value beyond this is not repaired
_STEPS_PER_CHARACTER = 4  # passes over the text that failed attempts may cost
_FREE_STEPS = 1 << 16  # a short text may be tried from every position
_FAILED_ATTEMPT = 512  # steps: a failed attempt costs as much as a search of about that many characters
_REPAIRED_VALUES = 64  # broken values that are repaired in one text


class Pairs(dict[str, Any]):
    """An object built from keys and values in order. It remembers why it must not be run."""

    __slots__ = ("refusal",)

    def __init__(self, pairs: Iterable[tuple[str, Any]] = (), refusal: str = "") -> None:
        super().__init__()
        self.refusal = refusal
        for key, value in pairs:
            self.put(key, value)

    def put(self, key: str, value: Any) -> None:
        """Set a key. A second, different value for it refuses the object."""
        if key in self and self[key] != value:
            self.refusal = f"the key {key[:40]!r} has two different values"
        self[key] = value


def refusal_of(value: Any) -> str:
    """Why a call that is written as this object must not run, "" if nothing speaks against it."""
    return value.refusal if isinstance(value, Pairs) else ""


def refusal_in(value: Any) -> str:
    """Why a call with these arguments must not run, "" if nothing speaks against it."""
    pending = [value]
    while pending:
        item = pending.pop()
        if refusal := refusal_of(item):
            return refusal
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, float) and not math.isfinite(item):
            return "an argument is not a number"
    return ""


class Source:
    """A text with a memory for searches and a budget of steps, which keeps every reader linear."""

    __slots__ = ("_ends", "_next", "_repairs", "_steps", "deep_until", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.deep_until = 0  # brackets before this position are nested too deeply to be read
        self._ends: dict[int, int | None] = {}  # ends of brackets passed in the search for another one's end
        self._next: dict[str, tuple[int, int]] = {}
        self._repairs = _REPAIRED_VALUES
        self._steps = _STEPS_PER_CHARACTER * len(text) + _FREE_STEPS

    def find(self, needle: str, start: int) -> int:
        """`text.find(needle, start)`, remembered until the hit is passed."""
        asked, hit = self._next.get(needle, (len(self.text) + 1, -1))
        if asked <= start and (hit < 0 or hit >= start):
            return hit
        hit = self.text.find(needle, start)
        self._next[needle] = (start, hit)
        return hit

    def first(self, needles: tuple[str, ...], start: int) -> tuple[int, str]:
        """Return the nearest of the needles as (position, needle), or (-1, "")."""
        hits = [(at, needle) for needle in needles if (at := self.find(needle, start)) >= 0]
        return min(hits, key=lambda hit: (hit[0], -len(hit[1])), default=(-1, ""))

    def skip(self, pattern: re.Pattern[str], at: int) -> int:
        """Return the position after what a pattern matches at `at`; `at` itself without a match."""
        found = pattern.match(self.text, at)
        return found.end() if found else at

    def value_end(self, start: int) -> int | None:
        """Return the position after the JSON object or array that opens at `start`, None if it is not closed.

        The ends of the brackets inside are remembered.
        """
        if start in self._ends or start < self.deep_until or self.exhausted:
            return self._ends.get(start)
        at, opened = start, []
        for found in _STRUCTURE.finditer(self.text, start):
            at, mark = found.end(), found["mark"]
            if mark in "{[":
                opened.append(at - 1)
                if len(opened) > _MAX_DEPTH:
                    self.deep_until = at
                    break
            elif mark != '"' and opened:
                self._ends[opened.pop()] = at
            elif not found["quote"]:  # a bracket that nothing opened, or a string that nothing closes
                break
            if not opened:
                break
        else:
            at = len(self.text)
        self._ends.update(dict.fromkeys(opened))
        self.spend(at - start)
        return self._ends.setdefault(start, None)

    def spend(self, steps: int) -> None:
        """Charge a scan that may have found nothing."""
        self._steps -= steps + 1

    def fail(self) -> None:
        """Charge an attempt that found no call, besides what it scanned."""
        self._steps -= _FAILED_ATTEMPT

    def may_repair(self) -> bool:
        """True if one more broken value may be repaired; a repair costs far more than reading."""
        self._repairs -= 1
        return self._repairs >= 0

    @property
    def exhausted(self) -> bool:
        return self._steps <= 0


@dataclass(frozen=True, slots=True)
class Loaded:
    """A JSON value and what was repaired to read it."""

    value: Any
    repairs: tuple[Repair, ...] = ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    return plain if len(plain) == len(pairs) else Pairs(pairs)


_STRICT = json.JSONDecoder(object_pairs_hook=_object)
_RELAXED = json.JSONDecoder(object_pairs_hook=_object, strict=False)


def load(text: str, *, repair: bool | Source = True) -> Loaded | None:
    """Read a JSON value: strictly first, then with named repairs.

    Args:
        text: The text of the value.
        repair: False reads strict JSON only; a Source repairs as long as it has repairs left.

    Returns:
        The value, None if the text is not JSON. NaN and infinities are kept as floats, and an object with two values
        for a key as `Pairs`, so that `refusal_in` sees them.
    """
    try:
        return Loaded(_STRICT.decode(text))
    except (ValueError, RecursionError):
        pass
    try:
        return Loaded(_RELAXED.decode(text), (Repair("raw_control", "json"),))
    except (ValueError, RecursionError):
        pass
    if len(text) > _MAX_REPAIRED or not (repair.may_repair() if isinstance(repair, Source) else repair):
        return None
    repaired = read_broken_json(text)
    return Loaded(repaired.value, repaired.repairs) if repaired.ok and isinstance(repaired.value, dict | list) else None


def load_at(source: Source, at: int, *, repair: bool = True) -> tuple[Loaded | None, int | None]:
    """Return the object or array that opens at `at`, None if it cannot be read, and its end, None without one."""
    end = source.value_end(at)
    return (load(source.text[at:end], repair=source if repair else False) if end else None), end


def json_or_text(text: str) -> Any:
    """Return the JSON value of a text; the text itself if it has none."""
    loaded = load(text)
    return loaded.value if loaded else text
