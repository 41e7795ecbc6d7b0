"""Reasoning tags in text (`<think>`): found while streaming, kept apart from what is said.

The ReAct parser knows the same tags; this is for dialects whose text is not parsed otherwise.
"""

from __future__ import annotations

import re

__all__ = ["THINKING_TAGS", "ThinkingSplitter", "split_thinking"]

THINKING_TAGS = ("think", "thinking", "thought", "reasoning", "seed:think", "mm:think")
_TAG = re.compile(rf"<(/?)(?:{'|'.join(THINKING_TAGS)})\s?>", re.IGNORECASE)
_LONGEST = max(map(len, THINKING_TAGS)) + 4  # "</", a blank and ">"
_PART = re.compile(r"</?[a-z:]{0,12}\s?\Z", re.IGNORECASE)


class ThinkingSplitter:
    """Splits streamed text into (is reasoning, piece); holds back at most one tag's beginning."""

    __slots__ = ("_depth", "_held")

    def __init__(self) -> None:
        self._held = ""
        self._depth = 0

    def feed(self, text: str) -> list[tuple[bool, str]]:
        text = self._held + text
        part = _PART.search(text, max(0, len(text) - _LONGEST))
        end = part.start() if part else len(text)
        self._held = text[end:]
        return self._split(text[:end])

    def flush(self) -> list[tuple[bool, str]]:
        held, self._held = self._held, ""
        return [(self._depth > 0, held)] if held else []

    def _split(self, text: str) -> list[tuple[bool, str]]:
        pieces: list[tuple[bool, str]] = []
        at = 0
        for tag in _TAG.finditer(text):
            if tag.start() > at:
                pieces.append((self._depth > 0, text[at : tag.start()]))
            at = tag.end()
            self._depth = max(0, self._depth - 1) if tag[1] else self._depth + 1
        if at < len(text):
            pieces.append((self._depth > 0, text[at:]))
        return pieces


def split_thinking(text: str) -> tuple[str, str]:
    """(reasoning, the rest). A closing tag without an opening one means that all before it was reasoning.

    An opening tag without a closing one means that the reasoning was cut off: all after it is reasoning.
    """
    first = _TAG.search(text)
    if first is None:
        return "", text
    reasoning = ""
    if first[1]:
        reasoning, text = text[: first.start()], text[first.end() :]
    splitter = ThinkingSplitter()
    pieces = splitter.feed(text) + splitter.flush()
    reasoning += "".join(piece for thinking, piece in pieces if thinking)
    return reasoning.strip(), "".join(piece for thinking, piece in pieces if not thinking).strip()
