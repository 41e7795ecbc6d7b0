"""The request gate: lets the caller of many runs delay, count and stop their requests to models."""

from __future__ import annotations

from typing import Protocol

from closeout.errors import BudgetReached
from closeout.journal.events import ModelFailed, ModelReplied
from closeout.run.middleware.chain import Middleware, Send, Sending

__all__ = ["GateMiddleware", "RequestGate"]


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


class GateMiddleware(Middleware):
    """Sends a request when the gate admits it, and tells the gate how it went."""

    def __init__(self, gate: RequestGate) -> None:
        self._gate = gate

    async def send(self, sending: Sending, send: Send) -> ModelReplied | ModelFailed:
        await self._gate.enter()
        sending.on_retry.append(lambda note: self._gate.retried(note.error))
        outcome = None
        try:
            outcome = await send(sending)
        finally:
            self._gate.leave(outcome)
        if isinstance(sending.error, BudgetReached):
            await self._gate.over_budget(sending.error)
        return outcome
