"""The live view for the outside: small dicts in a queue, in order, complete, and never in the run's way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, StreamHandler, tool
from closeout.journal import events as ev
from closeout.journal.subscribers import Progress, RunInfo
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, once, say, serve_script
from closeout.tools.builtin import calculate


async def run_agent(script: Any, agent: Any = None, **client: Any) -> list[dict[str, Any]]:
    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        return "known"

    heard: list[dict[str, Any]] = []
    made = Agent(ScriptedClient(script, **client), [look], home=False, **(agent or {}))
    await made.run("What?", listeners=[StreamHandler(heard.append)])
    return heard


def of(heard: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event["data"] for event in heard if event["event"] == name]


async def test_a_run_is_published_in_pairs_that_open_and_close() -> None:
    heard = await run_agent([Turn("I look.", calls=[call("look", key="a")]), answer("42")])
    names = [event["event"] for event in heard]
    assert names[0] == "start_of_workflow"
    assert names[-1] == "end_of_workflow"
    for kind in ("workflow", "agent", "llm"):
        assert names.count(f"start_of_{kind}") == names.count(f"end_of_{kind}") > 0
    assert of(heard, "end_of_workflow")[0]["answer"] == "42"
    assert of(heard, "start_of_workflow")[0]["workflow_id"] == of(heard, "end_of_workflow")[0]["workflow_id"]


async def test_the_models_text_is_published_while_it_is_written() -> None:
    heard = await run_agent([answer("42", "All is known.")])
    pieces = [data["delta"]["content"] for data in of(heard, "message")]
    assert len(pieces) > 3
    assert "".join(pieces) == "All is known.\n\nThe answer is \\boxed{42}."


async def test_a_call_is_published_with_its_name_arguments_and_result() -> None:
    told = of(await run_agent([call("look", key="a"), answer("42")]), "tool_call")
    assert {data.get("tool_name") for data in told} >= {"look"}
    assert any("key" in json.dumps(data, default=str) for data in told)
    assert [data["result"] for data in told if "result" in data] == ["known"]


DIALECTS = ["function_call", "cot_chat", "mcp_xml"]


async def test_a_call_that_the_server_passed_on_as_text_is_announced_under_the_id_that_it_runs_under() -> None:
    written = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"key": "a"}}\n</tool_call>'
    named, started, ended = of(await run_agent([Turn(written), answer("42")]), "tool_call")
    assert {data["tool_call_id"] for data in (named, started, ended)} == {"main:0.0"}
    assert (named["tool_name"], started["tool_name"], ended["ok"]) == ("look", "look", True)
    assert "handle" not in named


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_call_has_one_id_from_its_first_letter_to_its_result(dialect: str) -> None:
    script = [call("look", key="a"), call("look", key="b"), answer("42")]
    told = of(await run_agent(script, {"dialect": dialect}), "tool_call")
    calls: dict[str, list[dict[str, Any]]] = {}
    for data in told:
        calls.setdefault(data["tool_call_id"], []).append(data)
    assert list(calls) == ["main:0.0", "main:1.0"]
    for data, key, handle in zip(calls.values(), "ab", ("r1", "r2"), strict=True):
        named, *pieces, started, ended = data
        assert (named["tool_name"], named["message_id"]) == ("look", f"main:0:{int(handle[1]) - 1}")
        assert json.loads("".join(piece["delta_input"] for piece in pieces)) == {"key": key}
        assert (started["handle"], json.loads(started["tool_input"])) == (handle, {"key": key})
        assert (ended["handle"], ended["ok"]) == (handle, True)


async def test_concurrent_calls_of_one_reply_have_their_own_ids() -> None:
    script = [Turn("Both.", calls=[call("look", key="a"), call("look", key="b")]), answer("42")]
    told = of(await run_agent(script), "tool_call")
    written: dict[str, str] = {}
    for data in told:
        written[data["tool_call_id"]] = written.get(data["tool_call_id"], "") + data.get("delta_input", "")
    run = {data["tool_call_id"]: data["tool_input"] for data in told if "tool_input" in data}
    assert {place: json.loads(text) for place, text in written.items()} == {
        "main:0.0": {"key": "a"},
        "main:0.1": {"key": "b"},
    }
    assert {place: json.loads(text) for place, text in run.items()} == {
        place: json.loads(text) for place, text in written.items()
    }


async def test_a_server_that_counts_its_text_in_gives_the_calls_no_other_names() -> None:
    """Anthropic's indexes are those of content blocks: the text is the first one."""
    heard: list[dict[str, Any]] = []
    async with serve_script([Turn("I look.", calls=[call("calculate", expression="6*7")]), answer("42")]) as server:
        agent = Agent("anthropic:m", [calculate], base_url=server.url, api_key="k", home=False)
        assert (await agent.run("What?", listeners=[StreamHandler(heard.append)])).answer == "42"
    assert {data["tool_call_id"] for data in of(heard, "tool_call")} == {"main:0.0"}


async def test_a_call_that_is_not_run_has_an_end_too() -> None:
    script = [Turn("", calls=[call("look", key="a"), call("nosuch", key="b")]), answer("42")]
    last = {data["tool_call_id"]: data for data in of(await run_agent(script), "tool_call")}
    refused = last["main:0.1"]
    assert (refused["tool_name"], refused["ok"], refused["run"]) == ("nosuch", False, False)
    assert 'No tool is named "nosuch"' in refused["result"]
    assert last["main:0.0"]["ok"] is True
    assert "run" not in last["main:0.0"]


async def test_a_call_that_is_written_again_has_another_id() -> None:
    heard = await run_agent([call("look", key="a"), answer("42")], misbehave=once("truncated"))
    told = of(heard, "tool_call")
    ids = {data["tool_call_id"]: data.get("message_id", "") for data in told if "message_id" in data}
    assert [*ids] == ["main:0.0", "main:1.0"]
    assert {data["tool_call_id"] for data in told if "handle" in data} == {"main:1.0"}
    assert of(heard, "discard")[0]["message_id"] == ids["main:0.0"]


async def test_a_resumed_runs_calls_have_the_ids_that_they_had(home: Path) -> None:
    heard: list[dict[str, Any]] = []

    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        return "known"

    agent = Agent(ScriptedClient([call("look", key="a"), answer("42")]), [look], home=home)
    await agent.run("What?", run_id="r1")
    await agent.resume("r1", listeners=[StreamHandler(heard.append)])
    assert {data["tool_call_id"] for data in of(heard, "tool_call")} == {"main:0.0"}


async def test_a_reply_that_does_not_count_is_discarded() -> None:
    heard = await run_agent([call("look", key="a"), answer("42")], misbehave=once("empty"))
    assert [data["reason"] for data in of(heard, "discard")] == ["empty"]


async def test_one_handler_tells_runs_that_are_led_at_once_each_under_its_own_name() -> None:
    heard: list[dict[str, Any]] = []
    agent = Agent(ScriptedClient(lambda view: answer(view.question), by="question"), home=False)
    handler = StreamHandler(heard.append)
    await asyncio.gather(*(agent.run(task, listeners=[handler]) for task in ("one", "two", "three")))

    starts, ends = of(heard, "start_of_workflow"), of(heard, "end_of_workflow")
    asked = {data["workflow_id"]: data["input"][0]["content"] for data in starts}
    assert sorted(asked.values()) == ["one", "three", "two"]
    assert {data["workflow_id"]: data["answer"] for data in ends} == asked
    for kind in ("start_of_agent", "end_of_agent", "start_of_llm"):
        assert {data["workflow_id"] for data in of(heard, kind)} == set(asked)


async def test_a_resumed_run_begins_with_what_it_was_asked(home: Path) -> None:
    agent = Agent(ScriptedClient([answer("42")]), home=home)
    await agent.run("What?", run_id="r1")
    heard: list[dict[str, Any]] = []
    await agent.resume("r1", listeners=[StreamHandler(heard.append)])
    start, end = heard[0], heard[-1]
    assert (start["event"], end["event"]) == ("start_of_workflow", "end_of_workflow")
    assert start["data"]["input"] == [{"role": "user", "content": "What?"}]
    assert (start["data"]["run_id"], start["data"]["resumed"]) == ("r1", True)
    assert start["data"]["workflow_id"] == end["data"]["workflow_id"] != ""


async def test_working_agents_are_reported_as_ended_when_a_run_is_interrupted() -> None:
    heard: list[dict[str, Any]] = []
    asked = asyncio.Event()

    def script(view: RequestView) -> Turn:
        asked.set()
        return answer("42")

    clerk = Agent(ScriptedClient(script, misbehave="hang"))
    chief = Agent(ScriptedClient([call("clerk", task="find out")]), [clerk.as_tool("clerk", "Finds out.")], home=False)
    running = asyncio.ensure_future(chief.run("What?", listeners=[StreamHandler(heard.append)]))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    begun, ended = of(heard, "start_of_agent"), of(heard, "end_of_agent")
    assert {data["agent_id"] for data in begun} == {data["agent_id"] for data in ended}
    assert len(begun) == 2
    assert heard[-1]["data"]["status"] == "cancelled"


async def test_messages_of_further_attempts_have_names_of_their_own() -> None:
    def script(view: RequestView) -> Any:
        if "attempt ends here" in view.text:
            return say("Failure type: incomplete\nUseful findings: it is 42")
        return answer("42") if "it is 42" in view.question else Turn("Hm.", calls=[call("look", key=str(view.number))])

    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        return f"known of {key}"

    heard: list[dict[str, Any]] = []
    agent = Agent(ScriptedClient(script), [look], home=False, max_turns=1, context_compress_limit=1)
    assert (await agent.run("What?", listeners=[StreamHandler(heard.append)])).attempts == 2
    texts: dict[str, str] = {}
    for data in of(heard, "message"):
        texts[data["message_id"]] = texts.get(data["message_id"], "") + data["delta"]["content"]
    assert texts == {"main:0:0": "Hm.", "main:1:0": "The answer is \\boxed{42}."}


@pytest.mark.parametrize("put", [None, lambda event: 1 / 0])
async def test_no_listener_and_a_failing_listener_are_harmless(put: Any) -> None:
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


def test_a_call_keeps_its_id_when_a_strategy_sends_other_requests_before_it_runs() -> None:
    heard: list[dict[str, Any]] = []
    stream = StreamHandler(heard.append).for_run(RunInfo("run", ev.RunStarted("main", "What?")))
    for event in (
        ev.ModelRequested("main", 0),
        Progress("main", 0, "tool_name", "look"),
        ev.ModelReplied("main", 0),
        ev.ModelRequested("main", 1, purpose="weigh"),
        ev.ModelReplied("main", 1, "0.9"),
        ev.ToolStarted("main", "r1", "look", arguments="{}"),
        ev.ToolFinished("main", "r1", "look", ok=True, record="{}"),
    ):
        stream(event)
    assert [data["tool_call_id"] for data in of(heard, "tool_call")] == ["main:0.0"] * 3
    assert [data["purpose"] for data in of(heard, "start_of_llm")] == ["act", "weigh"]
