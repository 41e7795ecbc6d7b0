"""Refuse schemas that check one value against too many others: references make that exponential in their length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

__all__ = ["MOST_AT_ONCE", "too_wide"]

MOST_AT_ONCE = 10_000  # schemas that one value is checked against: a validator takes about a second for them

_SEVERAL = ("allOf", "anyOf", "oneOf")
_ONE = ("not", "if", "then", "else")
_BY_NAME = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")


def too_wide(schema: Mapping[str, Any]) -> str:
    """Return what is wrong with a schema that a validator could not finish with; empty if nothing."""
    try:
        counting = _Counting(schema)
        width = max(map(counting.width, counting.nodes))
    except RecursionError:
        return "its references or schemas are nested too deeply"
    return f"one value is checked against more than {MOST_AT_ONCE:,} schemas" if width > MOST_AT_ONCE else ""


class _Counting:
    """Counts how many schemas a value is checked against."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.nodes = list(_mappings(schema))
        self._bases = [schema, *(node for node in self.nodes if "$id" in node)]
        self._anchors = {node[key]: node for node in self.nodes for key in _ANCHORS if isinstance(node.get(key), str)}
        self._widths: dict[int, int] = {}

    def width(self, node: Any) -> int:
        if not isinstance(node, Mapping):
            return 1
        found = self._widths.get(id(node))
        if found is None:
            self._widths[id(node)] = 1  # a validator ends loops
            found = 1
            for each in self._beside(node):
                found = min(found + self.width(each), MOST_AT_ONCE + 1)
            self._widths[id(node)] = found
        return found

    def _beside(self, node: Mapping[str, Any]) -> Iterator[Any]:
        """The schemas that a value is checked against together with this one."""
        for key in _SEVERAL:
            if isinstance(node.get(key), list):
                yield from node[key]
        yield from (node[key] for key in _ONE if key in node)
        for key in _BY_NAME:
            if isinstance(node.get(key), Mapping):
                yield from node[key].values()
        for key in _REFERENCES:
            if isinstance(node.get(key), str):
                yield from self._meant(node[key])

    def _meant(self, reference: str) -> Iterator[Any]:
        """What a reference may mean, whichever schema it is relative to."""
        base, _, place = reference.partition("#")
        if place and not place.startswith("/"):
            yield self._anchors.get(place)
            return
        for each in self._bases:
            if base and not str(each.get("$id")).endswith(base):
                continue
            found: Any = each
            for part in place.split("/")[1:]:
                part = unquote(part).replace("~1", "/").replace("~0", "~")
                if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                    found = found[int(part)]
                else:
                    found = found.get(part) if isinstance(found, Mapping) else None
            yield found


def _mappings(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Every object in a schema."""
    left, seen = [schema], set[int]()
    while left:
        each = left.pop()
        if not isinstance(each, Mapping | list) or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Mapping):
            yield each
        left += each.values() if isinstance(each, Mapping) else each
