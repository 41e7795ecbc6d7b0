"""A served agent in the test's own event loop, and a model whose replies the test writes piece by piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientSession, web

from closeout import Agent
from closeout.server.serve.host import AgentHost
from closeout.server.serving import agent_app

__all__ = ["Served", "WrittenModel", "WrittenReply", "listening", "serving", "written_model"]


@dataclass(frozen=True)
class Served:
    url: str
    host: AgentHost
    http: ClientSession
    runner: web.AppRunner

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"


@asynccontextmanager
async def serving(
    agent: Agent[Any], *, keys: Sequence[str] = (), operator_keys: Sequence[str] = (), **options: Any
) -> AsyncIterator[Served]:
    """Serve an agent on the loopback interface."""
    host = AgentHost(agent, **{"drain_seconds": 0.0, **options})
    app = agent_app(host, keys=keys, operator_keys=operator_keys)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with ClientSession() as http:
            yield Served(f"http://127.0.0.1:{runner.addresses[0][1]}", host, http, runner)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def listening(app: web.Application, *hosts: str) -> AsyncIterator[int]:
    """Serve an application on a free loopback port, at 127.0.0.1 and at further addresses. Yields the port."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        for host in hosts:
            await web.TCPSite(runner, host, port).start()
        yield port
    finally:
        await runner.cleanup()


class WrittenReply:
    """A streamed reply of a model server: the test writes it. The client gets each piece at once."""

    def __init__(self, body: Any) -> None:
        self.body = body
        self.gone = asyncio.Event()  # the client closed the connection
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()

    def _chunk(self, delta: Any, finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        self._chunks.put_nowait(b"data: %b\n\n" % json.dumps({"id": "c", "choices": [choice]}).encode())

    def text(self, piece: str) -> None:
        self._chunk({"content": piece})

    def call(self, name: str, **arguments: Any) -> None:
        function = {"name": name, "arguments": json.dumps(arguments)}
        self._chunk({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]})

    def end(self, finish_reason: str = "stop") -> None:
        self._chunk({}, finish_reason)
        self._chunks.put_nowait(None)

    def cut(self) -> None:
        """Break the connection off."""
        self._chunks.put_nowait(b"")

    async def send(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            while (chunk := await self._chunks.get()) is not None:
                if not chunk:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                await response.write(chunk)
            await response.write(b"data: [DONE]\n\n")
        except (asyncio.CancelledError, ConnectionError):
            self.gone.set()
            raise
        return response


class WrittenModel:
    """A model server that streams what the test writes: `reply = await model.asked()`."""

    def __init__(self) -> None:
        self.base_url = ""
        self._replies: asyncio.Queue[WrittenReply] = asyncio.Queue()

    async def asked(self) -> WrittenReply:
        """Wait for the next request, and return the reply to it."""
        return await self._replies.get()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        reply = WrittenReply(await request.json())
        self._replies.put_nowait(reply)
        return await reply.send(request)


@asynccontextmanager
async def written_model() -> AsyncIterator[WrittenModel]:
    """Serve a `WrittenModel` on the loopback interface."""
    model, app = WrittenModel(), web.Application()
    app.router.add_post("/v1/chat/completions", model.answer)
    async with listening(app) as port:
        model.base_url = f"http://127.0.0.1:{port}/v1"
        yield model
