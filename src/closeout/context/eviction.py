"""When old tool results leave the view, and how many at once: pure decisions over numbers. Rare and large, never a
little every turn, because whatever changes in the middle of a prompt is paid again from there on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from closeout.messages import Step

__all__ = ["Eviction", "EvictionPolicy", "best_batch"]

STUB_TOKENS = 30  # about what stands for an evicted result
MIN_KEPT = 2  # results that stay in view however full the context is
WORTHWHILE = 0.05  # of the context: to free less is not worth a broken prefix
PRESSING = 0.95  # of the context: past this any room is worth it


@dataclass(frozen=True, slots=True)
class Eviction:
    """Results of the turns before `before` leave the view: how many, and the tokens that frees."""

    before: int
    results: int
    tokens: int
    reason: str


def best_batch(keep: int, ratio: float) -> int:
    """How many results beyond `keep` to let gather before evicting them together.

    With a cached token at `ratio` of a fresh one's price, each turn pays about ratio·(K + B/2) results from the cache,
    and once in B turns K results fresh, since the prefix broke before them. The sum is least at B = √(2K(1−r)/r).
    """
    if not 0 < ratio < 1:
        return max(keep, 1)
    return max(1, round(math.sqrt(2 * max(keep, 1) * (1 - ratio) / ratio)))


@dataclass(frozen=True, slots=True)
class EvictionPolicy:
    """What decides. `keep` -1: only the size of the context does; K: at least the last K results stay in view.

    `max_context` in tokens; None where the model's context is not known, and then only `keep` decides.
    """

    keep: int = -1
    batch: int = 10
    max_context: int | None = None
    high_water: float = 0.8
    low_water: float = 0.5
    reserve: int = 0  # tokens of the context that the reply needs

    def decide(
        self, steps: Sequence[Step], evicted_before: int, prompt_tokens: int, scale: float = 1.0
    ) -> Eviction | None:
        """Whether to evict now, given the tokens that the next prompt will have.

        `scale`: tokens of the prompt for each that a result was estimated at.
        """
        full = self.max_context is not None and prompt_tokens > self._room * self.high_water
        if self.keep < 0 and not full:
            return None  # nearly every turn of nearly every run ends here
        shown = _shown(steps, evicted_before)
        return (self._by_budget(shown, prompt_tokens, scale) if full else None) or self._by_count(shown, scale)

    @property
    def _room(self) -> int:
        return max((self.max_context or 0) - self.reserve, 1)

    def _by_count(self, shown: Sequence[Step], scale: float) -> Eviction | None:
        results = sum(len(step.returns) for step in shown)
        if self.keep < 0 or results < max(self.keep, 1) + self.batch:
            return None
        return _evict(shown, results - self.keep, math.inf, "count", scale)

    def _by_budget(self, shown: Sequence[Step], prompt_tokens: int, scale: float) -> Eviction | None:
        results = sum(len(step.returns) for step in shown)
        kept = max(self.keep, MIN_KEPT)
        found = _evict(shown, results - kept, prompt_tokens - self._room * self.low_water, "budget", scale)
        if found is not None and found.tokens < WORTHWHILE * self._room and prompt_tokens < PRESSING * self._room:
            return None
        return found

    def shrink(self, steps: Sequence[Step], evicted_before: int) -> Eviction | None:
        """What to give up when a server says that the prompt is too long: all results but the last."""
        shown = _shown(steps, evicted_before)
        return _evict(shown, sum(len(step.returns) for step in shown) - 1, math.inf, "overflow")


def _shown(steps: Sequence[Step], evicted_before: int) -> list[Step]:
    """The steps whose results are in view, found from the end: a long run has few of them."""
    found = list(takewhile(lambda step: step.turn >= evicted_before, reversed(steps)))
    return [step for step in reversed(found) if step.returns]


def _evict(shown: Sequence[Step], at_most: float, enough: float, reason: str, scale: float = 1.0) -> Eviction | None:
    """The oldest whole turns: up to `at_most` results, until `enough` tokens are freed."""
    results = tokens = 0
    before = -1
    for step in shown:
        if results + len(step.returns) > at_most or tokens >= enough:
            break
        results += len(step.returns)
        tokens += sum(max(round(r.tokens * scale) - STUB_TOKENS, 0) for r in step.returns)
        before = step.turn + 1
    return Eviction(before, results, tokens, reason) if results else None
