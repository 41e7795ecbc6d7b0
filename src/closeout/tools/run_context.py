"""The context of a run for its tools: a parameter annotated `RunContext` receives it, and the model never sees it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, Union, get_args, get_origin, overload

from closeout.errors import ToolError
from closeout.file_values import NO_FILES, FileView
from closeout.messages import Usage

if TYPE_CHECKING:  # not at run time: it would load pydantic with every tool
    from datetime import datetime

    from typing_extensions import TypeVar as TypeVarWithDefault

    from closeout.messages import ModelReply, ModelRequest
    from closeout.tools.call_records import Progress

    Deps = TypeVarWithDefault("Deps", default=Any)
else:
    Deps = TypeVar("Deps")

__all__ = [
    "Ask",
    "BudgetLeft",
    "Deps",
    "RunContext",
    "Sample",
    "ServerAnswer",
    "ServerQuestions",
    "Waits",
    "context_factory",
    "context_parameter",
    "deps_of",
    "reporting_to",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLeft:
    """The budget that an agent has left. None: no limit.

    Attributes:
        turns: Turns of the attempt after this one.
        tokens: Input and output tokens.
        cost_usd: US dollars.
        seconds: Seconds until the reserve for the closing answer begins.
    """

    turns: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    seconds: float | None = None


class Ask(Protocol):
    """Asks a person, as `RunContext.ask` does."""

    def __call__(
        self, question: str, options: Sequence[str], *, max_wait: float | None, default: str
    ) -> Awaitable[str]: ...


class Waits(Protocol):
    """Suspends the run until a time, or until a signal arrives, as the methods of `RunContext` do."""

    def until(self, when: datetime) -> Awaitable[None]: ...

    def seconds(self, seconds: float) -> Awaitable[None]: ...

    def signal(self, name: str | Sequence[str], timeout: float | None) -> Awaitable[Any]: ...

    def login(self, server: str, url: str, reason: str, scope: str) -> Awaitable[None]:
        """Wait until a person has signed in, with these rights, to the MCP server of the call, which was not made."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """The answer to a question that an MCP server asks during a call.

    Attributes:
        request: The name of the question in its agent, "r3.q1".
        digest: The SHA-256 of the tool and the question.
        question: The question, as `PendingDecision.arguments`.
        accepted: False if it was declined.
        text: The answer.
    """

    request: str
    digest: str
    question: Mapping[str, Any]
    accepted: bool
    text: str


Sample: TypeAlias = "Callable[[ModelRequest], Awaitable[ModelReply]]"
"""Asks the agent's model for an MCP server, within the agent's budget."""


class ServerQuestions(Protocol):
    """Asks what an MCP server asks during one call: see `run.waits.server_questions.CallQuestions`."""

    async def recall(self, *, by_person: bool) -> list[ServerAnswer]: ...

    async def ask(
        self, question: Mapping[str, Any], answer: Callable[[], Awaitable[tuple[bool, str] | None]]
    ) -> ServerAnswer: ...

    async def give(self, answers: Sequence[ServerAnswer]) -> None: ...

    def task(self) -> str: ...

    async def became(self, task: str) -> None: ...

    async def rested(self) -> None: ...

    async def rest(self, seconds: float) -> None: ...

    def is_to_end(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext(Generic[Deps]):
    """The run that a tool is called in. Outside of a run every field has its default.

    Attributes:
        deps: What was passed as `deps` when the run was started or resumed. It is never recorded.
        run_id: The run's id in the journal.
        user: The person for whom the run is, as passed to `run(user=…)`; empty if nobody was named.
        agent: The path of the calling agent, "main" for the main agent.
        handle: The call's name in the run, such as "r7".
        state: A copy of the run's state. A tool changes the state by returning `ToolOutput(state_update={…})`.
        usage: The tokens and cost of the calling agent so far, with its sub-agents.
        budget: What the calling agent may still spend.
        files: The files that the call sees, by name: those of the task, and those that earlier calls left. A tool adds
            files by returning them: see `File`.
        logger: Its records go into the run's log, and to the handlers of the logger "closeout.tools".
    """

    deps: Deps = field(default=None, repr=False)  # type: ignore[assignment]  # without deps, Deps is None
    run_id: str = ""
    user: str = ""
    agent: str = "main"
    handle: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    budget: BudgetLeft = field(default_factory=BudgetLeft)
    files: FileView = field(default_factory=lambda: NO_FILES, repr=False)
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("closeout.tools"), repr=False)
    report: Progress | None = field(default=None, repr=False)
    asker: Ask | None = field(default=None, repr=False)
    waits: Waits | None = field(default=None, repr=False)
    questions: Callable[[], ServerQuestions] | None = field(default=None, repr=False)
    sample: Sample | None = field(default=None, repr=False)

    async def ask(
        self, question: str, options: Sequence[str] = (), *, max_wait: float | None = None, default: str = ""
    ) -> str:
        """Ask a person, and return the answer. The run is suspended until there is one.

        When it is resumed the tool is called again from its beginning, and this call then returns. The tool must
        therefore be `read_only`, or declared `on_crash="rerun"`, and have `timeout=None`.

        Args:
            question: What to ask.
            options: Answers to choose from.
            max_wait: Seconds after which `default` is the answer. None waits for ever.
            default: The answer if nobody answers in time.

        Raises:
            ToolError: The tool is not called in a run, or may not be called again.
        """
        if self.asker is None:
            raise ToolError("Nobody can be asked outside of a run.")
        return await self.asker(question, options, max_wait=max_wait, default=default)

    async def sleep_until(self, when: datetime) -> None:
        """Wait until a time. The run is suspended and costs no process; `Agent.resume_due` or a server resumes it.

        When it is resumed the tool is called again from its beginning, and this call then returns. The tool must
        therefore be `read_only`, or declared `on_crash="rerun"`. The time of the first call is recorded and holds.

        Args:
            when: A datetime with a time zone. One in the past returns at once.

        Raises:
            ToolError: The tool is not called in a run, or may not be called again; or the time has no zone.
        """
        await self._waits().until(when)

    async def sleep(self, seconds: float) -> None:
        """Wait so many seconds, as `sleep_until` does. Use `asyncio.sleep` to wait in the process.

        Args:
            seconds: Seconds from the first call on. The time at which they end is recorded and holds.

        Raises:
            ToolError: As for `sleep_until`.
        """
        await self._waits().seconds(seconds)

    @overload
    async def wait_for(self, name: str, *, timeout: float | None = None) -> Any: ...

    @overload
    async def wait_for(self, name: Sequence[str], *, timeout: float | None = None) -> tuple[str, Any]: ...

    async def wait_for(self, name: str | Sequence[str], *, timeout: float | None = None) -> Any:
        """Wait for a signal, which another program sends with `Agent.signal` or `closeout runs signal`.

        The run is suspended as by `sleep_until`. Each signal is received once, by the first call in the run that waits
        for its name; signals of a name are received in the order in which they were sent. One that arrives before the
        call is kept for it.

        Args:
            name: The name of the signal, or a list of names: then the one that was sent first is received.
            timeout: Seconds to wait, from the first call on. None waits for ever.

        Returns:
            The payload: a JSON value. For a list of names the name of the signal that came, and its payload.

        Raises:
            SignalTimeout: No signal has arrived in time. It is a TimeoutError.
            SignalRefused: A name is not valid.
            ToolError: As for `sleep_until`.
        """
        return await self._waits().signal(name, timeout)

    def _waits(self) -> Waits:
        if self.waits is None:
            raise ToolError("A tool can wait for a time or a signal only in a run.")
        return self.waits

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report progress. It reaches the stream and the terminal, and extends the call's deadline.

        Args:
            done: How much is done.
            total: Of how much, if that is known.
            message: What is being done, for people.
        """
        if self.report is not None:
            self.report(done, total, message)

    @staticmethod
    def current() -> RunContext[Any]:
        """Return the context of the call that is being made, one with defaults outside of a run."""
        make = context_factory.get()
        return replace(RunContext() if make is None else make(), report=_progress.get())


# Makes the context of the call that is being made. It is made only for tools that take one.
context_factory: ContextVar[Callable[[], RunContext[Any]] | None] = ContextVar("closeout_run_context", default=None)
_progress: ContextVar[Progress | None] = ContextVar("closeout_progress", default=None)


@contextmanager
def reporting_to(progress: Progress | None) -> Iterator[None]:
    """Let the tool that is called inside report its progress to a callback, from any thread, until its call is over."""
    if progress is None:
        yield
        return
    loop, thread, is_over = asyncio.get_running_loop(), threading.get_ident(), False

    def call(done: float, total: float | None, message: str) -> None:
        if not is_over:
            progress(done, total, message)

    def report(done: float, total: float | None, message: str) -> None:
        if threading.get_ident() == thread:
            call(done, total, message)
        else:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(call, done, total, message)

    token = _progress.set(report)
    try:
        yield
    finally:
        is_over = True
        _progress.reset(token)


def context_parameter(signature: inspect.Signature) -> str:
    """Return the name of the parameter that is annotated `RunContext`, empty if no parameter is."""
    return next((each.name for each in signature.parameters.values() if _is_context(each.annotation)), "")


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, str):
        parts = annotation.strip("\"'").split("|")
        return any(part.partition("[")[0].strip().rpartition(".")[2] == "RunContext" for part in parts)
    if get_origin(annotation) in (Union, UnionType):
        return any(map(_is_context, get_args(annotation)))
    return annotation is RunContext or get_origin(annotation) is RunContext


def deps_of(annotation: Any) -> Any:
    """Return the `X` of an annotation `RunContext[X]`, None without it."""
    if get_origin(annotation) in (Union, UnionType):
        return next((found for each in get_args(annotation) if (found := deps_of(each)) is not None), None)
    return get_args(annotation)[0] if get_origin(annotation) is RunContext else None
