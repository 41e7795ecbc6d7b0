"""Prices and context lengths of well-known models, as of October 2026, and the cost of a request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from closeout.messages import Usage

__all__ = ["PRICES", "Price", "find_price", "known_context", "price"]


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens. Where the cache prices are None, cached tokens cost as much as input tokens."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def of(self, usage: Usage) -> Usage:
        """Return the usage with its cost."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        fresh = max(usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens, 0)
        millionths = (
            fresh * self.input
            + usage.cache_read_tokens * read
            + usage.cache_write_tokens * write
            + usage.output_tokens * self.output
        )
        return replace(usage, cost_usd=millionths / 1e6)


PRICES: Mapping[str, Price] = {
    "gpt-5.6": Price(2.0, 10.0, 0.2, 2.5),
    "gpt-5.5": Price(5.0, 30.0, 0.5),
    "gpt-5.4": Price(2.5, 15.0, 0.25),
    "gpt-5": Price(1.25, 10.0, 0.125),
    "gpt-5-mini": Price(0.25, 2.0, 0.025),
    "claude-opus-5": Price(5.0, 25.0, 0.5, 6.25),
    "claude-opus-4-8": Price(5.0, 25.0, 0.5, 6.25),
    "claude-sonnet-5": Price(2.0, 10.0, 0.2, 2.5),
    "claude-sonnet-4-6": Price(3.0, 15.0, 0.3, 3.75),
    "claude-haiku-4-5": Price(1.0, 5.0, 0.1, 1.25),
}


def find_price(
    model: str,
    prices: Mapping[str, Price | Sequence[float]] | None = None,
    *,
    known: Mapping[str, Price] = PRICES,
) -> Price | None:
    """Return the price of a model, found by its name with or without the date at its end ("gpt-4o-2024-08-06").

    Args:
        model: The model's name.
        prices: Input, output, cache read and cache write per million tokens by model; overrides the known prices. The
            name "*" stands for every model without a price.
        known: The prices of well-known models.
    """
    stated = prices or {}
    names = model, undated(model)
    for found in (*(table.get(name) for name in names for table in (stated, known)), stated.get("*")):
        if found is not None:
            return found if isinstance(found, Price) else Price(*found)
    return None


def price(model: str, usage: Usage, prices: Mapping[str, Price | Sequence[float]] | None = None) -> Usage:
    """Return the usage with its cost, which is None if the model's price is unknown."""
    found = find_price(model, prices)
    return replace(usage, cost_usd=None) if found is None else found.of(usage)


def undated(model: str) -> str:
    """Return the name without a trailing `-2024-08-06`, `-20250929` or `-latest`."""
    return re.sub(r"-(?:latest|\d{8}|\d{4}-\d{2}-\d{2})\Z", "", model)


# ------------------------------------------------------------------------------------------------ context lengths


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
    """Return the context length of a model, found by its name with or without a date; None if unknown."""
    return CONTEXTS.get(model) or CONTEXTS.get(undated(model))
