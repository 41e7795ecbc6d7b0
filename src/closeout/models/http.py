"""The base class of clients for HTTP servers: attempts, retries, streaming, usage, and what a server refuses."""

from __future__ import annotations

import asyncio
import copy
import re
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

from closeout.codec import decode_json, encode_json
from closeout.errors import ContextOverflow, ModelError, ModelTimeout, ModelUnreachable, ServerFailed, StreamDropped
from closeout.messages import Constraint, ModelReply, ModelRequest, ToolSpec, Usage
from closeout.models import transport
from closeout.models.base import BaseClient, OnDelta, OnRetry
from closeout.models.catalog import PRICES, Price, find_price
from closeout.models.http_errors import (
    REFUSES,
    error_from_body,
    error_from_response,
    explain,
    is_overflow,
    refusal,
    refuses_tools,
    rejected_text,
)
from closeout.models.long_steps import pause_after
from closeout.models.retry import RetryPolicy, complete_with_retries
from closeout.models.streaming import EventReader, ReplyBuilder, StreamReader
from closeout.parsing.numbers import may_be_inexact, read_with_digits
from closeout.redaction import redact, secrets_in

__all__ = ["HTTPClient"]

ONE_REQUEST = Usage(requests=1)
# An estimate for replies without a usage, such as a stream that was cut off: about four bytes a token.
BYTES_PER_TOKEN = 4
# Bytes of a stream without events that are kept, to read it as a whole reply or to say what it is.
MAX_UNREAD = 2**20
# Seconds that a stream may stay open after its finish_reason: the usage comes in an event of its own.
FINISH_SECONDS = 2.0
TOOLS_KEPT = 1024  # lists of tools whose JSON is kept


class HTTPClient(BaseClient):
    """A client of one HTTP endpoint. Subclasses write request bodies and read replies and events.

    If a server refuses a parameter that a request can do without, the request is sent again without it, and so are
    all later ones if that one passed: an error may repeat words of the request, which teach nothing.
    """

    # Parameters that a request can do without. Not `tools`: without them it would be another request.
    _OPTIONAL: ClassVar[frozenset[str]]
    # The attributes that hold what a refusal has taught. Their values are immutable.
    _LEARNED: ClassVar[tuple[str, ...]] = ("_dropped",)

    def __init__(
        self,
        vendor: str,
        model: str,
        base_url: str,
        *,
        own_host: bool,  # the vendor's own server, where its known prices apply
        headers: Mapping[str, str],
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
        self._server = f"{vendor} {transport.Endpoint(base_url).origin}"  # the server whose attachments are sent back
        self._secrets = secrets_in(headers)
        self._extra = dict(extra_body or {})
        self._timeout = timeout
        self.retry: RetryPolicy = retry or RetryPolicy()
        self._temperature, self._top_p = sampling
        self._max_tokens = self.max_reply = max_tokens
        self.price = find_price(model, prices, known=PRICES if own_host else {})
        self._has_answered = False
        self._dropped: frozenset[str] = frozenset()  # parameters that this server has refused
        self.has_learned = False
        self._tools: dict[int, tuple[bytes, tuple[ToolSpec, ...]]] = {}

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        policy = self.retry
        if self._has_answered:  # so its address is right: it restarts
            policy = replace(policy, unreachable_retries=policy.retries)
        reply, spent = await complete_with_retries(
            partial(self._attempt_request, request, on_delta),
            policy=policy,
            timeout=self._timeout if request.timeout is None else request.timeout,
            on_retry=on_retry,
        )
        return replace(reply, usage=spent + reply.usage) if spent.requests else reply

    def pupil(self) -> Self:
        """Return a client of the same server that knows what this one has learned, and learns for itself."""
        found = copy.copy(self)
        found.has_learned, found._tools = False, {}
        return found

    def _take_over(self, pupil: Self) -> None:
        """Learn what a pupil has learned."""
        for name in self._LEARNED:
            setattr(self, name, getattr(pupil, name))
        self.has_learned = True

    # -------------------------------------------------------------------------------- what a protocol implements

    @abstractmethod
    def _endpoint(self, request: ModelRequest) -> transport.Endpoint: ...

    @abstractmethod
    def _body(self, request: ModelRequest, *, stream: bool) -> bytes: ...

    @abstractmethod
    def _read(self, value: Any) -> ModelReply | None:
        """Return the reply in a response's body; None if the body does not follow the protocol."""

    @abstractmethod
    def _stream_reader(self, builder: ReplyBuilder) -> StreamReader: ...

    @abstractmethod
    def _asked(self, request: ModelRequest) -> dict[str, Any]:
        """Return what the request asks for, as parameters; those that it leaves open are left out."""

    @abstractmethod
    def _constraint_options(self, constraint: Constraint) -> dict[str, Any]:
        """Return the parameters that make the server enforce a constraint; empty if it cannot."""

    async def _learn_server(self, request: ModelRequest) -> None:
        """Find out what kind of server this is, if the form of the request depends on it."""

    def _adapt(self, request: ModelRequest, param: str, reason: str) -> bool:
        """Learn from a refusal. Return whether the request may pass now."""
        if not REFUSES.search(reason):
            return False
        carried = {*self._asked(request), "stream", "stream_options"} & self._OPTIONAL
        candidates = sorted(carried - self._dropped)
        words = re.findall(r"\w+", reason)
        named = param if param in candidates else next((name for name in candidates if name in words), None)
        if named is None:
            return False
        self._dropped |= {named}
        return True

    # -------------------------------------------------------------------------------- one attempt

    async def _attempt_request(
        self, request: ModelRequest, on_delta: OnDelta | None, timeout: float | None
    ) -> ModelReply:
        """Send a request once, and again as long as the server's refusals teach the client something."""
        usage = ONE_REQUEST
        client = self
        try:
            await self._learn_server(request)
            endpoint = self._endpoint(request)
            sent: list[bytes] = []
            while True:
                stream = client._streams(on_delta)
                body = client._body(request, stream=stream)
                sent.append(body)
                response = await transport.post(endpoint, body, timeout=timeout)
                self._has_answered = True
                if response.status == 200:
                    if client is not self:
                        self._take_over(client)
                    reply = await self._read_response(response, on_delta if stream else None, len(body))
                    break
                said = await response.read_start()
                if (written := rejected_text(response.status, said)) is not None:
                    reply = self._rejected(written, len(body))
                    break
                client = client.pupil()
                learns = response.status in {400, 422} and client._learns(request, said)
                # What was refused before would be refused again.
                if not learns or client._body(request, stream=client._streams(on_delta)) in sent:
                    if request.tools and refuses_tools(said, body):
                        self.capabilities = replace(self.capabilities, native_tools=False)
                    raise error_from_response(response.status, response.headers, said, response.origin)
                self.charge(ONE_REQUEST)
            if on_delta is not None and not stream and reply.finish_reason != "rejected":
                _replay(reply, on_delta)
            usage = reply.usage
            if reply.attached:
                reply = replace(reply, attached={"server": self._server, **reply.attached})
            warnings = self._warnings(request)
            return replace(reply, warnings=warnings) if warnings else reply
        except ModelUnreachable as error:
            usage = error.usage = Usage()
            raise
        except ModelError as error:
            usage = error.usage = self._priced(error.usage or usage)
            error.args = (redact(str(error), self._secrets),)
            raise
        finally:
            # Also when cancelled: the server has received the request.
            self.charge(usage)

    def _streams(self, on_delta: OnDelta | None) -> bool:
        return on_delta is not None and self.capabilities.streaming and "stream" not in self._dropped

    def _learns(self, request: ModelRequest, body: bytes) -> bool:
        code, param, reason = refusal(body)
        return not is_overflow(code, reason) and self._adapt(request, param, reason)

    def _warnings(self, request: ModelRequest) -> tuple[str, ...]:
        """Say so if the reply was not held to the request's constraint."""
        if request.constraint is None:
            return ()
        sent = self._constraint_options(request.constraint).keys()
        if sent and self._dropped.isdisjoint(sent):
            return ()
        kind = request.constraint.kind.replace("_", " ")
        return (f"{self.base_url} cannot enforce a {kind}: the replies of {self.model} are not constrained.",)

    # -------------------------------------------------------------------------------- reading

    async def _read_response(self, response: transport.Response, on_delta: OnDelta | None, sent: int) -> ModelReply:
        """Read a response: as a stream if there is an `on_delta`, unless the server answers in the other form."""
        if on_delta is not None and response.content_type != "application/json":
            return await self._read_stream(response, on_delta, sent)
        if response.content_type == "text/event-stream":
            return await self._read_stream(response, lambda _: None, sent)
        reply = self._read_whole(await response.read(), sent, response.origin)
        return reply if on_delta is None else _replay(reply, on_delta)

    def _read_whole(self, data: bytes, sent: int, origin: str) -> ModelReply:
        try:
            value = _decoded(data)
            reply = self._read(value)
        except ValueError:
            value = reply = None
        if reply is None and isinstance(value, dict) and (written := rejected_text(500, data)) is not None:
            return self._rejected(written, sent)
        if reply is None:
            raise error_from_body(value, origin) or _not_the_protocol(data, origin, about_request=value is not None)
        return self._counted(reply, sent)

    async def _read_stream(self, response: transport.Response, on_delta: OnDelta, sent: int) -> ModelReply:
        builder = ReplyBuilder(on_delta)
        reader = self._stream_reader(builder)
        start = b""
        try:
            start = await _drive(reader, response)
        except (StreamDropped, ModelTimeout) as error:
            if not reader.complete:
                error.usage = self._spent(builder, sent)
                raise
        except _Rejected as error:
            builder.finish_reason = "rejected"
            if error.written and not builder.last_call >= 0:
                return self._rejected(error.written, sent)
        except ModelError as error:
            error.usage = error.usage or self._spent(builder, sent)
            raise
        else:
            if not (reader.complete or builder.enough or builder.started):
                # No event at all: an error, a proxy's page, or a whole reply from a server that does not stream.
                return _replay(self._read_whole(start, sent, response.origin), on_delta)
        usage = builder.usage or ONE_REQUEST
        return self._counted(builder.reply(usage=usage, attached=reader.attached, tokens=reader.tokens), sent)

    def _rejected(self, written: str, sent: int) -> ModelReply:
        """Return the reply that the server could not read. Its text is empty if the server does not say what it was."""
        return self._counted(ModelReply(written, finish_reason="rejected", model=self.model), sent)

    # -------------------------------------------------------------------------------- usage and options

    def _spent(self, builder: ReplyBuilder, sent: int) -> Usage:
        """Return what an incomplete stream cost: the server's count, or an estimate by length."""
        if builder.usage is not None:
            return replace(builder.usage, requests=1)
        return Usage(sent // BYTES_PER_TOKEN, builder.characters // BYTES_PER_TOKEN, requests=1)

    def _counted(self, reply: ModelReply, sent: int) -> ModelReply:
        usage = reply.usage
        if not usage.input_tokens and usage.output_tokens:  # no prompt is empty: the count is missing, or too large
            usage = replace(usage, input_tokens=sent // BYTES_PER_TOKEN)
        if not usage.total_tokens:
            written = len(reply.text) + len(reply.reasoning) + sum(len(call.text) for call in reply.tool_calls)
            usage = Usage(sent // BYTES_PER_TOKEN, written // BYTES_PER_TOKEN + 1, requests=1)
        usage = self._priced(usage)
        return reply if usage is reply.usage else replace(reply, usage=usage)

    def _priced(self, usage: Usage) -> Usage:
        return self.price.of(usage) if self.price is not None and usage.cost_usd is None else usage

    def _sampling_of(self, request: ModelRequest) -> dict[str, Any]:
        """Return the sampling parameters of the request, or else of the client."""
        return {
            "temperature": self._temperature if request.temperature is None else request.temperature,
            "top_p": self._top_p if request.top_p is None else request.top_p,
        }

    def _tools_text(self, tools: tuple[ToolSpec, ...], write: Callable[[tuple[ToolSpec, ...]], Any]) -> bytes:
        """Return the JSON of tools, written once for each tuple. The cache keeps the tuples, so ids stay unique."""
        found = self._tools.get(id(tools))
        if found is None:
            if len(self._tools) >= TOOLS_KEPT:
                self._tools.clear()
            found = self._tools[id(tools)] = (encode_json(write(tools)), tools)
        return found[0]


class _Rejected(Exception):
    """A stream ended with an error that says that the server could not read what the model wrote."""

    def __init__(self, written: str) -> None:
        super().__init__(written)
        self.written = written


async def _drive(reader: StreamReader, response: transport.Response) -> bytes:
    """Pass a response's events to a reader until its end. Return the first bytes of a body without events."""
    events = EventReader()
    builder = reader.builder
    start = b""
    async with aclosing(response.chunks()) as chunks:
        while chunk := await _next_chunk(chunks, FINISH_SECONDS if reader.complete else None):
            if not builder.started and len(start) < MAX_UNREAD:
                start += chunk
            began = time.thread_time()
            for data in events.feed(chunk):
                _take(reader, data, response.origin)
                await pause_after(began, len(data))
                if builder.enough:
                    response.close()
                    return start
                if reader.done:  # what follows [DONE] is ignored
                    await response.drain()
                    return start
    for data in events.close():
        _take(reader, data, response.origin)
    return start


async def _next_chunk(chunks: AsyncGenerator[bytes, None], seconds: float | None) -> bytes:
    """Return the next chunk; b"" at the end of the body, or if none arrives in time."""
    if seconds is None:
        return await anext(chunks, b"")
    try:
        async with asyncio.timeout(seconds):
            return await anext(chunks, b"")
    except TimeoutError:
        return b""


def _take(reader: StreamReader, data: bytes, origin: str) -> None:
    if data == b"[DONE]":
        reader.done = True
        return
    try:
        event = _decoded(data, keep_surrogates=True)
    except ValueError:
        raise ServerFailed(f"{origin} sent a stream event that is not JSON.") from None
    if not isinstance(event, dict):
        return
    if "error" in event or event.get("type") == "error":
        if (written := rejected_text(500, data)) is not None:
            raise _Rejected(written)
        error = error_from_body(event, origin)
        if error is not None:
            raise error
    reader.take(event)


def _decoded(data: bytes, *, keep_surrogates: bool = False) -> Any:
    """Return the value of a body or event; the numbers of a call that came as an object keep their digits."""
    value = decode_json(data, keep_surrogates=keep_surrogates)
    return read_with_digits(data, value) if b'"tool' in data and may_be_inexact(data) else value


def _replay(reply: ModelReply, on_delta: OnDelta) -> ModelReply:
    """Show a whole reply to a callback for pieces."""
    builder = ReplyBuilder(on_delta)
    builder.add_reasoning(reply.reasoning)
    builder.add_text(reply.text)
    for index, call in enumerate(reply.tool_calls):
        builder.add_call(index, name=call.name, arguments=call.text)
    return reply


def _not_the_protocol(data: bytes, origin: str, *, about_request: bool) -> ModelError:
    _, reason = explain(data)
    what = f"something that is not a reply: {reason}" if reason else "an empty reply"
    if is_overflow("", reason):
        return ContextOverflow(f"The prompt is longer than the model's context. {origin} sent {reason}.")
    told = f"{origin} sent {what}. Check base_url, and whether a proxy answers instead of the server."
    return ServerFailed(told, about_request=about_request)
