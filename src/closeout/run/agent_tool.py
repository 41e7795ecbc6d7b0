"""The tools that stand for an agent: to be called, or to be handed the conversation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from closeout.tools.tool import Tool

if TYPE_CHECKING:
    from closeout.run.plan import AgentPlan

__all__ = ["SubAgentTool", "team_of"]

MOST_AGENTS = 100  # whose secrets are looked up before a run: a function may make another agent whenever it is called


class SubAgentTool(Tool[..., Any]):
    """An agent as a tool.

    Args:
        function: Calls the agent.
        plan_of: Returns the agent's plan, given whether replies are streamed.
        writer: The function that writes the agent's task, as a tool with the same parameters.
        background: Whether a call returns at once.
        options: The other arguments of `Tool`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        plan_of: Callable[[bool], AgentPlan],
        writer: Tool[..., Any] | None = None,
        background: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(function, **options)
        self.plan_of = plan_of
        self._writer = writer
        self.background = background

    @property
    def deps_type(self) -> Any:
        """The type of the dependencies that the agent needs from its caller, None if it needs none."""
        if self._writer is not None and self._writer.deps_type is not None:
            return self._writer.deps_type
        plan = self.plan_of(False)
        return plan.spec.deps_type if plan.deps is None else None


def team_of(plan: AgentPlan) -> tuple[list[AgentPlan], bool]:
    """Return an agent, those before it and all that may work in its runs, and whether these are all of them."""
    plans, is_whole = [plan, *plan.predecessors], True
    for each in plans:  # grows; agents may hand over to each other
        for below in each.manager.local_tools:
            if not isinstance(below, SubAgentTool):
                continue
            try:
                made = below.plan_of(False)
            except Exception:  # of the user's function; it is raised again if the agent is needed
                is_whole = False
                continue
            if all(made is not known for known in plans):
                if len(plans) == MOST_AGENTS:
                    return plans, False
                plans.append(made)
    return plans, is_whole
