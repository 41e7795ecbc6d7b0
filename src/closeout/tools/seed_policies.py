"""Policies of the well-known research tools, shipped as declarations: aliases, duplicate keys, tests for emptiness.

They fill in what a tool's own policy leaves open. How a policy is applied is `executor`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from closeout.messages import ToolPolicy, ToolSpec

__all__ = ["SEED_POLICIES", "governed"]

_SEARCH = ToolPolicy(read_only=True, idempotent=True, duplicate_key=("q",), empty_at=("organic",), retries=1)
_PAGE = ToolPolicy(read_only=True, idempotent=True, duplicate_key=("url",), check_content=True, retries=1)

SEED_POLICIES: Mapping[str, ToolPolicy] = MappingProxyType(
    {
        "google_search": replace(_SEARCH, aliases={"q": ("query", "keyword", "keywords", "search_query")}),
        "sogou_search": replace(
            _SEARCH, duplicate_key=("Query",), aliases={"Query": ("q", "query", "keyword")}, empty_at=("Pages",)
        ),
        "scrape": replace(_PAGE, aliases={"url": ("link", "website")}),
        "scrape_website": replace(_PAGE, aliases={"url": ("link", "website")}),
        "scrape_and_extract_info": replace(
            _PAGE,
            duplicate_key=("url", "info_to_extract"),
            aliases={"url": ("link", "website"), "info_to_extract": ("description", "introduction")},
        ),
        "search_and_browse": ToolPolicy(duplicate_key=("subtask",), aliases={"subtask": ("task", "query")}),
        "run_python_code": ToolPolicy(aliases={"code_block": ("code",)}, defaults={"sandbox_id": "default"}),
    }
)

_OPEN = ToolPolicy()
_FIELDS = tuple(field.name for field in fields(ToolPolicy))


def governed(spec: ToolSpec) -> ToolSpec:
    """The tool under its own policy, completed by the shipped one for tools of its name."""
    shipped = SEED_POLICIES.get(spec.name)
    if shipped is None:
        return spec
    shipped = _in_its_words(shipped, spec.parameters.get("properties"))
    added = {
        name: getattr(shipped, name)
        for name in _FIELDS
        if getattr(spec.policy, name) == getattr(_OPEN, name) != getattr(shipped, name)
    }
    if spec.policy.destructive:  # what is known to destroy is never taken for harmless because of its name
        added = {name: value for name, value in added.items() if name not in ("read_only", "idempotent", "retries")}
    return replace(spec, policy=replace(spec.policy, **added)) if added else spec


def _in_its_words(shipped: ToolPolicy, properties: Any) -> ToolPolicy:
    """The policy under the tool's own names for its parameters: by a key that it lacks, all calls would be the same."""
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
