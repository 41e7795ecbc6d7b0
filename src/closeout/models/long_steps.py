"""A pause after a step that worked on a large message, so that most of the event loop's time is left to others."""

from __future__ import annotations

import asyncio
import time

__all__ = ["pause_after"]

LARGE = 2**20  # bytes or characters
PAUSES = 3  # The pause in lengths of the step: others get three quarters of the loop's time.


async def pause_after(began: float, size: int) -> None:
    """Sleep for three times as long as a step took, if it worked on a large message.

    `began` is the `time.thread_time()` at which the step began; nothing was awaited since.
    """
    if size > LARGE:
        await asyncio.sleep(PAUSES * (time.thread_time() - began))
