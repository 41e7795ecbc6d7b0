"""Test in CI that a changed agent does on recorded runs what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from closeout.errors import UsageError
from closeout.lab.what_if import WhatIfCase, run_again

if TYPE_CHECKING:
    from closeout.agent import Agent

__all__ = ["assert_no_regression"]


async def assert_no_regression(
    cohort: int | Iterable[str],
    agent: Agent[Any, Any],
    *,
    grader: Callable[[str, str | None], bool | float] | None = None,
    allow_read_only: bool = False,
    limit_cost: float | None = None,
) -> list[WhatIfCase]:
    """Run recorded runs again with an agent, see `closeout.evaluate.what_if`, and return the cases.

    Args:
        cohort: The ids of the runs in the agent's home, or the number of the newest ended runs of agents of its name.
        agent: The agent.
        grader: Grades an answer by the beginning of the task and the answer. An answer may then differ from the
            recorded one if its grade is not lower. Default: it must be the recorded one.
        allow_read_only: Run tools that only read for calls that are not in the record.
        limit_cost: Dollars after which no request is sent any more.

    Raises:
        AssertionError: A run is worse, left the record, or could not be run again. The message names the runs.
        UsageError: An argument is wrong, there are no runs, or the agent keeps none.
    """
    cases = await run_again(agent.plan(), agent.store(), cohort, allow_read_only=allow_read_only, limit_cost=limit_cost)
    if not cases:
        raise UsageError(f"The home of the agent has no ended run of an agent named {agent.plan().name!r}.")
    worse = [f"{case.run_id}: {problem}" for case in cases if (problem := _problem(case, grader))]
    if worse:
        lines = "\n".join(worse[:20])
        raise AssertionError(f"{len(worse)} of {len(cases)} runs are worse:\n{lines}")
    return cases


def _problem(case: WhatIfCase, grader: Callable[[str, str | None], bool | float] | None) -> str:
    then, now = case.then, case.now
    if then is None or now is None:
        return case.problem
    if now.left:
        return f"it left the record to call {now.left:.200}"
    if now.status == "stopped":
        return now.problem
    if grader is None:
        is_worse = (then.answer, then.status) != (now.answer, now.status)
    else:
        is_worse = float(grader(case.task, now.answer)) < float(grader(case.task, then.answer))
    return f"the answer was {then.answer!r:.200}, now {now.answer!r:.200} ({case.divergence})" if is_worse else ""
