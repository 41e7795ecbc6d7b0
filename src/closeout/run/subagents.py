"""Tools that need the run they are called in: other agents, and reading a stored result."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack

from closeout.answers.experience import experience_from
from closeout.answers.sources import sources_of
from closeout.errors import ToolDefinitionError, ToolError, UsageError
from closeout.journal.events import AgentEnded, AgentStarted
from closeout.messages import Message, ModelRequest, ToolPolicy
from closeout.parsing.reasoning import split_thinking
from closeout.results.artifacts import Artifact, ArtifactStore, NormalArtifacts
from closeout.results.artifacts import read_result as read_stored
from closeout.results.budgets import DEFAULT_BUDGET
from closeout.results.tokens import estimate_tokens
from closeout.run.agent_tool import SubAgentTool, team_of
from closeout.run.middleware.call_secrets import secrets_in
from closeout.run.middleware.order import below, started_agent
from closeout.run.orchestrator import AgentLoop
from closeout.run.plan import MAX_DEPTH, current_scope
from closeout.run.sampling import CallModel
from closeout.spelling import suggestion
from closeout.tools.foreign import foreign_tool, is_foreign_manager
from closeout.tools.manager import AnyTool, ToolManager, is_tool
from closeout.tools.running import AnyCallSpent, CallSpent
from closeout.tools.tool import ModelTool, PolicyFields, Prompt, Tool, policy_of, tool

if TYPE_CHECKING:
    from closeout.models.base import BaseClient
    from closeout.run.attempt import Attempt
    from closeout.run.plan import AgentPlan, Scope
    from closeout.run.result import AgentResult
    from closeout.tools.mcp.mcp_config import McpServerConfig

__all__ = [
    "PageModel",
    "as_tool",
    "check_flow_names",
    "clients_of",
    "closing_clients",
    "may_destroy",
    "read_result_tool",
    "report_of",
    "servers_of",
    "sub_agent_tool",
]

SPENT = {"max_tokens": CallSpent, "max_cost": CallSpent, "budget": AnyCallSpent}  # limits that are reached again
# The parameters of an agent as a tool.
TASK = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "what to find out or do, with all that is needed to know"}
    },
    "required": ["task"],
    "additionalProperties": False,
}


@tool(name="read_result", inline=True, policy=ToolPolicy(read_only=True, repeatable=True, returns="read"))
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
        raise ToolError("read_result works only inside a run.")
    store: ArtifactStore = scope.artifacts
    if "/" in handle and store.get(handle) is None:  # of a sub-agent, which may have worked in an earlier process
        below, found = f"{scope.path}/{handle}".partition("/")[2], sources_of(scope.journal.rows())
        if (source := found.get(below) or found.get(handle)) is not None:
            store = NormalArtifacts()
            store.put(handle, Artifact(source.value, source.tool))
    return read_stored(store, handle, offset=offset, path=path, pattern=pattern)


def as_tool(something: Any) -> AnyTool:
    """Return a tool as it is; a function, or a tool of another library, as a tool.

    Raises:
        ToolDefinitionError: It is something else.
    """
    if isinstance(something, type):
        raise ToolDefinitionError(
            f"A tool must be a function, got the class {something.__name__}. Pass a method of an instance: "
            f"tools=[{something.__name__}(…).method]."
        )
    _refuse_unbound(something)
    if is_tool(something):
        return something
    made: AnyTool | None = foreign_tool(something)
    if made is None and callable(something):
        made = tool(something)
    if isinstance(something, ToolManager) or is_foreign_manager(something):
        name = type(something).__name__
        raise ToolDefinitionError(f"A {name} cannot be one of several tools. Pass it alone: tools={name}(…).")
    if made is None:
        raise ToolDefinitionError(
            f"A tool must be a function, a @tool function or agent.as_tool(…), got {something!r:.80}. "
            "Pass tools=[look_up]."
        )
    return made


def _refuse_unbound(something: Any) -> None:
    """Raise ToolDefinitionError for a method without its object: the model would have to fill in `self`."""
    function = getattr(something, "function", something)
    if not inspect.isfunction(function):
        return
    owner = function.__qualname__.rpartition(".")[0]
    first = next(iter(inspect.signature(function).parameters), "")
    if first in ("self", "cls") and owner and not owner.endswith("<locals>"):
        name = owner.rpartition(".")[2]
        raise ToolDefinitionError(
            f"{name}.{function.__name__} is a method without its object. Pass tools=[{name}(…).{function.__name__}]."
        )


@asynccontextmanager
async def closing_clients(plan: AgentPlan) -> AsyncIterator[None]:
    """Close the connections of an agent, and of the agents below it, to their models at the end."""
    try:
        yield
    finally:
        for client in clients_of(plan):
            await client.aclose()


def clients_of(plan: AgentPlan, depth: int = MAX_DEPTH) -> list[BaseClient]:
    """Return the model clients of an agent and of its sub-agents, each once."""
    found = [plan.client]
    for each in plan.manager.local_tools if depth else ():
        if isinstance(each, SubAgentTool):
            found += [client for client in clients_of(each.plan_of(False), depth - 1) if client not in found]
        elif isinstance(each, ModelTool) and isinstance(each.ask, PageModel) and each.ask.client not in found:
            found.append(each.ask.client)
    return found


def servers_of(plan: AgentPlan, depth: int = MAX_DEPTH) -> list[McpServerConfig]:
    """Return the MCP servers of an agent and of its sub-agents."""
    found = list(plan.manager.servers)
    for each in plan.manager.local_tools if depth else ():
        if isinstance(each, SubAgentTool):
            found += servers_of(each.plan_of(False), depth - 1)
    return found


def check_flow_names(plan: AgentPlan) -> None:
    """Check the names of tools and parameters in an agent's flow rules, which hold for all agents in its runs.

    What is not known yet is not checked: an agent that cannot be made, and the tools of a server that does not run.

    Raises:
        UsageError: A name is neither a tool nor a server of any of the agents, or a tool has no such parameter.
    """
    if plan.spec.flow is None:
        return
    plans, is_whole = team_of(plan)
    parameters: dict[str, set[str] | None] = {}  # by the name of the tool; None if any are taken
    servers = {server.name for each in plans for server in each.manager.servers}
    reached = set[str]()
    for spec in (spec for each in plans for spec in each.manager.specs()):
        name = spec.name if spec.server_name is None else f"{spec.server_name}/{spec.name}"
        reached.add(spec.server_name or "")
        listed, known = spec.parameters.get("properties"), parameters.setdefault(name, set())
        if not isinstance(listed, Mapping) or known is None:
            parameters[name] = None
        else:  # a program's files are those that its code reads
            known |= {*listed, *(("files",) if spec.policy.returns == "files" else ())}
    names = {*parameters, *servers}
    for name in plan.spec.flow.names if is_whole else ():
        if name not in names and name.partition("/")[0] not in servers - reached:
            hint = suggestion(name, names, f"It has: {', '.join(sorted(names)) or 'no tools'}.")
            whose = f"the agent {plan.name} has" if len(plans) == 1 else f"the agents of {plan.name} have"
            raise UsageError(f"flow names {name!r}, but {whose} no such tool or server. {hint}")
    for name, allowed in plan.spec.flow.allow.items():
        known = parameters.get(name)
        if known is None or isinstance(allowed, str):
            continue
        if unknown := next((each for each in allowed if each not in known), None):
            hint = suggestion(unknown, known, f"It has: {', '.join(sorted(known)) or 'none'}.")
            raise UsageError(f"flow allows {unknown!r} of {name!r}, which has no such parameter. {hint}")


def may_destroy(plan: AgentPlan, depth: int = MAX_DEPTH) -> bool:
    """Return whether an agent, or one below it, has a tool that is destructive or whose calls a person must approve.

    The servers of agents below need not be running: what their tools do is unknown, so they count as destructive.
    """
    if any(spec.policy.destructive or spec.policy.approval not in (None, "never") for spec in plan.manager.specs()):
        return True
    below = [each.plan_of(False) for each in plan.manager.local_tools if isinstance(each, SubAgentTool)]
    return any(each.manager.has_servers or depth < 1 or may_destroy(each, depth - 1) for each in below)


def may_rerun(plan: AgentPlan, depth: int = MAX_DEPTH) -> bool:
    """Return True if a run may begin again although it made calls before. The agent must be open."""
    if depth < MAX_DEPTH and plan.manager.has_servers:
        return False  # the tools of a sub-agent's servers are known when it is called
    return all(spec.policy.crash_rule == "rerun" for spec in plan.offered_tools()) and all(
        may_rerun(each.plan_of(False), depth - 1)
        for each in (plan.manager.local_tools if depth else ())
        if isinstance(each, SubAgentTool)
    )


def sub_agent_tool(
    name: str,
    description: str,
    plan_of: Callable[[bool], AgentPlan],
    *,
    write_task: Callable[..., Any] | None = None,
    background: bool = False,
    **fields: Unpack[PolicyFields],
) -> Tool[..., Any]:
    """Return an agent as a tool that takes a `task` and returns the agent's report.

    Args:
        name: The tool's name.
        description: When to call it.
        plan_of: Returns the agent's plan, given whether replies are streamed. A resumed run calls the agent again and
            reuses what it did: its effects are in the same journal.
        write_task: Writes the task; its parameters are those of the tool, in place of `task`.
        background: Whether a call returns at once; see `middleware.background`.
        fields: Fields of the tool's policy.
    """
    writer = None if write_task is None else Tool(write_task, name=name)
    if background and fields.get("gives_answer"):
        raise ToolDefinitionError(f"{name} works in the background, so it cannot have gives_answer=True.")

    async def task_of(arguments: Mapping[str, Any], place: Scope) -> str:
        if writer is None:
            return str(arguments["task"])
        recorded = place.journal.recorded(AgentStarted, place.path, "#0")
        if isinstance(recorded, AgentStarted):  # the function need not write the same again
            return recorded.task
        task = await writer.call(arguments)
        if not isinstance(task, str) or not task.strip():
            raise ToolDefinitionError(
                f"The function that writes the task of {name} must return a text, got {task!r:.80}."
            )
        return task

    async def delegate(**arguments: Any) -> str:
        scope = current_scope()
        if scope is None:
            raise ToolError(f"{name} can only be called by an agent.")
        if scope.depth + 1 > MAX_DEPTH:
            raise ToolError(f"Agents may call agents {MAX_DEPTH} deep at most. Do this task yourself.")
        plan = plan_of(scope.run.stream)
        plan = plan if plan.deps is not None else plan.with_deps(scope.deps)
        place = below(scope, name, plan.limits, plan)
        keys = tuple(sorted(plan.settings.budget))
        task = await task_of(arguments, place)
        place.journal.append(AgentStarted(place.path, name, task, model=plan.client.name, budget=keys))
        async with plan.manager:
            agent = AgentLoop(await started_agent(plan, place), place, task)
            result = await agent.run()
        report = report_of(agent.attempt, result)
        if scope.budget.limited:  # other agents may still be working, and must leave room for this report too
            scope.budget.added += min(estimate_tokens(report), DEFAULT_BUDGET)
        place.journal.append(AgentEnded(place.path, result.stop_reason, report))
        if result.answer is None:
            raise SPENT.get(result.stop_reason, ToolError)(report)
        return report

    # Its own effects are journaled, so running it again repeats none of them.
    policy = ToolPolicy(on_crash="rerun", timeout=None, repeatable=False, returns="below")
    return SubAgentTool(
        delegate,
        plan_of=plan_of,
        writer=writer,
        background=background,
        name=name,
        description=description,
        parameters=TASK if writer is None else writer.spec.parameters,
        policy=policy_of(name, policy, fields),
    )


class PageModel:
    """Asks a model for a tool: the `Ask` of a `ModelTool`."""

    def __init__(self, client: BaseClient) -> None:
        self.client = client

    async def __call__(self, prompts: Iterable[Prompt]) -> AsyncIterator[str]:
        """Yield the reply to each prompt, without the model's reasoning."""
        scope = current_scope()
        if scope is None:
            for prompt in prompts:
                yield split_thinking((await self.client.complete(_request(prompt))).text)[1].strip()
            return
        ask = CallModel(scope, "reader", self.client, "asking a model about this")
        hide = secrets_in(ask.scope).hide
        for prompt in prompts:
            reply = await ask(_request(hide(prompt) if isinstance(prompt, str) else prompt))
            yield split_thinking(reply.text)[1].strip()


def _request(prompt: Prompt) -> ModelRequest:
    content = prompt if isinstance(prompt, str) else [*prompt]
    return ModelRequest(messages=(Message(role="user", content=content),))


def report_of(attempt: Attempt | None, result: AgentResult) -> str:
    """Return a sub-agent's report: its closing text with its sources, or what it learned if it has no answer."""
    if result.answer is None:
        failure = result.failure.message if result.failure else f"No answer ({result.stop_reason})."
        learned = result.experience.text() if result.experience else ""
        if result.stop_reason in SPENT:
            failure = f"{failure} The same call would end in the same way: do not repeat it."
            return f"{failure}\n\n{learned}".rstrip()
        return learned or failure
    text = result.text or result.answer
    if isinstance(result.value, str) and result.answer not in text:  # an OutputFormatter of the user's wrote it
        text += f"\n\nThe answer is: {result.answer}"
    found = experience_from(None, attempt.call_facts(only_ok=True) if attempt is not None else [])
    title, names = ("Pages read", found.pages) if found.pages else ("Queries made", found.queries)
    left = [name for name in names if name not in text]  # those that the text does not mention itself
    return f"{text}\n\n{title}: {'; '.join(left)}" if left else text
