"""Ctrl-C and kill: the first ends the work cleanly, a second ends the process at once. What is journaled is safe."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, Self, TypeVar

__all__ = ["Interrupts", "Stopped"]

T = TypeVar("T")


class Stopped(Exception):
    """The work was ended by a signal. `code` is the exit code: 128 + the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.code = 128 + number


class Interrupts:
    """`with Interrupts(…) as interrupts: interrupts.run(coroutine)` in the main thread.

    `first()` is called when the work is asked to end, `second()` just before the process is ended without waiting any
    longer for a tool or a model that does not let go.
    """

    def __init__(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        self._first = first
        self._second = second
        self._number = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and background jobs stay deaf
                self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, work: Awaitable[T]) -> T:
        """What the work returns or raises; Stopped if a signal ended it."""
        try:
            return asyncio.run(self._watched(work))
        except asyncio.CancelledError:
            raise Stopped(self._number or signal.SIGINT) from None

    async def _watched(self, work: Awaitable[T]) -> T:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._number:
            self._cancel()
        return await work

    @staticmethod
    def leave(code: int) -> int:
        """The exit code; does not come back where a thread would keep the process waiting (a model being loaded)."""
        if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def _heard(self, number: int, _: FrameType | None) -> None:
        if self._number:
            self._second()
            os._exit(128 + number)
        self._number = number
        self._first()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)  # wakes the loop, wherever it waits

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
