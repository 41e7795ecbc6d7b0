"""Tokens of replies in the journal: of each prompt only those that the agent's previous request did not have."""

from __future__ import annotations

import json
from collections.abc import Sequence

from closeout.codec import shared_items
from closeout.messages import ReplyTokens

__all__ = ["dump_tokens", "load_tokens"]


def dump_tokens(tokens: ReplyTokens | None, before: Sequence[int]) -> str:
    """Return tokens as JSON text, empty without any.

    Args:
        tokens: Those of a reply.
        before: The ids of the agent's previous prompt and its reply.
    """
    if tokens is None:
        return ""
    kept = shared_items(before, tokens.prompt)
    found = {
        "kept": kept,
        "prompt": tokens.prompt[kept:],
        "ids": tokens.ids,
        "logprobs": tokens.logprobs,
        "texts": tokens.texts,
        "version": tokens.version,
        "by_ids": tokens.by_ids,
    }
    return json.dumps({name: value for name, value in found.items() if value}, separators=(",", ":"))


def load_tokens(text: str, before: Sequence[int]) -> ReplyTokens:
    """Return the tokens that `dump_tokens` wrote; `before` must be the same."""
    found = json.loads(text)
    return ReplyTokens(
        ids=tuple(found.get("ids", ())),
        prompt=(*before[: found.get("kept", 0)], *found.get("prompt", ())),
        logprobs=tuple(found.get("logprobs", ())),
        texts=tuple(found.get("texts", ())),
        version=str(found.get("version", "")),
        by_ids=bool(found.get("by_ids")),
    )
