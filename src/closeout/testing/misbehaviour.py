"""The faults of a scripted model: which ones exist, when they happen, and what they do to a turn. No I/O."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from closeout.errors import UsageError
from closeout.messages import ModelReply, ToolCall
from closeout.testing.odd_forms import ODD_FORMS
from closeout.testing.rejections import REJECTIONS
from closeout.testing.script import Dialect, RequestView, Turn, argument_text, hermes_call, write

__all__ = [
    "MISBEHAVIOURS",
    "NON_ANSWERS",
    "Misbehaviour",
    "always",
    "applies_to",
    "misbehaviours",
    "once",
    "sometimes",
    "spoil",
]

# Connection faults: the server produces them, the client in process raises them.
CONNECTION_FAULTS: Mapping[str, str] = {
    "rate_limited": "429 with Retry-After",
    "server_error": "500 with a JSON error",
    "overloaded": "529",
    "html_error": "502 with a proxy's HTML page",
    "error_in_200": "200 whose body is an error object, in a stream an error event",
    "garbage_body": "200 whose body is not JSON, in a stream a broken event",
    "empty_body": "200 with nothing in it",
    "dropped": "the connection breaks in the middle of the reply",
    "slow": "the reply is correct but late",
    "hang": "no reply ever",
}
# Faults of the reply.
REPLY_FAULTS: Mapping[str, str] = {
    "empty": "no text, no call",
    "non_answer": "a text that neither calls a tool nor answers, one of NON_ANSWERS",
    "repeated": "the end of the text repeats until the length limit",
    "truncated": "cut in the middle by the length limit",
    "missing_box": "the answer without its box",
    "malformed": "arguments that are not quite JSON",
    "wrong_dialect": "the call in another form than requested",
    "hallucinated_observation": "an observation and an answer that the model made up",
    "wrong_parameter": "a parameter's name slightly wrong",
    "misspelt_tool": "the tool's name slightly wrong",
    "wrong_types": "numbers as strings, texts as lists",
    "reasoning_only": "everything within the reasoning, no text",
    "announced": "no call, with the finish reason of calls",
    "filtered_whole": "no text, with the finish reason of a filter",
}
# Half a text, and the finish reason with which a server says, or does not say, that it is one.
UNFINISHED: Mapping[str, str] = {
    "filtered": "content_filter",
    "out_of_resources": "insufficient_system_resource",  # DeepSeek
    "unreadable_call": "function_call_filter: MALFORMED_FUNCTION_CALL",  # Gemini
    "unknown_reason": "something_new",
    "aborted": "abort",  # vLLM, SGLang
    "failed_midway": "error",  # OpenRouter
    "paused": "pause_turn",  # Anthropic
    "window_exceeded": "model_context_window_exceeded",  # Anthropic
    "no_reason": "missing",  # null; a stream ends with [DONE]
    "no_end": "missing",  # a stream ends without [DONE], too
}
NON_ANSWERS: tuple[str, ...] = (
    "I'm sorry, but I can't help with that.",
    "I don’t have access to the tools needed.",
    "Please consult a professional.",
    "Let me look that up for you.",
    "To find this, one would first look up each key and then compare the values.",
    "抱歉，我无法完成这个任务。",
    "Désolé, je ne peux pas répondre à cette question.",
    "Could you tell me more about what you need?",
    "The task is complete.",
    "Hmm.",
)
"""Texts that neither call a tool nor answer. A fault's `seed` says which of them comes first."""
MISBEHAVIOURS: tuple[str, ...] = (*CONNECTION_FAULTS, *REPLY_FAULTS, *UNFINISHED, *REJECTIONS, *ODD_FORMS)
"""Every kind of fault."""

MAY_STILL_ACT = frozenset({
    "malformed", "wrong_dialect", "hallucinated_observation", "wrong_parameter", "misspelt_tool", "wrong_types",
    *REJECTIONS,
})  # fmt: skip
"""Faults of calls, after which an agent may have run the call nevertheless; its next request shows it."""
_SHORT_NAMES = {"429": "rate_limited", "500": "server_error", "529": "overloaded"}


@dataclass(frozen=True, slots=True)
class Misbehaviour:
    """A fault and when it happens.

    Attributes:
        kind: One of MISBEHAVIOURS, or "429", "500", "529".
        at: The turn at which it happens; None: any.
        times: How often it happens in a conversation; None: no limit.
        share: The share of the possible requests that it happens to, drawn with `seed`.
        seed: The seed of the draw.
        seconds: How late "slow" is, or how long "rate_limited" asks to wait.
    """

    kind: str
    at: int | None = None
    times: int | None = 1
    _: KW_ONLY
    share: float = 1.0
    seed: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        kind = _SHORT_NAMES.get(self.kind, self.kind)
        if kind not in MISBEHAVIOURS:
            raise UsageError(f"Unknown misbehaviour '{self.kind}'. Choose one of: {', '.join(MISBEHAVIOURS)}.")
        object.__setattr__(self, "kind", kind)

    def happens(self, turn: Turn, view: RequestView, conversation: str, so_far: int) -> bool:
        """Return whether it happens to this request. The draw depends only on seed, conversation and request."""
        if self.times is not None and so_far >= self.times:
            return False
        if self.at not in (None, view.turn) or not applies_to(self.kind, turn):
            return False
        draw = random.Random(f"{self.seed}/{self.kind}/{conversation}/{view.number}")  # noqa: S311  a test's dice
        return self.share >= 1.0 or draw.random() < self.share


def once(kind: str, at: int | None = None, *, times: int = 1, seconds: float = 0.0) -> Misbehaviour:
    """Return the fault `times` times in a row, at turn `at` or at the first turn that it can happen to."""
    return Misbehaviour(kind, at, times, seconds=seconds)


def always(kind: str, at: int | None = None, *, seconds: float = 0.0) -> Misbehaviour:
    """Return the fault at every request."""
    return Misbehaviour(kind, at, None, seconds=seconds)


def sometimes(kind: str, share: float, *, seed: int = 0, seconds: float = 0.0) -> Misbehaviour:
    """Return the fault at a random share of the requests, the same ones for the same seed."""
    return Misbehaviour(kind, times=None, share=share, seed=seed, seconds=seconds)


def applies_to(kind: str, turn: Turn) -> bool:
    """Return whether the fault can happen to the turn: a wrong parameter needs a call, a missing box an answer."""
    if kind in ODD_FORMS:
        return ODD_FORMS[kind].on in ("any", "calls" if turn.calls else "text")
    if kind in MAY_STILL_ACT:
        return bool(turn.calls)
    return turn.answer is not None if kind == "missing_box" else True


def spoil(kind: str, turn: Turn, view: RequestView, *, seed: int = 0) -> ModelReply:
    """Return the reply with the fault; connection faults leave the reply unchanged."""
    if kind == "non_answer":
        text = NON_ANSWERS[(seed + view.number) % len(NON_ANSWERS)]
        return write(replace(turn, text=text, calls=(), answer=None), view)
    if kind in _ON_TURNS:
        return write(_ON_TURNS[kind](turn), view)
    reply = write(turn, view)
    if kind in UNFINISHED:
        text = reply.text or turn.thought or "I look it up for you."
        return replace(reply, text=text[: len(text) * 2 // 3], tool_calls=(), finish_reason=UNFINISHED[kind])
    if kind in REJECTIONS:
        written = "\n".join(map(hermes_call, turn.calls)) if REJECTIONS[kind].holds_call else ""
        return replace(reply, text=written, tool_calls=(), finish_reason="rejected")
    return _ON_REPLIES[kind](turn, reply, view.dialect) if kind in _ON_REPLIES else reply


# ------------------------------------------------------------------------------------------------ faults of a turn


def _each_call(change: Callable[[ToolCall], ToolCall]) -> Callable[[Turn], Turn]:
    return lambda turn: replace(turn, calls=tuple(map(change, turn.calls)))


def _almost_json(call: ToolCall) -> ToolCall:
    text = argument_text(call)
    return replace(call, arguments=text[:-1].rstrip() + ",}" if text != "{}" else "{,}")


def _renamed_parameter(call: ToolCall) -> ToolCall:
    if not isinstance(call.arguments, Mapping) or not call.arguments:
        return call
    first, *rest = call.arguments
    return replace(call, arguments={f"{first}s": call.arguments[first], **{key: call.arguments[key] for key in rest}})


def _of_other_type(value: Any) -> Any:
    if isinstance(value, list | dict):
        return argument_text(ToolCall("", {"value": value})).removeprefix('{"value":').removesuffix("}")
    return [value] if isinstance(value, str) else str(value)


def _retyped(call: ToolCall) -> ToolCall:
    if not isinstance(call.arguments, Mapping):
        return call
    return replace(call, arguments={key: _of_other_type(value) for key, value in call.arguments.items()})


_ON_TURNS: Mapping[str, Callable[[Turn], Turn]] = {
    "empty": lambda turn: replace(turn, text="", calls=(), answer=None),
    "malformed": _each_call(_almost_json),
    "wrong_parameter": _each_call(_renamed_parameter),
    "misspelt_tool": _each_call(lambda call: replace(call, name=call.name[:2] + call.name[1:])),
    "wrong_types": _each_call(_retyped),
    "wrong_dialect": lambda turn: Turn(
        text="\n".join((turn.thought, *map(hermes_call, turn.calls))).lstrip(), reasoning=turn.reasoning
    ),
}

# ------------------------------------------------------------------------------------------------ faults of a reply

_REPEATS = 120


def _repeated(turn: Turn, reply: ModelReply, dialect: Dialect) -> ModelReply:
    tail = "I will look at it once more. " * _REPEATS
    return replace(reply, text=f"{turn.thought}\n{tail}", tool_calls=(), finish_reason="length")


def _truncated(turn: Turn, reply: ModelReply, dialect: Dialect) -> ModelReply:
    def cut(text: str) -> str:
        return text[: len(text) * 2 // 3]

    if reply.tool_calls:
        *whole, last = reply.tool_calls
        last = replace(last, text=cut(last.text), arguments=cut(last.text))
        return replace(reply, tool_calls=(*whole, last), finish_reason="length")
    # In every dialect the end of a call and of a box is in the last third.
    return replace(reply, text=cut(reply.text), finish_reason="length")


def _without_box(turn: Turn, reply: ModelReply, dialect: Dialect) -> ModelReply:
    return replace(reply, text=reply.text.replace(f"\\boxed{{{turn.answer}}}", str(turn.answer)))


def _invented(turn: Turn, reply: ModelReply, dialect: Dialect) -> ModelReply:
    closing = "The answer is \\boxed{made up}."
    if dialect in {"react_json", "react_text"}:
        closing = f"Thought: Now I know.\nFinal Answer: {closing}"
    invented = f"\nObservation: made up\n{closing}"
    return replace(reply, text=reply.text + invented, tool_calls=(), finish_reason="stop")


def _reasoned(turn: Turn, reply: ModelReply, dialect: Dialect) -> ModelReply:
    thought = reply.text or "I think about it."
    return replace(reply, text="", reasoning=thought, tool_calls=(), finish_reason="stop")


def _nothing(finish_reason: str) -> Callable[[Turn, ModelReply, Dialect], ModelReply]:
    return lambda turn, reply, dialect: replace(reply, text="", tool_calls=(), finish_reason=finish_reason)


_ON_REPLIES: Mapping[str, Callable[[Turn, ModelReply, Dialect], ModelReply]] = {
    "reasoning_only": _reasoned,
    "announced": _nothing("tool_calls"),
    "filtered_whole": _nothing("content_filter"),
    "repeated": _repeated,
    "truncated": _truncated,
    "missing_box": _without_box,
    "hallucinated_observation": _invented,
}


def misbehaviours(faults: Iterable[Misbehaviour | str] | Misbehaviour | str) -> tuple[Misbehaviour, ...]:
    """Return faults as Misbehaviours; a name alone means once, at the first turn that it can happen to."""
    items = (faults,) if isinstance(faults, Misbehaviour | str) else faults or ()
    return tuple(item if isinstance(item, Misbehaviour) else once(item) for item in items)
