"""The client for servers that speak OpenAI's chat or text completions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

from closeout.codec import encode_json
from closeout.errors import ModelError, ServerFailed, StreamDropped
from closeout.messages import (
    Capabilities,
    Constraint,
    Message,
    ModelReply,
    ModelRequest,
    ReplyTokens,
    ToolCall,
    ToolSpec,
    Usage,
)
from closeout.models import transport
from closeout.models.catalog import Price, known_context
from closeout.models.cited_pages import CitedPage, cited_by_gemini, cited_by_openai, with_citations
from closeout.models.http import HTTPClient
from closeout.models.http_errors import error_from_response, json_or_none
from closeout.models.message_changes import message_changes
from closeout.models.message_forms import in_strict_form
from closeout.models.ollama import GENERATE_PATH, OLLAMA_PORT, generate_options, read_generated
from closeout.models.openai_messages import (
    REASONING_FIELDS,
    added_to_call,
    added_to_message,
    as_attached,
    grown,
    read_content,
)
from closeout.models.refusals import RequestChange, ServerRefusal
from closeout.models.retry import RetryPolicy
from closeout.models.server_rules import ServerRules
from closeout.models.sizes import SMALL, parameters_in
from closeout.models.stated_tokens import TokenReader
from closeout.models.streaming import MOST_COUNTED, ReplyBuilder, StreamReader, unique_ids
from closeout.parsing.numbers import written_json

__all__ = ["OpenAIClient", "OpenAIStream", "ServerKind", "read_completion", "read_usage", "tool_definitions"]

_log = logging.getLogger(__name__)

OPENAI_URL = "https://api.openai.com/v1"
_HEADS_KEPT = 1024
DISCOVERY_SECONDS = 30.0  # timeout for asking which kind of server this is, before the first constraint
CONTEXT_SECONDS = 5.0  # timeout for asking what a request can do without, such as how long the model's context is
# vLLM and SGLang; OpenRouter and Together; Groq; Mistral.
_CONTEXT_FIELDS = ("max_model_len", "context_length", "context_window", "max_context_length")
# Features that vLLM, SGLang and llama.cpp support in addition to every server's features.
_SELF_HOSTED: dict[str, Any] = {"completions": True, "json_schema": True, "grammar": True, "known": True}
_GRAMMAR_SERVERS = ("vllm", "sglang", "llama.cpp")
# A small model is asked as the embedded ones are, because servers of such models complete texts as a rule. A grammar is
# sent if the server turns out to take one.
_SMALL_MODEL: dict[str, Any] = {"weak": True, "completions": True, "grammar": True, "preferred_dialect": "code"}
_SMALL_REPLY = 1024  # tokens of a text completion, unless set; a small model may never stop
_SMALL_ADVICE = (
    "The server says that %s has fewer than 3 billion parameters. Such models answer better with worked examples: "
    "set llm.small=true, or name the model with its size."
)
_OWNERS: Mapping[str, ServerKind] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "library": "ollama"}


class OpenAIClient(HTTPClient):
    """A model behind an OpenAI-compatible server.

    Args:
        model: The model's name on the server.
        base_url: The server's address, which usually ends in `/v1`. By default OpenAI's.
        api_key: Sent as a bearer token, if set.
        extra_body: Options for every request. A request's own options take precedence.
        headers: Additional HTTP headers.
        timeout: Seconds for one attempt.
        retry: Which errors are retried, and when.
        temperature: For requests without their own; so are `top_p` and `max_tokens`.
        top_p: See `temperature`.
        max_tokens: See `temperature`.
        send_reasoning: Whether to send the reasoning of earlier turns back. "auto": unless the server is OpenAI's.
        server: The kind of server, for constraints. "auto": ask it before the first grammar or regular expression.
        small: Whether it is a small model, which an agent gives worked examples. None: if its name states less than 3
            billion parameters and the server is not OpenAI's. Where nothing else is set, text completions of a small
            model have the temperature 0 and at most 1,024 tokens.
        prices: See `catalog.find_price`. Known prices apply only to OpenAI's own server.
        capabilities: Instead of what is known about the server.

    Raises:
        ConfigError: The address is invalid.
    """

    _OPTIONAL = frozenset({
        "temperature", "top_p", "stop", "stream_options", "tool_choice", "response_format", "structured_outputs",
        "grammar", "ebnf", "regex", "stream",
    })  # fmt: skip

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        extra_body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 600.0,
        retry: RetryPolicy | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        send_reasoning: Literal["auto"] | bool = "auto",
        server: Literal["auto"] | ServerKind = "auto",
        small: bool | None = None,
        prices: Mapping[str, Price | Sequence[float]] | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        base = (base_url or OPENAI_URL).strip().rstrip("/")
        self._own_host = _is_openai(base)
        sent = {**({"Authorization": f"Bearer {api_key}"} if api_key else {}), **(headers or {})}
        super().__init__(
            "openai",
            model,
            base,
            own_host=self._own_host,
            headers=sent,
            extra_body=extra_body,
            timeout=timeout,
            retry=retry,
            sampling=(temperature, top_p),
            max_tokens=max_tokens,
            prices=prices,
        )
        self._chat = transport.Endpoint(f"{base}/chat/completions", sent)
        self._completions = transport.Endpoint(f"{base}/completions", sent)
        self._models = transport.Endpoint(f"{base}/models", sent)
        self._generate = transport.Endpoint(base.removesuffix("/v1") + GENERATE_PATH, sent)
        self._kind: ServerKind | None = "openai" if self._own_host else None if server == "auto" else server
        self.capabilities = capabilities or _assumed(self._own_host, self._kind)
        if capabilities is None and self._own_host:
            self.capabilities = replace(self.capabilities, max_context=known_context(model))
        if small is None and capabilities is None and not self._own_host:
            billions = parameters_in(model)
            small = None if billions is None else billions < SMALL
        self._may_be_small = small is None and capabilities is None and not self._own_host
        if small:
            self.capabilities = replace(self.capabilities, **_SMALL_MODEL)
        self._server_context: int | None = None  # what the server states
        self._context_asked = self._own_host  # OpenAI's list of models does not state it
        self._send_reasoning = not self._own_host if send_reasoning == "auto" else send_reasoning
        self._heads: dict[Any, tuple[bytes, tuple[Any, ...]]] = {}
        encode = replace(
            self.rules.encode, server=self._server, reasoning="reasoning_content" if self._send_reasoning else None
        )
        self._documented = replace(self.rules, encode=encode)
        self._use_rules(self._documented)

    # -------------------------------------------------------------------------------- requests

    def _endpoint(self, request: ModelRequest) -> transport.Endpoint:
        if request.prompt is None:
            return self._chat
        return self._generate if self._is_for_ollama(request) else self._completions

    def _is_for_ollama(self, request: ModelRequest) -> bool:
        return request.prompt is not None and self._kind == "ollama" and self.capabilities.weak

    def _body(self, request: ModelRequest, *, stream: bool) -> bytes:
        """Return the body with the conversation last: each body of a run then begins with the one before."""
        head = self._head(request, stream)
        if request.prompt is not None:
            return b'%b"prompt":%b}' % (head, encode_json(request.prompt))
        messages = in_strict_form(request.messages) if self.rules.strict else request.messages
        joined = Message.joined(messages, self._protocol, self.rules.encode)
        return b"".join((head, b'"messages":[', joined, b"]}"))  # `%` copies what is long more than once

    def _head(self, request: ModelRequest, stream: bool) -> bytes:
        # Compares by identity. The cache keeps the objects, so that no id is reused.
        seen = (request.tools, request.constraint)
        key = (
            *map(id, seen),
            request.stop,
            request.tool_choice,
            request.temperature,
            request.top_p,
            self._limit_of(request),
            stream,
            request.prompt is None,
        )
        found = self._heads.get(key) if not request.extra_body else None
        if found is None:
            if len(self._heads) >= _HEADS_KEPT:
                self._heads.clear()
            head = encode_json(self._options(request, stream))[:-1] + b","
            if request.tools and request.prompt is None:
                head += b'"tools":%b,' % self._tools_of(request.tools)[0]
            found = (head, seen)
            if not request.extra_body:
                self._heads[key] = found
        return found[0]

    def _options(self, request: ModelRequest, stream: bool) -> dict[str, Any]:
        options = {"model": self.model, **self._asked(request)}
        if stream:
            options |= {"stream": True, "stream_options": {"include_usage": True}}
        options = {name: value for name, value in options.items() if name not in self.rules.dropped}
        if self._is_for_ollama(request):
            options = generate_options(options)
        return {**options, **self._extras_of(request)}

    def _asked(self, request: ModelRequest) -> dict[str, Any]:
        options: dict[str, Any] = {
            **self._sampling_of(request),
            self.rules.limit_name: self._limit_of(request),
            "stop": list(request.stop) or None,
            "tool_choice": request.tool_choice if request.tools and request.prompt is None else None,
        }
        if request.constraint is not None:
            options |= self._constraint_options(request.constraint)
        stated = {name: value for name, value in options.items() if value is not None}
        if self.capabilities.weak and request.prompt is not None:
            return {"temperature": 0.0, self.rules.limit_name: _SMALL_REPLY} | stated
        return stated

    def _constraint_options(self, constraint: Constraint) -> dict[str, Any]:
        """Return a JSON schema as `response_format`; a grammar or regular expression as the kind of server takes it.

        vLLM takes `structured_outputs` since 0.12; for older versions set `guided_grammar` in `extra_body`.
        """
        if constraint.kind == "json_schema":
            schema = dict(constraint.value) if isinstance(constraint.value, Mapping) else {}
            wanted = {"name": constraint.name, "schema": schema, "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": wanted}}
        if self._kind == "vllm":
            return {"structured_outputs": {constraint.kind: constraint.value}}
        if self._kind == "sglang":
            return {"ebnf" if constraint.kind == "grammar" else "regex": constraint.value}
        if self._kind == "llama.cpp" and constraint.kind == "grammar":
            return {"grammar": constraint.value}
        return {}

    # -------------------------------------------------------------------------------- replies

    async def _learn_server(self, request: ModelRequest) -> None:
        has_grammar = request.constraint is not None and request.constraint.kind != "json_schema"
        small = self.capabilities.weak
        if self._kind is not None or not (has_grammar or (small and request.prompt is not None)):
            return
        try:
            await self._discover(CONTEXT_SECONDS if small else DISCOVERY_SECONDS)
        except ModelError:
            if not small:
                raise
            self._kind = "openai"  # the reply to the request shows what the server takes
        if small and self._kind not in _GRAMMAR_SERVERS:
            self.capabilities = replace(self.capabilities, grammar=False)

    def _warnings(self, request: ModelRequest) -> tuple[str, ...]:
        # Small models get a grammar by default, wherever the server takes one.
        is_tried = self.capabilities.weak and request.constraint is not None and request.constraint.kind == "grammar"
        return () if is_tried else super()._warnings(request)

    def _read_reply(self, value: Any) -> ModelReply | None:
        reply = read_completion(value)
        if reply is None and self._kind == "ollama":
            reply = read_generated(value)
        if reply is not None and reply.reasoning:
            self._learn_reasoning(reasoning_field(value["choices"][0]["message"]))
        return reply

    def _stream_reader(self, builder: ReplyBuilder) -> StreamReader:
        return OpenAIStream(builder, self._learn_reasoning)

    def _learn_reasoning(self, name: str | None) -> None:
        """Send reasoning back under the name that the server uses: `reasoning_content`, or newer vLLM's `reasoning`."""
        encode = self.rules.encode
        if encode.reasoning and not encode.always and name not in (None, encode.reasoning, *encode.refused):
            self._use_rules(replace(self.rules, encode=replace(encode, reasoning=name)))
            self.has_learned = True

    def _use_rules(self, rules: ServerRules) -> None:
        super()._use_rules(rules)
        self._protocol = rules.encode.protocol
        self._heads = {}

    # -------------------------------------------------------------------------------- adaptations

    def _definitions(self, tools: Sequence[ToolSpec]) -> Any:
        return tool_definitions(tools)

    def _changes(self, request: ModelRequest, rules: ServerRules, refusal: ServerRefusal) -> list[RequestChange]:
        other = "max_completion_tokens" if rules.limit_name == "max_tokens" else "max_tokens"
        limit = RequestChange(
            f"{other} is sent instead of {rules.limit_name}",
            "options",
            partial(replace, limit_name=other),
            refusal.names(other) and self._limit_of(request) not in refusal.numbers,
            alone=True,
        )
        messages = message_changes(request.messages, rules, refusal) if request.prompt is None else []
        return [limit, *messages, *super()._changes(request, rules, refusal)]

    # -------------------------------------------------------------------------------- discovery

    async def context_length(self) -> int | None:
        if self.capabilities.max_context is None and not self._context_asked:
            # A server may lack such a list; if it fails, the request fails too.
            with suppress(ModelError):
                _, data = await self._ask_for_models(CONTEXT_SECONDS)
                entry = _entry(data, self.model)
                self._server_context = _context(entry)
                if self._may_be_small and _is_small(entry):
                    _log.warning(_SMALL_ADVICE, self.name)
            self._context_asked = True
        return self.capabilities.max_context or self._server_context

    async def discover(self) -> Capabilities:
        """Ask the server what kind it is and how long its context is, and update `capabilities`.

        A server without a list of models is treated like OpenAI's.

        Raises:
            ModelError: The server cannot be asked.
        """
        return await self._discover(DISCOVERY_SECONDS)

    async def _discover(self, seconds: float) -> Capabilities:
        response, data = await self._ask_for_models(seconds)
        self._context_asked = True
        if response.status in {401, 403}:
            raise error_from_response(response.status, response.headers, data, self._models.origin)
        entry = _entry(data, self.model)
        known = self._kind or _OWNERS.get(str(entry.get("owned_by")))
        on_port: ServerKind = "ollama" if urlsplit(self.base_url).port == OLLAMA_PORT else "openai"
        self._kind = known or on_port
        self._heads.clear()
        # Keep the rest: what the user has set, and that the server has refused tools.
        learned: dict[str, Any] = {} if self._kind in ("openai", "ollama") else _SELF_HOSTED
        if self._may_be_small and _is_small(entry):
            learned = {**_SMALL_MODEL, **learned}
        context = _context(entry) or self.capabilities.max_context
        self.capabilities = replace(self.capabilities, max_context=context, **learned)
        return self.capabilities

    async def _ask_for_models(self, seconds: float) -> tuple[transport.Response, bytes]:
        response = await transport.get(self._models, timeout=min(self._timeout, seconds))
        return response, await (response.read() if response.status == 200 else response.read_start())


def _is_openai(base: str) -> bool:
    try:
        host = urlsplit(base).hostname or ""
    except ValueError:
        return False
    return host == "api.openai.com" or host.endswith(".openai.azure.com")


def _assumed(own_host: bool, kind: ServerKind | None) -> Capabilities:
    """Return what servers of a kind support; for an unknown kind, what nearly all do."""
    if own_host:
        return Capabilities(json_schema=True, images=True, known=True)
    if kind in (None, "openai", "ollama"):
        return Capabilities()
    return Capabilities(**_SELF_HOSTED)


def _entry(data: bytes, model: str) -> dict[str, Any]:
    listed = json_or_none(data)
    entries = listed.get("data") if isinstance(listed, dict) else None
    found = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return next((entry for entry in found if entry.get("id") == model), found[0] if len(found) == 1 else {})


def _is_small(entry: Mapping[str, Any]) -> bool:
    """Return True if a server says that the model is small, as llama.cpp does."""
    meta = entry.get("meta")
    parameters = meta.get("n_params") if isinstance(meta, dict) else None
    return isinstance(parameters, int) and 0 < parameters < SMALL * 1e9


def _context(entry: Mapping[str, Any]) -> int | None:
    """Return the context length that a server states: llama.cpp under `meta`, others in one of `_CONTEXT_FIELDS`."""
    meta = entry.get("meta")
    candidates = (*map(entry.get, _CONTEXT_FIELDS), meta.get("n_ctx") if isinstance(meta, dict) else None)
    return next((n for n in candidates if isinstance(n, int) and n > 0), None)


# ------------------------------------------------------------------------------------------------ requests


ServerKind = Literal["openai", "vllm", "sglang", "llama.cpp", "ollama"]


def tool_definitions(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return the `tools` list of a request."""
    functions = [
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)} for tool in tools
    ]
    return [{"type": "function", "function": function} for function in functions]


# ------------------------------------------------------------------------------------------------ replies


_FINISHES: Mapping[str, str] = {
    "stop": "stop",
    **dict.fromkeys(("eos", "eos_token", "endoftext", "stop_sequence", "end_turn", "complete", "completed"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "max_length", "model_length"), "length"),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), "tool_calls"),
    **dict.fromkeys(("content_filter", "safety"), "content_filter"),
    "model_context_window_exceeded": "context_full",  # GLM
}
_LONGEST_REASON = 80  # characters of a finish reason that is not ours
# Tokens from the cache: DeepSeek; Moonshot; Anthropic behind a proxy.
_CACHED = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")


def read_completion(value: Any) -> ModelReply | None:
    """Return the reply in the body of a chat or text completion; None if it is neither.

    Raises:
        ServerFailed: The finish reason says that the server failed.
    """
    choice = _first_choice(value)
    if choice is None:
        return None
    message = choice.get("message")
    finish = finish_reason(choice.get("finish_reason", "stop"))  # a whole body without the field is not cut off
    usage = read_usage(value) or Usage(requests=1)
    model = _text(value.get("model"))
    reader = TokenReader()
    reader.take(value, choice)
    tokens = reader.tokens()
    if not isinstance(message, dict):
        text = choice.get("text")
        if not isinstance(text, str):
            return None
        return ModelReply(text, finish_reason=finish, usage=usage, model=model, tokens=tokens)
    text, thinking = read_content(message.get("content"))
    field = reasoning_field(message)
    reasoning = thinking or (message[field] if field else "")
    calls = _whole_calls(message)
    added = {call_id: more for call_id, (_, more) in calls.items()}
    return ModelReply(
        text or _text(message.get("refusal")),
        reasoning,
        tuple(call for call, _ in calls.values()),
        finish_reason="tool_calls" if calls and finish == "stop" else finish,
        usage=usage,
        model=model,
        attached=with_citations(
            as_attached(added_to_message(message), added, reasoning, field),
            [*cited_by_openai(message.get("annotations"), text), *cited_by_gemini(choice, message)],
        ),
        tokens=tokens,
    )


def _first_choice(value: Any) -> dict[str, Any] | None:
    """Return the first of the choices. An event of a stream may hold a piece of another one only."""
    choices = value.get("choices") if isinstance(value, dict) else None
    found = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    return next((choice for choice in found if not choice.get("index")), None)


def finish_reason(value: Any) -> str:
    """Return a server's finish reason as one of ours, or as it is if it is unknown: such a reply is not finished.

    Raises:
        TransientModelError: It says that the server failed.
    """
    if value == "abort":  # vLLM, SGLang: the engine gave the request up
        raise StreamDropped("The server gave up in the middle of its reply.")
    if value == "error":  # OpenRouter
        raise ServerFailed("The server failed in the middle of its reply.")
    if not isinstance(value, str) or not value:
        return "missing"
    if "malformed_function_call" in value.lower():  # Gemini: "function_call_filter: MALFORMED_FUNCTION_CALL"
        return "malformed_call"
    return _FINISHES.get(value.lower(), value[:_LONGEST_REASON])


def reasoning_field(message: Mapping[str, Any]) -> str | None:
    """Return the name under which a server's message holds its reasoning."""
    for name in REASONING_FIELDS:
        if isinstance(message.get(name), str) and message[name]:
            return name
    return None


def _whole_calls(message: Mapping[str, Any]) -> dict[str, tuple[ToolCall, dict[str, Any]]]:
    """Return the calls by their ids, each with what the server adds to it."""
    listed = message.get("tool_calls") or [{"function": message.get("function_call")}]
    if not isinstance(listed, list):
        return {}
    came = [call for call in listed if isinstance(call, dict) and isinstance(call.get("function"), dict)]
    calls = {}
    for call_id, call in zip(unique_ids([_text(call.get("id")) for call in came]), came, strict=True):
        text = _arguments(call["function"].get("arguments"))
        made = ToolCall(_text(call["function"].get("name")), text, call_id, text=text)
        calls[call_id] = made, added_to_call(call)
    return calls


def _arguments(value: Any) -> str:
    """Return arguments as JSON text: some servers send the object itself."""
    if isinstance(value, str):
        return value
    return "" if value is None else written_json(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


# ------------------------------------------------------------------------------------------------ usage


def read_usage(value: Mapping[str, Any]) -> Usage | None:
    """Return the usage in a body or event, None if it is missing. Servers name cached tokens differently."""
    usage = value.get("usage")
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    if not isinstance(details, dict):
        details = {}
    read = _count(details, "cached_tokens") or _count(usage, *_CACHED)
    timings = value.get("timings")
    if not read and isinstance(timings, dict):  # llama.cpp
        read = _count(timings, "cache_n")
    write = _count(details, "cache_write_tokens") or _count(usage, "cache_creation_input_tokens")
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    if prompt:  # which holds the tokens of the cache
        read = min(read, prompt)
        write = min(write, prompt - read)
    return Usage(
        prompt,
        _count(usage, "completion_tokens", "output_tokens"),
        cache_read_tokens=read,
        cache_write_tokens=write,
        requests=1,
        cost_usd=_dollars(usage.get("cost")),  # OpenRouter
    )


def _dollars(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= MOST_COUNTED else None


def _count(value: Mapping[str, Any], *names: str) -> int:
    """Return the first of several fields that holds a count."""
    for name in names:
        found = value.get(name)
        if isinstance(found, int) and 0 < found <= MOST_COUNTED:
            return found
    return 0


# ------------------------------------------------------------------------------------------------ streams


class OpenAIStream(StreamReader):
    """Reads the chunks of a chat or text completion. Calls `note_field` with the name of the reasoning field."""

    __slots__ = ("_added", "_annotations", "_cited", "_field", "_goes_on", "_note_field", "_of_calls", "_tokens")

    def __init__(self, builder: ReplyBuilder, note_field: Callable[[str], None]) -> None:
        super().__init__(builder)
        self._added: dict[str, Any] = {}  # fields that the server adds to the message
        self._of_calls: dict[int, dict[str, Any]] = {}  # and to its calls, by our index
        self._annotations: list[Any] = []  # with places in the whole text
        self._cited: list[CitedPage] = []
        self._field: str | None = None  # the name of the reasoning
        self._goes_on = False  # something has followed a finish reason: some servers send one with every piece
        self._note_field = note_field
        self._tokens = TokenReader()

    @property
    def complete(self) -> bool:
        return self.done or (bool(self.builder.finish_reason) and not self._goes_on)

    @property
    def tokens(self) -> ReplyTokens | None:
        return self._tokens.tokens()

    @property
    def attached(self) -> dict[str, Any]:
        ids = self.builder.call_ids()
        of_calls = {ids[place]: more for place, more in self._of_calls.items() if place in ids}
        attached = as_attached(self._added, of_calls, self.builder.reasoning, self._field)
        return with_citations(attached, [*cited_by_openai(self._annotations, self.builder.text), *self._cited])

    def take(self, event: dict[str, Any]) -> None:
        builder = self.builder
        usage = read_usage(event)
        if usage is not None and usage.total_tokens:
            builder.usage = usage
        builder.model = builder.model or _text(event.get("model"))
        choice = _first_choice(event)
        if choice is None:
            return
        self._tokens.take(event, choice)
        # A server that does not stream sends the message whole in one event.
        delta = choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            if builder.finish_reason and (delta.get("content") or delta.get("tool_calls")):
                self._goes_on = True
            self._take_delta(delta)
            self._cited += cited_by_gemini(choice, delta)
        elif isinstance(text := choice.get("text"), str):
            builder.add_text(text)
        if (said := choice.get("finish_reason")) and said != "null":  # gateways send "" even after the reason
            finish = finish_reason(said)
            builder.finish_reason = "tool_calls" if finish == "stop" and builder.last_call >= 0 else finish

    def _take_delta(self, delta: dict[str, Any]) -> None:
        builder = self.builder
        name = reasoning_field(delta)
        if name is not None:
            self._field = name
            self._note_field(name)
            builder.add_reasoning(delta[name])
        content = delta.get("content")
        if isinstance(content, str):
            builder.add_text(content)
        elif content:
            text, thinking = read_content(content)
            builder.add_reasoning(thinking)
            builder.add_text(text)
        if isinstance(refusal := delta.get("refusal"), str):
            builder.add_text(refusal)
        if isinstance(annotations := delta.get("annotations"), list):
            self._annotations += annotations
        for field, value in added_to_message(delta).items():
            self._added[field] = grown(self._added.get(field), value)
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            for call in calls:
                if isinstance(call, dict):
                    self._take_call(call)
        elif isinstance(old := delta.get("function_call"), dict):
            self._take_call({"index": 0, "function": old})

    def _take_call(self, call: dict[str, Any]) -> None:
        function = call.get("function")
        if not isinstance(function, dict):
            function = {}
        call_id, name = _text(call.get("id")), _text(function.get("name"))
        arguments = _arguments(function.get("arguments"))
        place = self.builder.place(call.get("index"), call_id, name, arguments)
        if place is None:
            return
        self.builder.add_call(place, call_id=call_id, name=name, arguments=arguments)
        if more := added_to_call(call):
            self._of_calls[place] = grown(self._of_calls.get(place), more)
