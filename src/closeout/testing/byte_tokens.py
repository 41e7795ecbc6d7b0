"""A tokenizer for scripted servers: the bytes of a ChatML prompt, with two special tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from closeout.codec import encode_json
from closeout.messages import ModelReply

__all__ = ["StatedTokens", "token_text"]

START, END = 256, 257


def token_text(token: int) -> str:
    """Return the text of a token."""
    return {START: "<|im_start|>", END: "<|im_end|>"}.get(token) or bytes([token]).decode("latin-1")


@dataclass(frozen=True, slots=True)
class StatedTokens:
    """The tokens in a chat completion, as `return_token_ids` and `logprobs` ask for them."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    with_ids: bool
    with_logprobs: bool

    @classmethod
    def of(cls, reply: ModelReply, request: Mapping[str, Any]) -> StatedTokens:
        """Return the tokens of a reply to a request."""
        with_ids, with_logprobs = bool(request.get("return_token_ids")), bool(request.get("logprobs"))
        if not (with_ids or with_logprobs):
            return cls((), (), with_ids, with_logprobs)
        return cls(tuple(_prompt(request)), (*_reply(reply), END), with_ids, with_logprobs)

    def of_body(self) -> dict[str, Any]:
        """Return the fields of a body or an event."""
        return {"prompt_token_ids": self.prompt} if self.with_ids else {}

    def of_choice(self, part: int = 0, parts: int = 1) -> dict[str, Any]:
        """Return the fields of a choice, for one of several parts of a stream."""
        size = -(-len(self.ids) // parts)
        ids = self.ids[part * size : (part + 1) * size]
        found: dict[str, Any] = {"token_ids": ids} if self.with_ids else {}
        if self.with_logprobs:
            content = [{"token": token_text(token), "logprob": -(token % 8) / 8, "top_logprobs": []} for token in ids]
            found["logprobs"] = {"content": content}
        return found


def _prompt(request: Mapping[str, Any]) -> Iterator[int]:
    if request.get("tools"):
        yield from (START, *encode_json(request["tools"]), END)
    for message in request.get("messages") or ():
        yield from (START, *f"{message['role']}\n".encode(), *_message(message), END, *b"\n")
    yield from (START, *b"assistant\n")


def _message(message: Mapping[str, Any]) -> bytes:
    content = message.get("content") or ""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    written = [f"\n<tool_call>{call['name']} {call['arguments']}</tool_call>" for call in calls]
    return "".join([content if isinstance(content, str) else encode_json(content).decode(), *written]).encode()


def _reply(reply: ModelReply) -> bytes:
    written = [f"\n<tool_call>{call.name} {call.text}</tool_call>" for call in reply.tool_calls]
    return "".join([reply.text, *written]).encode()
