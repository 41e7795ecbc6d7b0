"""Replies that their server does not call finished, and calls that it rejects: never half a text as the answer."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.messages import ModelReply
from closeout.models.http_errors import rejected_text
from closeout.parsing.readers import NativeReader
from closeout.testing import ScriptedClient, always, call, once, serve_script
from closeout.testing.misbehaviour import UNFINISHED
from closeout.testing.rejections import REJECTIONS
from closeout.testing.script import say
from closeout.testing.scripted_server import ScriptedServer

TEXT = "The value of k1 is 42, which is what was asked for."
SCRIPT = [call("lookup", key="k1"), say(TEXT)]
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
SERVERS = pytest.mark.parametrize("kind", ["openai", "anthropic"])
FAULTS = pytest.mark.parametrize("fault", UNFINISHED)


@tool(read_only=True)
def lookup(key: str) -> str:
    """Look a key up."""
    return f"value of {key}"


def agent(server: ScriptedServer, kind: str = "openai", **options: Any) -> Agent:
    url = server.url if kind == "anthropic" else server.base_url
    return Agent(f"{kind}:m", [lookup], base_url=url, api_key="k", **options)


def most_identical(server: ScriptedServer) -> int:
    """How often the server received the request that it received most often."""
    return Counter(server.bodies).most_common(1)[0][1]


def test_an_agent_of_a_client_in_process_asks_again_too():
    for fault in UNFINISHED:
        result = Agent(ScriptedClient(SCRIPT, misbehave=once(fault, 2)), [lookup]).run_sync("What is k1?")
        assert (result.answer, result.rollbacks) == (TEXT, 1)


@STREAMED
async def test_a_call_in_text_that_breaks_off_is_asked_for_again_though_the_server_calls_it_finished(stream: bool):
    begun = '<tool_call>\n{"name": "lookup", "arguments": {"key": "k1"'
    async with serve_script([say(begun), *SCRIPT]) as server, agent(server) as asked:
        if stream:
            run = asked.stream("What is k1?")
            async for _ in run:
                pass
            result = run.result
        else:
            result = await asked.run("What is k1?")

    assert (result.answer, result.rollbacks) == (TEXT, 1)


@pytest.mark.parametrize("reason", ["content_filter", "missing", "something_new", "length"])
def test_only_complete_calls_of_an_unfinished_reply_count(reason: str):
    def read(arguments: str) -> tuple:
        made = call("lookup")
        reply = ModelReply(tool_calls=(type(made)("lookup", arguments, "c", text=arguments),), finish_reason=reason)
        return NativeReader().close(reply).calls

    assert [made.arguments for made in read('{"key": "k1"}')] == [{"key": "k1"}]
    assert read('{"key": "k') == read("") == ()


# ------------------------------------------------------------------------------------------------ rejected calls


@pytest.mark.parametrize("fault", [name for name, each in REJECTIONS.items() if each.holds_call])
@SERVERS
@STREAMED
async def test_a_call_in_an_error_is_run_without_another_request(fault: str, kind: str, stream: bool):
    async with serve_script(SCRIPT, misbehave=once(fault)) as server:
        result = await agent(server, kind, stream=stream).run("What is k1?")
    assert (result.answer, result.rollbacks, len(server.requests)) == (TEXT, 0, 2)
    assert [repair.kind for repair in result.repairs] == ["rejected_call", "dialect:hermes"]


@pytest.mark.parametrize("fault", [name for name, each in REJECTIONS.items() if not each.holds_call])
@STREAMED
async def test_a_call_that_the_error_does_not_hold_is_asked_for_again_in_other_words(fault: str, stream: bool):
    async with serve_script(SCRIPT, misbehave=once(fault)) as server:
        result = await agent(server, stream=stream).run("What is k1?")
    assert (result.answer, result.rollbacks, len(server.requests)) == (TEXT, 1, 3)
    first, second, _ = [received.json for received in server.requests]
    assert "temperature" not in first
    assert second["temperature"] == pytest.approx(0.8)
    assert "could not be read" in second["messages"][-1]["content"]


@pytest.mark.parametrize("fault", [name for name, each in REJECTIONS.items() if not each.holds_call])
@STREAMED
async def test_the_second_time_the_run_asks_past_the_parser(fault: str, stream: bool):
    async with serve_script(SCRIPT, misbehave=once(fault, times=2)) as server:
        result = await agent(server, stream=stream).run("What is k1?")
    assert (result.answer, result.rollbacks, len(server.requests)) == (TEXT, 2, 4)
    assert ["tools" in received.json for received in server.requests] == [True, True, False, False]
    assert any("cot_chat" in warning for warning in result.warnings)


@pytest.mark.parametrize("fault", REJECTIONS)
async def test_a_server_that_rejects_every_call_gets_no_request_more_than_three_times(fault: str):
    async with serve_script(SCRIPT, misbehave=always(fault)) as server:
        result = await agent(server).run("What is k1?")
    assert result.answer in (None, TEXT)
    assert most_identical(server) <= 3


async def test_a_resumed_run_reads_the_call_again():
    async with serve_script([*SCRIPT, say(TEXT)], misbehave=once("rejected_groq")) as server:
        await agent(server).run("What is k1?", run_id="r")
        result = await agent(server).fork("r", at=2)
    assert result.answer == TEXT
    assert [repair.kind for repair in result.repairs] == ["rejected_call", "dialect:hermes"]


def test_other_errors_hold_no_reply():
    def text(status: int, message: str, **more: Any) -> str | None:
        return rejected_text(status, json.dumps({"error": {"message": message, **more}}).encode())

    assert text(500, "The engine died.") is None
    assert text(400, "messages.3: tool call ids do not match") is None
    assert text(429, "Failed to parse tool call") is None
    assert text(500, "Failed to parse input at pos 12: of it</arg></call>") == ""
    assert text(400, "x", code="tool_use_failed", failed_generation={"name": "f"}) == '{"name":"f"}'
