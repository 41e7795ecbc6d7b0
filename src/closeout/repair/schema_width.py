"""Count what a schema makes a validator do: references make that exponential in the length of schema and value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

__all__ = ["multiplies", "too_wide"]

MOST_AT_ONCE = 10_000  # schemas that one value is checked against: a validator takes about a second for them
_MOST_PER_VALUE = 10  # checks of each value in a large one, on average

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


def multiplies(schema: Mapping[str, Any], value: Any) -> bool:
    """Return whether a validator that explains what is wrong with a value would check its parts too often.

    A recursive schema with two alternatives doubles the checks at each level of the value. A validator that only tells
    valid from invalid remembers what it has checked; one that collects errors does not.
    """
    most = MOST_AT_ONCE + _MOST_PER_VALUE * sum(1 + len(each) for each in _containers(value))
    try:
        return any(checks > most for checks in _Counting(schema).checks(value))
    except RecursionError:
        return True


class _Counting:
    """Counts how many schemas a value is checked against."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.nodes = list(_mappings(schema))
        self._bases = [schema, *(node for node in self.nodes if "$id" in node)]
        self._anchors = {node[key]: node for node in self.nodes for key in _ANCHORS if isinstance(node.get(key), str)}
        self._widths: dict[int, int] = {}
        self._schema = schema
        self._besides: dict[int, list[Any]] = {}

    def checks(self, value: Any) -> Iterator[int]:
        """Count the checks of a value and of all that it holds, with a running total after each of a list or object."""
        total, left = 0, [(self._schema, value)]
        while left:
            node, value = left.pop()
            total += 1
            if id(node) not in self._besides:
                self._besides[id(node)] = [each for each in self._beside(node) if isinstance(each, Mapping)]
            left += [(each, value) for each in self._besides[id(node)]]
            for schema, part in _parts(node, value):
                if isinstance(part, Mapping | list):
                    left.append((schema, part))
                else:
                    total += self.width(schema)
            yield total

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
        """Yield each schema that a reference may point to, whichever schema it is relative to."""
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


def _containers(value: Any) -> Iterator[Mapping[str, Any] | list[Any]]:
    """Every list and object in a value."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, Mapping | list):
            yield each
            left += each.values() if isinstance(each, Mapping) else each


def _parts(node: Mapping[str, Any], value: Any) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """The values in a list or object, each with every schema in a node that it may be checked against."""
    if isinstance(value, Mapping):
        named = _mapping(node.get("properties"))
        always = [node.get("unevaluatedProperties"), *_mapping(node.get("patternProperties")).values()]
        found = (
            (schema, part)
            for name, part in value.items()
            for schema in (named[name] if name in named else node.get("additionalProperties"), *always)
        )
    elif isinstance(value, list):
        items = node.get("items")
        places = [each for each in (items, node.get("prefixItems")) if isinstance(each, list)]
        always = [items, *(node.get(key) for key in ("additionalItems", "unevaluatedItems", "contains"))]
        found = (
            (schema, part)
            for index, part in enumerate(value)
            for schema in (*(each[index] for each in places if index < len(each)), *always)
        )
    else:
        return
    yield from ((schema, part) for schema, part in found if isinstance(schema, Mapping))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
