"""What a result holds of its run: the conversation, the usage of each request, telemetry, the log of tool calls."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, RunResult, tool
from closeout.errors import ServerFailed
from closeout.journal.store import open_store
from closeout.run.lifecycle import replay_run
from closeout.testing import ScriptedClient, answer, call, say, serve_script

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


@tool(read_only=True)
async def look(key: str) -> dict[str, Any]:
    """Look up a key."""
    if key == "bad":
        raise RuntimeError("no such shelf")
    return {"key": key, "length": len(key)}


async def run_agent(script: Any, *tools: Any, stream: bool = False, task: str = "What?", **options: Any) -> RunResult:
    keywords = {name: options.pop(name) for name in ("history", "listeners") if name in options}
    async with serve_script(script) as server:
        address = {"base_url": server.base_url, "api_key": "k"}
        agent = Agent("openai:scripted", tools or [look], dialect="function_call", stream=stream, **address, **options)
        return await agent.run(task, **keywords)


@STREAMED
async def test_the_messages_of_a_run_continue_in_the_next_one(stream: bool) -> None:
    first = await run_agent([call("look", key="abc"), answer("3")], stream=stream)
    roles = [message["role"] for message in first.messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert first.messages[-1].text == first.closing_text

    requests: list[Any] = []

    def script(request: Any) -> Any:
        requests.append(request.messages)
        return answer("4")

    second = await run_agent(script, stream=stream, task="And then?", history=first.messages)
    sent = [message for message in requests[0] if message["role"] != "system"]
    assert sent == [*map(dict, first.messages), {"role": "user", "content": "And then?"}]
    assert [message["role"] for message in second.messages] == [*roles, "user", "assistant"]


async def test_the_messages_are_those_of_the_last_attempt() -> None:
    def script(request: Any) -> Any:
        if "attempt ends here" in request.text:
            return say("Failure type: incomplete\nUseful findings: a is 1")
        return answer("1") if "a is 1" in request.question else call("look", key=f"key {request.number}")

    result = await run_agent(script, max_turns=2, context_compress_limit=1)
    assert result.attempts == 2
    assert [message["role"] for message in result.messages] == ["user", "assistant"]


@STREAMED
async def test_the_usage_log_has_every_request(stream: bool) -> None:
    script = [say(""), call("look", key="a"), answer("1")]
    result = await run_agent(script, stream=stream)
    log = result.usage_log
    assert [(each.agent, each.purpose, each.turn) for each in log] == [("main", "act", turn) for turn in (0, 0, 1)]
    assert sum(each.usage.input_tokens for each in log) == result.usage.input_tokens
    assert sum(each.usage.requests for each in log) == result.usage.requests
    assert {each.error for each in log} == {""}


async def test_the_usage_log_names_the_error_of_a_failed_request() -> None:
    def refuse(request: Any) -> Any:
        raise ServerFailed("The server is down.", status=500)

    result = await Agent(ScriptedClient(refuse), home=False).run("What?")
    assert [each.error for each in result.usage_log] == ["ServerFailed"]


@STREAMED
async def test_telemetry_counts_calls_failures_latency_and_tokens_by_tool(stream: bool) -> None:
    script = [call("look", key="abc"), call("look", key="bad"), call("read_result", handle="r1"), answer("3")]
    result = await run_agent(script, stream=stream)
    tools = result.telemetry.by_tool
    assert (tools["look"]["calls"], tools["look"]["errors"], tools["read_result"]["calls"]) == (2, 1, 1)
    assert tools["look"]["latency_ms"] > 0
    assert tools["look"]["tokens"] > 0
    assert result.telemetry.aggregated["total_calls"] == 3


async def test_telemetry_leaves_out_unknown_tools_and_counts_refused_arguments_as_failures() -> None:
    result = await run_agent([call("lok_up_nothing", key="abc"), call("look"), answer("3")])
    assert result.telemetry.by_tool == {"look": {"calls": 1, "errors": 1, "latency_ms": 0.0, "tokens": 0}}


async def test_telemetry_includes_the_tools_of_sub_agents() -> None:
    async with serve_script([call("look", key="abcd"), answer("4")]) as server:
        clerk = Agent("openai:clerk", [look], base_url=server.base_url, api_key="k", dialect="function_call")
        result = await run_agent(
            [call("clerk", task="Look up abcd."), answer("4")], clerk.as_tool("clerk", "Finds values.")
        )
    assert {name: sums["calls"] for name, sums in result.telemetry.by_tool.items()} == {"look": 1, "clerk": 1}
    assert {each.agent for each in result.usage_log} == {"main", "main/r1:clerk"}
    assert [message["role"] for message in result.messages] == ["user", "assistant", "tool", "assistant"]


@STREAMED
async def test_the_task_log_has_usage_and_every_tool_call(stream: bool) -> None:
    result = await run_agent(
        [call("look", key="abc"), call("look", key="bad"), answer("3")],
        stream=stream,
        config={"llm": {"prices": {"scripted": [1.0, 2.0]}}},
    )
    log = result.task_log
    assert log.usage["input_tokens"] == result.usage.input_tokens > 0
    assert log.usage["total_tokens"] == result.usage.total_tokens
    assert log.usage["cost_usd"] == result.usage.cost_usd
    assert result.usage.cost_usd is not None
    found, failed = log.tool_calls
    assert (found["server_name"], found["tool_name"], found["arguments"]) == ("local", "look", {"key": "abc"})
    assert found["result"] == {"key": "abc", "length": 3}
    assert failed["error"] == "RuntimeError: no such shelf"
    assert "result" not in failed
    assert type(log).from_dict(log.to_dict()) == log


async def test_the_task_log_names_the_server_of_a_tool() -> None:
    server = Path(__file__).parent / "mcp_servers" / "everything.py"
    servers = {"shelf": {"command": sys.executable, "args": [str(server)]}}
    result = await run_agent([call("add", a=2, b=5), answer("7")], mcp_servers=servers)
    (added,) = result.task_log.tool_calls
    assert (added["server_name"], added["tool_name"], added["arguments"]) == ("shelf", "add", {"a": 2, "b": 5})
    assert "7" in str(added["result"])


async def test_the_views_can_be_pickled() -> None:
    result = await run_agent([call("look", key="abc"), answer("3")])
    again = pickle.loads(pickle.dumps(result))
    assert again.messages == result.messages
    assert again.usage_log == result.usage_log
    assert again.task_log == result.task_log
    assert again.telemetry.by_tool == result.telemetry.by_tool


async def test_a_replay_has_the_same_views(home: Path) -> None:
    async with serve_script([call("look", key="abc"), answer("3")]) as server:
        agent = Agent("openai:scripted", [look], base_url=server.base_url, api_key="k", dialect="function_call")
        result = await agent.run("What?")
    again, departure = await replay_run(agent.plan(), result.run_id, list(open_store(home).rows(result.run_id)))
    assert departure == ""
    assert again.messages == result.messages
    assert again.usage_log == result.usage_log
    assert again.telemetry.by_tool == result.telemetry.by_tool
