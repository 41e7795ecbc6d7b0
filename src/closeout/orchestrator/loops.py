"""Finds an agent that goes in circles, over several turns and within one reply. Pure; no clock, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from closeout.messages import ToolCall, ToolReturn

__all__ = ["LoopWatch", "RepetitionWatch", "repeated_tail"]

WINDOW = 12  # turns looked back on
CYCLES = {1: 3, 2: 2, 3: 2, 4: 2}  # period in turns → how many times it must have come round
SAME_RESULT = 3  # different calls of one tool in a row that brought the same
PARAPHRASES = 4  # queries of one tool in a row that say the same in other words
LIKENESS = 88.0  # of 100, by rapidfuzz's token_sort_ratio


@dataclass(frozen=True, slots=True)
class _Seen:
    name: str
    arguments: str
    words: str
    result: int


class LoopWatch:
    """Sees each accepted turn's calls and results; `see` names the circle that it closes, or says nothing.

    After a finding the watch starts afresh, so that the same circle is reported again only if it goes on.
    """

    def __init__(self) -> None:
        self._turns: deque[tuple[_Seen, ...]] = deque(maxlen=WINDOW)

    def see(self, calls: Sequence[ToolCall], returns: Sequence[ToolReturn]) -> str:
        by_call = {id(r.call): r.text for r in returns}
        turn = tuple(_seen(call, by_call.get(id(call), "")) for call in calls)
        if not turn:
            return ""
        self._turns.append(turn)
        found = self._cycle() or self._same_result() or self._paraphrase()
        if found:
            self._turns.clear()
        return found

    def _cycle(self) -> str:
        marks = [tuple((s.name, s.arguments) for s in turn) for turn in self._turns]
        for period, times in CYCLES.items():
            length = period * times
            if len(marks) >= length and all(marks[-i] == marks[-i - period] for i in range(1, length - period + 1)):
                return "You are making the same calls over and over."
        return ""

    def _recent(self, count: int) -> list[_Seen]:
        """The last `count` calls, if each was a turn of its own and all were to one tool."""
        recent = list(self._turns)[-count:]
        if len(recent) < count or any(len(turn) != 1 for turn in recent):
            return []
        single = [turn[0] for turn in recent]
        return single if len({s.name for s in single}) == 1 else []

    def _same_result(self) -> str:
        recent = self._recent(SAME_RESULT)
        if recent and len({s.result for s in recent}) == 1:
            return f"Your last {len(recent)} calls of {recent[0].name} all brought the same result."
        return ""

    def _paraphrase(self) -> str:
        recent = self._recent(PARAPHRASES)
        if not recent or any(len(s.words) < 8 for s in recent):
            return ""
        from rapidfuzz.fuzz import token_sort_ratio

        last = recent[-1]
        if all(token_sort_ratio(last.words, s.words) >= LIKENESS for s in recent[:-1]):
            return f"Your last {len(recent)} calls of {last.name} ask the same in other words."
        return ""


def _seen(call: ToolCall, result: str) -> _Seen:
    if isinstance(call.arguments, str):
        arguments = words = call.arguments
    else:
        arguments = repr(sorted(call.arguments.items(), key=lambda item: item[0]))
        words = " ".join(value for value in call.arguments.values() if isinstance(value, str))
    return _Seen(call.name, arguments, words[:500].casefold(), hash(result))


# ------------------------------------------------------------------------------------------- within one reply

TAIL = 2400  # characters of the end that are looked at
SHORTEST_RUN = 480  # characters that the repetition must cover
TIMES = 4


def repeated_tail(text: str) -> int:
    """Where a text begins to repeat itself up to its end, as an offset; -1 where it does not.

    A repetition is one unit of up to 600 characters, four times or more, over at least 480 characters. Rules and
    tables of one character (`-----`) repeat by nature and do not count.
    """
    tail = text[-TAIL:]
    if len(tail) < SHORTEST_RUN:
        return -1
    for period in _periods(tail):
        start = _run_start(tail, period)
        if len(tail) - start >= max(SHORTEST_RUN, TIMES * period) and len(set(tail[start:])) > 3:
            return len(text) - len(tail) + start
    return -1


def _periods(tail: str) -> list[int]:
    """Distances at which the last 24 characters occurred before: the only periods that can be."""
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
    """Watches a reply as it streams; `feed` says whether its end repeats itself. Looks once in 200 characters."""

    __slots__ = ("_since", "_tail")

    def __init__(self) -> None:
        self._tail = ""
        self._since = 0

    def feed(self, text: str) -> bool:
        self._tail += text
        self._since += len(text)
        if self._since < 200:
            return False
        self._since = 0
        self._tail = self._tail[-TAIL:]
        return repeated_tail(self._tail) >= 0
