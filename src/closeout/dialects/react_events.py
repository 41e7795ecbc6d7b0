"""What the ReAct parser tells of a text, piece by piece, and the tape that cuts the text into these pieces."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Protocol

from closeout.messages import Repair

__all__ = ["CotEvent", "EventKind", "Lane", "PlainLane", "Tape", "joined"]

EventKind = Literal[
    "text",  # thought or plain text; role "json": an object that may yet turn out to be an action
    "reasoning",  # inside reasoning tags; empty with a span: all in that span turned out to be reasoning
    "marker",  # structure: markers, tags, fences, the JSON around an input
    "action_start",  # the tool's name is known
    "argument_delta",  # a piece of the input, as written
    "action",  # the action is complete
    "final_delta",  # a piece of the final answer, decoded
    "final",  # the final answer is complete; role "plain": a candidate, the whole reply had no structure
    "malformed",
    "untrusted",  # behind the first complete action, or behind an observation that the model wrote
    "end",
]

_STREAMED = frozenset({"text", "reasoning", "marker", "argument_delta", "final_delta", "untrusted"})


class CotEvent(NamedTuple):  # a tuple, not a dataclass: one is made for every piece of a stream
    """One event. `[start, end)` counts code points of the raw text; over all events they tile it exactly.

    Events that sum up (action_start, action, final, malformed, end) are empty themselves; their `span` says what of
    the text they are about. `text` is the piece's value: decoded for final_delta, else as written.
    """

    kind: EventKind
    start: int
    end: int
    text: str = ""
    role: str = ""  # of text and final: "thought", "plain", "json", "answer"
    name: str = ""  # of action_start and action
    input: Any = None  # of action: any JSON value
    raw: str = ""  # of action: its text as written
    span: tuple[int, int] | None = None
    repairs: tuple[Repair, ...] = ()
    code: str = ""  # of malformed; of a marker "stop_prefix"; of final "truncated"; of end: the finish reason
    hint: str = ""  # of malformed: what the model is told when it is asked again


# Made directly, as one is made for every piece of a stream: calling the class costs twice as much.
_new = tuple.__new__
_REST: tuple[Any, ...] = ("", None, "", None, ())  # name, input, raw, span, repairs


def joined(events: Iterable[CotEvent]) -> list[CotEvent]:
    """The events with adjacent pieces of one kind put together: the same for any way of feeding one text."""
    result: list[CotEvent] = []
    parts: list[str] = []
    for event in events:
        last = result[-1] if result else None
        alike = last is not None and event.kind in _STREAMED and event.span is None and last.span is None
        if last is not None and alike and (last.kind, last.role, last.code) == (event.kind, event.role, event.code):
            parts.append(event.text)
            result[-1] = last._replace(end=event.end)
            continue
        if parts and last is not None:
            result[-1] = last._replace(text="".join(parts))
        result.append(event)
        parts = [event.text]
    if result:
        result[-1] = result[-1]._replace(text="".join(parts))
    return result


class Lane(Protocol):
    """Where a stream goes straight on: a piece of text that `takes` accepts is one event of this kind."""

    kind: EventKind
    role: str

    def takes(self, text: str) -> bool: ...


class PlainLane:
    """Takes what `stop` is not found in, and collects it in `kept`. No more than `room` characters go this way."""

    __slots__ = ("kept", "kind", "role", "room", "stop")

    def __init__(
        self,
        stop: re.Pattern[str],
        kind: EventKind,
        role: str = "",
        kept: list[str] | None = None,
        room: int = sys.maxsize,
    ) -> None:
        self.stop = stop
        self.kind: EventKind = kind
        self.role = role
        self.kept = kept
        self.room = room

    def takes(self, text: str) -> bool:
        if len(text) > self.room or self.stop.search(text) is not None:
            return False
        self.room -= len(text)
        if self.kept is not None:
            self.kept.append(text)
        return True


class Tape:
    """The text not yet told of, and the events so far.

    `position` and `told` are indices into `text`: where reading goes on, and up to where events have been made.
    """

    __slots__ = ("_base", "_code", "_events", "_kind", "_parts", "_role", "_start", "position", "text", "told")

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.told = 0
        self._base = 0  # absolute offset of text[0]
        self._events: list[CotEvent] = []
        self._parts: list[str] = []  # of the event that is growing; the next four say what it is
        self._kind: EventKind = "text"
        self._role = ""
        self._code = ""
        self._start = 0

    def append(self, text: str) -> None:
        if self.told:
            self.text = self.text[self.told :]
            self.position -= self.told
            self._base += self.told
            self.told = 0
        self.text = self.text + text if self.text else text

    def pass_on(self, text: str, kind: EventKind, role: str) -> CotEvent:
        """New text as one event, when all before it is told."""
        start = self._base + self.told
        end = self._base = start + len(text)
        self.told = self.position = 0
        self.text = ""
        return _new(CotEvent, (kind, start, end, text, role, *_REST, "", ""))

    @property
    def all_told(self) -> bool:
        return self.told == len(self.text)

    @property
    def offset(self) -> int:
        """The position as an offset into the whole text."""
        return self._base + self.position

    def take(self, kind: EventKind, end: int, role: str = "", *, text: str | None = None, code: str = "") -> None:
        """Tells of the text up to an index as one kind of piece; moves the position there if it is behind."""
        start = self.told
        if end > self.position:
            self.position = end
        if end <= start:
            if not text:
                return
            end = start
        if self._parts and (kind != self._kind or role != self._role or code != self._code):
            self._flush()
        if not self._parts:
            self._kind, self._role, self._code, self._start = kind, role, code, self._base + start
        self._parts.append(self.text[start:end] if text is None else text)
        self.told = end

    def put(self, kind: EventKind, **fields: Any) -> None:
        """An event that is empty itself."""
        self._flush()
        at = self._base + self.told
        self._events.append(CotEvent(kind, at, at, **fields))

    def events(self) -> list[CotEvent]:
        """What was told since the last call."""
        self._flush()
        events, self._events = self._events, []
        return events

    def _flush(self) -> None:
        parts = self._parts
        if parts:
            text = parts[0] if len(parts) == 1 else "".join(parts)
            end = self._base + self.told
            event = _new(CotEvent, (self._kind, self._start, end, text, self._role, *_REST, self._code, ""))
            self._events.append(event)
            self._parts = []
