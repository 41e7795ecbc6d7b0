"""Policies for the well-known research tools, which complete what a tool of that name leaves open.

Names of other systems' tools belong in this table, never in the code that runs calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from closeout.messages import ToolPolicy, ToolSpec

__all__ = ["DEMO_SCRAPE_MAX_LENGTH", "SHIPPED_POLICIES", "governed"]

DEMO_SCRAPE_MAX_LENGTH = 20_000  # characters of a scraped text in demonstrations, which leaves room for more turns

_SEARCH = ToolPolicy(read_only=True, idempotent=True, duplicate_key=("q",), empty_at=("organic",), retries=1)
_PAGE = ToolPolicy(read_only=True, idempotent=True, duplicate_key=("url",), check_content=True, retries=1)
_BROWSING = ToolPolicy(aliases={"task": ("subtask",)}, other_names=("search_and_browse",))
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
        "agent-browsing": _BROWSING,
        "agent_browsing": _BROWSING,
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
    if spec.policy.destructive:  # its name never makes a destructive tool harmless
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
