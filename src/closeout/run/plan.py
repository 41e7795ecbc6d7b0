"""The plan of an agent (AgentPlan), settled before it runs, and its place in a run (Scope)."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args, get_origin

from closeout.answers.contracts import AnswerContract
from closeout.answers.formatter import OutputFormatter
from closeout.compat.stream_handler import StreamHandler
from closeout.compat.task_log import StepLog, TaskLog
from closeout.compat.tool_executor import MakeExecutor, made_executor
from closeout.config import AgentSettings, Config, LLMSettings, SubAgentSettings, load_config
from closeout.context.policy import ContextPolicy, EvictionPolicy, best_batch
from closeout.dialects.functions import RUN_PROGRAM
from closeout.dialects.protocol import Dialect, get_dialect
from closeout.errors import ConfigError, UsageError
from closeout.homes import Home
from closeout.journal.events import DecisionRequested, InstructionsWritten, Noted
from closeout.journal.run_journal import Journal
from closeout.journal.subscribers import Subscribers
from closeout.messages import ToolSpec
from closeout.models.base import BaseClient
from closeout.models.catalog import find_price
from closeout.overrides import returned
from closeout.records import record
from closeout.results.artifacts import Artifact, MemoryArtifacts, NormalArtifacts
from closeout.results.normal import normalise
from closeout.results.telemetry import TelemetryCollector
from closeout.results.tool_output import ToolOutput
from closeout.run.earlier_calls import CallsWithEffects
from closeout.run.files_of_run import RunFiles
from closeout.run.gate import RequestGate
from closeout.run.limits import Budget, Limits
from closeout.run.strategy import Strategy
from closeout.spec import AgentSpec
from closeout.spelling import suggestion
from closeout.tools.executor import CallExecutor
from closeout.tools.flow import Flow
from closeout.tools.manager import ToolManager
from closeout.tools.run_context import RunContext
from closeout.tools.tool import ModelTool

__all__ = [
    "LIMITS",
    "MAX_DEPTH",
    "OVERRIDES",
    "AgentPlan",
    "OnChange",
    "RunParts",
    "Scope",
    "WriteInstructions",
    "check_on_change",
    "current_scope",
    "differences",
    "is_plain_class",
    "missing_servers",
]

MAX_DEPTH = 3  # sub-agents below the main agent
USUAL_CACHE_RATIO = 0.1  # price of a cached input token relative to a fresh one, where no price is known


# What a single run may set differently, and the setting that it is.
OVERRIDES = {
    "max_turns": "agent.main_agent.max_turns",
    "max_tokens": "llm.max_tokens",
    "max_cost": "agent.max_cost",
    "max_seconds": "agent.max_seconds",
    "budget": "agent.budget",
    "temperature": "llm.temperature",
}

LIMITS = ("max_turns", "max_cost", "max_seconds", "budget")  # those at which a run stops for a reason of that name

ToolProgress: TypeAlias = Callable[[str, float, float | None, str], None]
"""Receives the handle of a call, how much is done, of how much in total (None: unknown), and a message."""

WriteInstructions: TypeAlias = Callable[[RunContext[Any]], str | Awaitable[str]]
"""Writes an agent's instructions, once in a run."""


OnChange: TypeAlias = Literal["keep", "take", "refuse"]
"""The rule for a recorded run whose agent has changed: keep the instructions and tools that it began with, take the new
ones, or refuse."""


def check_on_change(value: Any) -> OnChange:
    """Return a value of `on_change`. Raises UsageError for any other."""
    if value not in get_args(OnChange):
        raise UsageError(f"on_change must be 'keep', 'take' or 'refuse', got {value!r:.40}.")
    chosen: OnChange = value
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """One agent, ready to be run by an AgentLoop.

    `dialect` is settled: a name, never "auto", or an instance. Without `spec.context`, an EvictionPolicy by the
    settings decides what leaves the context.
    """

    spec: AgentSpec
    client: BaseClient
    dialect: str | Dialect
    manager: ToolManager
    contract: AnswerContract
    limits: Limits
    instructions: str = ""
    write_instructions: WriteInstructions | None = None  # writes `instructions` when an agent begins its work
    settings: AgentSettings = field(default_factory=AgentSettings)
    llm: LLMSettings = field(default_factory=LLMSettings)
    prompts: Mapping[str, str] = field(default_factory=dict)
    markers: Mapping[Any, Sequence[str]] = field(default_factory=dict)
    may_switch_dialect: bool = False
    remember_dialect: Callable[[str], None] | None = None  # called with the dialect that a run switched to
    remember_rules: Callable[[], None] | None = None  # called after each request that the server accepted
    stream: bool = False
    record_prompts: bool = True  # the journal keeps the prompts
    output_formatter: OutputFormatter = field(default_factory=OutputFormatter)
    make_executor: MakeExecutor | None = None
    make_generator: Callable[..., Any] | None = None  # makes what closes an attempt; None: closing asks by itself
    strategy: Strategy | None = None  # None: ask once
    search_budget: int | None = None  # tokens of tool definitions above which the model searches for tools
    overrides: Mapping[str, Any] = field(default_factory=dict)  # settings of this run only
    gate: RequestGate | None = None  # admits the requests to models
    home: Callable[[], Home | None] = lambda: None  # the home of the runs, whose ledger keeps the budgets
    deps: Any = None  # what the tools get as RunContext.deps; never recorded
    predecessors: tuple[AgentPlan, ...] = ()  # the agents that handed the conversation over in earlier runs
    clock: Callable[[], float] | None = None  # the clock of timers; None: that of the journal

    @property
    def name(self) -> str:
        """The name of the agent in records and traces."""
        return self.spec.name

    @property
    def flows(self) -> tuple[Flow, ...]:
        """The flow rules of a run that begins with the agent: its own, and those of the agents before it."""
        return tuple(each.spec.flow for each in (*self.predecessors, self) if each.spec.flow is not None)

    def overridden(self, overrides: Mapping[str, Any], arguments: Collection[str] = ()) -> AgentPlan:
        """Return the plan with settings for one run, by the names in `OVERRIDES`. None leaves a setting as it is.

        Args:
            overrides: The settings.
            arguments: What may be meant by an unknown name: the other arguments of the call.

        Raises:
            UsageError: A name is unknown, or a value is not valid.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        if not given:
            return self
        if unknown := next((name for name in given if name not in OVERRIDES), None):
            names = sorted({*OVERRIDES, *arguments})
            hint = suggestion(unknown, names, f"It takes: {', '.join(names)}.")
            raise UsageError(f"A run has no argument {unknown!r}. {hint} Everything else is set on the Agent.")
        own = Config(agent=self.settings, llm=self.llm)
        values = {OVERRIDES[name]: value for name, value in given.items()}
        if isinstance(budget := given.get("budget"), Mapping):  # a run's keys pay beside the agent's
            values["agent.budget"] = {**self.settings.budget, **budget}
        config = load_config(own, values=values)
        limits = Limits.of(config.agent)
        return replace(self, settings=config.agent, llm=config.llm, limits=limits, overrides=given)

    def limited(self, limits: Mapping[str, Any]) -> AgentPlan:
        """Return the plan with other limits for its run, beside those that the run has. Raises UsageError."""
        given = {name: value for name, value in limits.items() if value is not None}
        if isinstance(budget := given.get("budget"), Mapping):
            given["budget"] = {**self.overrides.get("budget", {}), **budget}
        return self.overridden({**self.overrides, **given}) if given else self

    def with_deps(self, deps: Any) -> AgentPlan:
        """Return the plan with the dependencies of a run; for None, with those that it has.

        Raises:
            UsageError: They are missing, or not of the agent's `deps_type`.
            ConfigError: The key of the model's vendor is missing.
        """
        if self.client.missing_key:
            raise ConfigError(self.client.missing_key)
        plan = self if deps is None else replace(self, deps=deps)
        if self.spec.deps_type is None:
            return plan
        name = getattr(self.spec.deps_type, "__name__", str(self.spec.deps_type))
        if plan.deps is None:
            raise UsageError(
                f"The agent needs dependencies. Pass deps= with an object of the type {name}, use agent.with_deps(…), "
                "or have them made for each run: closeout serve or closeout work with --deps package.module:function."
            )
        if is_plain_class(self.spec.deps_type) and not isinstance(plan.deps, self.spec.deps_type):
            raise UsageError(f"deps must be of the type {name}, got one of the type {type(plan.deps).__name__}.")
        return plan

    @property
    def agent(self) -> AgentSettings:
        """The settings under the name that the AnswerGenerator reads them by."""
        return self.settings

    @property
    def call_markers(self) -> tuple[str, ...]:
        """The markers of the agent's own forms of calls."""
        return tuple(marker for form in self.spec.forms for marker in form.markers)

    def made_dialect(self, dialect: str | Dialect) -> Dialect:
        """Return a dialect by its name, with the agent's prompts, markers, parser and forms; an instance as it is."""
        return get_dialect(
            dialect, self.prompts, markers=self.markers, parser=self.spec.output_parser, forms=self.spec.forms
        )

    def context_policy(self) -> ContextPolicy:
        """Return what decides when results leave the context."""
        if self.spec.context is not None:
            return self.spec.context
        keep = self.settings.keep_tool_result
        return EvictionPolicy(
            keep=keep,
            batch=best_batch(keep, self._cache_ratio()),
            high_water=self.settings.high_water,
            low_water=min(self.settings.low_water, self.settings.high_water),
            compaction=self.settings.compaction,
        )

    def executor(self, on_progress: ToolProgress, scope: Scope) -> CallExecutor:
        """Make the executor of one agent of one run. `on_progress` receives the progress of its tools."""
        options: dict[str, Any] = {
            "result_budget": self.settings.result_budget,
            "max_parallel": self.settings.max_parallel_calls,
            "model": self.client.name.rpartition(":")[2],
            "on_progress": on_progress,
            "format_observation": self.spec.format_observation,
            "encodings": self.spec.encodings,
            "markers": self.call_markers,
        }
        rollbacks = self.settings.max_consecutive_rollbacks
        if self.make_executor is None:
            return CallExecutor(self.manager, self.output_formatter, max_consecutive_rollbacks=rollbacks, **options)
        below = {each.spec.name: getattr(each, "plan_of", None) for each in self.manager.local_tools}
        managers = {name: plan_of(False).manager for name, plan_of in below.items() if plan_of is not None}
        log, stream = scope.task_log, scope.run.stream_handler
        parts = (self.manager, managers, self.output_formatter, log, stream, rollbacks)
        return made_executor(self.make_executor, parts, options)

    def _cache_ratio(self) -> float:
        """The price of a cached input token relative to a fresh one."""
        model = self.client.name
        price = find_price(model.partition(":")[2] or model, self.llm.prices)
        if price is None or price.cache_read is None or price.input <= 0:
            return USUAL_CACHE_RATIO
        return price.cache_read / price.input

    def offered_tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the model is offered, sorted by name. The manager must be open."""
        return tuple(self.manager.specs())

    def full_instructions(self) -> str:
        """Return the agent's instructions, its skills and secrets, and how the answer is to be written."""
        parts = (
            self.instructions.strip(),
            self.spec.skills.instruction(),
            self.spec.secrets.instruction(),
            self.contract.instruction(),
        )
        return "\n\n".join(filter(None, parts))

    def check_secrets(self) -> None:
        """Check the names of the tools that may have secrets. The manager must be open.

        Raises:
            UsageError: A name matches no tool, or one that records what it is given.
        """
        if not self.spec.secrets:
            return
        records = [
            each.spec.name
            for each in self.manager.local_tools
            if isinstance(each, ModelTool) or getattr(each, "plan_of", None) or each.spec.name == RUN_PROGRAM
        ]
        self.spec.secrets.check(self.manager.specs(), refused=records, complete=not self.manager.shares_policies)

    async def with_instructions(self, scope: Scope) -> AgentPlan:
        """Return the plan with the instructions that its function writes, or wrote when the recorded run began.

        Raises:
            UsageError: The function returned something else than a text.
        """
        if self.write_instructions is None:
            return self
        journal = scope.journal
        recorded = journal.recorded(InstructionsWritten, scope.path, scope.path)
        text: Any = recorded.text if isinstance(recorded, InstructionsWritten) else ""
        if recorded is None and not journal.replay_only:
            try:
                text = await returned(self.write_instructions(scope.context()))
            except Exception as error:
                name = getattr(self.write_instructions, "__qualname__", repr(self.write_instructions))
                error.add_note(f"The function of the instructions, {name}, raised it.")
                raise
            if not isinstance(text, str):
                raise UsageError(f"The function of the instructions must return a text, it returned {text!r:.80}.")
        journal.append(InstructionsWritten(scope.path, text))
        return replace(self, instructions=text)

    def fingerprint(self, tools: tuple[ToolSpec, ...]) -> dict[str, Any]:
        """Return what must be the same for this agent to continue a record: short, readable, JSON-able."""
        written = self.write_instructions
        found = {
            "model": self.client.name,
            "dialect": self.dialect if isinstance(self.dialect, str) else self.dialect.name,
            "instructions": _digest(self.instructions) if written is None else getattr(written, "__qualname__", ""),
            "answer": _digest(self.contract.instruction()),
            "tools": {tool.name: _digest([tool.description, tool.parameters]) for tool in tools},
            "prompts": _digest(self.prompts),
        }
        if not isinstance(self.dialect, str):  # one of the user's own may have the name of a built-in one
            found["dialect_class"] = type(self.dialect).__name__
        if self.markers:
            found["markers"] = {name: list(words) for name, words in self.markers.items()}
        if self.spec.forms:
            found["forms"] = [each.family for each in self.spec.forms]
        if self.spec.encodings:
            found["encodings"] = [each.name for each in self.spec.encodings]
        if self.spec.skills:
            found["skills"] = self.spec.skills.digests
        if self.spec.flow is not None:
            found["flow"] = _digest(self.spec.flow.described())
        if self.spec.middleware:
            names = [getattr(each, "__qualname__", type(each).__qualname__) for each in self.spec.middleware]
            found["middleware"] = names
        if self.strategy is not None:
            found["strategy"] = f"{self.strategy.name} {self.strategy.version}"
        return found


def missing_servers(manager: ToolManager) -> str:
    """Return why required servers of a manager cannot be used; empty if they can, or want a login first."""
    logins = manager.missing_logins
    return "; ".join(str(each) for each in manager.problems if each.fatal and each.server_name not in logins)


def is_plain_class(value: Any) -> bool:
    """Return whether isinstance and issubclass can be asked about a type: a class, and no protocol."""
    return isinstance(value, type) and get_origin(value) is None and not getattr(value, "_is_protocol", False)


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs between two fingerprints, each as a short sentence."""
    found = []
    for key in sorted({*recorded, *now} - {"tools", "skills"}):
        was, is_now = recorded.get(key), now.get(key)
        if was != is_now:
            shown = f": {was} then, {is_now} now" if key in ("model", "dialect", "dialect_class") else " differ"
            found.append(f"{key}{shown}")
    for kind in ("tool", "skill"):
        then, today = recorded.get(f"{kind}s") or {}, now.get(f"{kind}s") or {}
        found += [f"{kind} {name}: gone" for name in sorted(set(then) - set(today))]
        found += [f"{kind} {name}: new" for name in sorted(set(today) - set(then))]
        found += [f"{kind} {name}: changed" for name in sorted(set(then) & set(today)) if then[name] != today[name]]
    return found


_ENCODER = json.JSONEncoder(sort_keys=True, default=str)


def _digest(value: Any) -> str:
    return hashlib.sha256(_ENCODER.encode(value).encode("utf-8", "backslashreplace")).hexdigest()[:16]


# ------------------------------------------------------------------------------------------------ where it acts

# The scope of the agent at work, and the handle of the call that it is making.
_current: ContextVar[tuple[Scope, str] | None] = ContextVar("closeout_scope", default=None)
enter = _current.set
leave = _current.reset


@record(eq=False)
class RunParts:
    """What all agents of a run share.

    Attributes:
        journal: The run's journal.
        files: The run's files.
        sub_agents: The settings of sub-agents by name.
        stream: Whether replies are streamed, those of sub-agents too.
        record_prompts: Whether the journal holds the requests as the models saw them.
        state: The state updates of tools, merged by key.
        handed: The agents that the conversation was handed over to, one after the other.
        home: Returns the home of the run, whose ledger keeps the budgets; None: it is kept in memory.
        stream_handler: The user's, or one that sends nothing.
        log: The user's TaskLog, if one was passed.
        clock: Returns the time, in seconds since the epoch.
        effects: The calls that must not be made twice.
        waits: What the run waits for as far as this process has come, in all its agents.
    """

    journal: Journal
    files: RunFiles
    sub_agents: Mapping[str, SubAgentSettings]
    stream: bool
    record_prompts: bool
    state: dict[str, Any]
    handed: list[str]
    home: Callable[[], Home | None]
    stream_handler: StreamHandler
    log: TaskLog | None
    clock: Callable[[], float]
    effects: CallsWithEffects = field(default_factory=CallsWithEffects)
    waits: list[DecisionRequested] = field(default_factory=list)


@record
class Scope:
    """One agent's place in a run: its path, its budget, what governs it, and the results that it may read again.

    Attributes:
        run: What all agents of the run share.
        budget: What the agent may spend.
        path: "main", or "main/r4:researcher" for the sub-agent that call r4 started.
        depth: 0 for the main agent.
        artifacts: Results that `read_result` can show, by handle.
        handle: The handle of the call that is being made.
        shared: What every agent of the run may read: its files.
        telemetry: Collects the tool calls of the run.
        prices: The prices that the agent's settings state, by model.
        deps: What the tools get as `RunContext.deps`.
        chain: The middleware of the agent's requests and calls, the outermost first.
    """

    run: RunParts
    budget: Budget
    path: str = "main"
    depth: int = 0
    artifacts: MemoryArtifacts = field(default_factory=NormalArtifacts)
    handle: str = ""
    shared: dict[str, Artifact] = field(default_factory=dict)
    telemetry: TelemetryCollector = field(default_factory=TelemetryCollector)
    prices: Mapping[str, Sequence[float]] = field(default_factory=dict)
    deps: Any = None
    chain: tuple[Any, ...] = ()

    @property
    def journal(self) -> Journal:
        """The run's journal."""
        return self.run.journal

    @property
    def files(self) -> RunFiles:
        """The run's files."""
        return self.run.files

    def context(self) -> RunContext[Any]:
        """Return what a user's function may know of the run outside of a call."""
        return RunContext(
            deps=self.deps,
            run_id=self.journal.run_id,
            user=self.journal.started.user if self.journal.started is not None else "",
            agent=self.path,
            state=copy.deepcopy(self.run.state),
            usage=self.budget.usage,
        )

    @property
    def agent_type(self) -> str:
        """The name that the methods of the message-history interface know the agent by: "main", or a sub-agent's."""
        return self.path.rpartition(":")[2]

    @property
    def task_log(self) -> TaskLog:
        """A log for the hooks of this agent. Its steps become events of the run."""
        if self.run.log is not None:
            return self.run.log

        def write(step: StepLog) -> None:
            self.journal.append(Noted(self.path, step.level, step.name, message=step.message, metadata=step.metadata))

        started = self.journal.started
        return TaskLog(task_id=self.journal.run_id, input=started.task if started is not None else "", writer=write)

    @property
    def subscribers(self) -> Subscribers:
        """The callbacks of the run."""
        return self.journal.subscribers

    def update_state(self, output: ToolOutput) -> None:
        """Merge the state update of a call that succeeded."""
        if output.success and isinstance(output.state_update, Mapping):
            self.run.state.update(normalise(output.state_update))

    def warn(self, name: str, text: str) -> None:
        """Record a warning of this agent."""
        self.journal.append(Noted(self.path, "warning", name, message=text))

    def share(self, artifacts: Iterable[tuple[str, Artifact]]) -> None:
        """Let this agent, and those that it starts, read the artifacts by their handles."""
        for handle, artifact in artifacts:
            self.artifacts.put(handle, artifact)
            self.shared[handle] = artifact


def current_scope() -> Scope | None:
    """Return the scope of the tool call that is being made in this task, None outside of runs."""
    current = _current.get()
    return None if current is None else replace(current[0], handle=current[1])
