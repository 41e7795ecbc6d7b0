"""Finds an agent that goes in circles, over several turns and within one reply. Pure; no clock, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from closeout.messages import ToolCall, ToolReturn
from closeout.orchestrator.paraphrase import Query, query_of, same_question
from closeout.records import record

__all__ = ["LoopWatch", "RepetitionWatch", "repeated_tail"]

WINDOW = 12  # turns looked back on
CYCLES = {1: 3, 2: 2, 3: 2, 4: 2}  # period in turns → how many times it must have come round
POLLS = 10  # turns of nothing but repeatable calls that brought the same each time: waiting is their purpose
SAME_RESULT = 3  # different calls of one tool in a row that brought the same
SHORTEST_RESULT = 200  # characters: "ok" and "nothing found" come back rightly to different calls
PARAPHRASES = 4  # queries of one tool in a row that say the same in other words


@record
class _Seen:
    """One turn that made calls. `mark`: the calls, to compare turns by; the rest only of a turn with a single call."""

    mark: int
    polls: bool = False
    name: str = ""
    query: Query | None = None
    result: int = 0
    length: int = 0  # of the result


class LoopWatch:
    """Sees each accepted turn's calls and results; `see` names the circle that it closes, or says nothing.

    `repeatable` names the tools whose same call may rightly be made again: of those only a long row of the same
    results is a circle. After a finding the watch starts afresh, so that the same circle is reported again only if it
    goes on.
    """

    def __init__(self, repeatable: Iterable[str] = ()) -> None:
        self._repeatable = frozenset(repeatable)
        self._turns: deque[_Seen] = deque(maxlen=WINDOW)

    def see(self, calls: Sequence[ToolCall], returns: Sequence[ToolReturn]) -> str:
        if not calls:
            return ""
        self._turns.append(self._seen(calls, returns))
        found = self._cycle() or self._same_result() or self._paraphrase()
        if found:
            self._turns.clear()
        return found

    def _seen(self, calls: Sequence[ToolCall], returns: Sequence[ToolReturn]) -> _Seen:
        polls = True
        parts: list[object] = []
        for call in calls:
            polls = polls and call.name in self._repeatable
            parts += call.name, _canonical(call.arguments)
        if polls:
            parts += [returned.text for returned in returns]  # a poll that brings something new is no repetition
        mark = hash(tuple(parts))
        if len(calls) > 1:
            return _Seen(mark, polls)
        text = returns[0].text if returns else ""
        return _Seen(mark, polls, calls[0].name, query_of(calls[0].arguments, text), hash(text), len(text))

    def _cycle(self) -> str:
        turns, last = self._turns, self._turns[-1].mark
        for period, times in CYCLES.items():
            length = period * times
            if len(turns) < length or turns[-1 - period].mark != last:
                continue
            if all(turns[-i].polls for i in range(1, period + 1)):
                length = -(-POLLS // period) * period
            if len(turns) >= length and all(
                turns[-i].mark == turns[-i - period].mark for i in range(2, length - period + 1)
            ):
                return "You are making the same calls over and over."
        return ""

    def _recent(self, count: int) -> list[_Seen]:
        """The last `count` turns, if each made one call, all of them to one tool that is not there to be repeated."""
        turns = self._turns
        name = turns[-1].name
        if not name or turns[-1].polls or len(turns) < count:
            return []
        if any(turns[-i].name != name for i in range(2, count + 1)):
            return []
        return [turns[-i] for i in range(count, 0, -1)]

    def _same_result(self) -> str:
        if self._turns[-1].length < SHORTEST_RESULT:
            return ""
        recent = self._recent(SAME_RESULT)
        if recent and all(turn.result == recent[0].result for turn in recent):
            return f"Your last {len(recent)} calls of {recent[0].name} all brought the same result."
        return ""

    def _paraphrase(self) -> str:
        last = self._turns[-1].query
        if last is None:
            return ""
        recent = self._recent(PARAPHRASES)
        if recent and all(turn.query is not None and same_question(turn.query, last) for turn in recent[:-1]):
            return f"Your last {len(recent)} calls of {recent[0].name} ask the same in other words."
        return ""


def _canonical(arguments: Mapping[str, Any] | str) -> str:
    return repr(sorted(arguments.items()) if len(arguments) > 1 and not isinstance(arguments, str) else arguments)


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
