"""Server-sent events: write them as they come, and keep the connection alive in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Mapping
from contextlib import suppress
from typing import Any

from aiohttp import web

from closeout.codec import encode_json
from closeout.errors import CloseoutError
from closeout.server.api_errors import INTERNAL, log

__all__ = ["event_bytes", "send_events"]

KEEP_ALIVE_SECONDS = 15.0


def event_bytes(data: Mapping[str, Any] | bytes, *, name: str = "", number: int | None = None) -> bytes:
    """Return one event: its name and number, if any, and its data as JSON."""
    body = data if isinstance(data, bytes) else encode_json(dict(data))
    head = f"event: {name}\n" if name else ""
    head += "" if number is None else f"id: {number}\n"
    return b"%bdata: %b\n\n" % (head.encode(), body)


async def send_events(
    request: web.Request, events: AsyncIterable[bytes], headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """Send events until the last one. Comments keep the connection alive in between.

    Raises:
        ConnectionError: The client is gone.
    """
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
            **(headers or {}),
        }
    )
    await response.prepare(request)
    keep_alive = asyncio.create_task(_keep_alive(response))
    try:
        async for event in events:
            await response.write(event)
    except ConnectionError:
        raise
    except Exception as error:  # the response has begun: only an event can still say what happened
        if not isinstance(error, CloseoutError):
            log.exception("Error while streaming %s", request.path)
        message = str(error) if isinstance(error, CloseoutError) else INTERNAL
        await response.write(event_bytes({"error": {"message": message, "code": None}}, name="error"))
    finally:
        keep_alive.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            await keep_alive
    await response.write_eof()
    return response


async def _keep_alive(response: web.StreamResponse) -> None:
    while True:
        await asyncio.sleep(KEEP_ALIVE_SECONDS)
        await response.write(b": keep-alive\n\n")
