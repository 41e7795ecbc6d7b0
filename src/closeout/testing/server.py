"""A scripted model as a real HTTP server on loopback: OpenAI chat and completions, Anthropic messages, all the faults.

What it says and when it goes wrong is the player's business; how that looks on the wire `protocols` knows.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from aiohttp import web

from closeout.codec import decode_json, encode_json, shared_prefix
from closeout.errors import ModelError
from closeout.messages import ModelReply
from closeout.testing.misbehaviour import Misbehaviour
from closeout.testing.player import ConversationKey, Performance, Player
from closeout.testing.protocols import PROTOCOLS, Protocol
from closeout.testing.script import RequestView, Script
from closeout.testing.writing import CHARACTERS_PER_TOKEN

__all__ = ["ReceivedRequest", "ScriptedServer", "serve_script"]

_MAX_BODY = 256 * 2**20
_HTML = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"


@dataclass(slots=True)
class ReceivedRequest:
    """One request as it came: the body byte for byte, the headers, and what became of it."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(repr=False)
    conversation: str = ""
    turn: int = 0
    fault: str | None = None
    disconnected: bool = False  # the client closed the connection before the reply was over

    @property
    def json(self) -> Any:
        return decode_json(self.body)


class ScriptedServer:
    """A server that plays a script: `async with` in the running loop, or `with` in a thread of its own.

    `url` is its address, `base_url` what an OpenAI client takes. `requests` keeps what came, in order (`record=False`:
    nothing). Made by `serve_script`.
    """

    def __init__(
        self,
        player: Player,
        *,
        pieces: Sequence[int],
        chunks: Sequence[int] | None,
        pause: float,
        native_tools: bool,
        record: bool,
        host: str,
        port: int,
        kind: str,
        max_context: int | None,
    ) -> None:
        self.requests: list[ReceivedRequest] = []
        self.url = ""
        self._player = player
        self._pieces = pieces
        self._chunks = chunks
        self._pause = pause
        self._native_tools = native_tools
        self._record = record
        self._address = (host, port)
        self._model = {"id": "scripted", "object": "model", "owned_by": kind, "max_model_len": max_context}
        self._bodies: dict[str, bytes] = {}  # the last body of each conversation
        self._runner: web.AppRunner | None = None
        self._thread: _ServerThread | None = None

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def bodies(self) -> list[bytes]:
        """The bodies that came, in order."""
        return [request.body for request in self.requests]

    # ---------------------------------------------------------------------------------- life

    async def start(self) -> Self:
        """Listens; `url` is set then."""
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        host, port = self._address
        await web.TCPSite(self._runner, host, port, backlog=1024).start()
        self.url = f"http://{host}:{self._runner.addresses[0][1]}"
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        self._thread = _ServerThread(self)
        self._thread.launch()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.end()
            self._thread = None

    # ---------------------------------------------------------------------------------- requests

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._model]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        received = ReceivedRequest(request.path, await request.read(), request.headers)
        if self._record:
            self.requests.append(received)
        protocol = PROTOCOLS.get(request.path)
        if protocol is None:
            return _error(404, f"There is nothing at {request.path}.")
        try:
            body = received.json
            view = self._view(protocol, body, received)
        except (ValueError, AttributeError, TypeError) as error:
            return _error(400, f"The request cannot be read: {error}.")
        try:
            performance = self._player.play(view)
        except ModelError as error:
            return _error(error.status or 400, str(error))
        received.conversation, received.turn = performance.conversation, performance.turn
        received.fault = performance.fault.kind if performance.fault is not None else None
        try:
            reply = self._with_cache(performance, received)
            return await self._perform(request, protocol, replace(performance, reply=reply), body)
        except (asyncio.CancelledError, ConnectionError):
            received.disconnected = True
            raise

    def _view(self, protocol: Protocol, body: Any, received: ReceivedRequest) -> RequestView:
        headers = received.headers
        key = headers.get("x-api-key") or headers.get("Authorization", "").removeprefix("Bearer ")
        view = protocol.read(body)
        return replace(view, key=key, size=len(received.body), tools=view.tools if self._native_tools else ())

    def _with_cache(self, performance: Performance, received: ReceivedRequest) -> ModelReply:
        """The reply, its usage telling how much of the prompt the conversation's last request had already."""
        before = self._bodies.get(performance.conversation, b"")
        self._bodies[performance.conversation] = received.body
        usage = performance.reply.usage
        shared = min(shared_prefix(before, received.body) // CHARACTERS_PER_TOKEN, usage.input_tokens)
        if usage.cache_read_tokens:
            return performance.reply
        return replace(performance.reply, usage=replace(usage, cache_read_tokens=shared))

    async def _perform(
        self, request: web.Request, protocol: Protocol, performance: Performance, body: Mapping[str, Any]
    ) -> web.StreamResponse:
        fault = performance.connection_fault
        if fault is not None:
            if fault.kind in {"slow", "hang"}:
                await asyncio.sleep(fault.seconds if fault.kind == "slow" else 3600.0)
            else:
                refusal = _refusal(fault)
                if refusal is not None:
                    return refusal
        kind = fault.kind if fault is not None else ""
        if body.get("stream"):
            return await self._stream(request, protocol.events(performance.reply, body, self._pieces), kind)
        data = encode_json(protocol.body(performance.reply, body))
        if kind == "dropped":
            return await _half(request, data)
        data = _spoilt_body(kind, data)
        return web.Response(body=data, content_type="application/json")

    async def _stream(self, request: web.Request, events: Iterator[bytes], fault: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        for piece in self._cut(_spoilt_events(fault, list(events))):
            await response.write(piece)
            if self._pause:
                await asyncio.sleep(self._pause)
        if fault == "dropped":
            _abort(request)
        else:
            await response.write_eof()
        return response

    def _cut(self, events: list[bytes]) -> Iterator[bytes]:
        """The stream's bytes, an event at a time or in pieces of the chosen lengths, wherever those may fall."""
        if self._chunks is None:
            yield from events
            return
        data = b"".join(events)
        position = number = 0
        while position < len(data):
            size = max(self._chunks[number % len(self._chunks)], 1)
            yield data[position : position + size]
            position, number = position + size, number + 1


def serve_script(
    script: Script,
    *,
    misbehave: Iterable[Misbehaviour | str] | Misbehaviour | str = (),
    by: ConversationKey = "key",
    stop_words: bool = True,
    native_tools: bool = True,
    pieces: Sequence[int] = (7, 3, 11),
    chunks: Sequence[int] | None = None,
    pause: float = 0.0,
    record: bool = True,
    host: str = "127.0.0.1",
    port: int = 0,
    kind: str = "closeout",
    max_context: int | None = None,
) -> ScriptedServer:
    """A server that plays a script, to be entered with `async with` or `with`.

    `by`: how conversations are told apart: by API key, by question, or by your function of a RequestView.
    `stop_words`, `native_tools`: whether the server knows them. `pieces`: lengths of streamed pieces in characters;
    `chunks`: lengths in which the stream's bytes are sent (None: an event at a time), with `pause` seconds between.
    `kind`, `max_context`: what `/v1/models` says (`owned_by`, `max_model_len`).
    """
    return ScriptedServer(
        Player(script, misbehave=misbehave, by=by, stop_words=stop_words),
        pieces=pieces,
        chunks=chunks,
        pause=pause,
        native_tools=native_tools,
        record=record,
        host=host,
        port=port,
        kind=kind,
        max_context=max_context,
    )


# ------------------------------------------------------------------------------------------------ faults


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    body = {"error": {"message": message, "type": "scripted", "code": status}}
    return web.json_response(body, status=status, headers=headers)


def _refusal(fault: Misbehaviour) -> web.Response | None:
    """The answer in place of a reply; None for faults that show in the reply itself."""
    if fault.kind == "rate_limited":
        return _error(429, "Too many requests.", {"Retry-After": f"{fault.seconds:g}"})
    if fault.kind == "server_error":
        return _error(500, "The engine died.")
    if fault.kind == "overloaded":
        body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        return web.json_response(body, status=529)
    if fault.kind == "html_error":
        return web.Response(status=502, text=_HTML, content_type="text/html")
    return None


def _spoilt_body(fault: str, data: bytes) -> bytes:
    if fault == "empty_body":
        return b""
    if fault == "garbage_body":
        return b"\x00\xff\xfe this is no JSON {"
    if fault == "error_in_200":
        return encode_json({"error": {"message": "The engine died.", "code": 500}})
    return data


def _spoilt_events(fault: str, events: list[bytes]) -> list[bytes]:
    half = events[: max(len(events) // 2, 1)]
    if fault == "empty_body":
        return []
    if fault == "garbage_body":
        return [*half, b'data: {"choices": [{"delta"\n\n']
    if fault == "error_in_200":
        error = {"type": "error", "error": {"message": "The engine died.", "type": "api_error", "code": 500}}
        return [*half, b"event: error\ndata: %b\n\n" % encode_json(error)]
    return half if fault == "dropped" else events


async def _half(request: web.Request, data: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(data))})
    await response.prepare(request)
    await response.write(data[: len(data) // 2])
    _abort(request)
    return response


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()


class _ServerThread:
    """An event loop in a thread for one server, so that code without a loop can use it."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="scripted-server", daemon=True)

    def launch(self) -> None:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        if self._loop is not None and self._over is not None:
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with self._server:
            self._ready.set()
            await self._over.wait()
