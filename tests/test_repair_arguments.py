"""Arguments against a tool's schema: near-misses are repaired and named, everything else gets one exact sentence."""

from __future__ import annotations

import copy
import importlib.util
import json
import random
import time
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout.errors import ToolDefinitionError
from closeout.repair import RepairedArguments, SchemaRules, repair_arguments
from closeout.repair.fitting import Fitting

SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "q": {"type": "string"},
        "num": {"type": "integer", "minimum": 1, "maximum": 100},
        "ratio": {"type": "number"},
        "gl": {"type": "string", "enum": ["us", "cn", "United Kingdom"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "ids": {"type": "array", "items": {"type": "integer"}},
        "safe": {"type": "boolean"},
        "page": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "filter": {"$ref": "#/$defs/Filter"},
        "either": {"oneOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]},
    },
    "required": ["q"],
    "additionalProperties": False,
    "$defs": {
        "Filter": {
            "type": "object",
            "properties": {"maxAge": {"type": "integer"}, "inner": {"$ref": "#/$defs/Filter"}},
            "required": ["maxAge"],
        }
    },
}
EXTRACT = {
    "type": "object",
    "properties": {"url": {"type": "string"}, "info_to_extract": {"type": "string"}},
    "required": ["url", "info_to_extract"],
}


def test_a_text_that_names_the_parameter_is_not_its_value() -> None:
    schema = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]}
    assert repair_arguments("ada: the admin", schema).arguments == {"to": "ada: the admin"}
    for text in ('to="ada"', "to: ada", 'pay(to="ada")', '"to": "ada"'):
        assert repair_arguments(text, schema).errors or repair_arguments(text, schema).arguments == {"to": "ada"}


def test_an_empty_list_is_an_empty_object_as_php_writes_it() -> None:
    for schema in ({"type": "object"}, {"type": "object", "properties": {"a": {"type": "string"}}}):
        found = repair_arguments("[]", schema)
        assert (found.arguments, kinds(found)) == ({}, ["empty_arguments"])
    assert repair_arguments('""', {"type": "object"}).arguments == {}
    one_list = {"type": "object", "properties": {"ids": {"type": "array"}}, "required": ["ids"]}
    assert repair_arguments("[]", one_list).arguments == {"ids": []}
    assert repair_arguments("[]", SEARCH).errors


def kinds(repaired: RepairedArguments) -> list[str]:
    return [repair.kind for repair in repaired.repairs]


@pytest.mark.parametrize(
    ("given_", "wanted", "kind"),
    [
        # names
        ({"Q": "x"}, {"q": "x"}, "argument_case"),
        ({"q": "x", "filter": {"max-age": 3}}, {"q": "x", "filter": {"maxAge": 3}}, "argument_case"),
        ({"query": "x"}, {"q": "x"}, "argument_synonym"),
        ({"arguments": {"q": "x"}}, {"q": "x"}, "unwrapped"),
        ({"name": "search", "arguments": '{"q": "x"}'}, {"q": "x"}, "unwrapped"),
        # types
        ({"q": "x", "num": "5"}, {"q": "x", "num": 5}, "string_to_number"),
        ({"q": "x", "num": "5.0"}, {"q": "x", "num": 5}, "string_to_number"),
        ({"q": "x", "ratio": "1250.5"}, {"q": "x", "ratio": 1250.5}, "string_to_number"),
        ({"q": "x", "safe": "True"}, {"q": "x", "safe": True}, "string_to_boolean"),
        ({"q": "x", "safe": 0}, {"q": "x", "safe": False}, "number_to_boolean"),
        ({"q": 2024}, {"q": "2024"}, "number_to_string"),
        ({"q": ["x"]}, {"q": "x"}, "list_to_value"),
        ({"q": "x", "tags": "a"}, {"q": "x", "tags": ["a"]}, "value_to_list"),
        ({"q": "x", "tags": "['a', 'b']"}, {"q": "x", "tags": ["a", "b"]}, "string_to_list"),
        ({"q": "x", "ids": "1, 2"}, {"q": "x", "ids": [1, 2]}, "value_to_list"),
        ({"q": "x", "ids": ["1", 2]}, {"q": "x", "ids": [1, 2]}, "string_to_number"),
        ({"q": "x", "filter": '{"maxAge": 3}'}, {"q": "x", "filter": {"maxAge": 3}}, "string_to_object"),
        (
            {"q": "x", "filter": {"maxAge": 1, "inner": {"max_age": "2"}}},
            {"q": "x", "filter": {"maxAge": 1, "inner": {"maxAge": 2}}},
            "string_to_number",
        ),
        ({"q": "x", "either": ["1"]}, {"q": "x", "either": [1]}, "string_to_number"),
        ({"q": "x", "page": "3"}, {"q": "x", "page": 3}, "string_to_number"),
        ({"q": "x", "page": "null"}, {"q": "x", "page": None}, "string_to_null"),
        # enums and nulls
        ({"q": "x", "gl": "united kingdom"}, {"q": "x", "gl": "United Kingdom"}, "enum_case"),
        ({"q": "x", "gl": "united_kingdom"}, {"q": "x", "gl": "United Kingdom"}, "enum_case"),
        ({"q": "x", "num": None}, {"q": "x"}, "null_dropped"),
        ({"q": "x", "num": "None"}, {"q": "x"}, "null_dropped"),
        # what is no object
        ("hello world", {"q": "hello world"}, "lone_value"),
        (["x"], {"q": "x"}, "lone_value"),
        ([{"q": "x"}], {"q": "x"}, "list_to_value"),
        ('{"q": "a \\ud83d b",}', {"q": "a \ufffd b"}, "trailing_comma"),
        ('{"q": "x",}', {"q": "x"}, "trailing_comma"),
    ],
)
def test_near_misses_become_valid_and_are_named(given_: Any, wanted: Any, kind: str) -> None:
    before = copy.deepcopy(given_)
    repaired = repair_arguments(given_, SEARCH)
    assert repaired.errors == ()
    assert repaired.arguments == wanted
    assert kind in kinds(repaired)
    assert given_ == before


def test_a_valid_call_comes_back_as_the_same_object() -> None:
    arguments = {"q": "x", "num": 5, "page": None, "filter": {"maxAge": 1, "extra": "kept"}}
    repaired = repair_arguments(arguments, SEARCH)
    assert repaired.arguments is arguments
    assert repaired.repairs == ()


def test_declared_aliases_and_defaults() -> None:
    aliases = {"info_to_extract": ("description", "introduction")}
    repaired = repair_arguments({"url": "u", "introduction": "who?"}, EXTRACT, aliases)
    assert repaired.arguments == {"url": "u", "info_to_extract": "who?"}
    code = {
        "type": "object",
        "properties": {"code_block": {}, "sandbox_id": {}},
        "required": ["code_block", "sandbox_id"],
    }
    repaired = repair_arguments({"code": "1"}, code, {"code_block": ("code",)}, defaults={"sandbox_id": "default"})
    assert repaired.arguments == {"code_block": "1", "sandbox_id": "default"}
    assert kinds(repaired) == ["argument_alias", "argument_default"]


def test_an_alias_never_takes_a_parameter_of_its_own_name() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}, "query": {"type": "string"}}, "required": ["q"]}
    assert not repair_arguments({"query": "x"}, schema, {"q": ("query",)}).ok


def test_a_name_with_another_meaning_is_not_taken_for_a_misspelling() -> None:
    schema = {
        "type": "object",
        "properties": {"min_number_of_results": {"type": "integer"}, "max_number_of_results": {"type": "integer"}},
        "required": ["max_number_of_results"],
        "additionalProperties": False,
    }
    assert not repair_arguments({"min_number_of_results": 3}, schema).ok
    assert not repair_arguments({"mid_number_of_results": "?"}, schema).ok


def test_the_leftover_argument_must_have_the_right_type() -> None:
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
    assert repair_arguments({"limit": "3"}, schema).arguments == {"count": 3}
    assert not repair_arguments({"limit": "three"}, schema).ok


OPPOSITES = [
    ("lock", "unlock"),
    ("min_price", "max_price"),
    ("start_date", "end_date"),
    ("user_id", "user_ip"),
    ("temp_celsius", "temp_fahrenheit"),
    ("include_tags", "exclude_tags"),
    ("file_v1", "file_v2"),
    ("latitude", "altitude"),
    ("before", "after"),
    ("nitrate", "nitrite"),
]


@pytest.mark.parametrize(("wanted", "written"), [*OPPOSITES, *((b, a) for a, b in OPPOSITES)])
def test_an_argument_of_another_meaning_is_refused_whether_required_or_optional(wanted: str, written: str) -> None:
    needed = {"type": "object", "properties": {wanted: {"type": "string"}}, "required": [wanted]}
    assert not repair_arguments({written: "x"}, needed).ok
    optional = {"type": "object", "properties": {wanted: {}}, "additionalProperties": False}
    assert not repair_arguments({written: "x"}, optional).ok


@pytest.mark.parametrize(
    ("allowed", "written"),
    [
        (["asc"], "desc"),
        (["descending"], "ascending"),
        (["A+", "B+"], "A-"),
        (["1m", "5m"], "1M"),
        (["M", "F"], "m"),
        (["-created"], "created"),
        (["v1.5"], "v15"),
        ([">=", "<="], ">"),
        (["Gambia"], "Zambia"),
        (["prednisolone"], "prednisone"),
        (["Hertford"], "Hartford"),
        (["MW"], "mW"),
        (["mW"], "MW"),
        (["MB"], "Mb"),
        (["MPa"], "mPa"),
        (["UTC+5", "UTC-5"], "UTC 5"),
        (["UTC-5"], "UTC 5"),
        (["T+1"], "T1"),
        (["NA"], "N/A"),
        (["us"], "US"),
        (["Straße", "STRASSE"], "strasse"),
        (["celsius", "Celsius"], "CELSIUS"),
        (["C", "C++"], "C#"),
        (["enabled"], "disabled"),
        ([1, 2], "-1"),
    ],
)
def test_an_enum_value_of_another_meaning_is_refused(allowed: list[Any], written: str) -> None:
    schema = {"type": "object", "properties": {"it": {"enum": allowed}}, "required": ["it"]}
    assert not repair_arguments({"it": written}, schema).ok


def test_names_and_values_are_not_repaired_by_likeness() -> None:
    schema = {"type": "object", "properties": {"destination": {"enum": ["berlin"]}}, "required": ["destination"]}
    assert repair_arguments({"Destination": "Berlin"}, schema).arguments == {"destination": "berlin"}
    assert not repair_arguments({"destinatoin": "berlin"}, schema).ok
    assert not repair_arguments({"destinations": "berlin"}, schema).ok
    assert not repair_arguments({"destination": "berlni"}, schema).ok


ONE = {"type": "object", "required": ["it"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("member", "written", "value"),
    [
        # A number for a text keeps its characters.
        ({"type": "string"}, "3.10", "3.10"),
        ({"type": "string"}, "12e4567", "12e4567"),
        ({"type": "string"}, "0xFF0000", "0xFF0000"),
        ({"type": "string"}, "0644", "0644"),
        ({"type": "string"}, "+49151", "+49151"),
        ({"type": "string"}, "1_000", "1_000"),
        ({"type": "string"}, "175928847299117063", "175928847299117063"),
        ({"type": "array", "items": {"type": "string"}}, "[3.10]", ["3.10"]),
        # A text for a number is that number exactly.
        ({"type": "integer"}, '"175928847299117063"', 175928847299117063),
        ({"type": "number"}, '"175928847299117063"', 175928847299117063),
        ({"type": "number"}, '"3.10"', 3.1),
        ({"type": "integer"}, '"007"', 7),
        ({"type": "integer"}, "0x1F", 31),
        ({"type": "array", "items": {"type": "integer"}}, '"5, 101"', [5, 101]),
        # What may be two things is neither.
        ({"type": "integer"}, '"0644"', None),
        ({"type": "integer"}, "0644", None),
        ({"type": "integer"}, '"10.000"', None),
        ({"type": "integer"}, '"12e4567"', None),
        ({"type": "number"}, '"12e4567"', None),
        ({"type": "number"}, '"1e-999"', None),
        ({"type": "number"}, '"1,250"', None),
        ({"type": "number"}, '"0.12345678901234567890"', None),
        ({"type": "number"}, '"175928847299117063.5"', None),
        ({"type": "number"}, "-", None),
        ({"type": "number"}, ".2530586990557906148171087", None),
        ({"type": "integer"}, "7, 7", None),
        ({"type": "string"}, "True", None),
        ({"type": "string"}, "-0", "-0"),
        ({"type": "array", "items": {"type": "integer"}}, '"5,101"', None),
        ({"type": "array", "items": {"type": "string"}}, '"Paris, France"', None),
        ({"type": "boolean"}, '"hardly yes"', None),
        # A null is no value for what is required, whatever its default.
        ({"type": "boolean", "default": True}, "null", None),
    ],
)
def test_a_repaired_value_is_the_value_that_was_written(member: dict[str, Any], written: str, value: Any) -> None:
    repaired = repair_arguments(f'{{"it": {written}}}', ONE | {"properties": {"it": member}})
    assert repaired.arguments["it"] == value if value is not None else not repaired.ok
    if value is not None:
        assert type(repaired.arguments["it"]) is type(value)


def test_a_number_that_was_read_keeps_its_digits_only_if_its_text_is_known() -> None:
    schema = ONE | {"properties": {"it": {"type": "string"}}}
    assert repair_arguments({"it": 3.1}, schema, written='{"it": 3.10}').arguments == {"it": "3.10"}
    assert repair_arguments({"it": 3.1}, schema).errors == ('Argument "it" must be a string, not 3.1.',)
    assert not repair_arguments({"it": 3.1}, schema, written='{"it": 3.11}').ok


NUMBERS = {
    "type": "object",
    "properties": {
        "amount": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^\d+(\.\d+)?$"}]},  # a Decimal
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "any": {"type": "object"},
    },
    "additionalProperties": False,
    "$defs": {
        "item": {"type": "object", "properties": {"price": {"anyOf": [{"type": "number"}, {"type": "string"}]}}},
    },
}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"amount": 12345678901234567.89}', {"amount": "12345678901234567.89"}),
        ('{"amount": 0.1234567890123456789e2}', {"amount": "12.34567890123456789"}),
        ('{"amount": 10.10}', {"amount": 10.1}),
        ('{"items": [{"price": 0.1234567890123456789}]}', {"items": [{"price": "0.1234567890123456789"}]}),
        ('{"arguments": {"amount": 12345678901234567.89}}', {"amount": "12345678901234567.89"}),
        ('{"count": 9007199254740993.0}', {"count": 9007199254740993}),
        ('{"share": 0.1234567890123456789}', {"share": 0.1234567890123456789}),
        ('{"share": 1.5, "count": "3"}', {"share": 1.5, "count": 3}),
        ('{"any": {"x": 0.1234567890123456789}}', {"any": {"x": 0.1234567890123456789}}),
        ('{"count": 4278085988754883338457390.107}', None),
        ('{"share": 1e400}', None),
        ('{"any": {"x": 1e400}}', None),
        ('{"count": 1e99999999999999999999}', None),
    ],
)
def test_a_number_keeps_its_digits_where_the_schema_takes_more_than_a_float(written: str, read: Any) -> None:
    for arguments, text in ((written, ""), (json.loads(written), written)):
        repaired = repair_arguments(arguments, NUMBERS, written=text)
        assert repaired.arguments == read if read is not None else "number" in repaired.errors[0]


@pytest.mark.parametrize("name", ["dry_run", "confirm", "where", "currency"])
def test_an_unknown_argument_is_kept_or_refused_unless_the_tool_only_reads(name: str) -> None:
    refused = repair_arguments({"q": "x", name: False}, SEARCH)
    assert refused.errors[0].startswith(f'The arguments may not have "{name}"')
    assert repair_arguments({"q": "x", name: None}, SEARCH).arguments == {"q": "x"}
    assert repair_arguments({"q": "x", name: False}, SEARCH, drop_unknown=True).arguments == {"q": "x"}


def test_a_key_twice_in_valid_json_is_refused() -> None:
    assert "two different ones" in repair_arguments('{"q": "a", "q": "b"}', SEARCH).errors[0]


def test_an_envelope_is_not_opened_where_a_name_beside_it_is_a_parameter() -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "q": {"type": "string"}}, "required": ["q"]}
    assert repair_arguments({"name": "f", "arguments": {"q": "x"}}, schema).arguments == {"q": "x"}
    assert not repair_arguments({"id": 7, "arguments": {"q": "x"}}, schema).ok


def test_an_unknown_argument_that_resembles_a_parameter_is_not_dropped() -> None:
    schema = {
        "type": "object",
        "properties": {"q": {"type": "string"}, "max_price": {"type": "number"}},
        "required": ["q"],
        "additionalProperties": False,
    }
    refused = repair_arguments({"q": "x", "min_price": 5}, schema, drop_unknown=True)
    assert refused.errors == ('The arguments may not have "min_price"; there is only "q", "max_price".',)
    assert repair_arguments({"q": "x", "min_price": None}, schema).ok
    assert repair_arguments({"q": "x", "mood": "good"}, schema, drop_unknown=True).ok


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("00501", "string", "00501"),
        ("-00", "string", "-00"),
        ("00.5", "string", "00.5"),
        ("1e5", "string", "1e5"),
        ("true", "string", "true"),
        ("5", "integer", 5),
        ("007", "integer", 7),
        ("true", "boolean", True),
        ('"quoted"', "string", "quoted"),
        ("00.5", "boolean", None),
        ("--5", "integer", None),
    ],
)
def test_a_bare_scalar_is_the_only_argument_as_it_is_written_or_refused(text: str, kind: str, wanted: Any) -> None:
    schema = {"type": "object", "properties": {"it": {"type": kind}}, "required": ["it"]}
    repaired = repair_arguments(text, schema)
    if wanted is None:
        assert not repaired.ok
    else:
        assert repaired.arguments == {"it": wanted}


def test_a_call_with_a_million_arguments_is_refused_at_once_and_the_limit_is_named() -> None:
    many = {str(number): number for number in range(1_000_000)}
    began = time.process_time()
    assert "at most 10,000 arguments, got 1,000,000" in repair_arguments(many, {"type": "object"}).errors[0]
    assert time.process_time() - began < 2
    text = json.dumps({str(number): number for number in range(20_000)})
    assert "at most 10,000 arguments, got 20,000" in repair_arguments(text, {"type": "object"}).errors[0]


def test_a_defaulted_parameter_of_the_schema_is_filled_in() -> None:
    schema = {"type": "object", "properties": {"lang": {"type": "string", "default": "en"}}, "required": ["lang"]}
    assert repair_arguments({}, schema).arguments == {"lang": "en"}


def test_plain_code_for_a_tool_with_one_parameter_is_not_read_as_json() -> None:
    schema = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    assert repair_arguments('print({"a": 1})', schema).arguments == {"code": 'print({"a": 1})'}


@pytest.mark.parametrize("text", ['("Bern", 3)', "｛“q”：“Bern”，“num”：３｝"])
def test_several_arguments_in_an_odd_form_are_not_one_value(text: str) -> None:
    assert not repair_arguments(text, SEARCH).ok
    assert repair_arguments("(3 + 4) * 2", SEARCH).arguments == {"q": "(3 + 4) * 2"}


@pytest.mark.parametrize(
    ("given_", "sentence"),
    [
        ({}, 'Missing argument "q"; send {"q": string, …}.'),
        ({"x": 1, "y": 2}, 'Missing argument "q" (given: "x", "y"); send {"q": string, …}.'),
        ({"q": "x", "num": "many"}, 'Argument "num" must be an integer, not "many".'),
        ({"q": "x", "gl": "fr"}, 'Argument "gl" must be one of "us", "cn", "United Kingdom", not "fr".'),
        ({"q": "x", "num": "5", "gl": "fr"}, 'Argument "gl" must be one of "us", "cn", "United Kingdom", not "fr".'),
        ({"q": "x", "num": 500}, 'Argument "num" does not fit: 500 is greater than the maximum of 100.'),
        ({"q": "x", "filter": {}}, 'Argument "filter" lacks "maxAge".'),
        ({"q": "x", "ids": [1, "two"]}, 'Argument "ids[1]" must be an integer, not "two".'),
        ({"q": "x", "page": "two"}, 'Argument "page" must be integer|null, not "two".'),
    ],
)
def test_arguments_that_cannot_be_repaired_get_one_exact_sentence(given_: Any, sentence: str) -> None:
    assert repair_arguments(given_, SEARCH) == (given_, (), (sentence,))


def test_the_same_change_of_many_items_is_one_entry() -> None:
    repaired = repair_arguments({"q": "x", "ids": [str(number) for number in range(500)]}, SEARCH)
    (repair,) = repaired.repairs
    assert (repair.kind, repair.where) == ("string_to_number", "arguments.ids[0]")
    assert "500 places" in repair.after


def test_an_object_of_thousands_of_unknown_arguments_is_refused_at_once() -> None:
    assert not repair_arguments({f"argument_{number}": number for number in range(6_000)}, SEARCH).ok


def test_a_text_that_was_cut_off_is_not_made_a_call() -> None:
    repaired = repair_arguments('{"q": "x"', SEARCH, truncated=True)
    assert "cut off" in repaired.errors[0]


def test_an_invalid_schema_is_an_error_that_says_so() -> None:
    with pytest.raises(ToolDefinitionError, match="not a JSON Schema"):
        repair_arguments({}, {"type": "strng"})
    with pytest.raises(ToolDefinitionError, match=r"example\.com"):
        repair_arguments({}, {"$ref": "https://example.com/schema.json"})


def test_a_schema_is_compiled_once_for_its_content() -> None:
    assert SchemaRules.of(SEARCH) is SchemaRules.of(copy.deepcopy(SEARCH))


@pytest.mark.parametrize("depth", [150, 5_000, 100_000])
def test_deep_arguments_are_checked_or_refused_but_never_overflow(depth: int) -> None:
    value: Any = []
    for _ in range(depth):
        value = [value]
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/L"}},
        "$defs": {"L": {"items": {"$ref": "#/$defs/L"}}},
    }
    assert repair_arguments({"a": value}, schema).ok == (depth < 200)


def test_guesses_within_guesses_take_bounded_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {
        "type": "object",
        "properties": {"child": {"$ref": "#/$defs/N"}, "n": {"type": "integer"}},
        "required": ["child"],
    }
    schema = {**node, "$defs": {"N": node}}
    value: Any = {"n": "x"}
    for _ in range(30):
        value = {"chld": value, "n": "5"}
    looked_at = 0
    fit = Fitting.fit

    def counted(*args: Any, **keys: Any) -> Any:
        nonlocal looked_at
        looked_at += 1
        return fit(*args, **keys)

    monkeypatch.setattr(Fitting, "fit", counted)
    assert not repair_arguments(value, schema).ok
    assert looked_at < 10_000


# -------------------------------------------------------------------------------------- properties

leaf = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer"},
        {"type": "number"},
        {"type": "boolean"},
        {"enum": ["red", "green", "blue"]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "object", "properties": {"deepKey": {"type": "integer"}}, "required": ["deepKey"]},
    ]
)
names = st.sampled_from(["q", "query", "max_results", "min_results", "url", "infoToExtract", "user-id", "flag"])
schemas = st.builds(
    lambda properties, needed, closed: {
        "type": "object",
        "properties": properties,
        "required": sorted(properties)[:needed],
        **({"additionalProperties": False} if closed else {}),
    },
    st.dictionaries(names, leaf, max_size=5),
    st.integers(0, 3),
    st.booleans(),
)
scalars = st.sampled_from(
    ["x", "5", "true", "null", "RED", "[1]", '{"deep_key": "3"}', 5, 2.5, True, None, "\ud800", ""]
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2), max_leaves=4
)
calls = st.dictionaries(
    names | st.sampled_from(["Query", "maxResults", "info_to_extract", "other"]), values, max_size=4
)


def is_valid(call: Any, schema: dict[str, Any]) -> bool:
    try:
        return jsonschema_rs.validator_for(schema).is_valid(call)
    except UnicodeEncodeError:  # a lone surrogate where the validator has to look into the text
        return False


@given(calls | values | st.text(max_size=40), schemas)
def test_what_comes_back_without_errors_validates_and_valid_calls_are_untouched(
    call: Any, schema: dict[str, Any]
) -> None:
    repaired = repair_arguments(call, schema)
    if repaired.ok:
        assert is_valid(repaired.arguments, schema)
    else:
        assert repaired.arguments is call
        assert all(error.endswith(".") and len(error) <= 400 for error in repaired.errors)
    if isinstance(call, dict) and is_valid(call, schema):
        assert repaired.arguments is call
        assert repaired.repairs == ()
    elif repaired.ok:
        assert repaired.repairs or json.loads(call) == repaired.arguments


bare_scalars = (
    st.from_regex(r"[+-]?[0-9]{1,6}(\.[0-9]{0,3})?(e[0-9])?", fullmatch=True)
    | st.from_regex(r"[\"'0-9a-z.:,+ -]{1,12}", fullmatch=True)
    | st.sampled_from(["null", "None", "true", "NaN", "-Infinity", "''", '"', "0x1F", "1_000", "٣", "\ud800"])
)


@given(bare_scalars, schemas, st.booleans())
def test_a_bare_scalar_ends_as_a_valid_call_or_a_refusal(text: str, schema: dict[str, Any], truncated: bool) -> None:
    repaired = repair_arguments(text, schema, truncated=truncated)
    assert is_valid(repaired.arguments, schema) if repaired.ok else repaired.arguments is text


plain_schemas = st.builds(
    lambda members, required, closed: {
        "type": "object",
        "properties": {name: {"type": kind, "description": "what it is"} for name, kind in members.items()},
        "required": [name for name in members if name in required],
        **({"additionalProperties": False} if closed else {}),
    },
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(["string", "integer", "boolean", "number", "null"])),
    st.sets(st.sampled_from("abc")),
    st.booleans(),
)
plain_values = (
    st.text(max_size=5)
    | st.integers()
    | st.integers(min_value=2**63)
    | st.booleans()
    | st.none()
    | st.floats()
    | st.just("\ud800")
    | st.lists(st.none(), max_size=1)
)


@given(plain_schemas, st.dictionaries(st.sampled_from("abcd"), plain_values, max_size=4))
def test_what_the_plainest_schemas_accept_is_what_the_validator_accepts(schema: dict[str, Any], call: Any) -> None:
    try:
        expected = jsonschema_rs.validator_for(schema).is_valid(call)
    except (ValueError, TypeError):  # no JSON: a lone surrogate, a number without a value
        expected = False
    assert SchemaRules.of(schema).accepts(call) == expected


def test_random_values_mean_what_was_written_or_are_refused() -> None:
    path = Path(__file__).parents[1] / "bench" / "never_wrong.py"
    spec = importlib.util.spec_from_file_location("never_wrong", path)
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    assert "3,000 values: 0 executed with another meaning" in bench.measure_values(3_000, False, random.Random(11))
