"""A served agent as the official `openai` client sees it: Chat Completions and Responses, whole and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from closeout import Agent, Boxed, tool
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from serving import Served, serving

WHOLE = "response.completed"


@tool(read_only=True)
def lookup(key: str) -> str:
    """Look up a key."""
    return f"[{key}] is 42"


def turns(view: RequestView) -> Turn:
    """Look the key up, wrongly first, then answer."""
    if "is 42" in view.text:
        return answer("42", thought="I know it now.")
    return call("lookup", Key=view.question.split()[-1].rstrip("?"))


@asynccontextmanager
async def a_client(agent: Agent[Any] | None = None, **options: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, Served]]:
    agent = agent or Agent(ScriptedClient(turns), [lookup], name="helper")
    async with (
        serving(agent, **options) as served,
        openai.DefaultAsyncHttpxClient(verify=False) as http,  # reads no certificates, which takes longer than a test
        openai.AsyncOpenAI(base_url=served.base_url, api_key="a key", max_retries=0, http_client=http) as client,
    ):
        yield client, served


class Gate:
    """A tool that waits until it is opened."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    def agent(self, name: str = "helper") -> Agent[Any]:
        @tool(read_only=True)
        async def wait_for_it() -> str:
            """Wait."""
            self.entered.set()
            await self.opened.wait()
            return "open"

        def play(view: RequestView) -> Turn:
            return answer("through") if "open" in view.text else call("wait_for_it")

        return Agent(ScriptedClient(play), [wait_for_it], name=name)


# ------------------------------------------------------------------------------------------------ Chat Completions


async def test_the_agent_is_a_model() -> None:
    async with a_client() as (client, _):
        assert [model.id async for model in client.models.list()] == ["helper"]
        assert (await client.models.retrieve("helper")).owned_by == "closeout"


async def test_a_chat_completion_is_the_answer_of_a_run() -> None:
    async with a_client() as (client, served):
        found = await client.chat.completions.with_raw_response.create(
            model="helper", messages=[{"role": "user", "content": "What is k1?"}]
        )
        completion = found.parse()
        assert completion.choices[0].message.content == "42"
        assert completion.choices[0].finish_reason == "stop"
        assert completion.usage is not None
        assert completion.usage.prompt_tokens > 0
        run_id = found.headers["X-Closeout-Run-Id"]
        assert completion.id == f"chatcmpl-{run_id}"
        assert served.host.store.run(run_id).status == "answered"


async def test_a_streamed_chat_completion_shows_activity_and_ends_with_the_answer() -> None:
    async with a_client() as (client, _):
        stream = await client.chat.completions.create(
            model="helper",
            messages=[{"role": "user", "content": "What is k1?"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "42"
    assert any('lookup {"key":"k1"}' in getattr(delta, "reasoning_content", "") for delta in deltas)
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None


async def test_the_conversation_before_the_task_reaches_the_model() -> None:
    def play(view: RequestView) -> Turn:
        shown = [(message["role"], message["content"]) for message in view.messages][-4:]
        assert shown == [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "And?")]
        return answer("yes")

    async with a_client(Agent(ScriptedClient(play), name="helper")) as (client, _):
        completion = await client.chat.completions.create(
            model="helper",
            messages=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "And?"},
            ],
        )
    assert completion.choices[0].message.content == "yes"


async def test_a_run_without_an_answer_is_an_error_that_is_not_repeated() -> None:
    agent = Agent(ScriptedClient(lambda _: call("lookup", key="k1")), [lookup], max_turns=1, name="helper")
    async with a_client(agent) as (client, served):
        patient = client.with_options(max_retries=2)
        with pytest.raises(openai.InternalServerError, match="run ") as raised:
            await patient.chat.completions.create(model="helper", messages=[{"role": "user", "content": "k1?"}])
        assert isinstance(raised.value.code, str)
        assert len(served.host.store.runs()) == 1
        stream = await client.chat.completions.create(
            model="helper", messages=[{"role": "user", "content": "k1?"}], stream=True
        )
        with pytest.raises(openai.APIError):
            [chunk async for chunk in stream]


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError, "Use 'helper'"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError, "its own tools"),
        ({"response_format": {"type": "xml"}}, openai.BadRequestError, "must be text, json_object, or json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}},
            openai.BadRequestError,
            "The schema of response_format cannot be used",
        ),
        ({"n": 2}, openai.BadRequestError, "one answer"),
        ({"messages": []}, openai.BadRequestError, "at least one message"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, openai.BadRequestError, "must be the user's"),
        ({"messages": [{"role": "tool", "content": "x"}]}, openai.BadRequestError, "its own tools"),
        ({"messages": [{"role": "user", "content": " "}]}, openai.BadRequestError, "the task, and it is empty"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            openai.BadRequestError,
            "without content",
        ),
    ],
)
async def test_a_request_that_cannot_be_served_says_why(changes: Any, kind: Any, said: str) -> None:
    async with a_client() as (client, served):
        request: Any = {"model": "helper", "messages": [{"role": "user", "content": "k1?"}], **changes}
        with pytest.raises(kind, match=said):
            await client.chat.completions.create(**request)
        assert served.host.store.runs() == []


async def test_a_chat_client_that_leaves_cancels_its_run() -> None:
    gate = Gate()
    async with a_client(gate.agent()) as (client, served):
        stream = await client.chat.completions.create(
            model="helper", messages=[{"role": "user", "content": "?"}], stream=True
        )
        await gate.entered.wait()
        (record,) = served.host.store.runs()
        await stream.close()
        await served.host.wait(record.run_id)
        assert served.host.store.run(record.run_id).status == "cancelled"


# ------------------------------------------------------------------------------------------------ Responses


async def test_a_response_has_the_tool_activity_and_the_answer_as_items() -> None:
    async with a_client() as (client, served):
        response = await client.responses.create(model="helper", input="What is k1?", metadata={"for": "a test"})
        assert response.output_text == "42"
        assert response.status == "completed"
        assert response.metadata is not None
        assert response.metadata["for"] == "a test"
        assert served.host.store.run(response.metadata["run_id"]).status == "answered"
        (called,) = [item for item in response.output if item.type == "mcp_call"]
        assert (called.name, called.arguments, called.output) == ("lookup", '{"key":"k1"}', "[k1] is 42")
        again = await client.responses.retrieve(response.id)
        assert again == response


async def test_the_stream_and_the_response_agree() -> None:
    async with a_client() as (client, _):
        async with client.responses.stream(model="helper", input="What is k1?") as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
        assert events[-1].type == WHOLE
        added = {event.output_index for event in events if event.type == "response.output_item.added"}
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert added == set(range(len(final.output)))
        assert sorted(item.id or "" for item in done) == sorted(item.id or "" for item in final.output)
        assert [item.id for item in (await client.responses.retrieve(final.id)).output] == [i.id for i in final.output]


async def test_a_stream_continues_at_every_sequence_number() -> None:
    async with a_client() as (client, _):
        stream = await client.responses.create(model="helper", input="What is k1?", stream=True)
        events = [event async for event in stream]
        response: Any = events[0]
        for number in range(len(events)):
            rest = await client.responses.retrieve(response.response.id, stream=True, starting_after=number)
            assert [event async for event in rest] == events[number + 1 :]


async def test_a_client_that_was_cut_off_continues_while_the_run_goes_on() -> None:
    gate = Gate()
    async with a_client(gate.agent()) as (client, _):
        stream = await client.responses.create(model="helper", input="Go", stream=True)
        seen = []
        async for event in stream:
            seen.append(event)
            if event.type == "response.mcp_call.in_progress":
                break
        await stream.close()
        created: Any = seen[0]
        rest = await client.responses.retrieve(
            created.response.id, stream=True, starting_after=seen[-1].sequence_number
        )
        gate.opened.set()
        seen += [event async for event in rest]
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        last: Any = seen[-1]
        assert last.response.output_text == "through"


async def test_a_background_response_is_polled_and_cancelled() -> None:
    gate = Gate()
    async with a_client(gate.agent()) as (client, _):
        response = await client.responses.create(model="helper", input="Go", background=True)
        assert response.status in ("queued", "in_progress")
        await gate.entered.wait()
        assert (await client.responses.retrieve(response.id)).status == "in_progress"
        assert (await client.responses.cancel(response.id)).status == "cancelled"
        assert (await client.responses.retrieve(response.id)).status == "cancelled"


async def test_a_queued_response_can_be_cancelled_before_it_begins() -> None:
    gate = Gate()
    async with a_client(gate.agent(), max_runs=1) as (client, served):
        first = await client.responses.create(model="helper", input="Go", background=True)
        await gate.entered.wait()
        second = await client.responses.create(model="helper", input="Go", background=True)
        assert second.status == "queued"
        assert (await client.responses.cancel(second.id)).status == "cancelled"
        gate.opened.set()
        await served.host.wait(first.id.removeprefix("resp_"))
        assert (await client.responses.retrieve(first.id)).output_text == "through"


async def test_more_than_the_queue_holds_is_refused_with_429() -> None:
    gate = Gate()
    async with a_client(gate.agent(), max_runs=1, max_queue=1) as (client, _):
        for _ in range(2):
            await client.responses.create(model="helper", input="Go", background=True)
        with pytest.raises(openai.RateLimitError, match="limit"):
            await client.responses.create(model="helper", input="Go", background=True)


async def test_a_response_continues_an_earlier_one() -> None:
    def play(view: RequestView) -> Turn:
        texts = [str(message.get("content")) for message in view.messages]
        if "again" in texts[-1]:
            assert any("[k1] is 42" in text for text in texts)  # the earlier tool result
            assert not any("Be brief." in text for text in texts)  # instructions are not carried over
            return answer("still 42")
        return turns(view)

    agent = Agent(ScriptedClient(play), [lookup], name="helper")
    async with a_client(agent) as (client, _):
        first = await client.responses.create(model="helper", input="What is k1?", instructions="Be brief.")
        assert first.instructions == "Be brief."
        second = await client.responses.create(model="helper", input="And again?", previous_response_id=first.id)
        assert second.output_text == "still 42"
        assert second.previous_response_id == first.id
        # What the client got can also be sent back as input.
        third = await client.responses.create(
            model="helper",
            input=[
                {"role": "user", "content": "What is k1?"},
                *[item.to_dict() for item in first.output],  # type: ignore[list-item]
                {"role": "user", "content": "What is k2?"},
            ],
        )
        assert third.output_text == "42"


async def test_a_deleted_response_is_gone() -> None:
    async with a_client() as (client, served):
        response = await client.responses.create(model="helper", input="What is k1?")
        await client.responses.delete(response.id)
        assert served.host.store.runs() == []
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="helper", input="?", previous_response_id=response.id)


async def test_limits_make_a_response_incomplete_and_failures_make_it_fail() -> None:
    stuck = Agent(ScriptedClient(lambda _: "I cannot say."), answer=Boxed(), max_turns=1, name="helper")
    async with a_client(stuck) as (client, _):
        response = await client.responses.create(model="helper", input="What is k1?")
        assert response.status in ("incomplete", "failed")
        assert response.metadata is not None
        assert response.metadata["stop_reason"] != "answered"

    def broken(_: RequestView) -> Turn:
        raise openai.OpenAIError("no")

    async with a_client(Agent(ScriptedClient(broken), name="other")) as (client, _):
        response = await client.responses.create(model="other", input="What is k1?")
        assert response.status == "failed"
        assert response.error is not None
        stream = await client.responses.create(model="other", input="What is k1?", stream=True)
        assert [event.type async for event in stream][-1] == "response.failed"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input": []}, "at least one item"),
        ({"input": 5}, "at least one item"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "calls its own tools"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"text": {"format": {"type": "json_schema"}}}, "json_schema with a schema"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"instructions": ["x"]}, "instructions"),
        ({"tools": [{"type": "web_search"}]}, "its own tools"),
    ],
)
async def test_a_response_that_cannot_be_made_says_why(changes: Any, said: str) -> None:
    async with a_client() as (client, served):
        request: Any = {"model": "helper", "input": "k1?", **changes}
        with pytest.raises(openai.BadRequestError, match=said):
            await client.responses.create(**request)
        assert served.host.store.runs() == []


async def test_runs_that_were_not_made_here_are_not_shown() -> None:
    agent = Agent(ScriptedClient(turns), [lookup], name="helper")
    result = await agent.run("What is k1?")
    async with a_client(agent) as (client, _):
        for response in (f"resp_{result.run_id}", "resp_none", "../../etc/passwd"):
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(response)


def test_the_synchronous_client_works_too() -> None:
    async def serve_and_ask() -> list[str]:
        async with serving(Agent(ScriptedClient(turns), [lookup], name="helper")) as served:

            def ask() -> list[str]:
                with openai.OpenAI(base_url=served.base_url, api_key="a key") as client:
                    whole = client.responses.create(model="helper", input="What is k1?").output_text
                    with client.responses.stream(model="helper", input="What is k2?") as stream:
                        streamed = stream.get_final_response().output_text
                    chat = client.chat.completions.create(
                        model="helper", messages=[{"role": "user", "content": "What is k3?"}]
                    )
                    return [whole, streamed, str(chat.choices[0].message.content)]

            return await asyncio.to_thread(ask)

    assert asyncio.run(serve_and_ask()) == ["42"] * 3


# ------------------------------------------------------------------------------------------------ forms and items


class City(BaseModel):
    """What the client wants."""

    name: str
    people: int


def as_city(view: RequestView) -> Turn:
    """Answer in words first; then, told what is wrong, in JSON."""
    return answer('{"name": "Bern", "people": 134794}' if "JSON" in view.text.split("Bern?")[-1] else "Bern has many.")


async def test_a_client_chooses_the_form_of_the_answer() -> None:
    messages: Any = [{"role": "user", "content": "Bern?"}]
    async with a_client(Agent(ScriptedClient(as_city), name="helper")) as (client, served):
        chat = await client.chat.completions.parse(model="helper", messages=messages, response_format=City)
        assert chat.choices[0].message.parsed == City(name="Bern", people=134794)
        response = await client.responses.parse(model="helper", input="Bern?", text_format=City)
        assert response.output_parsed == City(name="Bern", people=134794)
        async with client.chat.completions.stream(model="helper", messages=messages, response_format=City) as stream:
            streamed = await stream.get_final_completion()
        assert streamed.choices[0].message.parsed == City(name="Bern", people=134794)
        free = await client.chat.completions.create(model="helper", messages=messages, response_format={"type": "text"})
        assert free.choices[0].message.content == "Bern has many."
        assert len(served.host.store.runs()) == 4


async def test_an_agent_with_a_form_of_its_own_takes_no_other() -> None:
    async with a_client(Agent(ScriptedClient([answer("\\boxed{1}")]), answer=Boxed(), name="helper")) as (client, _):
        with pytest.raises(openai.BadRequestError, match="have a form of their own"):
            await client.responses.parse(model="helper", input="Bern?", text_format=City)


async def test_a_run_with_a_form_of_its_client_survives_the_server(tmp_path: Path) -> None:
    gate = Gate()
    asked: list[str] = []

    def play(view: RequestView) -> Turn:
        asked.append(view.text)
        return answer('{"name": "Bern", "people": 1}') if "open" in view.text else call("wait_for_it")

    def agent() -> Agent[Any]:
        return Agent(ScriptedClient(play), gate.agent().plan().manager.local_tools[:1], name="helper", home=tmp_path)

    form: Any = {"format": {"type": "json_schema", "name": "city", "schema": City.model_json_schema()}}
    async with a_client(agent(), drain_seconds=0.0) as (client, _):
        begun = await client.responses.create(model="helper", input="Bern?", text=form, background=True)
        await gate.entered.wait()
    gate.opened.set()
    async with a_client(agent()) as (client, _):
        async for event in await client.responses.retrieve(begun.id, stream=True):
            ended = event
    assert ended.type == WHOLE
    assert ended.response.output_text == '{"name":"Bern","people":1}'


async def test_the_messages_that_a_response_answers_are_listed() -> None:
    async with a_client() as (client, _):
        first = await client.responses.create(model="helper", input="What is k1?", instructions="Be brief.")
        second = await client.responses.create(model="helper", input="What is k2?", previous_response_id=first.id)
        items = [item async for item in client.responses.input_items.list(first.id, order="asc")]
        assert [(item.role, item.content[0].text) for item in items] == [
            ("system", "Be brief."),
            ("user", "What is k1?"),
        ]
        newest = [item async for item in client.responses.input_items.list(second.id, limit=1)]
        assert newest[0].content[0].text == "What is k2?"
        assert len({item.id for item in newest}) == len(newest) > 2
        with pytest.raises(openai.BadRequestError, match="limit must be"):
            await client.responses.input_items.list(second.id, limit=0)
        with pytest.raises(openai.NotFoundError):
            await client.responses.input_items.list("resp_nothing")
