"""Keeps an agent's requests within the budgets of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from closeout.errors import BudgetReached, Failure, LimitReached
from closeout.journal.events import ModelFailed, ModelReplied
from closeout.messages import RequestInfo
from closeout.run.middleware.chain import AgentPlace, Middleware, Send, Sending

if TYPE_CHECKING:
    from closeout.run.reservations import PromptBound, Reservations

__all__ = ["BudgetMiddleware"]


class BudgetMiddleware(Middleware):
    """Reserves each request at its largest cost, and settles it after."""

    def __init__(self, reservations: Reservations) -> None:
        self._reservations = reservations
        self._bound: PromptBound | None = None

    @classmethod
    def at(cls, place: AgentPlace) -> Self | None:
        budget = {} if place.plan is None else place.plan.settings.budget
        if not budget or place.scope.journal.replay_only:
            return None
        from closeout.run.reservations import open_reservations  # only runs with a budget pay for it

        return cls(open_reservations(budget, place.scope.run.home()))

    def below(self, place: AgentPlace) -> BudgetMiddleware:
        budget = {} if place.plan is None else place.plan.settings.budget
        return BudgetMiddleware(self._reservations.with_budget(budget) if budget else self._reservations)

    def start(self) -> None:
        self._reservations.begin()

    async def send(self, sending: Sending, send: Send) -> ModelReplied | ModelFailed:
        if self._bound is None:
            self._bound = self._reservations.prompt_bound(sending.client)
        closing = not RequestInfo(sending.intent.purpose).may_act
        try:
            sending.request, held = await self._reservations.hold(
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

    async def end(self) -> None:
        await self._reservations.end()


def _refused(sending: Sending, error: LimitReached) -> ModelFailed:
    intent = sending.intent
    return sending.failed(error, ModelFailed.of(intent.agent, intent.call, Failure.of(error), usage=None, ms=0.0))
