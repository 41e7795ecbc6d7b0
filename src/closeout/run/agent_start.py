"""Begins the work of an agent that another one has started."""

from __future__ import annotations

from closeout.run.plan import AgentPlan, Scope
from closeout.run.waits.logins import begin_servers

__all__ = ["started_agent"]


async def started_agent(plan: AgentPlan, scope: Scope) -> AgentPlan:
    """Return the plan as its agent works: its servers have been begun, and its instructions are written.

    Raises:
        McpServerUnavailable: A required server did not start, or has tools that nobody has accepted.
        Suspended: A person must sign in to a server first.
        UsageError: The plan names a tool that does not exist.
    """
    await begin_servers(plan.manager, scope)
    plan.check_secrets()
    return await plan.with_instructions(scope)
