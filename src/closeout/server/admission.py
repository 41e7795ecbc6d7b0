"""Limit how many requests are served and queued."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from closeout.errors import CloseoutError

__all__ = ["Admission", "Busy"]


class Busy(CloseoutError):
    """The server executes and queues as much as it allows. Try again later."""


class Admission:
    """Limits how many requests are served at the same time.

    Args:
        active: How many are served.
        queued: How many more may wait.
    """

    def __init__(self, active: int, queued: int) -> None:
        self._slots = asyncio.Semaphore(active)
        self._limit = active + queued
        self.present = 0  # requests that are served or wait

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Wait for a slot, and hold it.

        Raises:
            Busy: Too many requests wait.
        """
        if self.present >= self._limit:
            raise Busy(f"{self.present} requests are served or queued, which is the limit. Try again later.")
        self.present += 1
        try:
            async with self._slots:
                yield
        finally:
            self.present -= 1
