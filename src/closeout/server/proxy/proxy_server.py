"""The proxy: a governed model endpoint. Valid replies pass unchanged, others are repaired or requested again."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal

from aiohttp import web

from closeout.codec import decode_json, encode_json
from closeout.dialects.cot import CotChat
from closeout.dialects.protocol import HistoryView
from closeout.dialects.text_chat import conversation
from closeout.errors import BadRequest, ModelError, RequestFailed, ServerFailed, StreamDropped
from closeout.journal.store import Store
from closeout.messages import Capabilities, Delta, Message, ModelReply, ModelRequest, Repair, Usage
from closeout.models import transport
from closeout.models.base import OnDelta
from closeout.models.http import HTTPClient
from closeout.models.http_errors import error_from_body, rejected_text
from closeout.models.long_steps import pause_after
from closeout.models.refusals import ServerRefusal
from closeout.models.streaming import MAX_EVENT, EventReader, ReplyBuilder, StreamReader
from closeout.parsing.forms import Form, check_forms
from closeout.server.admission import Admission
from closeout.server.api_errors import ApiError, error_body, json_body
from closeout.server.app import json_response
from closeout.server.formats import FORMATS, Format, NativeFormat, RequestTools, Writer, with_hint
from closeout.server.governing import Governor, Verdict, with_new_ids
from closeout.server.proxy.flow_gate import FlowGate
from closeout.server.proxy.lessons import Lessons, ProxiedConversation
from closeout.server.proxy.proxy_record import ProxyRecord, records_written
from closeout.server.safety import client_key
from closeout.server.sse import event_bytes
from closeout.server.text_gate import TextGate
from closeout.server.upstream import Upstream, headers_back, kept
from closeout.tools.flow import Flow

__all__ = ["Proxy"]

MAX_AGAIN = 2  # Repeated requests for one reply.
TIMEOUT = 600.0  # seconds for one reply
GOVERNORS_KEPT = 256  # lists of tools whose schemas stay compiled
LONGEST_KEPT = 2**18  # bytes of such a list
LONGEST_MODEL = 1_000  # characters of a model's name, under which things are kept
MAX_REQUESTS = 512  # Concurrent requests.
MAX_QUEUE = 1024  # Waiting requests.
REJECTIONS_BEFORE_TEXT = 2  # errors in a row about calls of the model before they are asked for as text

_FRAME_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class Proxy:
    """Governs the requests to one model server.

    Args:
        upstream: The server.
        store: Where requests are recorded, each as a run.
        record_only: Repair nothing; record what would have been repaired.
        keep_conversations: Record the whole conversation with each reply that makes no calls.
        dialect: "auto" offers tools natively and changes to text for models whose server refuses them; "text" writes
            them into the prompt at once.
        read_only_tools: The names of tools without effects. All others count as tools with effects.
        forms: Forms in which the model writes tool calls as text, beside the built-in ones.
        flow: Rules on the calls that a model makes once its conversation holds untrusted text.
        max_requests: How many requests are served at the same time.
        max_queue: How many more may wait.
    """

    def __init__(
        self,
        upstream: Upstream,
        store: Store,
        *,
        record_only: bool = False,
        keep_conversations: bool = False,
        dialect: Literal["auto", "text"] = "auto",
        read_only_tools: Collection[str] = (),
        forms: Sequence[Form] = (),
        flow: Flow | None = None,
        max_requests: int = MAX_REQUESTS,
        max_queue: int = MAX_QUEUE,
    ) -> None:
        self.upstream = upstream
        self.store = store
        self.record_only = record_only
        self.keep_conversations = keep_conversations
        self.counts = Counter[str]()  # requests, repaired, again, unrepaired, failed
        self.repairs = Counter[str]()  # keyed by kind
        self.admission = Admission(max_requests, max_queue)
        self._read_only_tools = frozenset(read_only_tools)
        self.flow = None if flow is None else FlowGate(flow, self._read_only_tools)
        self.always_text = dialect == "text"
        self.forms = check_forms(forms)
        self.in_text = Lessons[bool]()  # conversations whose model gets its tools as text
        self.clients = Lessons[HTTPClient]()  # with what they have learned
        self._governors: OrderedDict[bytes, Governor] = OrderedDict()

    def add_routes(self, app: web.Application) -> None:
        """Add the routes of the proxy to an application."""
        for each in FORMATS:
            app.router.add_post(f"/v1/{each.path}", self._handler(each))
        app.router.add_route("*", "/v1/{path:.*}", self._forward)

        async def close(_: web.Application) -> None:
            await records_written()
            await self.upstream.aclose()

        app.on_cleanup.append(close)

    def _handler(self, each: Format) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            async with self.admission.enter():
                body = await json_body(request)
                began = time.thread_time()
                exchange = _ProxiedExchange(self, request, each, body)
                await pause_after(began, request.content_length or 0)
                return await exchange.run()

        return handle

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        """Forward any other request unchanged."""
        _, below, path = request.raw_path.partition("/v1/")  # encoded: %2F and %3F are parts of a name
        if not below or ".." in request.match_info["path"]:
            raise ApiError(404, "No such path. Write it as /v1/…, without '..'.")
        async with self.admission.enter():
            data = await request.read()
            endpoint = self.upstream.endpoint(path, request.headers)
            try:
                response = await transport.post(endpoint, data or None, timeout=TIMEOUT, method=request.method)
            except ModelError as error:
                raise _api_error(error) from None
            out = web.StreamResponse(status=response.status, headers=headers_back(response.headers))
            await out.prepare(request)
            async with aclosing(response.chunks()) as chunks:
                async for chunk in chunks:
                    await out.write(chunk)
            await out.write_eof()
            return out

    # ------------------------------------------------------------------------------------------ parts

    def governor(self, offered: RequestTools, *, parallel: bool) -> Governor:
        """Return the governor for the tools of a request, kept from earlier requests with the same tools."""
        specs = [[spec.name, spec.description, spec.parameters] for spec in offered.functions]
        key = encode_json([specs, offered.others, parallel])
        found = self._governors.get(key)
        if found is None:
            found = Governor(
                offered.functions,
                offered.others,
                read_only=self._read_only_tools,
                parallel=parallel,
                forms=self.forms,
            )
        return found if len(key) > LONGEST_KEPT else kept(self._governors, key, found, GOVERNORS_KEPT)


def _api_error(error: ModelError) -> ApiError:
    return ApiError(error.status or 502, str(error), code=type(error).__name__)


def _settings_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a request as events have them."""
    given = {"top_p": body.get("top_p"), "max_tokens": body.get("max_tokens")}
    options = {name: value for name, value in given.items() if isinstance(value, int | float)}
    temperature = body.get("temperature")
    return {"temperature": temperature if isinstance(temperature, int | float) else None, "options": options}


class _Failed(Exception):
    """An upstream reply that failed after the client got a part of it."""


@dataclass(frozen=True, slots=True)
class _Received:
    """A reply of the upstream server.

    Attributes:
        response: The response that it came in.
        rest: The bytes that the client has not got; of a stream, its events.
        reply: The reply.
        fault: A fault of its form that clients may not be able to read; empty without one.
    """

    response: transport.Response
    rest: bytes | list[bytes]
    reply: ModelReply
    fault: str = ""

    @classmethod
    def rejected(
        cls, response: transport.Response, rest: bytes | list[bytes], written: str, builder: ReplyBuilder | None = None
    ) -> _Received:
        """Return the reply in an error with which the server rejects a call of its own model.

        `written` is what the model wrote, if the error quotes it; `builder` has the part of the reply before the error.
        """
        usage = Usage(requests=1)
        reply = ModelReply(written, finish_reason="rejected", usage=usage)
        if builder is not None and (builder.last_call >= 0 or not written):
            reply = replace(builder.reply(usage=usage), finish_reason="rejected")
        return cls(response, rest, reply)


class _ProxiedExchange:
    """One request of a client, and the requests to the upstream server that it takes."""

    def __init__(self, proxy: Proxy, request: web.Request, form: Format, body: dict[str, Any]) -> None:
        self._proxy = proxy
        self._request = request
        self._form = form
        # In record-only mode the client's own words are sent.
        self._body, repairs = (body, []) if proxy.record_only else form.mended(body)
        self._is_mended = bool(repairs)  # the client's own bytes are not sent
        self._model = str(body.get("model") or "")
        if len(self._model) > LONGEST_MODEL:
            raise ApiError(400, f"The name of the model is longer than {LONGEST_MODEL:,} characters.", param="model")
        self._streams = bool(body.get("stream"))
        self._has_choices = body.get("n") not in (None, 1)  # they pass unchanged: some may be valid, others not
        self._offered = form.tools(body)
        self._check_for_flow()
        self._governor = proxy.governor(self._offered, parallel=form.parallel(body))
        self._conversation = ProxiedConversation(self._model, client_key(request.headers), lambda: form.messages(body))
        self._writes_text = bool(self._offered.functions) and (
            proxy.always_text or bool(proxy.in_text.find(self._conversation))
        )
        self._messages = form.messages(self._body)
        self._writer: Writer = form.writer(body)
        self._out: web.StreamResponse | None = None  # once the response has begun
        self._shown: list[str] = []  # text of the current reply that the client got, in pieces
        self._earlier = ""  # text that the client got of a useless reply
        self._again = 0  # times that the request was repeated with a hint
        self._retries = 0  # times that a reply broke off or could not be read
        self._refusal: tuple[transport.Response, bytes] | None = None  # an error that another request may avoid
        self._rejected = 0  # times in a row that the server could not read its model's call
        notes = {"format": form.path, "upstream": proxy.upstream.base, "record_only": proxy.record_only}
        keeps = proxy.keep_conversations
        self._record = ProxyRecord(
            proxy.store,
            self._model,
            self._messages,
            notes,
            tools=self._offered.functions if keeps and not self._has_choices else None,
            settings=_settings_of(body) if keeps else None,
        )
        self._record.repaired(repairs)
        proxy.repairs.update(repair.kind for repair in repairs)

    @property
    def _governs(self) -> bool:
        """True if replies may be changed."""
        is_ours = bool(self._governor.tools) or self._proxy.flow is not None
        return is_ours and not self._proxy.record_only and not self._has_choices

    def _check_for_flow(self) -> None:
        """Refuse a request whose reply may hold calls that the proxy does not see, if there are flow rules."""
        if self._proxy.flow is None or self._proxy.record_only:
            return
        if self._has_choices:
            raise ApiError(400, "With flow rules, the proxy takes requests for one reply: leave n out.", param="n")
        if self._form.path == "chat/completions" and len(self._offered.functions) < len(self._body.get("tools") or ()):
            raise ApiError(400, "With flow rules, the proxy takes function tools only.", param="tools")

    @property
    def _native(self) -> NativeFormat | None:
        """The format of the request if the upstream server speaks it."""
        form = self._form
        return form if isinstance(form, NativeFormat) and form.protocol == self._proxy.upstream.kind else None

    async def run(self) -> web.StreamResponse:
        """Serve the request."""
        self._proxy.counts["requests"] += 1
        try:
            form = self._native
            if form and not self._writes_text and self._proxy.clients.find(self._conversation) is None:
                found = await self._pass_through(form)
                if found is not None:
                    return found
            return await self._convert()
        except (ModelError, ApiError) as error:
            if self._out is None and self._refusal is not None:
                return self._passed_on(*self._refusal)
            if isinstance(error, ApiError):
                self._record.ended("failed", "failed", error=str(error))
                raise
            self._proxy.counts["failed"] += 1
            self._record.ended("failed", "model_failed", error=str(error))
            if self._out is None:
                raise _api_error(error) from None
            await self._out.write(event_bytes(error_body(_api_error(error)), name="error"))
            return await self._close()
        except _Failed:
            self._proxy.counts["failed"] += 1
            self._record.ended("failed", "model_failed", error="The upstream server broke off its reply.")
            if self._request.transport is not None:
                self._request.transport.close()  # the client must not take what it got for a whole reply
            assert self._out is not None
            return self._out
        except (asyncio.CancelledError, ConnectionError):
            self._record.ended("cancelled", "cancelled")
            raise
        except BaseException as error:
            self._record.ended("failed", "failed", error=f"{type(error).__name__}: {error}")
            raise
        finally:
            await self._record.written()

    # ------------------------------------------------------------------------------------------ the same format

    async def _pass_through(self, form: NativeFormat) -> web.StreamResponse | None:
        """Forward the request. Returns None if the model must get its tools as text."""
        endpoint = self._proxy.upstream.endpoint(form.path, self._request.headers)
        data = encode_json(self._body) if self._is_mended else await self._request.read()
        # Clients recognise a reply that was cut off, so they get it rather than the last useless one.
        cut: tuple[_Received, Verdict] | None = None
        if hint := self._flow_hint():
            data = encode_json(form.asked_again(self._body, hint))
        while True:
            self._record.requested(messages=len(self._messages) + 2 * self._again, size=len(data))
            try:
                response = await transport.post(endpoint, data, timeout=TIMEOUT)
                if response.status == 200:
                    received = await self._receive(form, response)
                else:
                    raw = await response.read_start()
                    written = rejected_text(response.status, raw) if self._governs else None
                    if written is None:
                        return await self._refused(response, raw)
                    received = _Received.rejected(response, raw, written)
            except ModelError as error:
                self._record.failed(error)
                self._retries += 1
                if self._retries > MAX_AGAIN or self._proxy.record_only:
                    if self._shown or self._earlier:
                        raise _Failed from None
                    raise
                self._keep_shown()
                continue
            reply, began = received.reply, time.thread_time()
            self._record.replied(reply)
            verdict = Verdict(reply=reply) if self._has_choices else self._judge(reply, form_fault=received.fault)
            await pause_after(began, self._record.size)
            if verdict.defect is None:
                return await self._answer(form, received, verdict)
            if reply.finish_reason in ("length", "context_full") and not self._shown:
                cut = received, verdict
            if not self._may_ask_again:
                return await self._answer(form, *(cut or (received, verdict)))
            self._count_again()
            if self._asks_past_parser(verdict):
                return None
            data = encode_json(form.asked_again(self._body, verdict.defect.hint))

    def _asks_past_parser(self, verdict: Verdict) -> bool:
        """Return True if the server could not read its model's calls twice in a row: as text it has none to read."""
        is_rejected = verdict.reply.finish_reason == "rejected"
        self._rejected = self._rejected + 1 if is_rejected else 0
        if self._rejected < REJECTIONS_BEFORE_TEXT:
            return False
        self._write_as_text()
        return True

    def _write_as_text(self) -> None:
        self._proxy.in_text.keep(self._conversation, True)
        self._writes_text = True

    async def _refused(self, response: transport.Response, raw: bytes) -> web.StreamResponse | None:
        """Pass an error on; None if another request may avoid it."""
        said = f"The upstream server answered with status {response.status}."
        if self._again and response.status >= 500:  # a request that the client did not make
            raise ServerFailed(said, status=response.status)
        error = ModelError(said, status=response.status)
        if self._out is not None:
            raise error
        self._record.failed(error)
        may_change = not (self._again or self._proxy.record_only or self._has_choices or self._offered.others)
        if may_change and not ServerRefusal(response.status, raw).is_final:
            self._refusal = response, raw
            return None
        return self._passed_on(response, raw)

    def _passed_on(self, response: transport.Response, raw: bytes) -> web.Response:
        """Return the server's own error."""
        self._proxy.counts["failed"] += 1
        said = f"The upstream server answered with status {response.status}."
        self._record.ended("failed", "model_failed", error=said)
        return web.Response(status=response.status, body=raw, headers=self._headers(response))

    async def _receive(self, form: NativeFormat, response: transport.Response) -> _Received:
        if response.content_type == "text/event-stream":
            received = await self._read_stream(form, response)
            if self._streams or received.reply.finish_reason == "rejected":
                return received
            body = encode_json(form.whole(self._body, received.reply))
            return replace(received, rest=body, fault=received.fault or "framing")
        raw = await response.read()
        began = time.thread_time()
        try:
            value = decode_json(raw)
        except ValueError:
            value = None
        error = error_from_body(value, self._proxy.upstream.base)
        if error is not None:
            written = rejected_text(500, raw) if self._governs else None
            if written is None:
                raise error
            return _Received.rejected(response, raw, written)
        reply = form.read(value)
        if reply is None:
            raise ServerFailed(f"{self._proxy.upstream.base} sent what is not a reply.")
        check = form.form_check()
        check.take(value)
        await pause_after(began, len(raw))
        return _Received(response, raw, reply, check.fault or ("framing" if self._streams else ""))

    async def _read_stream(self, form: NativeFormat, response: transport.Response) -> _Received:
        """Read a stream and pass on what is certainly a part of a valid reply."""
        deltas: list[Delta] = []
        builder = ReplyBuilder(deltas.append)
        reader, check = form.reader(builder), form.form_check()
        gate, pieces = TextGate(self._proxy.forms), EventReader()
        # A reply that follows a useless one is shown only once it is known to be valid.
        closed = self._again > 0 or self._writer.begun or not self._streams
        held: list[bytes] = []
        held_events: list[dict[str, Any]] = []
        held_text: list[str] = []
        async with aclosing(_frames(response)) as stream:
            async for frames in stream:
                began = time.thread_time()
                passing = 0  # frames of `held` that may be passed on
                for frame in frames:
                    held.append(frame)
                    for data in pieces.feed(frame):
                        event = self._event(data, reader)
                        if event is None:
                            continue
                        if (written := self._rejected_event(event)) is not None:
                            return _Received.rejected(response, held, written, builder)
                        reader.take(event)
                        check.take(event)
                        held_events.append(event)
                    text = "".join([delta.text for delta in deltas if delta.kind == "text"])
                    held_text.append(text)
                    if self._governs and not closed:
                        if text:
                            gate.feed(text)
                        called = any(delta.kind in ("tool_name", "tool_arguments") for delta in deltas)
                        closed = called or reader.complete or bool(check.fault)
                    deltas.clear()
                    if not closed and not (self._governs and gate.holds):
                        passing = len(held)
                        for event in held_events:
                            self._writer.observe(event)
                        held_events.clear()
                await pause_after(began, sum(map(len, frames)))
                if passing:
                    out = await self._begin(response)
                    await out.write(b"".join(held[:passing]))
                    self._shown += filter(None, held_text[:passing])
                    del held[:passing], held_text[:passing]
        for data in pieces.close():
            if (event := self._event(data, reader)) is not None:
                reader.take(event)
        if not reader.complete:
            raise StreamDropped("The upstream server broke off its reply.")
        usage = builder.usage or Usage(requests=1)
        fault = check.fault or ("index" if builder.renumbered else "")
        return _Received(response, held, builder.reply(usage=usage, attached=reader.attached), fault)

    def _event(self, data: bytes, reader: StreamReader) -> dict[str, Any] | None:
        """Return the JSON object of an event; None if it is something else, such as the end of the stream."""
        if data == b"[DONE]":
            reader.done = True
            return None
        try:
            value = decode_json(data, keep_surrogates=True)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def _rejected_event(self, event: dict[str, Any]) -> str | None:
        """Return what the model wrote if an event says that the server cannot read it. Raises for other errors."""
        error = error_from_body(event, self._proxy.upstream.base)
        if error is None:
            return None
        written = rejected_text(500, encode_json(event)) if self._governs else None
        if written is None:
            raise error
        return written

    async def _answer(self, form: NativeFormat, received: _Received, verdict: Verdict) -> web.StreamResponse:
        """Give the client the reply: its own bytes if they are valid, else a repaired one."""
        response, rest = received.response, received.rest
        # A useless reply is passed on unchanged, but without withheld calls.
        untouched = not verdict.repairs or not self._governs
        if verdict.defect is not None and self._governs:
            self._refuse_half(verdict.reply)
        if isinstance(rest, bytes) and untouched and self._out is None:
            self._end(verdict)
            return web.Response(status=response.status, body=rest, headers=self._headers(response))
        is_reply = received.reply.finish_reason != "rejected"
        if isinstance(rest, bytes) and self._out is None and not self._streams:
            data = (
                form.repaired(decode_json(rest), verdict.reply) if is_reply else form.whole(self._body, verdict.reply)
            )
            self._end(verdict)
            headers = self._headers(response) if is_reply else self._run_header()
            return web.Response(body=encode_json(data), headers={"Content-Type": "application/json", **headers})
        out = await self._begin(None if isinstance(rest, bytes) else response)
        if not isinstance(rest, bytes) and untouched and (self._again + self._retries == 0 or not self._writer.begun):
            await out.write(b"".join(rest))
        else:
            await self._write(verdict.reply)
        self._end(verdict)
        return await self._close()

    def _refuse_half(self, reply: ModelReply) -> None:
        """Raise ServerFailed for a useless reply that clients would take for a finished one."""
        # Of an error, the client gets the server's own bytes, unless it has got a part of a reply already.
        half = self._earlier or self._shown
        nothing = reply.finish_reason == "rejected" or not (reply.text.strip() or reply.tool_calls)
        if reply.finish_reason == "missing" or (half and nothing):
            raise ServerFailed("The upstream server did not finish its reply.")

    # ------------------------------------------------------------------------------------------ another format

    async def _convert(self) -> web.StreamResponse:
        """Rewrite the request for the upstream server, and the reply for the client."""
        if self._writes_text:
            return await self._rewrite(CotChat())
        try:
            return await self._rewrite(None)
        except (BadRequest, RequestFailed):
            if self._refusal is None or self._refusal[0].status == 500 or not self._governs:
                raise
        answer = await self._rewrite(CotChat())  # the server takes tools in no native form that the client has tried
        self._write_as_text()
        return answer

    async def _rewrite(self, dialect: CotChat | None) -> web.StreamResponse:
        """Ask in the upstream server's format, with tools as text if there is a dialect."""
        self._has_choices = False  # the client gets one, written again
        make = self._form.request if self._native is None else self._native.whole_request
        request = make(self._body, self._offered)
        taught = self._proxy.clients.find(self._conversation)
        client = taught.pupil() if taught else self._proxy.upstream.client(self._model, self._request.headers)
        if dialect is not None:
            request = _as_text(request, dialect)
        messages = request.messages
        if hint := self._flow_hint():
            request = _hinted(request, messages, hint)
        cut: tuple[ModelReply, Verdict] | None = None  # a reply that was cut off, as above
        while True:
            self._record.requested(messages=len(request.messages), size=0)
            try:
                reply = await self._complete(client, request, live=dialect is None)
            except ModelError as error:
                self._record.failed(error)
                raise
            finally:
                if client.has_learned:
                    self._proxy.clients.keep(self._conversation, client.pupil())
            began = time.thread_time()
            self._refusal = None
            self._record.replied(reply)
            verdict = self._judge(reply, dialect)
            await pause_after(began, self._record.size)
            defect = verdict.defect
            if defect is None:
                break
            if reply.finish_reason in ("length", "context_full") and not self._shown:
                cut = reply, verdict
            if not self._may_ask_again:
                reply, verdict = cut or (reply, verdict)
                if self._governs:
                    self._refuse_half(reply)
                break
            self._count_again()
            request = _hinted(request, messages, defect.hint)
        shown = reply if self._proxy.record_only else verdict.reply
        if shown.finish_reason == "rejected":
            raise ServerFailed("The upstream server could not read its model's call.")
        if shown.finish_reason == "missing":
            raise ServerFailed("The upstream server did not finish its reply.")
        self._end(verdict)
        if not self._streams:
            return json_response(self._form.whole(self._body, shown), self._run_header())
        await self._begin(None)
        await self._write(shown)
        return await self._close()

    async def _complete(self, client: HTTPClient, request: ModelRequest, *, live: bool) -> ModelReply:
        """Ask the upstream server. A streamed reply's text is passed on as it comes."""

        def ask(on_delta: OnDelta | None = None) -> Awaitable[ModelReply]:
            if self._refusal is None or not live:
                return client.complete(request, on_delta=on_delta)
            response, raw = self._refusal
            return client.complete_refused(request, response.status, raw, on_delta=on_delta)

        if not (self._streams and live and self._again == 0):
            return await ask()
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        gate = TextGate(self._proxy.forms)

        def take(delta: Delta) -> None:
            if delta.kind == "text":
                pieces.put_nowait(gate.feed(delta.text) if self._governs else delta.text)

        asking = asyncio.ensure_future(ask(take))
        asking.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                if piece:
                    await self._begin(None)
                    await self._send(self._writer.text(piece))
                    self._shown.append(piece)
            return await asking
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    # ------------------------------------------------------------------------------------------ judging

    @property
    def _may_ask_again(self) -> bool:
        return self._again < MAX_AGAIN and not self._proxy.record_only

    def _count_again(self) -> None:
        self._again += 1
        self._keep_shown()
        self._proxy.counts["again"] += 1

    def _keep_shown(self) -> None:
        """Remember that the client got text of a reply that another one follows."""
        self._earlier = "".join(self._shown) or self._earlier
        self._shown = []

    def _judge(self, reply: ModelReply, dialect: CotChat | None = None, *, form_fault: str = "") -> Verdict:
        reader = dialect.reader(self._governor.tools) if dialect is not None else None
        reply = with_new_ids(reply) if form_fault == "id" else reply
        verdict = self._governor.judge(reply, reader, again=self._again > 0)
        if form_fault and verdict.defect is None:
            verdict = replace(verdict, repairs=(*verdict.repairs, Repair("reply_form", "reply", form_fault)))
        if self._proxy.flow is not None:
            verdict, decided = self._proxy.flow.judge(
                verdict, self._messages, self._body, self._offered, may_ask_again=self._may_ask_again
            )
            self._record.decided(decided)
        asks = verdict.defect is not None and self._may_ask_again
        self._record.judged(verdict, again=asks, applied=not self._proxy.record_only)
        return verdict

    def _flow_hint(self) -> str:
        flow = None if self._proxy.record_only else self._proxy.flow
        return flow.hint(self._messages) if flow is not None else ""

    def _end(self, verdict: Verdict) -> None:
        self._proxy.repairs.update(repair.kind for repair in verdict.repairs)
        if verdict.defect is not None:
            self._proxy.counts["unrepaired"] += 1
            self._record.ended("unanswered", verdict.defect.code, error=verdict.defect.hint)
            return
        self._proxy.counts["repaired"] += bool(verdict.repairs)
        self._record.ended("answered", "answered", verdict.reply)

    # ------------------------------------------------------------------------------------------ writing

    def _run_header(self) -> dict[str, str]:
        return {"X-Closeout-Run-Id": self._record.run_id}

    def _headers(self, response: transport.Response) -> dict[str, str]:
        return {**headers_back(response.headers), **self._run_header()}

    async def _begin(self, response: transport.Response | None) -> web.StreamResponse:
        """Begin the streamed response, unless it has begun."""
        if self._out is None:
            headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
            self._out = web.StreamResponse(
                headers=self._headers(response) if response is not None else {**headers, **self._run_header()}
            )
            await self._out.prepare(self._request)
        return self._out

    async def _write(self, reply: ModelReply) -> None:
        """Write a reply to the end, but not the text that the client got already."""
        text, got = reply.text, "".join(self._shown) or self._earlier
        if text.startswith(got):
            rest = text[len(got) :]
        elif self._shown or not text:  # what was repaired in a text that the client got already is known too late
            rest = ""
        else:
            rest = f"\n\n{text}"
        await self._send(self._writer.text(rest))
        await self._send(self._writer.finish(reply))

    async def _send(self, events: Iterable[bytes]) -> None:
        assert self._out is not None
        data = b"".join(events)
        if data:
            await self._out.write(data)

    async def _close(self) -> web.StreamResponse:
        assert self._out is not None
        await self._out.write_eof()
        return self._out


async def _frames(response: transport.Response) -> AsyncGenerator[list[bytes], None]:
    """Split a stream into events, byte for byte: joined they are the stream again. Yields those of a chunk together."""
    rest = bytearray()
    async with aclosing(response.chunks()) as chunks:
        async for chunk in chunks:
            began = time.thread_time()
            searched = max(0, len(rest) - 3)  # an end may have begun in the chunk before
            rest += chunk
            frames, start = [], 0
            for end in _frame_ends(rest, searched):
                with memoryview(rest) as received:
                    frames.append(bytes(received[start:end]))
                start = end
            if frames:
                del rest[:start]
                yield frames
            else:
                await pause_after(began, len(rest))
            if len(rest) > MAX_EVENT:
                raise ServerFailed("The upstream server sent an event of more than 16 MiB, which cannot be a reply.")
    if rest:
        yield [bytes(rest)]


def _frame_ends(data: bytearray, start: int) -> Iterator[int]:
    """Yield where events end, searching from `start`."""
    if data.find(b"\r", start) >= 0:
        yield from (end.end() for end in _FRAME_END.finditer(data, start))
        return
    while (found := data.find(b"\n\n", start)) >= 0:  # five times as fast as the pattern in long events
        start = found + 2
        yield start


def _hinted(request: ModelRequest, messages: Sequence[Message], hint: str) -> ModelRequest:
    return replace(request, messages=list(map(Message.of, with_hint(messages, hint))))


def _as_text(request: ModelRequest, dialect: CotChat) -> ModelRequest:
    """Write the tools of a request into its prompt, and its calls and results as text."""
    messages = list(map(Message.of, request.messages))
    head = next((i for i, message in enumerate(messages) if message.role not in ("system", "developer")), len(messages))
    said = conversation(messages[head:])
    if not said or said[-1].role != "user":
        said = (*said, Message(role="user", content="Continue."))
    content = said[-1].get("content")
    parts = content if isinstance(content, list) else []
    view = HistoryView(
        "\n\n".join(message.text for message in messages[:head]),
        said[-1].text,
        tools=tuple(sorted(request.tools, key=lambda tool: tool.name)),
        earlier=said[:-1],
        images=tuple(part for part in parts if isinstance(part, dict) and part.get("type") == "image_url"),
    )
    written = dialect.render(view, Capabilities())
    return replace(
        request,
        messages=written.messages,
        tools=(),
        tool_choice=None,
        stop=tuple(dict.fromkeys((*request.stop, *written.stop))),
    )
