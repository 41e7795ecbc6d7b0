"""A run as an asynchronous iterator over its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic

from closeout.answers.reading import Value
from closeout.errors import UsageError
from closeout.journal.events import Event, RunEnded
from closeout.journal.subscribers import Callback, Listener, Progress, RunInfo
from closeout.run.result import RunResult
from closeout.run.sse_stream import ServerSentEvents, StreamForm

__all__ = ["RunStream"]


class RunStream(Generic[Value]):
    """A run as it happens: `async for event in stream` yields journal events and `Progress`, then `result` is set.

    `send` sends a message to the agent while it runs.
    """

    def __init__(self, start: Callable[[Listener], Any]) -> None:
        self._start: Callable[[Listener], Any] | None = start
        self._run: RunInfo | None = None
        self._result: RunResult[Value] | None = None

    @property
    def run_id(self) -> str:
        """The id of the run; empty until it has begun."""
        return "" if self._run is None else self._run.run_id

    @property
    def result(self) -> RunResult[Value]:
        """The result of the run.

        Raises:
            UsageError: The run has not ended yet.
        """
        if self._result is None:
            raise UsageError("The run has not ended yet: iterate over the stream first.")
        return self._result

    def _begin(self, run: RunInfo) -> None:
        self._run = run

    async def send(self, text: str, *, interrupt: bool = False, to: str = "", by: str = "") -> None:
        """Send a message to the running agent. Its next request has the message.

        Args:
            text: The message.
            interrupt: Cancel the reply that the model is writing. A tool that is running is not cancelled.
            to: The name of a sub-agent that is at work. Defaults to the main agent.
            by: Who sends it, for the record.

        Raises:
            UsageError: The run has not begun.
            MessageRefused: The run has ended or is giving its final answer. The error names the next step.
            JournalError: The message cannot be written.
        """
        if self._run is None or self._run.mailbox is None:
            raise UsageError("The run has not begun yet: iterate over the stream, and send meanwhile.")
        await asyncio.to_thread(self._run.mailbox.send, text, to=to, by=by, interrupt=interrupt)

    def sse(self, form: StreamForm = "ai-sdk", *, file_url: Callable[[str], str] | None = None) -> ServerSentEvents:
        """Return the body of a web response that streams the run, and the `headers` that it needs.

        ```python
        body = agent.stream(question).sse()
        return StreamingResponse(body, headers=body.headers)  # FastAPI and Starlette
        return StreamingHttpResponse(body, headers=body.headers)  # Django
        return web.Response(body=body, headers=body.headers)  # aiohttp
        ```

        If the client goes away, the run is cancelled.

        Args:
            form: What the page reads: the UI message stream of the AI SDK (`useChat`), or the events of AG-UI.
            file_url: Returns the address of a file of the run by its name. Without it the page is sent no files.
        """
        return ServerSentEvents(self, lambda: self._run or RunInfo(""), form, file_url=file_url)

    async def __aiter__(self) -> AsyncIterator[Event | Progress]:
        start, self._start = self._start, None
        if start is None:
            raise UsageError("A stream can be iterated only once. Call agent.stream(…) again for another run.")
        queue: asyncio.Queue[Event | Progress | None] = asyncio.Queue()
        task = asyncio.ensure_future(start(_Listening(self._begin, queue.put_nowait)))
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                if isinstance(event, RunEnded):  # who leaves the stream here has a result
                    await asyncio.wait([task])
                    if not task.cancelled() and task.exception() is None:
                        self._result = task.result()
                yield event
            self._result = await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


class _Listening:
    """The listener of a stream: it learns which run it is of."""

    def __init__(self, begin: Callable[[RunInfo], object], callback: Callback) -> None:
        self._begin = begin
        self._callback = callback

    def for_run(self, run: RunInfo, /) -> Callback:
        self._begin(run)
        return self._callback
