"""Limit an evaluation's requests in flight: by a fixed number, or by one that adapts to the endpoint."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from closeout.errors import BudgetReached, RateLimited, ServerFailed, UsageError
from closeout.journal.events import ModelFailed, ModelReplied

__all__ = ["AdaptiveLimit", "SweepGate"]

FIRST_LIMIT = 8
HIGHEST_LIMIT = 512
GAIN = 1.05  # a higher limit is kept if the throughput rises at least by this factor
RISE = 0.1  # share by which the limit is raised once doubling no longer pays
# Windows that pass before a limit that did not pay is tried again.
WINDOWS_AT_REST = 8
_OVERLOADED = (RateLimited.__name__, ServerFailed.__name__)


class AdaptiveLimit:
    """A limit of requests in flight that rises while throughput rises with it, and halves when the endpoint refuses.

    Throughput, in output tokens a second, is measured over windows of at least as many replies as the limit. First the
    limit doubles from window to window. When that no longer pays, it returns to the last that did, and a tenth more is
    tried now and then. A refusal (429, 5xx) halves it at once, but requests that were sent before the last halving
    count as one refusal with it.

    Args:
        first: The initial limit.
        highest: The limit is never raised above this.
        clock: For tests.
    """

    def __init__(
        self, first: int = FIRST_LIMIT, highest: int = HIGHEST_LIMIT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = min(first, highest)
        self._highest = highest
        self._clock = clock
        self._doubling = True
        self._settled = 0  # the last limit that paid; 0: none yet
        self._best = 0.0  # throughput at that limit
        self._resting = 0
        self._halved_at = -1.0
        self._begin_window()

    def _begin_window(self) -> None:
        self._since = self._clock()
        self._replies = 0
        self._tokens = 0
        self._was_full = False

    def replied(self, tokens: int, *, in_flight: int) -> None:
        """Note a reply with this many output tokens. `in_flight` counts the requests then, this one included."""
        self._replies += 1
        self._tokens += max(tokens, 1)
        self._was_full |= in_flight >= self.limit
        if self._replies >= max(self.limit, 4):
            self._end_window()

    def refused(self, sent_at: float) -> None:
        """Note that the endpoint refused a request that was sent at this time of the clock."""
        if sent_at <= self._halved_at:
            return
        self.limit = max(self.limit // 2, 1)
        self._halved_at = self._clock()
        self._doubling, self._settled, self._best, self._resting = False, self.limit, 0.0, WINDOWS_AT_REST
        self._begin_window()

    def _end_window(self) -> None:
        rate = self._tokens / max(self._clock() - self._since, 1e-9)
        full = self._was_full
        self._begin_window()
        if not full:
            return  # there was not enough work to tell
        if self._resting:
            self._resting -= 1
            self._best = max(self._best, rate)
            if not self._resting:
                self._raise()
        elif rate > self._best * GAIN:
            self._settled, self._best = self.limit, rate
            self._raise()
        else:
            self.limit = self._settled or self.limit
            self._doubling, self._resting = False, WINDOWS_AT_REST

    def _raise(self) -> None:
        step = self.limit if self._doubling else max(1, int(self.limit * RISE))
        self.limit = min(self.limit + step, self._highest)


class SweepGate:
    """Admits the requests of an evaluation: up to the limit at once, none after it is closed.

    Args:
        limit: The number of requests in flight; it may change.
        spend: Adds cost and tokens to the evaluation's, and returns the totals; called before a request is admitted.
            None if nothing limits them.
        max_cost: US dollars that the evaluation may spend.
        max_tokens: Tokens that it may spend.
    """

    def __init__(
        self,
        limit: AdaptiveLimit | int,
        *,
        spend: Callable[[float, int], asyncio.Future[tuple[float, int]]] | None = None,
        max_cost: float | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self._adaptive = limit if isinstance(limit, AdaptiveLimit) else None
        self._fixed = 0 if isinstance(limit, AdaptiveLimit) else limit
        self._override: int | None = None
        self._spend = spend
        self._max_cost = max_cost
        self._max_tokens = max_tokens
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._cost, self._tokens = 0.0, 0  # not passed on yet
        self._latency = 1.0  # seconds of a request, a moving average
        self.in_flight = 0
        self.closed = ""  # why no more requests are admitted
        self.failure: UsageError | None = None

    @property
    def limit(self) -> int:
        """The number of requests that may be in flight."""
        return self._override or (self._fixed if self._adaptive is None else self._adaptive.limit)

    def set_limit(self, limit: int | None) -> None:
        """Set another limit; None restores the initial one."""
        self._override = limit
        self._wake()

    @property
    def blocked(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    def close(self, reason: str) -> None:
        """Admit no more requests. Those in flight end."""
        self.closed = self.closed or reason

    def take_spent(self) -> tuple[float, int]:
        """Return the cost and the tokens not yet passed to `spend`."""
        spent = self._cost, self._tokens
        self._cost, self._tokens = 0.0, 0
        return spent

    # -------------------------------------------------------------------------------------------- RequestGate

    async def enter(self) -> None:
        await self._slot()
        while await self._exhausted():
            self._give_back()
            await self._slot()

    def leave(self, outcome: ModelReplied | ModelFailed | None) -> None:
        in_flight = self.in_flight
        self._give_back()
        if outcome is None:
            return
        usage = outcome.usage
        tokens = usage.get("output_tokens", 0)
        self._cost += usage.get("cost_usd") or 0.0
        self._tokens += usage.get("input_tokens", 0) + tokens
        if self._spend is not None:
            self._spend(*self.take_spent())
            if self._max_cost is not None and usage.get("cost_usd") is None and usage.get("input_tokens"):
                self._refuse_unpriced(outcome)
        if self._adaptive is None:
            return
        seconds = outcome.ms / 1000
        if isinstance(outcome, ModelReplied):
            self._latency += 0.1 * (seconds - self._latency)
            self._adaptive.replied(tokens, in_flight=in_flight)
            self._wake()
        elif outcome.kind in _OVERLOADED:
            self._adaptive.refused(time.monotonic() - seconds)

    def retried(self, error: Exception) -> None:
        if self._adaptive is not None and type(error).__name__ in _OVERLOADED:
            self._adaptive.refused(time.monotonic() - self._latency)

    async def over_budget(self, error: BudgetReached) -> None:
        self.close(f"a budget: {error}")
        await self._slot()  # the trial continues when there is room, or is cancelled

    # -------------------------------------------------------------------------------------------- parts

    async def _slot(self) -> None:
        if not self.closed and self.in_flight < self.limit and not self._waiting:
            self.in_flight += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place  # the one that wakes it has counted it as in flight
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._give_back()
            else:
                self._waiting.remove(place)
            raise

    def _give_back(self) -> None:
        self.in_flight -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and not self.closed and self.in_flight < self.limit:
            self._waiting.popleft().set_result(None)
            self.in_flight += 1

    async def _exhausted(self) -> bool:
        if self._spend is None:
            return False
        try:
            cost, tokens = await self._spend(0.0, 0)
        except BaseException:
            self._give_back()
            raise
        if self._max_cost is not None and cost >= self._max_cost:
            self.close("max_cost")
        if self._max_tokens is not None and tokens >= self._max_tokens:
            self.close("max_tokens")
        return bool(self.closed)

    def _refuse_unpriced(self, outcome: ModelReplied | ModelFailed) -> None:
        model = outcome.model if isinstance(outcome, ModelReplied) else "the model"
        self.failure = UsageError(
            f"max_cost cannot be kept: the price of {model} is unknown. Set max_tokens instead, or state the price as "
            "llm.prices={MODEL: [INPUT, OUTPUT]}, in dollars per million tokens."
        )
        self.close("unpriced")
