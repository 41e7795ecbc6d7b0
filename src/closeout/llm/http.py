"""What the clients of HTTP servers share: attempts, retries, adaptations, streaming, the bill. No protocol."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from closeout.codec import decode_json
from closeout.errors import ContextOverflow, ModelError, ModelUnreachable, ServerFailed, StreamDropped
from closeout.llm import transport
from closeout.llm.base import BaseClient, OnDelta, OnRetry
from closeout.llm.building import ReplyBuilder
from closeout.llm.failures import error_in_body, explain, failure, is_overflow, refuses_tools
from closeout.llm.pricing import Price, find_price, undated
from closeout.llm.retry import RetryPolicy, complete_with_retries
from closeout.llm.sse import EventReader
from closeout.messages import Constraint, ModelReply, ModelRequest, ToolSpec, Usage

__all__ = ["HTTPClient", "StreamReader", "bearer"]

ONE_REQUEST = Usage(requests=1)
# Where a server counts nothing (a stream that broke off, one that was cut): four bytes a token.
BYTES_PER_TOKEN = 4
# How much of a stream without events is kept, to say what it was, or to read it as the reply that it may be.
MAX_UNREAD = 2**20
TOOLS_KEPT = 1024  # lists of tools whose JSON is kept
_REFUSES = re.compile(
    r"not supported|unsupported|does not support|unrecognized|unknown|unexpected|not permitted|not allowed|deprecated"
    r"|cannot both|only the default|may only|extra (?:inputs|fields)|invalid (?:parameter|field)|is not available",
    re.IGNORECASE,
)


class StreamReader(ABC):
    """Reads one protocol's events into a builder. `done` once the reply is known to be whole."""

    __slots__ = ("builder", "done")

    def __init__(self, builder: ReplyBuilder) -> None:
        self.builder = builder
        self.done = False

    @abstractmethod
    def take(self, event: dict[str, Any]) -> None:
        """One event's JSON object."""

    @property
    def complete(self) -> bool:
        """Whether the stream may end here without anything missing from the reply."""
        return self.done or bool(self.builder.finish_reason)

    @property
    def details(self) -> Any:
        """Signed reasoning blocks, to be sent back as they came."""
        return None


class HTTPClient(BaseClient):
    """A client of one endpoint. Subclasses write bodies, read replies and events, and know which parameters may go."""

    def __init__(
        self,
        vendor: str,
        model: str,
        base_url: str,
        *,
        own_host: bool,  # the vendor's own server: known prices hold there
        extra_body: Mapping[str, Any] | None,
        timeout: float,
        retry: RetryPolicy | None,
        sampling: tuple[float | None, float | None],
        max_tokens: int | None,
        prices: Mapping[str, Price | Sequence[float]] | None,
    ) -> None:
        self.name = f"{vendor}:{model}"
        self.model = model
        self.base_url = base_url
        self._extra = dict(extra_body or {})
        self._timeout = timeout
        self._retry = retry or RetryPolicy()
        self._temperature, self._top_p = sampling
        self._max_tokens = max_tokens
        said = {model, undated(model)} & {*(prices or ())}
        self._price = find_price(model, prices) if own_host or said else None
        self._dropped: set[str] = set()  # parameters that this server has refused
        self._tools: dict[int, tuple[bytes, tuple[ToolSpec, ...]]] = {}

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        reply, spent = await complete_with_retries(
            partial(self._attempt, request, on_delta),
            policy=self._retry,
            timeout=self._timeout if request.timeout is None else request.timeout,
            on_retry=on_retry,
        )
        return replace(reply, usage=spent + reply.usage) if spent.requests else reply

    def _sampling_of(self, request: ModelRequest) -> dict[str, Any]:
        """The request's own sampling, else the client's."""
        return {
            "temperature": self._temperature if request.temperature is None else request.temperature,
            "top_p": self._top_p if request.top_p is None else request.top_p,
        }

    def _tools_text(self, tools: tuple[ToolSpec, ...], write: Callable[[tuple[ToolSpec, ...]], bytes]) -> bytes:
        """The JSON of tools, written once: identity stands for equality, and what is kept keeps its identity."""
        found = self._tools.get(id(tools))
        if found is None:
            if len(self._tools) >= TOOLS_KEPT:
                self._tools.clear()
            found = self._tools[id(tools)] = (write(tools), tools)
        return found[0]

    # -------------------------------------------------------------------------------- what a protocol fills in

    @abstractmethod
    def _endpoint(self, request: ModelRequest) -> transport.Endpoint: ...

    @abstractmethod
    def _body(self, request: ModelRequest, *, stream: bool) -> bytes: ...

    @abstractmethod
    def _read(self, value: Any) -> ModelReply | None:
        """The reply in a whole body; None for one that is not the protocol."""

    @abstractmethod
    def _stream_reader(self, builder: ReplyBuilder) -> StreamReader: ...

    @abstractmethod
    def _droppable(self, request: ModelRequest) -> set[str]:
        """Parameters that this request carries and could do without."""

    def _adapt(self, request: ModelRequest, param: str, reason: str) -> bool:
        """Whether the client has learned something from a refusal that lets the same request pass."""
        if not _REFUSES.search(reason):
            return False
        candidates = self._droppable(request) - self._dropped
        named = param if param in candidates else next((c for c in sorted(candidates) if _names(reason, c)), None)
        if named is None:
            return False
        self._dropped.add(named)
        return True

    # -------------------------------------------------------------------------------- one attempt

    async def _attempt(self, request: ModelRequest, on_delta: OnDelta | None, timeout: float | None) -> ModelReply:
        usage = ONE_REQUEST
        try:
            if request.constraint is not None:
                await self._learn_constraints(request.constraint)
            reply = await self._ask(request, on_delta, timeout)
            usage = reply.usage
            return reply
        except ModelUnreachable as error:
            usage = error.usage = Usage()
            raise
        except ModelError as error:
            usage = error.usage = self._priced(error.usage or usage)
            raise
        finally:
            # Cancelled, too: the server has had the request.
            self.charge(usage)

    async def _learn_constraints(self, constraint: Constraint) -> None:
        """Find out how this server takes a constraint, where there are several ways."""

    async def _ask(self, request: ModelRequest, on_delta: OnDelta | None, timeout: float | None) -> ModelReply:
        endpoint = self._endpoint(request)
        while True:
            stream = on_delta is not None and self.capabilities.streaming and "stream" not in self._dropped
            body = self._body(request, stream=stream)
            response = await transport.post(endpoint, body, timeout=timeout)
            if response.status != 200:
                refusal = await response.read_start()
                if response.status in {400, 422} and self._learns(request, refusal):
                    self.charge(Usage(requests=1))
                    continue
                if request.tools and refuses_tools(explain(refusal)[1]):
                    self.capabilities = replace(self.capabilities, native_tools=False)
                raise failure(response.status, response.headers, refusal, endpoint.origin)
            if stream and response.content_type != "application/json":
                return await self._read_stream(response, on_delta, len(body), endpoint.origin)
            reply = self._whole(await response.read(), len(body), endpoint.origin)
            return reply if on_delta is None else _shown(reply, on_delta)

    def _learns(self, request: ModelRequest, refusal: bytes) -> bool:
        code, reason = explain(refusal)
        if is_overflow(code, reason):
            return False
        try:
            value = decode_json(refusal)
        except ValueError:
            return False
        error = value.get("error", value) if isinstance(value, dict) else {}
        param = error.get("param") if isinstance(error, dict) else ""
        return self._adapt(request, str(param or ""), reason)

    def _whole(self, data: bytes, sent: int, origin: str) -> ModelReply:
        try:
            value = decode_json(data)
            reply = self._read(value)
        except ValueError:
            value = reply = None
        if reply is None:
            raise error_in_body(value, origin) or _not_the_protocol(data, origin)
        return self._counted(reply, sent)

    async def _read_stream(
        self, response: transport.Response, on_delta: OnDelta | None, sent: int, origin: str
    ) -> ModelReply:
        builder = ReplyBuilder(on_delta)
        reader = self._stream_reader(builder)
        start = b""
        try:
            start = await _drive(reader, response, origin)
        except StreamDropped as error:
            if not reader.complete:
                error.usage = self._spent(builder, sent)
                raise
        except ModelError as error:
            error.usage = error.usage or self._spent(builder, sent)
            raise
        else:
            if not (reader.complete or builder.enough):
                if builder.started:
                    spent = self._spent(builder, sent)
                    raise StreamDropped(f"{origin} ended its stream before the reply.", usage=spent)
                # No event at all: an error, a proxy's page, or a whole reply from a server that does not stream.
                return _shown(self._whole(start, sent, origin), on_delta)
        usage = builder.usage or Usage(requests=1)
        return self._counted(builder.reply(usage=usage, reasoning_details=reader.details), sent)

    # -------------------------------------------------------------------------------- the bill

    def _spent(self, builder: ReplyBuilder, sent: int) -> Usage:
        """What a broken-off stream cost: the server's count if it came, else an estimate by length."""
        if builder.usage is not None:
            return replace(builder.usage, requests=1)
        return Usage(sent // BYTES_PER_TOKEN, builder.characters // BYTES_PER_TOKEN, requests=1)

    def _counted(self, reply: ModelReply, sent: int) -> ModelReply:
        usage = reply.usage
        if not usage.total_tokens:
            written = len(reply.text) + len(reply.reasoning) + sum(len(call.text) for call in reply.tool_calls)
            usage = Usage(sent // BYTES_PER_TOKEN, written // BYTES_PER_TOKEN + 1, requests=1)
        if usage.cost_usd is None and self._price is not None:
            usage = self._price.of(usage)
        return reply if usage is reply.usage else replace(reply, usage=usage)

    def _priced(self, usage: Usage) -> Usage:
        return self._price.of(usage) if self._price is not None and usage.cost_usd is None else usage


async def _drive(reader: StreamReader, response: transport.Response, origin: str) -> bytes:
    """Feeds a response's events to a reader until its end, or enough. Returns the body's first bytes."""
    events = EventReader()
    builder = reader.builder
    start = b""
    async with aclosing(response.chunks()) as chunks:
        async for chunk in chunks:
            if not builder.started and len(start) < MAX_UNREAD:
                start += chunk
            for data in events.feed(chunk):
                _take(reader, data, origin)
                if builder.enough:
                    response.close()
                    return start
            if reader.done:
                await response.drain()
                return start
    for data in events.close():
        _take(reader, data, origin)
    return start


def _take(reader: StreamReader, data: bytes, origin: str) -> None:
    if data == b"[DONE]":
        reader.done = True
        return
    try:
        event = decode_json(data)
    except ValueError:
        raise ServerFailed(f"{origin} sent a stream event that is not JSON.") from None
    if not isinstance(event, dict):
        return
    if "error" in event or event.get("type") == "error":
        error = error_in_body(event, origin)
        if error is not None:
            raise error
    reader.take(event)


def _shown(reply: ModelReply, on_delta: OnDelta | None) -> ModelReply:
    """A reply that came whole, shown to a listener for pieces."""
    if on_delta is None:
        return reply
    builder = ReplyBuilder(on_delta)
    builder.add_reasoning(reply.reasoning)
    builder.add_text(reply.text)
    for index, call in enumerate(reply.tool_calls):
        builder.add_call(index, name=call.name, arguments=call.text)
    return reply


def _names(reason: str, parameter: str) -> bool:
    return re.search(rf"(?<![\w]){re.escape(parameter)}(?![\w])", reason) is not None


def _not_the_protocol(data: bytes, origin: str) -> ModelError:
    _, reason = explain(data)
    what = f"something that is no reply: {reason}" if reason else "an empty reply"
    if is_overflow("", reason):
        return ContextOverflow(f"The prompt is longer than the model's context. {origin} sent {reason}.")
    return ServerFailed(f"{origin} sent {what}. Check base_url, and whether a proxy answers in the server's place.")


def bearer(api_key: str | None) -> Mapping[str, str]:
    """The header that carries a key; none for none."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
