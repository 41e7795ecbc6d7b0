"""A served agent's answer reaches its clients while the model writes it, and a stream reads the same again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from closeout import Agent, Boxed
from closeout.journal.events import ModelReplied, ModelRequested, ReplyStreamed, RunEnded
from closeout.journal.story import Story
from closeout.server.serve.reply_text import ReplyText
from serving import Served, WrittenModel, serving, written_model
from test_serve_crash import AGENT, client_of, process
from test_serve_openai import lookup

BEGIN = "The Moon is about 384,400 km away from the Earth, which is thirty times the diameter of the Earth. " * 3
REST = "Its distance changes by a tenth within a month."
DELTA = "response.output_text.delta"


@asynccontextmanager
async def streaming(**options: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, Served, WrittenModel]]:
    """A client, the server, and the model behind it."""
    async with written_model() as model:
        agent = Agent(
            "openai:scripted",
            [lookup],
            name="helper",
            dialect="function_call",
            config={"llm": {"base_url": model.base_url, "api_key": "none", "max_retries": 1}},
            **options,
        )
        async with serving(agent) as served, client_of(served.base_url) as client:
            yield client, served, model


async def chat_stream(client: openai.AsyncOpenAI) -> Any:
    return await client.chat.completions.create(
        model="helper", messages=[{"role": "user", "content": "How far is the Moon?"}], stream=True
    )


async def until(stream: Any, kind: str) -> list[Any]:
    """The events of a stream up to the first one of a kind."""
    seen = []
    async for event in stream:
        seen.append(event)
        if event.type == kind:
            break
    return seen


async def test_a_response_streams_the_answer_while_the_model_writes_it() -> None:
    async with streaming() as (client, _, model):
        stream = await client.responses.create(model="helper", input="How far is the Moon?", stream=True)
        reply = await model.asked()
        reply.text(BEGIN)
        seen = await until(stream, DELTA)  # although the model has not finished
        assert seen[-1].delta == BEGIN.rstrip()
        reply.text(REST)
        reply.end()
        seen += [event async for event in stream]
        last = seen[-1]
        assert last.type == "response.completed"
        assert last.response.output_text == BEGIN + REST == "".join(e.delta for e in seen if e.type == DELTA)
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        for number in (-1, 4, len(seen) - 2):
            again = await client.responses.retrieve(last.response.id, stream=True, starting_after=number)
            assert [event async for event in again] == seen[number + 1 :]
        assert (await client.responses.retrieve(last.response.id)).output == last.response.output


async def test_a_chat_completion_streams_the_answer_while_the_model_writes_it() -> None:
    async with streaming() as (client, _, model):
        stream = await chat_stream(client)
        reply = await model.asked()
        reply.text(BEGIN)
        texts = []
        async for chunk in stream:
            texts.append(chunk.choices[0].delta.content or "")
            if texts[-1]:
                break
        assert texts[-1] == BEGIN.rstrip()
        reply.text(REST)
        reply.end()
        texts += [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(texts) == BEGIN + REST


async def test_a_text_that_turns_out_not_to_be_the_answer_is_withdrawn() -> None:
    async with streaming() as (client, _, model):
        stream = await client.responses.create(model="helper", input="How far is the Moon?", stream=True)
        reply = await model.asked()
        reply.text(BEGIN)
        seen = await until(stream, DELTA)
        reply.call("lookup", key="moon")
        reply.end("tool_calls")
        second = await model.asked()
        second.text("384,400 km")
        second.end()
        seen += [event async for event in stream]
        final = seen[-1].response
        assert final.output_text == "384,400 km"
        kinds = [(item.type, item.status) for item in final.output]
        assert kinds == [
            ("message", "incomplete"),
            ("reasoning", "completed"),
            ("mcp_call", "completed"),
            ("message", "completed"),
        ]
        assert final.output[0].content == []
        assert final.output[1].summary[0].text == BEGIN


async def test_a_chat_client_keeps_what_it_got_and_the_answer_follows() -> None:
    async with streaming() as (client, _, model):
        stream = await chat_stream(client)
        reply = await model.asked()
        reply.text(BEGIN)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        reply.call("lookup", key="moon")
        reply.end("tool_calls")
        second = await model.asked()
        second.text("384,400 km")
        second.end()
        rest = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(rest) == "\n\n384,400 km"


@pytest.mark.parametrize("text", ["I look it up.", "", f"{BEGIN}<tool_call>"])
async def test_what_may_not_be_the_answer_is_not_streamed(text: str) -> None:
    async with streaming() as (client, served, model):
        stream = await client.responses.create(model="helper", input="How far is the Moon?", stream=True)
        reply = await model.asked()
        reply.text(text)
        if text.endswith("<tool_call>"):
            reply.text('{"name": "lookup", "arguments": {"key": "moon"}}</tool_call>')
        else:
            reply.call("lookup", key="moon")
        reply.end("stop")
        second = await model.asked()
        second.text("384,400 km")
        second.end()
        seen = [event async for event in stream]
        assert "tool_call" not in "".join(event.delta for event in seen if event.type == DELTA)
        assert seen[-1].response.output_text == "384,400 km"
        short = len(text) < len(BEGIN)
        (run,) = served.host.store.runs()
        recorded = [row for row in await served.host.rows(run.run_id) if isinstance(row.event, ReplyStreamed)]
        assert bool(recorded) != short


@pytest.mark.parametrize("answer", [None, Boxed()], ids=["not streamed", "another contract"])
async def test_replies_are_recorded_in_pieces_only_for_streams_of_text(answer: Any) -> None:
    async with streaming(answer=answer) as (client, served, model):
        asking = asyncio.create_task(
            client.responses.create(model="helper", input="How far is the Moon?", stream=answer is not None)  # type: ignore[call-overload]
        )
        reply = await model.asked()
        reply.text(BEGIN)
        reply.text(r"\boxed{384,400 km}")
        reply.end()
        if answer is not None:
            texts = [event.delta async for event in await asking if event.type == DELTA]
        else:
            texts = [(await asking).output_text]
        assert texts == ["384,400 km"]
        (run,) = served.host.store.runs()
        assert not any(isinstance(row.event, ReplyStreamed) for row in await served.host.rows(run.run_id))


async def test_a_request_that_is_repeated_begins_the_text_again() -> None:
    async with streaming() as (client, _, model):
        stream = await client.responses.create(model="helper", input="How far is the Moon?", stream=True)
        reply = await model.asked()
        reply.text(BEGIN)
        seen = await until(stream, DELTA)
        reply.cut()
        second = await model.asked()
        second.text(REST)
        second.end()
        seen += [event async for event in stream]
        assert seen[-1].response.output_text == REST
        assert [item.status for item in seen[-1].response.output] == ["incomplete", "completed"]


async def test_after_kill_9_in_the_middle_of_an_answer_the_stream_resumes(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    async with written_model() as model:
        file.write_text(AGENT.format(url=model.base_url))
        async with process(file) as (serving, url), client_of(url) as client:
            stream = await client.responses.create(model="agent", input="How far is the Moon?", stream=True)
            (await model.asked()).text(BEGIN)
            seen = await until(stream, DELTA)
            serving.send_signal(signal.SIGKILL)
            await asyncio.to_thread(serving.wait)
            await stream.close()
        async with process(file) as (_, url), client_of(url) as client:
            reply = await model.asked()  # the model is asked again, and writes something else
            reply.text(REST)
            reply.end()
            response = seen[0].response.id
            rest = await client.responses.retrieve(response, stream=True, starting_after=seen[-1].sequence_number)
            seen += [event async for event in rest]
            assert [event.sequence_number for event in seen] == list(range(len(seen)))
            assert [item.status for item in seen[-1].response.output] == ["incomplete", "completed"]
            assert seen[-1].response.output_text == REST
            whole = await client.responses.retrieve(response, stream=True)
            assert [event async for event in whole] == seen


def test_text_that_was_streamed_stands_while_a_strategy_sends_other_requests() -> None:
    story, reply = Story(), ReplyText()
    changes = [
        change
        for event in (
            ModelRequested("main", 0),
            ReplyStreamed("main", 0, 0, "Forty-"),
            ModelReplied("main", 0, "Forty-two"),
            ModelRequested("main", 1, purpose="weigh"),
            ModelReplied("main", 1, "0.9"),
            RunEnded("main", "answered", "answered", answer="Forty-two"),
        )
        for change in reply.feed(event, story.feed(event))
    ]
    assert [(change.text, change.withdrawn, change.ends) for change in changes] == [
        ("Forty-", False, False),
        ("two", False, True),
    ]
