"""A scripted model as an HTTP server on the loopback interface: OpenAI chat and completions, Anthropic messages."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from closeout.codec import decode_json, encode_json, shared_prefix
from closeout.errors import ModelError
from closeout.messages import ModelReply
from closeout.run.sse_stream import event_bytes
from closeout.testing.byte_tokens import StatedTokens
from closeout.testing.client import ConversationKey, Performance, Player
from closeout.testing.misbehaviour import Misbehaviour
from closeout.testing.odd_forms import ODD_FORMS, OddForm
from closeout.testing.rejections import REJECTIONS
from closeout.testing.script import CHARACTERS_PER_TOKEN, RequestView, Script, as_deltas, pieces
from closeout.testing.vendors import find_vendor

__all__ = ["ReceivedRequest", "ScriptedServer", "serve_script"]

_MAX_BODY = 256 * 2**20
_HTML = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"


@dataclass(slots=True)
class ReceivedRequest:
    """A request that the server received: its body, its headers, and its outcome."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(repr=False)
    conversation: str = ""
    turn: int = 0
    fault: str | None = None
    disconnected: bool = False  # the client closed the connection during the reply
    view: RequestView = field(default_factory=RequestView, repr=False)  # the request as the script saw it

    @property
    def json(self) -> Any:
        return decode_json(self.body)

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The messages, in OpenAI's shape whatever the protocol."""
        return self.view.messages

    @property
    def tools(self) -> Sequence[str]:
        """The names of the listed tools."""
        return self.view.tools

    @property
    def text(self) -> str:
        """All texts of the request, joined."""
        return self.view.text

    @property
    def last(self) -> str:
        """The text of the last message, or the prompt."""
        return self.view.last

    @property
    def question(self) -> str:
        """The first user message, or the line after the prompt's last `Question:`."""
        return self.view.question


class ScriptedServer:
    """A server that plays a script. Enter it with `async with`, or with `with` to run it in a thread.

    Args:
        script: The turns; see `Script`.
        misbehave: Which faults happen, and when.
        by: How conversations are told apart: by API key, by question, or by a function of a RequestView.
        stop_words: Whether the server knows stop words.
        native_tools: Whether the server knows native tool calls.
        pieces: Lengths of the streamed pieces in characters.
        chunks: Lengths in bytes in which a stream is sent; None sends one event at a time.
        pause: Seconds between two chunks.
        record: Whether to keep the requests.
        host: The address to listen on.
        port: The port to listen on; 0 chooses a free one.
        kind: The `owned_by` of `/v1/models`.
        max_context: The `max_model_len` of `/v1/models`.
        vendor: One of `VENDORS`, whose state the server attaches to its replies and wants back.

    Attributes:
        requests: The requests in order of arrival.
        url: The server's address, set when it listens.
    """

    def __init__(
        self,
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
        vendor: str = "",
    ) -> None:
        self.requests: list[ReceivedRequest] = []
        self.url = ""
        self._player = Player(script, misbehave=misbehave, by=by, stop_words=stop_words)
        self._pieces = pieces
        self._chunks = chunks
        self._pause = pause
        self._native_tools = native_tools
        self._record = record
        self._vendor = find_vendor(vendor)
        self._address = (host, port)
        self._model = {"id": "scripted", "object": "model", "owned_by": kind, "max_model_len": max_context}
        self._bodies: dict[str, bytes] = {}  # the last body of each conversation
        self._runner: web.AppRunner | None = None
        self._thread = ExitStack()

    @property
    def base_url(self) -> str:
        """The address that an OpenAI client takes."""
        return f"{self.url}/v1"

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the requests in order of arrival."""
        return [request.body for request in self.requests]

    # ---------------------------------------------------------------------------------- start and stop

    async def start(self) -> Self:
        """Start to listen and set `url`."""
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
        """Stop listening. Safe to call twice."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __enter__(self) -> Self:
        started: Future[Callable[[], object]] = Future()
        serving = self._serve_until_stopped(started)
        thread = threading.Thread(target=asyncio.run, args=(serving,), name="scripted-server", daemon=True)
        thread.start()
        stop = started.result()
        self._thread.callback(thread.join)
        self._thread.callback(stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.close()

    async def _serve_until_stopped(self, started: Future[Callable[[], object]]) -> None:
        """Serve in the loop of a thread. What stops that is the result of `started`."""
        stopped = asyncio.Event()
        try:
            await self.start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(partial(asyncio.get_running_loop().call_soon_threadsafe, stopped.set))
        await stopped.wait()
        await self.stop()

    # ---------------------------------------------------------------------------------- requests

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._model]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        received = ReceivedRequest(request.path, await request.read(), request.headers)
        if self._record:
            self.requests.append(received)
        protocol = PROTOCOLS.get(request.path)
        if protocol is None:
            return _error(404, f"Unknown path {request.path}.")
        try:
            body = received.json
            view = received.view = self._view(protocol, body, received)
        except (ValueError, AttributeError, TypeError) as error:
            return _error(400, f"Cannot read the request: {error}.")
        messages = body.get("messages")
        if self._vendor is not None and messages and (problem := self._vendor.refuse(messages)):
            return web.json_response(self._vendor.error(problem), status=400)
        try:
            performance = self._player.play(view)
        except ModelError as error:
            return _error(error.status or 400, str(error))
        except (AttributeError, LookupError, NameError, TypeError) as error:  # a mistake in the script
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            return _error(400, f"The script raised {type(error).__name__}: {error} ({where}).")
        received.conversation, received.turn = performance.conversation, performance.turn
        received.fault = performance.fault.kind if performance.fault is not None else None
        try:
            reply = self._with_cache(performance, received)
            if self._vendor is not None:
                reply = self._vendor.attach(reply, performance.turn)
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
        """Return the reply; its usage counts the prefix shared with the conversation's last request as cached."""
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
        if fault is not None and fault.kind in ("slow", "hang"):
            await asyncio.sleep(fault.seconds if fault.kind == "slow" else 3600.0)
        elif fault is not None and (refusal := _refusal(fault)) is not None:
            return refusal
        kind = fault.kind if fault is not None else ""
        if performance.fault is not None and performance.fault.kind in ("no_end", *REJECTIONS):
            kind = performance.fault.kind
        form = ODD_FORMS.get(performance.fault.kind if performance.fault is not None else "")
        if form is not None:
            return await self._perform_oddly(request, protocol, performance.reply, body, form)
        if kind in REJECTIONS and not (body.get("stream") and REJECTIONS[kind].in_stream):
            return web.json_response(_rejection(kind, performance.reply), status=REJECTIONS[kind].status)
        if body.get("stream"):
            events = protocol.events(performance.reply, body, self._pieces)
            if kind in REJECTIONS:
                error = {"type": "error", **_rejection(kind, performance.reply)}
                events = iter([_named_event(error)])
            return await self._stream(request, events, kind)
        data = encode_json(protocol.body(performance.reply, body))
        if kind == "dropped":
            return await _half(request, data)
        return web.Response(body=_faulty_body(kind, data), content_type="application/json")

    async def _perform_oddly(
        self, request: web.Request, protocol: Protocol, reply: ModelReply, body: Mapping[str, Any], form: OddForm
    ) -> web.StreamResponse:
        whole = form.whole(protocol.body(reply, body))
        if not form.streams(wanted=bool(body.get("stream"))):
            return web.Response(body=encode_json(whole), content_type="application/json")
        if "message" in (whole.get("choices") or [{}])[0]:
            asked = (body.get("stream_options") or {}).get("include_usage")
            events = form.chunks(whole, with_usage=bool(asked))
        elif "content" in whole:
            events = _message_events(whole, reply, self._pieces)
        else:
            events = protocol.events(reply, body, self._pieces)
        if form.framing == "comments":
            events = (b": OPENROUTER PROCESSING\n\n" + event for event in events)
        return await self._stream(request, events, "")

    async def _stream(self, request: web.Request, events: Iterator[bytes], fault: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        for piece in self._cut(_faulty_events(fault, list(events))):
            await response.write(piece)
            if self._pause:
                await asyncio.sleep(self._pause)
        if fault == "dropped":
            _abort(request)
        else:
            await response.write_eof()
        return response

    def _cut(self, events: list[bytes]) -> Iterator[bytes]:
        """Yield the stream one event at a time, or in chunks of the chosen lengths."""
        return iter(events) if self._chunks is None else pieces(b"".join(events), self._chunks)


serve_script = ScriptedServer


# ------------------------------------------------------------------------------------------------ faults


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    body = {"error": {"message": message, "type": "scripted", "code": status}}
    return web.json_response(body, status=status, headers=headers)


def _refusal(fault: Misbehaviour) -> web.Response | None:
    """Return the error response for a fault, or None for faults within the reply."""
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


def _faulty_body(fault: str, data: bytes) -> bytes:
    if fault == "empty_body":
        return b""
    if fault == "garbage_body":
        return b"\x00\xff\xfe this is not JSON {"
    if fault == "error_in_200":
        return encode_json({"error": {"message": "The engine died.", "code": 500}})
    return data


def _faulty_events(fault: str, events: list[bytes]) -> list[bytes]:
    half = events[: max(len(events) // 2, 1)]
    if fault == "empty_body":
        return []
    if fault == "garbage_body":
        return [*half, b'data: {"choices": [{"delta"\n\n']
    if fault == "error_in_200":
        error = {"type": "error", "error": {"message": "The engine died.", "type": "api_error", "code": 500}}
        return [*half, _named_event(error)]
    if fault == "no_end":
        return [event for event in events if b"[DONE]" not in event and b"message_stop" not in event]
    return half if fault == "dropped" else events


def _rejection(kind: str, reply: ModelReply) -> dict[str, Any]:
    """Return the error's body. A call that the error does not hold whole is one that cannot be read."""
    unread = '<tool_call>\n{"name": "lookup", "arguments": {"key": "k1",}\n</tool_call>'
    return REJECTIONS[kind].body(reply.text or unread)


async def _half(request: web.Request, data: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(data))})
    await response.prepare(request)
    await response.write(data[: len(data) // 2])
    _abort(request)
    return response


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()


# ------------------------------------------------------------------------------------------------ protocols

Events = Callable[[ModelReply, Mapping[str, Any], Sequence[int]], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Protocol:
    """The format of an endpoint's requests and replies, as one body or as server-sent events."""

    read: Callable[[Mapping[str, Any]], RequestView]
    body: Callable[[ModelReply, Mapping[str, Any]], dict[str, Any]]
    events: Events


# ------------------------------------------------------------------------------------------------ OpenAI


def _openai_request(body: Mapping[str, Any]) -> RequestView:
    stop = body.get("stop") or ()
    prompt = body.get("prompt")
    messages = body.get("messages") or ()
    if not all(isinstance(message, dict) for message in messages):
        raise TypeError("messages must be a list of objects")
    return RequestView(
        messages=messages,
        prompt=prompt if isinstance(prompt, str) else None,
        tools=tuple(str(tool.get("function", {}).get("name")) for tool in body.get("tools") or ()),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        body=body,
    )


def _openai_usage(reply: ModelReply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
    }


def _envelope(kind: str, request: Mapping[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "scripted", "object": kind, "created": 0, "model": request.get("model"), "choices": choices}


def _stated(finish_reason: str) -> str | None:
    return None if finish_reason == "missing" else finish_reason


def _chat_body(reply: ModelReply, request: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or (None if reply.tool_calls else "")}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    message |= reply.attached.get("message", {})
    if reply.tool_calls:
        added = reply.attached.get("calls", {})
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
            | added.get(call.id, {})
            for call in reply.tool_calls
        ]
    stated = StatedTokens.of(reply, request)
    choice = {"index": 0, "message": message, "finish_reason": _stated(reply.finish_reason), **stated.of_choice()}
    return {**_envelope("chat.completion", request, [choice]), **stated.of_body(), "usage": _openai_usage(reply)}


def _completion_body(reply: ModelReply, request: Mapping[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "text": reply.text, "finish_reason": _stated(reply.finish_reason)}
    return {**_envelope("text_completion", request, [choice]), "usage": _openai_usage(reply)}


def _chat_events(reply: ModelReply, request: Mapping[str, Any], sizes: Sequence[int]) -> Iterator[bytes]:
    stated = StatedTokens.of(reply, request)
    deltas = [*as_deltas(reply, sizes)]

    def chunk(delta: Mapping[str, Any], finish: str | None = None, **tokens: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, **tokens}
        return event_bytes(_envelope("chat.completion.chunk", request, [choice]))

    added = reply.attached.get("message", {})
    first = {"index": 0, "delta": {"role": "assistant", "content": "", **added}, "finish_reason": None}
    yield event_bytes({**_envelope("chat.completion.chunk", request, [first]), **stated.of_body()})
    for part, delta in enumerate(deltas):
        tokens = stated.of_choice(part, len(deltas))
        if delta.kind in {"text", "reasoning"}:
            yield chunk({"content" if delta.kind == "text" else "reasoning_content": delta.text}, **tokens)
        elif delta.kind == "tool_name":
            call = reply.tool_calls[delta.index]
            function: dict[str, Any] = {"name": call.name, "arguments": ""}
            named = {"index": delta.index, "id": call.id, "type": "function", "function": function}
            named |= reply.attached.get("calls", {}).get(call.id, {})
            yield chunk({"tool_calls": [named]}, **tokens)
        else:
            yield chunk({"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}, **tokens)
    yield chunk({}, _stated(reply.finish_reason))
    yield from _openai_end("chat.completion.chunk", reply, request)


def _completion_events(reply: ModelReply, request: Mapping[str, Any], sizes: Sequence[int]) -> Iterator[bytes]:
    for delta in as_deltas(reply, sizes):
        choice = {"index": 0, "text": delta.text, "finish_reason": None}
        yield event_bytes(_envelope("text_completion", request, [choice]))
    last = {"index": 0, "text": "", "finish_reason": _stated(reply.finish_reason)}
    yield event_bytes(_envelope("text_completion", request, [last]))
    yield from _openai_end("text_completion", reply, request)


def _openai_end(kind: str, reply: ModelReply, request: Mapping[str, Any]) -> Iterator[bytes]:
    if (request.get("stream_options") or {}).get("include_usage"):
        yield event_bytes({**_envelope(kind, request, []), "usage": _openai_usage(reply)})
    yield b"data: [DONE]\n\n"


# ------------------------------------------------------------------------------------------------ Anthropic

_STOP_REASONS: Mapping[str, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}


def _anthropic_request(body: Mapping[str, Any]) -> RequestView:
    messages: list[dict[str, Any]] = []
    system = _blocks_text(body.get("system"))
    if system:
        messages.append({"role": "system", "content": system})
    for message in body.get("messages") or ():
        messages.extend(_openai_messages(message))
    return RequestView(
        messages=messages,
        tools=tuple(str(tool.get("name")) for tool in body.get("tools") or ()),
        stop=tuple(body.get("stop_sequences") or ()),
        body=body,
    )


def _openai_messages(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    blocks: list[Any] = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for block in blocks:
        if block.get("type") == "tool_result":
            text = _blocks_text(block.get("content"))
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}
    text = _blocks_text(blocks)
    calls = [
        {"id": b["id"], "function": {"name": b["name"], "arguments": encode_json(b["input"]).decode()}}
        for b in blocks
        if b.get("type") == "tool_use"
    ]
    if text or calls:
        yield {"role": message.get("role"), "content": text, **({"tool_calls": calls} if calls else {})}


def _blocks_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.get("text") or "" for block in content or () if block.get("type") == "text")


def _anthropic_usage(reply: ModelReply) -> dict[str, int]:
    usage = reply.usage
    fresh = max(usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens, 0)
    return {
        "input_tokens": fresh,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
    }


def _anthropic_blocks(reply: ModelReply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    blocks += reply.attached.get("content", ())
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": "c2lnbmVk"})
    if reply.text or not reply.tool_calls:
        blocks.append({"type": "text", "text": reply.text})
    for call in reply.tool_calls:
        try:
            arguments = decode_json(call.text)
        except ValueError:
            arguments = {}
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks


def _anthropic_body(reply: ModelReply, request: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": "scripted",
        "type": "message",
        "role": "assistant",
        "model": request.get("model"),
        "content": _anthropic_blocks(reply),
        "stop_reason": _stated(_STOP_REASONS.get(reply.finish_reason, reply.finish_reason)),
        "usage": _anthropic_usage(reply),
    }


def _anthropic_events(reply: ModelReply, request: Mapping[str, Any], sizes: Sequence[int]) -> Iterator[bytes]:
    return _message_events(_anthropic_body(reply, request), reply, sizes)


def _named_event(value: Mapping[str, Any]) -> bytes:
    return event_bytes(value, name=value["type"])


def _message_events(whole: Mapping[str, Any], reply: ModelReply, sizes: Sequence[int]) -> Iterator[bytes]:
    started = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield _named_event({"type": "message_start", "message": started})
    yield _named_event({"type": "ping"})
    texts = iter(call.text for call in reply.tool_calls)
    for index, block in enumerate(whole["content"]):
        empty, deltas = _growing(block, texts, sizes)
        yield _named_event({"type": "content_block_start", "index": index, "content_block": empty})
        for delta in deltas:
            yield _named_event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _named_event({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _named_event({"type": "message_delta", "delta": ending, "usage": whole["usage"]})
    yield _named_event({"type": "message_stop"})


def _growing(
    block: dict[str, Any], arguments: Iterator[str], sizes: Sequence[int]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block as it starts, and the deltas that fill it. Arguments are streamed as the model wrote them."""
    if block["type"] == "text":
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"], sizes)]
        return {**block, "text": ""}, deltas
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"], sizes)]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, deltas
    if block["type"] != "tool_use":
        return block, []
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(next(arguments), sizes)]
    return {**block, "input": {}}, deltas


PROTOCOLS: Mapping[str, Protocol] = {
    "/v1/chat/completions": Protocol(_openai_request, _chat_body, _chat_events),
    "/v1/completions": Protocol(_openai_request, _completion_body, _completion_events),
    "/v1/messages": Protocol(_anthropic_request, _anthropic_body, _anthropic_events),
}
"""The endpoints of the server by path."""
