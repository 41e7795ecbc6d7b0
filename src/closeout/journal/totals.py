"""The totals of a run, computed from its events: usage, turns, rollbacks, repairs; and the usage of each request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from closeout.journal.events import (
    AnswerSeen,
    AttemptEnded,
    AttemptStarted,
    Event,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    Noted,
    Repaired,
    RunEnded,
    ToolFinished,
    ToolStarted,
    TurnAccepted,
    TurnRolledBack,
    has_conversation,
    usage_record,
)
from closeout.journal.story import Story
from closeout.journal.subscribers import Progress
from closeout.messages import Repair, Usage, UsageSum
from closeout.records import record

__all__ = ["RequestUsage", "RunTotals", "usage_by_request"]

_NO_USAGE = Usage()
_COUNTS = ("turns", "attempts", "rollbacks", "tool_calls", "tool_failures", "_turns_before", "_leader")


class RunTotals:
    """The totals of a run's events, sub-agents included.

    Call it with each event, or pass the events of a record. It can be subscribed to a run.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._usage_sum = UsageSum()
        # Replies of the main agent, or of its successors, that were acted on or answered; without closing ones.
        self.turns = 0
        self.attempts = 0
        self.rollbacks = 0
        self.tool_calls = 0
        self.tool_failures = 0
        self.repairs: list[Repair] = []
        self.warnings: dict[str, None] = {}  # each once, in the order in which they came
        self.candidates: list[AnswerSeen] = []
        self.ended: RunEnded | None = None
        self._turns_before = 0  # turns of the earlier attempts
        self._leader = "main"  # the path of the agent whose attempt began last
        self._repairs_before = 0  # counted by the totals that these continue
        for event in events:
            self(event)

    @classmethod
    def from_counts(cls, counts: Mapping[str, Any]) -> Self:
        """Continue from `counts`: only the events after it remain to be added."""
        totals = cls()
        for name in _COUNTS:
            setattr(totals, name, counts.get(name, getattr(totals, name)))
        totals._repairs_before = counts["repairs"]
        totals._usage_sum.add(Usage(**counts["usage"]))
        return totals

    @property
    def counts(self) -> dict[str, Any]:
        """The totals as a JSON object. Repairs are only counted."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        return {**counts, "repairs": self._repairs_before + len(self.repairs), "usage": usage_record(self.usage)}

    @property
    def usage(self) -> Usage:
        """The usage of all requests, failed ones included."""
        return self._usage_sum.total

    def __call__(self, event: Event | Progress) -> None:
        if isinstance(event, Progress):
            return
        leads = has_conversation(event.agent)
        match event:
            case ModelReplied() | ModelFailed():
                if event.usage:
                    self._usage_sum.add(Usage(**event.usage))
            case ToolStarted():
                self.tool_calls += 1
            case ToolFinished():
                self.tool_failures += not event.ok
            case TurnAccepted():
                self.turns += leads
            case TurnRolledBack():
                self.rollbacks += 1
            case Repaired():
                self.repairs.append(event.repair)
            case Noted() if event.is_warning:
                self.warnings[event.message] = None
            case AnswerSeen() if leads:
                self.candidates.append(event)
            case AttemptStarted() if leads:
                self.attempts += event.agent == "main"
                self._turns_before, self._leader = self.turns, event.agent
            case AttemptEnded() if event.agent == self._leader:  # the one that handed the conversation over adds none
                self.turns = max(self.turns, self._turns_before + event.turns)
            case RunEnded():
                self.ended = event


@record(kw_only=True)
class RequestUsage:
    """The usage of one request to a model.

    Attributes:
        agent: The path of the agent that asked, "main" for the main agent.
        call: The number of the request, from 0 for each agent.
        purpose: "act" for a turn, "close", "experience" or "compact"; any other is that of an extra request of a turn.
        attempt: The number of the attempt.
        turn: The number of the turn in the attempt.
        model: The model as the server names it; empty if the request failed.
        usage: Tokens and cost.
        ms: Wall-clock milliseconds.
        error: The name of the exception, if the request failed.
    """

    agent: str
    call: int
    purpose: str = "act"
    attempt: int = 0
    turn: int = 0
    model: str = ""
    usage: Usage = _NO_USAGE
    ms: float = 0.0
    error: str = ""


def usage_by_request(events: Iterable[Event]) -> Iterator[RequestUsage]:
    """Yield the usage of each request that has an outcome, in the order of the outcomes."""
    story = Story()
    for event in events:
        request = story.feed(event).request
        if request is not None and isinstance(event, ModelReplied | ModelFailed):
            intent = request.intent or ModelRequested(event.agent, event.call)
            yield RequestUsage(
                agent=event.agent,
                call=event.call,
                purpose=intent.purpose,
                attempt=intent.attempt,
                turn=intent.turn,
                model=event.model if isinstance(event, ModelReplied) else "",
                usage=Usage(**event.usage) if event.usage else _NO_USAGE,
                ms=event.ms,
                error=event.kind if isinstance(event, ModelFailed) else "",
            )
