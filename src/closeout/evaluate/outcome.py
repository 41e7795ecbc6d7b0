"""One run, done exactly once: it is started, resumed or read from its record, by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from closeout.errors import RunNotFound, TransientModelError, UsageError, error_type
from closeout.journal.events import RunEnded, RunResumed
from closeout.journal.store import Row, Store
from closeout.journal.totals import RunTotals

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.run.result import RunResult

__all__ = ["RunOutcome", "origin_of", "run_once", "store_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a run ended, and what it took. `cost` None: the price is unknown."""

    answer: str | None
    status: str
    stop_reason: str
    error: str = ""
    error_kind: str = ""
    permanent: bool = False
    turns: int = 0
    attempts: int = 0
    rollbacks: int = 0
    repairs: int = 0
    tool_calls: int = 0
    tool_failures: int = 0
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    seconds: float = 0.0

    @property
    def transient(self) -> bool:
        """Whether the run failed in a way that may not happen again."""
        kind = error_type(self.error_kind)
        return self.status == "failed" and kind is not None and issubclass(kind, TransientModelError)

    @classmethod
    def of_result(cls, result: RunResult[Any]) -> RunOutcome:
        """Return the outcome that a result tells."""
        usage, tools = result.usage, result.telemetry.by_tool.values()
        return cls(
            answer=result.answer,
            status=result.status,
            stop_reason=result.stop_reason,
            error=result.error,
            error_kind=result.error_kind,
            permanent=result.permanent,
            turns=result.turns,
            attempts=result.attempts,
            rollbacks=result.rollbacks,
            repairs=len(result.repairs),
            tool_calls=int(sum(tool["calls"] for tool in tools)),
            tool_failures=int(sum(tool["errors"] for tool in tools)),
            requests=usage.requests,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cache_read_tokens,
            cost=usage.cost_usd,
            seconds=result.seconds,
        )

    @classmethod
    def of_error(cls, error: Exception) -> RunOutcome:
        """Return the outcome of a run that could not be started or resumed."""
        return cls(
            answer=None,
            status="failed",
            stop_reason="failed",
            error=str(error),
            error_kind=type(error).__name__,
            permanent=True,
        )

    @classmethod
    def of_record(cls, rows: Sequence[Row]) -> RunOutcome:
        """Return the outcome that the record of a run tells, which must hold its end."""
        totals = RunTotals(row.event for row in rows)
        ended = totals.ended
        assert ended is not None
        usage = totals.usage
        idle = sum(row.event.idle for row in rows if isinstance(row.event, RunResumed))
        return cls(
            answer=ended.answer,
            status=ended.status,
            stop_reason=ended.stop_reason,
            error=ended.error,
            error_kind=ended.error_kind,
            permanent=ended.permanent,
            turns=totals.turns,
            attempts=totals.attempts,
            rollbacks=totals.rollbacks,
            repairs=len(totals.repairs),
            tool_calls=totals.tool_calls,
            tool_failures=totals.tool_failures,
            requests=usage.requests,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cache_read_tokens,
            cost=usage.cost_usd,
            seconds=round(max(rows[-1].time - rows[0].time - idle, 0.0), 3),
        )


def store_of(agent: Agent[Any]) -> Store:
    """Return the store of an agent's runs.

    Raises:
        UsageError: The agent keeps them in memory only.
    """
    store = agent.store()
    if store is None:
        raise UsageError("An evaluation keeps its trials as runs, but this agent has home=False. Give it a home.")
    return store


async def run_once(
    agent: Agent[Any], run_id: str, task: str, *, despite_changes: bool = False, **options: Any
) -> RunOutcome:
    """Run a task under a name, exactly once however often this is called.

    A run that has an answer, or ended without one, is read from its record. One that was interrupted, cancelled or
    failed is resumed.

    Args:
        agent: The agent.
        run_id: The run's name.
        task: The task.
        despite_changes: Resume although the agent differs from the one that began the run.
        options: Further arguments of `Agent.run`, for a new run.

    Raises:
        JournalLocked: Another process is running it.
        ResumeRefused: The agent differs from the one that began the run.
        JournalError: The journal cannot be read or written.
    """
    store = store_of(agent)
    try:
        status = store.run(run_id).status
    except RunNotFound:
        return RunOutcome.of_result(await agent.run(task, run_id=run_id, **options))
    if status in ("answered", "unanswered"):
        rows = (await store.off_loop(store.read, run_id)).rows
        if any(isinstance(row.event, RunEnded) for row in rows):
            return RunOutcome.of_record(rows)
    return RunOutcome.of_result(await agent.resume(run_id, despite_changes=despite_changes))


def origin_of(evaluation: str, task_id: str, epoch: int) -> Mapping[str, Any]:
    """Return the note in a trial's run that tells which trial it is."""
    return {"evaluation": evaluation, "task": task_id, "epoch": epoch}
