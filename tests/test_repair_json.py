"""Text that should be JSON: what is repaired, under which name, and what is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout.parsing import json_text
from closeout.parsing.json_text import MAX_REPAIRED, RepairedJson, repair_json

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "data/json_repair.jsonl").read_text("utf-8").splitlines()
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def kinds(read: RepairedJson) -> list[str]:
    return [repair.kind for repair in read.repairs]


# -------------------------------------------------------------------------------------- what is repaired


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ('{"q": "x", "n": 2,}', {"q": "x", "n": 2}, "trailing_comma"),
        ("{'q': 'it\\'s \"so\"'}", {"q": 'it\'s "so"'}, "single_quotes"),
        ('{"a": True, "b": False, "c": None}', {"a": True, "b": False, "c": None}, "python_literal"),
        ('{"q": "one\ntwo"}', {"q": "one\ntwo"}, "raw_newline"),
        ('{"q": "He said "hi" to me", "n": 1}', {"q": 'He said "hi" to me', "n": 1}, "unescaped_quote"),
        ('{"html": "<a class="x">y</a>", "n": 1}', {"html": '<a class="x">y</a>', "n": 1}, "unescaped_quote"),
        (r'{"path": "C:\Users\new\table"}', {"path": r"C:\Users\new\table"}, "unescaped_backslash"),
        (r'{"path": "C:\temp\"}', {"path": "C:\\temp\\"}, "unescaped_backslash"),
        (r'{"regex": "\d+\s*(\w+)"}', {"regex": r"\d+\s*(\w+)"}, "unescaped_backslash"),
        ('{"a": 5 // five\n, "b": 6}', {"a": 5, "b": 6}, "comment"),
        ('/* here */ {"a": 5}', {"a": 5}, "comment"),
        ('```json\n{"a": 1}\n```', {"a": 1}, "code_fence"),
        ('"{\\"a\\": 1}"', {"a": 1}, "double_encoded"),
        ('{\\"a\\": \\"b c\\"}', {"a": "b c"}, "escaped_twice"),
        ('{}{"q": "x"}', {"q": "x"}, "concatenated"),
        ('{"q": "x"}{"q": "x"}', {"q": "x"}, "concatenated"),
        ('{"to": ["ann",, "bob"]}', {"to": ["ann", "bob"]}, "extra_comma"),
        ("{“q”: “hello”}", {"q": "hello"}, "smart_quotes"),
        ("{“q”：“你好”，“n”：3}", {"q": "你好", "n": 3}, "full_width"),
        ('｛"q":"他说：“好”，走了"，"n":［1，2］｝', {"q": "他说：“好”，走了", "n": [1, 2]}, "full_width"),
        ("{'q'：“a \"b\" c”,}", {"q": 'a "b" c'}, "full_width"),
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}, "missing_comma"),
        ('{"a" 1}', {"a": 1}, "missing_colon"),
        ("{q: 5}", {"q": 5}, "unquoted_key"),
        ("{q: hello world, n: 3}", {"q": "hello world", "n": 3}, "unquoted_string"),
        ('{"q": "x"', {"q": "x"}, "missing_bracket"),
        ('{"a": [1, 2}', {"a": [1, 2]}, "missing_bracket"),
        ('{"q": "x"}}', {"q": "x"}, "extra_bracket"),
        ('{"a": {"b": 1}}, "c": 2}', {"a": {"b": 1}, "c": 2}, "extra_bracket"),
        ('{{"q": "x"}}', {"q": "x"}, "extra_bracket"),
        ('{"q": "x', {"q": "x"}, "missing_quote"),
        ('{"code": """print("hi")\n""", "n": 1}', {"code": 'print("hi")\n', "n": 1}, "triple_quotes"),
        ('{"a": NaN}', {"a": None}, "not_a_number"),
        ('{"a": undefined}', {"a": None}, "javascript_literal"),
        ('Sure! {"q": "x"} Done.', {"q": "x"}, "surrounding_text"),
        ('google_search({"q": "x"})', {"q": "x"}, "call_syntax"),
        ('\ufeff{"q": "x"}', {"q": "x"}, "byte_order_mark"),
        ('{"a":\u00a05}', {"a": 5}, "odd_space"),
        ("{'a': (1, 2)}", {"a": [1, 2]}, "python_literal"),
    ],
)
def test_common_mistakes_are_repaired_and_named(text: str, value: Any, kind: str) -> None:
    read = repair_json(text)
    assert read.error is None
    assert read.value == value
    assert kind in kinds(read)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_cases_of_jsonrepair_that_we_share(case: dict[str, Any]) -> None:
    read = repair_json(case["input"])
    assert read.value == case["expected"]
    assert (read.repairs == ()) == case["valid"] or "byte" in kinds(read)


def test_a_repair_names_the_place_and_the_old_text() -> None:
    (repair,) = repair_json('{"a": 1, "b": 2,}').repairs
    assert (repair.kind, repair.where) == ("trailing_comma", "character 15")
    assert '"b": 2,}' in repair.before


def test_a_repair_made_in_many_places_is_one_entry_that_counts_them() -> None:
    (repair,) = repair_json("[" + "'a'," * 500 + "'b']").repairs
    assert (repair.kind, repair.after) == ("single_quotes", "501 places")


def test_a_text_of_two_objects_or_of_torn_strings_is_refused() -> None:
    for text in ('{"q": "a"}{"q": "b"}', '{"a": 1}\n{"b": 2}', '{"to": ["ann";"bob"]}'):
        assert repair_json(text).error, text
    assert repair_json('{"to": ()}').value == {"to": []}


def test_a_result_unpacks_and_reads_by_name() -> None:
    value, repairs, error = repair_json("[1,]")
    assert (value, [repair.kind for repair in repairs], error) == ([1], ["trailing_comma"], None)


# -------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "text",
    ["", "   ", "hello world", '{"a", "b": 1}', "<|call|>"],
)
def test_invalid_json_is_an_error_that_says_why(text: str) -> None:
    read = repair_json(text)
    assert read.value is None
    assert read.error


@pytest.mark.parametrize(
    "text",
    [
        '{"code": "d = {"a": "b", "c": 1}"}',  # is c a member of the arguments, or of the code?
        '{"json": "{"a": 1, "b": "x"}"}',
    ],
)
def test_bare_quotes_that_can_be_read_in_two_ways_are_not_guessed_at(text: str) -> None:
    assert "escaped" in (repair_json(text).error or "")


@pytest.mark.parametrize(
    "text", ['{"a": 1', '{"q": "hel', '{"q": "x"', "[1, 2", "12", "-", '{"a": 1,}', "{'a': 1}", ""]
)
def test_a_text_that_was_cut_off_is_never_closed(text: str) -> None:
    read = repair_json(text, truncated=True)
    assert read.value is None
    assert read.error


def test_a_complete_text_is_read_even_if_the_reply_was_cut_off_after_it() -> None:
    assert repair_json('{"a": 1}', truncated=True) == ({"a": 1}, (), None)


def test_a_missing_value_is_never_invented_as_an_empty_text() -> None:
    assert repair_json('{"a",').error


# -------------------------------------------------------------------------------------- properties


@given(json_values)
def test_valid_json_is_untouched(value: Any) -> None:
    text = json.dumps(value)
    read = repair_json(text)
    if not (isinstance(value, str) and value.lstrip()[:1] in ("{", "[")):
        assert read == (json.loads(text), (), None)


@given(st.dictionaries(st.text(max_size=6), json_values, min_size=1, max_size=4))
def test_python_literals_read_as_the_json_they_mean(value: dict[str, Any]) -> None:
    read = repair_json(repr(value))
    assert read.error is not None or read.value == json.loads(json.dumps(value)) or "\\" in repr(value)


@given(st.text(alphabet=st.sampled_from("{}[]\",':\\ \n/*#`aT1-.é“”\ud800\x00"), max_size=60))
def test_no_text_raises_and_every_change_has_a_name(text: str) -> None:
    read = repair_json(text)
    assert (read.error is None) or (read.value is None and read.repairs == ())
    if read.ok and not read.repairs:
        assert json.loads(text) == read.value
    json.dumps(read.value, allow_nan=False)


HOSTILE = [
    '"',
    "'",
    "{",
    "[",
    "}",
    "]",
    ",",
    ":",
    "\\",
    '{"a":',
    "[[1],",
    '"a" ',
    "/*",
    '"""',
    "'a':1,",
    "{a:1}",
    '",a:"',
]


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("start", ["", "{", '["', '{"a": "'])
def test_effort_is_bounded_on_64_kb_of_anything(piece: str, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is not asserted; the steps that take it are: each reads on in the text and none looks far ahead."""
    steps = 0
    spend = json_text.Effort.spend

    def counted(effort: json_text.Effort, position: int) -> None:
        nonlocal steps
        steps += 1
        spend(effort, position)

    monkeypatch.setattr(json_text.Effort, "spend", counted)
    read = repair_json((start + piece * 65_536)[:65_536])
    assert read.ok or read.error
    assert steps <= 2 * 3_001


def test_ten_megabytes_and_deep_nesting_come_back_as_errors() -> None:
    assert repair_json("{'a': " + "x" * 10_000_000).error
    assert len("[" * 100_000) < MAX_REPAIRED
    assert repair_json("[" * 100_000).error
    assert repair_json('{"a":' * 5_000).error
    assert repair_json('{"a": "' + "x" * 500_000).value == {"a": "x" * 500_000}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('["a" "b" "c"]', ["a", "b", "c"]),
        ('{"tags": ["a" "b" "c" "d"]}', {"tags": ["a", "b", "c", "d"]}),
        ("[1 2 3]", [1, 2, 3]),
        ('{"a": Null, "b": NULL, "c": fALSE}', {"a": None, "b": None, "c": False}),
        ("Null", None),
        ("[('move', {'to': (40.7, -74.0)})]", [["move", {"to": [40.7, -74.0]}]]),
        ('{"a": 0x1F}', {"a": "0x1F"}),
        ('{"a": +49151, "b": 1_000}', {"a": "+49151", "b": "1_000"}),
    ],
)
def test_what_has_one_reading_is_repaired(text: str, value: object) -> None:
    read = repair_json(text)

    assert (read.value, read.error) == (value, None)
    assert read.repairs


@pytest.mark.parametrize(
    "text",
    [
        "'x' + 'y'",
        '{"a": "x" + "y"}',
        '{"a": "x" "y"}',
        '{"a": "x" , "y"}',
        "['x' 'y']",
        "[“x” “y”]",
        '{"a":""b""}',
        '{"foo"',
        "{foo}",
        '{"a", "b"}',
        '{"a": none}',
        '{"a": nil}',
        '{"a": tru',
        '{"a": "x\\u00',
        '{"a": 1, "a": 2,}',
        "{'a': (1, 2), 'a': (3,)}",
        "{'a': ('x' 'y')}",
        "{'a': (1, {2})}",
        '{"a": {"b": 1, "b": 2},}',
        '{"a": 1,000}',
        '{"a": "b", c}',
        '{"a": 1;"b":2}',
        '{"a"- "b", "c": 3}',
        '{"a""b"}',
        '{"a": "b",{"a": "b", "c": 1}',
        '{"a": "b"{"a": "b", "c": 1}',
        "{“a”：“b”，“c”：３}",
        '{"a": “b”，“c”}',
        '｛"a": {"b": 1}, "c": x"y｝',
    ],
)
def test_what_has_two_readings_is_refused_with_the_reason(text: str) -> None:
    read = repair_json(text)

    assert read.value is None
    assert read.error
