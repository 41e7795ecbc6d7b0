"""The request gate: lets the caller of many runs delay, count and stop their requests to models."""

from __future__ import annotations

from typing import Protocol

from closeout.errors import BudgetReached
from closeout.journal.events import ModelFailed, ModelReplied

__all__ = ["RequestGate"]


class RequestGate(Protocol):
    """Admits requests to models. It sees those of sub-agents too, but none that are answered from a record."""

    async def enter(self) -> None:
        """Wait until a request may be sent. Raises what the run is to fail with."""

    def leave(self, outcome: ModelReplied | ModelFailed | None) -> None:
        """Note that an admitted request is over. `outcome` None: it was cancelled."""

    def retried(self, error: Exception) -> None:
        """Note that the transport sends an admitted request again."""

    async def over_budget(self, error: BudgetReached) -> None:
        """Note that a budget has no room for a request. Return to let the run end; or wait, and the run is cancelled.

        What waits is not in the record: a resumed run makes the request again.
        """
