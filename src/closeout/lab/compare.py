"""Compare two recorded runs: the first thing that one did and the other did not, or did otherwise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from closeout.codec import value_or_text
from closeout.journal.events import (
    Event,
    ModelReplied,
    ModelRequested,
    RunEnded,
    RunStarted,
    ToolFinished,
    TurnAccepted,
)
from closeout.journal.store import Row
from closeout.records import record
from closeout.run.plan import differences

__all__ = ["Difference", "agent_differences", "first_difference"]

# What differs between two runs that did the same: measures, names that a vendor makes up, what the caller noted. The
# agent is compared beside the fields.
_IGNORED = frozenset({
    "agent", "ms", "usage", "size", "shared", "messages", "added", "tokens", "call_id", "attached",
    "reasoning_details", "model", "fingerprint", "settings", "origin", "task_id", "ground_truth", "name", "tools",
    "forked", "notes", "expires", "by", "idle", "summary",
})  # fmt: skip


@record(kw_only=True)
class Difference:
    """The first difference between two runs, a and b.

    Attributes:
        agent: The agent that did it, "main" for the main agent.
        turn: Its turn, counted from 1 as `closeout runs` does; 0 before the first.
        event: The type of the event, such as "ModelReplied".
        field: What of it differs; empty if one of the runs has no such event.
        a: The value in the first run, None if it has no such event.
        b: The value in the second run.
    """

    agent: str
    turn: int
    event: str
    field: str = ""
    a: Any = None
    b: Any = None

    def __str__(self) -> str:
        who = "" if self.agent == "main" else f"{self.agent}, "
        where = f"{who}turn {self.turn}: {self.event}" if self.turn else f"{who}{self.event}"
        return f"{where}: {self.field}" if self.field else where


def agent_differences(a: Sequence[Row], b: Sequence[Row]) -> list[str]:
    """Return how the agents of two runs differ, each as a short sentence."""
    first, second = (rows[0].event if rows else None for rows in (a, b))
    if not isinstance(first, RunStarted) or not isinstance(second, RunStarted):
        return []
    return differences(first.fingerprint, second.fingerprint)


def first_difference(a: Sequence[Row], b: Sequence[Row]) -> Difference | None:
    """Return the first difference between two runs in the order of the first one, or None.

    Times, tokens, ids of calls and the order of concurrent events are ignored.
    """
    of_a, of_b = _by_place(a), _by_place(b)
    turns: defaultdict[str, int] = defaultdict(int)
    for place, event in of_a.items():
        if isinstance(event, ModelRequested):
            turns[event.agent] = event.turn + 1
        if found := _compare(event, of_b.pop(place, None), turns):
            return found
    only_b = next(iter(of_b.values()), None)
    if only_b is not None:
        turn = only_b.turn + 1 if isinstance(only_b, ModelRequested) else turns[only_b.agent]
        kind = type(only_b).__name__
        return Difference(agent=only_b.agent, turn=turn, event=kind, b=_values(only_b))
    return None


def _by_place(rows: Iterable[Row]) -> dict[tuple[str, str, str], Event]:
    """The events by agent, type, and key or number. Those that describe a process are left out, except the last end."""
    counts: defaultdict[tuple[str, str], int] = defaultdict(int)
    found: dict[tuple[str, str, str], Event] = {}
    ended: Event | None = None
    for row in rows:
        event, kind = row.event, type(row.event).__name__
        if isinstance(event, RunEnded):
            ended = event
        if event.momentary:
            continue
        key = event.key
        if not key:
            key = f"#{counts[event.agent, kind]}"
            counts[event.agent, kind] += 1
        found[event.agent, kind, key] = event
    if ended is not None:
        found[ended.agent, "RunEnded", ""] = ended
    return found


def _compare(a: Event, b: Event | None, turns: Mapping[str, int]) -> Difference | None:
    kind, turn, first = type(a).__name__, turns.get(a.agent, 0), _values(a)
    if b is None:
        return Difference(agent=a.agent, turn=turn, event=kind, a=first)
    second = _values(b)
    for name, value in first.items():
        if value != second.get(name):
            turn = 0 if isinstance(a, RunStarted | RunEnded) else turn
            return Difference(agent=a.agent, turn=turn, event=kind, field=name, a=value, b=second.get(name))
    return None


def _values(event: Event) -> dict[str, Any]:
    """The fields of an event that count."""
    values = {name: getattr(event, name) for name in event.names if name not in _IGNORED}
    if isinstance(event, ModelReplied):
        values["tool_calls"] = [(call.get("name"), value_or_text(call.get("arguments"))) for call in event.tool_calls]
    elif isinstance(event, ToolFinished):
        record = value_or_text(event.record)
        values["record"] = record.get("result", record.get("summary")) if isinstance(record, dict) else record
    elif isinstance(event, TurnAccepted):
        values["calls"] = [(call.get("name"), call.get("arguments")) for call in event.calls]
        values["returns"] = [(each.get("handle"), each.get("text")) for each in event.returns]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
