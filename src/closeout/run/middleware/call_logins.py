"""Gives a server its call again after the logins that it has wanted."""

from __future__ import annotations

from typing import Self

from closeout.results.tool_output import ToolOutput
from closeout.run.middleware.chain import AgentPlace, Call, Calling, Middleware
from closeout.run.plan import Scope
from closeout.run.waits.logins import take_logins

__all__ = ["LoginMiddleware"]


class LoginMiddleware(Middleware):
    """Records that a call is made again after a login, before its server gets it.

    Attributes:
        taken: How often each call has waited for a login, by handle.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.taken: dict[str, int] = {}

    @classmethod
    def at(cls, place: AgentPlace) -> Self | None:
        return cls(place.scope) if place.plan is not None and place.plan.manager.has_servers else None

    def below(self, place: AgentPlace) -> LoginMiddleware | None:
        return LoginMiddleware(place.scope) if place.plan is None else self.at(place)

    async def call(self, calling: Calling, call: Call) -> ToolOutput:
        if calling.plan.tool.server_name is not None:
            self.taken[calling.plan.handle] = await take_logins(self._scope, calling.plan.handle)
        return await call(calling)
