"""The context of well-known models on their vendors' own hosts, as data. Other servers are asked by their client.

Tokens, from the vendors' model pages as of 2026-10: the whole context, or where less of it may be prompt, that.
"""

from __future__ import annotations

from collections.abc import Mapping

from closeout.llm.pricing import undated

__all__ = ["CONTEXTS", "known_context"]

CONTEXTS: Mapping[str, int] = {
    "gpt-5.5": 1_000_000,
    "gpt-5.4": 1_000_000,
    "gpt-5": 272_000,
    "gpt-5-mini": 272_000,
    "claude-opus-5": 1_000_000,
    "claude-opus-4-8": 1_000_000,
    "claude-sonnet-5": 1_000_000,
    "claude-haiku-4-5": 200_000,
}


def known_context(model: str) -> int | None:
    """The context of a model by its name, with or without a date at its end; None where it is not known."""
    return CONTEXTS.get(model) or CONTEXTS.get(undated(model))
