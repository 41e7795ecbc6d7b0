"""Decide when old tool results and old turns leave the context, and how many at once.

Decisions are pure. They are rare and large: whatever changes in the middle of a prompt is paid for again from there on,
so leaving out a little every turn would break the provider's cache every turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Protocol, runtime_checkable

from closeout.messages import Step
from closeout.records import record
from closeout.results.tokens import estimate_tokens

__all__ = [
    "COMPACTION_PROMPT",
    "ContextPolicy",
    "ContextState",
    "Eviction",
    "EvictionPolicy",
    "best_batch",
    "evict_all_but_last",
    "summary_in",
]

STUB_TOKENS = 30  # approximate size of the line that replaces an evicted result
MIN_KEPT = 2  # results that stay in view however full the context is
WORTHWHILE = 0.05  # Share of the context; freeing less is not worth breaking the cached prefix.
PRESSING = 0.95  # Share of the context; above it, freeing anything is worth it.
SHORTEST_SUMMARY = 40  # characters: a shorter reply does not sum up anything

COMPACTION_PROMPT = """\
The conversation is about to be shortened: everything above except the task, any earlier summary too, is replaced by \
what you write now. Call no tools and do not answer the task yet. Write, in few words and with every name, number and \
source that matters:
Findings: what is known so far, each with its source
Open questions: what the task still needs
Tried: queries and pages that found nothing, so that they are not tried again"""


@record(kw_only=True)
class Eviction:
    """Leave out the results of all turns before `before`, or these turns as a whole.

    Attributes:
        before: The first turn that stays as it is.
        results: The number of results that leave.
        tokens: The tokens that this frees, approximately.
        reason: A word for the journal: "count", "budget", "overflow", or a word of your own.
        summarise: Have the model sum up those turns first. Its summary replaces them.
        whole: Without a summary the turns leave too. Otherwise only their results do.
    """

    before: int
    results: int
    tokens: int
    reason: str
    summarise: bool = False
    whole: bool = False


@record(kw_only=True)
class ContextState:
    """The state on which a `ContextPolicy` decides, after each accepted turn.

    Attributes:
        steps: All turns of the attempt, oldest first. `step.returns` are the results that a turn shows.
        evicted_before: Results of the turns before this one are left out already.
        prompt_tokens: The size of the next prompt, estimated from what the server counted for the last one.
        max_context: The size of the model's context in tokens, None if unknown.
        reserve: Tokens of the context that the reply needs.
        scale: Tokens that the server counts for each token that a result was estimated at.
    """

    steps: Sequence[Step]
    evicted_before: int = 0
    prompt_tokens: int = 0
    max_context: int | None = None
    reserve: int = 0
    scale: float = 1.0

    @property
    def shown(self) -> list[Step]:
        """The turns whose results are in view, oldest first."""
        # Searched from the end, because a long run has few of them.
        found = list(takewhile(lambda step: step.turn >= self.evicted_before, reversed(self.steps)))
        return [step for step in reversed(found) if step.returns]

    def evict(
        self, at_most: float, *, enough: float = math.inf, reason: str = "policy", summarise: bool = False
    ) -> Eviction | None:
        """Choose the oldest whole turns in view.

        Args:
            at_most: The number of results that may leave.
            enough: Stop when this many tokens are freed.
            reason: A word for the journal.
            summarise: Have the model sum the turns up first.

        Returns:
            The eviction, or None if no whole turn fits into `at_most`.
        """
        results = tokens = 0
        before = -1
        for step in self.shown:
            if results + len(step.returns) > at_most or tokens >= enough:
                break
            results += len(step.returns)
            tokens += sum(max(round(r.tokens * self.scale) - STUB_TOKENS, 0) for r in step.returns)
            before = step.turn + 1
        if not results:
            return None
        return Eviction(before=before, results=results, tokens=tokens, reason=reason, summarise=summarise)

    def evict_turns(self, keep: int, *, reason: str = "policy", summarise: bool = False) -> Eviction | None:
        """Choose all turns but those with the last `keep` results.

        Args:
            keep: The number of results that stay, at least.
            reason: A word for the journal.
            summarise: Have the model sum the turns up first.

        Returns:
            The eviction, or None if no turn may leave.
        """
        kept = 0
        stay = len(self.steps)
        while stay and kept < keep:
            stay -= 1
            kept += len(self.steps[stay].returns)
        leaving = self.steps[:stay]
        if not leaving:
            return None
        results = sum(len(step.returns) for step in leaving if step.turn >= self.evicted_before)
        tokens = sum(map(_tokens_of, leaving))
        return Eviction(
            before=leaving[-1].turn + 1,
            results=results,
            tokens=round(tokens * self.scale),
            reason=reason,
            summarise=summarise,
            whole=True,
        )


@runtime_checkable
class ContextPolicy(Protocol):
    """Decides what leaves the context. Pass an instance as `Agent(context=…)`; `EvictionPolicy` is the default.

    A policy serves any number of runs at once, and a resumed run asks it again: it must decide from the state alone,
    without a clock, chance, or memory of its own. Results that leave stay readable with `read_result`.
    """

    def decide(self, state: ContextState) -> Eviction | None:
        """Return what leaves now, or None. Called once after each accepted turn."""


@record(kw_only=True)
class EvictionPolicy:
    """The default policy: by the number of results, by the size of the context, or both.

    If a prompt grows above high water, the oldest results leave, until the prompt is down to low water. If what is not
    results (thoughts, calls, stubs) is above low water, all turns but the last leave, and a summary replaces them.

    Attributes:
        keep: The last `keep` results stay in view; older ones leave in batches. -1: only the size decides.
        batch: How many results beyond `keep` gather before they leave together.
        high_water: The share of the context above which results leave.
        low_water: The share of the context down to which they leave.
        compaction: Have the model sum up what leaves because of the size also if leaving out results is enough.
    """

    keep: int = -1
    batch: int = 10
    high_water: float = 0.8
    low_water: float = 0.5
    compaction: bool = False

    def decide(self, state: ContextState) -> Eviction | None:
        """Return what leaves now, or None."""
        room = max((state.max_context or 0) - state.reserve, 1)
        full = state.max_context is not None and state.prompt_tokens > room * self.high_water
        if self.keep < 0 and not full:
            return None  # nearly every turn of nearly every run ends here
        results = sum(len(step.returns) for step in state.shown)
        return (self._by_size(state, results, room) if full else None) or self._by_count(state, results)

    def _by_count(self, state: ContextState, results: int) -> Eviction | None:
        if self.keep < 0 or results < max(self.keep, 1) + self.batch:
            return None
        return state.evict(results - self.keep, reason="count")

    def _by_size(self, state: ContextState, results: int, room: int) -> Eviction | None:
        low, kept = room * self.low_water, max(self.keep, MIN_KEPT)
        of_results = state.scale * sum(r.tokens for step in state.shown for r in step.returns)
        if state.prompt_tokens - of_results > low:
            found = state.evict_turns(kept, reason="budget", summarise=True)
        else:
            enough = state.prompt_tokens - low
            found = state.evict(results - kept, enough=enough, reason="budget", summarise=self.compaction)
        if found is not None and found.tokens < WORTHWHILE * room:
            return None if state.prompt_tokens < PRESSING * room else replace(found, summarise=False)
        return found


def best_batch(keep: int, ratio: float) -> int:
    """Return how many results beyond `keep` should gather before they leave together.

    With a cached token at `ratio` of a fresh one's price, each turn pays for about ratio·(K + B/2) results from the
    cache, and once in B turns for K fresh results, because the prefix broke before them. The sum is least at
    B = √(2K(1−r)/r).
    """
    if not 0 < ratio < 1:
        return max(keep, 1)
    return max(1, round(math.sqrt(2 * max(keep, 1) * (1 - ratio) / ratio)))


def evict_all_but_last(steps: Sequence[Step], evicted_before: int, reason: str = "overflow") -> Eviction | None:
    """Return the eviction of all results but the last, for a prompt that a server refuses as too long."""
    state = ContextState(steps=steps, evicted_before=evicted_before)
    return state.evict(sum(len(step.returns) for step in state.shown) - 1, reason=reason)


def _tokens_of(step: Step) -> int:
    """The estimated tokens of a turn."""
    arguments = "".join(str(call.arguments) for call in step.calls)
    return estimate_tokens(step.text) + estimate_tokens(arguments) + sum(r.tokens or STUB_TOKENS for r in step.returns)


def summary_in(reply: str) -> str:
    """Return the summary in a reply to `COMPACTION_PROMPT`, empty if the reply holds none."""
    text = reply.strip()
    return text if len(text) >= SHORTEST_SUMMARY else ""
