"""The tools that one agent is offered, each with its policy and its compiled schema.

Shipped policies complete what the policies of the well-known research tools leave open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from closeout.messages import ToolCall, ToolPolicy, ToolSpec
from closeout.repair.arguments import RepairedArguments, repair_arguments
from closeout.repair.names import ResolvedName, resolve_tool_name
from closeout.repair.schema import SchemaRules
from closeout.tools.running import ToolSource

__all__ = ["DEMO_SCRAPE_MAX_LENGTH", "SHIPPED_POLICIES", "Toolbox", "governed"]

DEMO_SCRAPE_MAX_LENGTH = 20_000  # characters of a scraped text in demonstrations, which leaves room for more turns

_SEARCH = ToolPolicy(read_only=True, idempotent=True, duplicate_key=("q",), empty_at=("organic",), retries=1)
_PAGE = ToolPolicy(read_only=True, idempotent=True, duplicate_key=("url",), check_content=True, retries=1)
_SCRAPE = replace(_PAGE, aliases={"url": ("link", "website")}, demo_length=DEMO_SCRAPE_MAX_LENGTH)

SHIPPED_POLICIES: Mapping[str, ToolPolicy] = MappingProxyType(
    {
        "google_search": replace(_SEARCH, aliases={"q": ("query", "keyword", "keywords", "search_query")}),
        "sogou_search": replace(
            _SEARCH, duplicate_key=("Query",), aliases={"Query": ("q", "query", "keyword")}, empty_at=("Pages",)
        ),
        "scrape": _SCRAPE,
        "scrape_website": _SCRAPE,
        "scrape_and_extract_info": replace(
            _PAGE,
            duplicate_key=("url", "info_to_extract"),
            aliases={"url": ("link", "website"), "info_to_extract": ("description", "introduction")},
        ),
        "search_and_browse": ToolPolicy(duplicate_key=("subtask",), aliases={"subtask": ("task", "query")}),
        "run_python_code": ToolPolicy(aliases={"code_block": ("code",)}, defaults={"sandbox_id": "default"}),
    }
)
"""Policies of the research tools that are widely known by name: aliases, duplicate keys, where their items are."""

_DEFAULT = ToolPolicy()
_FIELDS = tuple(field.name for field in fields(ToolPolicy))


def governed(spec: ToolSpec) -> ToolSpec:
    """Return the tool with its own policy, completed by the shipped policy for tools of its name."""
    shipped = SHIPPED_POLICIES.get(spec.name)
    if shipped is None:
        return spec
    shipped = _with_names_of(spec.parameters.get("properties"), shipped)
    added = {
        name: getattr(shipped, name)
        for name in _FIELDS
        if getattr(spec.policy, name) == getattr(_DEFAULT, name) != getattr(shipped, name)
    }
    if spec.policy.destructive:  # a tool that is declared destructive is never taken for harmless because of its name
        added = {name: value for name, value in added.items() if name not in ("read_only", "idempotent", "retries")}
    return replace(spec, policy=replace(spec.policy, **added)) if added else spec


def _with_names_of(properties: Any, shipped: ToolPolicy) -> ToolPolicy:
    """The policy with the tool's own parameter names: by a duplicate key that it lacks, all calls would be the same."""
    if not isinstance(properties, Mapping) or not properties:
        return shipped
    own: dict[str, str] = {}  # the shipped name of a parameter → this tool's
    for name in (*(shipped.duplicate_key or ()), *shipped.aliases, *shipped.defaults):
        known_as = (name, *shipped.aliases.get(name, ()))
        own.update((name, each) for each in known_as[::-1] if each in properties)
    key = shipped.duplicate_key or ()
    return replace(
        shipped,
        duplicate_key=tuple(own[name] for name in key) if key and own.keys() >= set(key) else None,
        aliases={
            own[name]: tuple(each for each in (name, *others) if each != own[name])
            for name, others in shipped.aliases.items()
            if name in own
        },
        defaults={own[name]: value for name, value in shipped.defaults.items() if name in own},
    )


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
        """Return arguments that fit a tool's schema, or why there are none.

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
            drop_unknown=policy.read_only,
            written=written,
        )

    def named(self, tool_name: str) -> ToolSpec | None:
        """Return the tool of a name, or None."""
        self._follow()
        return self._by_name.get(tool_name)

    def policy(self, tool_name: str) -> ToolPolicy:
        """Return the policy for calls of a name; the shipped one for a tool that is not offered here."""
        spec = self.named(tool_name)
        return spec.policy if spec is not None else SHIPPED_POLICIES.get(tool_name, _DEFAULT)

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
            self._by_name = {}
            for spec in self._specs:
                self._by_name.setdefault(spec.name, spec)
            self._rules.clear()
        self._offered = offered if isinstance(offered, tuple) else tuple(offered)
