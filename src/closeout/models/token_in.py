"""The client for servers that take and return token ids: vLLM, SGLang and llama.cpp.

A chat server builds every prompt from messages. It may leave out the thinking of earlier turns, write calls in its
own way, and tokenize sampled text differently. Here a prompt consists, id for id, of the previous prompt, the sampled
reply, and the tokens of the added text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from closeout.codec import decode_json, encode_json
from closeout.errors import BadRequest, ConfigError, ServerFailed
from closeout.messages import Capabilities, Message, ModelReply, ModelRequest, ReplyTokens, Usage
from closeout.models import transport
from closeout.models.base import OnDelta
from closeout.models.chat_template import ChatTemplate
from closeout.models.http_errors import error_from_response
from closeout.models.openai import OpenAIClient, finish_reason, read_completion, tool_definitions
from closeout.models.refusals import RefusalSearch

__all__ = ["TokenClient"]

TOKENIZE_SECONDS = 60.0
_PATHS = {"sglang": "/generate", "llama.cpp": "/completion"}


class TokenClient(OpenAIClient):
    """A model that is asked with token ids and answers with them, so that a run is one sequence of tokens.

    The ids of earlier turns are attached to the messages, so they survive a crash, and a fork has its own. If earlier
    messages have changed, as after an eviction, the whole conversation is tokenized again.

    For another server, or the engine of a trainer, override `tokenize` and `generate`.

    Args:
        model: The model's name on the server.
        base_url: The server's address, which usually ends in `/v1`.
        template: The model's chat template: its text, a file, or the model's folder.
        server: "vllm", "sglang" or "llama.cpp".
        api_key: Sent as a bearer token, if set.
        options: Further arguments of `OpenAIClient`, such as `temperature`, `max_tokens` and `extra_body`.

    Raises:
        ConfigError: The address or the template is invalid.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        template: ChatTemplate | str | Path,
        server: Literal["vllm", "sglang", "llama.cpp"] = "vllm",
        api_key: str | None = None,
        **options: Any,
    ) -> None:
        if server not in ("vllm", *_PATHS):
            raise ConfigError(f"server must be 'vllm', 'sglang' or 'llama.cpp', got {server!r}.")
        known = Capabilities(streaming=False, json_schema=False, known=True)
        super().__init__(model, base_url, api_key, server=server, small=False, capabilities=known, **options)
        self._template = template if isinstance(template, ChatTemplate) else ChatTemplate(template)
        root = self.base_url.removesuffix("/v1")
        self._tokenize = transport.Endpoint(f"{root}/tokenize", self._models.headers)
        if server in _PATHS:
            self._completions = transport.Endpoint(root + _PATHS[server], self._models.headers)

    async def _attempt_request(
        self,
        request: ModelRequest,
        on_delta: OnDelta | None,
        timeout: float | None,
        search: RefusalSearch | None = None,
    ) -> ModelReply:
        if request.prompt is not None:
            return await super()._attempt_request(request, on_delta, timeout, search)
        before, added = await self._prompt(request)
        prompt = (*before, *added)
        reply = await self.generate(prompt, request, on_delta=on_delta, timeout=timeout)
        if reply.tokens is None or not reply.tokens.ids:
            raise BadRequest(
                f"{self.base_url} states no token ids. TokenClient needs a vLLM that knows return_token_ids, SGLang or "
                "llama.cpp."
            )
        *_, seen = _digests(request)
        kept = {"prompt": added, "reply": list(reply.tokens.ids), "seen": seen, "anew": not before}
        return replace(
            reply,
            tokens=replace(reply.tokens, prompt=prompt, by_ids=True),
            attached={**reply.attached, "server": self._server, "tokens": kept},
        )

    async def generate(
        self, prompt: Sequence[int], request: ModelRequest, *, on_delta: OnDelta | None, timeout: float | None
    ) -> ModelReply:
        """Ask the model for a reply to a prompt.

        Args:
            prompt: The ids of the prompt.
            request: The request of the prompt.
            on_delta: Receives the text as it is written, if set.
            timeout: Seconds.

        Returns:
            The reply: its text without the token that ends it, and in `tokens` its ids with that token.
        """
        asked = replace(request, prompt="", extra_body={**request.extra_body, "prompt": prompt})
        return await super()._attempt_request(asked, on_delta, timeout)

    async def _prompt(self, request: ModelRequest) -> tuple[list[int], list[int]]:
        """Return the ids of an earlier request with its reply, and the ids to add."""
        tools = tool_definitions(request.tools)
        messages = request.messages
        before, last = self._known(request)
        if last >= 0:
            text = self._template.after_reply(messages[last], messages[last + 1 :], tools)
            if text is not None:
                added = await self.tokenize(text)
                if before and added and before[-1] == added[0]:  # the reply ended with the token that ends a turn
                    added = added[1:]
                return before, added
        return [], await self.tokenize(self._template.write(messages, tools))

    def _known(self, request: ModelRequest) -> tuple[list[int], int]:
        """Return the ids up to the last reply and its position; no ids and -1 if the ids are unknown."""
        ids: list[int] = []
        last = -1
        for place, (message, seen) in enumerate(zip(request.messages, _digests(request), strict=False)):
            if message.role == "assistant":
                kept = _kept(message, self._server)
                if kept is not None and kept.get("seen") == seen and (ids or kept.get("anew")):
                    ids = [*([] if kept.get("anew") else ids), *kept["prompt"], *kept["reply"]]
                    last = place
                else:  # e.g. a reply to a hint; the ids are known again after the next full prompt
                    ids, last = [], -1
        return ids, last

    async def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens added by the tokenizer."""
        body: dict[str, Any] = {"model": self.model, "prompt": text, "add_special_tokens": False}
        if self._kind == "llama.cpp":
            body = {"content": text, "add_special": False, "parse_special": True}
        response = await transport.post(self._tokenize, encode_json(body), timeout=TOKENIZE_SECONDS)
        if response.status != 200:
            said = await response.read_start()
            raise error_from_response(response.status, response.headers, said, response.origin)
        found = decode_json(await response.read())
        tokens = found.get("tokens") if isinstance(found, dict) else None
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            told = f"{self.base_url} did not answer /tokenize with the ids of tokens."
            raise ServerFailed(told, about_request=True)
        return tokens

    # -------------------------------------------------------------------------------- the protocols

    def _body(self, request: ModelRequest, *, stream: bool) -> bytes:
        if "prompt" not in request.extra_body:
            return super()._body(request, stream=stream)
        options = self._options(request, stream)
        if self._kind == "vllm":
            return encode_json({"return_token_ids": True, "logprobs": 1, "skip_special_tokens": False, **options})
        if self._kind == "llama.cpp":
            named = {"n_predict" if name == "max_tokens" else name: value for name, value in options.items()}
            return encode_json({"return_tokens": True, "n_probs": 1, **named})
        names = {"max_tokens": "max_new_tokens"}
        ours = {"model", "prompt"}
        sampling = {names.get(name, name): value for name, value in options.items() if name not in ours}
        return encode_json({
            "input_ids": options["prompt"],
            "sampling_params": {"skip_special_tokens": False, **sampling},
            "return_logprob": True,
        })  # fmt: skip

    def _read_reply(self, value: Any) -> ModelReply | None:
        if self._kind == "llama.cpp":
            return _read_llama_cpp(value)
        return read_completion(value) if self._kind == "vllm" else _read_generated(value)


def _read_llama_cpp(value: Any) -> ModelReply | None:
    """Return the reply in the body of llama.cpp's `/completion`; None if it is something else."""
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        return None
    ids, stated = value.get("tokens"), value.get("completion_probabilities")
    ids = ids if isinstance(ids, list) and all(type(token) is int for token in ids) else []
    stated = stated if isinstance(stated, list) and len(stated) == len(ids) else []
    found = [each.get("logprob") if isinstance(each, dict) else None for each in stated]
    logprobs = tuple(float(each) for each in found if isinstance(each, int | float))
    tokens = ReplyTokens(ids=tuple(ids), logprobs=logprobs if len(logprobs) == len(ids) else ())
    counts = [value.get(name) for name in ("tokens_evaluated", "tokens_predicted")]
    read, written = (count if type(count) is int else 0 for count in counts)
    reason = "length" if value.get("stop_type") == "limit" else "stop"
    return ModelReply(value["content"], finish_reason=reason, usage=Usage(read, written, requests=1), tokens=tokens)


def _read_generated(value: Any) -> ModelReply | None:
    """Return the reply in the body of SGLang's `/generate`; None if it is something else."""
    value = value[0] if isinstance(value, list) and value else value
    meta = value.get("meta_info") if isinstance(value, dict) else None
    if not isinstance(meta, dict) or not isinstance(value.get("text"), str):
        return None
    reason = meta.get("finish_reason")
    stated = meta.get("output_token_logprobs")
    pairs = [pair for pair in stated if isinstance(pair, list) and len(pair) > 1] if isinstance(stated, list) else []
    ids = [pair[1] for pair in pairs] or value.get("output_ids") or []
    tokens = ReplyTokens(
        ids=tuple(ids) if all(type(token) is int for token in ids) else (),
        logprobs=tuple(float(pair[0]) for pair in pairs if isinstance(pair[0], int | float)),
        version=str(meta.get("weight_version") or ""),
    )
    counts = [meta.get(name) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")]
    read, written, cached = (count if type(count) is int else 0 for count in counts)
    return ModelReply(
        value["text"],
        finish_reason=finish_reason(reason.get("type") if isinstance(reason, dict) else reason),
        usage=Usage(read, written, cache_read_tokens=cached, requests=1),
        tokens=tokens,
    )


def _digests(request: ModelRequest) -> Iterator[str]:
    """Yield a digest of a request's tools and the messages before each message, then one of all of them."""
    seen = hashlib.sha256(encode_json(tool_definitions(request.tools)))
    yield seen.hexdigest()[:32]
    for message in request.messages:
        seen.update(encode_json({name: value for name, value in message.items() if name != "attached"}))
        yield seen.hexdigest()[:32]


def _kept(message: Message, server: str) -> Mapping[str, Any] | None:
    attached = message.get("attached")
    if not isinstance(attached, Mapping) or attached.get("server") != server:
        return None
    kept = attached.get("tokens")
    return kept if isinstance(kept, Mapping) else None
