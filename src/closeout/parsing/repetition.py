"""Recognise a reply that only repeats itself."""

from __future__ import annotations

from closeout.messages import Defect

__all__ = ["REPEATING", "RepetitionWatch", "repeated_tail"]

TAIL = 2400  # characters of the end that are examined
SHORTEST_RUN = 480  # characters that a repetition must cover
TIMES = 4  # Occurrences of the unit that count as a repetition.
PLAIN_RUN = 1600  # the same for units of up to three different characters: rules, table borders and padding are shorter
PLAIN_CHARACTERS = 3
CHECK_EVERY = 200  # characters between two checks of a stream

REPEATING = Defect("repeating", "Your last reply repeated itself. Be brief: call one tool or give the answer.")


def repeated_tail(text: str) -> int:
    """Return the offset where a text begins to repeat itself up to its end, or -1.

    A repetition is one unit of up to 600 characters that occurs at least four times and covers at least 480 characters.
    A unit of up to three different characters, such as `-`, blanks or newlines, must cover 1,600.
    """
    tail = text[-TAIL:]
    if len(tail) < SHORTEST_RUN:
        return -1
    for period in _periods(tail):
        start = _run_start(tail, period)
        length = len(tail) - start
        if length >= max(SHORTEST_RUN, TIMES * period) and (
            length >= PLAIN_RUN or len(set(tail[start:])) > PLAIN_CHARACTERS
        ):
            return len(text) - len(tail) + start
    return -1


def _periods(tail: str) -> list[int]:
    """Return the distances at which the last 24 characters occurred before: the only possible periods."""
    mark, found = tail[-24:], []
    place = len(tail) - 24
    for _ in range(32):
        place = tail.rfind(mark, 0, place + 23)
        if place < 0:
            break
        found.append(len(tail) - 24 - place)
    return found


def _run_start(tail: str, period: int) -> int:
    start = len(tail) - period
    while start >= period and tail[start - period : start] == tail[start : start + period]:
        start -= period
    return start


class RepetitionWatch:
    """Watches a reply as it streams. Looks at it once in 200 characters."""

    __slots__ = ("_since", "_tail")

    def __init__(self) -> None:
        self._tail = ""
        self._since = 0

    def feed(self, text: str) -> bool:
        """Add a piece. Returns whether the end of the reply repeats itself."""
        self._tail += text
        self._since += len(text)
        if self._since < CHECK_EVERY:
            return False
        self._since = 0
        self._tail = self._tail[-TAIL:]
        return repeated_tail(self._tail) >= 0
