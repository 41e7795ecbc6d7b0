"""What tokens cost: prices of well-known models as data, and a bill made of them. Unknown models have no price.

Prices in US dollars per million tokens, from the vendors' public price lists (platform.openai.com/docs/pricing and
docs.anthropic.com/en/docs/about-claude/pricing) as they stood on the date below. They change: pass your own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from closeout.messages import Usage

__all__ = ["AS_OF", "PRICES", "Price", "find_price", "price"]

AS_OF = "2025-09"


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens. Reading from and writing to a cache cost as input where they are None."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def of(self, usage: Usage) -> Usage:
        """The usage with its cost."""
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
    "gpt-5": Price(1.25, 10.0, 0.125),
    "gpt-5-mini": Price(0.25, 2.0, 0.025),
    "gpt-5-nano": Price(0.05, 0.4, 0.005),
    "gpt-4.1": Price(2.0, 8.0, 0.5),
    "gpt-4.1-mini": Price(0.4, 1.6, 0.1),
    "gpt-4.1-nano": Price(0.1, 0.4, 0.025),
    "gpt-4o": Price(2.5, 10.0, 1.25),
    "gpt-4o-mini": Price(0.15, 0.6, 0.075),
    "o3": Price(2.0, 8.0, 0.5),
    "o4-mini": Price(1.1, 4.4, 0.275),
    "claude-opus-4-1": Price(15.0, 75.0, 1.5, 18.75),
    "claude-opus-4": Price(15.0, 75.0, 1.5, 18.75),
    "claude-sonnet-4-5": Price(3.0, 15.0, 0.3, 3.75),
    "claude-sonnet-4": Price(3.0, 15.0, 0.3, 3.75),
    "claude-haiku-4-5": Price(1.0, 5.0, 0.1, 1.25),
    "claude-3-5-haiku": Price(0.8, 4.0, 0.08, 1.0),
}


def find_price(model: str, prices: Mapping[str, Price | Sequence[float]] | None = None) -> Price | None:
    """The price of a model by its name, or by its name without a date at the end ("gpt-4o-2024-08-06").

    `prices` (input, output[, cache read[, cache write]] per million tokens) goes before the known ones.
    """
    for name in (model, _undated(model)):
        for known in (prices or {}, PRICES):
            found = known.get(name)
            if found is not None:
                return found if isinstance(found, Price) else Price(*found)
    return None


def price(model: str, usage: Usage, prices: Mapping[str, Price | Sequence[float]] | None = None) -> Usage:
    """The usage with `cost_usd`, which is None for a model of unknown price."""
    found = find_price(model, prices)
    return replace(usage, cost_usd=None) if found is None else found.of(usage)


def _undated(model: str) -> str:
    """The name without a trailing `-2024-08-06`, `-20250929` or `-latest`."""
    stem, _, last = model.rpartition("-")
    if last == "latest" or (len(last) == 8 and last.isdigit()):
        return stem
    tail = model[-11:]
    digits = tail[1:5] + tail[6:8] + tail[9:]
    return model[:-11] if len(tail) == 11 and tail[0] == tail[5] == tail[8] == "-" and digits.isdigit() else model
