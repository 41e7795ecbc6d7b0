"""The events of a run as server-sent events, in the form that a page reads, until the run or the page has gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

from closeout.codec import encode_json
from closeout.errors import CloseoutError, UsageError
from closeout.journal.events import Event
from closeout.journal.subscribers import Progress, RunInfo
from closeout.run.ag_ui import AgUiEvents
from closeout.run.page_stream import Chunk, PageStream

__all__ = [
    "INTERNAL",
    "KEEP_ALIVE_SECONDS",
    "SSE_HEADERS",
    "ServerSentEvents",
    "StreamForm",
    "event_bytes",
    "kept_alive",
]

log = logging.getLogger("closeout.server")

KEEP_ALIVE_SECONDS = 15.0
INTERNAL = "This is a bug in the server. Its log says more."
SSE_HEADERS: Mapping[str, str] = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
StreamForm: TypeAlias = Literal["ai-sdk", "ag-ui"]
FAILED: Mapping[StreamForm, Callable[[str], Mapping[str, Any]]] = {
    "ai-sdk": lambda message: {"type": "error", "errorText": message},
    "ag-ui": lambda message: {"type": "RUN_ERROR", "message": message},
}


def event_bytes(data: Mapping[str, Any] | bytes, *, name: str = "", number: int | None = None) -> bytes:
    """Return one event: its name and number, if any, and its data as JSON."""
    body = data if isinstance(data, bytes) else encode_json(dict(data))
    head = f"event: {name}\n" if name else ""
    head += "" if number is None else f"id: {number}\n"
    return b"%bdata: %b\n\n" % (head.encode(), body)


async def kept_alive(events: AsyncIterable[bytes], failed: Callable[[str], bytes]) -> AsyncGenerator[bytes]:
    """Yield events until the last one, and comments in between that keep the connection alive.

    An exception becomes the event that `failed` returns for a message: the response has begun, so nothing else can say
    what happened. Leaving the iteration leaves the events too.
    """
    source = aiter(events)
    following: asyncio.Future[bytes] | None = None
    try:
        while True:
            following = asyncio.ensure_future(anext(source))
            while not (await asyncio.wait([following], timeout=KEEP_ALIVE_SECONDS))[0]:
                yield b": keep-alive\n\n"
            yield following.result()
    except StopAsyncIteration:
        return
    except (ConnectionError, asyncio.CancelledError):
        raise
    except CloseoutError as error:
        yield failed(str(error))
    except Exception:
        log.exception("Error while streaming")
        yield failed(INTERNAL)
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await _leave(source)


async def _leave(source: AsyncIterator[Any]) -> None:
    if isinstance(source, AsyncGenerator):
        await source.aclose()


class ServerSentEvents:
    """The body of a response that streams a run: an asynchronous iterable of bytes, and the `headers` that it needs.

    It ends with the run. An error is an event, comments keep the connection alive, and leaving it, as web servers do
    when the client has gone, leaves the events.

    Args:
        events: The events of a run.
        run: Returns the run, once there is an event.
        form: What the page reads.
        skip: The number of events at the beginning that the page has had already.
        file_url: As for `PageStream`.
        names: The `thread_id` and `run_id` of a page that speaks AG-UI.
    """

    def __init__(
        self,
        events: AsyncIterable[Event | Progress],
        run: Callable[[], RunInfo],
        form: StreamForm,
        *,
        skip: int = 0,
        file_url: Callable[[str], str] | None = None,
        names: tuple[str, str] = ("", ""),
    ) -> None:
        if form not in FAILED:
            raise UsageError(f'form must be "ai-sdk" or "ag-ui", got {form!r}.')
        self.headers = {**SSE_HEADERS, **({"x-vercel-ai-ui-message-stream": "v1"} if form == "ai-sdk" else {})}
        self._events = events
        self._run = run
        self._form: StreamForm = form
        self._skip = skip
        self._file_url = file_url
        self._names = names

    def __aiter__(self) -> AsyncGenerator[bytes]:
        return kept_alive(self._written(), lambda message: event_bytes(FAILED[self._form](message)))

    async def _written(self) -> AsyncIterator[bytes]:
        source, page, first = aiter(self._events), None, list[Chunk]()
        try:
            async for event in source:
                if page is None:
                    stream = PageStream(self._run().run_id, self._file_url)
                    ag_ui = AgUiEvents(stream, *self._names) if self._form == "ag-ui" else None
                    page = stream, iter if ag_ui is None else ag_ui.translate
                    first = [] if ag_ui is None else [ag_ui.start()]
                made, skipped = [*page[1](page[0].feed(event))], self._skip > 0
                self._skip -= skipped
                if made and not skipped:
                    yield _bytes([*first, *made])
                    first = []
        finally:
            await _leave(source)
        if page is not None:
            yield _bytes([*first, *page[1](page[0].finish())]) + (
                b"data: [DONE]\n\n" if self._form == "ai-sdk" else b""
            )


def _bytes(events: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(map(event_bytes, events))
