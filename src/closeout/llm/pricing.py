"""What tokens cost: prices of well-known models as data, and a bill made of them. Unknown models have no price.

US dollars per million tokens, from the open catalogue models.dev as it stood on the date below, without its surcharges
for very long prompts. Prices change: pass your own where the bill matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from closeout.messages import Usage

__all__ = ["AS_OF", "PRICES", "Price", "find_price", "price", "undated"]

AS_OF = "2026-10"


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


def find_price(model: str, prices: Mapping[str, Price | Sequence[float]] | None = None) -> Price | None:
    """The price of a model by its name, or by its name without a date at the end ("gpt-4o-2024-08-06").

    `prices` (input, output[, cache read[, cache write]] per million tokens) goes before the known ones.
    """
    for name in (model, undated(model)):
        for known in (prices or {}, PRICES):
            found = known.get(name)
            if found is not None:
                return found if isinstance(found, Price) else Price(*found)
    return None


def price(model: str, usage: Usage, prices: Mapping[str, Price | Sequence[float]] | None = None) -> Usage:
    """The usage with `cost_usd`, which is None for a model of unknown price."""
    found = find_price(model, prices)
    return replace(usage, cost_usd=None) if found is None else found.of(usage)


def undated(model: str) -> str:
    """The name without a trailing `-2024-08-06`, `-20250929` or `-latest`."""
    stem, _, last = model.rpartition("-")
    if last == "latest" or (len(last) == 8 and last.isdigit()):
        return stem
    tail = model[-11:]
    digits = tail[1:5] + tail[6:8] + tail[9:]
    return model[:-11] if len(tail) == 11 and tail[0] == tail[5] == tail[8] == "-" and digits.isdigit() else model
