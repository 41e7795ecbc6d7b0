"""Values as text and back: what is called lossless gives the value back, and auto is never beaten by a single form."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from closeout import Agent, tool
from closeout.errors import UsageError
from closeout.messages import ToolPolicy
from closeout.results import encoding as encoding_module
from closeout.results.encoding import FORMATS, Encoding, decode, encode, register_encoding
from closeout.results.normal import EncodingError, normalise
from closeout.results.present import present
from closeout.results.tokens import count_tokens
from closeout.testing import ScriptedClient, Turn, answer, call

sys.path.insert(0, str(Path(__file__).parent / "harness"))

from payloads import payloads

PAYLOADS = sorted((Path(__file__).parent.parent / "bench" / "data" / "payloads").glob("*.json"))

# Texts that break careless writers: our own marks, other forms' syntax, controls, every kind of line end.
# fmt: off
NASTY = st.sampled_from([
    "#cols", "##cols", "#rows", "#more", "#raw:1", "##raw:2", "#raw:1 5\nabcde", "…", "a|b", "]]>", "<!--", "&amp;",
    "\\|", "- x", "? y", "key: value", "#", "~", "null", "true", "=", "<<", "1e5", "0x1F", "12:30:45", "2020-01-01",
    "\ufeff", "\x00", "\x85", "\u2028", "\r\n", "\t", "'", '"', '"""', "```\ncode\n```", "line\n" * 30,
    '"quoted" \\ text\n' * 9, "中文，字符", "😀", "\x7f", "\ufffe", "", " ", "a,b\n", "%YAML", "...", "---", "!tag",
    "&anchor", "*alias", "@at", "`tick`",
])
# fmt: on
TEXT = st.one_of(st.text(st.characters(codec="utf-8"), max_size=30), NASTY)
NUMBERS = st.one_of(
    st.integers(), st.integers(-(10**30), 10**30), st.floats(allow_nan=False, allow_infinity=False), st.just(-0.0)
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, TEXT)
TABLES = st.lists(TEXT, min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.lists(
        st.integers(1, len(names)).flatmap(lambda width: st.fixed_dictionaries(dict.fromkeys(names[:width], LEAVES))),
        min_size=2,
        max_size=6,
    )
)
VALUES = st.recursive(
    st.one_of(LEAVES, TABLES),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=12,
)


def sorted_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def same(a: Any, b: Any) -> bool:
    """Equal as JSON: 1 and 1.0 are one number, but true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


READABLE = sorted(set(FORMATS) - {"text", "compact", "safe_yaml", "tool_result"})


@pytest.mark.parametrize("form", sorted(set(READABLE) - {"toon"}))
@given(value=VALUES)
def test_a_form_gives_the_value_back(form: str, value: Any) -> None:
    encoded = encode(value, form)
    assert encoded.lossless
    assert same(decode(encoded, form), value)
    str(encoded).encode("utf-8")


@settings(max_examples=30)
@given(value=VALUES)
def test_any_reader_of_base64_or_yaml_reads_the_fixed_forms(value: Any) -> None:
    assert same(json.loads(base64.b64decode(encode(value, "compact").split("|")[0].removeprefix("res:"))), value)
    assert same(yaml.safe_load(encode(value, "safe_yaml"))["result"]["data"], value)


def test_what_is_called_lossless_decodes_to_the_same_value_whatever_literals_it_holds() -> None:
    for value in payloads(0, 500):
        for form in ("auto", "text", *READABLE):
            with suppress(EncodingError):
                encoded = encode(value, form)
                found = decode(encoded, encoded.format)
                assert encoded.lossless == (found == value and sorted_json(found) == sorted_json(value))
                assert encoded.lossless or form in ("toon", "text")


def test_dots_at_the_end_of_a_text_stay_and_a_text_of_digits_stays_a_text() -> None:
    for value in ({"message": "Please wait..."}, {"v": "1..."}, {"a": ["..."]}):
        assert yaml.safe_load(encode(value, "safe_yaml"))["result"]["data"] == value


@pytest.mark.parametrize(
    "value", [float("nan"), [float("inf")], {"at": date(2025, 1, 2)}, {1: "a"}, (1, 2)], ids=lambda value: str(value)
)
def test_a_value_that_json_cannot_hold_is_converted_and_not_called_lossless(value: Any) -> None:
    assert not encode(value).lossless


@pytest.mark.usefixtures("registry")
def test_auto_does_not_choose_a_form_that_reads_back_as_another_value() -> None:
    shorter = Encoding(name="shorter", write=lambda value: "x", read=lambda text: {"other": 1}, automatic=True)
    register_encoding(shorter)
    assert encode({"message": "word " * 100}).format == "json"


@given(value=VALUES)
def test_auto_names_a_form_that_gives_the_value_back_and_is_deterministic(value: Any) -> None:
    encoded = encode(value)
    assert same(decode(encoded, encoded.format), value)
    assert encode(value) == encoded
    assert encoded.tokens <= encoded.baseline_tokens


@pytest.mark.parametrize("path", PAYLOADS, ids=lambda path: path.stem)
def test_on_real_payloads_auto_is_as_small_as_the_best_single_form(path: Path) -> None:
    value = json.loads(path.read_text("utf-8"))
    best = min(encode(value, form).tokens for form in set(FORMATS) - {"text"})
    encoded = encode(value)
    assert encoded.tokens <= best * 1.01
    assert decode(encoded, encoded.format) == value


def test_columns_name_the_keys_once_at_any_depth_and_a_row_may_end_early() -> None:
    value = {"logs": [{"at": 1, "level": "info"}, {"at": 2, "level": "warn", "error": "x"}, {"level": "info", "at": 3}]}
    assert encode(value, "columns") == (
        '{"logs":{"#cols":["at","level","error"],"#rows":[[1,"info"],[2,"warn","x"],[3,"info"]]}}'
    )
    assert decode(encode(value, "columns"), "columns") == value


def test_an_object_that_looks_like_a_table_stays_an_object() -> None:
    value = {"#cols": ["a"], "#rows": [[1]], "##rows": 2}
    assert encode(value, "columns") == '{"##cols":["a"],"##rows":[[1]],"###rows":2}'
    assert decode(encode(value, "columns"), "columns") == value


def test_the_raw_block_carries_code_without_escapes() -> None:
    code = 'def f():\n    return "a\\nb"\n' * 5
    block = encode({"stdout": code, "exit_code": 0}, "raw")
    assert block == f'{{"stdout":"#raw:1","exit_code":0}}\n#raw:1 {len(code)}\n{code}'


def test_the_xml_form_is_escaped_and_typed() -> None:
    value = {"a b": '<x> & "y"', "n": [1, True, None], "c": "\x00"}
    assert encode(value, "tool_result").splitlines()[2].strip() == (
        '<data type="object"><entry key="a b">&lt;x&gt; &amp; &quot;y&quot;</entry><n type="list">'
        '<item type="number">1</item><item type="bool">true</item><item type="null"/></n>'
        '<c type="json">"\\u0000"</c></data>'
    )


def test_chinese_stays_chinese_and_a_string_stays_itself() -> None:
    assert encode({"城市": "北京"}, "json") == '{"城市":"北京"}'
    assert encode("plain text: 你好").format == "text"
    assert encode("plain text: 你好") == "plain text: 你好"


def test_a_lone_surrogate_is_written_as_its_escape() -> None:
    encoded = encode({"a": "x\ud800y"}, "json")
    assert encoded == '{"a":"x\\ud800y"}'
    assert decode(encoded, "json") == {"a": "x\ud800y"}
    assert encode({"a": "x\ud800y" * 40, "b": "line\n" * 40}).encode("utf-8")
    with pytest.raises(EncodingError, match="json"):
        encode({"a": "\ud800"}, "toon")


@pytest.mark.parametrize("form", READABLE)
def test_text_that_is_not_in_the_form_is_refused_by_the_forms_name(form: str) -> None:
    with pytest.raises(EncodingError, match=f"not in the form '{form}'"):
        decode('a: "x\n ]{{<', form)


def test_misuse_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="Use auto, json, columns"):
        encode(1, "jsonl")
    with pytest.raises(UsageError, match="No format is called 'nonsense'"):
        decode("1", "nonsense")
    with pytest.raises(UsageError, match="'tool_result' cannot be read back"):
        decode(encode({"a": 1}, "tool_result"), "tool_result")
    with pytest.raises(UsageError, match="at least 1"):
        encode(1, budget=0)
    with pytest.raises(EncodingError, match=r"\$\.a\[1\]: no JSON value for function"):
        encode({"a": [1, lambda: 0]})


@settings(max_examples=60)
@given(value=VALUES, budget=st.integers(1, 120), form=st.sampled_from(("auto", *FORMATS)))
def test_a_budget_is_kept_by_exact_count_and_cut_json_parses(value: Any, budget: int, form: str) -> None:
    encoded = encode(value, form, budget)
    assert count_tokens(encoded) <= budget
    if not isinstance(value, str) and encoded.format in ("json", "columns"):
        json.loads(encoded)
    if encoded.missing:
        assert not encoded.lossless
    elif encoded.lossless:
        assert same(decode(encoded, encoded.format), value)


@pytest.mark.parametrize("path", PAYLOADS, ids=lambda path: path.stem)
@pytest.mark.parametrize("form", ["auto", *FORMATS])
def test_real_payloads_are_cut_to_any_budget(path: Path, form: str) -> None:
    value = json.loads(path.read_text("utf-8"))
    for budget in (1, 7, 60, 400, 2_000):
        encoded = encode(value, form, budget)
        assert encoded.tokens <= budget
        if form == "json":
            json.loads(encoded)
        if encoded.missing and budget >= 60:
            assert encoded.tokens > budget * 0.4  # the room is used


def test_a_cut_table_keeps_whole_rows_and_counts_the_others() -> None:
    rows = [{"id": number, "name": f"name {number}"} for number in range(500)]
    encoded = encode({"total": 500, "rows": rows}, budget=200)
    table = json.loads(encoded)["rows"]
    assert table["#rows"][0] == [0, "name 0"]
    assert len(table["#rows"]) + table["#more"] == 500
    assert decode(encoded, "columns")["rows"] == rows[: len(table["#rows"])]
    assert encoded.missing == f"{table['#more']} of 500 items at rows"


def test_a_cut_object_keeps_its_keys_and_shortens_its_longest_texts() -> None:
    value = {"title": "short", "body": "word " * 2_000, "tail": "also short", "numbers": list(range(2_000))}
    cut = json.loads(encode(value, "json", 120))
    assert list(cut) == ["title", "body", "tail", "numbers"]
    assert (cut["title"], cut["tail"]) == ("short", "also short")
    assert "characters" in cut["body"]
    assert cut["body"].startswith("word word")
    assert cut["numbers"][-1].endswith("more items")


def test_a_cut_text_keeps_head_and_tail_at_line_borders() -> None:
    text = "".join(f"line {number}\n" for number in range(1_000))
    encoded = encode(text, budget=120)
    lines = encoded.split("\n")
    assert lines[0] == "line 0"
    assert lines[-2:] == ["line 999", ""]
    [note] = [line for line in lines if "left out" in line]
    assert note.startswith("[… ")
    assert all(line in ("", note) or line in text for line in lines)


def test_hostile_sizes_end_soon() -> None:
    deep: Any = []
    for _ in range(150):
        deep = [deep]
    assert decode(encode(deep, "columns"), "columns") == deep
    too_deep: Any = []
    for _ in range(5_000):
        too_deep = [too_deep]
    with pytest.raises(EncodingError, match="nested deeper"):
        encode(too_deep)
    assert encode(normalise(too_deep), budget=50).tokens <= 50
    assert encode("x" * 3_000_000, budget=50).tokens <= 50
    assert encode([{"a": "b" * 100}] * 20_000, budget=50).tokens <= 50


# -------------------------------------------------------------------------------------- encodings of one's own


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test registers is gone after it."""
    monkeypatch.setattr(encoding_module, "_encodings", dict(encoding_module._encodings))


def write_lines(value: Any) -> str:
    if not isinstance(value, list) or not all(isinstance(item, str) and "\n" not in item for item in value):
        raise EncodingError("The form holds lists of one-line strings only.")
    return "\n".join(value)


def read_lines(text: str) -> list[str]:
    return text.split("\n") if text else []


@pytest.mark.usefixtures("registry")
def test_a_registered_encoding_is_used_wherever_formats_are_named() -> None:
    register_encoding(Encoding(name="lines", write=write_lines, read=read_lines))
    assert encode(["a", "b"], "lines") == "a\nb"
    assert encode(["a", "b"], "lines").lossless
    assert decode("a\nb", "lines") == ["a", "b"]
    with pytest.raises(EncodingError, match="one-line strings"):
        encode({"a": 1}, "lines")
    assert present(["a", "b"], policy=ToolPolicy(format="lines")).text == "a\nb"
    assert present({"a": 1}, policy=ToolPolicy(format="lines")).text == '{"a":1}'
    assert encode(["a", "b"]).format == "json"


@pytest.mark.usefixtures("registry")
def test_an_automatic_encoding_is_chosen_where_it_is_cheapest() -> None:
    words = [f"word {number}" for number in range(100)]
    register_encoding(Encoding(name="lines", write=write_lines, read=read_lines, automatic=True))
    encoded = encode(words)
    assert (encoded.format, decode(encoded, "lines")) == ("lines", words)
    assert encoded.saved_tokens > 0
    assert encode({"a": words}).format != "lines"


@pytest.mark.usefixtures("registry")
def test_a_result_over_budget_is_cut_in_a_registered_encoding() -> None:
    register_encoding(Encoding(name="shout", write=lambda value: str(value).upper()))
    cut = encode([f"word {number}" for number in range(500)], "shout", 60)
    assert cut.tokens <= 60
    assert "not shown" in cut
    with pytest.raises(UsageError, match="cannot be read back"):
        decode("X", "shout")


async def test_an_agent_has_encodings_of_its_own() -> None:
    words = [f"word {number}" for number in range(100)]

    @tool(read_only=True)
    def listed() -> list[str]:
        """List words."""
        return words

    @tool(read_only=True, format="lines")
    def lines() -> list[str]:
        """List words, one a line."""
        return words[:2]

    def model() -> ScriptedClient:
        return ScriptedClient([Turn(calls=[call("listed"), call("lines")]), answer("1")])

    lines_form = Encoding(name="lines", write=write_lines, read=read_lines, automatic=True)
    known, plain = model(), model()
    below = Agent(plain, [listed], home=False)
    await asyncio.gather(
        Agent(known, [listed, lines], home=False, encodings=[lines_form]).run("Which?"), below.run("Which?")
    )
    first, second = [message.text for message in known.requests[1].messages if message.role == "tool"]
    assert (first, second) == ("\n".join(words), "word 0\nword 1")
    assert next(m.text for m in plain.requests[1].messages if m.role == "tool") == encode(words)
    with pytest.raises(UsageError, match="lines"):
        encode(words, "lines")


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    "encoding",
    [
        Encoding(name="json", write=str),
        Encoding(name="auto", write=str),
        Encoding(name="my form", write=str),
        Encoding(name="unread", write=str, automatic=True),
    ],
)
def test_an_encoding_that_cannot_be_registered_is_refused(encoding: Encoding) -> None:
    with pytest.raises(UsageError, match=encoding.name):
        register_encoding(encoding)
    with pytest.raises(UsageError, match=encoding.name):
        Agent(ScriptedClient([]), encodings=[encoding])
