"""Requests of MCP servers to the agent's model during a call, within the agent's budget.

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

__all__ = ["CallSampling"]


class CallSampling:
    """Asks the agent's model for the server of one call.

    Args:
        scope: The agent that makes the call.
        handle: The call.
        client: The agent's model.
    """

    def __init__(self, scope: Scope, handle: str, client: BaseClient) -> None:
        self._below = below(replace(scope, handle=handle), "sampling", Limits())
        keeper = ContextKeeper(client, self._below.journal, self._below.path, policy=EvictionPolicy())
        self._calls = ModelCalls(client, self._below, keeper)
        self._turns = count()

    async def __call__(self, request: ModelRequest) -> ModelReply:
        """Return the model's reply. Raises ToolError if the budget does not allow the request."""
        budget = self._below.budget
        if budget.limited and (limit := budget.forbids(estimate_prompt(request), request.max_tokens or 0)):
            raise ToolError(f"The run's budget ({limit}) does not allow this request to the model.")
        return await self._calls.request(request, RequestInfo("act", turn=next(self._turns)))
