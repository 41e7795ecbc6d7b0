"""The tools that one agent is offered, looked up by name, each with its policy and its compiled schema.

Where tools come from is manager.py's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from closeout.messages import ToolCall, ToolPolicy, ToolSpec
from closeout.repair.names import ResolvedName, resolve_tool_name
from closeout.repair.schema import SchemaRules
from closeout.tools.running import ToolSource
from closeout.tools.seed_policies import SEED_POLICIES, governed

__all__ = ["Toolbox"]

_NO_POLICY = ToolPolicy()


class Toolbox:
    """A view of a tool manager that follows it: servers that start late add their tools."""

    def __init__(self, source: ToolSource | None) -> None:
        # A manager that can only execute calls leaves the rules that go by a tool's name.
        self.source = source if hasattr(source, "specs") else None
        self._offered: Sequence[ToolSpec] = ()
        self._specs: list[ToolSpec] = []
        self._by_name: dict[str, ToolSpec] = {}
        self._rules: dict[int, tuple[ToolSpec, SchemaRules]] = {}

    def resolve(self, call: ToolCall) -> ResolvedName:
        """The tool that a call means."""
        self._follow()
        exact = self._by_name.get(call.name)
        if exact is not None and call.server_name in (None, "", exact.server_name):
            return ResolvedName(exact)
        return resolve_tool_name(call.name, self._specs, call.arguments, call.server_name or None)

    def rules(self, spec: ToolSpec) -> SchemaRules:
        """The tool's compiled schema; raises ToolDefinitionError if it is no JSON Schema."""
        known = self._rules.get(id(spec))
        if known is None:  # the spec is kept beside its rules, so that its id stays its own
            known = self._rules[id(spec)] = (spec, SchemaRules.of(spec.parameters))
        return known[1]

    def named(self, tool_name: str) -> ToolSpec | None:
        self._follow()
        return self._by_name.get(tool_name)

    def policy(self, tool_name: str) -> ToolPolicy:
        """The policy for calls of that name, a shipped one for a tool that is not on offer here."""
        spec = self.named(tool_name)
        return spec.policy if spec is not None else SEED_POLICIES.get(tool_name, _NO_POLICY)

    def _follow(self) -> None:
        if self.source is None:
            return
        offered: Any = self.source.specs()
        if offered is self._offered:
            return
        if isinstance(offered, Mapping):
            offered = tuple(offered.values())
        if len(offered) != len(self._offered) or any(a is not b for a, b in zip(offered, self._offered, strict=True)):
            self._specs = [governed(spec) for spec in offered]
            self._by_name = {}
            for spec in self._specs:
                self._by_name.setdefault(spec.name, spec)
            self._rules.clear()
        self._offered = offered if isinstance(offered, tuple) else tuple(offered)
