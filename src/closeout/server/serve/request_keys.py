"""Requests that a client may repeat: the same `Idempotency-Key` finds the run that it began."""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from aiohttp import web

from closeout.errors import UsageError
from closeout.fleet.many import check_key
from closeout.server.api_errors import ApiError
from closeout.server.serve.client_request import RequestDeps

__all__ = ["KEY_HEADER", "REQUEST_NOTE", "RequestKey", "request_key"]

KEY_HEADER = "Idempotency-Key"
REQUEST_NOTE = "request"  # the key of a server's notes with the digest of a request that may be repeated


class RequestKey(NamedTuple):
    """The key of a request: the run that it names, and the digest by which the same request is known again."""

    run_id: str
    request: str

    def check_same(self, noted: object) -> None:
        """Raise ApiError unless a note is the one of this request."""
        if noted != self.request:
            text = f"This {KEY_HEADER} was sent with another request. Send a new key with a new request."
            raise ApiError(422, text, code="idempotency_key_reused")


async def request_key(request: web.Request, agent: str, deps: RequestDeps) -> RequestKey | None:
    """Return the key of a request, None if it has none.

    Args:
        request: A request that begins a run.
        agent: The name of the agent: agents that share a home have keys of their own.
        deps: Its dependencies: clients have keys of their own, and so have the headers that make dependencies.

    Raises:
        ApiError: The key is not a printable text of a sensible length.
    """
    key = request.headers.get(KEY_HEADER)
    if key is None:
        return None
    try:
        check_key(KEY_HEADER, key)
    except UsageError as error:
        raise ApiError(400, str(error)) from None
    notes = json.dumps(deps.notes(request), sort_keys=True)
    run_id = f"once-{_digest(agent, notes, key)[:32]}"
    body = hashlib.sha256(await request.read()).hexdigest()
    return RequestKey(run_id, _digest(run_id, request.path, body))


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
