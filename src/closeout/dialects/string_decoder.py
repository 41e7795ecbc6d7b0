"""Decodes the inside of a JSON string while it streams in."""

from __future__ import annotations

import re

__all__ = ["StringDecoder"]

_SIMPLE = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "'": "'", "\\": "\\", "/": "/"}


class StringDecoder:
    """Decodes the inside of a JSON string in pieces; holds back an escape, or half a surrogate pair, until it is whole.

    What is no escape stands for itself, so that nothing is lost.
    """

    _ESCAPE = re.compile(
        r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\(.)", re.DOTALL
    )
    _UNFINISHED = re.compile(r"\\(?:u(?:[0-9a-fA-F]{0,3}|[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?))?\Z")

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> str:
        text = self.held + text
        end = self._unfinished(text)
        self.held = text[end:]
        return self._ESCAPE.sub(self._replace, text[:end]) if "\\" in text else text

    def flush(self) -> str:
        held, self.held = self.held, ""
        return self._ESCAPE.sub(self._replace, held)

    def _unfinished(self, text: str) -> int:
        """Where an escape begins that the text cuts in two; the text's length if none does."""
        first = max(0, len(text) - 12)
        at = text.rfind("\\", first)
        if at < 0 or (at + 1 < len(text) and text[at + 1] != "u"):  # none, or a whole one, or the second half of one
            return len(text)
        found = self._UNFINISHED.search(text, first)
        while found is not None:
            start = found.start()
            if self._begins_escape(text, start):
                return start
            found = self._UNFINISHED.search(text, start + 1)
        return len(text)

    @staticmethod
    def _begins_escape(text: str, at: int) -> bool:
        """Whether a backslash is not itself escaped by the one before it."""
        before = len(text[:at]) - len(text[:at].rstrip("\\"))
        return before % 2 == 0

    def _replace(self, found: re.Match[str]) -> str:
        high, low, single, simple = found.groups()
        if high:
            return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
        if single:
            return chr(int(single, 16))
        return _SIMPLE.get(simple, "\\" + simple)
