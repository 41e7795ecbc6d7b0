"""Run the user's checks on an attempt's answers. Each verdict is journaled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from closeout.answers.reading import ContractReading
from closeout.answers.user_checks import Check, CheckedCall, CheckedRun
from closeout.dialects.functions import programs_in
from closeout.errors import UsageError
from closeout.journal.events import CheckFinished, CheckStarted
from closeout.messages import ToolCall
from closeout.overrides import returned
from closeout.run.plan import Scope
from closeout.tools.executor import CallOutcome

__all__ = ["AnswerChecks", "Objection"]


@dataclass(frozen=True, slots=True)
class Objection:
    """An objection of a check to an answer. `sends_back`: the model is asked again."""

    problem: str
    check: Check
    sends_back: bool


class AnswerChecks:
    """Checks the answers of one attempt. Verdicts are journaled, so a resumed run repeats no check that has ended."""

    def __init__(self, checks: Sequence[Check], scope: Scope, task: str, attempt: int) -> None:
        self._checks = checks
        self._scope = scope
        self._task = task
        self._attempt = attempt
        self._number = 0
        self._sent_back = [0] * len(checks)
        self._passed: set[str] = set()

    async def objection(
        self,
        found: ContractReading,
        outcomes: Sequence[CallOutcome],
        calls: Sequence[ToolCall],
        *,
        may_ask: bool = True,
    ) -> Objection | None:
        """Return the first objection to an answer, None if it passes. An answer is checked once.

        `outcomes` are the calls of the attempt, `calls` those of the turn. Raises what a check raises.
        """
        if not self._checks or found.text in self._passed:
            return None
        context = self._scope.context()
        run = CheckedRun(
            task=self._task,
            value=found.value,
            calls=tuple(map(_checked, outcomes)),
            program=next(iter(programs_in(calls)), None),
            run_id=context.run_id,
            user=context.user,
            deps=context.deps,
            state=context.state,
            read_rows=self._scope.journal.rows,
        )
        for index, check in enumerate(self._checks):
            problem = await self._verdict(check, found.text, run)
            if not problem:
                continue
            sends_back = may_ask and self._sent_back[index] < check.times
            self._sent_back[index] += sends_back
            if sends_back or check.then == "unanswered":
                return Objection(problem, check, sends_back)
        self._passed.add(found.text)
        return None

    async def _verdict(self, check: Check, answer: str, run: CheckedRun) -> str:
        self._number += 1
        path, key = self._scope.path, f"{self._attempt}.{self._number}"

        async def judge() -> CheckFinished:
            began = time.perf_counter()
            try:
                problem = await returned(check.function(answer, run))
            except Exception as error:
                error.add_note(f"The check {check.name} raised it. It gets the answer as text; run.value is its value.")
                raise
            if problem is not None and not isinstance(problem, str):
                raise UsageError(f"The check {check.name} must return a text or None, got {problem!r:.80}.")
            return CheckFinished(path, key, problem=problem or "", ms=round((time.perf_counter() - began) * 1000, 3))

        finished = await self._scope.journal.effect(CheckStarted(path, key, name=check.name, answer=answer), judge)
        assert isinstance(finished, CheckFinished)
        return finished.problem


def _checked(outcome: CallOutcome) -> CheckedCall:
    return CheckedCall(
        name=outcome.call.name,
        arguments=outcome.call.arguments,
        result=outcome.output.value,
        text=outcome.text,
        ok=outcome.ok,
    )
