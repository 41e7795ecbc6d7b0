"""Agent, the public entry point: a model, tools and settings. `run` takes a task and returns the result.

Imports wait until they are needed, so that `from closeout import Agent` costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, TypeVar

from closeout.assembly import checks
from closeout.errors import UsageError
from closeout.spelling import unknown_attribute

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from datetime import datetime
    from pathlib import Path
    from types import UnionType
    from typing import Never, TypeAlias, Unpack, _SpecialForm

    from typing_extensions import TypeVar as TypeVarWithDefault

    from closeout.answers.formatter import OutputFormatter
    from closeout.answers.reading import AnswerContract, Value
    from closeout.answers.user_checks import Check, CheckFunction
    from closeout.assembly.assembler import Assembler
    from closeout.compat.answer_generator import MakeGenerator
    from closeout.compat.tool_executor import MakeExecutor
    from closeout.config import ConfigSource
    from closeout.context.policy import ContextPolicy
    from closeout.dialects.cot import MakeParser
    from closeout.dialects.protocol import Dialect
    from closeout.file_values import File
    from closeout.fleet.announcing import Webhook
    from closeout.fleet.chores import Chores
    from closeout.fleet.legs import Leg
    from closeout.fleet.made_deps import ClientRequest
    from closeout.fleet.many import ManyRuns, MapProgress, Once, OnceRunner
    from closeout.journal.store import Row, Store
    from closeout.journal.subscribers import Listener
    from closeout.lab.upgrade import UpgradeReport
    from closeout.models.base import BaseClient
    from closeout.models.fallback import Fallback
    from closeout.parsing.forms import Form
    from closeout.results.encoding import Encoding
    from closeout.results.telemetry import TelemetryCollector
    from closeout.results.tool_output import ToolOutput
    from closeout.run.conversation import Session
    from closeout.run.event_stream import RunStream
    from closeout.run.gate import RequestGate
    from closeout.run.handoff import Handoff
    from closeout.run.middleware.chain import MakeMiddleware, Middleware
    from closeout.run.plan import AgentPlan, OnChange
    from closeout.run.result import RunResult
    from closeout.run.strategy import Strategy
    from closeout.run.waits.decisions import Decisions, PendingDecision
    from closeout.tools.approval_rules import ApprovalRule
    from closeout.tools.flow import Flow
    from closeout.tools.manager import AnyTool, ToolManager
    from closeout.tools.run_context import RunContext
    from closeout.tools.secrets import Secret
    from closeout.tools.tool import PolicyFields, Tool

    Deps = TypeVarWithDefault("Deps", contravariant=True, default=None)

    # What `answer=` takes beside contracts and classes: `int | None`, `Literal["a", "b"]`, a JSON Schema.
    TypeExpression: TypeAlias = UnionType | _SpecialForm | Mapping[str, Any]

else:  # type checkers see the one that has a default; at run time nothing heavy is imported
    Value = TypeVar("Value", covariant=True)
    Deps = TypeVar("Deps", contravariant=True)

__all__ = ["Agent", "MapKeywords", "ResumeKeywords", "RunKeywords", "RunSettings", "TaskKeywords"]


class RunSettings(TypedDict, total=False):
    """Settings of an `Agent` that can be overridden for one run."""

    max_turns: int
    max_tokens: int
    max_seconds: float
    max_cost: float
    budget: Mapping[str, str | list[str]]
    temperature: float


class TaskKeywords(RunSettings, total=False):
    """The keyword arguments of `Agent.run` that tasks of `Agent.map` may have too."""

    files: Sequence[str | Path | File]
    work_files: Sequence[File]
    history: Sequence[Mapping[str, Any]]
    task_id: str
    ground_truth: str | None
    origin: Mapping[str, Any] | None
    listeners: Sequence[Listener]
    state: Mapping[str, Any]
    user: str
    handed_to: Sequence[str]
    history_labels: Sequence[str]


class RunKeywords(TaskKeywords, total=False):
    """The keyword arguments of `Agent.run`, for `run_sync` and `stream`, which pass them on."""

    run_id: str


class ResumeKeywords(RunSettings, total=False):
    """The keyword arguments of `Agent.resume`, for `resume_sync`, which passes them on."""

    decisions: Decisions | None
    on_change: OnChange | None
    despite_changes: bool
    despite_damage: bool
    listeners: Sequence[Listener]


class MapKeywords(TaskKeywords, total=False):
    """The keyword arguments of `Agent.map`, for `run_many`, which passes them on."""

    limit: int
    key: str
    retry_failed: bool
    despite_changes: bool
    progress: bool | Callable[[MapProgress], object]


class Agent(Generic[Deps, Value]):
    """An agent: a model that calls tools until it can answer.

    Usage:

    ```python
    agent = Agent("openai:gpt-5", tools=[population], answer=int)
    result = agent.run_sync("How many people live in Bern and Geneva together?")
    print(result.value, result.usage)
    ```

    One agent can run any number of tasks, also concurrently. Use `async with agent:` to keep its MCP servers running
    between runs; otherwise they start and stop with each run.

    Args:
        model: The name of a model: `"openai:NAME"` (any OpenAI-compatible server, with `base_url`), `"anthropic:NAME"`,
            or `"local"` (a small model in this process). Or a model client. Or a list of these, or a `Fallback`: the
            next one is asked where one cannot answer. Defaults to the model in the settings (`llm.provider`,
            `llm.model_name`).
        tools: The tools that the model may call: functions, `@tool` functions, `Tool` objects, other agents
            (`agent.as_tool(…)`), LangChain tools, and names of built-in tools such as `"calculate"`. Or a
            `ToolManager`, or a manager of another system with `get_all_tool_definitions` and `execute_tool_call`.
        mcp_servers: The MCP servers whose tools the model may call: commands (`"python server.py"`), URLs, or mappings
            with `command`/`args`/`env` or `url`/`headers`. Or a mapping of names to these, such as the usual
            `mcpServers` JSON.
        dialect: How the conversation is written for the model: `"function_call"`, `"cot_chat"`, `"cot_completion"`,
            `"mcp_xml"`, `"code"` (the model writes programs), or a `Dialect`. Defaults to `"auto"`, which chooses by
            what the model and its server support.
        instructions: The system prompt. Instructions for the form of the answer are added to it. Or a function of the
            `RunContext` that writes it when a run begins, for example with today's date; a resumed run keeps the text.
        base_url: The address of the model's server.
        api_key: The key for the model's server.
        max_turns: The maximum number of turns in an attempt. A turn is a reply that is acted on.
        context_compress_limit: The maximum number of further attempts after one that failed. Each begins with what the
            earlier ones learned.
        keep_tool_result: The number of recent tool results to keep in the prompt, or -1 to keep all that fit.
        answer: The type of the answer and of `result.value`: `int`, `float`, `bool`, a `Literal` or an enum, a pydantic
            model, a dataclass, `list[int]`; or a contract such as `Number(unit="km")`. Defaults to `str`: any text.
        stream: Request streamed replies even without listeners.
        config: Settings: a `Config`, a mapping, the path of a YAML file, or a list of these, of which a later one
            overrides an earlier one. Arguments take precedence over them.
        name: The name of the agent in records and traces.
        home: The folder in which runs are recorded. Defaults to `CLOSEOUT_HOME` or the user's data folder; with a
            scripted model, to a temporary folder that is removed when the process ends, unless `CLOSEOUT_HOME` is set.
            True records a scripted model's runs like any other's. False keeps runs in memory, where they cannot be
            resumed.
        output_formatter: An `OutputFormatter`, which writes tool results and closing summaries.
        tool_executor: A subclass of `ToolExecutor`, which repairs, runs and judges tool calls; or a function that takes
            the same arguments.
        answer_generator: A subclass of `AnswerGenerator`, which asks for the final answer; or a function that takes the
            same arguments.
        telemetry: A `TelemetryCollector`. Its `record` receives the `ToolTelemetry` of every call of the agent and its
            sub-agents, in all runs.
        format_observation: A function that writes what the model is shown of a `ToolOutput`: `format_observation`,
            `CacheOptimizedOutput.format_with_stable_prefix`, or your own. Defaults to the cheapest lossless encoding.
        output_parser: A subclass of `CotAgentOutputParser`, which reads replies in the ReAct dialects; or a function
            that takes the same arguments.
        context: A `ContextPolicy`, which decides when tool results leave the prompt.
        strategy: A `Strategy`, which decides how the model is asked in each turn: `Majority(3)`,
            `CallFirst("search_documents")`, or your own. Defaults to `AskOnce()`, and to `SmallModel()` for `"local"`.
        check: A function `check(answer, run)` that returns what is wrong with an answer, or None. Or a `Check`, or a
            list of these.
        deps_type: The type of the `deps` that each run is given for the tools: a database handle, the user, a tenant.
            Tools take them as `context.deps`, with a parameter `context: RunContext[THE_TYPE]`.
        handoffs: Agents that the model may hand the conversation over to, or `Handoff` objects. The other agent
            continues it with everything that was said in view, and answers the next messages of the session.
        secrets: Each a `Secret`, whose value enters the calls that name it; the model sees the name only.
        skills: Folders of skills, each in a folder with a `SKILL.md`. The model sees their names and descriptions, and
            reads the rest with `read_skill`.
        forms: Each a `Form` in which the model writes tool calls as text, read before the built-in forms.
        encodings: Each an `Encoding` of results, for `@tool(format=…)`, and for "auto" if it is `automatic`.
        listeners: Callbacks that receive the events of every run, such as an `OpenTelemetryListener`. Those of a run
            are passed to `run`.
        webhook: A `Webhook`, which announces the ends and waits of runs to another program: see docs/recurring.md.
        version: The version of the agent, for its runs' records: `"2026-11"`.
        on_change: What a run does that an earlier version of this agent began: `"keep"` the instructions and the tools
            that it began with, `"take"` the new ones, or `"refuse"` to be resumed.
        code_mode: Add the tool `run_program`, with which the model can write Python programs that call the other tools
            as functions, in a sandbox. Needs the extra `code`.
        flow: A `Flow`: rules on the calls that the agent may make by itself once it has read untrusted text.
        approved: Rules that approve calls of tools that ask, in a person's place: see docs/approvals.md.
        middleware: What surrounds the requests and calls of the agent and of all that it starts: `Middleware` objects,
            or classes that are called with an `AgentPlace` for each agent of each run. The first is outermost.
        max_tokens: The maximum number of tokens in a reply. The setting `agent.max_tokens` limits those of a run.
        max_seconds: The maximum duration of a run in seconds.
        max_cost: The maximum cost of a run in US dollars.
        budget: Limits over all runs in the home, by key: `{"team": "100 USD/month", "user:ann": ["5 USD/day",
            "60 requests/minute or wait"]}`. A run that reaches one stops with the answer it has, or waits.
        temperature: The sampling temperature.
        unknown: Refused. The error names the argument to use for that of another framework.

    Raises:
        ConfigError: The model, the dialect, an MCP server or a setting is not valid.
        ToolDefinitionError: A tool is not valid.
        UsageError: Another argument is not valid.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, types: Any) -> Any:  # type variables have defaults from Python 3.13 on only
            return super().__class_getitem__(types if isinstance(types, tuple) else (types, Any))

        def __getattr__(self, name: str) -> Any:
            raise unknown_attribute(self, name, checks.METHODS)

    def __init__(
        self,
        model: str | BaseClient | Fallback | Sequence[str | BaseClient] | None = None,
        tools: Sequence[Callable[..., Any] | Tool[..., Any] | AnyTool | str] | ToolManager = (),
        mcp_servers: Sequence[str | Mapping[str, Any]] | Mapping[str, Any] = (),
        dialect: str | Dialect | None = None,
        instructions: str | Callable[[RunContext[Deps]], str | Awaitable[str]] | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        max_turns: int | None = None,
        context_compress_limit: int | None = None,
        keep_tool_result: int | None = None,
        answer: AnswerContract[Value] | type[Value] | TypeExpression | None = None,
        stream: bool = False,
        config: ConfigSource | Sequence[ConfigSource] | None = None,
        *,
        name: str = "agent",
        home: str | Path | bool | None = None,
        output_formatter: OutputFormatter | None = None,
        tool_executor: MakeExecutor | None = None,
        answer_generator: MakeGenerator | None = None,
        output_parser: MakeParser | None = None,
        telemetry: TelemetryCollector | None = None,
        format_observation: Callable[[ToolOutput], str] | None = None,
        context: ContextPolicy | None = None,
        strategy: Strategy | None = None,
        check: CheckFunction[Deps, Value] | Check | Sequence[CheckFunction[Deps, Value] | Check] | None = None,
        deps_type: type[Deps] | None = None,
        handoffs: Sequence[Agent[Any, Any] | Handoff] = (),
        secrets: Sequence[Secret] = (),
        skills: Sequence[str | Path] = (),
        forms: Sequence[Form] = (),
        encodings: Sequence[Encoding] = (),
        listeners: Sequence[Listener] = (),
        webhook: Webhook | None = None,
        version: str = "",
        on_change: OnChange = "keep",
        code_mode: bool = False,
        flow: Flow | Mapping[str, Any] | None = None,
        approved: Sequence[ApprovalRule | Mapping[str, Any]] = (),
        middleware: Sequence[Middleware | MakeMiddleware] = (),
        max_tokens: int | None = None,
        max_seconds: float | None = None,
        max_cost: float | None = None,
        budget: Mapping[str, str | list[str]] | None = None,
        temperature: float | None = None,
        **unknown: Never,
    ) -> None:
        given = {**locals(), **unknown}  # every field of AgentSpec is an argument, also one without a parameter here
        from closeout.assembly.assembler import Assembler
        from closeout.config import load_config
        from closeout.spec import SPEC_FIELDS, AgentSpec

        checks.refuse_unknown({each: unknown[each] for each in unknown if each not in SPEC_FIELDS}, Agent)
        arguments = {
            "dialect": dialect if isinstance(dialect, str) else None,
            "agent.main_agent.max_turns": max_turns,
            "agent.context_compress_limit": context_compress_limit,
            "agent.keep_tool_result": keep_tool_result,
            "agent.max_seconds": max_seconds,
            "agent.max_cost": max_cost,
            "agent.budget": budget,
            "llm.max_tokens": max_tokens,
            "llm.temperature": temperature,
        }
        self.config = load_config(config, values=arguments)
        self.name = (self.config.agent.name if name == "agent" else None) or name
        self._assembler = Assembler(self.config, AgentSpec.of({**given, "name": self.name}))

    def __repr__(self) -> str:
        return f"Agent(name={self.name!r})"

    def _repr_html_(self) -> str:
        from closeout.assembly.agent_picture import as_svg, picture_of

        return as_svg(picture_of(self.plan()))

    @classmethod
    def from_yaml(
        cls,
        *paths: str | Path,
        profile: str | None = None,
        overrides: Sequence[str] = (),
        **arguments: Any,
    ) -> Agent[Any, Any]:
        """Return the agent that settings files describe: its model, tools, instructions, limits, sub-agents.

        Args:
            paths: YAML files. A later one overrides an earlier one, key by key.
            profile: The profile of the files to use. Defaults to the variable CLOSEOUT_PROFILE.
            overrides: Settings such as `"agent.max_turns=20"`, which override the files.
            arguments: Further arguments of `Agent`. They take precedence; `tools`, `secrets`, `skills` and
                `listeners` are added.

        Raises:
            ConfigError: A file cannot be read, or a setting is not valid. The error names the file and the line.
            UsageError: Another argument is not valid.
        """
        from closeout.config import load_config

        if not paths:
            raise UsageError('from_yaml needs the path of a settings file: Agent.from_yaml("agent.yaml").')
        return cls(config=load_config(paths, overrides, profile=profile), **arguments)

    def with_tools(self, names: Iterable[str]) -> Agent[Deps, Value]:
        """Return this agent with only some of its tools. The two share the model, the MCP servers and the home.

        Args:
            names: The names of the tools. Tools that Closeout adds, such as `read_result`, stay.

        Raises:
            UsageError: The agent has no such tool. Tools of MCP servers are known once the agent is open.
        """
        return self._assembled(self._assembler.only(names))

    def with_dialect(self, dialect: Dialect) -> Agent[Deps, Value]:
        """Return this agent with a dialect of your own. The two share everything else."""
        return self._assembled(self._assembler.in_dialect(dialect))

    def with_deps(self, deps: Deps) -> Agent[Deps, Value]:
        """Return this agent with dependencies for all its runs. The two share everything else.

        Args:
            deps: What the tools get as `RunContext.deps`. It is never recorded.

        Raises:
            UsageError: They are not of the agent's `deps_type`.
        """
        return self._assembled(self._assembler.bound(deps))

    def with_answer(self, answer: Any) -> Agent[Deps, Any]:
        """Return this agent with another type of its answers. The two share everything else.

        Args:
            answer: As for `Agent(answer=…)`: a type, a contract or a JSON Schema.

        Raises:
            UsageError: It is something else.
        """
        return self._assembled(self._assembler.answering(answer))

    def with_model(
        self,
        model: str | BaseClient | Fallback | Sequence[str | BaseClient],
        *,
        base_url: str | None = None,
        api_key: str | None = None,
    ) -> Agent[Deps, Value]:
        """Return this agent with another model: a cheaper one for a run, or a scripted one in a test.

        The two share everything else. Other agents that it calls or hands over to keep their models.

        Args:
            model: As for `Agent`.
            base_url: The address of its server. Defaults to this agent's, for a model of the same vendor.
            api_key: The key for its server. Defaults to this agent's, for a model of the same vendor.

        Raises:
            ConfigError: The model is not valid, or cannot be asked in the agent's dialect.
        """
        return self._assembled(self._assembler.asking(model, base_url, api_key))

    def with_gate(self, gate: RequestGate | None) -> Agent[Deps, Value]:
        """Return this agent with a gate that admits its requests to models. The two share everything else.

        Args:
            gate: Delays, counts or refuses requests, also those of sub-agents. None admits every request.
        """
        return self._assembled(self._assembler.gated(gate))

    def with_approved(self, rule: ApprovalRule) -> Agent[Deps, Value]:
        """Return this agent with one more rule that approves calls. The two share everything else.

        Args:
            rule: The rule, as for `Agent(approved=[…])`.
        """
        return self._assembled(self._assembler.approving(rule))

    def _assembled(self, assembler: Assembler) -> Agent[Deps, Any]:
        from copy import copy

        agent = copy(self)
        agent._assembler = assembler
        return agent

    # ------------------------------------------------------------------------------------------------ running

    async def run(
        self,
        task: str,
        *,
        files: Sequence[str | Path | File] = (),
        work_files: Sequence[File] = (),
        history: Sequence[Mapping[str, Any]] = (),
        task_id: str = "",
        ground_truth: str | None = None,
        run_id: str = "",
        origin: Mapping[str, Any] | None = None,
        listeners: Sequence[Listener] = (),
        state: Mapping[str, Any] | None = None,
        user: str = "",
        handed_to: Sequence[str] = (),
        history_labels: Sequence[str] = (),
        deps: Deps | None = None,
        **settings: Unpack[RunSettings],
    ) -> RunResult[Value]:
        """Run the agent on a task.

        Args:
            task: The question or the instruction.
            files: Documents, tables and images: paths, or `File` objects. Their text precedes the task, within a
                budget. Scripts and tools can read them whole.
            work_files: Files that scripts and tools find beside those, such as `result.files` of an earlier run. The
                model is not shown what is in them.
            history: The messages before the task, `[{"role": "user" | "assistant", "content": …}]`.
            task_id: An id for graders. It is recorded, and never shown to the model.
            ground_truth: The right answer. It is recorded, and never shown to the model.
            run_id: The id of the new run. Defaults to a new id.
            origin: JSON-able notes for the person who resumes the run.
            listeners: Callables that receive each journal event and each piece of progress, such as a `StreamHandler`.
            state: The state that the run begins with: JSON values by name, which tools read as `RunContext.state`.
            user: The person for whom the agent runs. It is recorded, and never shown to the model: `export_data` and
                `delete_data` find the run by it.
            handed_to: The agents that the conversation in `history` was handed over to: `result.handed_to`. The last of
                them begins.
            history_labels: The labels of `history`: `result.labels` of the run that it comes from. Without them, flow
                rules take a history for untrusted.
            deps: Dependencies for the tools, of the agent's `deps_type`.
            settings: `max_turns`, `max_tokens`, `max_seconds`, `max_cost`, `budget` or `temperature` for this run. The
                keys of `budget` pay beside those of the agent.

        Returns:
            The result, also if the run failed: see `result.status`.

        Raises:
            UsageError: An argument is not valid. Nothing was run.
            JournalError: The run cannot be recorded.
        """
        given = {**locals(), **settings}
        from dataclasses import replace

        from closeout.assembly.files import prepare_task
        from closeout.fleet.many import named_origin
        from closeout.run.handoff import plan_after
        from closeout.run.lifecycle import execute_run, start_journal, with_read_result

        listeners = checks.check_listeners(listeners)
        checks.refuse_unfamiliar(settings)
        plan = plan_after(self.plan(streamed=bool(listeners)).with_deps(deps), handed_to)
        plan = plan.overridden(settings, RunKeywords.__optional_keys__ | {"deps"})
        prepared = await prepare_task(plan, task, files, history, work_files=work_files)
        prepared = replace(
            prepared,
            task_id=task_id,
            ground_truth=ground_truth,
            origin=await named_origin(task, given),
            state=checks.check_state(state),
            user=checks.check_user(user),
            handed=tuple(handed_to),
            labels=tuple(history_labels),
        )
        plan = with_read_result(plan, bool(prepared.texts))
        async with plan.manager:
            journal = await start_journal(plan, prepared, self.store(), checks.check_run_id(run_id))
            return await execute_run(plan, prepared, journal, listeners)

    def session(
        self, session_id: str = "", *, history: Sequence[Mapping[str, Any]] = (), user: str = ""
    ) -> Session[Value, Deps]:
        """Start a conversation, or continue an earlier one: `await session.run("…")`.

        Args:
            session_id: The id of the conversation. The same id continues it, also after a crash. Defaults to a new id.
            history: Messages that precede a new conversation.
            user: As for `run`, for each message.
        """
        from closeout.fleet.many import check_key
        from closeout.journal.run_names import new_run_id
        from closeout.messages import Message
        from closeout.run.conversation import Session

        return Session(
            check_key("session_id", session_id or new_run_id()),
            self.store(),
            start=self.run,
            resume=self.resume,
            submit=self.submit,
            context_length=self._history_context,
            history=map(Message.of, checks.check_history(history)),
            user=checks.check_user(user),
        )

    async def _history_context(self) -> int | None:
        return self.config.llm.max_context_length or await self._assembler.client.context_length()

    async def run_once(
        self,
        task: str,
        *,
        run_id: str,
        retry_failed: bool = True,
        despite_changes: bool = False,
        deps: Deps | None = None,
        **options: Unpack[TaskKeywords],
    ) -> RunResult[Value]:
        """Run a task unless it has ended: begin the run, resume it, or return its recorded result.

        If another process executes the run, wait until it ends.

        Args:
            task: As for `run`.
            run_id: The id of the run. The same id finds it again.
            retry_failed: Resume a run that failed, or that a spent budget left without an answer, instead of returning
                that.
            despite_changes: Accept the run although this agent differs from the one that began it.
            deps: As for `run`.
            options: As for `run`. The limits among them apply to a run that continues, too. A run that stopped at a
                limit continues if this one is higher.

        Raises:
            UsageError: An argument is not valid, or the agent keeps its runs in memory.
            ResumeRefused: The run has another task, or another agent began it.
            JournalError: The run cannot be recorded, or its record is damaged.
        """
        from closeout.fleet.many import check_key

        keywords = {"deps": deps, **options}
        runner = self._once_runner(retry_failed, despite_changes, keywords)
        return (await runner.run(checks.check_task(task), check_key("run_id", run_id), keywords)).result

    def map(
        self,
        tasks: Iterable[str | Mapping[str, Any]] | AsyncIterable[str | Mapping[str, Any]],
        *,
        limit: int = 10,
        key: str = "",
        ordered: bool = True,
        retry_failed: bool = True,
        despite_changes: bool = False,
        progress: bool | Callable[[MapProgress], object] = False,
        deps: Deps | None = None,
        **options: Unpack[TaskKeywords],
    ) -> ManyRuns[Value]:
        """Run the agent on many tasks: `async for result in agent.map(tasks, limit=20, key="sweep-1")`.

        With a key, the runs survive the process. After a crash, `kill -9` or Ctrl-C, call this method with the same
        key: it returns the recorded results of runs that ended, resumes runs that were interrupted, and begins the
        rest. A task is identified by its text, files, history and task id, so the list may grow or change its order.

        Args:
            tasks: Tasks, or mappings with `task` and arguments of `run` (`files`, `history`, `task_id`, `ground_truth`,
                …). An iterator is read as earlier runs end.
            limit: The maximum number of concurrent runs.
            key: The name under which the runs are found again. Without it, every run is new.
            ordered: Yield results in the order of the tasks. If False, yield them as they come.
            retry_failed: With a key, resume runs that failed, for example because a server was down, or that a spent
                budget left without an answer.
            despite_changes: Accept recorded runs although this agent differs from the one that began them.
            progress: Show the progress on stderr, or call a function with each `MapProgress`.
            deps: As for `run`, for every task that has none of its own.
            options: As for `run`, for every task.

        Returns:
            The results, to be iterated once. A task that cannot be started, for example because a file is missing, has
            a failed result.

        Raises:
            UsageError: An argument is not valid; while iterating, also: a task is not valid.
            ResumeRefused: While iterating: another agent began a run of this key.
            JournalError: While iterating: runs cannot be recorded.
        """
        from closeout.fleet.many import ManyRuns, check_key

        tasks = checks.check_tasks(tasks)
        limit = checks.check_limit(limit)
        options["listeners"] = checks.check_listeners(options.get("listeners", ()))
        if key:
            key = check_key("key", key)
        run = self._once_runner(retry_failed, despite_changes, options).run if key else self._run_new
        if progress is True:
            from closeout.fleet.progress_line import ProgressLine

            progress = ProgressLine()
        return ManyRuns(
            tasks,
            run,
            lambda: self.plan().manager,
            key=key,
            limit=limit,
            ordered=ordered,
            progress=progress or None,
            options={"deps": deps, **options},
            known=TaskKeywords.__optional_keys__ | {"deps"},
        )

    async def run_many(
        self, tasks: Iterable[str | Mapping[str, Any]], *, deps: Deps | None = None, **options: Unpack[MapKeywords]
    ) -> list[RunResult[Value]]:
        """Run the agent on many tasks and return all results, in the order of the tasks. The options are `map`'s."""
        return [result async for result in self.map(tasks, deps=deps, **options)]

    def run_many_sync(
        self, tasks: Iterable[str | Mapping[str, Any]], *, deps: Deps | None = None, **options: Unpack[MapKeywords]
    ) -> list[RunResult[Value]]:
        """`run_many` from code that is not async."""
        from closeout.run.lifecycle import run_here

        return run_here(self.run_many(tasks, deps=deps, **options), instead="await agent.run_many(…)")

    async def _run_new(self, task: str, run_id: str, options: Mapping[str, Any], *, wait: bool) -> Once[Value]:
        from closeout.fleet.many import Once

        return Once(await self.run(task, **options))

    def _once_runner(self, retry_failed: bool, despite_changes: bool, options: Mapping[str, Any]) -> OnceRunner[Value]:
        from closeout.fleet.many import OnceRunner

        return OnceRunner(
            plan=self.plan(streamed=bool(options.get("listeners"))),
            store=self._kept_runs(),
            begin=self.run,
            retry_failed=retry_failed,
            despite_changes=despite_changes,
        )

    async def submit(
        self,
        task: str,
        *,
        files: Sequence[str | Path | File] = (),
        work_files: Sequence[File] = (),
        history: Sequence[Mapping[str, Any]] = (),
        run_id: str = "",
        origin: Mapping[str, Any] | None = None,
        user: str = "",
        handed_to: Sequence[str] = (),
        state: Mapping[str, Any] | None = None,
        history_labels: Sequence[str] = (),
        start_at: datetime | None = None,
        priority: int = 0,
        every: str | None = None,
        timezone: str = "UTC",
        **settings: Unpack[RunSettings],
    ) -> str:
        """Record a run without starting it. A worker or `resume(run_id)` starts it, also in another process.

        The arguments are those of `run`, and some more. Dependencies are not kept: `work` makes them.

        Args:
            start_at: When the run is to begin, with a time zone. It waits until then, like a timer.
            priority: 0 to 9. Workers execute runs of a higher one first.
            every: A cron expression such as "0 7 * * 1-5": a schedule is recorded, with `run_id` as its name. Workers
                and servers begin a run at each of its times, not earlier than `start_at`. A schedule of the same name
                is replaced.
            timezone: The time zone of `every`, such as "Europe/Berlin".

        Returns:
            The run's id, or the name of the schedule.

        Raises:
            UsageError: An argument is not valid, or the agent keeps its runs in memory.
            JournalError: The run cannot be recorded.
        """
        given = {**locals(), **settings}
        from dataclasses import replace

        from closeout.assembly.files import prepare_task
        from closeout.fleet.many import named_origin
        from closeout.run.handoff import plan_after
        from closeout.run.lifecycle import submit_run, with_read_result

        if "deps" in settings:
            raise UsageError(
                "Dependencies are not recorded, so submit takes none. Workers make them: agent.work(make_deps=…), or "
                "closeout work --deps package.module:function."
            )
        store, plan = self._kept_runs(), plan_after(self.plan(), handed_to).overridden(settings)
        start_at, priority = checks.check_time("start_at", start_at), checks.check_priority(priority)
        prepared = await prepare_task(plan, task, files, history, work_files=work_files)
        prepared = replace(
            prepared,
            origin=await named_origin(task, given),
            user=checks.check_user(user),
            state=checks.check_state(state),
            handed=tuple(handed_to),
            labels=tuple(history_labels),
            start_at=None if start_at is None else start_at.timestamp(),
        )
        if every is not None:
            from closeout.fleet.chores import save_schedule

            kept = {each: given[each] for each in given if each not in ("self", "run_id", "start_at", "settings")}
            run_id = checks.check_run_id(run_id)
            return await store.off_loop(save_schedule, store, self.name, run_id, start=prepared.start_at, **kept)
        plan = with_read_result(plan, bool(prepared.texts))
        async with plan.manager:
            return await submit_run(plan, prepared, store, checks.check_run_id(run_id), priority=priority)

    def run_sync(self, task: str, *, deps: Deps | None = None, **options: Unpack[RunKeywords]) -> RunResult[Value]:
        """Run the agent from code that is not async. Inside a running event loop use `await agent.run(…)` instead."""
        from closeout.run.lifecycle import run_here

        return run_here(self.run(task, deps=deps, **options))

    def stream(self, task: str, *, deps: Deps | None = None, **options: Unpack[RunKeywords]) -> RunStream[Value]:
        """Run the agent, and iterate over its events and the pieces of its replies.

        Leaving the iteration cancels the run. The options are those of `run`.
        """
        from closeout.run.event_stream import RunStream

        keywords: dict[str, Any] = {**options}
        others = checks.check_listeners(keywords.pop("listeners", ()))
        return RunStream(lambda listener: self.run(task, listeners=(listener, *others), deps=deps, **keywords))

    async def resume(
        self,
        run_id: str,
        *,
        decisions: Decisions | None = None,
        on_change: OnChange | None = None,
        despite_changes: bool = False,
        despite_damage: bool = False,
        listeners: Sequence[Listener] = (),
        deps: Deps | None = None,
        **limits: Unpack[RunSettings],
    ) -> RunResult[Value]:
        """Continue a recorded run from where it stopped, without repeating finished requests and calls.

        Args:
            run_id: The id of the run.
            decisions: For a run that waits, a mapping from the ids in `result.waiting` to True or False (a call), a
                text (a question) or a `Decision`. If one is not valid, none is recorded.
            on_change: What the run does if this agent differs from the one that began it: see `Agent`. Defaults to the
                agent's.
            despite_changes: Resume in any case, also where the run cannot follow its record any more.
            despite_damage: Resume although parts of the record are missing or unreadable. What the run did there may be
                done again.
            listeners: As for `run`.
            deps: As for `run`: they are not recorded.
            limits: As the settings of `run`, for this run from now on: a higher `max_cost`, or more for a key of
                `budget`.

        Raises:
            RunNotFound: No run in the home has this id.
            JournalLocked: Another process is executing the run.
            JournalDamaged: The record is damaged.
            ResumeRefused: This agent differs from the one that began the run, and cannot continue it so. The message
                says in what, and what to do.
            DecisionRefused: The run does not wait for this decision, or it was made before.
            McpServerUnavailable: A required MCP server cannot be used now. The run stays as it is.
        """
        from closeout.run.cancelling import forget_requests
        from closeout.run.resuming import resume_run

        store = self._kept_runs()
        listeners = checks.check_listeners(listeners)
        plan = self.plan(streamed=bool(listeners)).with_deps(deps)
        forget_requests(store, run_id)  # a request that nobody waits for
        return await resume_run(
            plan,
            store,
            run_id,
            listeners,
            decisions=decisions,
            on_change=on_change,
            despite_changes=despite_changes,
            despite_damage=despite_damage,
            limits=limits,
        )

    async def leg(
        self,
        run_id: str,
        task: str = "",
        *,
        decisions: Decisions | None = None,
        listeners: Sequence[Listener] = (),
        deps: Deps | None = None,
        user: str = "",
        **settings: Unpack[RunSettings],
    ) -> Leg:
        """Begin or continue a run up to its end or its next wait, for an engine that schedules the runs.

        Repeat it as often as you like: a run that has ended, or that cannot continue yet, is not executed. While it
        lasts, this process holds the run; an interrupted leg is continued by the next call.

        Args:
            run_id: The run.
            task: Its task, to begin the run if it does not exist.
            decisions: As for `resume`. Those that were recorded before are left out.
            listeners: As for `run`.
            deps: As for `run`.
            user: As for `run`. A run of another user is refused if a task is given.
            settings: As for `run`, if the run begins.

        Returns:
            The end of the run, or what it waits for, until when, and under which names of signals.

        Raises:
            RunNotFound: No run in the home has this id, and no task was given.
            JournalLocked: Another process executes the run. Try again later.
            UsageError: The run exists with another task, or for another user.
            CloseoutError: What `resume` raises.
        """
        from closeout.errors import RunExists
        from closeout.fleet.legs import check_same_run, next_leg

        store, listeners = self._kept_runs(), checks.check_listeners(listeners)
        if task:
            try:
                await self.submit(task, run_id=run_id, user=user, **settings)
            except RunExists:
                await store.off_loop(check_same_run, store, run_id, task, user)
        plan = self.plan(streamed=bool(listeners)).with_deps(deps)
        return await next_leg(plan, store, run_id, listeners, decisions)

    async def decide(self, run_id: str, decisions: Decisions, *, by: str = "") -> tuple[PendingDecision, ...]:
        """Record decisions of a waiting run without continuing it: a worker, an engine or `leg` does.

        Args:
            run_id: The run.
            decisions: As for `resume`.
            by: Who decides, where a decision does not say it itself.

        Returns:
            What the run still waits for.

        Raises:
            DecisionRefused: The run does not wait for this decision, or it was made before. None is recorded.
            RunNotFound: No run in the home has this id.
            JournalLocked: The run is being executed. Decide when it waits.
        """
        from closeout.run.waits.decisions import record_decisions

        store = self._kept_runs()
        return await store.off_loop(record_decisions, store, run_id, decisions, by=by)

    async def ready_runs(self) -> list[str]:
        """Return the ids of the agent's runs that a leg would continue now, in the order of their priorities.

        These are the runs that were submitted, those whose process is gone, and the waiting ones whose time, signal,
        login or decisions have come. An engine that schedules the runs asks from time to time.

        Raises:
            JournalError: The runs cannot be read.
        """
        from closeout.fleet.due_runs import ready_runs

        store = self._kept_runs()
        return list(await store.off_loop(ready_runs, self.plan(), store))

    async def undo(self, run_id: str, call: str) -> ToolOutput:
        """Undo a call of a recorded run by the `undo` function of its tool, which gets its arguments and its result.

        The undoing is recorded as a run of its own. A call that has been undone is not undone again.

        Args:
            run_id: The id of the run.
            call: The handle of the call, such as r3, or r4:clerk/r2 for a call of the sub-agent in r4.

        Returns:
            What the function returned, as `result`. If it raised, `success` is False.

        Raises:
            RunNotFound: No run in the home has this id.
            UsageError: There is no such call, it did not succeed, or its tool has no `undo`.
            JournalError: The record cannot be read or written, or another process is undoing the call.
        """
        from closeout.lab.undoing import undo_call

        return await undo_call(self.plan(), self._kept_runs(), run_id, call)

    async def send(self, run_id: str, text: str, *, interrupt: bool = False, to: str = "", by: str = "") -> None:
        """Send a message to a running agent, in this process or another one. Its next request has the message.

        It is kept through crashes, and while the run waits for a decision, until the run continues.

        Args:
            run_id: The id of the run.
            text: The message.
            interrupt: Cancel the reply that the model is writing. A tool that is running is not cancelled.
            to: The name of a sub-agent that is at work. Defaults to the main agent.
            by: Who sends it, for the record.

        Raises:
            MessageRefused: The run has ended or is giving its final answer. The error names the next step.
            RunNotFound: No run in the home has this id.
            JournalError: The message cannot be written.
        """
        import asyncio

        from closeout.journal.inbox import mailbox_of

        store = self.store()
        if store is None:
            raise UsageError(
                "This agent keeps its runs in memory (home=False). Send to a run of its own: run = agent.stream(…); "
                "await run.send(…)."
            )
        mailbox = await asyncio.to_thread(mailbox_of, store, run_id)
        await asyncio.to_thread(mailbox.send, text, to=to, by=by, interrupt=interrupt)

    async def check_runs(
        self,
        run_ids: Iterable[str] | None = None,
        *,
        on_change: OnChange | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> UpgradeReport:
        """Find out how open runs, which earlier versions of this agent began, continue with it.

        Each record is run again in memory, with no model, no tool and no effect.

        Args:
            run_ids: The runs to check. Defaults to all that are interrupted or wait and were begun by an agent of this
                name.
            on_change: What the runs do about differences: see `Agent`. Defaults to the agent's.
            progress: Called with the number of runs that are checked, after each.

        Raises:
            RunNotFound: No run in the home has such an id.
            JournalError: The journal cannot be read.
        """
        from closeout.lab.upgrade import check_open_runs

        store = self._kept_runs()
        return await check_open_runs(self.plan(), store, run_ids, on_change=on_change, progress=progress)

    async def fork(
        self,
        run_id: str,
        *,
        at: int | str | None = None,
        set_results: Mapping[str, Any] | None = None,
        note: str = "",
        new_run_id: str = "",
        origin: Mapping[str, Any] | None = None,
        listeners: Sequence[Listener] = (),
        deps: Deps | None = None,
    ) -> RunResult[Value]:
        """Continue a recorded run from an earlier point, as a new run. Everything before that point costs nothing.

        The recorded run stays unchanged. This agent may differ from the one that made it, for example in its model.

        Args:
            run_id: The id of the recorded run.
            at: The point. 3 is before the request for turn 3, as `closeout runs` counts; "2.3" is that turn of attempt
                2; "e57" is after event 57, with the outcomes of calls that had begun; any other text is the name of a
                checkpoint. Defaults to the point after `set_results`.
            set_results: Results to use instead for calls of the last turn before that point, by handle.
            note: A hint for the model, in every later request.
            new_run_id: The id of the new run. Defaults to a new id.
            origin: JSON-able notes for the person who resumes the new run. Defaults to those of the recorded run.
            listeners: As for `run`.
            deps: As for `run`.

        Raises:
            RunNotFound: No run in the home has this id.
            UsageError: The run has no such point, or it ended there.
            JournalError: The record cannot be read or written.
        """
        from closeout.lab.fork import fork_run

        store, plan = self._kept_runs(), self.plan()
        plan.with_deps(deps)
        found = await fork_run(
            plan,
            store,
            run_id,
            at=at,
            set_results=set_results,
            note=note,
            new_id=checks.check_run_id(new_run_id),
            origin=origin,
        )
        return await self.resume(found, listeners=listeners, deps=deps)

    async def signal(self, run_id: str, name: str, payload: Any = None, *, id: str = "") -> bool:  # noqa: A002
        """Send a signal to a run, for `RunContext.wait_for`. It is kept until the run receives it, and resumes nothing.

        Any agent with the same home can send it, and so can `closeout runs signal`.

        Args:
            run_id: The id of the run.
            name: The name that the run waits for, now or later.
            payload: A JSON value for the run.
            id: Names this signal. A second one with the same id is ignored, so that a sender can repeat it safely.

        Returns:
            False if a signal with this id was sent before.

        Raises:
            SignalRefused: The name or the payload is not valid, or the run is over.
            RunNotFound: No run in the home has this id.
            JournalError: The signal cannot be written.
        """
        from closeout.journal.sent_signals import send_signal

        store = self._kept_runs()
        return await store.off_loop(send_signal, store, run_id, name, payload, id=id)

    async def resume_due(
        self,
        *,
        limit: int = 10,
        now: datetime | None = None,
        listeners: Sequence[Listener] = (),
        deps: Deps | None = None,
    ) -> list[RunResult[Value]]:
        """Resume the agent's waiting runs that can continue.

        These are runs whose timer has ended, whose signal has arrived or timed out, whose question has a default answer
        by now, or whose decisions were all recorded. Runs of other agents, and those that another process executes, are
        left alone. Recurring runs whose time has come are recorded for workers, and ends are announced.

        Args:
            limit: The maximum number of concurrent runs.
            now: The time that counts, with a time zone. Defaults to the time now; a later one is for tests.
            listeners: As for `run`.
            deps: As for `run`, for all of the runs.

        Returns:
            The results, which may be `waiting` again.

        Raises:
            UsageError: An argument is not valid, or the agent keeps its runs in memory.
            JournalError: The runs cannot be read.
        """
        from closeout.fleet.due_runs import resume_due

        store = self._kept_runs()
        listeners = checks.check_listeners(listeners)
        plan = self.plan(streamed=bool(listeners)).with_deps(deps)
        limit, now = checks.check_limit(limit), checks.check_time("now", now)
        chores, at = self.chores(), None if now is None else now.timestamp()
        await chores.begin()
        await chores.fire(at)
        results = await resume_due(plan, store, listeners, limit=limit, now=now)
        await chores.announce(at)
        return results

    async def work(
        self,
        stop: asyncio.Event | None = None,
        *,
        limit: int = 10,
        drain_seconds: float = 30.0,
        until_idle: bool = False,
        listeners: Sequence[Listener] = (),
        deps: Deps | None = None,
        make_deps: Callable[[ClientRequest], Any] | None = None,
    ) -> None:
        """Execute the agent's runs that were submitted, interrupted, or can continue, until it is stopped.

        Any number of workers, on any number of machines with the same home, share the work. Runs of agents with another
        name are left alone.

        Args:
            stop: Set it to stop. None: work until cancelled.
            limit: The maximum number of concurrent runs.
            drain_seconds: How long runs may continue after the stop. Then they are left to other workers.
            until_idle: Return when there is nothing to do.
            listeners: As for `run`.
            deps: As for `run`, for all of the runs.
            make_deps: Makes the dependencies of each run instead, from a `ClientRequest` with its `run_id` and `user`.

        Raises:
            UsageError: An argument is not valid, or the agent keeps its runs in memory.
        """
        import asyncio

        from closeout.fleet.made_deps import DepsMaker
        from closeout.fleet.working import AgentWorker

        store, listeners = self._kept_runs(), checks.check_listeners(listeners)
        plan = self.plan(streamed=bool(listeners))
        worker = AgentWorker(
            plan if make_deps is not None else plan.with_deps(deps),
            store,
            limit=checks.check_limit(limit),
            drain_seconds=drain_seconds,
            listeners=listeners,
            deps=DepsMaker(make_deps),
            chores=self.chores(),
        )
        await worker.work(stop or asyncio.Event(), until_idle=until_idle)

    async def result(self, run_id: str, *, timeout: float | None = None) -> RunResult[Value]:
        """Wait for the end of a run that was submitted, wherever it is executed, and return its result.

        A run that waits for a decision, a time or a signal has no end yet.

        Args:
            run_id: The run.
            timeout: Seconds to wait; None: as long as it takes.

        Raises:
            TimeoutError: The run has not ended in time.
            RunNotFound: No run in the home has this id.
            JournalError: The run cannot be read.
        """
        from closeout.fleet.working import awaited_result

        return await awaited_result(self.plan(), self._kept_runs(), run_id, timeout)

    async def follow(self, run_id: str, *, after: int = -1) -> AsyncIterator[Row]:
        """Iterate over the events of a run to its end, wherever it is executed: `async for row in agent.follow(…)`.

        Args:
            run_id: The run.
            after: The `seq` of the last event that is known, to continue after it.

        Yields:
            Rows with `seq`, `time` and `event`, once they are committed.

        Raises:
            RunNotFound: No run in the home has this id.
            JournalError: The run cannot be read.
        """
        from closeout.fleet.working import followed

        async for row in followed(self._kept_runs(), run_id, after + 1):
            yield row

    async def cancel(self, run_id: str, *, timeout: float | None = 10.0) -> None:
        """Cancel a run, whichever process executes it, and wait until it has ended.

        A run that nobody executes is ended at once. One that has ended stays as it is. In the process that executes it,
        `run` and `resume` return a result with the status "cancelled".

        Args:
            run_id: The run.
            timeout: Seconds to wait; None: as long as it takes.

        Raises:
            TimeoutError: The run has not ended in time: its process is stopped, or a tool does not end. The request
                stays.
            RunNotFound: No run in the home has this id.
            JournalError: The journal cannot be read or written.
        """
        from closeout.run.cancelling import cancel_run

        await cancel_run(self._kept_runs(), run_id, timeout)

    def resume_sync(
        self, run_id: str, *, deps: Deps | None = None, **options: Unpack[ResumeKeywords]
    ) -> RunResult[Value]:
        """Continue a recorded run from code that is not async. The options are those of `resume`."""
        from closeout.run.lifecycle import run_here

        return run_here(self.resume(run_id, deps=deps, **options), instead="await agent.resume(…)")

    def as_tool(
        self,
        name: str,
        description: str,
        *,
        task: Callable[..., str | Awaitable[str]] | None = None,
        background: bool = False,
        **policy: Unpack[PolicyFields],
    ) -> Tool[..., Any]:
        """Return the agent as a tool for another agent. The tool takes a task and returns a report.

        Agents that are called in one turn run concurrently. Their events are nested in the caller's journal, and their
        usage is added to the caller's.

        Args:
            name: The tool's name.
            description: When the other agent should call it.
            task: A function that writes the task. Its parameters are those of the tool, as in `@tool`; one annotated
                `RunContext` receives the run of the caller. Defaults to a tool with one parameter, the task as a text.
            background: Let a call return a handle at once, so that the caller continues. A message tells it when the
                agent has ended, and the tool `wait`, which it then has too, waits and returns the reports.
            policy: Fields of `ToolPolicy`, such as `approval="always"` or `gives_answer=True`.

        Raises:
            ToolDefinitionError: The name, the function or a field of the policy is not valid.
        """
        from closeout.run.subagents import sub_agent_tool

        checks.refuse_parameters(policy)
        return sub_agent_tool(name, description, self.plan, write_task=task, background=background, **policy)

    async def __aenter__(self) -> Self:
        await self._assembler.manager.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._assembler.manager.__aexit__(None, None, None)

    # ------------------------------------------------------------------------------------------------ parts

    def store(self) -> Store | None:
        """Return the store of this agent's runs, None if they are kept in memory.

        Raises:
            JournalError: The store cannot be opened.
        """
        return self._assembler.store()

    def chores(self, submit: Callable[..., Awaitable[str]] | None = None) -> Chores:
        """Return the chores of a process: to begin recurring runs, with `submit` or another one, and announce ends."""
        from closeout.fleet.chores import Chores

        configured = {name: each.model_dump(exclude_none=True) for name, each in self.config.schedules.items()}
        return Chores(self._kept_runs(), self.name, submit or self.submit, self.plan().spec.webhook, configured)

    def _kept_runs(self) -> Store:
        store = self.store()
        if store is None:
            raise UsageError("This agent keeps its runs in memory (home=False), so they cannot be found. Pass a home.")
        return store

    def plan(self, streamed: bool = False) -> AgentPlan:
        """Return the plan of a run: all arguments and settings resolved. It is made on first use."""
        return self._assembler.plan(streamed)
