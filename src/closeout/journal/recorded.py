"""The record of a run that is executed again: which events are written, and which outcomes are known. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

from closeout.codec import json_of_any
from closeout.journal.events import (
    CallDecided,
    CheckStarted,
    DecisionMade,
    DecisionRequested,
    Event,
    FlowDecided,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    RunResumed,
    ToolFinished,
    ToolStarted,
)
from closeout.journal.store import Row

__all__ = ["CANCELLED", "REPLY_INTERRUPTED", "RecordedRun"]

# The kind of a ModelFailed whose request was cancelled: a cost, but not an outcome.
CANCELLED = "CancelledError"
# The kind of a ModelFailed whose request a message of the user's interrupted: an outcome; the run continues.
REPLY_INTERRUPTED = "ReplyInterrupted"
_MEASURES = frozenset({"messages", "size", "shared", "kept"})  # of a request: they differ because its texts do
_DECIDED = (FlowDecided, CallDecided)
_INTENT_OF = {
    "ModelReplied": "ModelRequested",
    "ModelFailed": "ModelRequested",
    "ServerTold": "ServerAsked",
    "ToolFinished": "ToolStarted",
    "DecisionMade": "DecisionRequested",
    "CheckFinished": "CheckStarted",
}
_Place: TypeAlias = tuple[str, str]  # type of event; its key, or its number among the agent's events of the type


@dataclass(frozen=True, slots=True)
class _RecordedOutcome:
    event: Event
    intent: Event | None  # what it is the outcome of; the code may have come to another one in this place since
    elapsed: float  # seconds that the run had been at work


class RecordedRun:
    """The recorded events of a run, found by their place in it.

    An event's place is its agent, its type, and its key, or without a key its number among that agent's events of the
    type. A recorded event is reused if the code arrives at the same one. After the first event that differs, what that
    agent does is written as new. An outcome is reused, and an interrupted effect not repeated, for the same call only.

    Every event is looked at a bounded number of times, so that resuming takes time proportional to the record.

    Attributes:
        rows: the recorded events with their times.
        idle: seconds during which no process executed the run.
        elapsed: seconds of work at the outcome that was taken last.
        departure: where the run first did something else than its record; empty if it did not.
        broken: the first recorded event that the run did not follow, and how it differed. A request that only has
            another text does not count: the run continued from its reply.
        outcomes_left: recorded outcomes that have not been taken yet.
        signals: the ids of the signals that the run has received.
        message_ids: the recorded messages of the user's, by id.
    """

    def __init__(self, rows: tuple[Row, ...]) -> None:
        self.rows = rows
        self.idle = 0.0
        self.elapsed = 0.0
        self.departure = ""
        self.broken: tuple[Event, str] | None = None
        self.outcomes_left = 0
        self.signals: set[str] = set()
        self.message_ids: set[str] = set()
        self._messages: dict[str, list[MessageReceived]] = {}  # keyed by agent, the last one first
        self._counts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._events: dict[str, dict[_Place, Event]] = {}  # keyed by agent, like the next three
        self._outcomes: dict[str, dict[_Place, _RecordedOutcome]] = {}
        self._left: dict[str, dict[_Place, Event]] = {}  # events of agents that did something else before them
        self._failures: dict[str, dict[_Place, list[Event]]] = {}  # failures before the effect was tried again
        self._waits: dict[tuple[str, str], list[_Place]] = {}  # what each call has waited for
        self._below: dict[str, list[Event]] = {}  # keyed by the beginning of their paths: "main/r4:"
        self._agents_below: dict[str, dict[str, None]] = {}
        self._index(rows)
        self._counts.clear()
        for messages in self._messages.values():
            messages.reverse()

    @property
    def work(self) -> float:
        """Seconds of work that the whole record covers."""
        return self.rows[-1].time - self.rows[0].time - self.idle if self.rows else 0.0

    def _index(self, rows: tuple[Row, ...]) -> None:
        last_success = max((r.seq for r in rows if isinstance(r.event, (ModelReplied, ToolFinished))), default=-1)
        for row in rows:
            event = row.event
            if isinstance(event, (RunResumed, DecisionMade)):
                self.idle += event.idle
            if isinstance(event, DecisionMade) and event.signal:
                self.signals.add(event.signal)
            if event.momentary:
                continue
            if "/" in event.agent:
                self._index_below(event)
            if isinstance(event, MessageReceived) and event.id not in self.message_ids:
                self.message_ids.add(event.id)
                self._messages.setdefault(event.agent, []).append(event)
            if isinstance(event, DecisionRequested):
                call = event.request.partition(".")[0]
                self._waits.setdefault((event.agent, call), []).append((type(event).__name__, event.request))
            intent = _INTENT_OF.get(type(event).__name__)
            if intent is None:
                self._events.setdefault(event.agent, {})[self._place(event)] = event
                continue
            place = intent, event.key
            if isinstance(event, ModelFailed) and _is_retried(event, late=row.seq > last_success):
                # A failure that no success followed is not an outcome: to resume is to try again.
                self._add_failure(place, event)
                continue
            outcomes = self._outcomes.setdefault(event.agent, {})
            before = outcomes.get(place)
            if before is None:
                self.outcomes_left += 1
            elif isinstance(before.event, ModelFailed):
                self._add_failure(place, before.event)
            started = self._events.get(event.agent, {}).get(place)
            outcomes[place] = _RecordedOutcome(event, started, row.time - rows[0].time - self.idle)

    def _index_below(self, event: Event) -> None:
        """Note that a sub-agent's event belongs to the call that started it, and to the calls above that one."""
        path = event.agent
        end = path.find(":")
        while end >= 0:
            prefix = path[: end + 1]
            self._below.setdefault(prefix, []).append(event)
            self._agents_below.setdefault(prefix, {})[path] = None
            end = path.find(":", path.find("/", end)) if "/" in path[end:] else -1

    def _add_failure(self, place: _Place, event: Event) -> None:
        self._failures.setdefault(event.agent, {}).setdefault(place, []).append(event)

    def _place(self, event: Event) -> _Place:
        kind = type(event).__name__
        key = event.key
        if not key:
            key = f"#{self._counts[event.agent, kind]}"
            self._counts[event.agent, kind] += 1
        return kind, key

    def find(self, kind: type[Event], agent: str, key: str) -> Event | None:
        """Return the recorded event of an agent with this key, if it has not been matched yet."""
        return self._events.get(agent, {}).get((kind.__name__, key)) if self._events else None

    def has_message(self, agent: str, request: int) -> bool:
        """True if the record holds a message that joins before this request of an agent, or before an earlier one."""
        messages = self._messages.get(agent, [])
        return bool(messages) and messages[-1].request <= request

    def take_messages(self, agent: str, request: int) -> list[MessageReceived]:
        """Return the recorded messages that join before this request of an agent, each once."""
        messages, found = self._messages.get(agent, []), list[MessageReceived]()
        while messages and messages[-1].request <= request:
            found.append(messages.pop())
        return found

    def outcome_of(self, kind: type[Event], agent: str, key: str) -> Event | None:
        """Return the recorded outcome of an agent's intent with this key, if it has not been taken yet."""
        found = self._outcomes.get(agent, {}).get((kind.__name__, key))
        return None if found is None else found.event

    def match(self, event: Event) -> Event | None:
        """Return the recorded event if the code has reached the same one again; None if it has to be written."""
        if not self._events or event.momentary or type(event).__name__ in _INTENT_OF:
            return None
        recorded = self._events.get(event.agent, {}).pop(self._place(event), None)
        if recorded is None:
            return None
        if recorded == event or _fields(recorded) == _fields(event):
            return recorded
        self._depart(recorded, event)
        # A request that differs is still that request: the run continued from its reply.
        return recorded if isinstance(event, ModelRequested) else None

    def _depart(self, recorded: Event, event: Event) -> None:
        if not self.departure:
            self.departure = _difference(recorded, event)
        if not isinstance(event, (ModelRequested, DecisionRequested, *_DECIDED)):  # deciding again does nothing else
            self._left[event.agent] = self._events.pop(event.agent, {})
            self.broken = self.broken or (recorded, _difference(recorded, event))

    def unreached(self, waiting: Collection[tuple[str, str]]) -> Event | None:
        """Return the first recorded intent that the run has not reached, without those whose outcome it waits for.

        What a call waits for is reached when the call is made.

        Args:
            waiting: the agent and key of each effect that has suspended the run.
        """
        left = (
            event
            for events in self._events.values()
            for event in events.values()
            if isinstance(event, (ModelRequested, ToolStarted, DecisionRequested))
            and (event.agent, event.key.partition(".")[0]) not in waiting
        )
        return next(left, None)

    def has_started(self, started: Event) -> bool:
        """True if the record holds this intent, also if the agent has done something else since."""
        events = self._events.get(started.agent) or self._left.get(started.agent)
        recorded = events.get(_place_of(started)) if events else None
        return recorded is not None and _same_call(recorded, started)

    def take_outcome(self, started: Event) -> Event | None:
        """Return the recorded outcome of an effect, once; None if it is not recorded."""
        found = self._outcomes.get(started.agent, {}).pop(_place_of(started), None)
        if found is None:
            return None
        self.outcomes_left -= 1
        if isinstance(started, ToolStarted):
            self._forget_decisions(started)
        if isinstance(started, DecisionRequested) and not _decides(found.event, started):
            return None
        if found.intent is not None and not _same_call(found.intent, started):
            return None  # the agent makes another call in this place now
        if not isinstance(started, DecisionRequested) or started.kind != "login":  # taken before earlier outcomes
            self.elapsed = found.elapsed
        return found.event

    def _forget_decisions(self, call: ToolStarted) -> None:
        """Forget what a call has waited for whose outcome is taken: it does not wait again."""
        events, outcomes = self._events.get(call.agent, {}), self._outcomes.get(call.agent, {})
        for place in self._waits.pop((call.agent, call.handle), ()):
            events.pop(place, None)
            self.outcomes_left -= outcomes.pop(place, None) is not None

    def has_decision(self, request: DecisionRequested) -> bool:
        """True if the decision of a request is recorded and has not been taken yet."""
        found = self.outcome_of(type(request), request.agent, request.key)
        return found is not None and _decides(found, request)

    def take_failures(self, started: Event) -> list[Event]:
        """Return the recorded failures of an effect after which it was, or is now, tried again."""
        return self._failures.get(started.agent, {}).pop(_place_of(started), []) if self._failures else []

    def take_below(self, started: Event) -> list[Event]:
        """Return what is recorded of the sub-agent that a call started and of those below it: they do not run again."""
        prefix = f"{started.agent}/{started.key}:"
        for agent in self._agents_below.pop(prefix, ()):
            self._events.pop(agent, None)
            self.outcomes_left -= len(self._outcomes.pop(agent, {}))
        return self._below.pop(prefix, [])


def _is_retried(failed: ModelFailed, *, late: bool) -> bool:
    return failed.kind == CANCELLED or (late and failed.kind != REPLY_INTERRUPTED)


def _place_of(started: Event) -> _Place:
    return type(started).__name__, started.key


def _same_call(recorded: Event, event: Event) -> bool:
    if isinstance(recorded, ToolStarted) and isinstance(event, ToolStarted):
        return (recorded.name, recorded.arguments) == (event.name, event.arguments)
    if isinstance(recorded, DecisionRequested) and isinstance(event, DecisionRequested):
        return recorded.digest == event.digest
    if isinstance(recorded, CheckStarted) and isinstance(event, CheckStarted):
        return (recorded.name, recorded.answer) == (event.name, event.answer)
    return True


def _decides(outcome: Event, request: DecisionRequested) -> bool:
    return isinstance(outcome, DecisionMade) and outcome.digest == request.digest


def _fields(event: Event) -> list[str]:
    # JSON is compared, because tuples come back from a record as lists.
    return [json_of_any(getattr(event, name)) for name in event.names]


def _difference(recorded: Event, event: Event) -> str:
    """Say what differs: texts, from shortly before the place, rather than the measures of a request.

    A field that the record leaves empty comes last: it may be younger than the record.
    """
    for name in sorted(event.names, key=lambda each: each in _MEASURES or not getattr(recorded, each)):
        was, now = getattr(recorded, name), getattr(event, name)
        if json_of_any(was) != json_of_any(now):
            where = f"{type(event).__name__} {event.key}".rstrip()
            texts = str(was), str(now)
            place = next((at for at, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
            start = max(place - 40, 0)
            was, now = (f"{'…' if start else ''}{text[start : start + 120]}" for text in texts)
            return f"{event.agent}: {where}: {name} was {was!r}, now {now!r}"
    return ""
