"""Sends an agent's requests when the gate of its run admits them."""

from __future__ import annotations

from typing import Self

from closeout.errors import BudgetReached
from closeout.journal.events import ModelFailed, ModelReplied
from closeout.run.gate import RequestGate
from closeout.run.middleware.chain import AgentPlace, Middleware, Send, Sending

__all__ = ["GateMiddleware"]


class GateMiddleware(Middleware):
    """Sends a request when the gate admits it, and tells the gate how it went."""

    def __init__(self, gate: RequestGate) -> None:
        self._gate = gate

    @classmethod
    def at(cls, place: AgentPlace) -> Self | None:
        gate = None if place.plan is None or place.task is None else place.plan.gate  # a run has one, its agents none
        return None if gate is None else cls(gate)

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
