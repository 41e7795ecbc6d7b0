"""The bill and the counts of a run, kept up as its events come by: usage, turns, rollbacks, repairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from closeout.journal.events import (
    AnswerSeen,
    AttemptEnded,
    AttemptStarted,
    Event,
    ModelFailed,
    ModelReplied,
    Repaired,
    RunEnded,
    ToolFinished,
    ToolStarted,
    TurnAccepted,
    TurnRolledBack,
)
from closeout.journal.journal import Progress
from closeout.messages import Bill, Repair, Usage

__all__ = ["Ledger"]


class Ledger:
    """What a run's events add up to, sub-agents included. `ledger(event)` takes one in; listen with it."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._bill = Bill()
        self.turns = 0  # the main agent's replies that were acted on or that answered; closing requests are none
        self.attempts = 0
        self.rollbacks = 0
        self.tool_calls = 0
        self.tool_failures = 0
        self.repairs: list[Repair] = []
        self.candidates: list[AnswerSeen] = []
        self.ended: RunEnded | None = None
        self._turns_before = 0  # of the attempts before the present one
        for event in events:
            self(event)

    @property
    def usage(self) -> Usage:
        """What all requests cost, failed ones too."""
        return self._bill.total

    def __call__(self, event: Event | Progress) -> None:
        take = _TAKES.get(type(event))
        if take is not None:
            take(self, event)

    def hears(self, kind: type) -> Callable[[Any], None] | None:
        """As a journal's listener: what takes in events of a type."""
        take = _TAKES.get(kind)
        return None if take is None else partial(take, self)

    def _replied(self, event: ModelReplied | ModelFailed) -> None:
        if event.usage:
            self._bill.add(Usage(**event.usage))

    def _accepted(self, event: TurnAccepted) -> None:
        self.turns += event.agent == "main"

    def _attempt(self, event: AttemptStarted) -> None:
        if event.agent == "main":
            self.attempts += 1
            self._turns_before = self.turns

    def _attempt_over(self, event: AttemptEnded) -> None:
        if event.agent == "main":
            self.turns = max(self.turns, self._turns_before + event.turns)

    def _rolled_back(self, _: TurnRolledBack) -> None:
        self.rollbacks += 1

    def _repaired(self, event: Repaired) -> None:
        self.repairs.append(event.repair)

    def _started(self, _: ToolStarted) -> None:
        self.tool_calls += 1

    def _finished(self, event: ToolFinished) -> None:
        self.tool_failures += not event.ok

    def _seen(self, event: AnswerSeen) -> None:
        if event.agent == "main":
            self.candidates.append(event)

    def _ended(self, event: RunEnded) -> None:
        self.ended = event


_TAKES: Mapping[type, Callable[[Ledger, Any], None]] = {
    ModelReplied: Ledger._replied,
    ModelFailed: Ledger._replied,
    TurnAccepted: Ledger._accepted,
    AttemptStarted: Ledger._attempt,
    AttemptEnded: Ledger._attempt_over,
    TurnRolledBack: Ledger._rolled_back,
    Repaired: Ledger._repaired,
    ToolStarted: Ledger._started,
    ToolFinished: Ledger._finished,
    AnswerSeen: Ledger._seen,
    RunEnded: Ledger._ended,
}
