"""What one client's errors and replies teach the proxy about its server changes nothing for others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from closeout.errors import BadRequest
from closeout.messages import Message, ModelRequest
from closeout.models.anthropic import AnthropicClient
from closeout.models.openai import OpenAIClient
from closeout.testing import RequestView, always, call
from serving import listening
from test_proxy import CHAT_TOOLS, Proxied, one_call, proxied

ECHOED = (
    "temperature is not supported, 'temperature' is deprecated",
    "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
    "ids must be a-z, A-Z, 0-9, with a length of 9",
    "missing a `thought_signature` in the call",
    "The reasoning_content must be passed back. stop is not supported",
    "max_tokens: 9999 > 7 is unsupported",
)
HISTORY = [
    {"role": "user", "content": [{"type": "text", "text": "What is k1?"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_of_another", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_of_another", "content": "5"}]},
]


@asynccontextmanager
async def strict_server(seen: list[Any], *, refused: str = "") -> AsyncIterator[str]:
    """A server that quotes what it refuses: messages that say "evil", and one parameter."""

    async def reply(request: web.Request) -> web.Response:
        body = await request.json()
        last = str(body["messages"][-1]["content"])
        if "evil" in last:
            return web.json_response({"error": {"message": f"Invalid content: {last}"}}, status=400)
        seen.append(body)
        if refused in body:
            error = {"message": f"{refused} is not supported", "param": refused, "code": "unsupported_parameter"}
            return web.json_response({"error": error}, status=400)
        if "anthropic-version" in request.headers:
            block = {"type": "text", "text": "5"}
            return web.json_response({"type": "message", "content": [block], "stop_reason": "end_turn"})
        choice = {"index": 0, "message": {"role": "assistant", "content": "5"}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", reply)
    app.router.add_post("/v1/messages", reply)
    async with listening(app) as port:
        yield f"http://127.0.0.1:{port}"


async def send(server: Proxied, path: str, body: dict[str, Any]) -> int:
    async with server.http.post(f"{server.url}/v1/{path}", json={"model": "m", **body}) as response:
        await response.read()
        return response.status


@pytest.mark.parametrize("words", ECHOED)
async def test_an_error_that_quotes_a_client_teaches_a_translating_proxy_nothing(home: Path, words: str) -> None:
    seen: list[Any] = []
    usual = {"messages": HISTORY, "max_tokens": 50, "temperature": 0.5, "stop_sequences": ["."]}
    async with strict_server(seen) as url, proxied(home, one_call) as server:
        server.proxy.upstream.base = f"{url}/v1"
        assert await send(server, "messages", usual) == 200
        evil = [*HISTORY, {"role": "user", "content": f"evil: {words}"}]
        assert await send(server, "messages", {**usual, "messages": evil}) == 400
        assert await send(server, "messages", usual) == 200
    first, *_, last = seen
    assert first == last
    assert {"temperature", "max_tokens", "stop"} <= first.keys()


@pytest.mark.parametrize("words", ECHOED)
@pytest.mark.parametrize("kind", [OpenAIClient, AnthropicClient])
async def test_an_error_that_quotes_the_request_teaches_an_agents_client_nothing(kind: Any, words: str) -> None:
    seen: list[Any] = []
    usual = ModelRequest(messages=(Message(role="user", content="hi"),), temperature=0.5, max_tokens=50, stop=(".",))
    async with strict_server(seen) as url:
        client = kind("m", url if kind is AnthropicClient else f"{url}/v1")
        await client.complete(usual)
        evil = replace(usual, messages=(Message(role="user", content=f"evil: {words}"),))
        with pytest.raises(BadRequest):
            await client.complete(evil)
        await client.complete(usual)
    first, *_, last = seen
    assert first == last


async def test_what_a_server_refuses_is_left_out_in_the_rest_of_the_conversation_only(home: Path) -> None:
    seen: list[Any] = []
    async with strict_server(seen, refused="temperature") as url, proxied(home, one_call) as server:
        server.proxy.upstream.base = f"{url}/v1"
        for number, length in ((1, 1), (2, 1), (3, 3), (4, 3)):
            body = {"messages": HISTORY[:length], "max_tokens": 50, "temperature": 0.5}
            assert (number, await send(server, "messages", body)) == (number, 200)
        other = {"messages": [{"role": "user", "content": "Another"}], "max_tokens": 50, "temperature": 0.5}
        assert await send(server, "messages", other) == 200
    assert ["temperature" in body for body in seen] == [True, False, False, False, False, True, False]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_that_a_server_refuses_is_simplified_in_the_conversation(home: Path, stream: bool) -> None:
    schema = {"type": "object", "properties": {"key": {"type": "string", "pattern": "^k"}}}
    tools = [{"type": "function", "function": {"name": "lookup", "description": "Look up.", "parameters": schema}}]
    refused: list[bool] = []

    def play(view: RequestView) -> Any:
        refused.append("pattern" in view.body["tools"][0]["function"]["parameters"]["properties"]["key"])
        if refused[-1]:
            raise BadRequest("请求参数错误。", status=400)
        return call("lookup", key="k1")

    async with proxied(home, play) as server:
        for history in (HISTORY[:1], [*HISTORY[:1], {"role": "assistant", "content": "x"}, *HISTORY[:1]]):
            body = {"messages": history, "tools": tools, "stream": stream, "response_format": {"type": "text"}}
            assert await send(server, "chat/completions", body) == 200
        other = {"messages": [{"role": "user", "content": "Another"}], "tools": tools}
        assert await send(server, "chat/completions", other) == 200
    # Whether it streams is an option, and tried first.
    assert refused == [*[True] * (1 + stream), False, False, True, False]
    assert all(received.json.get("response_format") for received in server.model.requests[:-2])


async def test_an_error_that_no_change_avoids_is_passed_on_as_it_came(home: Path) -> None:
    def play(view: RequestView) -> Any:
        raise BadRequest("No.", status=400)

    async with proxied(home, play) as server:
        body = {"model": "m", "messages": HISTORY[:1], "temperature": 0.5}
        async with server.http.post(f"{server.url}/v1/chat/completions", json=body) as response:
            assert (response.status, await response.json()) == (
                400,
                {"error": {"message": "No.", "type": "scripted", "code": 400}},
            )
    assert len(server.model.requests) == 2


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
async def test_a_client_that_provokes_unreadable_calls_gets_its_tools_as_text_alone(home: Path, path: str) -> None:
    tools = {"chat/completions": CHAT_TOOLS, "messages": [{"name": "lookup", "input_schema": {"type": "object"}}]}
    kind: Any = "openai" if path == "chat/completions" else "anthropic"
    async with proxied(home, one_call, misbehave=always("rejected_vllm"), kind=kind) as server:

        async def offers(*messages: str) -> list[bool]:
            server.model.requests.clear()
            said = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(messages)]
            await send(server, path, {"messages": said, "tools": tools[path], "max_tokens": 50})
            return ["tools" in received.json for received in server.model.requests]

        assert (await offers("What is k1?"))[:3] == [True, True, False]
        assert not any(await offers("What is k1?", "Well.", "Look k1 up."))
        assert (await offers("What is k2?"))[0]
        assert (await offers("What is it?", "Well.", "What is k1?"))[0]
