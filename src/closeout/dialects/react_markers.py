"""The words that structure a ReAct text (`Thought:`, `Action:`, …) and the tags: where one stands, or may yet stand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from closeout.dialects.action_keys import NATIVE_TAGS
from closeout.dialects.thinking import THINKING_TAGS

__all__ = ["HOLD", "Marker", "MarkerName", "Markers", "Tag"]

MarkerName = Literal["thought", "action", "action_input", "observation", "final_answer"]
WORDS: Mapping[MarkerName, tuple[str, ...]] = {
    "action_input": ("Action Input", "Action_Input", "ActionInput"),
    "action": ("Action",),
    "thought": ("Thought",),
    "observation": ("Observation",),
    "final_answer": ("Final Answer", "Final_Answer", "FinalAnswer", "Answer"),
}
HOLD: Literal["hold"] = "hold"

_DECORATION = re.compile(r"[*#][*# \t]*+")
_LONGEST_DECORATION = 12
_AFTER_WORD = r"[ \t]?#?\d{0,3}[ \t]?\*{0,3}[ \t]?"
_LONGEST_AFTER_WORD = 10


class Marker(NamedTuple):
    """A marker in a text: what it is, where it ends, whether `*` stood before it (bold type, to be closed after it)."""

    name: MarkerName
    end: int
    bold: bool


class Tag(NamedTuple):
    """A tag in a text: of reasoning or of a native tool call, opening or closing, and where it ends."""

    thinking: bool
    closing: bool
    end: int


class Markers:
    """All markers in use. `translations` adds words to the English ones: {"thought": ["思考"]}."""

    def __init__(self, translations: Mapping[str, Sequence[str]] | None = None) -> None:
        added = dict(translations or {})
        if unknown := set(added) - set(WORDS):
            raise ValueError(f"There are no markers {sorted(unknown)}. There are: {', '.join(sorted(WORDS))}.")
        words = {name: (*own, *added.get(name, ())) for name, own in WORDS.items()}
        patterns = "|".join(f"(?P<{name}>{_any(of_name)})" for name, of_name in words.items())
        everything = [word for of_name in words.values() for word in of_name]
        self._marker = re.compile(rf"(?:{patterns}){_AFTER_WORD}[:：]", re.IGNORECASE)
        self._part = re.compile(rf"{_beginnings(everything)}|(?:{_any(everything)}){_AFTER_WORD}", re.IGNORECASE)
        self._longest = max(map(len, everything)) + _LONGEST_AFTER_WORD
        observation = words["observation"]
        inline = (*observation, *words["action_input"])
        self.in_name = re.compile(
            rf"[ \t](?:(?P<input>{_any(words['action_input'])})|(?:{_any(observation)})){_AFTER_WORD}[:：]",
            re.IGNORECASE,
        )
        self.in_name_part = re.compile(
            rf"[ \t](?:(?:{_any(inline)}){_AFTER_WORD}|{_beginnings(inline)})?\Z", re.IGNORECASE
        )
        self.stop_words = tuple(f"{word}:" for word in observation)
        self.first = "".join(sorted({letter for word in everything for letter in word[0].lower() + word[0].upper()}))
        self.inline_observation = re.compile(rf"[ \t](?:{_any(observation)})[ \t]?\d{{0,3}}[ \t]?[:：]", re.IGNORECASE)
        self.inline_part = re.compile(
            rf"[ \t](?:(?:{_any(observation)})[ \t]?\d{{0,3}}[ \t]?|{_beginnings(observation)})?\Z", re.IGNORECASE
        )

    @classmethod
    def english(cls) -> Markers:
        return _english()

    def at(self, text: str, start: int, *, last: bool) -> Marker | Literal["hold"] | None:
        """The marker that stands at a line's first letter; HOLD if more text must tell. `last`: no more will come."""
        decoration = _DECORATION.match(text, start) if text[start : start + 1] in ("*", "#") else None
        word = decoration.end() if decoration else start
        if word - start > _LONGEST_DECORATION:
            return None
        found = self._marker.match(text, word)
        if found is not None:
            name: MarkerName = found.lastgroup  # type: ignore[assignment]
            return Marker(name, found.end(), "*" in text[start:word])
        if last or len(text) - word > self._longest:
            return None
        return HOLD if word == len(text) or self._part.fullmatch(text, word) else None

    def is_stop_prefix(self, line: str) -> bool:
        """Whether a last line is a proper prefix of a stop marker: `Observ`."""
        return bool(line) and any(len(line) < len(word) and word.startswith(line) for word in self.stop_words)


@lru_cache(maxsize=1)
def _english() -> Markers:
    return Markers()


def _any(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


def _beginnings(words: Sequence[str]) -> str:
    """A pattern for each true beginning of each word."""
    return f"(?:{_any({word[:size] for word in words for size in range(1, len(word))})})"


# ------------------------------------------------------------------------------------------------ tags

_NAMES = f"(?P<thinking>{_any(THINKING_TAGS)})|(?:{_any(NATIVE_TAGS)})"
_TAG = re.compile(rf"<(?P<closing>/?)(?:{_NAMES})\s?>", re.IGNORECASE)
_TAG_NAMES = (*THINKING_TAGS, *NATIVE_TAGS)
_TAG_PART = re.compile(rf"</?(?:{_beginnings(_TAG_NAMES)}|(?:{_any(_TAG_NAMES)})\s?)?", re.IGNORECASE)
_LONGEST_TAG = max(map(len, _TAG_NAMES)) + 4


def tag_at(text: str, start: int, *, last: bool) -> Tag | Literal["hold"] | None:
    """The tag that begins at a `<`; HOLD if more text must tell."""
    found = _TAG.match(text, start)
    if found is not None:
        return Tag(found["thinking"] is not None, found["closing"] == "/", found.end())
    if last or len(text) - start > _LONGEST_TAG:
        return None
    return HOLD if _TAG_PART.fullmatch(text, start) else None
