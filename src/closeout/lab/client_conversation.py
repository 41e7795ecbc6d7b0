"""Conversations that clients of the proxy had with a model, as runs: their tools are the clients' own."""

from __future__ import annotations

from dataclasses import replace

from closeout.journal.events import RunStarted
from closeout.run.plan import AgentPlan
from closeout.tools.pinned_tools import pin_tools

__all__ = ["CONVERSATION", "as_client"]

CONVERSATION = "proxy-conversation"
"""The agent's name in these runs. An agent of this name is what a comparison runs them again with."""


def as_client(plan: AgentPlan, started: RunStarted) -> AgentPlan:
    """Return the plan with the client's tools, which cannot be called, and its instructions unless it has its own."""
    if started.name != CONVERSATION:
        return plan
    manager, _ = pin_tools(plan.manager, started.own_tools or "[]", ())
    if plan.instructions or plan.write_instructions is not None:
        return replace(plan, manager=manager)
    return replace(plan, manager=manager, instructions=started.instructions)
