"""Scripts of a scripted model: turns, the requests that they see, and how a turn is written in each dialect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

from closeout.codec import encode_json
from closeout.messages import Delta, Message, ModelReply, ToolCall, Usage

__all__ = [
    "Dialect",
    "RequestView",
    "Script",
    "ScriptItem",
    "Turn",
    "answer",
    "argument_text",
    "as_deltas",
    "as_turn",
    "call",
    "hermes_call",
    "one_call_each",
    "pieces",
    "say",
    "write",
]

Dialect = Literal["native", "react_json", "react_text", "mcp_xml", "plain"]
Text = TypeVar("Text", str, bytes)

CHARACTERS_PER_TOKEN = 4  # the usual rule of thumb; good enough for usage that tests add up


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn, independent of any dialect: a thought, then calls or an answer; or `text`, sent unchanged.

    `answer` is put in a box. `usage` None is estimated at four characters per token. `attached` is what the server adds
    to the message, as in `ModelReply.attached`.
    """

    thought: str = ""
    calls: Sequence[ToolCall] = ()
    answer: str | None = None
    text: str | None = None
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    attached: Mapping[str, Any] = field(default_factory=dict)


def call(tool: str, /, **arguments: Any) -> ToolCall:
    """Return a tool call; in a script it is a turn that makes this call."""
    return ToolCall(tool, arguments)


def answer(value: str, thought: str = "") -> Turn:
    """Return a turn that answers: the value in a box."""
    return Turn(thought, answer=value)


def say(text: str) -> Turn:
    """Return a turn that sends exactly this text."""
    return Turn(text=text)


@dataclass(frozen=True)
class RequestView:
    """A request as a script sees it, the same for every protocol."""

    messages: Sequence[Mapping[str, Any]] = ()  # OpenAI shape
    prompt: str | None = None
    tools: Sequence[str] = ()  # the names of the listed tools
    stop: Sequence[str] = ()
    key: str = ""  # the API key
    body: Mapping[str, Any] = field(default_factory=dict)  # the whole request
    size: int = 0  # bytes of the body; 0: unknown
    number: int = 1  # the number of the request in its conversation, rolled-back and repeated ones included
    turn: int = 1  # the number of the next turn of the script

    @cached_property
    def head(self) -> str:
        """The part that explains the dialect: the prompt, or the first two messages."""
        return self.prompt if self.prompt is not None else "\n".join(map(_text, self.messages[:2]))

    @cached_property
    def last(self) -> str:
        """The text of the last message, usually the newest tool result; or the prompt."""
        if self.prompt is not None:
            return self.prompt
        return _text(self.messages[-1]) if self.messages else ""

    @cached_property
    def question(self) -> str:
        """The first user message, or the line after the prompt's last `Question:`."""
        if self.prompt is not None:
            return self.prompt.rpartition("Question:")[2].lstrip().partition("\n")[0]
        return next((_text(message) for message in self.messages if message.get("role") == "user"), "")

    @cached_property
    def text(self) -> str:
        """All texts of the request, joined."""
        return self.prompt if self.prompt is not None else "\n".join(map(_text, self.messages))

    @cached_property
    def dialect(self) -> Dialect:
        """The form in which the request wants calls: native if it lists tools, otherwise what its head explains."""
        if self.tools:
            return "native"
        if "<use_mcp_tool>" in self.head:
            return "mcp_xml"
        if "action_input" in self.head:
            return "react_json"
        if "Action Input:" in self.head:
            return "react_text"
        return "native" if any(message.get("tool_calls") for message in self.messages) else "plain"


ScriptItem = Turn | ToolCall | str | ModelReply | BaseException | Callable[[RequestView], Any]
"""One turn of a script. A str is sent unchanged; a callable gets the request and returns another item."""

Script = Sequence[ScriptItem] | Callable[[RequestView], Any] | Mapping[str, Sequence[ScriptItem]]
"""Turns; or a callable that returns every turn; or a mapping from a part of the question to its turns."""


def as_turn(item: Any) -> Turn:
    """Return a script item, not a callable, as a Turn.

    Raises:
        TypeError: The item has another type.
    """
    if isinstance(item, Turn):
        return item
    if isinstance(item, ToolCall):
        return Turn(calls=(item,))
    if isinstance(item, str):
        return Turn(text=item)
    if isinstance(item, ModelReply):
        return Turn(
            text=item.text,
            calls=item.tool_calls,
            reasoning=item.reasoning,
            finish_reason=item.finish_reason,
            usage=item.usage,
            attached=item.attached,
        )
    raise TypeError(
        f"A script item must be a turn, call, text, reply, exception or callable, got {type(item).__name__}."
    )


def _text(message: Mapping[str, Any]) -> str:
    return Message.of(message).text


# ------------------------------------------------------------------------------------------------ writing


def write(turn: Turn, view: RequestView, dialect: Dialect | None = None) -> ModelReply:
    """Return the reply that a model writes for a turn, in the dialect that the request asks for."""
    dialect = dialect or view.dialect
    calls = tuple(_native(call, view, i) for i, call in enumerate(turn.calls))
    if turn.text is not None:
        reply = ModelReply(text=turn.text, tool_calls=calls)
    elif dialect != "native":
        reply = ModelReply(text=_write_text(turn, view, dialect))
    elif turn.answer is not None:
        reply = ModelReply(text=_paragraphs(turn.thought, _boxed(turn.answer)))
    else:
        reply = ModelReply(text=turn.thought, tool_calls=calls)
    finish = turn.finish_reason or ("tool_calls" if reply.tool_calls else "stop")
    reply = replace(reply, reasoning=turn.reasoning, finish_reason=finish, model="scripted", attached=turn.attached)
    return replace(reply, usage=turn.usage or _estimate(view, reply))


def one_call_each(dialect: Dialect) -> bool:
    """Return whether a reply in the dialect holds at most one call."""
    return dialect in {"react_json", "react_text", "mcp_xml"}


def argument_text(call: ToolCall) -> str:
    """Return the arguments as JSON, or the text that replaces them."""
    return call.arguments if isinstance(call.arguments, str) else encode_json(dict(call.arguments)).decode()


def hermes_call(call: ToolCall) -> str:
    """Return the call as models of the Hermes family write it in plain text."""
    return f'<tool_call>\n{{"name": "{call.name}", "arguments": {argument_text(call)}}}\n</tool_call>'


def _native(call: ToolCall, view: RequestView, number: int) -> ToolCall:
    text = argument_text(call)
    return ToolCall(call.name, text, call.id or f"call_{view.turn}_{number}", server_name=call.server_name, text=text)


def _write_text(turn: Turn, view: RequestView, dialect: Dialect) -> str:
    if dialect in ("mcp_xml", "plain"):
        if turn.answer is not None:
            return _paragraphs(turn.thought, _boxed(turn.answer))
        calls = [_xml_call(call, view) if dialect == "mcp_xml" else hermes_call(call) for call in turn.calls]
        return _paragraphs(turn.thought, *calls)
    # If the prompt ends in "Thought:", the reply continues it.
    start = " " if view.last.rstrip().endswith("Thought:") else "Thought: "
    lines = [start + (turn.thought or "I know what to do.")]
    if turn.answer is not None:
        lines.append(f"Final Answer: {_boxed(turn.answer)}")
    for call in turn.calls:
        if dialect == "react_json":
            action = f'{{"action": "{call.name}", "action_input": {argument_text(call)}}}'
            lines.append(f"Action:\n```json\n{action}\n```")
        else:
            lines.append(f"Action: {call.name}\nAction Input: {argument_text(call)}")
    return "\n".join(lines)


def _xml_call(call: ToolCall, view: RequestView) -> str:
    server = call.server_name or _server_of(call.name, view.head)
    return (
        f"<use_mcp_tool>\n<server_name>{server}</server_name>\n<tool_name>{call.name}</tool_name>\n"
        f"<arguments>\n{argument_text(call)}\n</arguments>\n</use_mcp_tool>"
    )


def _server_of(tool: str, head: str) -> str:
    """Return the last server that the prompt names before the tool."""
    before = head.partition(f"ool name: {tool}")[0] or head
    named = re.findall(r"[Ss]erver name:\s*(\S+)", before)
    return named[-1] if named else "local"


def _boxed(value: str) -> str:
    return f"The answer is \\boxed{{{value}}}."


def _paragraphs(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _estimate(view: RequestView, reply: ModelReply) -> Usage:
    sent = view.size or len(view.text)
    written = len(reply.text) + len(reply.reasoning) + sum(len(call.text) for call in reply.tool_calls)
    return Usage(sent // CHARACTERS_PER_TOKEN + 1, written // CHARACTERS_PER_TOKEN + 1, requests=1)


def pieces(text: Text, sizes: Sequence[int]) -> Iterator[Text]:
    """Yield the text in pieces of these lengths, which repeat."""
    position = number = 0
    while position < len(text):
        size = max(sizes[number % len(sizes)], 1)
        yield text[position : position + size]
        position, number = position + size, number + 1


def as_deltas(reply: ModelReply, sizes: Sequence[int]) -> Iterator[Delta]:
    """Yield the reply as it is streamed, in pieces of these lengths in characters."""
    parts: Mapping[str, str] = {"reasoning": reply.reasoning, "text": reply.text}
    for kind, text in parts.items():
        for piece in pieces(text, sizes):
            yield Delta("text" if kind == "text" else "reasoning", piece)
    for index, call in enumerate(reply.tool_calls):
        yield Delta("tool_name", call.name, index)
        for piece in pieces(call.text, sizes):
            yield Delta("tool_arguments", piece, index)
