"""The protocol of dialects, which write a conversation for a model and read its reply; `get_dialect` finds one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast, runtime_checkable

from closeout.errors import UsageError
from closeout.messages import Capabilities, Constraint, Message, ModelRequest, Step, ToolSpec
from closeout.parsing.forms import Form
from closeout.parsing.readers import Reader
from closeout.records import record
from closeout.spelling import same_name

__all__ = ["DIALECTS", "ConstrainedDialect", "Dialect", "HistoryView", "get_dialect", "serves"]

# name → module and class; imported when asked for.
DIALECTS: Mapping[str, tuple[str, str]] = {
    "function_call": ("closeout.dialects.function_call", "FunctionCall"),
    "cot_chat": ("closeout.dialects.cot", "CotChat"),
    "cot_completion": ("closeout.dialects.cot", "CotCompletion"),
    "mcp_xml": ("closeout.dialects.mcp_xml", "McpXml"),
    "code": ("closeout.dialects.code", "Code"),
}


@record
class HistoryView:
    """The model's view of a run. `context/` makes it, a dialect writes it out."""

    instructions: str  # the agent's instructions, including the answer contract's
    question: str  # the task, with the texts of files before it
    tools: tuple[ToolSpec, ...] = ()  # sorted by name
    steps: Sequence[Step] = ()  # accepted turns; evicted results are stubs already
    earlier: tuple[Message, ...] = ()  # the conversation before this run
    messages: tuple[str, ...] = ()  # what the user has sent to the running agent before its first step
    note: str = ""  # a short hint after the stable prefix, dropped once the turn succeeds
    closing: str = ""  # the closing instruction: no more tools, answer now
    images: tuple[Mapping[str, Any], ...] = ()  # OpenAI image_url parts of the question
    # The steps before which results were evicted, the last two times. The prompt stays as it is up to there when more
    # are evicted, so a cache that takes breakpoints gets one there.
    borders: tuple[int, ...] = ()
    answer: Mapping[str, Any] | None = None  # the JSON Schema of the answer, if its contract has one


@runtime_checkable
class Dialect(Protocol):
    """A way to talk to a model. Implement it to add your own, and pass an instance as `Agent(dialect=…)`.

    Text dialects can subclass `closeout.dialects.text_chat.TextChat` and use a reader of `closeout.parsing.readers`.

    A dialect that writes the user's messages to the running agent, `HistoryView.messages` and `Step.messages`, sets
    `writes_messages = True`. For any other dialect they are part of `HistoryView.note`.
    """

    @property
    def name(self) -> str:
        """A name of its own: a step keeps what was rendered for it under this name."""
        ...

    @property
    def parallel_calls(self) -> bool:
        """True if one reply may hold several calls."""
        ...

    def render(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        """Write the request for a view. The request for a longer view must extend it byte for byte."""
        ...

    def reader(self, tools: Sequence[ToolSpec]) -> Reader:
        """Make a reader for one reply."""
        ...


@runtime_checkable
class ConstrainedDialect(Dialect, Protocol):
    """A dialect that can hold a reply to its form, on servers that constrain decoding."""

    def constraint(
        self, view: HistoryView, capabilities: Capabilities, answer: Constraint | None = None
    ) -> Constraint | None:
        """Return what the next reply must match.

        Args:
            view: What the model sees; its tools are those that may be called now.
            capabilities: What the server can enforce.
            answer: What the final answer must match.

        Returns:
            None if any reply will do, or if the server cannot enforce the form.
        """
        ...


_REACT = ("cot_chat", "cot_completion")


def get_dialect(
    dialect: str | Dialect,
    prompts: Mapping[str, str] | None = None,
    *,
    markers: Mapping[str, Sequence[str]] | None = None,
    parser: Callable[..., Any] | None = None,
    forms: Sequence[Form] = (),
) -> Dialect:
    """Return a new dialect by its name, or an instance as it is.

    Args:
        dialect: One of `DIALECTS`, or an object with `name`, `parallel_calls`, `render` and `reader`.
        prompts: Templates that replace the package's, name → Jinja text; `first_prompt` is that of the dialect. An
            instance has its own.
        markers: Words that the ReAct dialects read as markers beside the English ones.
        parser: The `CotAgentOutputParser` class of the ReAct dialects.
        forms: Forms of calls as text of the user's own, for the native dialect.

    Raises:
        UsageError: The name is unknown, or the object is not a dialect.
        ConfigError: A template is not valid Jinja.
    """
    if not isinstance(dialect, str):
        if isinstance(dialect, Dialect) and not isinstance(dialect, type):
            return dialect
        raise UsageError(
            f"dialect must be a name or a Dialect instance, got {dialect!r:.80}. "
            "A Dialect has name, parallel_calls, render() and reader()."
        )
    if dialect not in DIALECTS:
        known = ", ".join(sorted(DIALECTS))
        # Only case and separators cannot change what is meant; any other likeness is not a reason to suggest.
        near = same_name(dialect, DIALECTS)
        advice = f"Did you mean '{near}'?" if near else f"Choose one of {known}, or auto."
        raise UsageError(f"No dialect is called '{dialect}'. {advice}")
    module, kind = DIALECTS[dialect]
    prompts = {dialect if name == "first_prompt" else name: text for name, text in (prompts or {}).items()}
    options: dict[str, Any] = {"markers": markers, "parser": parser} if dialect in _REACT else {}
    if dialect == "function_call":
        options = {"forms": forms}
    return cast("Dialect", getattr(import_module(module), kind)(prompts, **options))


def serves(name: str, capabilities: Capabilities) -> str:
    """Why an endpoint cannot serve a dialect of `DIALECTS`, in one sentence; the empty string if it can."""
    if name == "cot_completion" and not capabilities.completions:
        return (
            "The dialect cot_completion needs a text completion endpoint (POST /completions), which this server does "
            "not offer. Use --dialect cot_chat instead."
        )
    if name in DIALECTS and name != "cot_completion" and not capabilities.chat:
        return f"The dialect {name} needs a chat endpoint, which this server does not offer. Use cot_completion."
    return ""
