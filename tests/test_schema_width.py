"""Schemas and replies of strangers whose checking would take exponential or quadratic time, and what strangers fill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from closeout import Json, UsageError
from closeout.errors import ToolDefinitionError
from closeout.messages import ModelReply, ToolCall, ToolSpec
from closeout.models.streaming import unique_ids
from closeout.repair.argument_repair import repair_arguments
from closeout.repair.schema_rules import SchemaRules
from closeout.repair.schema_width import multiplies, too_wide
from closeout.server.governing import Governor
from closeout.testing import say
from test_proxy import CHAT_TOOLS, proxied


def doubled(reference: str = "#/$defs/d{}", **more: Any) -> dict[str, Any]:
    """A schema of a few lines by which one value is checked two to the power of forty times."""
    levels = {f"d{n}": {"anyOf": [{"$ref": reference.format(n + 1)}] * 2, "$anchor": f"a{n}"} for n in range(40)}
    levels["d40"] = {"type": "integer", "$anchor": "a40"}
    return {"type": "object", "properties": {"n": {"$ref": reference.format(0)}}, "$defs": levels, **more}


WIDE = [
    doubled(),
    doubled("#a{}"),
    doubled("https://example.org/s#/$defs/d{}", **{"$id": "https://example.org/s"}),
    {"type": "object", "allOf": [{"not": {"const": n}} for n in range(10_001)]},
]


@pytest.mark.parametrize("schema", WIDE)
def test_a_schema_that_multiplies_its_checks_is_refused_and_never_checked(schema: dict[str, Any]) -> None:
    with pytest.raises(ToolDefinitionError, match="10,000 schemas"):
        SchemaRules(schema)
    with pytest.raises(UsageError, match="10,000 schemas"):
        Json(schema)
    called = ModelReply("", tool_calls=(ToolCall("t", '{"n": "x"}', "1", text='{"n": "x"}'),))
    assert Governor([ToolSpec("t", parameters=schema)]).judge(called).reply.tool_calls[0].text == '{"n": "x"}'


def test_schemas_of_ordinary_width_are_used() -> None:
    any_value = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}, {"$ref": "#/$defs/deep"}]}
    assert too_wide({**any_value, "$defs": {"deep": {"additionalProperties": {"$ref": "#"}}}}) == ""
    assert too_wide({"$ref": "#"}) == ""
    assert too_wide({"oneOf": [{"properties": {"kind": {"const": n}}} for n in range(5_000)]}) == ""
    itself: dict[str, Any] = {"properties": {}}
    itself["properties"]["again"] = itself
    assert too_wide(itself) == ""


def test_references_nested_without_end_are_refused() -> None:
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(100_000)}
    assert too_wide({"$ref": "#/$defs/d0", "$defs": chain}) == "its references or schemas are nested too deeply"


def tree(**both: Any) -> dict[str, Any]:
    """The schema of a tree whose node is checked in two ways that both check the node below."""
    node = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}, "x": {"type": "integer"}}}
    both = both or {"anyOf": [node, {**node, "title": "again"}]}
    return {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {**node, **both}}}


def nested(depth: int, leaf: Any) -> Any:
    value = {"x": leaf}
    for _ in range(depth):
        value = {"n": value}
    return value


DOUBLING: list[dict[str, Any]] = [
    {},
    {"oneOf": [{"$ref": "#"}, {"$ref": "#"}]},
    {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    {"patternProperties": {"^n": {"$ref": "#/$defs/n"}}},
    {"dependentSchemas": {"n": {"$ref": "#"}}},
    {"not": {"$ref": "#"}},
]


@pytest.mark.parametrize("both", DOUBLING)
def test_a_deep_value_of_a_recursive_schema_is_refused_without_explaining_each_branch(both: dict[str, Any]) -> None:
    schema = tree(**both)  # a validator that collects errors doubles its work at each level
    assert not multiplies(schema, nested(3, "a"))
    assert multiplies(schema, nested(150, "a"))
    refused = repair_arguments(nested(150, "a"), schema)
    assert "do not fit the schema" in refused.errors[0]
    assert Json(schema).read(json.dumps(nested(150, "a"))).problem == "The answer does not fit its schema."


def test_a_shallow_value_of_a_recursive_schema_is_explained() -> None:
    refused = repair_arguments(nested(3, "a"), tree(anyOf=[{}]))
    assert refused.errors == ('Argument "n.n.n.x" must be an integer, not "a".',)


def test_long_and_deep_values_are_explained_where_a_schema_checks_each_once() -> None:
    anything = {"$defs": {"any": {"anyOf": [{"type": "string"}, {"items": {"$ref": "#/$defs/any"}, "type": "array"}]}}}
    deep: Any = 5
    for _ in range(150):
        deep = [deep]
    assert not multiplies({**anything, "properties": {"n": {"$ref": "#/$defs/any"}}}, {"n": deep})
    row = {"type": "object", "properties": {"x": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}
    rows = {"type": "object", "properties": {"rows": {"type": "array", "items": row}}}
    assert not multiplies(rows, {"rows": [{"x": 1}] * 5_000})
    refused = repair_arguments({"rows": [*[{"x": 1}] * 5_000, {"x": "a"}]}, rows)
    assert refused.errors[0].startswith('Argument "rows[5000].x" must be')


def test_the_ids_of_very_many_calls_are_made_unique_in_linear_time() -> None:
    ids = [f"c{n}" for n in range(200_000)]  # comparing each with all before took an hour
    assert unique_ids([*ids, "c0", ""])[-3:] == ["c199999", "call_200000", "call_200001"]


async def test_long_names_and_lists_of_tools_are_not_kept(home: Path) -> None:
    async with proxied(home, lambda _: say("fine")) as server, server.openai() as client:
        asked: Any = {"messages": [{"role": "user", "content": "?"}]}
        with pytest.raises(openai.BadRequestError, match="longer than 1,000 characters"):
            await client.chat.completions.create(model="m" * 1_001, **asked)
        long = [{**CHAT_TOOLS[0], "function": {**CHAT_TOOLS[0]["function"], "description": "x" * 2**18}}]
        for tools in (long, CHAT_TOOLS):
            await client.chat.completions.create(model="m", tools=tools, **asked)
        assert [[tool.name for tool in each.tools] for each in server.proxy._governors.values()] == [
            [tool["function"]["name"] for tool in CHAT_TOOLS]
        ]
