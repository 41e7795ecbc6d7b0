"""Agent: the public entry point. It is made of a model, tools and settings; `run` takes a task and returns the answer.

Imports wait until they are needed, so that `from closeout import Agent` costs next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, TypeVar

from closeout import checks
from closeout.errors import ConfigError, ToolDefinitionError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable, Sequence
    from pathlib import Path
    from types import UnionType
    from typing import Never, TypeAlias, Unpack, _SpecialForm

    from closeout.answers.formatter import OutputFormatter
    from closeout.answers.reading import AnswerContract, Value
    from closeout.config import Config, SubAgentSettings
    from closeout.context.policy import ContextPolicy
    from closeout.dialects.protocol import Dialect
    from closeout.journal.store import Store
    from closeout.journal.subscribers import Listener
    from closeout.models.base import BaseClient
    from closeout.run.conversation import Session
    from closeout.run.event_stream import RunStream
    from closeout.run.lifecycle import Task
    from closeout.run.many import ManyRuns, MapProgress, Once, OnceRunner
    from closeout.run.plan import AgentPlan, MakeExecutor, MakeGenerator
    from closeout.run.result import RunResult
    from closeout.run.waiting import Decisions
    from closeout.tools.manager import AnyTool, ToolManager
    from closeout.tools.tool import Tool

    # What `answer=` takes beside contracts and classes: `int | None`, `Literal["a", "b"]`, a JSON Schema.
    TypeExpression: TypeAlias = UnionType | _SpecialForm | Mapping[str, Any]

else:  # type checkers see the one that has a default; at run time nothing heavy is imported
    Value = TypeVar("Value", covariant=True)

__all__ = ["Agent", "MapKeywords", "RunKeywords", "RunSettings", "TaskKeywords"]


class RunSettings(TypedDict, total=False):
    """Settings of an `Agent` that one run may have otherwise."""

    max_turns: int
    max_tokens: int
    max_seconds: float
    max_cost: float
    temperature: float


class TaskKeywords(RunSettings, total=False):
    """The keyword arguments of `Agent.run` that tasks of `Agent.map` may have too."""

    files: Sequence[str | Path]
    history: Sequence[Mapping[str, Any]]
    task_id: str
    ground_truth: str | None
    origin: Mapping[str, Any] | None
    listeners: Sequence[Listener]


class RunKeywords(TaskKeywords, total=False):
    """The keyword arguments of `Agent.run`, for `run_sync` and `stream`, which pass them on."""

    run_id: str


class MapKeywords(TaskKeywords, total=False):
    """The keyword arguments of `Agent.map`, for `run_many`, which passes them on."""

    limit: int
    key: str
    retry_failed: bool
    despite_changes: bool
    progress: bool | Callable[[MapProgress], object]


class Agent(Generic[Value]):
    """An agent that works on tasks with tools until it has an answer.

    One agent serves any number of runs, also at the same time. `async with agent:` keeps its MCP servers running
    between runs; otherwise they live as long as a run.

    Args:
        model: `"openai:NAME"` (any OpenAI-compatible server, with `base_url`), `"anthropic:NAME"`, `"local"` (runs in
            this process), or a client. By default the one in the settings (`llm.provider`, `llm.model_name`).
        tools: Functions, `@tool` functions, `Tool`s, agents made tools with `as_tool`, LangChain tools, and names of
            built-in tools such as `"calculate"` and `"web_search"`; or a `ToolManager`.
        mcp_servers: Commands (`"python server.py"`), URLs, or mappings with `command`/`args`/`env` or `url`/`headers`;
            or a mapping of names to these, such as the usual `mcpServers` JSON.
        dialect: How the conversation is written for the model: `"function_call"`, `"cot_chat"`, `"cot_completion"`,
            `"mcp_xml"`, `"code"` (programs), `"auto"`, or an instance of your own `Dialect`.
        instructions: What the agent should know beside the task. The answer contract adds its own line.
        base_url: The address of the model's server.
        api_key: The key for the model's server.
        max_turns: How many replies may be acted on in an attempt.
        max_tokens: Tokens of one reply. The tokens of a whole run are limited by the setting `agent.max_tokens`.
        max_seconds: Seconds that a run may take.
        max_cost: US dollars that a run may cost.
        temperature: The temperature of the model.
        context_compress_limit: How many attempts may follow a failed one, each with what was learned.
        keep_tool_result: How many of the last tool results stay in view, -1 for all that fit.
        answer: The type of the answer, and of `result.value`: `str` (the default; any text), `int`, `float`, `bool`, a
            `Literal` or an enum, a pydantic model, a dataclass, `list[int]`; or a contract such as `Number(unit="km")`.
        stream: Ask for replies as streams even if no listener receives them.
        config: A `Config`, a mapping, or the path of a YAML file. Arguments passed here take precedence.
        name: The name that the agent has in records and traces.
        home: The folder that keeps runs. None means `CLOSEOUT_HOME` or the user's data folder; with a scripted model, a
            temporary folder that is removed when the process ends. True means the former in any case. False keeps
            runs in memory only, so that they cannot be resumed.
        output_formatter: An `OutputFormatter` instance; its methods write every tool result and every closing summary.
        tool_executor: A `ToolExecutor` subclass, or a function that takes the same arguments.
        answer_generator: An `AnswerGenerator` subclass, or a function that takes the same arguments.
        context: A `ContextPolicy`: when tool results leave the context.
        code_mode: Add the tool `run_program`: the model may write Python programs that call the other tools as
            functions, in a sandbox. The dialect `"code"` has it in any case. Needs the extra `code`.
        unknown: Anything else is refused, with the name to use for what other frameworks call it.

    Raises:
        ConfigError: The model, the dialect, an MCP server or a setting is wrong; the message says how to fix it.
        ToolDefinitionError: A tool cannot be used.
        UsageError: Another argument has the wrong type.
    """

    def __init__(
        self,
        model: str | BaseClient | None = None,
        tools: Sequence[Callable[..., Any] | Tool[..., Any] | AnyTool | str] | ToolManager = (),
        mcp_servers: Sequence[str | Mapping[str, Any]] | Mapping[str, Any] = (),
        dialect: str | Dialect | None = None,
        instructions: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        max_turns: int | None = None,
        context_compress_limit: int | None = None,
        keep_tool_result: int | None = None,
        answer: AnswerContract[Value] | type[Value] | TypeExpression | None = None,
        stream: bool = False,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        *,
        name: str = "agent",
        home: str | Path | bool | None = None,
        output_formatter: OutputFormatter | None = None,
        tool_executor: MakeExecutor | None = None,
        answer_generator: MakeGenerator | None = None,
        context: ContextPolicy | None = None,
        code_mode: bool = False,
        max_tokens: int | None = None,
        max_seconds: float | None = None,
        max_cost: float | None = None,
        temperature: float | None = None,
        **unknown: Never,
    ) -> None:
        from closeout.answers.typed import contract_of
        from closeout.config import load_config
        from closeout.models.connect import connect

        checks.refuse_unknown(unknown, Agent)
        self.name = name
        arguments = {
            "dialect": dialect if isinstance(dialect, str) else None,
            "agent.main_agent.max_turns": max_turns,
            "agent.context_compress_limit": context_compress_limit,
            "agent.keep_tool_result": keep_tool_result,
            "agent.max_seconds": max_seconds,
            "agent.max_cost": max_cost,
            "llm.max_tokens": max_tokens,
            "llm.temperature": temperature,
        }
        self.config = load_config(config, values={key: value for key, value in arguments.items() if value is not None})
        self._base_url = base_url
        self._dialect: str | Dialect = self.config.dialect if dialect is None or isinstance(dialect, str) else dialect
        self._instructions = checks.check_text("instructions", instructions)
        self._home = checks.check_home(home)
        self._formatter = checks.check_formatter(output_formatter)
        self._answer: AnswerContract[Value] | None = None if answer is None else contract_of(answer)
        self._make_executor = checks.check_callable("tool_executor", "ToolExecutor", tool_executor)
        self._make_generator = checks.check_callable("answer_generator", "AnswerGenerator", answer_generator)
        self._context = checks.check_context(context)
        self._stream = stream
        self._client = connect(model, base_url, api_key, self.config.llm)
        self._check_dialect()
        self._runs_programs = code_mode or getattr(self._dialect, "name", self._dialect) == "code"
        self._manager = self._make_manager(tools, mcp_servers, api_key)
        self._prefers_programs = self._dialect == "auto" and self._adopt_programs()
        self._check_sub_agents()
        self._plan: AgentPlan | None = None
        self._folder: Path | None = None  # that `home` resolved to on first use

    def with_tools(self, names: Iterable[str]) -> Agent[Value]:
        """Return this agent with only some of its tools. The two share the model, the MCP servers and the home.

        Args:
            names: The tools' names. Tools that Closeout adds itself, such as `read_result`, stay.

        Raises:
            UsageError: The agent has no such tool. The tools of MCP servers are known once the agent is open.
        """
        from copy import copy

        from closeout.run.programs import program_tool
        from closeout.run.subagents import read_result_tool

        chosen = set(names)
        if chosen:
            own = {spec.name for spec in self._manager.specs()}
            chosen |= own & {read_result_tool.name, program_tool.name}
        self.store()  # settles the home, which both keep
        agent = copy(self)
        agent._manager = self._manager.only(chosen)
        agent._plan = None
        return agent

    # ------------------------------------------------------------------------------------------------ running

    async def run(
        self,
        task: str,
        *,
        files: Sequence[str | Path] = (),
        history: Sequence[Mapping[str, Any]] = (),
        task_id: str = "",
        ground_truth: str | None = None,
        run_id: str = "",
        origin: Mapping[str, Any] | None = None,
        listeners: Sequence[Listener] = (),
        **settings: Unpack[RunSettings],
    ) -> RunResult[Value]:
        """Run the agent on a task.

        Args:
            task: What the agent should find out or do.
            files: Documents, tables, images. Their text goes before the task, within a budget.
            history: The conversation before the task, `[{"role": "user" | "assistant", "content": …}]`.
            task_id: A name for graders, kept in the log and never shown to the model.
            ground_truth: The right answer, likewise.
            run_id: A name for the run, new in its home.
            origin: JSON-able notes for the person who resumes the run.
            listeners: Callables that receive each journal event and each piece of progress, such as a `StreamHandler`.
            settings: `max_turns`, `max_tokens`, `max_seconds`, `max_cost`, `temperature` for this run, as of `Agent`.

        Returns:
            The result, however the run ended.

        Raises:
            UsageError: An argument is wrong. Nothing was run.
            JournalError: The record cannot be started.
        """
        from dataclasses import replace

        from closeout.run.lifecycle import execute_run, start_journal, with_read_result

        listeners = checks.check_listeners(listeners)
        plan = self.plan(streamed=bool(listeners)).overridden(settings)
        prepared = await self._prepare(plan, task, files, history)
        prepared = replace(prepared, task_id=task_id, ground_truth=ground_truth, origin=origin or {})
        plan = with_read_result(plan, bool(prepared.texts))
        async with plan.manager:
            journal = await start_journal(plan, prepared, self.store(), run_id)
            return await execute_run(plan, prepared, journal, listeners)

    def session(self, session_id: str = "", *, history: Sequence[Mapping[str, Any]] = ()) -> Session[Value]:
        """Begin a conversation, or continue the one of this name: `await session.run("…")`.

        Args:
            session_id: The name of the conversation; empty: a new one. It is kept in the journal, where the same name
                finds it again.
            history: Messages before the first one of a new conversation.
        """
        from closeout.journal.journal import new_run_id
        from closeout.messages import Message
        from closeout.run.conversation import Session
        from closeout.run.many import check_key

        return Session(
            check_key("session_id", session_id or new_run_id()),
            self.store(),
            start=self.run,
            resume=self.resume,
            context_length=self._history_context,
            history=map(Message.of, checks.check_history(history)),
        )

    async def _history_context(self) -> int | None:
        return self.config.llm.max_context_length or await self._client.context_length()

    async def run_once(
        self,
        task: str,
        *,
        run_id: str,
        retry_failed: bool = True,
        despite_changes: bool = False,
        **options: Unpack[TaskKeywords],
    ) -> RunResult[Value]:
        """Run a task unless it has ended: begin the run, resume it, or return its recorded result.

        If another process executes the run, wait until it ends.

        Args:
            task: As for `run`.
            run_id: The name of the run. The same name finds it again.
            retry_failed: Resume a run that failed, instead of returning its failure.
            despite_changes: Take the run although this agent differs from the one that began it.
            options: As for `run`.

        Raises:
            UsageError: An argument is wrong, or the agent keeps its runs in memory.
            ResumeRefused: The run has another task, or another agent began it.
            JournalError: The record cannot be kept, or it is damaged.
        """
        from closeout.run.many import check_key

        runner = self._once_runner(retry_failed, despite_changes, options)
        return (await runner.run(checks.check_task(task), check_key("run_id", run_id), options)).result

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
        **options: Unpack[TaskKeywords],
    ) -> ManyRuns[Value]:
        """Run the agent on many tasks: `async for result in agent.map(tasks, limit=20, key="sweep-1")`.

        With a key, the tasks are found again: call it with the same key after a crash, `kill -9` or Ctrl-C, and what
        has ended is returned from the record, what had begun is resumed, and only the rest is begun. A task is known by
        its text, files, history and task id, so the list may grow or change its order.

        Args:
            tasks: Each a task, or a mapping with `task` and arguments of `run` (`files`, `history`, `task_id`,
                `ground_truth`, …). An iterator is read as places become free.
            limit: How many runs are executed at the same time.
            key: The name under which the runs are found again. Without it every run is new.
            ordered: Yield results in the order of the tasks. False: as they come.
            retry_failed: With a key, resume runs that failed, for example for want of a server.
            despite_changes: Take recorded runs although this agent differs from the one that began them.
            progress: Show the progress on stderr, or call a function with each `MapProgress`.
            options: As for `run`, for every task.

        Returns:
            The results, to be iterated once. A task that cannot be started, such as one with a missing file, gives a
            failed result.

        Raises:
            UsageError: An argument is wrong. While iterating also: one of the tasks is none.
            ResumeRefused: While iterating: another agent began a run of this key.
            JournalError: While iterating: runs cannot be recorded.
        """
        from closeout.run.many import ManyRuns, check_key

        tasks = checks.check_tasks(tasks)
        limit = checks.check_limit(limit)
        options["listeners"] = checks.check_listeners(options.get("listeners", ()))
        if key:
            key = check_key("key", key)
        run = self._once_runner(retry_failed, despite_changes, options).run if key else self._run_new
        if progress is True:
            from closeout.run.progress_line import ProgressLine

            progress = ProgressLine()
        return ManyRuns(
            tasks,
            run,
            lambda: self.plan().manager,
            key=key,
            limit=limit,
            ordered=ordered,
            progress=progress or None,
            options=options,
            known=TaskKeywords.__optional_keys__,
        )

    async def run_many(
        self, tasks: Iterable[str | Mapping[str, Any]], **options: Unpack[MapKeywords]
    ) -> list[RunResult[Value]]:
        """Run the agent on many tasks and return all results, in the order of the tasks. The options are `map`'s."""
        return [result async for result in self.map(tasks, **options)]

    def run_many_sync(
        self, tasks: Iterable[str | Mapping[str, Any]], **options: Unpack[MapKeywords]
    ) -> list[RunResult[Value]]:
        """`run_many` from code that is not async."""
        import asyncio

        _refuse_running_loop()
        return asyncio.run(self.run_many(tasks, **options))

    async def _run_new(self, task: str, run_id: str, options: Mapping[str, Any], *, wait: bool) -> Once[Value]:
        from closeout.run.many import Once

        return Once(await self.run(task, **options))

    def _once_runner(self, retry_failed: bool, despite_changes: bool, options: Mapping[str, Any]) -> OnceRunner[Value]:
        from closeout.run.many import OnceRunner

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
        files: Sequence[str | Path] = (),
        history: Sequence[Mapping[str, Any]] = (),
        run_id: str = "",
        origin: Mapping[str, Any] | None = None,
        **settings: Unpack[RunSettings],
    ) -> str:
        """Record a run without starting it. `resume(run_id)` starts it, also in another process.

        The arguments are those of `run`.

        Returns:
            The run's id.

        Raises:
            UsageError: An argument is wrong, or the agent keeps its runs in memory.
            JournalError: The record cannot be started.
        """
        from dataclasses import replace

        from closeout.run.lifecycle import start_journal, with_read_result

        store, plan = self._kept_runs(), self.plan().overridden(settings)
        prepared = replace(await self._prepare(plan, task, files, history), origin=origin or {})
        plan = with_read_result(plan, bool(prepared.texts))
        async with plan.manager:
            journal = await start_journal(plan, prepared, store, run_id)
        await store.off_loop(journal.abandon)
        return journal.run_id

    def run_sync(self, task: str, **options: Unpack[RunKeywords]) -> RunResult[Value]:
        """Run the agent from code that is not async. Inside a running event loop use `await agent.run(…)` instead."""
        import asyncio

        _refuse_running_loop()
        return asyncio.run(self.run(task, **options))

    def stream(self, task: str, **options: Unpack[RunKeywords]) -> RunStream[Value]:
        """Run the agent and iterate over what happens: its events and the pieces of its replies.

        Leaving the iteration cancels the run. The options are those of `run`.
        """
        from closeout.run.event_stream import RunStream

        keywords: dict[str, Any] = {**options}
        others = checks.check_listeners(keywords.pop("listeners", ()))
        return RunStream(lambda listener: self.run(task, listeners=(listener, *others), **keywords))

    async def resume(
        self,
        run_id: str,
        *,
        decisions: Decisions | None = None,
        despite_changes: bool = False,
        despite_damage: bool = False,
        listeners: Sequence[Listener] = (),
    ) -> RunResult[Value]:
        """Continue a recorded run from where it stopped. What it did already is not done again.

        Args:
            run_id: The name of the run.
            decisions: For a run that waits: the id of each thing that is decided → True or False for a call, a text
                for a question, or a `Decision`. All are recorded, or none; see docs/approvals.md.
            despite_changes: Resume although this agent differs from the one that made the record.
            despite_damage: Resume although parts of the record are missing or cannot be read. What the run did there
                may be done again.
            listeners: As for `run`.

        Raises:
            RunNotFound: No run in the home has this id.
            JournalLocked: Another process is running it.
            JournalDamaged: The record is damaged.
            ResumeRefused: The agent differs; the message says in what.
            DecisionRefused: The run does not wait for a decision, or it was decided before.
        """
        from closeout.run.lifecycle import resume_run

        store = self._kept_runs()
        listeners = checks.check_listeners(listeners)
        plan = self.plan(streamed=bool(listeners))
        return await resume_run(
            plan,
            store,
            run_id,
            listeners,
            decisions=decisions,
            despite_changes=despite_changes,
            despite_damage=despite_damage,
        )

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
    ) -> RunResult[Value]:
        """Continue a recorded run from an earlier point, as a new run. What is before that point costs nothing.

        The run itself stays as it is. This agent may differ from the one that made it, for example in its model.

        Args:
            run_id: The name of the run.
            at: Where: 3 is before the model is asked for turn 3, as `closeout runs` counts ("2.3": in attempt 2); "e57"
                is after event 57 of the record, with the outcome of what had begun; another text is the name of a
                checkpoint. None: after the results that are set.
            set_results: Other results for calls of the last turn before that point, by handle.
            note: A hint for the model, shown with every request from there on.
            new_run_id: A name for the new run, new in its home.
            origin: JSON-able notes for the person who resumes it; those of the run if None.
            listeners: As for `run`.

        Raises:
            RunNotFound: No run in the home has this id.
            UsageError: The run has no such point, or is over there.
            JournalError: The record cannot be read or written.
        """
        from closeout.run.fork import fork_run

        store = self.store()
        if store is None:
            raise UsageError("This agent keeps its runs in memory (home=False), so it cannot fork them. Pass a home.")
        found = await fork_run(
            self.plan(),
            store,
            run_id,
            at=at,
            set_results=set_results,
            note=note,
            new_id=new_run_id,
            origin=origin,
        )
        return await self.resume(found, listeners=listeners)

    def resume_sync(
        self,
        run_id: str,
        *,
        decisions: Decisions | None = None,
        despite_changes: bool = False,
        despite_damage: bool = False,
        listeners: Sequence[Listener] = (),
    ) -> RunResult[Value]:
        """Continue a recorded run from code that is not async. The arguments are those of `resume`."""
        import asyncio

        _refuse_running_loop()
        return asyncio.run(
            self.resume(
                run_id,
                decisions=decisions,
                despite_changes=despite_changes,
                despite_damage=despite_damage,
                listeners=listeners,
            )
        )

    def as_tool(self, name: str, description: str) -> Tool[..., Any]:
        """Return the agent as a tool of another one. It takes a task and returns a report.

        Agents that are called together run at the same time. Their events are nested in the caller's journal, and their
        usage counts as the caller's too.

        Args:
            name: The tool's name.
            description: When the other agent should call it.
        """
        from closeout.run.subagents import sub_agent_tool

        return sub_agent_tool(name, description, self.plan)

    async def __aenter__(self) -> Self:
        await self._manager.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._manager.__aexit__(None, None, None)

    # ------------------------------------------------------------------------------------------------ parts

    def store(self) -> Store | None:
        """Return the store of this agent's runs, None if they are kept in memory.

        Raises:
            JournalError: The store cannot be opened.
        """
        from closeout.journal.store import open_store

        folder = self._home_folder()
        return None if folder is None else open_store(folder)

    def _kept_runs(self) -> Store:
        store = self.store()
        if store is None:
            raise UsageError("This agent keeps its runs in memory (home=False), so it cannot resume them. Pass a home.")
        return store

    def _home_folder(self) -> Path | None:
        if self._home is False:
            return None
        if self._home is None and getattr(self._client, "scripted", False) and not os.environ.get("CLOSEOUT_HOME"):
            from closeout.journal.scratch import scratch_home

            return scratch_home()
        if self._home in (None, True):
            from closeout.config import home_folder

            return home_folder()
        if self._folder is None:
            from pathlib import Path

            self._folder = Path(str(self._home)).absolute()
        return self._folder

    def plan(self, streamed: bool = False) -> AgentPlan:
        """Return what the agent is, with everything settled. Made on first use."""
        from dataclasses import replace

        if self._plan is None:
            self._plan = self._make_plan()
        if streamed and not self._plan.stream:
            return replace(self._plan, stream=True)
        return self._plan

    def _make_plan(self) -> AgentPlan:
        from copy import copy

        from closeout.answers.contracts import Text
        from closeout.answers.formatter import OutputFormatter
        from closeout.answers.generator import AnswerGenerator
        from closeout.run.limits import Limits
        from closeout.run.plan import AgentPlan
        from closeout.tools.executor import ToolExecutor

        config, settings = self.config, self.config.agent
        contract = self._answer or getattr(self._formatter, "contract", None) or Text()
        formatter = OutputFormatter() if self._formatter is None else copy(self._formatter)
        formatter.contract = contract
        endpoint = self._endpoint()
        return AgentPlan(
            name=self.name,
            client=self._client,
            dialect=self._settled_dialect(endpoint),
            manager=self._manager,
            contract=contract,
            limits=Limits.of(settings),
            instructions=self._instructions,
            settings=settings,
            llm=config.llm,
            prompts=config.prompts,
            may_switch_dialect=self._dialect == "auto",
            remember_dialect=lambda name: self._remember(endpoint, name),
            stream=self._stream,
            record_prompts=config.journal.prompts,
            output_formatter=formatter,
            make_executor=self._make_executor or ToolExecutor,
            make_generator=self._make_generator or AnswerGenerator,
            context=self._context,
            search_budget=self._search_budget(),
        )

    def _search_budget(self) -> int | None:
        """Return how many tokens of tool definitions the model is sent; beyond that it searches for tools."""
        tools = self.config.tools
        # A program calls tools as functions, whose signatures it needs.
        writes_programs = self._prefers_programs or getattr(self._dialect, "name", self._dialect) == "code"
        if tools.search == "off" or writes_programs:
            return None
        return 0 if tools.search == "on" else tools.search_budget

    def _make_manager(self, tools: Any, mcp_servers: Any, api_key: str | None) -> ToolManager:
        from closeout.run.subagents import as_tool, read_result_tool
        from closeout.tools.manager import ToolManager
        from closeout.tools.mcp_config import read_servers

        if not isinstance(mcp_servers, Mapping):
            mcp_servers = checks.check_list("mcp_servers", mcp_servers, '["python server.py"]')
        servers = (*read_servers(self.config.tools.mcp_servers), *read_servers(mcp_servers))
        programs = self._program_tools()
        if isinstance(tools, ToolManager):
            if servers:
                raise UsageError("With tools=ToolManager(…), pass its servers as ToolManager(mcp_servers=…).")
            for each in self._configured_sub_agents(tools.local_tools, api_key):
                tools.add(each)
            names = {spec.name for spec in tools.specs()}
            for each in (read_result_tool, *programs):
                if each.spec.name not in names:
                    tools.add(each)
            for each in tools.local_tools:
                if (with_model := self._with_model(each, api_key)) is not each:
                    tools.replace(with_model)
            return tools
        named = checks.check_list("tools", tools, "[look_up]")
        own = [as_tool(self._with_settings(each)) for each in named]
        own += self._configured_sub_agents(own, api_key)
        own += programs
        own = [self._with_model(each, api_key) for each in own]
        return ToolManager(
            (*own, read_result_tool) if own or servers else (),
            servers,
            blacklist=tuple(self.config.tools.blacklist),
            approval=self.config.tools.approval,
        )

    def _program_tools(self) -> list[AnyTool]:
        """Return the tool that runs programs, if the agent writes them."""
        if not self._runs_programs:
            return []
        from closeout.run.programs import program_tool, require_sandbox

        require_sandbox()
        return [program_tool]

    def _adopt_programs(self) -> bool:
        """Add the tool that runs programs, if the client prefers them and they are of use. Returns whether they are.

        A weak model learns programs from worked examples, which are about looking things up and computing.
        """
        capabilities = self._client.capabilities
        if capabilities.preferred_dialect != "code":
            return False
        import logging

        from closeout.dialects.prompts import program_slots
        from closeout.run.programs import program_tool, sandbox_installed

        specs = [each.spec for each in self._manager.local_tools]
        if capabilities.weak and not program_slots(specs):
            return False
        if not sandbox_installed():
            text = "%s gives more right answers when it can write programs: pip install 'closeout[code]'."
            logging.getLogger(__name__).warning(text, self._client.name)
            return False
        self._runs_programs = True
        if all(spec.name != program_tool.spec.name for spec in specs):
            self._manager.add(program_tool)
        return True

    def _fits_examples(self) -> bool:
        """Whether the worked examples for small models are about tools such as this agent's."""
        from closeout.dialects.prompts import examples_slots

        return bool(examples_slots([each.spec for each in self._manager.local_tools]))

    def _with_model(self, tool: AnyTool, api_key: str | None) -> AnyTool:
        """Supply a tool that asks a model, and has none, with the one that the settings name or the agent's own."""
        from closeout.models.connect import connect
        from closeout.run.subagents import PageModel
        from closeout.tools.tool import ModelTool

        if not isinstance(tool, ModelTool) or tool.ask is not None:
            return tool
        name, client = self.config.tools.web.extract_model, self._client
        if name and name != client.name:
            llm, base_url = self.config.llm, self._base_url
            if name.partition(":")[0] != client.name.partition(":")[0]:
                llm = llm.model_copy(update={"base_url": None, "api_key": None})  # those of another vendor
                base_url = api_key = None
            client = connect(name, base_url, api_key, llm)
        return tool.with_model(PageModel(client))

    def _configured_sub_agents(self, own: Sequence[AnyTool], api_key: str | None) -> list[AnyTool]:
        """Make the sub-agents that the settings define."""
        settings = self.config.agent.sub_agents
        if not settings:
            return []
        from closeout.run.subagents import BUILT_IN, configured_sub_agents

        def built_in(name: str) -> Any:
            return self._built_in(name) if name in BUILT_IN else None

        def make(name: str, entry: SubAgentSettings, tools: list[AnyTool]) -> Tool[..., Any]:
            return self._sub_agent(name, entry, tools, api_key).as_tool(name, entry.description)

        return configured_sub_agents(settings, own, built_in, make)

    def _with_settings(self, tool: Any) -> Any:
        """Return a built-in tool, or its name, as the tool with the settings of this agent; any other as it is."""
        if isinstance(tool, str):
            return self._built_in(tool)
        from closeout.run.subagents import WEB
        from closeout.tools import builtin

        name = getattr(tool, "name", "")
        return self._built_in(name) if name in WEB and tool is getattr(builtin, name) else tool

    def _built_in(self, name: str) -> Any:
        """Return a built-in tool by its name, with the settings of this agent.

        Raises:
            ToolDefinitionError: No tool has this name.
        """
        from closeout.run.subagents import BUILT_IN, WEB
        from closeout.tools import builtin

        if name not in BUILT_IN:
            raise ToolDefinitionError(
                f"No built-in tool is named {name!r}. There are: {', '.join(BUILT_IN)}. Pass your own as functions."
            )
        settings = self.config.tools
        if name == "fetch_url" and settings.allow_private_addresses:
            return builtin.web_tool(allow_private=True)
        if name == "run_python":
            return builtin.python_tool(isolation=settings.python.isolation)
        if name == "ask_user":
            return builtin.ask_tool(max_wait=settings.ask.max_wait, default=settings.ask.default)
        if name in WEB:
            return next(each for each in builtin.web_tools(self.config.tools) if each.name == name)
        return getattr(builtin, name)

    def _sub_agent(self, name: str, entry: SubAgentSettings, tools: list[Any], api_key: str | None) -> Agent[Any]:
        """Make an agent of a section `agent.sub_agents.NAME`. What the section leaves open is as here."""
        config = self.config
        agent = config.agent.model_copy(update={"sub_agents": {}})
        llm, base_url = config.llm, entry.base_url or self._base_url
        if entry.model and entry.model.partition(":")[0] != self._client.name.partition(":")[0]:
            llm = llm.model_copy(update={"base_url": None, "api_key": None})  # those of another vendor
            base_url, api_key = entry.base_url, None
        tool_settings = config.tools.model_copy(update={"mcp_servers": []})
        return Agent(
            model=entry.model or self._client,
            tools=tools,
            mcp_servers=entry.mcp_servers,
            dialect=entry.dialect or self._dialect,
            instructions=entry.instructions,
            base_url=base_url,
            api_key=api_key,
            max_turns=entry.max_turns,
            stream=self._stream,
            config=config.model_copy(update={"agent": agent, "llm": llm, "tools": tool_settings}),
            name=name,
            home=self._home,
        )

    def _check_sub_agents(self) -> None:
        """Raise ConfigError for settings of a sub-agent that this agent does not have."""
        configured = self.config.agent.sub_agents
        if not configured:
            return
        from closeout.run.subagents import sub_agent_names

        checks.check_sub_agents(configured, sub_agent_names(self._manager))

    # ------------------------------------------------------------------------------------------------ the dialect

    def _check_dialect(self) -> None:
        """Refuse an unknown name, what is not a dialect, an invalid template, and an endpoint that cannot serve it."""
        from closeout.dialects.protocol import get_dialect, serves

        dialect, capabilities = self._dialect, self._client.capabilities
        get_dialect("function_call" if dialect == "auto" else dialect, self.config.prompts)
        problem = serves(dialect, capabilities) if isinstance(dialect, str) and dialect != "auto" else ""
        if problem and capabilities.known:
            raise ConfigError(problem)

    def _endpoint(self) -> str:
        """The name under which the dialect of an endpoint is remembered."""
        return f"dialect {self._client.name} {self._base_url or self.config.llm.base_url or ''}"

    def _settled_dialect(self, endpoint: str) -> str | Dialect:
        """Return the dialect; for "auto" what was learned of the endpoint, else what its client declares.

        An endpoint of which nothing is known is asked in native calls; its first reply is the probe. If it refuses
        tools, or its model keeps writing calls as text, the run switches, and the endpoint is remembered.
        """
        if self._dialect != "auto":
            return self._dialect
        capabilities = self._client.capabilities
        preferred = capabilities.preferred_dialect
        if preferred == "code" and not self._prefers_programs:
            # Native calls of a small model are worse than text only if the text has worked examples.
            native = capabilities.weak and capabilities.native_tools and not self._fits_examples()
            preferred = None if native else "cot_completion"
        if preferred:
            return preferred
        if not capabilities.chat:
            return "cot_completion"
        if not capabilities.native_tools:
            return "cot_chat"
        return (None if capabilities.known else self._recall(endpoint)) or "function_call"

    def _recall(self, endpoint: str) -> str | None:
        from closeout.journal.readonly import open_to_read

        folder = self._home_folder()
        if folder is None:
            return None
        with open_to_read(folder) as store:
            return store.noted(endpoint)

    def _remember(self, endpoint: str, dialect: str) -> None:
        store = self.store()
        if store is not None:
            store.note(endpoint, dialect)

    # ------------------------------------------------------------------------------------------------ the task

    async def _prepare(
        self, plan: AgentPlan, text: str, files: Sequence[str | Path], history: Sequence[Mapping[str, Any]]
    ) -> Task:
        """Read the files, and check what the task consists of."""
        import asyncio
        from dataclasses import replace

        from closeout.messages import Message
        from closeout.run.files import Prepared, prepare
        from closeout.run.lifecycle import Task

        client = plan.client
        prepared = Prepared(checks.check_task(text))
        if files:  # in a thread, because a large PDF takes seconds
            can = replace(client.capabilities, max_context=await client.context_length())
            prepared = await asyncio.to_thread(prepare, text, files, capabilities=can, model=client.name)
        return Task(
            text=text,
            question=prepared.question,
            files=prepared.names,
            images=prepared.images,
            earlier=tuple(map(Message.of, checks.check_history(history))),
            texts=prepared.texts,
            notes=prepared.notes,
        )


def _refuse_running_loop() -> None:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError("This runs an event loop of its own, and one is running. Use `await agent.run(…)` there.")
