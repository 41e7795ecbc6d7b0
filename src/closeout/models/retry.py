"""Retries: which errors, how often, after how long."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from closeout.errors import (
    CloseoutError,
    ModelError,
    ModelTimeout,
    ModelUnreachable,
    ServerFailed,
    TransientModelError,
)
from closeout.messages import ModelReply, Usage

__all__ = ["MISTAKES", "OnRetry", "Retries", "RetryNote", "RetryPolicy", "as_model_error", "complete_with_retries"]

_NOTHING = Usage()
# What Python raises for a mistake in the code of a client: the next attempt would end in the same way.
MISTAKES = (TypeError, AttributeError, NameError, ImportError, NotImplementedError)
Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class RetryNote:
    """One attempt failed and another follows. Discard the deltas of the failed attempt."""

    attempt: int  # the one that failed, from 1
    attempts: int  # the highest number of attempts
    delay: float  # seconds until the next one
    error: ModelError


OnRetry = Callable[[RetryNote], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff with full jitter (Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015).

    The wait before attempt n+1 is uniform in [0, min(`longest_wait`, `first_wait` * 2**(n-1))] seconds, and never
    shorter than the server asks for. If a server asks for more than `longest_server_wait`, there is no retry.
    """

    retries: int = 5
    unreachable_retries: int = 3  # if nothing listens where nothing has answered yet: most often a wrong address
    failed_retries: int = 2  # if the server answers with something that is not a reply
    first_wait: float = 1.0
    longest_wait: float = 60.0
    longest_server_wait: float = 300.0
    total: float | None = 1800.0  # seconds for all attempts and waits; an attempt is cut short to fit

    def attempts(self, error: ModelError) -> int:
        """Return the maximum number of attempts for an error of this kind."""
        if isinstance(error, ModelUnreachable):
            return 1 + min(self.retries, self.unreachable_retries)
        if isinstance(error, ServerFailed) and error.about_request:
            return 1 + min(self.retries, self.failed_retries)
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


class Retries:
    """The attempts of one request: counts them, and waits between them.

    Args:
        policy: Decides about retries.
        on_retry: Called before each wait.
        sleep: For tests.
        clock: For tests.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        on_retry: OnRetry | None = None,
        *,
        sleep: Sleep = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spent = _NOTHING  # the usage of the failed attempts
        self._policy = policy
        self._on_retry = on_retry
        self._sleep = sleep
        self._clock = clock
        self._end = None if policy.total is None else clock() + policy.total
        self._number = 1

    async def wait(self, error: Exception) -> None:
        """Wait for the next attempt after one that failed.

        An exception that is not one of ours is most often a failed connection in a client that does not classify its
        errors, and is retried as one, unless Python raises it for a mistake in the code.

        Raises:
            ModelError: The error, or ModelUnreachable for an OSError, and no attempt follows. Its `usage` is that of
                all attempts.
            Exception: Any other error that was not classified, and no attempt follows.
        """
        cause = as_model_error(error)
        if cause.retried:
            cause.usage = self.spent + cause.usage if cause.usage else self.spent
            raise error
        self.spent = self.spent + (cause.usage or Usage(requests=1))
        cause.usage = self.spent
        wait = self._policy.wait(self._number, cause, random.random())  # noqa: S311  jitter
        if wait is None or (self._end is not None and self._clock() + wait >= self._end):
            cause.retried = True
            raise cause if isinstance(error, OSError) else error
        if self._on_retry is not None:
            self._on_retry(RetryNote(self._number, self._policy.attempts(cause), wait, cause))
        self._number += 1
        await self._sleep(wait)

    def time_for(self, timeout: float | None) -> float | None:
        """Return the seconds that the next attempt may take, at most `timeout`.

        Raises:
            ModelTimeout: The time for all attempts is used up.
        """
        if self._end is None:
            return timeout
        left = self._end - self._clock()
        if left <= 0:
            raise ModelTimeout("The time for all attempts (RetryPolicy.total) is used up.")
        return left if timeout is None or left < timeout else timeout


def as_model_error(error: Exception) -> ModelError:
    """Return an exception of a client as a ModelError. Those of other libraries are most often failed connections.

    Raises:
        CloseoutError: It is an error of ours, but not of a model.
        Exception: It is a mistake in the client's code.
    """
    if isinstance(error, ModelError):
        return error
    if isinstance(error, (CloseoutError, *MISTAKES)):
        raise error
    found = ModelUnreachable(f"{type(error).__name__}: {error}")
    found.__cause__ = error
    return found


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
        attempt: Sends the request once, within the given seconds.
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
    retries = Retries(policy, on_retry, sleep=sleep, clock=clock)
    while True:
        try:
            return await attempt(retries.time_for(timeout)), retries.spent
        except ModelError as error:
            await retries.wait(error)
