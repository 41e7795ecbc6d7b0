"""The client for every server that speaks OpenAI's chat or text completions. Replies: `openai_replies`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit

from closeout.codec import decode_json, encode_json
from closeout.errors import ModelError
from closeout.llm import transport
from closeout.llm.building import ReplyBuilder
from closeout.llm.contexts import known_context
from closeout.llm.failures import failure
from closeout.llm.http import HTTPClient, StreamReader, bearer
from closeout.llm.openai_replies import OpenAIStream, read_completion, reasoning_field
from closeout.llm.openai_wire import ServerKind, constraint_options, message_encoder, tools_json
from closeout.llm.pricing import Price
from closeout.llm.retry import RetryPolicy
from closeout.messages import Capabilities, Constraint, Message, ModelReply, ModelRequest

__all__ = ["OPENAI_URL", "OpenAIClient"]

OPENAI_URL = "https://api.openai.com/v1"
# Parameters that a request can do without where a server or model refuses them. Not `tools`: that would change what
# is asked.
_OPTIONAL = frozenset({
    "temperature", "top_p", "stop", "stream_options", "tool_choice", "response_format", "structured_outputs",
    "grammar", "ebnf", "regex", "stream",
})  # fmt: skip
_HEADS_KEPT = 1024
DISCOVERY_SECONDS = 30.0  # that a request with a constraint waits to hear how its server takes it
CONTEXT_SECONDS = 5.0  # that a run waits to hear how long its model's context is
# vLLM and SGLang; OpenRouter and Together; Groq; Mistral.
_CONTEXT_FIELDS = ("max_model_len", "context_length", "context_window", "max_context_length")
# What vLLM, SGLang and llama.cpp can do beside what every server can.
_SELF_HOSTED: dict[str, Any] = {"completions": True, "json_schema": True, "grammar": True, "known": True}
_OWNERS: Mapping[str, ServerKind] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}


class OpenAIClient(HTTPClient):
    """A model behind an OpenAI-compatible server.

    `base_url` ends in `/v1` as a rule; default: OpenAI's own. `api_key` None: no key is sent. `extra_body`: options
    that go into every request, a request's own before them. `temperature`, `top_p` and `max_tokens` hold where a
    request does not say. `send_reasoning`: whether reasoning of earlier turns goes back to the server; "auto": unless
    it is OpenAI's own. `server`: what kind it is, for constraints; "auto": asked for at the first constraint that is no
    JSON schema. `prices`: see `pricing.find_price`; known prices count only for OpenAI's own server. Raises ConfigError
    for a bad address.
    """

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
        prices: Mapping[str, Price | Sequence[float]] | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        base = (base_url or OPENAI_URL).strip().rstrip("/")
        self._own_host = _is_openai(base)
        super().__init__(
            "openai", model, base, own_host=self._own_host, extra_body=extra_body, timeout=timeout, retry=retry,
            sampling=(temperature, top_p), max_tokens=max_tokens, prices=prices,
        )  # fmt: skip
        sent = {**bearer(api_key), **(headers or {})}
        self._chat = transport.Endpoint(f"{base}/chat/completions", sent)
        self._completions = transport.Endpoint(f"{base}/completions", sent)
        self._models = transport.Endpoint(f"{base}/models", sent)
        self._kind: ServerKind | None = "openai" if self._own_host else None if server == "auto" else server
        self.capabilities = capabilities or _assumed(self._own_host, self._kind)
        if capabilities is None and self._own_host:
            self.capabilities = replace(self.capabilities, max_context=known_context(model))
        self._told_context: int | None = None  # by the server, once it was asked
        self._context_asked = self._own_host  # OpenAI's list of models does not tell
        # api.openai.com has refused max_tokens for its reasoning models since o1; other servers know nothing else.
        self._limit_name = "max_completion_tokens" if self._own_host else "max_tokens"
        self._send_reasoning = not self._own_host if send_reasoning == "auto" else send_reasoning
        self._set_reasoning("reasoning_content" if self._send_reasoning else None)
        self._heads: dict[Any, tuple[bytes, tuple[Any, ...]]] = {}

    # -------------------------------------------------------------------------------- requests

    def _endpoint(self, request: ModelRequest) -> transport.Endpoint:
        return self._chat if request.prompt is None else self._completions

    def _body(self, request: ModelRequest, *, stream: bool) -> bytes:
        """Everything that stays the same first, the conversation last: bodies of a run extend each other."""
        head = self._head(request, stream)
        if request.prompt is not None:
            return b'%b"prompt":%b}' % (head, encode_json(request.prompt))
        joined = Message.joined(request.messages, self._protocol, self._encode)
        return b"".join((head, b'"messages":[', joined, b"]}"))  # `%` copies what is long more than once

    def _head(self, request: ModelRequest, stream: bool) -> bytes:
        # Identity stands for equality here; the cache holds what it has seen, so that no identity is used twice.
        seen = (request.tools, request.constraint)
        key = (
            *map(id, seen),
            request.stop,
            request.tool_choice,
            request.temperature,
            request.top_p,
            request.max_tokens,
            stream,
            request.prompt is None,
        )
        found = self._heads.get(key) if not request.extra_body else None
        if found is None:
            if len(self._heads) >= _HEADS_KEPT:
                self._heads.clear()
            head = encode_json(self._options(request, stream))[:-1] + b","
            if request.tools and request.prompt is None:
                head += b'"tools":%b,' % self._tools_text(request.tools, tools_json)
            found = (head, seen)
            if not request.extra_body:
                self._heads[key] = found
        return found[0]

    def _options(self, request: ModelRequest, stream: bool) -> dict[str, Any]:
        options = {"model": self.model, **self._asked(request)}
        if stream:
            options |= {"stream": True, "stream_options": {"include_usage": True}}
        options = {name: value for name, value in options.items() if name not in self._dropped}
        return {**options, **self._extra, **request.extra_body}

    def _asked(self, request: ModelRequest) -> dict[str, Any]:
        """What the request asks for, as options; those that it leaves open are not sent."""
        options: dict[str, Any] = {
            **self._sampling_of(request),
            self._limit_name: request.max_tokens or self._max_tokens,
            "stop": list(request.stop) or None,
            "tool_choice": request.tool_choice if request.tools and request.prompt is None else None,
        }
        if request.constraint is not None:
            options |= constraint_options(request.constraint, self._kind or "openai")
        return {name: value for name, value in options.items() if value is not None}

    # -------------------------------------------------------------------------------- replies

    async def _learn_constraints(self, constraint: Constraint) -> None:
        if self._kind is None and constraint.kind != "json_schema":
            await self.discover()

    def _read(self, value: Any) -> ModelReply | None:
        reply = read_completion(value)
        if reply is not None and reply.reasoning:
            self._learn_reasoning(reasoning_field(value["choices"][0]["message"]))
        return reply

    def _stream_reader(self, builder: ReplyBuilder) -> StreamReader:
        return OpenAIStream(builder, self._learn_reasoning)

    def _learn_reasoning(self, name: str | None) -> None:
        """Reasoning goes back under the name that it came under: `reasoning_content`, or `reasoning` of newer vLLM."""
        if self._send_reasoning and name is not None and name != self._reasoning_name:
            self._set_reasoning(name)

    def _set_reasoning(self, name: str | None) -> None:
        self._reasoning_name = name
        self._protocol, self._encode = message_encoder(name)

    # -------------------------------------------------------------------------------- adaptations

    def _droppable(self, request: ModelRequest) -> set[str]:
        carried = {*self._asked(request), "stream", "stream_options"}
        return carried & _OPTIONAL

    def _adapt(self, request: ModelRequest, param: str, reason: str) -> bool:
        other = "max_completion_tokens" if self._limit_name == "max_tokens" else "max_tokens"
        before = (self._limit_name, self._send_reasoning)
        if "reasoning_content" in reason or "reasoning" in param:
            self._adapt_reasoning(reason)
        elif (
            (request.max_tokens or self._max_tokens)
            and other in reason
            and self._limit_name in (param, *_words(reason))
        ):
            self._limit_name = other
        adapted = before != (self._limit_name, self._send_reasoning) or super()._adapt(request, param, reason)
        if adapted:
            self._heads.clear()
        return adapted

    def _adapt_reasoning(self, reason: str) -> None:
        """DeepSeek and Kimi refuse a request whose reasoning does not come back, OpenAI one whose reasoning does."""
        demanded = re.search(r"must be|missing|required|passed back", reason) is not None
        if demanded != self._send_reasoning:
            self._send_reasoning = demanded
            self._set_reasoning("reasoning_content" if demanded else None)

    # -------------------------------------------------------------------------------- discovery

    async def context_length(self) -> int | None:
        if self.capabilities.max_context is None and not self._context_asked:
            # The server need not have such a list; what is wrong with it, a request will tell.
            with suppress(ModelError):
                _, data = await self._ask_for_models(CONTEXT_SECONDS)
                self._told_context = _context(_entry(data, self.model))
            self._context_asked = True
        return self.capabilities.max_context or self._told_context

    async def discover(self) -> Capabilities:
        """Asks the server once what it is and how long its context; what is learned is kept in `capabilities`.

        Raises ModelError where it cannot be asked; a server without a list of models is taken for one like OpenAI's.
        """
        response, data = await self._ask_for_models(DISCOVERY_SECONDS)
        if response.status in {401, 403}:
            raise failure(response.status, response.headers, data, self._models.origin)
        entry = _entry(data, self.model)
        known = self._kind or _OWNERS.get(str(entry.get("owned_by")))
        self._kind = known or "openai"
        self._heads.clear()
        self._context_asked = True
        # What is not learned here stays: what was said of the model, and that its server has refused tools.
        learned: dict[str, Any] = {} if self._kind == "openai" else _SELF_HOSTED
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
    """What servers of a kind can do; of an unknown one, what nearly all can."""
    if own_host:
        return Capabilities(json_schema=True, images=True, known=True)
    if kind is None or kind == "openai":
        return Capabilities()
    return Capabilities(**_SELF_HOSTED)


def _entry(data: bytes, model: str) -> dict[str, Any]:
    try:
        listed = decode_json(data)
    except ValueError:
        return {}
    entries = listed.get("data") if isinstance(listed, dict) else None
    found = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return next((entry for entry in found if entry.get("id") == model), found[0] if len(found) == 1 else {})


def _context(entry: Mapping[str, Any]) -> int | None:
    """The context length that a server states: under `meta` llama.cpp, as one of `_CONTEXT_FIELDS` others."""
    meta = entry.get("meta")
    candidates = (*map(entry.get, _CONTEXT_FIELDS), meta.get("n_ctx") if isinstance(meta, dict) else None)
    return next((n for n in candidates if isinstance(n, int) and n > 0), None)


def _words(reason: str) -> set[str]:
    return set(re.findall(r"\w+", reason))
