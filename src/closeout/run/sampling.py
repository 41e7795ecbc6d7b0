"""Requests to a model during a call, within the agent's budget: those of a tool, and those of an MCP server.

They are journaled below the call, as those of a sub-agent are: they count as the run's usage, and a resumed run that
makes the call again does not repeat them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from closeout.context.keeper import ContextKeeper, estimate_prompt
from closeout.context.policy import EvictionPolicy
from closeout.errors import ToolError
from closeout.messages import ModelReply, ModelRequest, RequestInfo
from closeout.models.base import BaseClient
from closeout.run.limits import Limits
from closeout.run.middleware.order import below
from closeout.run.plan import Scope
from closeout.run.requests import ModelCalls

__all__ = ["CallModel", "call_sampling"]


class CallModel:
    """Asks a model during one call.

    Args:
        scope: The agent, and the call.
        name: The last part of the path at which the requests are journaled.
        client: The model.
        what: What a spent budget does not allow, for the error.
    """

    def __init__(self, scope: Scope, name: str, client: BaseClient, what: str) -> None:
        self.scope = below(scope, name, Limits())
        keeper = ContextKeeper(client, self.scope.journal, self.scope.path, policy=EvictionPolicy())
        self._calls = ModelCalls(client, self.scope, keeper)
        self._what = what
        self._turns = count()

    async def __call__(self, request: ModelRequest) -> ModelReply:
        """Return the model's reply. Raises ToolError if the budget does not allow the request."""
        budget = self.scope.budget
        if budget.limited and (limit := budget.forbids(estimate_prompt(request), request.max_tokens or 0)):
            raise ToolError(f"The run's budget ({limit}) does not allow {self._what}.")
        return await self._calls.request(request, RequestInfo("act", turn=next(self._turns)))


def call_sampling(scope: Scope, client: BaseClient, handle: str) -> CallModel:
    """Return what asks the agent's model for the MCP server of a call."""
    return CallModel(replace(scope, handle=handle), "sampling", client, "this request to the model")
