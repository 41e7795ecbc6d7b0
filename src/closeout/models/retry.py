"""Retries: which errors, how often, after how long."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from closeout.errors import ModelError, ModelTimeout, ModelUnreachable, TransientModelError
from closeout.messages import ModelReply, Usage
from closeout.models.base import OnRetry, RetryNote

__all__ = ["RetryPolicy", "complete_with_retries"]

_NOTHING = Usage()
Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff with full jitter (Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015).

    The wait before attempt n+1 is uniform in [0, min(`longest_wait`, `first_wait` * 2**(n-1))] seconds, and never
    shorter than the server asks for. If a server asks for more than `longest_server_wait`, there is no retry.
    """

    retries: int = 5
    unreachable_retries: int = 3  # if nothing listens: most often a wrong address
    first_wait: float = 1.0
    longest_wait: float = 60.0
    longest_server_wait: float = 300.0
    total: float | None = 1800.0  # seconds for all attempts and waits; an attempt is cut short to fit

    def attempts(self, error: ModelError) -> int:
        """Return the maximum number of attempts for an error of this kind."""
        if isinstance(error, ModelUnreachable):
            return 1 + min(self.retries, self.unreachable_retries)
        return 1 + self.retries

    def wait(self, attempt: int, error: ModelError, draw: float) -> float | None:
        """Return the seconds from attempt number `attempt` to the next; None to give up. `draw` is in [0, 1)."""
        if not isinstance(error, TransientModelError) or attempt >= self.attempts(error):
            return None
        backoff = draw * min(self.longest_wait, self.first_wait * 2.0 ** min(attempt - 1, 32))
        asked = error.retry_after
        if asked is None:
            return backoff
        if asked > self.longest_server_wait:
            return None
        # A little more than asked for, so that clients with the same wait do not retry together.
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
    """Call `attempt(timeout)` until it returns a reply.

    Args:
        attempt: Sends the request once, within so many seconds.
        policy: Decides about retries.
        timeout: Seconds for one attempt.
        on_retry: Called before each wait.
        sleep: For tests.
        clock: For tests.

    Returns:
        The reply, and the usage of the failed attempts before it.

    Raises:
        ModelError: The last attempt's error. Its `usage` is that of all attempts.
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
        raise ModelTimeout("The time for all attempts (RetryPolicy.total) is used up.")
    return left if timeout is None or left < timeout else timeout
