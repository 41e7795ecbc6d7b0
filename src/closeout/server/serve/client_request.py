"""The parts of a request that a served run records, for its dependencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from closeout.errors import UsageError
from closeout.fleet.made_deps import CLIENT_NOTE, HEADERS_NOTE, ClientRequest, DepsMaker
from closeout.server.safety import client_of

__all__ = ["RequestDeps"]


class RequestDeps(DepsMaker):
    """Makes the dependencies of served runs.

    Args:
        make: As for `DepsMaker`.
        headers: The headers that it reads. Only these are recorded with a run.

    Raises:
        UsageError: `make` is not a function, or headers are named and nothing reads them.
    """

    def __init__(self, make: Callable[[ClientRequest], Any] | None, headers: Sequence[str] = ()) -> None:
        super().__init__(make)
        if headers and make is None:
            raise UsageError("Headers are kept for the function that makes the dependencies. Name it with --deps.")
        self._headers = tuple(name.strip().lower() for name in headers)
        if not all(self._headers):
            raise UsageError("The name of a header to keep is empty.")

    def notes(self, request: web.Request) -> dict[str, Any]:
        """Return the parts of a request that its run records, as JSON values."""
        notes: dict[str, Any] = {CLIENT_NOTE: client_of(request)}
        if self:
            notes[HEADERS_NOTE] = {name: request.headers[name] for name in self._headers if name in request.headers}
        return notes
