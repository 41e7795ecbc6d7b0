"""What a journal remembers of a run that is led again: which events stand already, which outcomes are known. No I/O."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from pydantic_core import to_json

from closeout.journal.events import (
    Event,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    RunResumed,
    ToolFinished,
    ToolStarted,
)
from closeout.journal.store import Row

__all__ = ["CANCELLED", "Past"]

CANCELLED = "CancelledError"  # the kind of a ModelFailed that nobody waited for any more: no outcome, only its cost
_INTENT_OF = {
    "ModelReplied": "ModelRequested",
    "ModelFailed": "ModelRequested",
    "ServerTold": "ServerAsked",
    "ToolFinished": "ToolStarted",
}


@dataclass(frozen=True, slots=True)
class _Recorded:
    event: Event
    elapsed: float  # seconds that the run had been at work


class Past:
    """The recorded events of a run, found by the place they have in it.

    An event's place is its agent, its type, and its key, or without a key its number among that agent's events of the
    type. A recorded event stands if the code arrives at the same one; from the first that differs on, the agent is on
    its own and what it then does is written anew.
    """

    def __init__(self, rows: tuple[Row, ...]) -> None:
        self.rows = rows
        self.events: dict[tuple[str, str, str], Event] = {}
        self.idle = 0.0
        self.elapsed = 0.0
        self.departure = ""
        self._counts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._outcomes: dict[tuple[str, str, str], _Recorded] = {}
        self._failures: dict[tuple[str, str, str], list[Event]] = {}  # after which the same was tried again
        self._remember(rows)
        self._counts.clear()

    @property
    def outcomes_left(self) -> int:
        return len(self._outcomes)

    def _remember(self, rows: tuple[Row, ...]) -> None:
        last_success = max((r.seq for r in rows if isinstance(r.event, (ModelReplied, ToolFinished))), default=-1)
        for row in rows:
            event = row.event
            if isinstance(event, RunResumed):
                self.idle += event.idle
            if event.momentary:
                continue
            intent = _INTENT_OF.get(type(event).__name__)
            if intent is None:
                self.events[self._place(event)] = event
                continue
            place = event.agent, intent, event.key
            if isinstance(event, ModelFailed) and (row.seq > last_success or event.kind == CANCELLED):
                # A failure after which nothing succeeded is not handed back: to resume is to try that again.
                self._failures.setdefault(place, []).append(event)
                continue
            before = self._outcomes.get(place)
            if before is not None and isinstance(before.event, ModelFailed):
                self._failures.setdefault(place, []).append(before.event)
            self._outcomes[place] = _Recorded(event, row.time - rows[0].time - self.idle)

    def _place(self, event: Event) -> tuple[str, str, str]:
        kind = type(event).__name__
        key = event.key
        if not key:
            key = f"#{self._counts[event.agent, kind]}"
            self._counts[event.agent, kind] += 1
        return event.agent, kind, key

    def recognise(self, event: Event) -> Event | None:
        """The recorded event where the code has come to the same one again, else None: it is to be written."""
        if event.momentary or type(event).__name__ in _INTENT_OF:
            return None
        recorded = self.events.pop(self._place(event), None)
        if recorded is None:
            return None
        if _same(recorded, event):
            return recorded
        self._depart(recorded, event)
        # A request that differs is still that request: its reply is what the run went on from.
        return recorded if isinstance(event, ModelRequested) else None

    def _depart(self, recorded: Event, event: Event) -> None:
        if not self.departure:
            self.departure = _difference(recorded, event)
        if not isinstance(event, ModelRequested):
            self.events = {place: kept for place, kept in self.events.items() if place[0] != event.agent}

    def has_started(self, started: Event) -> bool:
        recorded = self.events.get((started.agent, type(started).__name__, started.key))
        return recorded is not None and _same_call(recorded, started)

    def take_below(self, started: Event) -> list[Event]:
        """What is recorded of the agent that a call started, and of those below it: it is handed back with the call."""
        prefix = f"{started.agent}/{started.key}:"
        below = [r.event for r in self.rows if r.event.agent.startswith(prefix) and not r.event.momentary]
        if below:
            self.events = {place: event for place, event in self.events.items() if not place[0].startswith(prefix)}
            self._outcomes = {place: o for place, o in self._outcomes.items() if not place[0].startswith(prefix)}
        return below

    def failures_of(self, started: Event) -> list[Event]:
        """The recorded failures of an effect after which it was, or is now, tried again."""
        return self._failures.pop((started.agent, type(started).__name__, started.key), []) if self._failures else []

    def outcome_of(self, started: Event) -> Event | None:
        """The recorded outcome of an effect; each is handed back once."""
        place = (started.agent, type(started).__name__, started.key)
        found = self._outcomes.get(place)
        if found is None:
            return None
        del self._outcomes[place]
        intent = self.events.get(place)
        if intent is not None and not _same_call(intent, started):
            return None  # another tool call stands in its place now: its outcome is of no use
        self.elapsed = found.elapsed
        return found.event


def _same_call(recorded: Event, event: Event) -> bool:
    if isinstance(recorded, ToolStarted) and isinstance(event, ToolStarted):
        return (recorded.name, recorded.arguments) == (event.name, event.arguments)
    return True


def _same(recorded: Event, event: Event) -> bool:
    return recorded == event or _fields(recorded) == _fields(event)


def _fields(event: Event) -> list[bytes]:
    # As JSON, because tuples come back from a record as lists.
    return [_json(getattr(event, name)) for name in event.names]


def _json(value: object) -> bytes:
    try:
        return to_json(value, inf_nan_mode="constants")
    except ValueError:
        return repr(value).encode("utf-8", "backslashreplace")


def _difference(recorded: Event, event: Event) -> str:
    for name in event.names:
        was, now = getattr(recorded, name), getattr(event, name)
        if _json(was) != _json(now):
            where = f"{type(event).__name__} {event.key}".rstrip()
            return f"{event.agent}: {where}: {name} was {str(was)!r:.120}, now {str(now)!r:.120}"
    return ""
