"""Asking again: which failures, how often, after how long. What a failure is: `failures`; the wire: `transport`."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from closeout.errors import ModelError, ModelTimeout, ModelUnreachable, TransientModelError
from closeout.llm.base import OnRetry, RetryNote
from closeout.messages import ModelReply, Usage

__all__ = ["RetryPolicy", "complete_with_retries"]

_NOTHING = Usage()
Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff with full jitter (Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015).

    The wait before attempt n+1 is uniform in [0, min(`longest_wait`, `first_wait` * 2**(n-1))] seconds, but never
    shorter than the server asks for; a server that asks for more than `longest_server_wait` is not waited for.
    """

    retries: int = 5
    unreachable_retries: int = 3  # where nothing listens: most often a wrong address
    first_wait: float = 1.0
    longest_wait: float = 60.0
    longest_server_wait: float = 300.0
    total: float | None = 1800.0  # seconds for all attempts and waits; an attempt is cut short to fit

    def attempts(self, error: ModelError) -> int:
        """How many attempts there are at most for an error of this kind."""
        if isinstance(error, ModelUnreachable):
            return 1 + min(self.retries, self.unreachable_retries)
        return 1 + self.retries

    def wait(self, attempt: int, error: ModelError, draw: float) -> float | None:
        """Seconds until the next attempt after the `attempt`th (from 1) failed; None: give up. `draw` in [0, 1)."""
        if not isinstance(error, TransientModelError) or attempt >= self.attempts(error):
            return None
        backoff = draw * min(self.longest_wait, self.first_wait * 2.0 ** min(attempt - 1, 32))
        asked = error.retry_after
        if asked is None:
            return backoff
        if asked > self.longest_server_wait:
            return None
        # A little more than asked for, so that clients who were told the same do not come back together.
        return asked + min(backoff, self.first_wait)


async def complete_with_retries(
    attempt: Callable[[float | None], Awaitable[ModelReply]],
    *,
    policy: RetryPolicy,
    timeout: float | None,
    on_retry: OnRetry | None = None,
    sleep: Sleep = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[ModelReply, Usage]:
    """The first reply that `attempt(timeout)` brings, and what the failed attempts before it cost.

    Raises the last ModelError, its `usage` the cost of all attempts. `sleep` and `clock` are for tests.
    """
    end = None if policy.total is None else clock() + policy.total
    spent = _NOTHING
    number = 1
    while True:
        try:
            return await attempt(_shorter(timeout, end, clock)), spent
        except ModelError as error:
            spent = spent + (error.usage or Usage(requests=1))
            error.usage = spent
            wait = policy.wait(number, error, random.random())  # noqa: S311  jitter
            if wait is None or (end is not None and clock() + wait >= end):
                raise
            if on_retry is not None:
                on_retry(RetryNote(number, policy.attempts(error), wait, error))
        await sleep(wait)
        number += 1


def _shorter(timeout: float | None, end: float | None, clock: Callable[[], float]) -> float | None:
    if end is None:
        return timeout
    left = end - clock()
    if left <= 0:
        raise ModelTimeout("The time for all attempts together is over.")
    return left if timeout is None or left < timeout else timeout
