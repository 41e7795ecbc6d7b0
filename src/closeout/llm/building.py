"""A reply put together from the pieces of a stream, whatever the protocol they came in. No parsing, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from closeout.llm.base import OnDelta
from closeout.messages import Delta, ModelReply, ToolCall, Usage

__all__ = ["MOST_COUNTED", "ReplyBuilder"]

MOST_COUNTED = 10**12  # tokens or dollars of one reply; a server that counts more is not believed


@dataclass(slots=True)
class _CallParts:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ReplyBuilder:
    """Collects pieces, shows each to `on_delta`; `enough` is True once that asked to stop."""

    __slots__ = ("_calls", "_on_delta", "_reasoning", "_text", "enough", "finish_reason", "model", "usage")

    def __init__(self, on_delta: OnDelta | None = None) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _CallParts] = {}
        self._on_delta = on_delta
        self.enough = False
        self.finish_reason = ""
        self.model = ""
        self.usage: Usage | None = None

    @property
    def started(self) -> bool:
        """Whether any piece of the reply came."""
        return bool(self._text or self._reasoning or self._calls)

    @property
    def characters(self) -> int:
        """How much was written so far: what the output tokens of a stream that broke off are estimated from."""
        arguments = sum(len(piece) for call in self._calls.values() for piece in call.arguments)
        return sum(map(len, self._text)) + sum(map(len, self._reasoning)) + arguments

    def add_text(self, piece: str) -> None:
        if piece:
            self._text.append(piece)
            self._show(Delta("text", piece))

    def add_reasoning(self, piece: str) -> None:
        if piece:
            self._reasoning.append(piece)
            self._show(Delta("reasoning", piece))

    def add_call(self, index: int, *, call_id: str = "", name: str = "", arguments: str = "") -> None:
        """A piece of the tool call at `index`. A name counts once: servers repeat it with every piece."""
        parts = self._calls.get(index)
        if parts is None:
            parts = self._calls[index] = _CallParts()
        parts.id = parts.id or call_id
        if name and not parts.name:
            parts.name = name
            self._show(Delta("tool_name", name, index))
        if arguments:
            parts.arguments.append(arguments)
            self._show(Delta("tool_arguments", arguments, index))

    @property
    def last_call(self) -> int:
        """The index of the call that was begun last; -1 if there is none."""
        return next(reversed(self._calls), -1)

    def call_id(self, index: int) -> str:
        parts = self._calls.get(index)
        return parts.id if parts else ""

    def reply(self, *, usage: Usage, reasoning_details: Any = None) -> ModelReply:
        """The reply as far as it came; finish_reason "cut" if it was stopped by `on_delta`."""
        calls = []
        for number, parts in enumerate(self._calls.values()):
            text = "".join(parts.arguments)
            calls.append(ToolCall(parts.name, text, parts.id or f"call_{number}", text=text))
        finish = "cut" if self.enough else self.finish_reason or ("tool_calls" if calls else "stop")
        return ModelReply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(calls),
            finish_reason=finish,
            usage=usage,
            model=self.model,
            reasoning_details=reasoning_details,
        )

    def _show(self, delta: Delta) -> None:
        if self._on_delta is not None and not self.enough and self._on_delta(delta):
            self.enough = True
