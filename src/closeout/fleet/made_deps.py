"""The dependencies of runs that a server or a worker executes, made by a function of the request for the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from closeout.errors import UsageError
from closeout.overrides import returned

if TYPE_CHECKING:
    from closeout.run.plan import AgentPlan

__all__ = ["CLIENT_NOTE", "HEADERS_NOTE", "ClientRequest", "DepsMaker"]

HEADERS_NOTE, CLIENT_NOTE = "headers", "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """The request that began a run, sent to a server or made by `submit`. A resumed run has the same one.

    Attributes:
        run_id: The run.
        user: The user that the request or `submit` names; without one, the client. Clients may name any user.
        client: A short name of the API key that the request was sent with; empty if the server has no keys.
        headers: Those headers of the request that the server was told to keep, names in lower case.
    """

    run_id: str
    user: str = ""
    client: str = ""
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class DepsMaker:
    """Makes the dependencies of runs.

    Args:
        make: A function of a `ClientRequest` that returns the dependencies, `def` or `async def`. One that yields them
            continues after its `yield` when the run is over or waits.

    Raises:
        UsageError: `make` is not a function.
    """

    def __init__(self, make: Callable[[ClientRequest], Any] | None) -> None:
        if make is not None and not callable(make):
            raise UsageError(f"The dependencies must be made by a function of a ClientRequest, got {make!r:.80}.")
        self._make = make

    def __bool__(self) -> bool:
        return self._make is not None

    async def provide(self, plan: AgentPlan, stack: AsyncExitStack, run_id: str, notes: Mapping[str, Any]) -> AgentPlan:
        """Return the plan of a run with its dependencies; the arguments are those of `entered`.

        Raises:
            UsageError: They cannot be made, or are not those that the agent needs. The cause is what was raised.
        """
        try:
            return plan.with_deps(await self.entered(stack, run_id, notes))
        except Exception as error:
            raise UsageError(f"Its dependencies cannot be made: {error or type(error).__name__}") from error

    async def entered(self, stack: AsyncExitStack, run_id: str, notes: Mapping[str, Any]) -> Any:
        """Return the dependencies of a run, None if there is no function. Leaving the stack ends them.

        Args:
            stack: Left when the run is over.
            run_id: The run.
            notes: The recorded parts of the request.
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
        return await returned(made)
