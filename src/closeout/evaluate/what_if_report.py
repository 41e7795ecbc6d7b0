"""The what-if lab: what a changed agent would have done on recorded runs, with paired statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from closeout.errors import UsageError
from closeout.evaluate.estimates import PairedEstimate, paired_estimate
from closeout.lab.what_if import Lane, WhatIfCase, differs, run_again
from closeout.records import record

if TYPE_CHECKING:
    from closeout.agent import Agent

__all__ = ["AnswerGrader", "WhatIfReport", "what_if"]

AnswerGrader: TypeAlias = "Callable[[str, str | None], bool | float]"
"""Grades an answer, from 0 to 1, by the beginning of the task and the answer."""


@record(kw_only=True)
class WhatIfReport:
    """The results of a changed agent on recorded runs. All estimates are candidate minus recorded run.

    Attributes:
        cases: The runs.
        grade: The difference of the grades, None if no run was run again.
        tokens: The difference of the tokens of a run.
        turns: The difference of the turns of a run.
        calls: The difference of the tool calls of a run.
        run_cost: The difference of the dollars of a run, of the runs whose prices are known.
        baseline_grade: The difference of the grades of the baseline and the recorded runs, None without a baseline.
    """

    cases: tuple[WhatIfCase, ...] = ()
    grade: PairedEstimate | None = None
    tokens: PairedEstimate | None = None
    turns: PairedEstimate | None = None
    calls: PairedEstimate | None = None
    run_cost: PairedEstimate | None = None
    baseline_grade: PairedEstimate | None = None

    @property
    def changed(self) -> tuple[WhatIfCase, ...]:
        """The runs in which the candidate's answer, end, calls or order of calls differ."""
        return tuple(case for case in self.cases if case.changed)

    @property
    def baseline_changed(self) -> tuple[WhatIfCase, ...]:
        """The runs in which the baseline's do: the noise."""
        return tuple(case for case in self.cases if differs(case.then, case.baseline))

    @property
    def left(self) -> tuple[WhatIfCase, ...]:
        """The runs in which the candidate wanted to make a call that the record does not have."""
        return tuple(case for case in self.cases if case.now is not None and case.now.left)

    @property
    def skipped(self) -> tuple[WhatIfCase, ...]:
        """The runs that were not run again, or not to their end, because of a problem or the cost limit."""
        return tuple(case for case in self.cases if case.now is None or case.now.status == "stopped")

    @property
    def paid(self) -> int:
        """The number of requests sent to models, in all lanes."""
        return sum(lane.paid for lane in self._lanes())

    @property
    def cost(self) -> float | None:
        """The cost in dollars, None if a price is unknown."""
        costs = [lane.cost for lane in self._lanes()]
        return None if None in costs else sum(cost or 0.0 for cost in costs)

    def _lanes(self) -> list[Lane]:
        return [lane for case in self.cases for lane in case.lanes]


async def what_if(
    agent: Agent[Any, Any],
    runs: int | Iterable[str],
    *,
    baseline: Agent[Any, Any] | None = None,
    grader: AnswerGrader | None = None,
    allow_read_only: bool = False,
    limit_cost: float | None = None,
    parallel: int = 4,
    progress: Callable[[int, int], object] | None = None,
) -> WhatIfReport:
    """Find out what an agent would have done on recorded runs, in memory. The records stay as they are.

    Requests and tool calls that equal recorded ones are answered from the record. From the first request that differs,
    the model is asked. A call with effects that is not in the record is never made: the run ends there.

    Args:
        agent: The candidate, whose home has the runs.
        runs: The ids of the runs, or the number of the newest ended runs of agents of this name.
        baseline: The unchanged agent. Its model is asked wherever the candidate's is, which shows the noise.
        grader: Grades an answer. Default: 1 if it is the recorded one.
        allow_read_only: Run tools that only read for calls that are not in the record.
        limit_cost: Dollars after which no further request is sent; requests in flight may exceed it.
        parallel: Runs at a time.
        progress: Called after each run with the number of finished runs and of all runs.

    Raises:
        UsageError: An argument is wrong, or the agent keeps no runs.
        RunNotFound: No run has such an id.
        JournalError: The journal cannot be read.
    """
    cases = await run_again(
        agent.plan(),
        agent.store(),
        runs,
        baseline=None if baseline is None else baseline.plan(),
        allow_read_only=allow_read_only,
        limit_cost=limit_cost,
        parallel=parallel,
        progress=progress,
    )
    return _report(cases, grader)


def _report(cases: list[WhatIfCase], grader: AnswerGrader | None) -> WhatIfReport:
    report = WhatIfReport(cases=tuple(cases))
    pairs = {
        case.run_id: (case, case.then, case.now)
        for case in cases
        if case.then is not None and case.now is not None and case.now.status != "stopped"
    }
    if not pairs:
        return report

    def grades(lanes: Mapping[str, Lane]) -> dict[str, float]:
        return {name: _grade(pairs[name][0], lane, grader) for name, lane in lanes.items()}

    then = {name: before for name, (_, before, _) in pairs.items()}
    now = {name: after for name, (_, _, after) in pairs.items()}
    again = {
        name: case.baseline
        for name, (case, _, _) in pairs.items()
        if case.baseline is not None and case.baseline.status != "stopped"
    }
    complete = {name for name, lane in now.items() if not lane.left}  # what a run that left needs is unknown

    def difference(of: Callable[[Lane], float | None]) -> PairedEstimate | None:
        pairs = {name: (of(then[name]), of(now[name])) for name in complete}
        known = {name: (a, b) for name, (a, b) in pairs.items() if a is not None and b is not None}
        return _scaled(*({name: pair[lane] for name, pair in known.items()} for lane in (0, 1)))

    return replace(
        report,
        grade=paired_estimate(grades(then), grades(now)),
        tokens=difference(lambda lane: lane.tokens),
        turns=difference(lambda lane: lane.turns),
        calls=difference(lambda lane: len(lane.calls)),
        run_cost=difference(lambda lane: lane.run_cost),
        baseline_grade=paired_estimate(grades(then), grades(again)) if again else None,
    )


def _grade(case: WhatIfCase, lane: Lane, grader: AnswerGrader | None) -> float:
    if grader is None:
        return float(case.then is not None and lane.answer == case.then.answer and not lane.left)
    value = float(grader(case.task, lane.answer))
    if not 0 <= value <= 1:
        raise UsageError(f"The grader must return a bool or a number from 0 to 1, got {value!r:.40}.")
    return value


def _scaled(first: Mapping[str, float], second: Mapping[str, float]) -> PairedEstimate | None:
    """Compare counts: the paired test is made for numbers from 0 to 1, so the largest count is 1 for it.

    Counts that all differ by the same have no interval: it would be a share of the largest count.
    """
    top = max((*first.values(), *second.values()), default=0)
    if not first:
        return None
    unit = top or 1
    shares = [{name: count / unit for name, count in each.items()} for each in (first, second)]
    found = paired_estimate(shares[0], shares[1])
    if len({second[name] - count for name, count in first.items()}) == 1:
        found = replace(found, low=found.difference, high=found.difference)
    return replace(
        found,
        difference=found.difference * unit,
        error=found.error * unit,
        low=found.low * unit,
        high=found.high * unit,
    )
