"""Middleware: governs an agent's requests and calls, each concern in an object of its own.

The journal lies between two rings. Outside it, `begin`, `decide`, `approved` and `read` run again when a recorded run
is executed again, and must decide the same. Inside it, `send`, `call` and `record` run only when an effect really
happens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypeVar

from closeout.errors import CloseoutError
from closeout.journal.events import ModelFailed, ModelReplied, ModelRequested, ToolFinished, ToolStarted
from closeout.messages import ModelReply, ModelRequest, ToolCall, ToolSpec, Usage
from closeout.models.base import BaseClient, OnDelta
from closeout.models.catalog import Price
from closeout.models.retry import RetryNote
from closeout.records import record
from closeout.results.tool_output import ToolOutput
from closeout.run.plan import AgentPlan, Scope
from closeout.run.reply_listener import ReplyListener
from closeout.run.task import Task
from closeout.tools.executor import CallExecutor, PlannedCall
from closeout.tools.flow import CallLabels
from closeout.tools.run_context import RunContext
from closeout.tools.running import CallGuard, stopped_output

__all__ = [
    "AgentPlace",
    "Call",
    "CallLabels",
    "Calling",
    "MakeMiddleware",
    "Middleware",
    "ScopeMiddleware",
    "Send",
    "Sending",
    "found_in",
    "overrides",
    "wrap",
]


@record(kw_only=True, eq=False)
class AgentPlace:
    """Where middleware is to work.

    Attributes:
        scope: An agent's or a program's place in the run, without a chain.
        plan: The agent; None for a program, and for the requests of a tool to a model.
        task: The task of a run that begins; None for all but its main agent.
        handed_over: Whether the agent continues the conversation of the one before it.
    """

    scope: Scope
    plan: AgentPlan | None = None
    task: Task | None = None
    handed_over: bool = False

    @property
    def agent(self) -> str:
        """The path of the agent in its run: "main", or "main/r4:researcher"."""
        return self.scope.path

    def context(self) -> RunContext[Any]:
        """Return what the agent's tools may know of the run: its id, its user, its dependencies."""
        return self.scope.context()


@dataclass(slots=True, eq=False)
class Sending:
    """A request on its way to the model. Middleware may replace `request` and append to `on_retry`."""

    request: ModelRequest
    intent: ModelRequested
    client: BaseClient
    price: Price | None
    seconds_left: Callable[[bool], float | None]
    note: Callable[[str, str], None]
    on_delta: OnDelta | None = None
    on_retry: list[Callable[[RetryNote], object]] = field(default_factory=list)
    reply: ModelReply | None = None  # None if it was read from the record
    error: CloseoutError | None = None
    lost: Usage = field(default_factory=Usage)  # by attempts that failed
    tokens: int = 0  # of the prompt, estimated if tokens or cost are limited

    @property
    def listener(self) -> ReplyListener | None:
        return self.on_delta if isinstance(self.on_delta, ReplyListener) else None

    def retried(self, note: RetryNote) -> None:
        for each in self.on_retry:
            each(note)

    def failed(self, error: CloseoutError, outcome: ModelFailed) -> ModelFailed:
        """Note why the request failed, and return the outcome."""
        self.error = error
        return outcome


@dataclass(slots=True, eq=False)
class Calling:
    """A call on its way to its tool.

    Attributes:
        plan: The call as it is planned; as it was approved, once it was.
        served: The tool as its server defines it now.
        executor: Governs the call.
        started: Returns the intent of a call.
        perform: Makes a call that was decided on, or takes its recorded result.
        labels: What the call depends on, if its caller knows better than that it is all that the agent has read.
        reasons: Why a person is to be asked, beside the rule of the tool.
        cut_off: What the call ends with if a crash has cut it off; None to make it again.
        guard: Stands between the call and its tool.
        output: The output: of a call that is refused, or was made in this process. None for others.
    """

    plan: PlannedCall
    served: ToolSpec
    executor: CallExecutor
    started: Callable[[ToolCall, ToolSpec], ToolStarted]
    perform: Callable[[Calling], Awaitable[tuple[PlannedCall, ToolOutput]]]
    labels: CallLabels | None = None
    reasons: list[str] = field(default_factory=list)
    cut_off: str | None = None
    guard: CallGuard | None = None
    output: ToolOutput | None = None

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.plan.tool.name

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the call. Do not change them."""
        arguments = self.plan.call.arguments
        return arguments if isinstance(arguments, Mapping) else {}

    @property
    def handle(self) -> str:
        """The name of the call in its agent's run, such as "r3"."""
        return self.plan.handle

    def refuse(self, reason: str) -> None:
        """Do not make the call. The model is shown the reason."""
        self.output = stopped_output(self.name, reason, "Denied")

    def ask(self, reason: str) -> None:
        """Have a person decide whether the call is made."""
        self.reasons.append(reason)

    def edit(self, call: ToolCall) -> None:
        """Take the arguments that a person wrote. Ones that do not fit the tool refuse the call."""
        self.plan = self.executor.edited(self.plan, call)
        if self.plan.refusal:
            self.output = stopped_output(self.plan.tool.name, self.plan.refusal, "InvalidArguments")


Send: TypeAlias = Callable[[Sending], Awaitable[ModelReplied | ModelFailed]]
Call: TypeAlias = Callable[[Calling], Awaitable[ToolOutput]]


class Middleware:
    """One concern of one agent of a run. Override the methods that it needs; the others cost nothing.

    Subclass it and pass instances, or classes that are called with an `AgentPlace`, to `Agent(middleware=[…])`. An
    instance serves all runs; a class makes one for each agent of each run. What an agent starts has them too, unless
    `below` says otherwise.

    `begin`, `decide`, `approved` and `read` run again when a recorded run is resumed or replayed. They must follow from
    the call and from what was read, not from a clock or chance. `send`, `call` and `record` run only when a request is
    sent or a call is made; what they return is recorded.
    """

    records_itself: ClassVar[bool] = False  # whether its decisions are events of its own

    @classmethod
    def at(cls, place: AgentPlace) -> Self | None:
        """Return the middleware for an agent that has none above it. None: the agent does not need it."""
        return None

    def below(self, place: AgentPlace) -> Middleware | None:
        """Return the middleware for what the agent starts: a sub-agent, a program, a successor. None: not for it."""
        return self

    def start(self) -> None:
        """Take note that the agent begins its work. `end` follows."""

    def begin(self, turn: int) -> None:
        """Prepare for the calls of a reply."""

    async def decide(self, calling: Calling) -> None:
        """Refuse a call by setting its output, change its plan, or add a reason to ask a person."""

    def approved(self, calling: Calling) -> None:
        """Take note of a call that is about to be made."""

    async def send(self, sending: Sending, send: Send) -> ModelReplied | ModelFailed:
        """Send a request: wait before, measure after. `send` does the rest."""
        return await send(sending)

    async def call(self, calling: Calling, call: Call) -> ToolOutput:
        """Make a call, or return an output in place of its own. `call` does the rest."""
        return await call(calling)

    def record(self, calling: Calling, finished: ToolFinished, *, made: bool) -> ToolFinished:
        """Return the outcome of a call as it is recorded. `made` False: a crash cut the call off."""
        return finished

    def read(self, finished: ToolFinished, tool: ToolSpec | None) -> None:
        """Take note of a result that the agent reads. `tool` None: of a call inside a recorded one."""

    async def end(self) -> None:
        """Give back what the agent has taken."""


class ScopeMiddleware(Middleware):
    """Middleware that every agent and program has, each with its own scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    @classmethod
    def at(cls, place: AgentPlace) -> Self | None:
        return cls(place.scope)

    def below(self, place: AgentPlace) -> Self:
        return type(self)(place.scope)


MakeMiddleware: TypeAlias = Callable[[AgentPlace], Middleware | None]
"""Makes the middleware of one agent of a run: a class, or a function. None: the agent does not need it."""

Kind = TypeVar("Kind", bound=Middleware)
Wrapped = TypeVar("Wrapped", Send, Call)


def found_in(scope: Scope, kind: type[Kind]) -> Kind | None:
    """Return the middleware of a kind that an agent has, None if it has none."""
    return next((each for each in scope.chain if isinstance(each, kind)), None)


def overrides(chain: Iterable[Middleware], name: str) -> list[Callable[..., Any]]:
    """Return the methods of a name, without those that do nothing."""
    return [getattr(each, name) for each in chain if getattr(type(each), name) is not getattr(Middleware, name)]


def wrap(chain: Iterable[Middleware], name: Literal["send", "call"], inner: Wrapped) -> Wrapped:
    """Return what sends a request or makes a call through the middleware, the first outermost."""
    for each in reversed(overrides(chain, name)):
        inner = partial(each, **{name: inner})
    return inner
