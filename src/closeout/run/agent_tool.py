"""The tools that stand for an agent: to be called, or to be handed the conversation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from closeout.tools.tool import Tool

if TYPE_CHECKING:
    from closeout.run.plan import AgentPlan

__all__ = ["SubAgentTool"]


class SubAgentTool(Tool[..., Any]):
    """An agent as a tool.

    Args:
        function: Calls the agent.
        plan_of: Returns the agent's plan, given whether replies are streamed.
        writer: The function that writes the agent's task, as a tool with the same parameters.
        options: The other arguments of `Tool`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        plan_of: Callable[[bool], AgentPlan],
        writer: Tool[..., Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(function, **options)
        self.plan_of = plan_of
        self._writer = writer

    @property
    def deps_type(self) -> Any:
        """The type of the dependencies that the agent needs from its caller, None if it needs none."""
        if self._writer is not None and self._writer.deps_type is not None:
            return self._writer.deps_type
        plan = self.plan_of(False)
        return plan.deps_type if plan.deps is None else None
