"""Handing a conversation over: another agent continues it, with everything that was said in view."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Never, Protocol

from closeout.errors import ToolDefinitionError, ToolError, UsageError
from closeout.journal.events import HANDOFF, Event, HandedOver, RunStarted
from closeout.messages import ToolPolicy
from closeout.run.agent_tool import SubAgentTool
from closeout.run.plan import current_scope

if TYPE_CHECKING:
    from closeout.run.plan import AgentPlan

__all__ = [
    "Handoff",
    "HandoffTarget",
    "as_handoff",
    "handed_to_of",
    "handoffs_of",
    "is_run_of",
    "plan_after",
    "successor_of",
]

MOST_HANDOFFS = 8  # Handoffs in one run: agents may hand over to each other.
ANSWERS = "{} continues the conversation."  # The result of the call, for the model.


class HandoffTarget(Protocol):
    """The interface of an agent that can take over a conversation: an `Agent`."""

    @property
    def name(self) -> str: ...

    def plan(self, streamed: bool = False) -> AgentPlan: ...


class Handoff(SubAgentTool):
    """A tool with which the model hands the conversation over to another agent.

    The other agent sees the conversation with its own instructions, tools and model, and gives the answer of the run.
    The next messages of the session begin with it. Pass it in `Agent(handoffs=[…])`.

    Args:
        agent: The other agent; or a function without arguments that returns it, for two agents that hand over to each
            other.
        name: Its name in the record, and for the tool. Defaults to the agent's name.
        description: When to hand over, for the model.
        tool_name: The name of the tool. Defaults to `transfer_to_NAME`.
        unknown: Refused.

    Raises:
        ToolDefinitionError: The agent has no name, or an argument is unknown.
    """

    def __init__(
        self,
        agent: HandoffTarget | Callable[[], HandoffTarget],
        *,
        name: str = "",
        description: str = "",
        tool_name: str = "",
        **unknown: Never,
    ) -> None:
        if unknown:
            raise ToolDefinitionError(
                f"Handoff has no argument {next(iter(unknown))!r}, but name=, description= and tool_name=. The other "
                "agent sees the whole conversation, and listeners receive HandedOver."
            )
        self._is_later = not hasattr(agent, "plan")  # it may not be there yet
        found = "" if name else str(getattr(agent, "name", ""))
        self.agent_name = name or found
        # Servers take ASCII names of tools only; names in other scripts stay different from each other in Punycode.
        plain = self.agent_name if self.agent_name.isascii() else self.agent_name.encode("punycode").decode("ascii")
        slug = re.sub(r"\W+", "_", plain, flags=re.ASCII).strip("_").lower()
        if not (slug or tool_name) or found == "agent":
            raise ToolDefinitionError(
                "A handoff needs the name of the other agent. Pass Agent(name='billing'), or Handoff(agent, name=…)."
            )

        def plan_of(streamed: bool) -> AgentPlan:
            target: Any = agent() if self._is_later else agent  # type: ignore[operator]
            plan: AgentPlan = target.plan(streamed)
            return plan

        def transfer() -> str:
            scope = current_scope()
            if scope is None or scope.path.endswith(":program"):
                raise ToolError(f"{self.name} must be called by itself, as a tool of an agent.")
            if scope.path.count(f"/{HANDOFF}:") >= MOST_HANDOFFS:
                raise ToolError("The conversation was handed over too often in this run. Answer it yourself.")
            return ANSWERS.format(self.agent_name)

        super().__init__(
            transfer,
            plan_of=plan_of,
            name=tool_name or f"transfer_to_{slug}",
            description=f"Hand the conversation over to {self.agent_name}. {description}".strip(),
            policy=ToolPolicy(read_only=True, repeatable=True, returns="trusted"),
        )

    @property
    def deps_type(self) -> Any:
        """The type of the dependencies that the other agent needs, None if it needs none or is not there yet."""
        return None if self._is_later else super().deps_type


def as_handoff(something: Any) -> Handoff:
    """Return a handoff as it is, an agent as a handoff to it.

    Raises:
        UsageError: It is something else.
    """
    if isinstance(something, Handoff):
        return something
    if not hasattr(something, "plan"):
        raise UsageError(f"handoffs must be agents or Handoff objects, got {something!r:.80}. Pass handoffs=[billing].")
    return Handoff(something)


def handoffs_of(plan: AgentPlan) -> dict[str, Handoff]:
    """Return the handoffs of an agent by the names of their tools."""
    return {each.name: each for each in plan.manager.local_tools if isinstance(each, Handoff)}


def plan_after(plan: AgentPlan, names: Sequence[str]) -> AgentPlan:
    """Return the plan of the agent that continues a conversation which was handed over to these agents in turn.

    Raises:
        UsageError: An agent has no handoff of that name.
    """
    predecessors: list[AgentPlan] = []
    for name in names:
        handoffs = handoffs_of(plan).values()
        found = next((each for each in handoffs if each.agent_name == name), None)
        if found is None:
            known = ", ".join(each.agent_name for each in handoffs) or "none"
            raise UsageError(
                f"The conversation was handed over to {name!r}, but agent {plan.name!r} has no such handoff. "
                f"It has: {known}. Pass handoffs=[…] as before."
            )
        predecessors.append(plan)
        plan = successor_of(found, plan.stream, plan.deps)
    return replace(plan, predecessors=tuple(predecessors)) if predecessors else plan


def is_run_of(plan: AgentPlan, started: RunStarted) -> bool:
    """Return whether an agent began a run, perhaps with the agent that it had handed the conversation over to."""
    try:
        return plan_after(plan, started.handed).name == started.name
    except UsageError:
        return False


def successor_of(handoff: Handoff, stream: bool, deps: Any) -> AgentPlan:
    """Return the plan of the other agent, with the dependencies of the run unless it has its own."""
    plan = handoff.plan_of(stream)
    return plan if plan.deps is not None else plan.with_deps(deps)


def handed_to_of(events: Iterable[Event]) -> tuple[str, ...]:
    """Return the agents that a recorded conversation was handed over to, one after the other."""
    names: list[str] = []
    path = "main"
    for event in events:
        if isinstance(event, RunStarted):
            names = list(event.handed)
        elif isinstance(event, HandedOver) and event.agent == path:
            names.append(event.name)
            path = event.to
    return tuple(names)
