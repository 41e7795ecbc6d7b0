"""A trial as its scorers see it, and its score."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from closeout.errors import UsageError
from closeout.evaluate.tasks import EvalTask

if TYPE_CHECKING:  # not at run time: reports need none of it
    from closeout.answers.grading import Grade
    from closeout.journal.store import Row
    from closeout.run.gate import RequestGate

__all__ = ["Attempted", "Score"]


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a trial.

    Attributes:
        value: From 0 to 1.
        correct: Whether it counts as solved, for pass@k and McNemar's test. By default whether the value is 1.
        reason: Why, in a sentence.
        judged: False if there was no verdict; the trial then counts as wrong.
    """

    value: float
    correct: bool
    reason: str = ""
    judged: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.value, int | float) or not 0 <= self.value <= 1:
            raise UsageError(f"The value of a Score must be a number from 0 to 1, got {self.value!r:.60}. Scale it.")

    @classmethod
    def of(cls, verdict: Score | Grade | bool | float) -> Score:
        """Return the score for what a scoring function returns.

        Raises:
            UsageError: It is not a Score, a Grade, a bool or a number from 0 to 1.
        """
        from closeout.answers.grading import Grade

        if isinstance(verdict, Score):
            return verdict
        if isinstance(verdict, Grade):
            return cls(float(verdict.correct), verdict.correct, verdict.reason, verdict.judged)
        if isinstance(verdict, int | float) and 0 <= verdict <= 1:
            return cls(float(verdict), verdict >= 1)
        raise UsageError(f"A scorer must return a bool, a number from 0 to 1 or a Score, got {verdict!r:.60}.")


@dataclass(frozen=True)
class Attempted:
    """A trial as its scorer sees it.

    Attributes:
        task: The task, with the right answers.
        answer: The agent's answer, None without one.
        status: "answered", "unanswered" or "failed".
        run_id: The trial's run.
        epoch: The number of the trial of this task, from 1.
        read_rows: Reads the run's record.
        gate: Admits requests to models within the evaluation's limits. A scorer that runs an agent passes it on:
            `agent.with_gate(attempt.gate)`.
    """

    task: EvalTask
    answer: str | None
    status: str = "answered"
    run_id: str = ""
    epoch: int = 1
    read_rows: Callable[[], Sequence[Row]] = field(default=tuple, repr=False, compare=False)
    gate: RequestGate | None = field(default=None, repr=False, compare=False)

    @cached_property
    def state(self) -> dict[str, Any]:
        """The state that the run's tools left: their `ToolOutput.state_update`s, merged by key."""
        from closeout.journal.events import ToolFinished

        state: dict[str, Any] = {}
        for row in self.read_rows():
            if isinstance(row.event, ToolFinished) and row.event.ok:
                state.update(json.loads(row.event.record).get("state_update") or {})
        return state

    @cached_property
    def tool_calls(self) -> list[tuple[str, bool]]:
        """The names of the tools that were called, in order, each with whether the call succeeded."""
        from closeout.journal.events import ToolFinished

        return [(row.event.name, row.event.ok) for row in self.read_rows() if isinstance(row.event, ToolFinished)]
