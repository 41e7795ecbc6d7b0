"""What a tool knows of its run (RunContext), and what it changes: the state, the log, progress, checkpoints."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, RunContext, RunResult, StreamHandler, ToolManager, ToolOutput, tool
from closeout.compat.wrapper import UnifiedToolWrapper
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.journal.subscribers import Progress
from closeout.run.lifecycle import replay_run
from closeout.testing import ScriptedClient, answer, call, serve_script

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


async def run_agent(script: Any, *tools: Any, stream: bool = False, **options: Any) -> tuple[RunResult, list[Any]]:
    listeners = options.pop("listeners", ())
    requests: list[Any] = []
    turns = iter(script)

    def scripted(request: Any) -> Any:
        requests.append(request)
        return next(turns)

    async with serve_script(scripted) as server:
        agent = Agent(
            "openai:scripted", tools, dialect="function_call", base_url=server.base_url, api_key="k", stream=stream,
            **options,
        )  # fmt: skip
        return await agent.run("What?", run_id="my-run", listeners=listeners), requests


@tool
def count(thing: str, context: RunContext) -> ToolOutput:
    """Count a thing.

    Args:
        thing: what to count
        context: never shown
    """
    seen = [*context.state.get("seen", ()), thing]
    return ToolOutput(result=len(seen), summary=f"{len(seen)} so far", state_update={"seen": seen})


@STREAMED
async def test_a_tool_gets_the_context_and_the_model_does_not_see_it(stream: bool) -> None:
    contexts: list[RunContext] = []

    @tool
    async def look(key: str, run: RunContext) -> str:
        """Look up a key."""
        contexts.append(run)
        return f"{key} is 3"

    budgets = {"agent": {"max_tokens": 50_000, "max_seconds": 60}}
    result, requests = await run_agent(
        [call("look", key="a"), call("look", key="b"), answer("3")],
        look, stream=stream, max_turns=5, config=budgets,
    )  # fmt: skip
    assert result.answer == "3"
    for request in requests:
        assert "RunContext" not in str(request.body)
        (schema,) = [each for each in request.body["tools"] if each["function"]["name"] == "look"]
        assert list(schema["function"]["parameters"]["properties"]) == ["key"]
    first, second = contexts
    assert (first.run_id, first.agent, first.handle, second.handle) == ("my-run", "main", "r1", "r2")
    assert (first.usage.requests, second.usage.requests) == (1, 2)
    assert (first.budget.turns, second.budget.turns) == (4, 3)
    assert second.budget.tokens == 50_000 - second.usage.total_tokens
    assert 0 < (second.budget.seconds or 0) < 60
    assert second.budget.cost_usd is None


@STREAMED
async def test_state_updates_reach_the_result_and_later_calls(stream: bool) -> None:
    script = [call("count", thing="a"), call("count", thing="b"), answer("2")]
    result, _ = await run_agent(script, count, stream=stream)
    assert result.state == {"seen": ["a", "b"]}
    assert result.to_dict()["state"] == result.state


@STREAMED
async def test_state_is_resumed_and_replayed_from_the_record(home: Path, stream: bool) -> None:
    def agent(*script: Any) -> Agent[Any]:
        return Agent(ScriptedClient(list(script)), [count], stream=stream)

    def stop(event: Any) -> None:
        if isinstance(event, ev.TurnAccepted):
            asyncio.current_task().cancel()  # type: ignore[union-attr]

    with pytest.raises(asyncio.CancelledError):
        await agent(call("count", thing="a")).run("What?", run_id="stopped", listeners=[stop])
    resumed = agent(call("count", thing="b"), answer("2"))
    result = await resumed.resume("stopped")
    assert result.state == {"seen": ["a", "b"]}
    rows = list(open_store(home).rows("stopped"))
    replayed, departure = await replay_run(resumed.plan(), "stopped", rows)
    assert (replayed.state, departure) == (result.state, "")


async def test_the_copy_in_the_context_cannot_change_the_state() -> None:
    @tool
    def meddle(context: RunContext) -> ToolOutput:
        """Meddle."""
        context.state.setdefault("list", []).append(1)  # type: ignore[attr-defined]
        return ToolOutput(result="done", state_update={"seen": True})

    result, _ = await run_agent([call("meddle"), answer("1")], meddle)
    assert result.state == {"seen": True}


async def test_a_state_that_is_not_json_is_a_warning() -> None:
    @tool
    def keep() -> ToolOutput:
        """Keep something."""
        return ToolOutput(result="done", state_update={"数": object()})

    result, _ = await run_agent([call("keep"), answer("1")], keep)
    (warning,) = result.warnings
    assert warning.startswith("What the state_update of keep holds is not all JSON")


async def test_a_failed_call_updates_nothing_and_names_no_checkpoint(home: Path) -> None:
    @tool
    def fail() -> ToolOutput:
        """Fail."""
        output = ToolOutput(summary="no", state_update={"a": 1}, checkpoint="half")
        output.telemetry.success = False
        return output

    result, _ = await run_agent([call("fail"), answer("1")], fail)
    assert result.state == {}
    assert not [row for row in open_store(home).rows("my-run") if isinstance(row.event, ev.CheckpointReached)]


async def test_sub_agents_share_the_state_of_the_run() -> None:
    clerk = Agent(ScriptedClient([call("count", thing="b"), answer("2")]), [count], home=False)
    result, _ = await run_agent(
        [call("count", thing="a"), call("clerk", task="Count b."), call("count", thing="c"), answer("3")],
        count, clerk.as_tool("clerk", "Counts."),
    )  # fmt: skip
    assert result.state == {"seen": ["a", "b", "c"]}


@STREAMED
async def test_a_checkpoint_is_recorded_by_its_name(home: Path, stream: bool) -> None:
    @tool
    def save(name: str) -> ToolOutput:
        """Save."""
        return ToolOutput(result="saved", checkpoint=name)

    script = [call("save", name="draft"), call("save", name="final"), answer("1")]
    result, _ = await run_agent(script, save, stream=stream)
    found = [row.event for row in open_store(home).rows("my-run") if isinstance(row.event, ev.CheckpointReached)]
    assert [(each.name, each.turn, each.handle) for each in found] == [("draft", 0, "r1"), ("final", 1, "r2")]
    steps = [step.message for step in result.task_log.step_logs if step.name.endswith("Checkpoint")]
    assert steps == ["draft", "final"]


@STREAMED
@pytest.mark.parametrize("threaded", [False, True], ids=["async", "thread"])
async def test_progress_reaches_the_stream_and_extends_the_deadline(
    stream: bool, threaded: bool, skip_time: Callable[[float], None]
) -> None:
    reported = threading.Semaphore(0)

    def work(context: RunContext) -> str:
        """Work."""
        for done in range(1, 5):
            skip_time(200)
            context.progress(done, 4, "reading")
            assert reported.acquire(timeout=60)
        return "done"

    async def work_async(context: RunContext) -> str:
        """Work."""
        for done in range(1, 5):
            skip_time(200)
            context.progress(done, 4, "reading")
            await asyncio.sleep(0.001)  # a deadline that has passed ends it here
        return "done"

    def listen(event: Any) -> None:
        heard.append(event)
        if isinstance(event, Progress) and event.kind == "tool_progress":
            reported.release()

    slow = tool(name="work", timeout=300)(work if threaded else work_async)
    heard: list[Any] = []
    sent: list[Any] = []
    listeners = [listen, StreamHandler(sent.append)]
    result, _ = await run_agent([call("work"), answer("1")], slow, stream=stream, listeners=listeners)
    assert result.telemetry.by_tool["work"]["errors"] == 0
    pieces = [each for each in heard if isinstance(each, Progress) and each.kind == "tool_progress"]
    assert [(each.handle, each.done, each.total, each.text) for each in pieces] == [
        ("r1", done, 4, "reading") for done in (1, 2, 3, 4)
    ]
    data = [each["data"] for each in sent if each["event"] == "tool_progress"]
    assert [each["done"] for each in data] == [1, 2, 3, 4]
    calls = {each["data"]["tool_call_id"] for each in sent if each["event"] == "tool_call"}
    assert {each["tool_call_id"] for each in data} <= calls


async def test_progress_after_the_call_is_ignored() -> None:
    late: list[Any] = []

    @tool
    async def work(context: RunContext) -> str:
        """Work."""
        late.append(context)
        return "done"

    heard: list[Any] = []
    result, _ = await run_agent([call("work"), answer("1")], work, listeners=[heard.append])
    late[0].progress(1)
    assert result.answer == "1"
    assert not [each for each in heard if isinstance(each, Progress) and each.kind == "tool_progress"]


@STREAMED
@pytest.mark.parametrize("how", ["async", "in a thread", "current() in a thread"])
async def test_a_tools_log_is_in_the_runs_log_and_in_logging(
    stream: bool, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    def work(context: RunContext) -> str:
        """Work."""
        context.logger.warning("%d pages missing", 2)
        return "done"

    async def work_async(context: RunContext) -> str:
        """Work."""
        return work(context)

    def work_with_current() -> str:
        """Work."""
        return work(RunContext.current())

    made: dict[str, Any] = {"async": work_async, "in a thread": work, "current() in a thread": work_with_current}
    with caplog.at_level(logging.WARNING, "closeout.tools"):
        noisy = tool(name="work")(made[how])
        result, _ = await run_agent([call("work"), answer("1")], noisy, stream=stream)
    (step,) = [step for step in result.task_log.step_logs if step.name == "Tool work"]
    assert (step.level, step.message, step.metadata) == ("warning", "2 pages missing", {"handle": "r1"})
    assert "2 pages missing" in caplog.text


async def test_a_wrapped_tool_and_a_tool_with_its_own_schema_get_the_context() -> None:
    @UnifiedToolWrapper.wrap_tool(tool_name="reader")
    def read(path: str, context: RunContext, **kwargs: Any) -> str:
        """Read a file."""
        return f"{path} in {context.run_id}"

    @tool(parameters={"type": "object", "properties": {"path": {"type": "string"}}})
    def write(path: str, context: RunContext | None = None) -> str:
        """Write a file."""
        assert context is not None
        return f"{path} in {context.run_id}"

    result, requests = await run_agent([call("reader", path="a"), call("write", path="b"), answer("1")], read, write)
    assert result.telemetry.by_tool.keys() == {"reader", "write"}
    assert "b in my-run" in requests[-1].text
    assert [each["result"] for each in result.task_log.tool_calls] == ["a in my-run", "b in my-run"]


async def test_outside_of_a_run_the_context_has_defaults() -> None:
    contexts: list[RunContext] = []

    @tool
    def look(context: RunContext) -> str:
        """Look."""
        contexts.append(context)
        context.progress(1)
        context.logger.info("looked")
        return "seen"

    assert await ToolManager([look]).call(look.spec, {}) == "seen"
    assert (contexts[0].run_id, contexts[0].state, contexts[0].budget.tokens) == ("", {}, None)
    assert look(RunContext(run_id="mine")) == "seen"


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_the_langgraph_node_passes_the_context_and_applies_the_state(is_async: bool) -> None:
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage
    from langgraph.graph import END, START, StateGraph

    from closeout.integrations.langgraph import AgentState, ToolOutputNode, tool_outputs

    class State(AgentState):
        seen: list[str]

    def count_things(thing: str, context: RunContext) -> ToolOutput:
        """Count."""
        seen = [*context.state.get("seen", ()), thing]
        return ToolOutput(result=seen, state_update={"seen": seen}, checkpoint="counted")

    async def count_async(thing: str, context: RunContext) -> ToolOutput:
        """Count."""
        return count_things(thing, context)

    count_async.__name__ = "count_things"
    node = ToolOutputNode([count_async if is_async else count_things])
    assert list(node.tools[0].args) == ["thing"]
    graph = StateGraph(State)
    graph.add_node("tools", node)
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    message = AIMessage("", tool_calls=[{"name": "count_things", "args": {"thing": "b"}, "id": "c1"}])
    state = await graph.compile().ainvoke({"messages": [message], "seen": ["a"]})
    assert state["seen"] == ["a", "b"]
    assert [each.checkpoint for each in tool_outputs(state)] == ["counted"]


async def test_progress_is_shown_on_the_terminal() -> None:
    from io import StringIO

    from rich.console import Console

    from closeout.cli.display import Display

    @tool
    async def work(context: RunContext) -> str:
        """Work."""
        context.progress(3, 4, "reading \x1b[31mpages")
        return "done"

    shown = StringIO()
    with Display(Console(file=shown, width=80)) as display:
        await run_agent([call("work"), answer("1")], work, listeners=[display])
    assert "work: reading" in shown.getvalue()
    assert "3 of 4" in shown.getvalue()
    assert "\x1b" not in shown.getvalue()
