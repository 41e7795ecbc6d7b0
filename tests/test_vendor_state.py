"""What a vendor attaches to a reply goes back to the same vendor as it came, wherever the conversation continues."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.errors import ModelError
from closeout.journal.events import ModelReplied, TurnAccepted, read_event
from closeout.messages import Message, ToolCall
from closeout.models.anthropic import conversation, read_message
from closeout.models.base import assistant_message
from closeout.models.openai import OpenAIStream, read_completion
from closeout.models.openai_messages import MessageEncoder
from closeout.models.streaming import ReplyBuilder
from closeout.testing import ScriptedClient, answer, call, serve_script
from closeout.testing.scripted_server import ScriptedServer
from closeout.testing.vendors import VENDORS

SCRIPT = [call("lookup", key="k1"), call("lookup", key="k2"), answer("42")]
EVERY = pytest.mark.parametrize("vendor", VENDORS)
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@tool(read_only=True)
def lookup(key: str) -> str:
    """Look a key up."""
    return f"value of {key}"


def agent(server: ScriptedServer, vendor: str, **options: Any) -> Agent:
    anthropic = vendor == "anthropic"
    model = "anthropic:m" if anthropic else "openai:m"
    return Agent(model, [lookup], base_url=server.url if anthropic else server.base_url, api_key="k", **options)


def refusals(server: ScriptedServer) -> int:
    """The requests that the server refused."""
    return sum(received.turn == 0 for received in server.requests)


def by_model(body: dict) -> list[dict]:
    return [message for message in body["messages"] if message["role"] == "assistant"]


@EVERY
@STREAMED
async def test_a_run_sends_it_back(vendor: str, stream: bool):
    async with serve_script(SCRIPT, vendor=vendor) as server:
        result = await agent(server, vendor, stream=stream).run("What is k1?")
    assert (result.answer, result.rollbacks, refusals(server)) == ("42", 0, 0)


@EVERY
@STREAMED
async def test_a_session_sends_it_back(vendor: str, stream: bool):
    async with serve_script(SCRIPT * 2, vendor=vendor) as server:
        session = agent(server, vendor, stream=stream).session("s")
        await session.run("What is k1?")
        session = agent(server, vendor, stream=stream).session("s")  # reads the journal
        result = await session.run("And k2?")
    assert (result.answer, result.rollbacks, refusals(server)) == ("42", 0, 0)


@pytest.mark.parametrize("vendor", ["gemini", "anthropic"])
async def test_calls_of_a_server_that_numbers_those_of_each_reply_have_ids_of_their_own(vendor: str, home: Any):
    script = [*(ToolCall("lookup", {"key": key}, "c1") for key in ("k1", "k2", "k3")), answer("42")]
    async with serve_script(script * 2, vendor=vendor) as server:
        assert (await agent(server, vendor).session("s").run("What is k1?")).answer == "42"
        assert (await agent(server, vendor).session("s").run("And k2?")).answer == "42"
        assert refusals(server) == 0, "what the vendor attached to a call is found although its id is another one"
    body = server.requests[-1].json
    blocks = [block for message in body["messages"] for block in message["content"] or () if isinstance(block, dict)]
    called = [block["id"] for block in blocks if block.get("type") == "tool_use"]
    called += [each["id"] for message in body["messages"] for each in message.get("tool_calls", ())]
    returned = [block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"]
    returned += [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
    assert called == returned
    assert (called[0], len(called), len(set(called))) == ("c1", 6, 6)


@EVERY
async def test_a_resumed_run_sends_it_back(vendor: str):
    script = [*SCRIPT[:2], ModelError("The server stops."), *SCRIPT[2:]]
    async with serve_script(script, vendor=vendor) as server:
        first = await agent(server, vendor).run("What is k1?", run_id="r")
        assert first.status == "failed"
        script.pop(2)
        result = await agent(server, vendor).resume("r")
    assert (result.answer, result.rollbacks) == ("42", 0)
    assert server.requests[-1].turn != 0  # not refused


@EVERY
async def test_a_fork_sends_it_back(vendor: str):
    async with serve_script([*SCRIPT, answer("43")], vendor=vendor) as server:
        await agent(server, vendor).run("What is k1?", run_id="r")
        result = await agent(server, vendor).fork("r", at=2)
    assert (result.answer, refusals(server)) == ("43", 0)


@pytest.mark.parametrize("vendor", ["gemini", "openrouter", "anthropic"])
async def test_another_server_does_not_get_it(vendor: str):
    async with serve_script(SCRIPT, vendor=vendor) as server, serve_script([answer("43")]) as other:
        await agent(server, vendor).run("What is k1?", run_id="r")
        result = await agent(other, vendor).fork("r", at=2)
    assert result.answer == "43"
    sent = other.requests[0].body.decode()
    assert not any(word in sent for word in ("attached", "extra_content", "reasoning_details", "thinking", "c2ln"))


async def test_a_server_that_does_not_take_its_own_fields_back_is_asked_again_without():
    def strict(messages: Sequence[dict]) -> str | None:
        return "property 'extra_content' is unsupported" if "extra_content" in json.dumps(messages) else None

    async with serve_script(SCRIPT, vendor="gemini") as server:
        server._vendor = type(VENDORS["gemini"])(VENDORS["gemini"].attach, strict)
        result = await agent(server, "gemini").run("What is k1?")
    assert (result.answer, refusals(server)) == ("42", 1)


THOUGHT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello", "reasoning_content": "They greet."},
]


@STREAMED
async def test_cerebras_gets_its_reasoning_under_its_own_name(stream: bool):
    script = [*SCRIPT[:2], ModelError("The server stops.", status=403), *SCRIPT[2:]]
    async with serve_script(script, vendor="cerebras") as server:
        await agent(server, "cerebras", stream=stream).run("What is k1?", run_id="r")
        script.pop(2)
        result = await agent(server, "cerebras", stream=stream).resume("r")  # a new client, which learned nothing
    assert (result.answer, refusals(server)) == ("42", 1)  # the one of the script
    assert [message["reasoning"] for message in by_model(server.requests[-1].json)] == ["Thought 1.", "Thought 2."]


@pytest.mark.parametrize("vendor", ["cerebras", "groq"])
async def test_a_server_that_refuses_the_reasoning_of_others_gets_its_own_only(vendor: str):
    async with serve_script(SCRIPT, vendor=vendor) as server:
        result = await agent(server, vendor).run("What is k1?", history=THOUGHT)
    assert (result.answer, result.rollbacks, refusals(server)) == ("42", 0, 1)
    foreign, *own = by_model(server.requests[-1].json)
    assert "reasoning_content" not in foreign
    assert all(message.get("reasoning") for message in own) == (vendor == "cerebras")


async def test_deepseek_gets_an_empty_thought_for_answers_of_other_models():
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    async with serve_script(SCRIPT, vendor="deepseek") as server:
        result = await agent(server, "deepseek").run("What is k1?", history=history)
    assert (result.answer, refusals(server)) == ("42", 1)
    assert [message["reasoning_content"] for message in by_model(server.requests[-1].json)] == ["", "", ""]


async def test_gemini_gets_a_signature_for_calls_of_other_models_and_those_written_as_text():
    written = '<tool_call>\n{"name": "lookup", "arguments": {"key": "k1"}}\n</tool_call>'
    async with serve_script([written, *SCRIPT[1:]], vendor="gemini") as server:
        result = await agent(server, "gemini").run("What is k1?", run_id="r")
        assert (result.answer, refusals(server)) == ("42", 1)
        async with serve_script(SCRIPT) as other:
            await agent(other, "").run("What is k1?", run_id="s")
        result = await agent(server, "gemini").fork("s", at=3)
    assert (result.answer, refusals(server)) == ("42", 1)  # remembered for the server


@pytest.mark.parametrize("vendor", ["anthropic", "gemini", "openrouter"])
async def test_it_is_sent_back_after_results_were_left_out(vendor: str):
    script = [*(call("lookup", key=f"k{number}") for number in range(20)), answer("42")]
    async with serve_script(script, vendor=vendor) as server:
        result = await agent(server, vendor, keep_tool_result=1).run("What is k1?")
    assert "left out to save room" in server.requests[-1].body.decode()
    assert (result.answer, refusals(server)) == ("42", 0)


@EVERY
async def test_a_sub_agent_sends_it_back(vendor: str):
    async with serve_script(SCRIPT, vendor=vendor, by="question") as server:
        script = ScriptedClient([call("researcher", task="What is k1?"), answer("43")])
        researcher = agent(server, vendor).as_tool("researcher", "Looks things up.")
        result = await Agent(script, [researcher]).run("What is it?")
    assert (result.answer, len(server.requests), refusals(server)) == ("43", 3, 0)


async def test_mistral_gets_nine_letters_for_the_ids_of_others_and_of_calls_written_as_text():
    written = '<tool_call>\n{"name": "lookup", "arguments": {"key": "k1"}}\n</tool_call>'
    async with serve_script([written, *SCRIPT[1:]], vendor="mistral") as server:
        result = await agent(server, "mistral").run("What is k1?")
    assert (result.answer, refusals(server)) == ("42", 1)
    ids = [call["id"] for message in by_model(server.requests[-1].json) for call in message["tool_calls"]]
    assert ids[1] == "id0002000"  # its own is unchanged


def test_events_of_earlier_versions_are_read():
    old = {"agent": "main", "call": 0, "text": "hi", "reasoning_details": [{"type": "thinking"}], "usage": {}}
    replied = read_event("ModelReplied", old)
    assert isinstance(replied, ModelReplied)
    assert replied.reply().attached == {}
    accepted = read_event("TurnAccepted", {"agent": "main", "attempt": 0, "turn": 0, "text": "hi"})
    assert isinstance(accepted, TurnAccepted)
    assert accepted.step().attached == {}


# ------------------------------------------------------------------------------------------------ what is kept


SERVER = "openai http://here"


def sent(message: dict, **options: Any) -> dict:
    return json.loads(MessageEncoder(SERVER, **options)(Message(message)))


def test_reasoning_details_in_pieces_are_put_together():
    builder = ReplyBuilder()
    stream = OpenAIStream(builder, lambda _: None)
    details = [
        {"type": "reasoning.text", "text": "a", "format": "f", "index": 0},
        {"type": "reasoning.text", "text": "b", "index": 0},
        {"type": "reasoning.text", "text": "c", "signature": "s", "index": 0},
        {"type": "reasoning.encrypted", "data": "x", "index": 1},
    ]
    for detail in details:
        stream.take({"choices": [{"delta": {"reasoning": "t", "reasoning_details": [detail]}}]})
    assert stream.attached["message"]["reasoning_details"] == [
        {"type": "reasoning.text", "text": "abc", "format": "f", "signature": "s", "index": 0},
        {"type": "reasoning.encrypted", "data": "x", "index": 1},
    ]


def test_nothing_is_kept_of_a_plain_reply():
    message = {"role": "assistant", "content": "hi", "refusal": None, "annotations": [], "audio": None, "x": None}
    assert read_completion({"choices": [{"message": message, "finish_reason": "stop"}]}).attached == {}
    assert read_message({"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"}).attached == {}


def test_fields_of_a_call_are_found_by_its_id_and_never_replace_ours():
    attached = {"server": SERVER, "message": {"role": "system", "x": 1}, "calls": {"c2": {"id": "no", "y": 2}}}
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in ("c1", "c2")]
    body = sent({"role": "assistant", "content": None, "tool_calls": calls, "attached": attached})
    assert body == {"role": "assistant", "content": None, "x": 1, "tool_calls": [calls[0], {**calls[1], "y": 2}]}
    assert "x" not in sent({"role": "assistant", "content": "", "attached": {**attached, "server": "other"}})


def test_the_blocks_of_a_message_keep_their_order():
    blocks = [
        {"type": "thinking", "thinking": "1", "signature": "s1"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "lookup", "input": {"key": "typo"}},
        {"type": "redacted_thinking", "data": "r"},
        {"type": "tool_use", "id": "c2", "name": "lookup", "input": {"key": "k2"}},
    ]
    reply = read_message({"content": blocks, "stop_reason": "tool_use"})
    message = assistant_message(replace(reply, attached={"server": "here", **reply.attached}))
    repaired = json.loads(json.dumps(message).replace("typo", "k1"))
    _, turns = conversation([Message(repaired)], (), MessageEncoder(server="here"))
    assert json.loads(turns)[0]["content"] == json.loads(json.dumps(blocks).replace("typo", "k1"))
    _, turns = conversation([Message(repaired)], (), MessageEncoder(server="elsewhere"))
    assert [block["type"] for block in json.loads(turns)[0]["content"]] == ["text", "tool_use", "tool_use"]
