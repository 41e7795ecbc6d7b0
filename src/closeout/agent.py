"""The front door: an Agent is made of a model, tools and settings, and `run` leads it to an answer.

Imports wait until they are needed, so that `from closeout import Agent` costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, TypeVar

from closeout import given
from closeout.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path
    from typing import Unpack

    from closeout.answers.reading import AnswerContract, Value
    from closeout.config import Config
    from closeout.journal.events import Event
    from closeout.journal.journal import Listener, Progress
    from closeout.journal.store import Store
    from closeout.llm.base import BaseClient
    from closeout.orchestrator.plan import AgentPlan
    from closeout.orchestrator.result import RunResult
    from closeout.orchestrator.run import Task
    from closeout.tools.tool import Tool

else:  # type checkers see the one that has a default; here nothing heavy is imported
    Value = TypeVar("Value", covariant=True)

__all__ = ["Agent", "RunKeywords", "RunStream"]


class RunKeywords(TypedDict, total=False):
    """What `Agent.run` takes beside the task, for `run_sync` and `stream`, which hand it on."""

    files: Sequence[str | Path]
    history: Sequence[Mapping[str, Any]]
    task_id: str
    ground_truth: str | None
    run_id: str
    origin: Mapping[str, Any] | None
    listeners: Sequence[Listener]


class Agent(Generic[Value]):
    """An agent: give it a task with `run`, `run_sync` or `stream`; continue a run that was cut off with `resume`.

    model: `openai:NAME` (any OpenAI-compatible `base_url`), `anthropic:NAME`, `local` (embedded), or a client.
    tools: functions, `@tool` functions, `Tool`s, other agents made tools with `as_tool`.
    mcp_servers: commands (`"python server.py"`), URLs, or mappings with `command`/`args`/`env` or `url`/`headers`; or
        a mapping of names to these, such as the usual `mcpServers` JSON.
    dialect: `function_call`, `cot_chat`, `cot_completion`, `mcp_xml`, or `auto`.
    instructions: what the agent is to know beside the task; the answer contract adds its own line.
    answer: an answer contract, None means `Boxed()`. Its type is that of `result.value`: of `answer=Json(Moon)` a Moon.
    config: a `Config`, a mapping, or the path of a YAML file; arguments given here win over it.
    home: the folder in which runs are kept, None means `CLOSEOUT_HOME` or the user's data folder; False keeps runs in
    memory only, so that they cannot be resumed.

    One agent serves any number of runs, also at the same time. `async with agent:` keeps its MCP servers up between
    runs; otherwise they live as long as a run. Raises ConfigError and ToolDefinitionError for what cannot be.
    """

    def __init__(
        self,
        model: str | BaseClient = "local",
        tools: Sequence[Callable[..., Any] | Tool[..., Any]] = (),
        mcp_servers: Sequence[str | Mapping[str, Any]] | Mapping[str, Any] = (),
        dialect: str | None = None,
        instructions: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        max_turns: int | None = None,
        context_compress_limit: int | None = None,
        keep_tool_result: int | None = None,
        answer: AnswerContract[Value] | None = None,
        stream: bool = False,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        *,
        name: str = "agent",
        home: str | Path | bool | None = None,
    ) -> None:
        from closeout.config import load_config

        self.name = name
        arguments = {
            "dialect": dialect,
            "agent.main_agent.max_turns": max_turns,
            "agent.context_compress_limit": context_compress_limit,
            "agent.keep_tool_result": keep_tool_result,
        }
        self.config = load_config(config, values={key: value for key, value in arguments.items() if value is not None})
        self._model = model
        self._base_url = base_url
        self._api_key = api_key
        self._tools = given.a_list("tools", "[look_up]", tools)
        self._mcp_servers = (
            mcp_servers
            if isinstance(mcp_servers, Mapping)
            else given.a_list("mcp_servers", '["python server.py"]', mcp_servers)
        )
        self._instructions = given.a_text("instructions", instructions)
        self._answer: AnswerContract[Value] | None = given.a_contract(answer)
        self._stream = stream
        self._home = given.a_folder(home)
        self._made: AgentPlan | None = None
        self._folder: Path | None = None  # where `home` is, once it was asked for

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
    ) -> RunResult[Value]:
        """Lead the task to its end. Every end is a RunResult; raised are only misuse (UsageError) and cancellation.

        files: documents, tables, images; their text is put before the task within a budget.
        history: the conversation before, `[{"role": "user" | "assistant", "content": …}]`.
        task_id, ground_truth: kept in the log for those who grade, never shown to the model.
        run_id: a name for the run, new in its home; origin: JSON-able notes for whoever resumes it.
        listeners: called with each journal event and each piece of progress, a `StreamHandler` for example.
        """
        from closeout.orchestrator.run import lead

        listeners = given.listeners(listeners)
        plan = self.plan(streamed=bool(listeners))
        prepared = await self._task(plan, task, files, history, task_id, ground_truth, origin)
        return await lead(plan, prepared, self.store(), listeners, run_id)

    def run_sync(self, task: str, **options: Unpack[RunKeywords]) -> RunResult[Value]:
        """`run` for code that is not async. Inside a running event loop use `await agent.run(…)` instead."""
        import asyncio

        _refuse_running_loop()
        return asyncio.run(self.run(task, **options))

    def stream(self, task: str, **options: Unpack[RunKeywords]) -> RunStream[Value]:
        """The run as it happens: iterate over its events and pieces of progress; then `result` is there.

        Options are those of `run`. Breaking off the iteration cancels the run.
        """
        keywords: dict[str, Any] = {**options}
        others = given.listeners(keywords.pop("listeners", ()))
        return RunStream(lambda listener: self.run(task, listeners=(listener, *others), **keywords))

    async def resume(
        self, run_id: str, *, despite_changes: bool = False, listeners: Sequence[Listener] = ()
    ) -> RunResult[Value]:
        """Lead a recorded run on from where it stopped; what it did already is not done again.

        Raises RunNotFound; JournalLocked while it is being led; ResumeRefused with what differs where this agent is
        not the one that made the record, unless `despite_changes`.
        """
        from closeout.orchestrator.run import resume

        store = self.store()
        if store is None:
            raise UsageError("This agent keeps its runs in memory (home=False), so there is none to resume.")
        listeners = given.listeners(listeners)
        plan = self.plan(streamed=bool(listeners))
        return await resume(plan, store, run_id, listeners, despite_changes=despite_changes)

    def as_tool(self, name: str, description: str) -> Tool[..., Any]:
        """The agent as a tool of another one: it takes a task and gives back a report.

        Called together with others it runs beside them; its events are nested in the caller's journal, its spending
        counts as the caller's too.
        """
        from closeout.orchestrator.subagents import sub_agent_tool

        return sub_agent_tool(name, description, self.plan)

    async def __aenter__(self) -> Self:
        await self.plan().manager.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.plan().manager.__aexit__(None, None, None)

    # ------------------------------------------------------------------------------------------------ making

    def store(self) -> Store | None:
        """Where this agent's runs are kept; None for memory only. Raises JournalError."""
        from closeout.journal.store import open_store

        folder = self._kept_in()
        return None if folder is None else open_store(folder)

    def _kept_in(self) -> Path | None:
        if self._home is False:
            return None
        if self._home in (None, True):
            from closeout.config import home_folder

            return home_folder()
        if self._folder is None:
            from pathlib import Path

            self._folder = Path(str(self._home)).absolute()
        return self._folder

    def plan(self, streamed: bool = False) -> AgentPlan:
        """What the agent is, settled: made once. Raises ConfigError, ToolDefinitionError."""
        from dataclasses import replace

        if self._made is None:
            self._made = self._make()
        if streamed and not self._made.stream:
            return replace(self._made, stream=True)
        return self._made

    def _make(self) -> AgentPlan:
        from closeout.answers.contracts import Boxed
        from closeout.dialects.protocol import get_dialect, serves
        from closeout.llm.connect import connect
        from closeout.orchestrator.limits import Limits
        from closeout.orchestrator.plan import AgentPlan
        from closeout.orchestrator.subagents import as_tool, read_result_tool
        from closeout.tools.manager import ToolManager
        from closeout.tools.mcp_config import read_servers

        config, settings = self.config, self.config.agent
        client = connect(self._model, self._base_url, self._api_key, config.llm)
        endpoint = f"dialect {client.name} {self._base_url or config.llm.base_url or ''}"
        dialect = self._settled_dialect(client, endpoint)
        get_dialect(dialect, config.prompts)  # an unknown name, a template that is none: told before a run begins
        problem = serves(dialect, client.capabilities)
        if problem and client.capabilities.known:
            raise ConfigError(problem)
        servers = (*read_servers(config.tools.mcp_servers), *read_servers(self._mcp_servers))
        own = self._tools or servers
        return AgentPlan(
            name=self.name,
            client=client,
            dialect=dialect,
            manager=ToolManager(
                [as_tool(each) for each in (*self._tools, read_result_tool)] if own else (),
                servers,
                blacklist=tuple(config.tools.blacklist),
            ),
            contract=self._answer or Boxed(),
            limits=Limits(
                max_turns=settings.main_agent.max_turns,
                max_tokens=settings.max_tokens,
                max_cost=settings.max_cost,
                max_seconds=settings.max_seconds,
            ),
            instructions=self._instructions,
            settings=settings,
            llm=config.llm,
            prompts=config.prompts,
            may_switch_dialect=config.dialect == "auto",
            remember_dialect=lambda name: self._remember(endpoint, name),
            stream=self._stream,
        )

    def _settled_dialect(self, client: BaseClient, endpoint: str) -> str:
        """The dialect by its name, or for "auto": what was learned of the endpoint, else what its client declares.

        An endpoint of which nothing is known is asked in native calls; its first reply is the probe. If it refuses
        tools, or its model keeps writing calls as text, the run goes over to that and the endpoint is remembered.
        """
        if self.config.dialect != "auto":
            return self.config.dialect
        capabilities = client.capabilities
        if capabilities.preferred_dialect:
            return capabilities.preferred_dialect
        if not capabilities.chat:
            return "cot_completion"
        if not capabilities.native_tools:
            return "cot_chat"
        return (None if capabilities.known else self._noted(endpoint)) or "function_call"

    def _noted(self, endpoint: str) -> str | None:
        from closeout.journal.readonly import open_to_read

        folder = self._kept_in()
        if folder is None:
            return None
        with open_to_read(folder) as store:
            return store.noted(endpoint)

    def _remember(self, endpoint: str, dialect: str) -> None:
        store = self.store()
        if store is not None:
            store.note(endpoint, dialect)

    async def _task(
        self,
        plan: AgentPlan,
        text: str,
        files: Sequence[str | Path],
        history: Sequence[Mapping[str, Any]],
        task_id: str,
        ground_truth: str | None,
        origin: Mapping[str, Any] | None,
    ) -> Task:
        import asyncio
        from dataclasses import replace

        from closeout.messages import Message
        from closeout.orchestrator.files import Prepared, prepare
        from closeout.orchestrator.run import Task

        client = plan.client
        prepared = Prepared(given.a_task(text))
        if files:  # in a thread, because a large PDF takes seconds
            can = replace(client.capabilities, max_context=await client.context_length())
            prepared = await asyncio.to_thread(prepare, text, files, capabilities=can, model=client.name)
        return Task(
            text,
            prepared.question,
            task_id,
            ground_truth,
            prepared.names,
            prepared.images,
            tuple(map(Message.of, given.a_conversation(history))),
            origin or {},
            prepared.texts,
            prepared.notes,
        )


class RunStream(Generic[Value]):
    """A run as it happens. `async for event in stream` yields journal events and `Progress`; then `stream.result`."""

    def __init__(self, start: Callable[[Listener], Any]) -> None:
        self._start: Callable[[Listener], Any] | None = start
        self._result: RunResult[Value] | None = None

    @property
    def result(self) -> RunResult[Value]:
        """Raises UsageError before the run has ended."""
        if self._result is None:
            raise UsageError("The run has not ended yet: iterate over the stream first.")
        return self._result

    async def __aiter__(self) -> AsyncIterator[Event | Progress]:
        import asyncio

        start, self._start = self._start, None
        if start is None:
            raise UsageError("A stream is one run, and this one was begun already. agent.stream(…) gives another.")
        queue: asyncio.Queue[Event | Progress | None] = asyncio.Queue()
        task = asyncio.ensure_future(start(queue.put_nowait))
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            self._result = await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def _refuse_running_loop() -> None:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError("run_sync was called inside a running event loop. Use `await agent.run(…)` there.")
