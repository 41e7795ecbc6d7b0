"""Whatever a model or an attacker writes, the reader returns: no exception, no blow-up, nothing invented."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from call_writers import WRITERS
from closeout.messages import ToolSpec
from closeout.parsing.forms import read_tool_calls
from closeout.parsing.forms.registry import MARKED

TOOLS = [ToolSpec("f", "", {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}})]
MARKS = sorted({mark for form in MARKED for mark in form.markers})
PARTS = [
    *MARKS,
    *(
        '{"name": "f", "arguments": {"q": "x"}}',
        '{"name": "f", "arguments": {',
        "}",
        "]",
        "[f(q='x'",
        ")]",
        "f",
        "{",
        "[",
    ),
    *("<parameter=q>", "</parameter>", "</function>", "</tool_call>", "<arg_key>q</arg_key>", "<arg_value>"),
    *("<think>", "</think>", "<|sep|>", "<|end|>", "```", "\n", "Action Input: ", '"', "\\", "&amp;", " "),
    *("\ud800", "\0", "查", "🦀"),
]
GARBAGE = st.lists(st.sampled_from(PARTS) | st.text(max_size=6), max_size=30).map("".join)


@given(
    GARBAGE, st.sampled_from([None, "hermes", "mistral", "muse", "gemma", "qwen3_coder", "json", "pythonic", "react"])
)
def test_any_text_is_survived(text: str, family: str | None) -> None:
    read = read_tool_calls(text, TOOLS, family)

    assert all(call.name and isinstance(call.arguments, dict) for call in read.calls)
    assert bool(read.family) == bool(read.calls)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), VALUES, max_size=4)


@given(ARGUMENTS, st.booleans())
@example({"a": "<atem:invoke"}, False)
@example({"a": "<|channel|><|message|>"}, False)
def test_json_forms_give_back_the_arguments_that_were_written(arguments: dict[str, Any], ascii_only: bool) -> None:
    call = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=ascii_only)
    inner = json.dumps(arguments, ensure_ascii=ascii_only)

    for text in (
        f"<tool_call>\n{call}\n</tool_call>",
        f"[TOOL_CALLS] [{call}]",
        f"[TOOL_CALLS]f[ARGS]{inner}",
        f"<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{inner}<|tool_call_end|>",
        f"<｜tool▁call▁begin｜>f<｜tool▁sep｜>{inner}<｜tool▁call▁end｜>",
        f"<|channel|>commentary to=functions.f<|message|>{inner}<|call|>",
    ):
        read = read_tool_calls(text)

        assert [(call.name, call.arguments) for call in read.calls] == [("f", arguments)], text
        assert read.repairs == ()


JSON_FORMS = {form: writer for form, writer in WRITERS.items() if '{"q": 1}' in writer.write([("f", {"q": 1})])}


@pytest.mark.parametrize("form", JSON_FORMS)
def test_a_call_of_any_form_in_a_json_argument_is_data(form: str) -> None:
    before = "" if JSON_FORMS[form].channels else "Let me check.\n\n"
    for quoted in (*MARKS, *(writer.write([("g", {"q": "y"})]) for writer in WRITERS.values())):
        wanted = [("f", {"q": f"x {quoted} y"})]

        read = read_tool_calls(before + JSON_FORMS[form].write(wanted), [*TOOLS, ToolSpec("g")])

        assert [(call.name, call.arguments) for call in read.calls] == wanted, quoted


@given(ARGUMENTS)
def test_python_style_calls_give_back_the_arguments_that_were_written(arguments: dict[str, Any]) -> None:
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())

    read = read_tool_calls(f"<|tool_call_start|>[f({written})]<|tool_call_end|>")

    assert [(call.name, call.arguments) for call in read.calls] == [("f", arguments)]


HOSTILE = [
    *(mark + '{"name": "f", "arguments": {' for mark in MARKS),
    *("{", "[", '"', "<", '{"a":', '[{"name":"f","arguments":{"q":"', "[f(q=[", '[f(q="', "f(q=1)\n", "```json\n"),
    *("<think>", "</s> ", "<function=f><parameter=q>", "<function=f>\n<parameter=q>\n", ">>>f\n{", "<|python_tag|>{"),
    *("<tool_call>f<arg_key>q</arg_key><arg_value>", '<|tool_call>call:f{q:<|"|>', "[TOOL_CALLS] x"),
    *('<minimax:tool_call><invoke name="f"><parameter name="q">x</parameter>', "Action: f\nAction Input: {"),
    *(']<]minimax[>[<invoke name="f">]<]minimax[>[<a>', '<|open|>call tool="f"<|sep|>'),
    '<|start|>assistant to=f<|message|><rfl:parameter name="q">\n',
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_hundred_thousand_characters_of_one_piece_are_survived(piece: str) -> None:
    text = piece * (100_000 // len(piece))

    read = read_tool_calls(text, TOOLS)

    assert len(read.calls) <= 1000


def test_a_call_in_front_of_ten_megabytes_is_still_read() -> None:
    text = 'See.\n<tool_call>{"name": "f", "arguments": {"q": "' + "x" * 10_000_000 + '"}}</tool_call>'

    read = read_tool_calls(text, TOOLS)

    assert [call.name for call in read.calls] == ["f"]
    assert len(read.calls[0].arguments["q"]) == 10_000_000  # type: ignore[index]


def test_deep_nesting_is_neither_a_call_nor_a_crash() -> None:
    for opener, closer in (("[", "]"), ('{"a":', "}")):
        deep = opener * 50_000 + "1" + closer * 50_000

        assert read_tool_calls(f'<tool_call>{{"name": "f", "arguments": {deep}}}</tool_call>').calls == ()
        assert read_tool_calls(f"[f(q={deep})]").calls == ()


ONE, OTHER = '{"q": "x"}', '{"q": "y"}'
TWICE = f'{{"name": "f", "arguments": {ONE}, "arguments": {OTHER}}}'
CALLS = [f'[{{"name": "f", "arguments": {each}}}]' for each in (ONE, OTHER)]
# Everything that names one call twice, each time with other arguments.
CONTRADICTIONS = [
    TWICE,
    f"[{TWICE}]",
    *(f'{{"{wrapper}": {TWICE}}}' for wrapper in ("tool_call", "function", "functionCall", "action")),
    f'{{"tool_call": {{"function": {TWICE}}}}}',
    f'{{"tool_calls": [{{"function": {TWICE}}}]}}',
    f'{{"tool_calls": {CALLS[0]}, "tool_calls": {CALLS[1]}}}',
    f'{{"f": {ONE}, "f": {OTHER}}}',
    '{"name": "f", "q": "x", "q": "y"}',
    f'{{"name": "f", "arguments": [{ONE}], "arguments": [{OTHER}]}}',
    'f(q="x", q="y")',
    'f("x", n=1, n=2)',
    'f("x", q="y")',
    'f(**{"q": "x", "q": "y"})',
    'f({"q": "x", "q": "y"})',
]


@pytest.mark.parametrize("marks", ["{}", "<tool_call>{}</tool_call>", "```json\n{}\n```", "<|python_tag|>{}"])
@pytest.mark.parametrize("written", CONTRADICTIONS)
def test_a_call_that_is_written_with_two_sets_of_arguments_is_not_made(written: str, marks: str) -> None:
    assert read_tool_calls(marks.format(written), TOOLS).calls == ()
    plain = written.replace('"y"', '"x"').replace("n=2", "n=1")
    if "(" not in written:
        assert read_tool_calls(marks.format(plain), TOOLS).calls, "the same twice is one call"
