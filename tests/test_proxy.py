"""The proxy as clients see it: the real `openai` and `anthropic` SDKs against a model that misbehaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import ClientSession, web

from cli_process import here
from closeout import Agent
from closeout.evaluate import what_if
from closeout.journal.events import ModelRequested, Repaired, RunStarted, TurnRolledBack
from closeout.journal.store import Store, open_store
from closeout.lab.client_conversation import CONVERSATION
from closeout.server.proxy.proxy_record import records_written
from closeout.server.proxy.proxy_server import Proxy
from closeout.server.safety import client_key
from closeout.server.serving import proxy_app
from closeout.server.upstream import Upstream
from closeout.testing import (
    RequestView,
    ScriptedClient,
    ScriptedServer,
    Turn,
    always,
    answer,
    call,
    once,
    say,
    serve_script,
)
from serving import listening

PARAMETERS = {
    "type": "object",
    "properties": {"search_term": {"type": "string"}, "limit": {"type": "integer"}},
    "required": ["search_term"],
    "additionalProperties": False,
}
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "lookup", "description": "", "parameters": PARAMETERS}}]
RESPONSE_TOOLS: Any = [{"type": "function", "name": "lookup", "parameters": PARAMETERS, "strict": False}]
MESSAGE_TOOLS: Any = [{"name": "lookup", "description": "", "input_schema": PARAMETERS}]
REPAIRABLE = ("malformed", "wrong_parameter", "wrong_types", "wrong_dialect")
WRONG_REPLIES = ("misspelt_tool", "empty", "truncated", "hallucinated_observation")
UPSTREAM_OPTIONS = ("kind", "key", "keeps_keys")
RIGHT = {"search_term": "k1", "limit": 5}
WRITTEN_CALL = f"<tool_call>\n{json.dumps({'name': 'lookup', 'arguments': RIGHT})}\n</tool_call>"


@dataclass(frozen=True)
class Proxied:
    url: str
    proxy: Proxy
    model: ScriptedServer
    http: ClientSession

    @property
    def store(self) -> Store:
        return self.proxy.store

    # Without `verify`, each client reads all certificates of the system, which takes longer than a request.
    def openai(self) -> openai.AsyncOpenAI:
        http = openai.DefaultAsyncHttpxClient(verify=False)
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="a key", max_retries=0, http_client=http)

    def anthropic(self) -> anthropic.AsyncAnthropic:
        http = anthropic.DefaultAsyncHttpxClient(verify=False)
        return anthropic.AsyncAnthropic(base_url=self.url, api_key="a key", max_retries=0, http_client=http)

    async def records(self) -> list[list[Any]]:
        """The events of each request, in order."""
        await records_written()
        runs = reversed(self.store.runs())
        return [[row.event for row in self.store.rows(run.run_id)] for run in runs]


@asynccontextmanager
async def proxied(home: Path, script: Any, *, misbehave: Any = (), **options: Any) -> AsyncIterator[Proxied]:
    """The proxy in front of a scripted model."""
    server = {name: options.pop(name) for name in ("native_tools", "chunks", "pieces", "vendor") if name in options}
    app = {name: options.pop(name) for name in ("max_body", "keys") if name in options}
    async with serve_script(script, misbehave=misbehave, **server) as model, ClientSession() as http:
        address = model.url if options.get("kind") == "anthropic" else model.base_url
        upstream = Upstream(address, **{name: options.pop(name) for name in UPSTREAM_OPTIONS if name in options})
        proxy = Proxy(upstream, open_store(home), **options)
        runner = web.AppRunner(proxy_app(proxy, **app), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield Proxied(f"http://127.0.0.1:{runner.addresses[0][1]}", proxy, model, http)
        finally:
            await runner.cleanup()


def one_call(view: RequestView) -> Turn:
    return Turn("I look it up.", calls=[call("lookup", search_term="k1", limit=5)])


async def chat_calls(client: openai.AsyncOpenAI, *, stream: bool, messages: Sequence[Any] = ()) -> list[Any]:
    """The calls that a client of Chat Completions gets: names and arguments."""
    request: Any = {
        "model": "scripted",
        "messages": list(messages) or [{"role": "user", "content": "What is k1?"}],
        "tools": CHAT_TOOLS,
    }
    if not stream:
        completion = await client.chat.completions.create(**request)
        assert completion.choices[0].finish_reason == "tool_calls"
        calls: Any = completion.choices[0].message.tool_calls
        return [(each.function.name, json.loads(each.function.arguments)) for each in calls or ()]
    async with client.chat.completions.stream(**request) as events:
        final: Any = await events.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    return [(c.function.name, json.loads(c.function.arguments)) for c in final.choices[0].message.tool_calls or ()]


async def response_calls(client: openai.AsyncOpenAI, *, stream: bool) -> list[Any]:
    request: Any = {"model": "scripted", "input": "What is k1?", "tools": RESPONSE_TOOLS}
    if stream:
        async with client.responses.stream(**request) as events:
            response: Any = await events.get_final_response()
    else:
        response = await client.responses.create(**request)
    return [(item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]


async def message_calls(client: anthropic.AsyncAnthropic, *, stream: bool) -> list[Any]:
    request: Any = {
        "model": "scripted",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": "What is k1?"}],
        "tools": MESSAGE_TOOLS,
    }
    if stream:
        async with client.messages.stream(**request) as events:
            message: Any = await events.get_final_message()
    else:
        message = await client.messages.create(**request)
    assert message.stop_reason == "tool_use"
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


async def calls_in(proxied: Proxied, format: str, *, stream: bool) -> list[Any]:  # noqa: A002
    if format == "messages":
        async with proxied.anthropic() as claude:
            return await message_calls(claude, stream=stream)
    async with proxied.openai() as client:
        return await (chat_calls if format == "chat" else response_calls)(client, stream=stream)


# ------------------------------------------------------------------------------------------------ repair


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize("format", ["chat", "responses", "messages"])
async def test_every_format_gets_valid_calls_from_every_server(
    home: Path,
    format: str,  # noqa: A002
    kind: Any,
    stream: bool,
) -> None:
    for fault in (None, *REPAIRABLE):
        if fault == "malformed" and kind == "anthropic" and not stream:
            continue  # the input is an object there: it cannot be malformed
        misbehave = always(fault) if fault else ()
        async with proxied(home, one_call, misbehave=misbehave, kind=kind, read_only_tools=["lookup"]) as server:
            assert await calls_in(server, format, stream=stream) == [("lookup", RIGHT)], fault
            assert len(server.model.requests) == 1, fault
            *_, events = await server.records()
            repaired = [event for event in events if isinstance(event, Repaired)]
            assert bool(repaired) == (fault is not None), fault


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_call_amid_text_of_a_tool_that_may_have_effects_is_asked_for_once(home: Path, stream: bool) -> None:
    once_more = [Turn(f"To look it up I would send\n{WRITTEN_CALL}"), one_call(None)]  # type: ignore[arg-type]
    async with proxied(home, once_more) as server:
        assert await calls_in(server, "chat", stream=stream) == [("lookup", RIGHT)]
        again = server.model.requests[1].json["messages"][-1]["content"]
        assert "Send only the call to make it." in again
    async with proxied(home, lambda view: Turn(f"Such a call looks like this:\n{WRITTEN_CALL}")) as server:
        async with server.openai() as client:
            said = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "How?"}], tools=CHAT_TOOLS
            )
        assert not said.choices[0].message.tool_calls  # the model insists: it is text
        assert WRITTEN_CALL in (said.choices[0].message.content or "")
        assert len(server.model.requests) == 2


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_valid_reply_passes_byte_for_byte(home: Path, kind: Any, stream: bool) -> None:
    path = "messages" if kind == "anthropic" else "chat/completions"
    body = {
        "model": "scripted",
        "stream": stream,
        "messages": [{"role": "user", "content": "What is k1?"}],
        "tools": MESSAGE_TOOLS if kind == "anthropic" else CHAT_TOOLS,
        "max_tokens": 100,
    }

    def play(view: RequestView) -> Turn:
        return one_call(view) if view.key == "calls" else answer("x < y, and `code` [1], {2}: no call at all.")

    async with proxied(home, play, kind=kind, chunks=(5, 17, 3)) as server, serve_script(play) as bare:
        for key in ("calls", "answers"):
            headers = {"Authorization": f"Bearer {key}"}
            async with server.http.post(f"{bare.url}/v1/{path}", json=body, headers=headers) as response:
                written = await response.read()
            async with server.http.post(f"{server.url}/v1/{path}", json=body, headers=headers) as response:
                assert await response.read() == written
                assert response.headers["X-Closeout-Run-Id"]
        assert server.model.bodies == bare.bodies


async def test_text_is_streamed_while_the_model_writes(home: Path) -> None:
    gate, released = asyncio.Event(), asyncio.Event()

    async def model(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for text in ("First ", "second"):
            chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]}
            await response.write(b"data: %b\n\n" % json.dumps(chunk).encode())
            if not released.is_set():
                released.set()
                await gate.wait()
        end = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        await response.write(b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(end).encode())
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", model)
    async with listening(app) as port, proxied(home, one_call) as server:
        server.proxy.upstream.base = f"http://127.0.0.1:{port}/v1"
        async with server.openai() as client:
            stream: Any = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "?"}], tools=CHAT_TOOLS, stream=True
            )
            texts = []
            async for chunk in stream:
                texts.append(chunk.choices[0].delta.content)
                gate.set()  # the rest comes only after the first piece has arrived
    assert texts[:2] == ["First ", "second"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("fault", [*WRONG_REPLIES, "error_in_200", "garbage_body"])
async def test_what_cannot_be_repaired_is_asked_for_again(home: Path, fault: str, stream: bool) -> None:
    silent = [call("lookup", search_term="k1", limit=5)]  # no text that a client would get before the reply breaks
    async with proxied(home, one_call if fault in WRONG_REPLIES else silent, misbehave=once(fault)) as server:
        assert await calls_in(server, "chat", stream=stream) == [("lookup", RIGHT)]
        assert len(server.model.requests) == 2
        (events,) = await server.records()
        rolled_back = [event for event in events if isinstance(event, TurnRolledBack)]
        assert len(rolled_back) == (fault in WRONG_REPLIES)
        for event in rolled_back:
            assert event.detail in server.model.requests[1].json["messages"][-1]["content"]


async def test_it_is_asked_at_most_twice_and_the_last_reply_is_passed_on(home: Path) -> None:
    def play(view: RequestView) -> Turn:
        return call("nothing_like_it", x=1)

    async with proxied(home, play) as server:
        assert await calls_in(server, "chat", stream=False) == [("nothing_like_it", {"x": 1})]
        assert len(server.model.requests) == 3
        assert server.proxy.counts["unrepaired"] == 1
        (record,) = server.store.runs() if await server.records() else []
        assert record.status == "unanswered"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("format", ["chat/completions", "messages"])
async def test_a_reply_that_was_cut_off_is_passed_on_rather_than_an_empty_one(
    home: Path,
    format: str,  # noqa: A002
    stream: bool,
) -> None:
    faults = [once(fault) for fault in ("empty", "repeated", "hallucinated_observation")]
    body = {"model": "m", "max_tokens": 9, "stream": stream, "messages": [{"role": "user", "content": "What is k1?"}]}
    async with proxied(home, one_call, misbehave=faults) as server:
        tools = CHAT_TOOLS if format == "chat/completions" else MESSAGE_TOOLS
        async with server.http.post(f"{server.url}/v1/{format}", json={**body, "tools": tools}) as response:
            text = await response.text()
        assert len(server.model.requests) == 3
    assert "once more" in text
    assert "made up" not in text
    assert ('"length"' if format == "chat/completions" else '"max_tokens"') in text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_repaired_call_keeps_what_its_server_added(home: Path, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "What is k1?"}], "tools": CHAT_TOOLS, "stream": stream}
    async with proxied(home, one_call, misbehave=once("malformed"), vendor="gemini") as server:
        async with server.http.post(f"{server.url}/v1/chat/completions", json={"model": "m", **body}) as response:
            text = await response.text()
        assert "thought_signature" in text
        assert '{"search_term":"k1","limit":5,}' not in text.replace("\\", "")


async def test_record_only_changes_nothing_and_says_what_it_would_have_done(home: Path) -> None:
    async with proxied(home, one_call, misbehave=always("wrong_parameter"), record_only=True) as server:
        for stream in (False, True):
            assert await calls_in(server, "chat", stream=stream) == [("lookup", {"search_terms": "k1", "limit": 5})]
        for events in await server.records():
            assert [event.kind for event in events if isinstance(event, Repaired)] == ["argument_synonym"]
            started = events[0]
            assert isinstance(started, RunStarted)
            assert started.origin["proxy"]["record_only"] is True


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("format", ["chat", "responses", "messages"])
async def test_tools_are_written_as_text_for_models_without_native_ones(
    home: Path,
    format: str,  # noqa: A002
    stream: bool,
) -> None:
    async with proxied(home, one_call, native_tools=False, dialect="text") as server:
        assert await calls_in(server, format, stream=stream) == [("lookup", RIGHT)]
        sent = server.model.requests[0].json
        assert "tools" not in sent
        assert "lookup" in sent["messages"][0]["content"]


async def test_a_client_loop_through_text_ends_with_the_answer(home: Path) -> None:
    def play(view: RequestView) -> Turn:
        return answer("42") if "the value is 42" in view.text else one_call(view)

    async with proxied(home, play, native_tools=False, dialect="text") as server, server.openai() as client:
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is k1?"}]
        first = await client.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS)
        said = first.choices[0].message
        assert said.tool_calls
        messages += [
            said.to_dict(),
            {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "the value is 42"},
        ]
        second = await client.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS)
        assert second.choices[0].message.content == "The answer is \\boxed{42}."
        assert second.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(("words", "refusals"), [("this model does not support tools", 1), ("请求参数错误。", 4)])
async def test_a_server_that_refuses_tools_gets_them_as_text_in_the_rest_of_the_conversation(
    home: Path, words: str, refusals: int
) -> None:
    offered: list[bool] = []

    async def model(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        offered.append("tools" in body)
        if "tools" in body:
            return web.json_response({"error": {"message": words}}, status=400)
        text = 'Thought: I look.\nAction: {"action": "lookup", "action_input": {"search_term": "k1", "limit": 5}}'
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return web.json_response({"id": "c", "choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", model)
    async with listening(app) as port, proxied(home, one_call) as server:
        server.proxy.upstream.base = f"http://127.0.0.1:{port}/v1"
        messages = [{"role": "user", "content": "What is k1?"}]
        for more in ([], [{"role": "assistant", "content": "5"}, {"role": "user", "content": "And now?"}]):
            messages += more
            async with server.openai() as client:
                assert await chat_calls(client, stream=False, messages=messages) == [("lookup", RIGHT)]
    assert offered[-2:] == [False, False]
    assert 1 <= offered.count(True) <= refusals


# ------------------------------------------------------------------------------------------------ everything else


async def test_errors_and_other_paths_are_passed_on(home: Path) -> None:
    async with proxied(home, one_call, misbehave=once("429")) as server, server.openai() as client:
        with pytest.raises(openai.RateLimitError, match="Too many requests"):
            await chat_calls(client, stream=False)
        assert [model.id async for model in client.models.list()] == ["scripted"]
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            await client.responses.create(model="m", input="x", previous_response_id="resp_1")
        with pytest.raises(openai.BadRequestError, match="messages"):
            await client.chat.completions.create(model="m", messages=5)  # type: ignore[arg-type]


async def test_an_upstream_that_is_not_there_is_a_502(home: Path) -> None:
    async with proxied(home, one_call) as server, server.openai() as client:
        server.proxy.upstream.base = "http://127.0.0.1:9/v1"
        with pytest.raises(openai.InternalServerError) as raised:
            await chat_calls(client, stream=False)
        assert raised.value.status_code == 502
        (record,) = server.store.runs() if await server.records() else []
        assert record.status == "failed"


async def test_a_stream_that_breaks_after_its_text_began_breaks_for_the_client_too(home: Path) -> None:
    long = answer("A long answer, " * 20)
    async with proxied(home, lambda _: long, misbehave=always("dropped")) as server, server.openai() as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "?"}], tools=CHAT_TOOLS, stream=True
        )
        with pytest.raises((openai.APIConnectionError, openai.APIError)):
            [chunk async for chunk in stream]


async def test_the_clients_key_goes_upstream_unless_the_proxy_has_its_own(home: Path) -> None:
    for options, seen in (
        ({}, "Bearer a key"),
        ({"key": "upstream"}, "Bearer upstream"),
        ({"keeps_keys": True}, None),
    ):
        async with proxied(home, one_call, **options) as server:  # type: ignore[arg-type]
            await calls_in(server, "chat", stream=False)
            assert server.model.requests[0].headers.get("Authorization") == seen


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"Authorization": "bearer  one", "x-api-key": "two"}, "one"),
        ({"Authorization": "Basic eA==", "x-api-key": "two"}, "two"),
        ({"x-api-key": "two"}, "two"),
        ({}, ""),
    ],
)
def test_one_key_of_a_request_is_checked_and_goes_upstream(headers: dict[str, str], key: str) -> None:
    assert client_key(headers) == key
    assert Upstream("http://127.0.0.1:9")._key_for(headers) == key


async def test_requests_without_tools_pass_unchanged(home: Path) -> None:
    written = '<tool_call>{"name": "lookup", "arguments": {"search_term": "k1"}}</tool_call>'
    async with proxied(home, lambda _: Turn(text=written)) as server, server.openai() as client:
        completion = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
        assert completion.choices[0].message.content == written


def test_wrong_options_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, said in (
        (["--upstream", "nonsense"], "not the address of a server"),
        (["--upstream", ""], "--upstream is empty"),
        (["--upstream", "http://x/v1", "--api", "grpc"], "--api must be one of"),
        (["--upstream", "http://x/v1", "--dialect", "xml"], "--dialect must be one of"),
        (["--upstream", "http://x/v1", "--host", "0.0.0.0"], "must have a key"),
    ):
        done = here("models", "proxy", *arguments)
        assert done.code == 2
        assert said in done.sentence


@pytest.mark.parametrize("api", ["chat", "messages"])
async def test_kept_conversations_are_run_again_with_another_model(home: Path, api: str) -> None:
    def script(view: RequestView) -> Turn | Any:
        if "k2 is 茶" in view.text:
            return say("5 and 茶.")
        return call("lookup", search_term="k2" if "k1 is 5" in view.text else "k1")

    async def chat(client: openai.AsyncOpenAI) -> None:
        said: list[Any] = [
            {"role": "system", "content": "Be exact."},
            *({"role": role, "content": text} for role, text in (("user", "Hi"), ("assistant", "Hello"))),
            {"role": "user", "content": "What are k1 and k2?"},
        ]
        while True:
            reply: Any = await client.chat.completions.create(model="m", messages=said, tools=CHAT_TOOLS, top_p=0.5)
            message = reply.choices[0].message
            said.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return
            for each in message.tool_calls:
                term = json.loads(each.function.arguments)["search_term"]
                text = "k1 is 5" if term == "k1" else "k2 is 茶"
                said.append({"role": "tool", "tool_call_id": each.id, "content": text})

    async def messages(client: anthropic.AsyncAnthropic) -> None:
        said: list[Any] = [{"role": "user", "content": "What are k1 and k2?"}]
        while True:
            reply: Any = await client.messages.create(
                model="m", max_tokens=100, messages=said, tools=MESSAGE_TOOLS, system="Be exact."
            )
            said.append({"role": "assistant", "content": reply.model_dump()["content"]})
            calls = [each for each in reply.content if each.type == "tool_use"]
            if not calls:
                return
            results = ["k1 is 5" if each.input["search_term"] == "k1" else "k2 is 茶" for each in calls]
            content = [
                {"type": "tool_result", "tool_use_id": each.id, "content": result}
                for each, result in zip(calls, results, strict=True)
            ]
            said.append({"role": "user", "content": content})

    kind = "anthropic" if api == "messages" else "openai"
    async with proxied(home, script, keep_conversations=True, kind=kind) as server:
        if api == "chat":
            async with server.openai() as client:
                await chat(client)
        else:
            async with server.anthropic() as other_client:
                await messages(other_client)
        await server.records()
        runs = {run.run_id: next(server.store.rows(run.run_id)).event for run in server.store.each_run()}
        assert [event.name for event in runs.values()] == [CONVERSATION, "proxy", "proxy"]

        def agent(script: Any, **options: Any) -> Agent:
            return Agent(ScriptedClient(script, name="new"), name=CONVERSATION, home=home, **options)

        (case,) = (await what_if(agent(script, dialect="function_call"), 5)).cases
        assert (case.then.calls, case.then.answer) == (case.now.calls, case.now.answer)
        assert case.now.calls == ('lookup({"search_term": "k1"})', 'lookup({"search_term": "k2"})')
        assert (case.task, case.changed, case.now.paid, case.then.tokens) == ("What are k1 and k2?", False, 3, None)
        sent = next(row.event for row in server.store.rows(case.now.run_id) if isinstance(row.event, ModelRequested))
        kept = next(row.event for row in server.store.rows(case.run_id) if isinstance(row.event, ModelRequested))
        assert (sent.added, json.loads(sent.tools)) == (kept.added, json.loads(kept.tools))
        other = agent(lambda view: call("lookup", search_term="k3"), dialect="function_call")
        (case,) = (await what_if(other, 5)).cases
        assert (case.now.left, case.now.paid) == ('lookup({"search_term": "k3"})', 1)


async def test_the_figures_of_the_proxy(home: Path) -> None:
    async with proxied(home, one_call, misbehave=always("wrong_parameter")) as server:
        await calls_in(server, "chat", stream=False)
        async with server.http.get(f"{server.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        async with server.http.get(f"{server.url}/healthz") as response:
            assert response.status == 200
    assert "closeout_proxy_requests_total 1" in lines
    assert "closeout_proxy_repaired_total 1" in lines
    assert 'closeout_proxy_repairs_total{kind="argument_synonym"} 1' in lines
