"""Where an agent acts: the run's journal, the agent's path in it, its budget, the results it may look up again.

A tool that needs the run it is called in (a sub-agent, `read_result`) finds the scope with `current_scope`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import field, replace

from closeout.config import AgentLimits
from closeout.journal.journal import Journal
from closeout.orchestrator.limits import Budget, Limits
from closeout.outputs.artifacts import Artifact, MemoryArtifacts
from closeout.records import record

__all__ = ["MAX_DEPTH", "Scope", "current_scope"]

MAX_DEPTH = 3  # sub-agents below the main agent

# The scope of the agent at work, and the handle of the call that it is making.
_current: ContextVar[tuple[Scope, str] | None] = ContextVar("closeout_scope", default=None)


@record
class Scope:
    """One agent's place in a run. `path`: "main", or "main/r4:researcher" for the sub-agent that call r4 started."""

    journal: Journal
    budget: Budget
    path: str = "main"
    depth: int = 0
    artifacts: MemoryArtifacts = field(default_factory=MemoryArtifacts)
    handle: str = ""  # of the call that is being made
    sub_agents: Mapping[str, AgentLimits] = field(default_factory=dict)  # limits of sub-agents by name, from settings
    stream: bool = False  # somebody watches: replies are asked for as streams, those of sub-agents too
    shared: dict[str, Artifact] = field(default_factory=dict)  # what every agent of the run may look up: its files

    def child(self, name: str, limits: Limits) -> Scope:
        """The scope of a sub-agent that the present call starts; what the settings say of it goes before its own."""
        if name in self.sub_agents:
            limits = replace(limits, max_turns=self.sub_agents[name].max_turns)
        budget = Budget(limits, lambda: self.journal.elapsed, self.budget)
        path = f"{self.path}/{self.handle}:{name}"
        below = Scope(self.journal, budget, path, self.depth + 1, sub_agents=self.sub_agents, stream=self.stream)
        below.share(self.shared.items())
        return below

    def share(self, artifacts: Iterable[tuple[str, Artifact]]) -> None:
        """Let this agent, and those that it starts, look the artifacts up by their handles."""
        for handle, artifact in artifacts:
            self.artifacts.put(handle, artifact)
            self.shared[handle] = artifact


def current_scope() -> Scope | None:
    """The scope of the tool call that is being made in this task, or None outside of runs."""
    current = _current.get()
    return None if current is None else replace(current[0], handle=current[1])


enter = _current.set
leave = _current.reset
