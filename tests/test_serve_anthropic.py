"""A served agent as the official `anthropic` client sees it, whole and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest

from closeout import Agent, tool
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from serving import Served, serving

ASKED: Any = [{"role": "user", "content": "What is k1?"}]


@tool(read_only=True)
def lookup(key: str) -> str:
    """Look up a key."""
    return f"[{key}] is 42"


def turns(view: RequestView) -> Turn:
    return answer("It is 42.") if "is 42" in view.text else call("lookup", key="k1")


@asynccontextmanager
async def a_client(agent: Agent[Any] | None = None, **options: Any) -> AsyncIterator[tuple[Any, Served]]:
    agent = agent or Agent(ScriptedClient(turns), [lookup], name="helper")
    async with serving(agent, **options) as served:
        address = served.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=address, api_key="the-right-key", max_retries=0) as client:
            yield client, served


async def test_a_message_is_the_answer_of_a_run() -> None:
    async with a_client() as (client, served):
        message = await client.messages.create(model="helper", max_tokens=100, messages=ASKED)
        assert [block.text for block in message.content] == ["It is 42."]
        assert (message.stop_reason, message.model, message.role) == ("end_turn", "helper", "assistant")
        assert message.usage.input_tokens > 0
        assert served.host.store.run(message.id.removeprefix("msg_")).status == "answered"


async def test_a_streamed_message_is_the_same() -> None:
    async with (
        a_client() as (client, _),
        client.messages.stream(model="helper", max_tokens=9, messages=ASKED) as stream,
    ):
        pieces = [piece async for piece in stream.text_stream]
        message = await stream.get_final_message()
    assert "".join(pieces) == message.content[0].text == "It is 42."
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 0


async def test_system_and_earlier_messages_reach_the_model_without_thoughts() -> None:
    def play(view: RequestView) -> Turn:
        shown = [(message["role"], message["content"]) for message in view.messages][-4:]
        assert shown == [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "And?")]
        return answer("yes")

    async with a_client(Agent(ScriptedClient(play), name="helper")) as (client, _):
        said: Any = [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "Hello"},
                ],
            },
            {"role": "user", "content": "And?"},
        ]
        system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
        message = await client.messages.create(model="helper", max_tokens=9, system=system, messages=said)
        assert message.content[0].text == "yes"


async def test_a_client_chooses_the_form_of_the_answer() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with a_client(Agent(ScriptedClient([answer("many"), answer('{"n": 5}')]), name="helper")) as (client, _):
        form = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
        message = await client.messages.create(model="helper", max_tokens=9, messages=ASKED, extra_body=form)
    assert message.content[0].text == '{"n":5}'


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"model": "claude"}, anthropic.NotFoundError, "Use 'helper'"),
        ({"messages": []}, anthropic.BadRequestError, "at least one message"),
        ({"tools": [{"name": "f", "input_schema": {"type": "object"}}]}, anthropic.BadRequestError, "its own tools"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            anthropic.BadRequestError,
            "without content",
        ),
        ({"extra_body": {"system": 5}}, anthropic.BadRequestError, "must be a text or a list"),
    ],
)
async def test_a_request_that_cannot_be_served_says_why(changes: Any, kind: Any, said: str) -> None:
    async with a_client() as (client, served):
        with pytest.raises(kind, match=said) as found:
            await client.messages.create(**{"model": "helper", "max_tokens": 9, "messages": ASKED, **changes})
        assert found.value.body["type"] == "error"
        assert served.host.store.runs() == []


async def test_a_run_without_an_answer_is_an_error_whole_and_streamed() -> None:
    def fail(view: RequestView) -> Turn:
        raise RuntimeError("The model is broken.")

    async with a_client(Agent(ScriptedClient(fail), name="helper")) as (client, _):
        with pytest.raises(anthropic.InternalServerError, match="run "):
            await client.messages.create(model="helper", max_tokens=9, messages=ASKED)
        with pytest.raises(anthropic.APIError):
            async with client.messages.stream(model="helper", max_tokens=9, messages=ASKED) as stream:
                await stream.get_final_message()


async def test_a_client_that_leaves_cancels_its_run() -> None:
    entered = asyncio.Event()

    @tool(read_only=True)
    async def hang() -> str:
        """Wait."""
        entered.set()
        await asyncio.sleep(600)
        return "never"

    async with a_client(Agent(ScriptedClient([call("hang")]), [hang], name="helper")) as (client, served):
        asking = asyncio.create_task(client.messages.create(model="helper", max_tokens=9, messages=ASKED))
        await entered.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        (run,) = served.host.store.runs()
        await served.host.wait(run.run_id, timeout=60)
        assert served.host.store.run(run.run_id).status == "cancelled"


async def test_a_key_is_asked_for_as_everywhere() -> None:
    async with a_client(keys=["another-right-key"]) as (client, _):
        with pytest.raises(anthropic.AuthenticationError, match="API key is missing or wrong"):
            await client.messages.create(model="helper", max_tokens=9, messages=ASKED)
