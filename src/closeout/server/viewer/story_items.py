"""The story of a run as the viewer's pages receive it: its items as JSON objects, and which of them have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from closeout.journal.events import (
    REFUSED_CALL,
    AnswerGiven,
    AttemptEnded,
    AttemptStarted,
    CallRepeated,
    DecisionMade,
    DecisionRequested,
    Event,
    FlowDecided,
    Noted,
    RunEnded,
    RunResumed,
    ServerAsked,
    TaskCreated,
)
from closeout.journal.store import Row
from closeout.journal.story import AgentStory, CallStory, RequestStory, Story, TurnStory
from closeout.journal.totals import RunTotals
from closeout.server.viewer.shapes import cut, event_shape, totals_shape, without_messages

__all__ = ["StoryItems"]

LAST = 2**53  # Larger than the number of any event.
Place = tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Item:
    """A turn, or an event that belongs to none."""

    agent: AgentStory
    first: Row
    last: int  # the number of its last event
    turn: TurnStory | None


class StoryItems:
    """Reads the rows of a run, and returns the items that have changed.

    Args:
        whole: Do not cut long texts.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._count = 0
        self._time = 0.0
        self._shorten: Callable[[Any], Any] = (lambda value: value) if whole else cut
        self._story = Story()
        self._totals = RunTotals()
        self._rows: dict[int, Row] = {}  # keyed by the identity of their events
        self._turns: dict[TurnStory, _Item] = {}
        self._agents: dict[AgentStory, int] = {}  # the order in which they appeared
        self._changed: dict[_Item, None] = {}
        self._end: _Item | None = None
        self._fork: Event | None = None  # the first event that a fork does not share with the run it was made of

    def feed(self, rows: Iterable[Row]) -> None:
        """Read the next rows."""
        for row in rows:
            self._read_row(row)

    def take(self) -> dict[str, Any]:
        """Return the items that have changed since the last time; the number of events, the time and the totals."""
        changed, self._changed = self._changed, {}
        items = [self._shape(item) for item in changed]
        return {"items": items, "count": self._count, "time": self._time, "totals": totals_shape(self._totals.counts)}

    def _read_row(self, row: Row) -> None:
        self._count, self._time = row.seq + 1, row.time
        self._totals(row.event)
        event, change = row.event, self._story.feed(row.event)
        self._agents.setdefault(change.agent, len(self._agents))
        self._rows[id(event)] = row
        if isinstance(event, RunResumed) and self._end is not None:
            self._changed[self._end] = None  # it was not the end
        if isinstance(event, RunResumed) and self._fork is None and self._story.started and self._story.started.forked:
            self._fork = event
        turn = change.turn or _turn_of_decision(change.agent, event)
        if turn is not None:
            item = self._turns.get(turn)
            if item is None:
                item = self._turns[turn] = _Item(change.agent, row, row.seq, turn)
        elif _is_shown(event):
            item = _Item(change.agent, row, row.seq, None)
        else:
            return
        if isinstance(event, RunEnded):
            self._end = item
        item.last = row.seq
        self._changed[item] = None

    # ------------------------------------------------------------------------------------------ order

    def _place(self, item: _Item) -> Place:
        """Return what the item is sorted by. The items of a sub-agent follow the turn whose call started it."""
        if self._is_end(item.first.event):
            return (LAST, LAST)  # the answer is last, also beside agents that were cut off
        return (*self._prefix(item.agent), item.first.seq)

    def _is_end(self, event: Event) -> bool:
        """True for the end of the run. One that only suspended it is not the end."""
        return isinstance(event, RunEnded) and event is self._story.ended and event.status != "waiting"

    def _prefix(self, agent: AgentStory) -> Place:
        if agent.caller is not None:
            return (*self._place(self._turns[agent.caller.turn]), agent.caller.index, self._agents[agent])
        above = self._story.agents.get(agent.path.rpartition("/")[0])
        if above is not None:
            return (*self._prefix(above), LAST, self._agents[agent])
        return () if agent.path == "main" else (LAST, self._agents[agent])

    # ------------------------------------------------------------------------------------------ shapes

    def _shape(self, item: _Item) -> dict[str, Any]:
        shape = {
            "agent": item.agent.path,
            "seq": item.first.seq,
            "last": item.last,
            "time": item.first.time,
            "place": self._place(item),
        }
        if item.turn is not None:
            return {**shape, "kind": "turn", **self._turn(item.turn)}
        event = item.first.event
        kind = "forked" if event is self._fork else ""
        if isinstance(event, RunEnded) and not self._is_end(event):
            kind = "stopped"
        return {**shape, "kind": kind, "event": self._event(event)}

    def _turn(self, turn: TurnStory) -> dict[str, Any]:
        return {
            "number": turn.number,
            "purpose": turn.purpose,
            **self._request(turn.request),
            "extras": [self._request(each) for each in turn.extras],
            "calls": [self._call(each) for each in turn.calls],
            "repairs": [self._event(each) for each in turn.repairs],
            "answers": [self._event(each) for each in turn.answers],
            "accepted": self._event(turn.accepted),
            "rolledBack": self._event(turn.rolled_back),
        }

    def _request(self, asked: RequestStory | None) -> dict[str, Any]:
        if asked is None:
            asked = RequestStory(TurnStory())
        return {
            "request": self._event(asked.intent),
            "causes": [self._event(each) for each in asked.causes],
            "retries": [self._event(each) for each in asked.retries],
            "partial": "" if asked.reply is not None else self._shorten("".join(asked.pieces)),
            "reply": self._event(asked.reply),
            "failure": self._event(asked.failure),
        }

    def _call(self, call: CallStory) -> dict[str, Any]:
        has_outcome = any(each is not None for each in (call.started, call.finished, call.shown))
        return {
            "index": call.index,
            "handle": call.handle,
            "name": self._shorten(call.name),
            "arguments": None if call.started is not None else self._shorten(call.arguments),
            "decision": self._event(call.decision),
            "decided": self._event(call.decided),
            "flow": self._event(call.flow),
            "started": self._event(call.started),
            "finished": self._event(call.finished),
            "shown": self._shorten(call.shown),
            # The call goes to the client of the proxy, which runs it.
            "passedOn": call.turn.accepted is not None and not has_outcome,
        }

    def _event(self, event: Event | None) -> Any:
        if event is None:
            return None
        return self._shorten(without_messages(event_shape(self._rows[id(event)])))


def _turn_of_decision(agent: AgentStory, event: Event) -> TurnStory | None:
    """Return the turn whose call a decision is about; None for another event."""
    if agent.turn is None or not isinstance(event, DecisionRequested | DecisionMade | FlowDecided):
        return None
    decisions = (each for call in agent.turn.calls for each in (call.decision, call.decided, call.flow))
    return agent.turn if any(each is event for each in decisions) else None


def _is_shown(event: Event) -> bool:
    match event:
        case Noted(name=name) if name == REFUSED_CALL:
            return False  # its call says it
        case ServerAsked() | AnswerGiven() | CallRepeated() | TaskCreated():
            return False  # what follows is shown
        case AttemptStarted():
            return event.attempt > 0 or bool(event.experiences)
        case AttemptEnded():
            return bool(event.experience) or event.answer is None
    return True
