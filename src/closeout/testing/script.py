"""What a scripted model says: turns, and the request that a turn may look at. How it is written: `writing`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from closeout.messages import Message, ModelReply, ToolCall, Usage

__all__ = ["Dialect", "RequestView", "Script", "ScriptItem", "Turn", "answer", "as_turn", "call", "say"]

Dialect = Literal["native", "react_json", "react_text", "mcp_xml", "plain"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn, independent of any dialect: a thought, then calls or an answer; or `text`, said as it stands.

    `answer` is put in a box. `usage` None: estimated at four characters a token.
    """

    thought: str = ""
    calls: Sequence[ToolCall] = ()
    answer: str | None = None
    text: str | None = None
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None


def call(tool: str, /, **arguments: Any) -> ToolCall:
    """A tool call; in a script it stands for a turn that makes it."""
    return ToolCall(tool, arguments)


def answer(value: str, thought: str = "") -> Turn:
    """A closing turn: the value in a box."""
    return Turn(thought, answer=value)


def say(text: str) -> Turn:
    """A turn that says exactly this."""
    return Turn(text=text)


@dataclass(frozen=True)
class RequestView:
    """A request as a turn in a script may look at it, from whichever protocol it came."""

    messages: Sequence[Mapping[str, Any]] = ()  # OpenAI shape
    prompt: str | None = None
    tools: Sequence[str] = ()  # the offered tools' names
    stop: Sequence[str] = ()
    key: str = ""  # the API key it came with
    body: Mapping[str, Any] = field(default_factory=dict)  # the whole request as it was sent
    size: int = 0  # of the body in bytes; 0: unknown
    number: int = 1  # which request of its conversation, rolled-back and repeated ones too
    turn: int = 1  # which turn of the script is due

    @cached_property
    def head(self) -> str:
        """Where a dialect is taught: the prompt, or the first two messages."""
        return self.prompt if self.prompt is not None else "\n".join(map(_text, self.messages[:2]))

    @cached_property
    def last(self) -> str:
        """The text of the last message, or the prompt: the newest tool result, as a rule."""
        if self.prompt is not None:
            return self.prompt
        return _text(self.messages[-1]) if self.messages else ""

    @cached_property
    def question(self) -> str:
        """The first user message, or what stands behind the prompt's last `Question:`."""
        if self.prompt is not None:
            return self.prompt.rpartition("Question:")[2].lstrip().partition("\n")[0]
        return next((_text(message) for message in self.messages if message.get("role") == "user"), "")

    @cached_property
    def text(self) -> str:
        """All texts of the request, joined."""
        return self.prompt if self.prompt is not None else "\n".join(map(_text, self.messages))

    @cached_property
    def dialect(self) -> Dialect:
        """How the request wants its calls: native ones if it offers tools, else what its head teaches."""
        if self.tools or any(message.get("tool_calls") for message in self.messages):
            return "native"
        if "<use_mcp_tool>" in self.head:
            return "mcp_xml"
        if "action_input" in self.head:
            return "react_json"
        return "react_text" if "Action Input:" in self.head else "plain"


ScriptItem = Turn | ToolCall | str | ModelReply | BaseException | Callable[[RequestView], Any]
"""One turn of a script. A str is said as it stands; a callable sees the request and returns another item."""

Script = Sequence[ScriptItem] | Callable[[RequestView], Any] | Mapping[str, Sequence[ScriptItem]]
"""Turns; or a callable that gives every turn; or a mapping from a piece of the question to the turns for it."""


def as_turn(item: Any) -> Turn:
    """A script item that needs no request as a Turn. Raises TypeError for what is none."""
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
        )
    raise TypeError(
        f"A script holds turns, calls, texts, replies, exceptions and callables, not {type(item).__name__}."
    )


def _text(message: Mapping[str, Any]) -> str:
    return Message.of(message).text
