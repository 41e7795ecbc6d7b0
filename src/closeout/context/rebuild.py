"""Begin each round of a long search from a report of the rounds before."""

from __future__ import annotations

from closeout.context.policy import ContextState, Eviction, EvictionPolicy
from closeout.errors import UsageError
from closeout.records import record

__all__ = ["RebuildPolicy"]


@record(kw_only=True)
class RebuildPolicy:
    """Replace all turns but the last by a report that the model writes, once per round.

    The prompt of a round holds the task, the report, and what the round has read, however long the run is. The report
    names the handles of what it replaces.

    Attributes:
        results: How many results a round has.
    """

    results: int = 8

    def __post_init__(self) -> None:
        if self.results < 2:
            raise UsageError(f"A round must have 2 results or more, got {self.results}.")

    def decide(self, state: ContextState) -> Eviction | None:
        """Return what leaves now, or None."""
        if sum(len(step.returns) for step in state.shown) < self.results:
            return EvictionPolicy().decide(state)
        return state.evict_turns(1, reason="rebuild", summarise=True)
