"""The tools that one agent is offered.

MCP servers may change theirs, and a tool may need a name in the run's state: both take effect at the next turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from closeout.dialects.functions import with_functions
from closeout.journal.events import ToolsChanged
from closeout.messages import ToolPolicy, ToolSpec
from closeout.run.plan import Scope
from closeout.tools.manager import ToolManager
from closeout.tools.search_tools import definition_tokens

__all__ = ["OfferedTools", "dump_definitions", "dump_specs", "load_specs", "with_server_tools"]

MOST_TOOLS = 128  # more are refused by OpenAI, and few models choose well among them
AGENTS_KEPT = 64  # whose tools were measured last
_ALWAYS_SHOWN = frozenset({"read_result", "ask_user", "run_program"})


class OfferedTools:
    """The list of tools in force for one agent, the same for a whole turn.

    If their definitions are larger than `search_budget`, or they are more than 128, the model is shown `find_tools` and
    `call_tool` instead. It stays so for the whole run, whatever servers change, so that the prompt keeps its beginning.

    Args:
        manager: Where the tools are registered.
        scope: Where the agent acts.
        search_budget: Tokens; None for no limit.

    Attributes:
        specs: All tools that the model may call.
    """

    def __init__(self, manager: ToolManager, scope: Scope, search_budget: int | None = None) -> None:
        self._state = scope.run.state
        self._all: Sequence[ToolSpec] = manager.specs()  # with those that wait for the run's state
        self.specs: tuple[ToolSpec, ...] = with_functions(self._available())
        self._search: tuple[ToolSpec, ...] = ()
        is_large = search_budget is not None and _tokens_of(self.specs) > search_budget
        if is_large or (search_budget is not None and len(self.specs) > MOST_TOOLS):
            self._search = manager.search_specs
            self.specs += self._search
        self._manager = manager
        self._journal = scope.journal
        self._agent = scope.path
        self._listed: Sequence[ToolSpec] = manager.specs()  # what the manager returned last

    @property
    def shown(self) -> tuple[ToolSpec, ...]:
        """The tools whose definitions the model gets with every request."""
        if not self._search:
            return self.specs
        kept = (spec for spec in self.specs if spec.name in _ALWAYS_SHOWN)
        return tuple(sorted((*kept, *self._search), key=lambda spec: spec.name))

    def refresh(self, request: int) -> bool:
        """Take over a new list of tools before a request, record it, and return whether it has changed.

        A run that is executed again takes each change from the record: its server may start with another list.
        """
        changed = self._refresh_servers(request)
        if any(spec.policy.needs_state is not None for spec in self._all):  # the state follows from the record
            specs = with_functions(self._available()) + self._search
            changed, self.specs = changed or specs != self.specs, specs
        return changed

    def _available(self) -> Sequence[ToolSpec]:
        if all(spec.policy.needs_state is None for spec in self._all):
            return self._all
        return [each for each in self._all if each.policy.needs_state is None or each.policy.needs_state in self._state]

    def _refresh_servers(self, request: int) -> bool:
        recorded = self._journal.recorded(ToolsChanged, self._agent, str(request))
        if isinstance(recorded, ToolsChanged):
            self._listed = ()  # compare by value when the record ends
            self._all = with_server_tools(self._manager.specs(), load_specs(recorded.tools))
            self.specs = with_functions(self._available()) + self._search
            self._journal.append(recorded)
            return True
        if self._journal.replaying or self._journal.replay_only:
            return False
        listed = self._manager.specs()
        if listed is self._listed:
            return False
        self._listed = self._all = listed
        specs = with_functions(self._available()) + self._search
        if specs == self.specs:
            return False
        self.specs = specs
        self._journal.append(ToolsChanged(self._agent, request, tools=dump_specs(listed)))
        return True


_measured: dict[int, tuple[tuple[ToolSpec, ...], int]] = {}  # By id; the tuples are kept, so that it stays theirs.


def _tokens_of(specs: tuple[ToolSpec, ...]) -> int:
    """Return their `definition_tokens`, estimated once for all runs of an agent."""
    if (found := _measured.get(id(specs))) is None:
        if len(_measured) >= AGENTS_KEPT:
            _measured.clear()
        found = _measured[id(specs)] = specs, definition_tokens(specs)
    return found[1]


def with_server_tools(specs: Iterable[ToolSpec], of_servers: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the local tools among `specs` and these tools of servers, sorted by name."""
    local = (spec for spec in specs if spec.server_name is None)
    return tuple(sorted((*local, *of_servers), key=lambda spec: spec.name))


def dump_specs(tools: Iterable[ToolSpec]) -> str:
    """Write the tools of servers as JSON, empty without servers' tools. Local tools are part of the agent itself."""
    foreign = [asdict(tool) for tool in tools if tool.server_name is not None]
    return json.dumps(foreign, ensure_ascii=False, default=str) if foreign else ""


def dump_definitions(tools: Iterable[ToolSpec]) -> str:
    """Write what a model is shown of the agent's own tools as JSON, empty if there are none."""
    own = [[tool.name, tool.description, tool.parameters] for tool in tools if tool.server_name is None]
    return json.dumps(own, ensure_ascii=False, default=dict) if own else ""


def load_specs(text: str) -> list[ToolSpec]:
    """Return the tools that `dump_specs` wrote."""
    return [_load_spec(record) for record in json.loads(text)] if text else []


def _load_spec(record: dict[str, Any]) -> ToolSpec:
    policy: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in record["policy"].items()
    }
    policy["aliases"] = {name: tuple(others) for name, others in policy["aliases"].items()}
    return ToolSpec(**{**record, "policy": ToolPolicy(**policy)})
