"""Which calls were made before: counts and earlier outcomes for each agent, and the keys that make two calls the same.

The journal needs no part of this: a resumed run makes the same calls again, and their replayed outcomes fill it.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_json

from closeout.messages import ToolPolicy
from closeout.outputs.normal import compact_json, normalise

if TYPE_CHECKING:
    from closeout.tools.outcome import CallOutcome

__all__ = ["CallMemory", "DuplicateCheck", "cache_name", "query_key"]

_MAX_KEY = 512  # characters of a key that are kept as they are; of longer ones their SHA-256
_MAX_KEPT = 256  # outcomes kept to be given again


class DuplicateCheck(NamedTuple):
    """Whether a query was made before, and how often."""

    is_duplicate: bool
    previous_count: int


def cache_name(agent: str, tool_name: str) -> str:
    """The namespace of a tool's queries by one agent: "main_google_search"."""
    return f"{agent}_{tool_name}"


def query_key(tool_name: str, arguments: Mapping[str, Any], policy: ToolPolicy) -> str | None:
    """What two calls have in common when they are the same call; None for a tool that may rightly be repeated.

    `NAME_VALUE_VALUE` of the declared duplicate key, else the tool's name and all arguments in canonical JSON.
    """
    if policy.repeatable:
        return None
    names = policy.duplicate_key
    # Calls that leave the key out and differ in the rest are not the same call.
    if names is not None and (not names or not arguments or not arguments.keys().isdisjoint(names)):
        key = "_".join((tool_name, *(_plain(arguments.get(name)) for name in names)))
    else:
        key = f"{tool_name}_{_canonical(arguments)}"
    return key if len(key) <= _MAX_KEY else f"{tool_name}_{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()}"


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else _canonical(value)


_PLAIN = frozenset((str, int, bool, type(None)))  # the same text from the writer that costs a third
_ENCODER = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=repr)


def _canonical(value: Any) -> str:
    if type(value) is dict and _PLAIN.issuperset(map(type, value.values())):
        try:
            return to_json(dict(sorted(value.items())) if len(value) > 1 else value).decode()
        except (ValueError, TypeError):  # a lone surrogate, keys of several types
            pass
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError):  # keys of several types, cycles, depth: not JSON, still comparable
        return compact_json(normalise(value))


class CallMemory:
    """What one run's agents have called. `counts` is cache name → query → how often, as the seed design has it."""

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}
        self._kept: OrderedDict[tuple[str, str], CallOutcome] = OrderedDict()
        self._epochs: dict[str, int] = {}  # agent → how often it changed something
        self._seen: dict[tuple[str, str], int] = {}  # call → epoch in which the agent was shown its result

    def check(self, cache_name: str, query: str) -> DuplicateCheck:
        count = self._count(cache_name, query)
        return DuplicateCheck(count > 0, count)

    def _count(self, cache_name: str, query: str) -> int:
        queries = self.counts.get(cache_name)
        return queries.get(query, 0) if queries else 0

    def record(self, cache_name: str, query: str) -> None:
        queries = self.counts.setdefault(cache_name, {})
        queries[query] = queries.get(query, 0) + 1

    def look(self, agent: str, tool_name: str, query: str) -> tuple[bool, CallOutcome | None]:
        """Whether the agent has this call's result already, and nothing it did since can have changed it; and the
        outcome of the same call, if it is still current and kept.
        """
        place = (agent, query)
        epoch, seen = self._epoch(agent), self._seen.get(place)
        repeated = seen in (None, epoch) and self._count(cache_name(agent, tool_name), query) > 0
        return repeated, self._kept.get(place) if seen == epoch else None

    def keep(self, agent: str, query: str, outcome: CallOutcome) -> None:
        place = (agent, query)
        self._seen[place] = self._epoch(agent)
        self._kept[place] = outcome
        self._kept.move_to_end(place)
        if len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)

    def something_changed(self, agent: str) -> None:
        """After a call that changes things: what was read before it may rightly be read again."""
        self._epochs[agent] = self._epoch(agent) + 1

    def begin_attempt(self, agent: str) -> None:
        """A new attempt starts with an empty history: no call is a repetition, kept results may still be given."""
        for cache_name in [name for name in self.counts if name.startswith(f"{agent}_")]:
            del self.counts[cache_name]

    def _epoch(self, agent: str) -> int:
        return self._epochs.get(agent, 0)
