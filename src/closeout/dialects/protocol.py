"""What a dialect is: it writes the conversation for a model and reads the reply back. Nothing else knows which is used.

The dialects themselves are modules beside this one; how the loop uses them is in `orchestrator/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, Protocol, cast

from closeout.errors import UsageError
from closeout.messages import Capabilities, Delta, Message, ModelReply, ModelRequest, Reading, Step, ToolSpec
from closeout.records import record

__all__ = ["DIALECTS", "Dialect", "HistoryView", "ReadEvent", "Reader", "get_dialect", "serves"]

# name → module and class; loaded when asked for.
DIALECTS: Mapping[str, tuple[str, str]] = {
    "function_call": ("closeout.dialects.function_call", "FunctionCall"),
    "cot_chat": ("closeout.dialects.cot_chat", "CotChat"),
    "cot_completion": ("closeout.dialects.cot_completion", "CotCompletion"),
    "mcp_xml": ("closeout.dialects.mcp_xml", "McpXml"),
}


@record
class HistoryView:
    """What of the journal the model sees. Made by `context/`, written out by a dialect."""

    instructions: str  # the agent's instructions, the answer contract's among them
    question: str  # the task, texts of files put before it
    tools: tuple[ToolSpec, ...] = ()  # sorted by name
    steps: tuple[Step, ...] = ()  # accepted turns; results that were evicted are stubs already
    earlier: tuple[Message, ...] = ()  # the conversation before this run
    note: str = ""  # a short hint after the stable prefix, dropped once the turn succeeds
    closing: str = ""  # the closing instruction: no tools any more, answer now
    images: tuple[Mapping[str, Any], ...] = ()  # OpenAI image_url parts of the question
    # Before which of the steps results were evicted, the last two times: up to there the prompt will stay as it is
    # when more are evicted, so that is where a cache that has to be told is to hold.
    borders: tuple[int, ...] = ()


@record
class ReadEvent:
    """Something that a reader knows while the model still writes.

    `text` is the new piece: of a thought, of reasoning, of the answer, of a call's arguments as written; or a tool's
    name, whole. `index` says which call of the reply. "text" is plain text that may be a thought or an answer.
    """

    kind: Literal["thought", "reasoning", "text", "tool_name", "tool_arguments", "answer"]
    text: str
    index: int = 0


class Reader(Protocol):
    """Reads one reply. Feeding it is optional: `close` reads the whole reply either way, with the same result."""

    def feed(self, delta: Delta) -> list[ReadEvent]: ...

    @property
    def complete(self) -> bool:
        """Whether the reply's one action is whole: what still comes would not count and may be cancelled."""
        ...

    def close(self, reply: ModelReply) -> Reading:
        """What the reply says. A reply cut short by us ("cut") is read as if it ended there."""
        ...


class Dialect(Protocol):
    """One way to speak with a model. An instance keeps what it rendered; make one for each run."""

    @property
    def name(self) -> str: ...

    @property
    def parallel_calls(self) -> bool:
        """Whether one reply may hold several calls."""
        ...

    def render(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        """The request for a view. That of a grown view extends that of the view before, byte for byte."""
        ...

    def reader(self, tools: Sequence[ToolSpec]) -> Reader: ...


def get_dialect(name: str, prompts: Mapping[str, str] | None = None) -> Dialect:
    """A new dialect by its name. `prompts` replaces the package's templates: template name → Jinja text.

    Raises UsageError for an unknown name, and ConfigError for a template that is not valid Jinja.
    """
    if name not in DIALECTS:
        raise UsageError(f"There is no dialect '{name}'. Choose one of {', '.join(sorted(DIALECTS))}, or auto.")
    module, kind = DIALECTS[name]
    return cast("Dialect", getattr(import_module(module), kind)(prompts))


def serves(name: str, capabilities: Capabilities) -> str:
    """Why an endpoint cannot serve a dialect, in one sentence; the empty string if it can."""
    if name == "cot_completion" and not capabilities.completions:
        return (
            "The dialect cot_completion needs a text completion endpoint (POST /completions), which this server does "
            "not offer. Use --dialect cot_chat instead."
        )
    if name != "cot_completion" and not capabilities.chat:
        return f"The dialect {name} needs a chat endpoint, which this server does not offer. Use cot_completion."
    return ""
