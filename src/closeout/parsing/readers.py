"""The readers of replies: what a reply in each dialect says, as a thought, calls, an answer or defects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Protocol

from closeout.messages import Defect, Delta, ModelReply, Reading, Repair, ToolCall, ToolSpec
from closeout.parsing.action_keys import contradiction, names_in, read_object
from closeout.parsing.forms import Form, FormDetector, OfferedNames
from closeout.parsing.react import CotAgentOutputParser, CotEvent, Markers
from closeout.parsing.reasoning import (
    ThinkingSplitter,
    split_reasoning,
    split_thinking,
    split_until,
    without_turn_marks,
)
from closeout.parsing.salvage import AMID_TEXT, begins_quotation, only_ends
from closeout.parsing.use_mcp_tool import OPENING_TAG, CallScanner
from closeout.records import record

__all__ = [
    "LOCAL_SERVER",
    "McpXmlReader",
    "NativeReader",
    "ReactReader",
    "ReadEvent",
    "Reader",
    "read_native_calls",
    "unfinished",
]

LOCAL_SERVER = "local"  # the server name of tools without a server, in prompts and calls

_LINE = 400  # characters of a line before a call
_EMPTY = Defect("empty", "Your last reply was empty. Call a tool or give the answer.")
_INVENTED = re.compile(r"^[ \t]*(?:Observation\s*:|<tool_(?:result|response)>)", re.IGNORECASE | re.MULTILINE)
INVENTED_TAG = re.compile(r"^[ \t]*<tool_(?:result|response)>", re.IGNORECASE | re.MULTILINE)
INVENTED_HINT = "You wrote a tool result yourself. Write one call, then stop and wait for its result."
_UNMARKED_HINT = 'To call a tool, write "Action:" and then the JSON object. Nothing was run.'
_TWO_NAMES_HINT = 'The Action names two tools. Write one, as {"action": "tool name", "action_input": {…}}.'


@record
class ReadEvent:
    """Something that a reader knows while the model still writes.

    `text` is the new piece: of a thought, of reasoning, of the answer, or of a call's arguments as written; or a whole
    tool name. `index` says which call of the reply. "text" is plain text that may be a thought or an answer.
    """

    kind: Literal["thought", "reasoning", "text", "tool_name", "tool_arguments", "answer"]
    text: str
    index: int = 0


class Reader(Protocol):
    """Reads one reply. Feeding it is optional: `close` reads the whole reply either way, with the same result."""

    def feed(self, delta: Delta) -> list[ReadEvent]:
        """Take a piece of the reply and return what is certain by now."""
        ...

    @property
    def complete(self) -> bool:
        """True if the reply's one call is complete: further text would not count, so the request can be cancelled."""
        ...

    def close(self, reply: ModelReply) -> Reading:
        """Read the whole reply. One that was cancelled because it was complete is read as if it ended there."""
        ...


_UNFINISHED: Mapping[str, Defect] = {
    "content_filter": Defect(
        "filtered", "The server's content filter stopped your last {}. Say it in other words.", refuses=True
    ),
    "malformed_call": Defect(
        "malformed_call", "Your last tool call could not be read, so nothing was run. Make it again.", refuses=True
    ),
    # The text is what the model wrote, so a call in it may be read by other means.
    "rejected": Defect("rejected_call", "Your last tool call could not be read, so nothing was run. Make it again."),
    "length": Defect("truncated", "Your last {} was cut off at the length limit. Be brief.", refuses=True),
    "context_full": Defect("truncated", "Your last {} was cut off: the context is full. Be brief.", refuses=True),
    "cut": Defect("truncated", "Your last {} was cut off at the length limit. Be brief.", refuses=True),
}
_STOPPED = Defect("unfinished", "Your last {} was interrupted. Write it again, complete.", refuses=True)


def unfinished(reply: ModelReply, what: str = "reply") -> Defect:
    """Return what is wrong with a reply that the model did not end, by the reason that its server gives."""
    defect = _UNFINISHED.get(reply.finish_reason, _STOPPED)
    return replace(defect, hint=defect.hint.format(what))


def _not_text(delta: Delta) -> list[ReadEvent]:
    return [ReadEvent(delta.kind, delta.text, delta.index)] if delta.text else []


def _join(*parts: str) -> str:
    return "\n".join(filter(None, parts))


# ------------------------------------------------------------------------------------------------ native calls


class NativeReader:
    """Reads native calls. Text beside them is a thought, text alone the answer, `<think>` blocks are reasoning.

    Args:
        tools: The tools on offer. A call of one of them that a server passes on as text is announced by its name.
        forms: Forms of the user's own in which such a call may be written.
    """

    complete = False  # several calls may come, so nothing is ever cut short

    def __init__(self, tools: Sequence[ToolSpec] = (), forms: Sequence[Form] = ()) -> None:
        self._tools = tools
        self._splitter: ThinkingSplitter | None = None
        self._detector = FormDetector(forms) if tools else None  # finds a call in the text, until its name is known
        self._said = ""  # the line before the call
        self._spoke = False  # there is text before the call

    def feed(self, delta: Delta) -> list[ReadEvent]:
        if delta.kind != "text":
            return _not_text(delta)
        if self._splitter is None:  # most replies are read whole
            self._splitter = ThinkingSplitter()
        events: list[ReadEvent] = []
        for thinking, piece in self._splitter.feed(delta.text):
            events.append(ReadEvent("reasoning" if thinking else "text", piece))
            if not thinking and self._detector is not None:
                events += self._named_in(self._detector, piece)
        return events

    def _named_in(self, detector: FormDetector, piece: str) -> list[ReadEvent]:
        """The name of a call in the text, once it is known; one that will not be made is not announced."""
        said = detector.feed(piece)
        self._spoke = self._spoke or bool(said.strip())
        self._said = (self._said + said).rpartition("\n")[2][-_LINE:]
        if detector.name is None:
            return []
        self._detector = None
        offered = OfferedNames(self._tools)
        name = offered.find(detector.name)
        made = name and not begins_quotation(self._said) and (not self._spoke or offered.only_reads(name))
        return [ReadEvent("tool_name", name)] if name and made else []

    def close(self, reply: ModelReply) -> Reading:
        thinking, text = split_thinking(reply.text)
        reasoning = _join(reply.reasoning, thinking)
        calls, defects = read_native_calls(reply)
        if calls or defects:
            return Reading(text, reasoning, calls, defects=defects, raw=reply.text)
        text = without_turn_marks(text)
        if not text.strip():
            defect = _EMPTY if reply.finished else unfinished(reply)
            return Reading(text, reasoning, defects=(defect,), raw=reply.text)
        defects = () if reply.finished else (unfinished(reply, "answer"),)
        return Reading(text, reasoning, answer=text, defects=defects, raw=reply.text)


def read_native_calls(reply: ModelReply) -> tuple[tuple[ToolCall, ...], tuple[Defect, ...]]:
    """Read the arguments of native calls. What is not a JSON object stays text, for `repair` to judge."""
    calls: list[ToolCall] = []
    for call in reply.tool_calls:
        if not isinstance(call.arguments, str):
            calls.append(call)
            continue
        written = call.arguments
        left_out = written.strip() == "null" or (reply.finished and not written.strip())
        arguments = {} if left_out else read_object(written)
        if arguments is None and not reply.finished:
            return tuple(calls), (unfinished(reply, f"call of {call.name}"),)
        if refused := contradiction(written):
            hint = f"The call of {call.name} {refused}. Write it again with one value for each argument."
            return (), (Defect("broken_call", hint, refuses=True),)
        calls.append(
            ToolCall(
                call.name,
                written if arguments is None else arguments,
                call.id,
                server_name=call.server_name,
                text=written,
            )
        )
    return tuple(calls), ()


def _native_instead(reading: Reading, reply: ModelReply) -> Reading:
    """The native call of a reply in a text dialect: some servers read the calls themselves."""
    calls, defects = read_native_calls(reply)
    if defects:
        return Reading(reading.text, reading.reasoning, defects=defects, raw=reading.raw)
    repairs = (Repair("dialect:function_call", "reply", after=calls[0].name),)
    return Reading(reading.text, reading.reasoning, calls[:1], repairs=repairs, raw=reading.raw)


# ------------------------------------------------------------------------------------------------ ReAct


class ReactReader:
    """Reads `Thought / Action` text: one action in a reply.

    Args:
        tools: The tools on offer. A destructive one is called only after an `Action:` marker, in a reply that holds
            nothing else but a thought that the model marked itself.
        primed: The prompt ended in `Thought:`, so the reply begins within a thought.
        markers: Translations of the markers.
        parser: A subclass of `CotAgentOutputParser`, or a function that takes the same arguments.
    """

    def __init__(
        self,
        tools: Sequence[ToolSpec] = (),
        *,
        primed: bool = False,
        markers: Markers | None = None,
        parser: Callable[..., CotAgentOutputParser] | None = None,
    ) -> None:
        self._tools = tools
        self._primed = primed
        self._markers = markers
        self._make_parser = parser or CotAgentOutputParser
        self._begin()

    def _begin(self) -> None:
        self.parser = self._make_parser(self._markers, thought_open=self._primed)
        self._summary = _Summary()
        self._fed = 0

    @property
    def complete(self) -> bool:
        return self.parser.complete and not self._summary.needs_the_rest(self._tools)

    def feed(self, delta: Delta) -> list[ReadEvent]:
        if delta.kind != "text":
            return _not_text(delta)
        self._fed += len(delta.text)
        events = self.parser.feed(delta.text)
        self._summary.add(events)
        return [shown for event in events if (shown := _shown(event)) is not None]

    def close(self, reply: ModelReply) -> Reading:
        if self._fed != len(reply.text) or not self._fed:
            self._begin()
            self._summary.add(self.parser.feed(reply.text))
        # A reply that was cancelled because the action was complete ends like one at a stop word.
        self._summary.add(self.parser.close("stop" if self.parser.complete else reply.finish_reason))
        reading = self._summary.reading(reply, self._tools)
        if reply.tool_calls and not reading.calls and not any(defect.refuses for defect in reading.defects):
            return _native_instead(reading, reply)
        cut = bool(reading.defects) and reading.defects[0].code == "truncated"
        if cut and not reply.finished and reply.finish_reason not in ("length", "context_full"):
            return replace(reading, defects=(unfinished(reply),))
        return reading


_SHOWN_AS: dict[str, Literal["reasoning", "tool_name", "tool_arguments", "answer"]] = {
    "reasoning": "reasoning",
    "action_start": "tool_name",
    "argument_delta": "tool_arguments",
    "final_delta": "answer",
}


def _shown(event: CotEvent) -> ReadEvent | None:
    if event.kind == "text":
        # JSON that may yet be an action is not shown as a thought. If it is not, the reading has it.
        return None if event.role == "json" else ReadEvent("thought" if event.role == "thought" else "text", event.text)
    kind = _SHOWN_AS.get(event.kind)
    text = event.name if event.kind == "action_start" else event.text
    return ReadEvent(kind, text) if kind and text else None


class _Summary:
    """Gathers a reply's events."""

    def __init__(self) -> None:
        self._texts: list[CotEvent] = []  # thoughts and plain text
        self._reasoning: list[str] = []
        self._trusted: list[str] = []
        self._arguments: list[str] = []
        self._outcome: CotEvent | None = None
        self._marked: bool | None = None  # the reply begins with a marker; None: it has not begun
        self._after: list[str] = []  # untrusted text

    def needs_the_rest(self, tools: Sequence[ToolSpec]) -> bool:
        """True if text after the call decides whether it is made.

        It does for a destructive tool, and without an `Action:` marker for any tool that may have effects.
        """
        called = self._outcome
        if called is None or called.kind != "action":
            return False
        policies = [tool.policy for tool in tools if _plain(tool.name) == _plain(called.name)]
        return any(each.destructive or (called.role and not each.only_reads) for each in policies)

    def add(self, events: Iterable[CotEvent]) -> None:
        for event in events:
            kind = event.kind
            if kind == "reasoning" and event.span is not None:  # all so far was reasoning
                self._reasoning[:0] = self._trusted
                self._trusted.clear()
                self._texts.clear()
                self._marked = None
            elif kind == "reasoning":
                self._reasoning.append(event.text)
            elif kind in ("action", "final", "malformed"):
                self._outcome = event
            elif kind == "untrusted":
                self._after.append(event.text)
            elif kind not in ("end", "action_start"):
                self._trusted.append(event.text)
                if self._marked is None and event.text.strip():
                    self._marked = kind == "marker"
                if kind == "text":
                    self._texts.append(event)
                elif kind == "argument_delta":
                    self._arguments.append(event.text)

    def reading(self, reply: ModelReply, tools: Sequence[ToolSpec]) -> Reading:
        outcome = self._outcome
        begins = outcome.span[0] if outcome is not None and outcome.span and outcome.role != "plain" else None
        before = [event for event in self._texts if begins is None or event.start < begins]
        text = "".join(event.text for event in before).strip()
        reasoning = _join(reply.reasoning, "".join(self._reasoning).strip())
        raw = "".join(self._trusted)
        if outcome is None:
            return Reading(text, reasoning, raw=raw)
        if outcome.kind == "final":
            defects = (unfinished(reply, "answer"),) if outcome.code == "truncated" else ()
            return Reading(text, reasoning, answer=outcome.text, defects=defects, repairs=outcome.repairs, raw=raw)
        defect = _refusal(outcome, before, tools)
        alone = (self._marked or outcome.role) and only_ends("".join(self._after))
        if defect is None and self.needs_the_rest(tools) and not alone:
            defect = AMID_TEXT
        if outcome.kind == "malformed":
            defect = Defect(outcome.code, outcome.hint, outcome.span, outcome.refuses)
        if defect is not None:
            return Reading(text, reasoning, defects=(defect,), raw=raw)
        value = outcome.input
        if not isinstance(value, dict | str):
            value = json.dumps(value, ensure_ascii=False)
        call = ToolCall(outcome.name, value, text="".join(self._arguments).strip())
        return Reading(text or _own_thought(outcome.raw), reasoning, (call,), repairs=outcome.repairs, raw=raw)


def _refusal(action: CotEvent, before: Sequence[CotEvent], tools: Sequence[ToolSpec]) -> Defect | None:
    """Why an action that can be read must not run, if it must not."""
    offered = {_plain(tool.name): tool for tool in tools}
    if invented := INVENTED_TAG.search("".join(event.text for event in before)):
        return Defect("invented_observation", INVENTED_HINT, invented.span(), refuses=True)
    if action.role and not _is_alone(action, before, offered.get(_plain(action.name))):
        return Defect("unmarked_action", _UNMARKED_HINT, action.span, refuses=True)
    if len({_plain(name) for name in names_in(action.raw)} & set(offered)) > 1:
        return Defect("two_actions", _TWO_NAMES_HINT, action.span, refuses=True)
    return None


def _is_alone(action: CotEvent, before: Sequence[CotEvent], tool: ToolSpec | None) -> bool:
    """True if an action without an `Action:` marker is the reply's own call, not a quotation.

    It never calls a destructive tool. Before another tool's call there may only be a thought, if the tool has effects
    or the call is a bare object; that must have the dialect's own keys, and a thought that ends in a colon shows it.
    """
    if tool is not None and tool.policy.destructive:
        return False
    thought = all(event.role == "thought" or not event.text.strip() for event in before)
    if action.role == "native":
        return thought or (tool is not None and tool.policy.only_reads)
    said = "".join(event.text for event in before).strip()
    if not said:
        return True
    return thought and '"action"' in action.raw and not said.endswith((":", "："))


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


def _own_thought(raw: str) -> str:
    """The thought that constrained decoding puts into the action itself."""
    thought = (read_object(raw) or {}).get("thought") if '"thought"' in raw else None
    return thought.strip() if isinstance(thought, str) else ""


# ------------------------------------------------------------------------------------------------ <use_mcp_tool>


class McpXmlReader:
    """Reads `<use_mcp_tool>` tags: one call in a reply.

    Args:
        tools: The tools on offer. A destructive one is called only if the reply holds nothing else but reasoning.
    """

    def __init__(self, tools: Sequence[ToolSpec] = ()) -> None:
        self._destructive = frozenset(_plain(tool.name) for tool in tools if tool.policy.destructive)
        self._splitter = ThinkingSplitter(stop=OPENING_TAG)
        self._call: CallScanner | None = None
        self._buffer = ""  # text of the call, not scanned yet
        self._named = False
        self._shown = 0  # pieces of the arguments that were shown

    @property
    def complete(self) -> bool:
        # Text after the call of a destructive tool decides whether it is made.
        call = self._call
        return call is not None and call.complete and _plain(call.name) not in self._destructive

    def feed(self, delta: Delta) -> list[ReadEvent]:
        if delta.kind != "text":
            return _not_text(delta)
        if self._call is not None:
            return self._scan(self._call, delta.text)
        pieces = self._splitter.feed(delta.text)
        events = [ReadEvent("reasoning" if thinking else "text", piece) for thinking, piece in pieces]
        if self._splitter.rest is not None:
            self._call = CallScanner()
            events += self._scan(self._call, self._splitter.rest)
        return events

    def _scan(self, call: CallScanner, text: str) -> list[ReadEvent]:
        events: list[ReadEvent] = []
        text = self._buffer + text
        self._buffer = text[call.scan(text, 0) :]
        if call.name and not self._named:
            self._named = True
            events.append(ReadEvent("tool_name", call.name))
        if arguments := "".join(call.pieces[self._shown :]):
            events.append(ReadEvent("tool_arguments", arguments))
        self._shown = len(call.pieces)
        return events

    def close(self, reply: ModelReply) -> Reading:
        thinking, text, rest = split_until(reply.text, OPENING_TAG)
        call = CallScanner()
        end = call.scan(rest or "", 0, last=True)
        if rest is not None and not call.name:
            whole = split_reasoning(reply.text)
            if OPENING_TAG in whole.reasoning:  # only a mention of the tag, in reasoning that the prompt opened
                remaining, text, rest = split_until(whole.content, OPENING_TAG)
                thinking, call = _join(whole.reasoning, remaining), CallScanner()
                end = call.scan(rest or "", 0, last=True)
        reasoning = _join(reply.reasoning, thinking)
        if invented := _INVENTED.search(text):
            defect = Defect("invented_observation", INVENTED_HINT, invented.span(), refuses=True)
            return Reading(text[: invented.start()].strip(), reasoning, defects=(defect,))
        truncated = not (call.complete or (reply.finished and reply.finish_reason != "cut"))
        if rest is None:
            return self._without_call(text, reasoning, reply, truncated)
        found = call.result(truncated=truncated)
        thought, raw = text.strip(), f"{text}{OPENING_TAG}{rest[:end]}"
        if isinstance(found, Defect):
            return Reading(thought, reasoning, defects=(found,), raw=raw)
        if _plain(found.name) in self._destructive and (thought or not only_ends((rest or "")[end:])):
            return Reading(thought, reasoning, defects=(AMID_TEXT,), raw=raw)
        server = None if found.server in ("", LOCAL_SERVER) else found.server
        made = ToolCall(found.name, found.arguments, server_name=server, text=found.written)
        return Reading(thought, reasoning, (made,), raw=raw)

    def _without_call(self, text: str, reasoning: str, reply: ModelReply, truncated: bool) -> Reading:
        if reply.tool_calls:
            return _native_instead(Reading(text, reasoning, raw=text), reply)
        text = without_turn_marks(text)
        if not text.strip():
            return Reading("", reasoning, defects=(unfinished(reply) if truncated else _EMPTY,), raw=text)
        return Reading(text, reasoning, answer=text, defects=(unfinished(reply),) if truncated else (), raw=text)
