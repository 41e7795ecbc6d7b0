"""A server of vLLM's and SGLang's token interfaces, with a tokenizer whose ids a model may sample otherwise."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Self

from aiohttp import web

# Texts that are one token. The rest are pairs of bytes, as the tokenizer writes them, or single bytes.
SPECIAL = re.compile(
    r"<\|im_start\|>|<\|im_end\|>|<think>|</think>|<tool_call>|</tool_call>|<\|eot_id\|>|<\|start_header_id\|>"
    r"|<\|end_header_id\|>|</s>|<s>|\[INST\]|\[/INST\]|\[TOOL_CALLS\]|\[TOOL_RESULTS\]|\[/TOOL_RESULTS\]"
    r"|<\uff5c[^\uff5c<>]{1,40}\uff5c>"
)


class Vocabulary:
    """Bytes, pairs of bytes, and special tokens, which get their ids when they are first seen."""

    def __init__(self) -> None:
        self.special: dict[str, int] = {}

    def encode(self, text: str, *, sampled: bool = False) -> list[int]:
        """Return the ids of a text. A model that samples writes single bytes where the tokenizer writes pairs."""
        ids: list[int] = []
        place = 0
        for found in SPECIAL.finditer(text):
            ids += self._plain(text[place : found.start()], sampled)
            ids.append(self.special.setdefault(found[0], 100_000 + len(self.special)))
            place = found.end()
        return ids + self._plain(text[place:], sampled)

    def _plain(self, text: str, sampled: bool) -> list[int]:
        data = text.encode()
        if sampled:
            return list(data)
        whole = len(data) - len(data) % 2
        pairs = [256 + data[at] * 256 + data[at + 1] for at in range(0, whole, 2)]
        return [*pairs, *data[whole:]]

    def decode(self, ids: Sequence[int]) -> str:
        names = {number: text.encode() for text, number in self.special.items()}
        parts = (names.get(i) or (bytes([i]) if i < 256 else bytes(divmod(i - 256, 256))) for i in ids)
        return b"".join(parts).decode("utf-8", "replace")


class TokenServer:
    """Plays texts as sampled tokens. Enter it with `async with`.

    Attributes:
        prompts: The ids of each request.
        sampled: The ids of each reply, the end of the turn included.
    """

    def __init__(self, texts: Sequence[str], end: str) -> None:
        self.texts, self.end = list(texts), end
        self.vocabulary = Vocabulary()
        self.prompts: list[list[int]] = []
        self.sampled: list[list[int]] = []
        self.bodies: list[dict[str, Any]] = []
        self.base_url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.add_routes([
            web.post("/tokenize", self._tokenize),
            web.post("/v1/completions", self._complete),
            web.post("/generate", self._generate),
        ])  # fmt: skip
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["add_special_tokens"] is False
        return web.json_response({"tokens": self.vocabulary.encode(body["prompt"])})

    def _next(self, prompt: list[int]) -> tuple[str, list[int]]:
        assert all(type(token) is int for token in prompt)
        text = self.texts[len(self.sampled)]
        ids = self.vocabulary.encode(text + self.end, sampled=True)
        self.prompts.append(prompt)
        self.sampled.append(ids)
        return text, ids

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        text, ids = self._next(body["prompt"])
        assert body["return_token_ids"]
        logprobs = {"tokens": ["?"] * len(ids), "token_logprobs": [-(i % 8) / 8 for i in ids]}
        choice = {"index": 0, "text": text, "finish_reason": "stop", "token_ids": ids, "logprobs": logprobs}
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        return web.json_response({"choices": [choice], "usage": usage, "model": body["model"]})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        text, ids = self._next(body["input_ids"])
        meta = {
            "finish_reason": {"type": "stop", "matched": ids[-1]},
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "output_token_logprobs": [[-(i % 8) / 8, i, None] for i in ids],
            "weight_version": str(len(self.sampled)),
        }
        return web.json_response({"text": text, "output_ids": ids, "meta_info": meta})
