"""The live view for the outside: small dicts in a queue, in order, complete, and never in the run's way."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from closeout import Agent, StreamHandler, tool
from closeout.testing import ScriptedClient, Turn, answer, call, once


async def lead(script: Any, **client: Any) -> list[dict[str, Any]]:
    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        return "known"

    heard: list[dict[str, Any]] = []
    await Agent(ScriptedClient(script, **client), [look], home=False).run(
        "What?", listeners=[StreamHandler(heard.append)]
    )
    return heard


def of(heard: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event["data"] for event in heard if event["event"] == name]


async def test_a_run_is_told_in_pairs_that_open_and_close() -> None:
    heard = await lead([Turn("I look.", calls=[call("look", key="a")]), answer("42")])
    names = [event["event"] for event in heard]
    assert names[0] == "start_of_workflow"
    assert names[-1] == "end_of_workflow"
    for kind in ("workflow", "agent", "llm"):
        assert names.count(f"start_of_{kind}") == names.count(f"end_of_{kind}") > 0
    assert of(heard, "end_of_workflow")[0]["answer"] == "42"
    assert of(heard, "start_of_workflow")[0]["workflow_id"] == of(heard, "end_of_workflow")[0]["workflow_id"]


async def test_a_resumed_run_is_told_in_pairs_too() -> None:
    agent = Agent(ScriptedClient([answer("42")]), home=True)
    first = await agent.run("What?")
    heard: list[dict[str, Any]] = []
    await agent.resume(first.run_id, listeners=[StreamHandler(heard.append)])
    (start,), (end,) = of(heard, "start_of_workflow"), of(heard, "end_of_workflow")
    assert (heard[0]["event"], heard[-1]["event"]) == ("start_of_workflow", "end_of_workflow")
    assert start["workflow_id"] == end["workflow_id"] != ""
    assert end["answer"] == "42"


async def test_what_the_model_writes_is_told_while_it_writes_it() -> None:
    heard = await lead([answer("42", "All is known.")])
    pieces = [data["delta"]["content"] for data in of(heard, "message")]
    assert len(pieces) > 3
    assert "".join(pieces) == "All is known.\n\nThe answer is \\boxed{42}."


async def test_a_call_is_told_with_its_name_arguments_and_result() -> None:
    told = of(await lead([call("look", key="a"), answer("42")]), "tool_call")
    assert {data.get("tool_name") for data in told} >= {"look"}
    assert any("key" in json.dumps(data, default=str) for data in told)


async def test_a_reply_that_does_not_count_is_taken_back() -> None:
    heard = await lead([call("look", key="a"), answer("42")], misbehave=once("empty"))
    assert [data["reason"] for data in of(heard, "discard")] == ["empty"]


@pytest.mark.parametrize("put", [None, lambda event: 1 / 0])
async def test_nobody_and_a_listener_that_fails_are_no_trouble(put: Any) -> None:
    handler = StreamHandler(put)
    result = await Agent(ScriptedClient([answer("42")]), home=False).run("What?", listeners=[handler])
    assert result.answer == "42"
    assert (handler.dropped > 0) == (put is not None)


async def test_the_methods_of_the_design_tell_the_same_events() -> None:
    queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    handler = StreamHandler(queue)
    workflow = await handler.start_workflow("What?")
    agent = await handler.start_agent("main", "Main Agent")
    await handler.start_llm("main")
    await handler.message("m1", "hello")
    call_id = await handler.tool_call("look", {"key": "a", "page": 2}, streaming=True)
    assert await handler.tool_call("look", {"key": "a"}, tool_call_id=call_id) == call_id
    await handler.show_error("oh")
    await handler.end_llm("main")
    await handler.end_agent("main", agent)
    await handler.end_workflow(workflow)
    await handler.update("anything", {"x": 1})
    names = [queue.get_nowait()["event"] for _ in range(queue.qsize())]
    assert names == [
        "start_of_workflow", "start_of_agent", "start_of_llm", "message", "tool_call", "tool_call", "tool_call",
        "show_error", "end_of_llm", "end_of_agent", "end_of_workflow", "anything",
    ]  # fmt: skip


def test_an_event_is_two_lines_of_an_event_stream_whatever_is_in_it() -> None:
    text = StreamHandler.sse({"event": "message", "data": {"content": "line\nbreak \u2028 长\ud800", "odd": object}})
    head, data, *rest = text.split("\n")
    assert head == "event: message"
    assert rest == ["", ""]
    assert json.loads(data.removeprefix("data: "))["content"] == "line\nbreak \u2028 长\ud800"
