"""Tools that need the run they are called in: other agents, and the look-up of a stored result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from closeout.errors import ToolDefinitionError, ToolError
from closeout.journal.events import AgentEnded, AgentStarted
from closeout.messages import ToolPolicy
from closeout.orchestrator.scope import MAX_DEPTH, current_scope
from closeout.outputs.artifacts import read_result as read_stored
from closeout.outputs.budgets import DEFAULT_BUDGET
from closeout.outputs.tokens import estimate_tokens
from closeout.tools.manager import AnyTool, is_tool
from closeout.tools.tool import Tool, tool

if TYPE_CHECKING:
    from closeout.orchestrator.plan import AgentPlan

__all__ = ["as_tool", "read_result_tool", "sub_agent_tool"]


@tool(name="read_result", read_only=True, repeatable=True, inline=True)
def read_result_tool(handle: str, offset: int = 0, path: str | None = None, pattern: str | None = None) -> str:
    """Read more of a file or an earlier tool result that was shown shortened.

    Args:
        handle: its name, such as r12 or file1
        offset: the first character or row to show
        path: a path into a JSON result, such as items[3].name
        pattern: show only the lines that contain this
    """
    scope = current_scope()
    if scope is None:
        raise ToolError("There is no run whose results could be read.")
    return read_stored(scope.artifacts, handle, offset=offset, path=path, pattern=pattern)


def as_tool(something: Any) -> AnyTool:
    """A tool as it is, a function as the tool it makes. Raises ToolDefinitionError for anything else."""
    if is_tool(something):
        return something
    if callable(something):
        made: AnyTool = tool(something)
        return made
    raise ToolDefinitionError(f"{something!r:.80} is no tool. Give a function, a @tool function, or agent.as_tool(…).")


def sub_agent_tool(name: str, description: str, plan_of: Callable[[bool], AgentPlan]) -> Tool[..., Any]:
    """An agent as a tool that takes a `task` and gives back the agent's report.

    `plan_of(streamed)` says what the agent is. A resumed run calls it again, and it then replays what it did: its
    effects are in the same journal.
    """

    async def delegate(task: str) -> str:
        scope = current_scope()
        if scope is None:
            raise ToolError(f"{name} can only be called by an agent.")
        if scope.depth + 1 > MAX_DEPTH:
            raise ToolError(f"Agents may call agents {MAX_DEPTH} deep at most. Do this task yourself.")
        from closeout.orchestrator.closing import report_of
        from closeout.orchestrator.orchestrator import Orchestrator

        plan = plan_of(scope.stream)
        below = scope.child(name, plan.limits)
        below.journal.append(AgentStarted(below.path, name, task, plan.client.name))
        async with plan.manager:
            agent = Orchestrator(plan, below, task)
            closed = await agent.run()
        report = report_of(agent, closed)
        if scope.budget.limited:  # others may be at work still, and leave the caller room for this one too
            scope.budget.added += min(estimate_tokens(report), DEFAULT_BUDGET)
        below.journal.append(AgentEnded(below.path, closed.stop_reason, report))
        if closed.answer is None:
            raise ToolError(report)
        return report

    delegate.__doc__ = f"{description}\n\nArgs:\n    task: what to find out or do, with all that is needed to know"
    # Its own effects are journaled, so running it again repeats none of them.
    policy = ToolPolicy(on_crash="rerun", timeout=None, repeatable=False)
    return Tool(delegate, name=name, description=description, policy=policy)
