"""Server-sent events: write them as they come, and keep the connection alive in between."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from contextlib import aclosing

from aiohttp import web

from closeout.run.sse_stream import SSE_HEADERS, ServerSentEvents, event_bytes, kept_alive

__all__ = ["event_bytes", "send_events"]


async def send_events(
    request: web.Request, events: AsyncIterable[bytes], headers: Mapping[str, str]
) -> web.StreamResponse:
    """Send events until the last one. Comments keep the connection alive in between.

    Raises:
        ConnectionError: The client is gone.
    """
    response = web.StreamResponse(headers={**SSE_HEADERS, **headers})
    await response.prepare(request)
    kept = aiter(events) if isinstance(events, ServerSentEvents) else kept_alive(events, _failed)
    async with aclosing(kept) as written:
        async for event in written:
            await response.write(event)
    await response.write_eof()
    return response


def _failed(message: str) -> bytes:
    return event_bytes({"error": {"message": message, "code": None}}, name="error")
