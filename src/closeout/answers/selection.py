"""Choose among several answers of one run: the last one, or the one that most agree on. Pure decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from closeout.answers.normal_form import normalised

__all__ = ["AnswerCandidate", "RankedAnswer", "Selection", "select_answer"]

Method = Literal["last", "vote"]

_INCOMPLETE = 0.5  # The weight of an answer with an unclosed wrapper.
_EARLIEST = 0.5  # The weight of the first answer beside the last one: later answers know more.


@dataclass(frozen=True, slots=True)
class AnswerCandidate:
    """An answer seen in a run. Candidates are in the order in which they were seen."""

    text: str
    complete: bool = True


@dataclass(frozen=True, slots=True)
class RankedAnswer:
    """An answer, how it was last written, its share of the votes (0 to 1), and how often it was given."""

    text: str
    share: float
    count: int


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen answer, None without answers, and all answers, the best first."""

    answer: str | None
    ranking: tuple[RankedAnswer, ...] = ()


def select_answer(candidates: Sequence[AnswerCandidate | str], method: Method = "last") -> Selection:
    """Choose among answers in the order in which they were seen.

    `last`: the last one. `vote`: answers that are equal after normalisation are one; each vote weighs from 0.5 (the
    first) to 1 (the last), half of it when its wrapper was not closed; of equals the later one wins. The ranking is by
    votes in both.
    """
    seen = [AnswerCandidate(each) if isinstance(each, str) else each for each in candidates]
    seen = [each for each in seen if each.text.strip()]
    if not seen:
        return Selection(None)
    if len(seen) == 1:
        return Selection(seen[0].text, (RankedAnswer(seen[0].text, 1.0, 1),))
    votes: dict[str, list[tuple[int, float]]] = {}
    for position, each in enumerate(seen):
        age = position / (len(seen) - 1)
        weight = (_EARLIEST + (1 - _EARLIEST) * age) * (1.0 if each.complete else _INCOMPLETE)
        votes.setdefault(normalised(each.text), []).append((position, weight))
    total = sum(weight for group in votes.values() for _, weight in group)
    groups = sorted(votes.values(), key=lambda group: (sum(w for _, w in group), group[-1][0]), reverse=True)
    ranking = tuple(
        RankedAnswer(seen[group[-1][0]].text, round(sum(w for _, w in group) / total, 4), len(group))
        for group in groups
    )
    return Selection(seen[-1].text if method == "last" else ranking[0].text, ranking)
