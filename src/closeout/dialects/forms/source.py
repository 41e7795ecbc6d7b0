"""A text under reading: searches that remember, and a budget of steps that keeps every reader linear. No syntax."""

from __future__ import annotations

__all__ = ["Source"]

_STEPS_PER_CHARACTER = 4  # speculative scans may cost this many passes over the text, then they give up
_FREE_STEPS = 1 << 16  # a short text may be tried from every position
_MENDED_VALUES = 64  # broken values of one text that are worth repairing


class Source:
    """The text and what is known of it. Not shared between threads."""

    __slots__ = ("_mends", "_next", "_steps", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._next: dict[str, tuple[int, int]] = {}
        self._mends = _MENDED_VALUES
        self._steps = _STEPS_PER_CHARACTER * len(text) + _FREE_STEPS

    def find(self, needle: str, start: int) -> int:
        """`text.find(needle, start)`; asking again from further on costs nothing until the hit is passed."""
        asked, hit = self._next.get(needle, (len(self.text) + 1, -1))
        if asked <= start and (hit < 0 or hit >= start):
            return hit
        hit = self.text.find(needle, start)
        self._next[needle] = (start, hit)
        return hit

    def first(self, needles: tuple[str, ...], start: int) -> tuple[int, str]:
        """The nearest of the needles as (position, needle); (-1, "") if there is none."""
        hits = [(at, needle) for needle in needles if (at := self.find(needle, start)) >= 0]
        return min(hits, key=lambda hit: (hit[0], -len(hit[1])), default=(-1, ""))

    def spend(self, steps: int) -> None:
        """Pay for a scan that may have been in vain."""
        self._steps -= steps + 1

    def may_mend(self) -> bool:
        """Whether one more broken value may be repaired; repair costs far more than reading."""
        self._mends -= 1
        return self._mends >= 0

    @property
    def exhausted(self) -> bool:
        return self._steps <= 0
