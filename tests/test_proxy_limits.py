"""The proxy under load and with clients that leave; and content that it must not touch."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from closeout.messages import ModelReply
from closeout.models import http, long_steps
from closeout.server.formats.anthropic_messages import AnthropicMessages
from closeout.server.proxy import proxy_record
from closeout.server.proxy import proxy_server as proxy
from closeout.testing import Turn, answer, once, say
from serving import WrittenModel, written_model
from test_proxy import CHAT_TOOLS, MESSAGE_TOOLS, RESPONSE_TOOLS, one_call, proxied

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "low"}}


def request(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "?"}], "tools": CHAT_TOOLS, **more}


async def ask(client: openai.AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(**request(**more))


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110  # what is waited for has no event
        await asyncio.sleep(0.005)


# ------------------------------------------------------------------------------------------------ limits


async def test_more_requests_than_allowed_wait_and_more_than_that_are_refused(home: Path) -> None:
    async with written_model() as model, proxied(home, one_call, max_requests=1, max_queue=1) as server:
        server.proxy.upstream.base = model.base_url
        async with server.openai() as client:
            waiting = {asyncio.create_task(ask(client, stream=True)) for _ in range(2)}
            reply = await model.asked()
            await until(lambda: server.proxy.admission.present == 2)
            with pytest.raises(openai.RateLimitError, match="limit") as refused:
                await ask(client)
            assert refused.value.response.headers["Retry-After"]
            while waiting:  # either request may have come first
                reply.text("fine")
                reply.end()
                served, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in served:
                    assert [chunk async for chunk in await each]
                if waiting:
                    reply = await model.asked()  # only now
        await until(lambda: server.proxy.admission.present == 0)


async def test_a_body_that_is_too_large_is_refused(home: Path) -> None:
    async with proxied(home, one_call, max_body=10_000) as server, server.openai() as client:
        with pytest.raises(openai.APIStatusError, match="larger than 10,000 bytes") as refused:
            await ask(client, messages=[{"role": "user", "content": "x" * 10_000}])
        assert refused.value.status_code == 413
        assert server.model.requests == []


async def test_the_proxy_needs_its_key(home: Path) -> None:
    async with proxied(home, one_call, keys=["a long key"]) as server:
        for key, allowed in (("a long key", True), ("a wrong key", False)):
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
                if allowed:
                    await ask(client)
                else:
                    with pytest.raises(openai.AuthenticationError):
                        await ask(client)


# ------------------------------------------------------------------------------------------------ fairness


@pytest.mark.parametrize("path", ["stream", "whole", "converted"])
async def test_others_are_served_while_a_large_message_pauses(
    home: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    async def noted(_: float, size: int) -> None:
        sizes.append(size)

    for module in (proxy, http):
        monkeypatch.setattr(module, "pause_after", noted)
    said = "x" * 2**21
    async with proxied(home, lambda _: say(said), pieces=(2**21,)) as server:
        if path == "converted":
            async with server.anthropic() as client:
                question: Any = [{"role": "user", "content": "?"}]
                streamed = client.messages.stream(model="m", max_tokens=9, messages=question)
                async with streamed as events:
                    assert await events.get_final_text() == said
        else:
            async with server.openai() as client:
                found = await ask(client, stream=path == "stream")
                if path == "stream":
                    assert "".join([chunk.choices[0].delta.content or "" async for chunk in found]) == said
                else:
                    assert found.choices[0].message.content == said
    assert max(sizes) >= 2**21


async def test_a_pause_is_three_times_as_long_as_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(long_steps.time, "thread_time", lambda: 10.01)
    monkeypatch.setattr(long_steps.asyncio, "sleep", sleep)
    await long_steps.pause_after(10.0, 2**21)
    await long_steps.pause_after(10.0, 2**20)  # not large
    assert pauses == [pytest.approx(0.03)]


async def test_a_request_waits_for_its_record_only_if_that_is_long(home: Path) -> None:
    long_text = "x" * (proxy_record.MAX_UNWRITTEN + 1)
    said = iter([long_text])
    async with proxied(home, lambda _: say(next(said, "short"))) as server, server.openai() as client:
        writing = threading.Event()
        server.proxy.store.submit(writing.wait)  # the disk is slow
        long = asyncio.create_task(ask(client))
        try:
            await until(lambda: proxy_record._writing)
            for _ in range(20):
                assert (await ask(client)).choices[0].message.content == "short"
            assert not long.done()
        finally:
            writing.set()
        assert (await long).choices[0].message.content == long_text


# ------------------------------------------------------------------------------------------------ clients that leave


async def leave(home: Path, model: WrittenModel, path: str, body: dict[str, Any], *, begun: bool) -> None:
    """A client closes its connection: the proxy closes that to the model server."""
    async with proxied(home, one_call) as server:
        server.proxy.upstream.base = model.base_url
        headers = {"Authorization": "Bearer a key"}
        asking = asyncio.create_task(server.http.post(f"{server.url}/v1/{path}", json=body, headers=headers))
        reply = await model.asked()
        if begun:
            reply.text("A text that the client gets. ")
            response = await asking
            await response.content.readany()
            response.close()
        else:
            asking.cancel()
        await asyncio.wait_for(reply.gone.wait(), 30)
        await until(lambda: server.proxy.admission.present == 0)
        (events,) = await server.records()
        assert events[-1].status == "cancelled"


@pytest.mark.parametrize("begun", [False, True], ids=["before", "during"])
@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
async def test_a_client_that_leaves_ends_the_upstream_request(home: Path, path: str, begun: bool) -> None:
    tools: Any = {"messages": MESSAGE_TOOLS, "responses": RESPONSE_TOOLS}.get(path, CHAT_TOOLS)
    body = {"model": "m", "stream": True, "tools": tools, "max_tokens": 10}
    content = [{"role": "user", "content": "?"}]
    async with written_model() as model:
        await leave(home, model, path, {**body, "input" if path == "responses" else "messages": content}, begun=begun)


# ------------------------------------------------------------------------------------------------ content


async def test_content_parts_pass_untouched_and_stay_when_the_model_is_asked_again(home: Path) -> None:
    parts = [
        {"type": "text", "text": "What is this?"},
        PICTURE,
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
        {"type": "something_new", "field": {"kept": [1, 2.50, None]}},
    ]
    body = json.dumps(request(messages=[{"role": "user", "content": parts}], unknown={"a": 1}), indent=1).encode()
    async with proxied(home, one_call, misbehave=once("empty")) as server:
        headers = {"Content-Type": "application/json"}
        async with server.http.post(f"{server.url}/v1/chat/completions", data=body, headers=headers) as response:
            assert response.status == 200
        first, again = server.model.requests
        assert first.body == body
        *kept, hint = again.json["messages"][0]["content"]
        assert kept == parts
        assert "empty" in hint["text"]
        assert again.json["unknown"] == {"a": 1}


async def test_pictures_and_files_are_translated(home: Path) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    document = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
    used = {"type": "tool_use", "id": "t1", "name": "lookup", "input": {"search_term": "k1"}}
    result = [{"type": "text", "text": "a picture:"}, {"type": "image", "source": source}]
    messages: Any = [
        {"role": "user", "content": [{"type": "document", "title": "a.pdf", "source": document}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, used]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": result}]},
    ]
    url = f"data:image/png;base64,{PIXEL}"
    async with proxied(home, lambda _: answer("42")) as server:
        async with server.anthropic() as claude:
            await claude.messages.create(model="m", max_tokens=100, messages=messages, tools=MESSAGE_TOOLS)
        file, called, returned, picture = server.model.requests[0].json["messages"]
        data = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}
        assert file["content"] == [{"type": "file", "file": data}]
        assert called["tool_calls"][0]["id"] == returned["tool_call_id"] == "t1"
        assert returned["content"].strip() == "a picture:"
        assert picture["content"] == [{"type": "image_url", "image_url": {"url": url}}]

        async with server.openai() as client:
            content: Any = [
                {"type": "input_text", "text": "What is this?"},
                {"type": "input_image", "image_url": url, "detail": "low"},
                {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
            ]
            await client.responses.create(model="m", input=[{"role": "user", "content": content}])
        assert server.model.requests[1].json["messages"][0]["content"] == [
            {"type": "text", "text": "What is this?"},
            PICTURE,
            {"type": "file", "file": data},
        ]


async def test_what_cannot_be_translated_is_refused(home: Path) -> None:
    block: Any = {"type": "search_result", "source": "x", "title": "y", "content": []}
    part: Any = {"type": "input_file", "file_url": "https://example.org/a.pdf"}
    async with proxied(home, lambda _: Turn(text="x")) as server:
        async with server.anthropic() as claude:
            with pytest.raises(anthropic.BadRequestError, match="search_result"):
                await claude.messages.create(model="m", max_tokens=100, messages=[{"role": "user", "content": [block]}])
        async with server.openai() as client:
            with pytest.raises(openai.BadRequestError, match="input_file"):
                await client.responses.create(model="m", input=[{"role": "user", "content": [part]}])
        assert server.model.requests == []


async def test_malformed_items_are_refused(home: Path) -> None:
    item: Any = {"type": "function_call_output", "call_id": "c1", "output": ["no part"]}
    async with proxied(home, lambda _: Turn(text="x")) as server, server.openai() as client:
        with pytest.raises(openai.BadRequestError, match="list of objects"):
            await client.responses.create(model="m", input=[item])
        assert server.model.requests == []


def test_a_block_that_is_no_object_is_left_out_of_a_repaired_reply() -> None:
    value = {"content": ["no block", {"type": "thinking", "thinking": "hm"}]}
    repaired = AnthropicMessages().repaired(value, ModelReply("hi"))
    assert repaired["content"] == [value["content"][1], {"type": "text", "text": "hi"}]
