"""The dependencies of a served run, made by a function of the request that began it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from aiohttp import web

from closeout.errors import UsageError
from closeout.server.safety import client_of

__all__ = ["ClientRequest", "RequestDeps"]

HEADERS_NOTE, CLIENT_NOTE = "headers", "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """The request that began a served run, also when the run is resumed after a restart.

    Attributes:
        run_id: The run.
        user: The user that the request names; without one, its client. Anybody with a key may name any user.
        client: A short name of the API key that the request was sent with; empty if the server has no keys.
        headers: Those headers of the request that the server was told to keep, names in lower case.
    """

    run_id: str
    user: str = ""
    client: str = ""
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class RequestDeps:
    """Makes the dependencies of served runs.

    Args:
        make: A function of a `ClientRequest` that returns the dependencies, `def` or `async def`. One that yields them
            continues after its `yield` when the run is over or waits.
        headers: The headers that it reads. Only these are recorded with a run.

    Raises:
        UsageError: `make` is not a function, or headers are named and nothing reads them.
    """

    def __init__(self, make: Callable[[ClientRequest], Any] | None, headers: Sequence[str] = ()) -> None:
        if make is not None and not callable(make):
            raise UsageError(f"The dependencies must be made by a function of a ClientRequest, got {make!r:.80}.")
        if headers and make is None:
            raise UsageError("Headers are kept for the function that makes the dependencies. Name it with --deps.")
        self._headers = tuple(name.strip().lower() for name in headers)
        if not all(self._headers):
            raise UsageError("The name of a header to keep is empty.")
        self._make = make

    def __bool__(self) -> bool:
        return self._make is not None

    def notes(self, request: web.Request) -> dict[str, Any]:
        """Return what a run keeps of its request, JSON values."""
        if not self:
            return {}
        kept = {name: request.headers[name] for name in self._headers if name in request.headers}
        return {CLIENT_NOTE: client_of(request), HEADERS_NOTE: kept}

    async def entered(self, stack: AsyncExitStack, run_id: str, notes: Mapping[str, Any]) -> Any:
        """Return the dependencies of a run, None if the server makes none. Leaving the stack ends them.

        Args:
            stack: What is left when the run is over.
            run_id: The run.
            notes: Those that were recorded with it.
        """
        if self._make is None:
            return None
        request = ClientRequest(
            run_id=run_id,
            user=str(notes.get("user") or ""),
            client=str(notes.get(CLIENT_NOTE) or ""),
            headers=MappingProxyType(dict(notes.get(HEADERS_NOTE) or {})),
        )
        made = self._make(request)
        if inspect.isasyncgen(made):
            return await stack.enter_async_context(asynccontextmanager(lambda: made)())
        if inspect.isgenerator(made):
            generator: Iterator[Any] = made
            return stack.enter_context(contextmanager(lambda: generator)())
        return await made if inspect.isawaitable(made) else made
