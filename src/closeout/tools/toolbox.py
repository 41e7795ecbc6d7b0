"""The tools that one agent is offered, each with its policy and its compiled schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from closeout.messages import ToolCall, ToolPolicy, ToolSpec
from closeout.repair.argument_repair import RepairedArguments, repair_arguments
from closeout.repair.names import ResolvedName, resolve_tool_name
from closeout.repair.schema_rules import SchemaRules
from closeout.tools.running import ToolSource
from closeout.tools.shipped_policies import SHIPPED_POLICIES, governed

__all__ = ["Toolbox"]


class Toolbox:
    """A view of a tool manager that follows its changes: servers that start late add their tools."""

    def __init__(self, source: ToolSource | None) -> None:
        # Without `specs` a manager can only execute calls; then the shipped policies apply by name.
        self.source = source if hasattr(source, "specs") else None
        self._fixed: Sequence[ToolSpec] | None = None  # what `offer` set
        self._offered: Sequence[ToolSpec] = ()
        self._specs: list[ToolSpec] = []
        self._by_name: dict[str, ToolSpec] = {}
        self._rules: dict[int, tuple[ToolSpec, SchemaRules]] = {}

    @classmethod
    def of(cls, specs: Sequence[ToolSpec]) -> Toolbox:
        """Return a view of tools that do not change."""
        toolbox = cls(None)
        toolbox.offer(specs)
        toolbox._follow()
        return toolbox

    def offer(self, specs: Sequence[ToolSpec]) -> None:
        """Take these tools instead of following the manager."""
        self._fixed = specs

    def as_served(self, spec: ToolSpec) -> ToolSpec:
        """Return a tool as its server defines it at this moment, which may not be how it was offered."""
        if self.source is None or spec.server_name is None:
            return spec
        listed = (
            each for each in self.source.specs() if (each.name, each.server_name) == (spec.name, spec.server_name)
        )
        return next(listed, spec)

    def resolve(self, call: ToolCall) -> ResolvedName:
        """Return the tool that a call means."""
        self._follow()
        exact = self._by_name.get(call.name)
        if exact is not None and call.server_name in (None, "", exact.server_name):
            return ResolvedName(exact)
        return resolve_tool_name(call.name, self._specs, call.server_name or None)

    def rules(self, spec: ToolSpec) -> SchemaRules:
        """Return the tool's compiled schema. Raises `ToolDefinitionError` if it is not a JSON Schema."""
        known = self._rules.get(id(spec))
        if known is None:  # the spec is kept beside its rules, so that its id is not reused
            known = self._rules[id(spec)] = (spec, SchemaRules.of(spec.parameters))
        return known[1]

    def repair(self, spec: ToolSpec, arguments: Any, written: str = "") -> RepairedArguments:
        """Return arguments that fit a tool's schema, or the reason why they cannot fit.

        Args:
            spec: The tool.
            arguments: An object, or the text of one.
            written: The text that the model wrote, if the arguments were read from it.

        Raises:
            ToolDefinitionError: The tool's schema is not a JSON Schema.
        """
        policy = spec.policy
        return repair_arguments(
            arguments,
            self.rules(spec),
            policy.aliases,
            defaults=policy.defaults,
            drop_unknown=policy.read_only or policy.ignored,
            written=written,
        )

    def named(self, tool_name: str) -> ToolSpec | None:
        """Return the tool of a name, or None."""
        self._follow()
        return self._by_name.get(tool_name)

    def policy(self, tool_name: str) -> ToolPolicy:
        """Return the policy for calls of a name; the shipped one for a tool that is not offered here."""
        spec = self.named(tool_name)
        return spec.policy if spec is not None else SHIPPED_POLICIES.get(tool_name, ToolPolicy())

    def _follow(self) -> None:
        if self._fixed is not None:
            offered: Any = self._fixed
        elif self.source is not None:
            offered = self.source.specs()
        else:
            return
        if offered is self._offered:
            return
        if isinstance(offered, Mapping):
            offered = tuple(offered.values())
        if len(offered) != len(self._offered) or any(a is not b for a, b in zip(offered, self._offered, strict=True)):
            self._specs = [governed(spec) for spec in offered]
            self._by_name = {spec.name: spec for spec in reversed(self._specs)}  # the first of a name
            self._rules.clear()
        self._offered = offered if isinstance(offered, tuple) else tuple(offered)
