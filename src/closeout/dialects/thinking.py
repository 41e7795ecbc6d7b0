"""Reasoning tags in text (`<think>`): found while streaming, kept apart from what is said.

The ReAct parser knows the same tags; this is for dialects whose text is not parsed otherwise. A tag that is quoted as
code (`quoting`) is text.
"""

from __future__ import annotations

import re

from closeout.dialects.quoting import CodeQuotes, undecided_tail

__all__ = ["THINKING_TAGS", "ThinkingSplitter", "split_thinking"]

THINKING_TAGS = ("think", "thinking", "thought", "reasoning", "seed:think", "mm:think")
_TAG = re.compile(rf"<(/?)(?:{'|'.join(THINKING_TAGS)})\s?>", re.IGNORECASE)
_SIGNS = re.compile(r"[<`~\n]")
_LONGEST = max(map(len, THINKING_TAGS)) + 4  # "</", a blank and ">"
_PART = re.compile(r"</?[a-z:]{0,12}\s?\Z", re.IGNORECASE)


class ThinkingSplitter:
    """Splits streamed text into (is reasoning, piece); holds back a tag's beginning, or a tag that may be quoted."""

    __slots__ = ("_code", "_depth", "_held", "_told", "lone_at", "tagged")

    def __init__(self) -> None:
        self._code = CodeQuotes()
        self._depth = 0
        self._held = ""  # what is to be looked at again, together with what follows
        self._told = 0  # how much of it was told already
        self.tagged = False  # whether a tag counted so far
        self.lone_at: int | None = None  # how many pieces stood before a closing tag that came first of all tags

    def feed(self, text: str) -> list[tuple[bool, str]]:
        if not self._held and _SIGNS.search(text) is None:
            self._code.walk_plain(text)
            return [(self._depth > 0, text)] if text else []
        text = self._held + text
        part = _PART.search(text, max(0, len(text) - _LONGEST))
        if part is not None:
            return self._split(text, part.start(), part.start())
        return self._split(text, undecided_tail(text), len(text))

    def flush(self) -> list[tuple[bool, str]]:
        return self._split(self._held, len(self._held), len(self._held), last=True)

    def read(self, text: str) -> list[tuple[bool, str]]:
        """A whole text at once."""
        return self._split(text, len(text), len(text), last=True)

    def _split(self, text: str, decided: int, end: int, *, last: bool = False) -> list[tuple[bool, str]]:
        """Tells of a text up to `end`, but no further than a tag of which more text must tell.

        Behind `decided` stands what more text may make a fence of, and no tag.
        """
        pieces: list[tuple[bool, str]] = []
        code, told, walked = self._code, self._told, 0
        for tag in _TAG.finditer(text, 0, decided):
            code.walk(text, walked, tag.start(), fences=not self._depth)
            walked = tag.start()
            closing = bool(tag[1])
            quoted = code.quotes(text, *tag.span(), closing=closing, last=last)
            if quoted is None:
                decided = end = tag.start()
                break
            walked = tag.end()
            if quoted:
                continue
            if tag.start() > told:
                pieces.append((self._depth > 0, text[told : tag.start()]))
            if closing and not self.tagged:
                self.lone_at = len(pieces)
            told = tag.end()
            self.tagged = True
            self._depth = max(0, self._depth - 1) if closing else self._depth + 1
            code.begin()
        code.walk(text, walked, decided, fences=not self._depth)
        if end > told:
            pieces.append((self._depth > 0, text[told:end]))
        self._held, self._told = text[decided:], max(0, end - decided)
        return pieces


def split_thinking(text: str) -> tuple[str, str]:
    """(reasoning, the rest). A closing tag without an opening one means that all before it was reasoning.

    An opening tag without a closing one means that the reasoning was cut off: all after it is reasoning. Tags that are
    quoted as code, in backticks or in a fence, are text like any other.
    """
    if _TAG.search(text) is None:
        return "", text
    splitter = ThinkingSplitter()
    pieces = splitter.read(text)
    if not splitter.tagged:
        return "", text
    before = splitter.lone_at or 0
    reasoning = "".join(piece for index, (thinking, piece) in enumerate(pieces) if thinking or index < before)
    said = "".join(piece for index, (thinking, piece) in enumerate(pieces) if not thinking and index >= before)
    return reasoning.strip(), said.strip()
