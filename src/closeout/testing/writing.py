"""A scripted turn written as a model would write it: native calls, ReAct text, XML tags. No decisions about turns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from closeout.codec import encode_json
from closeout.messages import Delta, ModelReply, ToolCall, Usage
from closeout.testing.script import Dialect, RequestView, Turn

__all__ = ["argument_text", "as_deltas", "hermes_call", "one_call_each", "pieces", "write"]

# Four characters a token, as in the budget rules of thumb: good enough for a bill that tests add up.
CHARACTERS_PER_TOKEN = 4


def write(turn: Turn, view: RequestView, dialect: Dialect | None = None) -> ModelReply:
    """The reply that a model writes for a turn, in the dialect that the request asks for."""
    dialect = dialect or view.dialect
    if turn.text is not None:
        calls = tuple(_native(call, view, i) for i, call in enumerate(turn.calls))
        reply = ModelReply(text=turn.text, tool_calls=calls)
    elif dialect == "native":
        reply = _write_native(turn, view)
    else:
        reply = ModelReply(text=_write_text(turn, view, dialect))
    finish = turn.finish_reason or ("tool_calls" if reply.tool_calls else "stop")
    reply = replace(reply, reasoning=turn.reasoning, finish_reason=finish, model="scripted")
    return replace(reply, usage=turn.usage or _estimate(view, reply))


def one_call_each(dialect: Dialect) -> bool:
    """Whether a reply in the dialect carries one call at most."""
    return dialect in {"react_json", "react_text", "mcp_xml"}


def argument_text(call: ToolCall) -> str:
    """The arguments as JSON, or the text that stands in their place."""
    return call.arguments if isinstance(call.arguments, str) else encode_json(dict(call.arguments)).decode()


def hermes_call(call: ToolCall) -> str:
    """The call as models of the Hermes family write it in plain text."""
    return f'<tool_call>\n{{"name": "{call.name}", "arguments": {argument_text(call)}}}\n</tool_call>'


def _write_native(turn: Turn, view: RequestView) -> ModelReply:
    if turn.answer is not None:
        return ModelReply(text=_paragraphs(turn.thought, _boxed(turn.answer)))
    calls = tuple(_native(call, view, i) for i, call in enumerate(turn.calls))
    return ModelReply(text=turn.thought, tool_calls=calls)


def _native(call: ToolCall, view: RequestView, number: int) -> ToolCall:
    text = argument_text(call)
    return ToolCall(call.name, text, call.id or f"call_{view.turn}_{number}", call.server_name, text)


def _write_text(turn: Turn, view: RequestView, dialect: Dialect) -> str:
    if dialect == "mcp_xml":
        closing = [_boxed(turn.answer)] if turn.answer is not None else [_xml_call(call, view) for call in turn.calls]
        return _paragraphs(turn.thought, *closing)
    if dialect == "plain":
        closing = [_boxed(turn.answer)] if turn.answer is not None else [hermes_call(call) for call in turn.calls]
        return _paragraphs(turn.thought, *closing)
    # A prompt that ends in the primer is gone on with, not begun again.
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
    """The last server that the prompt names before the tool."""
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


def pieces(text: str, sizes: Sequence[int]) -> Iterator[str]:
    """The text in pieces of these lengths, over and over."""
    position = number = 0
    while position < len(text):
        size = max(sizes[number % len(sizes)], 1)
        yield text[position : position + size]
        position, number = position + size, number + 1


def as_deltas(reply: ModelReply, sizes: Sequence[int]) -> Iterator[Delta]:
    """The reply as it is streamed, in pieces of these lengths in characters."""
    parts: Mapping[str, str] = {"reasoning": reply.reasoning, "text": reply.text}
    for kind, text in parts.items():
        for piece in pieces(text, sizes):
            yield Delta("text" if kind == "text" else "reasoning", piece)
    for index, call in enumerate(reply.tool_calls):
        yield Delta("tool_name", call.name, index)
        for piece in pieces(call.text, sizes):
            yield Delta("tool_arguments", piece, index)
