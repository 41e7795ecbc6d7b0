"""Reads a ReAct reply for the dialects that write one: what the parser's events come to as thought, call or answer."""

from __future__ import annotations

import json
from typing import Any

from closeout.dialects.function_call import read_native_calls
from closeout.dialects.protocol import ReadEvent
from closeout.dialects.react_events import CotEvent
from closeout.dialects.react_parser import CotAgentOutputParser
from closeout.messages import Defect, Delta, ModelReply, Reading, Repair, ToolCall

__all__ = ["ReactReader"]

_TOLD_AS = {
    "reasoning": "reasoning",
    "action_start": "tool_name",
    "argument_delta": "tool_arguments",
    "final_delta": "answer",
}


class ReactReader:
    """One reply, one action. `primed`: the prompt ended in `Thought:`, so the reply begins within a thought."""

    __slots__ = ("_fed", "_primed", "_summary", "parser")

    def __init__(self, *, primed: bool = False) -> None:
        self._primed = primed
        self._begin()

    def _begin(self) -> None:
        self.parser = CotAgentOutputParser(thought_open=self._primed)
        self._summary = _Summary()
        self._fed = 0

    @property
    def complete(self) -> bool:
        """Whether the first action, the answer's end or a defect was reached: the rest would not be trusted."""
        return self.parser.complete

    def feed(self, delta: Delta) -> list[ReadEvent]:
        if delta.kind != "text":
            return [ReadEvent(delta.kind, delta.text, delta.index)] if delta.text else []
        self._fed += len(delta.text)
        events = self.parser.feed(delta.text)
        self._summary.add(events)
        return [told for event in events if (told := _told(event)) is not None]

    def close(self, reply: ModelReply) -> Reading:
        if self._fed != len(reply.text) or not self._fed:
            self._begin()
            self._summary.add(self.parser.feed(reply.text))
        # A connection that we closed because the action was whole ends it like a stop word does.
        self._summary.add(self.parser.close("stop" if self.complete else reply.finish_reason))
        reading = self._summary.reading(reply)
        if reading.calls or not reply.tool_calls:
            return reading
        calls, defects = read_native_calls(reply)
        if defects:
            return Reading(reading.text, reading.reasoning, defects=tuple(defects), raw=reading.raw)
        repairs = (Repair("dialect:function_call", "reply", after=calls[0].name),)
        return Reading(reading.text, reading.reasoning, tuple(calls[:1]), repairs=repairs, raw=reading.raw)


def _told(event: CotEvent) -> ReadEvent | None:
    if event.kind == "text":
        # JSON that may yet be an action is not shown as a thought; if it is none, the reading has it.
        kind = "thought" if event.role == "thought" else "text"
        return ReadEvent(kind, event.text) if event.role != "json" else None  # type: ignore[arg-type]
    kind = _TOLD_AS.get(event.kind, "")
    text = event.name if event.kind == "action_start" else event.text
    return ReadEvent(kind, text) if kind and text else None  # type: ignore[arg-type]


class _Summary:
    """Gathers a reply's events."""

    __slots__ = ("_arguments", "_outcome", "_reasoning", "_said", "_trusted")

    def __init__(self) -> None:
        self._said: list[tuple[int, str]] = []  # start and text of thoughts and plain text
        self._reasoning: list[str] = []
        self._trusted: list[str] = []
        self._arguments: list[str] = []
        self._outcome: CotEvent | None = None

    def add(self, events: list[CotEvent]) -> None:
        for event in events:
            kind = event.kind
            if kind == "reasoning":
                self._reason(event)
            elif kind in ("action", "final", "malformed"):
                self._outcome = event
            elif kind not in ("untrusted", "end", "action_start"):
                self._trusted.append(event.text)
                if kind == "text":
                    self._said.append((event.start, event.text))
                elif kind == "argument_delta":
                    self._arguments.append(event.text)

    def _reason(self, event: CotEvent) -> None:
        if event.span is not None:  # all so far was reasoning
            self._reasoning[:0] = self._trusted
            self._trusted.clear()
            self._said.clear()
        else:
            self._reasoning.append(event.text)

    def reading(self, reply: ModelReply) -> Reading:
        outcome = self._outcome
        tagged = "".join(self._reasoning).strip()
        reasoning = "\n".join(part for part in (reply.reasoning, tagged) if part)
        begins = outcome.span[0] if outcome is not None and outcome.span and outcome.role != "plain" else None
        said = "".join(text for start, text in self._said if begins is None or start < begins).strip()
        raw = "".join(self._trusted)
        if outcome is None:
            return Reading(said, reasoning, raw=raw)
        if outcome.kind == "malformed":
            return Reading(said, reasoning, defects=(Defect(outcome.code, outcome.hint, outcome.span),), raw=raw)
        if outcome.kind == "final":
            cut = (Defect("truncated", "Your last answer was cut off at the length limit. Give it again, shorter."),)
            defects = cut if outcome.code == "truncated" else ()
            return Reading(said, reasoning, answer=outcome.text, defects=defects, repairs=outcome.repairs, raw=raw)
        call = _call(outcome, "".join(self._arguments).strip())
        return Reading(said or _own_thought(outcome.raw), reasoning, (call,), repairs=outcome.repairs, raw=raw)


def _call(action: CotEvent, written: str) -> ToolCall:
    value: Any = action.input
    if not isinstance(value, dict | str):
        value = json.dumps(value, ensure_ascii=False)
    return ToolCall(action.name, value, text=written)


def _own_thought(raw: str) -> str:
    """The thought that constrained decoding puts into the action itself."""
    if '"thought"' not in raw:
        return ""
    try:
        thought = json.loads(raw).get("thought")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return thought.strip() if isinstance(thought, str) else ""
