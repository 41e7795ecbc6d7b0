"""Ctrl-C and SIGTERM while an agent runs: the first one cancels the run, a second one ends the process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from closeout.stray_output import stray_output_to_stderr

if TYPE_CHECKING:
    from closeout.cli.display import Display

__all__ = ["Signals", "Stopped", "exit_now_if_blocked"]

T = TypeVar("T")


class Stopped(Exception):
    """A signal ended the run. `code` is the exit code: 128 + the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.number = number
        self.code = 128 + number


class Signals:
    """Let the first Ctrl-C or SIGTERM cancel the work, and a second one end the process at once.

    The journal is safe in both cases. Use it as a context manager in the main thread.

    Args:
        display: Says that the work is being cancelled, and is closed before the process ends at once.
        last: Called just before the process ends without waiting for a tool or a model.
    """

    def __init__(self, display: Display | None = None, last: Callable[[], object] | None = None) -> None:
        self._display = display
        self._last = last
        self._number = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and background jobs ignore it
                self._previous[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def run(self, work: Awaitable[T], runner: asyncio.Runner | None = None) -> T:
        """Return what the work returns, raise what it raises, or raise Stopped if a signal ended it.

        Args:
            work: What to wait for.
            runner: The runner whose event loop it uses; without one it gets a loop of its own.
        """
        try:
            with stray_output_to_stderr():
                return asyncio.run(self._watched(work)) if runner is None else runner.run(self._watched(work))
        except asyncio.CancelledError:
            raise Stopped(self._number or signal.SIGINT) from None

    async def _watched(self, work: Awaitable[T]) -> T:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        with _woken_by_signals(self._loop):
            if self._number:
                self._cancel()
            return await work

    def _received(self, number: int, _: FrameType | None) -> None:
        if self._number:
            if self._display is not None:
                self._display.close()
            if self._last is not None:
                self._last()
            os._exit(128 + number)
        self._number = number
        if self._display is not None:
            self._display.stopping()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)  # wakes the loop

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let every signal wake the loop.

    Python runs a signal's handler only between two steps of the main thread. A signal that arrives just before the
    loop waits for the network, or in another thread, would be handled only when the model sends its next byte.
    """
    if sys.platform == "win32":  # asyncio does the same there, and its loop watches no sockets
        yield
        return
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        loop.add_reader(reader, reader.recv, 4096)
        previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous)
            loop.remove_reader(reader)


def exit_now_if_blocked(code: int) -> int:
    """Return the exit code, or exit with it if a thread (a model being loaded) would block the process's exit."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
