"""The outcome of a trial's run: its end and its usage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from closeout.errors import TransientModelError, UsageError, error_type

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.evaluate.tasks import EvalTask
    from closeout.journal.store import Store
    from closeout.run.result import RunResult

__all__ = ["RunOutcome", "agent_for_task", "store_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The end of a run, and its usage. `cost` None: the price is unknown."""

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
    def suspended(self) -> bool:
        """True if the run waits for a person's decision."""
        return self.status == "waiting"

    @property
    def stopped(self) -> bool:
        """True if a budget has no room for the run's next request."""
        return self.status == "stopped"

    @property
    def transient(self) -> bool:
        """True if the run failed in a way that may not happen again."""
        kind = error_type(self.error_kind)
        return self.status == "failed" and kind is not None and issubclass(kind, TransientModelError)

    @classmethod
    def of_result(cls, result: RunResult[Any]) -> RunOutcome:
        """Return the outcome of a run with a result."""
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
    def of_stopped(cls, error: Exception) -> RunOutcome:
        """Return the outcome of a run without budget for its next request. It can be resumed with a larger budget."""
        return cls(
            answer=None, status="stopped", stop_reason="budget", error=str(error), error_kind=type(error).__name__
        )

    @classmethod
    def of_lost(cls) -> RunOutcome:
        """Return the outcome of a run whose record is lost: which of its calls were made is unknown."""
        return cls(
            answer=None,
            status="failed",
            stop_reason="failed",
            error="The run was interrupted: it began on a node of a cluster whose record is lost. Its agent has tools "
            "with effects, so it was not run again. Check what it did, then run it again: closeout eval retry.",
            error_kind="Interrupted",
            permanent=True,
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


def agent_for_task(agent: Agent[Any], task: EvalTask) -> Agent[Any]:
    """Return the agent with the tools that a task names.

    Raises:
        UsageError: It does not have them.
    """
    if task.tools is None:
        return agent
    try:
        return agent.with_tools(task.tools)
    except UsageError as error:
        raise UsageError(f"Task {task.id!r} names tools that the agent does not have: {error}") from None
