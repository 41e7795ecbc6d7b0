"""Tool search on a pool of functions: how often it finds the right one, and what its prompt costs.

Reads the functions and questions of the Berkeley Function-Calling Leaderboard: a JSON Lines file with `question`,
`functions` (name, description, parameters) and `gold_calls` (name, args: each a list of right values). All functions
are one pool. A right function counts as found if it is among the five that a search returns. The query is the question
as it is; then each of its parts too, as a model that searches once for each thing it needs would do. "Another function
that takes the call": the five hold one that accepts the right call's arguments as they are.

    python bench/tool_search.py items.jsonl
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from closeout.errors import ToolDefinitionError
from closeout.messages import ToolSpec
from closeout.repair.schema_rules import SchemaRules
from closeout.tools.search_tools import ToolIndex, definition_tokens, make_search_tools

PART = re.compile(
    r"(?<=[.;?!])\s+|\n+|,?\s+(?:and then|and also|then|also|as well as|after that)\s+|,\s+and\s+|\s+and\s+",
    re.IGNORECASE,
)
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None, "String": "string", "hashmap": "object"}


def as_schema(schema: Any) -> Any:
    """The benchmark's Python names of types as those of JSON Schema."""
    if isinstance(schema, list):
        return [as_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    fixed = {key: as_schema(value) for key, value in schema.items() if key != "optional"}
    kind = fixed.get("type")
    if isinstance(kind, str) and kind in TYPES:
        if TYPES[kind] is None:
            del fixed["type"]
        else:
            fixed["type"] = TYPES[kind]
    return fixed


def parts_of(question: str) -> list[str]:
    return [part for part in PART.split(question) if part and len(part.split()) >= 3]


def takes(spec: ToolSpec, call: dict[str, Any], rules: dict[str, SchemaRules]) -> bool:
    """Whether a tool accepts the arguments of the right call: its parameters have these names and types."""
    right = call["args"] if isinstance(call["args"], dict) else {}
    arguments = {name: values[0] for name, values in right.items() if values and values[0] != ""}
    if not arguments or not arguments.keys() <= spec.parameters.get("properties", {}).keys():
        return False
    try:
        known = rules.setdefault(spec.name, SchemaRules.of(spec.parameters))
    except ToolDefinitionError:
        return False
    return known.accepts(arguments)


def main() -> None:
    items = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    pool: dict[str, ToolSpec] = {}
    for item in items:
        for function in item["functions"]:
            spec = ToolSpec(function["name"], function["description"], as_schema(function["parameters"]))
            pool.setdefault(spec.name, spec)
    specs = tuple(pool.values())
    began = time.perf_counter()
    index = ToolIndex(specs)
    indexed = time.perf_counter() - began

    searches, seconds, shown = 0, 0.0, 0
    found = {"question": 0, "parts": 0, "takes": 0}
    wanted = 0
    rules: dict[str, SchemaRules] = {}
    for item in items:
        began = time.perf_counter()
        whole = index.find(item["question"])
        seconds += time.perf_counter() - began
        searches += 1
        shown += sum(definition_tokens([spec]) for spec in whole)
        each = {spec.name: spec for part in parts_of(item["question"]) for spec in index.find(part)}
        both = {**each, **{spec.name: spec for spec in whole}}
        calls = {call["name"]: call for call in item["gold_calls"]}
        for name, call in calls.items():
            wanted += 1
            found["question"] += any(spec.name == name for spec in whole)
            found["parts"] += name in both
            found["takes"] += name in both or any(takes(spec, call, rules) for spec in both.values())

    everything = definition_tokens(specs)
    offered = sum(definition_tokens([tool.spec]) for tool in make_search_tools(lambda: specs))
    with_search = offered + shown / searches
    print(f"{len(specs)} functions, {everything:,} tokens of definitions; indexed in {indexed * 1000:.0f} ms")
    print(f"{len(items)} questions, {wanted} functions to find; a search takes {seconds / searches * 1000:.2f} ms")
    print(f"recall@5, the question as the query:            {found['question'] / wanted:.1%}")
    print(f"recall@5, a search for each of its parts too:   {found['parts'] / wanted:.1%}")
    print(f"  or another function that takes the call:      {found['takes'] / wanted:.1%}")
    share = with_search / everything
    print(f"tokens of the two tools and of one result: {with_search:,.0f}, {share:.2%} of all definitions")


if __name__ == "__main__":
    main()
