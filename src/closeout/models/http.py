"""The base class of clients for HTTP servers: attempts, retries, streaming, usage, and what a server refuses."""

from __future__ import annotations

import asyncio
import copy
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from closeout.codec import decode_json, encode_json
from closeout.errors import (
    AuthenticationFailed,
    BadRequest,
    ContextOverflow,
    ModelError,
    ModelTimeout,
    ModelUnreachable,
    PermanentModelError,
    RequestFailed,
    ServerFailed,
    StreamDropped,
)
from closeout.messages import Constraint, Delta, ModelReply, ModelRequest, ToolSpec, Usage
from closeout.models import transport
from closeout.models.base import BaseClient, OnDelta, OnRetry
from closeout.models.catalog import PRICES, Price, find_price
from closeout.models.http_errors import (
    error_from_body,
    error_from_response,
    explain,
    is_overflow,
    refuses_tools,
    rejected_text,
)
from closeout.models.long_steps import pause_after
from closeout.models.refusals import Part, RefusalSearch, RequestChange, ServerRefusal
from closeout.models.retry import RetryPolicy, complete_with_retries
from closeout.models.server_rules import ALL, ServerRules, dump_rules, known_rules, learned_in, load_rules
from closeout.models.streaming import EventReader, ReplyBuilder, StreamReader
from closeout.models.tool_forms import SentTools
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
LESSON_SECONDS = 86_400.0  # until what a server refuses is tried again in a new process
SHOWN = 200  # characters of a refusal in a warning
# The shortest limit of a description that a number in a refusal may be, and the limit that is tried otherwise.
SHORTEST_CUT, USUAL_CUT = 64, 1024
SHORT_REPLY = 1024  # tokens that are not halved to leave room for a longer prompt
EVERY_LIMIT = 2048  # tokens of a reply that every model may write
LIMIT_NAMES = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
SCHEMA_WORDS = (
    "schema", "schemas", "parameters", "input_schema", "grammar", "function", "functions", "properties", "$ref",
    "$defs", "anyOf", "oneOf", "allOf", "additionalProperties", "pattern", "function_declarations",
)  # fmt: skip


class HTTPClient(BaseClient):
    """A client of one HTTP endpoint. Subclasses write request bodies and read replies and events.

    If a server refuses a request, it is sent again with one thing changed at a time, and so are all later ones if that
    one passed: an error may repeat words of the request, which teach nothing. See `RefusalSearch`.

    Attributes:
        rules: How requests are written for the server.
    """

    _needs_limit = False  # whether a request must say how many tokens its reply may have
    # Parameters that a request can do without. Not `tools`: without them it would be another request.
    _OPTIONAL: ClassVar[frozenset[str]]

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
        self.rules = self._documented = known_rules(vendor, urlsplit(base_url).hostname or "")
        self._passed: dict[Any, Any] = {}  # parts of requests that the server has accepted; see `_key_of`
        self._taken: dict[str, ToolSpec] = {}  # tools that the server has accepted
        self._unsolved: set[Any] = set()  # refusals for which nothing was found
        # Changes that a server took after it had failed, by its words: kept if it fails without them once more.
        self._suspected: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {}
        self._tools: dict[int, tuple[bytes, SentTools, tuple[ToolSpec, ...]]] = {}

    async def complete(
        self,
        request: ModelRequest,
        *,
        on_delta: OnDelta | None = None,
        on_retry: OnRetry | None = None,
        search: RefusalSearch | None = None,
    ) -> ModelReply:
        if self.missing_key:
            raise AuthenticationFailed(self.missing_key)
        reply, spent = await complete_with_retries(
            partial(self._attempt_request, request, on_delta, search=search or self._new_search(request)),
            policy=RetryPolicy(retries=0) if search is not None and search.failed else self.retry,
            timeout=self._timeout if request.timeout is None else request.timeout,
            on_retry=on_retry,
        )
        return replace(reply, usage=spent + reply.usage) if spent.requests else reply

    async def complete_refused(
        self, request: ModelRequest, status: int, said: bytes, *, on_delta: OnDelta | None = None
    ) -> ModelReply:
        """Send a request with a change, because the server has refused it with this status and body. See `complete`."""
        search = self._new_search(request)
        search.known = (status, said)
        if status == 500:  # it may also be down: the caller may ask again
            search.failed, search.may_have_passed = ServerRefusal(status, said).same, True
        return await HTTPClient.complete(self, request, on_delta=on_delta, search=search)

    def lessons(self) -> str:
        """Return what refusals have taught, for `take_lessons` of a later client of the same model and server."""
        learned = learned_in(self.rules, self._documented)
        return encode_json({"at": time.time(), **dump_rules(learned)}).decode()

    def take_lessons(self, text: str) -> None:
        """Write requests by the lessons of an earlier client, unless they are old: servers change."""
        try:
            told = decode_json(text)
            if not 0 <= time.time() - told.pop("at") < LESSON_SECONDS:
                return
            self._use_rules(load_rules(told, self.rules))
        except (ValueError, TypeError, KeyError, AttributeError):  # written by another version
            return

    def pupil(self) -> Self:
        """Return a client of the same server that knows what this one has learned, and learns for itself."""
        found = self._with_rules(self.rules)
        found._passed, found._taken, found._unsolved, found._suspected = {}, {}, set(), {}
        return found

    def _with_rules(self, rules: ServerRules) -> Self:
        """Return a client that writes requests by other rules."""
        found = copy.copy(self)
        found.has_learned = False
        found._use_rules(rules)
        return found

    def _use_rules(self, rules: ServerRules) -> None:
        """Write later requests by these rules."""
        self.rules, self._tools = rules, {}

    # -------------------------------------------------------------------------------- what a protocol implements

    @abstractmethod
    def _endpoint(self, request: ModelRequest) -> transport.Endpoint: ...

    @abstractmethod
    def _body(self, request: ModelRequest, *, stream: bool) -> bytes: ...

    @abstractmethod
    def _read_reply(self, value: Any) -> ModelReply | None:
        """Return the reply in a response's body; None if the body does not follow the protocol."""

    @abstractmethod
    def _stream_reader(self, builder: ReplyBuilder) -> StreamReader: ...

    @abstractmethod
    def _asked(self, request: ModelRequest) -> dict[str, Any]:
        """Return what the request asks for, as parameters; those that it leaves open are left out."""

    @abstractmethod
    def _definitions(self, tools: Sequence[ToolSpec]) -> Any:
        """Return tools as a value of the request."""

    @abstractmethod
    def _constraint_options(self, constraint: Constraint) -> dict[str, Any]:
        """Return the parameters that make the server enforce a constraint; empty if it cannot."""

    async def _learn_server(self, request: ModelRequest) -> None:
        """Find out what kind of server this is, if the form of the request depends on it."""

    def _changes(self, request: ModelRequest, rules: ServerRules, refusal: ServerRefusal) -> list[RequestChange]:
        """Return the changes that a refused request may need, the cheapest first."""
        return [
            *_option_changes({*self._asked(request), "stream", "stream_options"} & self._OPTIONAL, refusal),
            *_option_changes({*request.extra_body, "cache_control"} - self._OPTIONAL, refusal, alone=True),
            _streaming_change(refusal),
            *(_tool_changes(request.tools, refusal, self._taken) if request.prompt is None else ()),
            *_limit_changes(rules.limit_name, self._limit_of(request), refusal, request, required=self._needs_limit),
        ]

    def _limit_of(self, request: ModelRequest) -> int | None:
        """Return the most tokens that the request asks for; None if it leaves that to the server."""
        limit = request.max_tokens or self._max_tokens or (self.max_reply if self._needs_limit else None)
        rules = self.rules
        if limit is not None and rules.most_tokens is not None:
            limit = min(limit, rules.most_tokens)
        if limit is not None and rules.long_from is not None and len(request.text) >= rules.long_from:
            limit = min(limit, rules.long_tokens)
        return limit

    # -------------------------------------------------------------------------------- one attempt

    async def _attempt_request(
        self,
        request: ModelRequest,
        on_delta: OnDelta | None,
        timeout: float | None,
        search: RefusalSearch | None = None,
    ) -> ModelReply:
        """Send a request once, and again with something changed as long as the server refuses it."""
        usage = ONE_REQUEST
        client, search = self, search or self._new_search(request)
        try:
            await self._learn_server(request)
            endpoint = self._endpoint(request)
            sent: list[bytes] = []
            first: ModelError | None = None
            self._check(request)
            while True:
                stream = client._streams(on_delta)
                body = client._body(request, stream=stream)
                sent.append(body)
                if search.known is None:
                    response = await transport.post(endpoint, body, timeout=timeout)
                    answer = await self._judged(response, (on_delta or _ignore) if stream else None, len(body))
                    if isinstance(answer, ModelReply):
                        reply = answer
                        break
                    status, headers, said = answer
                else:
                    (status, said), headers, search.known = search.known, {}, None
                error = error_from_response(status, headers, said, endpoint.origin)
                if first is None or isinstance(error, ContextOverflow):
                    first = error
                if request.tools and refuses_tools(said, body):
                    self.capabilities = replace(self.capabilities, native_tools=False)
                    raise error
                refusal = ServerRefusal(status, said)
                found = self._after(refusal, client.rules, request, search, on_delta=on_delta, sent=sent)
                if search.is_over and isinstance(error, ServerFailed):  # it may also be down: the policy decides
                    raise RequestFailed(str(error), status=error.status, retry_after=error.retry_after)
                if found is None:
                    raise first if isinstance(error, PermanentModelError) else error
                client = found
                search.reason = search.reason or explain(said)[1][:SHOWN].rstrip(".")
                self.charge(ONE_REQUEST)
            if request.tools:
                reply = client._tools_of(request.tools)[1].restored(reply)
            if on_delta is not None and not stream and reply.finish_reason != "rejected":
                _replay(reply, on_delta)
            usage = reply.usage
            if reply.attached:
                reply = replace(reply, attached={"server": self._server, **reply.attached})
            warnings = self._learn(client.rules, search)
            self._note_passed(request)
            if more := self._warnings(request):
                warnings = (*(warnings if len(search.told) > 1 else ()), *more)
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

    def _learn(self, rules: ServerRules, search: RefusalSearch) -> tuple[str, ...]:
        """Learn from a request that the server took by these rules. Returns a warning if they differ from ours."""
        learned = learned_in(rules, self.rules) if search.told else {}
        if not learned:
            return ()
        if search.may_have_passed:
            self._suspected[search.refused] = learned, search.told
        else:
            self._use_rules(replace(self.rules, **learned))
            self.has_learned = True
        said, changes = f": {search.reason}" if search.reason else "", "; ".join(search.told)
        return (f"{self.base_url} refused the request{said}. It took it with a change: {changes}.",)

    async def _judged(
        self, response: transport.Response, on_delta: OnDelta | None, sent: int
    ) -> ModelReply | tuple[int, Mapping[str, str], bytes]:
        """Return the reply in a response, or the status, headers and body of an error."""
        if not self._has_answered:  # its address is right: where nothing listens later, the server restarts
            self._has_answered = True
            self.retry = replace(self.retry, unreachable_retries=self.retry.retries)
        if response.status == 200:
            return await self._read_response(response, on_delta, sent)
        said = await response.read_start()
        if (written := rejected_text(response.status, said)) is not None:
            return self._rejected(written, sent)
        return response.status, response.headers, said

    def _after(
        self,
        refusal: ServerRefusal,
        rules: ServerRules,
        request: ModelRequest,
        search: RefusalSearch,
        on_delta: OnDelta | None,
        sent: Sequence[bytes],
    ) -> Self | None:
        """Return a client that sends the refused request with a change; None if there is nothing left to try."""
        if len(sent) == 1 and (suspected := self._suspected.pop(refusal.same, None)) is not None:
            learned, search.told = suspected
            return self._with_rules(replace(rules, **learned))
        unsolved = (refusal.same, id(request.tools))
        if unsolved in self._unsolved and len(sent) == 1:
            return None

        def body_by(rules: ServerRules) -> bytes:
            client = self._with_rules(rules)
            return client._body(request, stream=client._streams(on_delta))

        found = search.next_rules(refusal, rules, lambda rules: body_by(rules) not in sent)
        if found is not rules:
            return self._with_rules(found)
        if refusal.status != 500:
            self._unsolved.add(unsolved)
        return None

    def _new_search(self, request: ModelRequest) -> RefusalSearch:
        return RefusalSearch(partial(self._changes, request), lambda part: _key_of(request, part) in self._passed)

    def _note_passed(self, request: ModelRequest) -> None:
        """Note that the server has accepted the parts of a request. The objects are kept, so ids stay unique."""
        keys = [_key_of(request, part) for part in ("tools", "options", "limit")]
        if self._passed.keys() >= {*keys}:
            return
        if len(self._passed) > TOOLS_KEPT:
            self._passed.clear()
        self._passed.update(dict.fromkeys(keys, (request.tools, request.constraint)))
        self._taken |= {tool.name: tool for tool in request.tools if tool.name not in self.rules.withheld}

    def _check(self, request: ModelRequest) -> None:
        """Raise BadRequest for a request that the server is known to refuse in any form."""
        most = self.rules.most_tools
        if most is not None and len(request.tools) > most:
            raise BadRequest(
                f"{self.base_url} takes at most {most} tools, got {len(request.tools)}. Pass fewer tools, or set "
                "tools.search=on: the model then searches for the tools that it needs."
            )

    def _streams(self, on_delta: OnDelta | None) -> bool:
        wanted = on_delta is not None or self.rules.streamed
        return wanted and self.capabilities.streaming and "stream" not in self.rules.dropped

    def _warnings(self, request: ModelRequest) -> tuple[str, ...]:
        """Say so if the reply was not held to the request's constraint."""
        if request.constraint is None:
            return ()
        sent = self._constraint_options(request.constraint).keys()
        if sent and self.rules.dropped.isdisjoint(sent):
            return ()
        kind = request.constraint.kind.replace("_", " ")
        return (f"{self.base_url} cannot enforce a {kind}: the replies of {self.model} are not constrained.",)

    # -------------------------------------------------------------------------------- reading

    async def _read_response(self, response: transport.Response, on_delta: OnDelta | None, sent: int) -> ModelReply:
        """Read a response: as a stream if there is an `on_delta`, unless the server answers in the other form."""
        if on_delta is not None and response.content_type != "application/json":
            return await self._read_stream(response, on_delta, sent)
        if response.content_type == "text/event-stream":
            return await self._read_stream(response, _ignore, sent)
        reply = self._read_whole(await response.read(), sent, response.origin)
        return reply if on_delta is None else _replay(reply, on_delta)

    def _read_whole(self, data: bytes, sent: int, origin: str) -> ModelReply:
        try:
            value = _decoded(data)
            reply = self._read_reply(value)
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

    def _extras_of(self, request: ModelRequest) -> dict[str, Any]:
        """Return the options beside those of a ModelRequest."""
        more = {**self._extra, **request.extra_body}
        return {name: value for name, value in more.items() if name not in self.rules.dropped or name in self._extra}

    def _sampling_of(self, request: ModelRequest) -> dict[str, Any]:
        """Return the sampling parameters of the request, or else of the client."""
        return {
            "temperature": self._temperature if request.temperature is None else request.temperature,
            "top_p": self._top_p if request.top_p is None else request.top_p,
        }

    def _tools_of(self, tools: tuple[ToolSpec, ...]) -> tuple[bytes, SentTools, tuple[ToolSpec, ...]]:
        """Return the JSON of tools, and the tools as they are sent. The cache keeps the tuples, so ids stay unique."""
        found = self._tools.get(id(tools))
        if found is None:
            if len(self._tools) >= TOOLS_KEPT:
                self._tools.clear()
            sent = SentTools(tools, self.rules)
            found = self._tools[id(tools)] = (encode_json(self._definitions(sent.specs)), sent, tools)
        return found


def _ignore(_: Delta) -> None:
    """Ignore a piece of a reply."""


def _streaming_change(refusal: ServerRefusal) -> RequestChange:
    named = refusal.names("stream", "streaming")
    return RequestChange("replies are streamed", "options", partial(replace, streamed=True), named, alone=True)


def _key_of(request: ModelRequest, part: Part) -> Any:
    """Return what tells a part of a request from others; by identity, because tools are not hashed cheaply."""
    if part == "tools":
        return id(request.tools)
    if part == "limit":
        return "limit", request.max_tokens
    if part in ("forms", "messages"):
        return None
    sampling = (request.temperature, request.top_p, request.stop)
    return (id(request.constraint), request.tool_choice, bool(request.tools), request.prompt is None, *sampling)


def _option_changes(names: Collection[str], refusal: ServerRefusal, *, alone: bool = False) -> list[RequestChange]:
    return [
        RequestChange(f"{name} is left out", "options", partial(_dropping, name), refusal.names(name), alone)
        for name in sorted(names)
    ]


def _dropping(name: str, rules: ServerRules) -> ServerRules:
    return replace(rules, dropped=rules.dropped | {name})


def _tool_changes(
    tools: Sequence[ToolSpec], refusal: ServerRefusal, taken: Mapping[str, ToolSpec]
) -> list[RequestChange]:
    """Return changes of tools, first of those that a refusal names, else of the only one that is new to the server."""
    places = refusal.tool_places()
    suspects = [tool.name for place, tool in enumerate(tools) if place in places or refusal.names(tool.name)]
    if not suspects and taken:
        fresh = [tool.name for tool in tools if taken.get(tool.name) != tool]
        suspects = fresh if len(fresh) == 1 else []
    longest = max((len(tool.description) for tool in tools), default=0)
    limit = max((number for number in refusal.numbers if SHORTEST_CUT <= number < longest), default=USUAL_CUT)
    changes = [
        RequestChange(
            f"descriptions of tools are cut to {limit} characters (shorten them)",
            "tools",
            partial(replace, longest_description=limit),
            refusal.names("description", "descriptions"),
        )
    ]
    about_schemas = bool(suspects) or refusal.names(*SCHEMA_WORDS)
    if suspects:
        changes.append(_plain_schemas(frozenset(suspects), ", ".join(suspects), named=True))
    if len(suspects) == 1 and len(tools) > 1:
        (name,) = suspects
        told = f"the tool {name} is not offered (change or remove it)"
        changes.append(
            RequestChange(
                told, "tools", lambda rules: replace(rules, withheld=rules.withheld | {name}), True, alone=True
            )
        )
    return [*changes, _plain_schemas(frozenset({ALL}), "all tools", named=about_schemas)]


def _plain_schemas(names: frozenset[str], whose: str, *, named: bool) -> RequestChange:
    told = f"the schema of {whose} is reduced to types, names and descriptions (simplify it)"
    return RequestChange(told, "tools", lambda rules: replace(rules, plain=rules.plain | names), named)


def _limit_changes(
    name: str, limit: int | None, refusal: ServerRefusal, request: ModelRequest, *, required: bool
) -> list[RequestChange]:
    """Return changes of the limit of the reply: a lower one, or none."""
    if limit is None:
        return []
    if (left := _left_for_reply(limit, refusal.numbers)) is not None:
        told = f"a reply to a prompt of this length may have {left} tokens (llm.max_tokens)"
        shortened = partial(replace, long_from=len(request.text), long_tokens=left)
        return [RequestChange(told, "limit", shortened, named=True, alone=True)]
    lower = max((number for number in refusal.numbers if 1 < number < limit), default=min(limit // 2, EVERY_LIMIT))
    lower = max(lower, 1)
    about = limit in refusal.numbers or refusal.names(*LIMIT_NAMES)
    told = f"a reply may have {lower} tokens (lower llm.max_tokens)"
    changes = [RequestChange(told, "limit", partial(replace, most_tokens=lower), about, alone=not required)]
    if not required:
        told = f"{name} is left out (llm.max_tokens)"
        changes.append(RequestChange(told, "limit", partial(_dropping, name), refusal.names(*LIMIT_NAMES)))
    return changes


def _left_for_reply(limit: int, numbers: Sequence[int]) -> int | None:
    """Return a limit of the reply that fits the context with the prompt, by the numbers of a refusal; None if unknown.

    "The context has 8192 tokens. You requested 9000: 1000 in the messages, 8000 in the reply" leaves 7192. Half of
    that is returned, because the conversation grows.
    """
    totals = {limit, *(number + limit for number in numbers)}
    others = [number for number in numbers if number not in totals]
    pairs = ((context, prompt) for context in others for prompt in others if prompt < context < prompt + limit)
    left = min((context - prompt for context, prompt in pairs), default=None) if limit in numbers else None
    return None if left is None else max(left // 2, min(left, SHORT_REPLY))


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
    if not data.strip():
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
