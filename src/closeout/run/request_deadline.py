"""Ends a request when its time is over, or when a message of the user's interrupts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from closeout.errors import JournalError, ModelError
from closeout.journal.inbox import Inbox

__all__ = ["ReplyInterrupted", "RequestDeadline"]

WATCH_SECONDS = 0.2  # Seconds between two looks for a message that interrupts a reply.


class ReplyInterrupted(ModelError):
    """A message of the user's has cancelled the request: `REPLY_INTERRUPTED` as the kind of a ModelFailed."""


class RequestDeadline:
    """Ends a request when its time is over, or when a message of the user's interrupts it. An async context manager.

    `interrupted` makes the error to raise for a message; None lets the request end.
    """

    def __init__(
        self, seconds: float | None, inbox: Inbox, agent: str, interrupted: Callable[[], ReplyInterrupted] | None
    ) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._inbox = inbox
        self._agent = agent
        self._interrupted = interrupted
        self._has_message = False

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        if self._interrupted is not None:
            self._inbox.watch(self._look, WATCH_SECONDS)

    def _look(self) -> None:
        with suppress(JournalError):  # the run itself meets it at its next event
            # The request may be ending already, which may take a while.
            if not self._timeout.expired() and self._inbox.is_interrupted(self._agent):
                self._has_message = True
                self._timeout.reschedule(asyncio.get_running_loop().time())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._interrupted is not None:
            self._inbox.unwatch(self._look)
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._has_message and self._interrupted is not None:
                raise self._interrupted() from None
            raise
