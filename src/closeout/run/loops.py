"""Detect an agent that goes in circles: the same calls, the same results, or the same query in other words. No I/O."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from closeout.dialects.functions import RUN_PROGRAM
from closeout.language.words import is_unspaced, split_characters, telling_words, words
from closeout.messages import ToolCall, ToolReturn
from closeout.records import record

__all__ = ["LoopWatch", "Query", "query_of", "same_question"]

WINDOW = 12  # turns that are compared
CYCLES = {1: 3, 2: 2, 3: 2, 4: 2}  # period in turns → how often it must occur
FAILED_PROGRAM = 2  # Equal failures of a program in a row: nothing outside it can have changed that.
POLLS = 10  # turns of repeatable calls only, with the same results: such tools are meant for waiting
SAME_RESULT = 3  # different calls of one tool in a row with the same result
SHORTEST_RESULT = 200  # characters: different calls may rightly return "ok" or "nothing found"
PARAPHRASES = 4  # queries of one tool in a row that mean the same


@record
class _Seen:
    """One turn with calls. `mark` is a hash of its calls; the other fields are set for a turn with a single call."""

    mark: int
    polls: bool = False
    name: str = ""
    query: Query | None = None
    result: int = 0
    length: int = 0  # the length of the result
    failed_program: bool = False


class LoopWatch:
    """Watches the calls and results of accepted turns.

    After a finding it starts again, so that a circle is reported a second time only if it continues.

    Args:
        repeatable: Tools whose calls may be repeated. Only many calls with the same result are a circle.
    """

    def __init__(self, repeatable: Iterable[str] = ()) -> None:
        self.repeatable = frozenset(repeatable)
        self._turns: deque[_Seen] = deque(maxlen=WINDOW)

    def see(self, calls: Sequence[ToolCall], returns: Sequence[ToolReturn]) -> str:
        """Add a turn. Returns a sentence that names the circle it completes, empty if it completes none."""
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
            polls = polls and call.name in self.repeatable
            parts += call.name, _canonical(call.arguments)
        if polls:
            parts += [returned.text for returned in returns]  # a poll with a new result is not a repetition
        mark = hash(tuple(parts))
        if len(calls) > 1:
            return _Seen(mark, polls)
        text = returns[0].text if returns else ""
        return _Seen(
            mark,
            polls,
            name=calls[0].name,
            query=query_of(calls[0].arguments, text),
            result=hash(text),
            length=len(text),
            failed_program=calls[0].name == RUN_PROGRAM and bool(returns) and not returns[0].ok,
        )

    def _cycle(self) -> str:
        turns, last = self._turns, self._turns[-1].mark
        if turns[-1].failed_program and len(turns) >= FAILED_PROGRAM and turns[-2] == turns[-1]:
            return "Your last two programs were the same and failed in the same way."
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
        """Return the last `count` turns if each is one call of the same tool, and that tool is not repeatable."""
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
            return f"Your last {len(recent)} calls all returned the same result."
        return ""

    def _paraphrase(self) -> str:
        last = self._turns[-1].query
        if last is None:
            return ""
        recent = self._recent(PARAPHRASES)
        if recent and all(turn.query is not None and same_question(turn.query, last) for turn in recent[:-1]):
            return f"Your last {len(recent)} calls ask the same in other words."
        return ""


def _canonical(arguments: Mapping[str, Any] | str) -> str:
    return repr(sorted(arguments.items()) if len(arguments) > 1 and not isinstance(arguments, str) else arguments)


# ------------------------------------------------------------------------------------------------ paraphrases

SHORTEST = 12  # letters, with a Chinese character as three: shorter queries are similar by chance
LONGEST = 500  # characters of a query that are compared; four times as many of a result
LIKE_WORD = 80.0  # rapidfuzz's ratio, up to 100, of two forms of one word ("world", "world's")
SHARED_WORDS = 0.6  # least share of the words of the longer query that both have
# Least share of common words in the two results: if words of the query were moved, added or removed; and if a word was
# replaced by another, which may be a synonym or the next name on a list.
SHARED_RESULTS, SHARED_RESULTS_IF_REPLACED = 0.3, 0.9

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Query:
    """A call's query.

    Attributes:
        words: The words of its text arguments.
        fixed: Its numbers and its other arguments, which must be equal in a paraphrase.
        found: The words and numbers of its result.
    """

    words: frozenset[str]
    fixed: str
    found: frozenset[str]


def query_of(arguments: Mapping[str, Any] | str, result: str) -> Query | None:
    """Return the query of a call, None if its text is too short to compare."""
    values = [arguments] if isinstance(arguments, str) else list(arguments.values())
    text = " ".join([value for value in values if isinstance(value, str)])[:LONGEST]
    if len(text) < SHORTEST and text.isascii():
        return None
    if sum(3 if is_unspaced(word) else len(word) for word in split_characters(words(text))) < SHORTEST:
        return None
    # Another page or year is another question.
    fixed = repr([_NUMBERS.findall(text), *(value for value in values if not isinstance(value, str))])
    asked = frozenset(split_characters(telling_words(text, keep_asking=True)))
    start = result[: 4 * LONGEST]
    return Query(asked, fixed, frozenset([*split_characters(words(start)), *_NUMBERS.findall(start)]))


def same_question(one: Query, other: Query) -> bool:
    """Return whether two queries share most of their words and have similar results."""
    if one.fixed != other.fixed:
        return False
    only_one, only_other = _apart(one.words, other.words), _apart(other.words, one.words)
    longer = max(len(one.words), len(other.words), 1)
    shared = longer - max(len(only_one), len(only_other))
    if shared < SHARED_WORDS * longer:
        return False
    everything = len(one.found | other.found)
    common = len(one.found & other.found) / everything if everything else 1.0
    return common >= (SHARED_RESULTS_IF_REPLACED if only_one and only_other else SHARED_RESULTS)


def _apart(words: frozenset[str], others: frozenset[str]) -> list[str]:
    """Return the words that are not similar to any of the others."""
    left = words - others
    if not left:
        return []
    from rapidfuzz.fuzz import ratio

    rest = [word for word in others - words if len(word) > 1]
    return [word for word in left if len(word) == 1 or all(ratio(word, near) < LIKE_WORD for near in rest)]
