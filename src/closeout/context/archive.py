"""Archive results a fixed number of turns after they were read."""

from __future__ import annotations

from closeout.context.policy import ContextState, Eviction, EvictionPolicy
from closeout.errors import UsageError
from closeout.records import record

__all__ = ["ArchivePolicy"]


@record(kw_only=True)
class ArchivePolicy:
    """Leave each result out `turns` turns after the model has read it. Its call stays, with the handle that reads it.

    A small model answers more often if it does not see all pages that it has read. Each archived result breaks the
    cached prefix: `batch` archives several at once. If the context is full before that, results leave by its size.

    Attributes:
        turns: How many turns a result stays in view.
        batch: How many results gather before they leave together.
    """

    turns: int = 4
    batch: int = 1

    def __post_init__(self) -> None:
        if self.turns < 1 or self.batch < 1:
            raise UsageError(f"turns and batch must be 1 or more, got {self.turns} and {self.batch}.")

    def decide(self, state: ContextState) -> Eviction | None:
        """Return what leaves now, or None."""
        first = state.steps[-self.turns].turn if len(state.steps) >= self.turns else 0
        old = sum(len(step.returns) for step in state.shown if step.turn < first)
        found = state.evict(old, reason="archive") if old >= self.batch else None
        return found or EvictionPolicy().decide(state)
