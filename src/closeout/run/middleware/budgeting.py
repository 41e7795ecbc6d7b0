"""Keeps an agent's requests within the budgets of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from closeout.errors import BudgetReached, Failure, LimitReached
from closeout.journal.events import ModelFailed, ModelReplied
from closeout.messages import RequestInfo
from closeout.run.middleware.chain import Middleware, Send, Sending

if TYPE_CHECKING:
    from closeout.run.reserves import PromptBound, Reserves

__all__ = ["BudgetMiddleware"]


class BudgetMiddleware(Middleware):
    """Reserves each request at its largest cost, and settles it after."""

    def __init__(self, reserves: Reserves) -> None:
        self._reserves = reserves
        self._bound: PromptBound | None = None

    async def send(self, sending: Sending, send: Send) -> ModelReplied | ModelFailed:
        if self._bound is None:
            self._bound = self._reserves.prompt_bound(sending.client)
        closing = not RequestInfo(sending.intent.purpose).may_act
        try:
            sending.request, held = await self._reserves.hold(
                sending.client,
                sending.request,
                self._bound.tokens(sending.request),
                price=sending.price,
                closing=closing,
                seconds_left=lambda: sending.seconds_left(closing),
                note=lambda text: sending.note("Budget", text),
            )
        except LimitReached as error:
            return _refused(sending, error)
        sending.on_retry.insert(0, lambda note: held.retried(note.error))
        outcome = None
        try:
            outcome = await send(sending)
        except BudgetReached as error:  # no room for another attempt
            outcome = _refused(sending, error)
        finally:
            await held.settle(outcome, sending.error)
        if sending.reply is not None:
            self._bound.learn(sending.request, sending.reply.usage)
        return outcome


def _refused(sending: Sending, error: LimitReached) -> ModelFailed:
    intent = sending.intent
    return sending.failed(error, ModelFailed.of(intent.agent, intent.call, Failure.of(error), usage=None, ms=0.0))
