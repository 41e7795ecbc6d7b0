"""A run as an asynchronous iterator over its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic

from closeout.answers.reading import Value
from closeout.errors import UsageError
from closeout.journal.events import Event
from closeout.journal.subscribers import Listener, Progress
from closeout.run.result import RunResult

__all__ = ["RunStream"]


class RunStream(Generic[Value]):
    """A run as it happens: `async for event in stream` yields journal events and `Progress`, then `result` is set."""

    def __init__(self, start: Callable[[Listener], Any]) -> None:
        self._start: Callable[[Listener], Any] | None = start
        self._result: RunResult[Value] | None = None

    @property
    def result(self) -> RunResult[Value]:
        """The result of the run.

        Raises:
            UsageError: The run has not ended yet.
        """
        if self._result is None:
            raise UsageError("The run has not ended yet: iterate over the stream first.")
        return self._result

    async def __aiter__(self) -> AsyncIterator[Event | Progress]:
        start, self._start = self._start, None
        if start is None:
            raise UsageError("A stream can be iterated only once. Call agent.stream(…) again for another run.")
        queue: asyncio.Queue[Event | Progress | None] = asyncio.Queue()
        task = asyncio.ensure_future(start(queue.put_nowait))
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            self._result = await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
