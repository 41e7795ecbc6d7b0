"""Ends a call when the time of its run is nearly over."""

from __future__ import annotations

import asyncio
from typing import Self

from closeout.results.tool_output import ToolOutput
from closeout.run.limits import Budget
from closeout.run.middleware.chain import AgentPlace, Call, Calling, Middleware
from closeout.tools.running import stopped_output

__all__ = ["DeadlineMiddleware"]

OUT_OF_TIME = "Stopped: the time allowed for this run is nearly over, and the rest is needed to answer."


class DeadlineMiddleware(Middleware):
    """Leaves time to answer. A tool without a timeout is an agent with limits of its own."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    @classmethod
    def at(cls, place: AgentPlace) -> Self | None:
        return cls(place.scope.budget) if place.scope.budget.limits_time else None

    def below(self, place: AgentPlace) -> DeadlineMiddleware:
        return DeadlineMiddleware(place.scope.budget)

    async def call(self, calling: Calling, call: Call) -> ToolOutput:
        spec = calling.plan.tool
        seconds = self._budget.seconds_left(closing=False) if spec.policy.timeout is not None else None
        try:
            async with asyncio.timeout(seconds) as deadline:
                return await call(calling)
        except TimeoutError:
            if not deadline.expired():
                raise
            return stopped_output(spec.name, OUT_OF_TIME, "OutOfTime")
