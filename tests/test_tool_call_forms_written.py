"""Calls written as the vendors' templates write them come back as they were, however odd their arguments are."""

from __future__ import annotations

from typing import Any

import pytest

from call_writers import WRITERS, Calls, Writer
from closeout.parsing.forms import ToolCallsRead, read_tool_calls


def tool(name: str, required: list[str], **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
TOOLS = [
    tool("get_weather", ["city"], city=TEXT, unit=TEXT, days=INTEGER),
    tool("get_time", []),
    tool(
        "store",
        ["text"],
        text=TEXT,
        note=TEXT,
        count=INTEGER,
        ratio={"type": "number"},
        on={"type": "boolean"},
        nothing={"type": ["string", "null"]},
        items={"type": "array", "items": TEXT},
        opts={"type": "object"},
    ),
    tool("multi-tool.run_2", ["code"], code=TEXT),
]
EVERYTHING = {"text": "x y", "count": -3, "ratio": 2.5, "on": True, "nothing": None, "items": ["a", "b c"]}
CODE = 'def f(x):\n    if x < 3 and x > 1:\n        return {"a": [1]}\n'
CALLS: dict[str, Calls] = {
    "one": [("get_weather", {"city": "Tokyo"})],
    "two": [("get_weather", {"city": "Tokyo", "unit": "C"}), ("get_time", {})],
    "the same twice": [("get_weather", {"city": "Tokyo"}), ("get_weather", {"city": "Oslo"})],
    "three": [("get_time", {}), ("get_weather", {"city": "Rome", "days": 2}), ("get_time", {})],
    "every type": [("store", {**EVERYTHING, "opts": {"k": {"n": [1, 2]}}})],
    "an empty string": [("store", {"text": "", "note": "x"})],
    "unicode": [("get_weather", {"city": "東京 🦀 Ünï"})],
    "code": [("multi-tool.run_2", {"code": CODE})],
    **{
        f"the text {text[:40]!r}": [("store", {"text": text, "note": "x"})]
        for text in (
            "He said \"hi\" and 'bye'",
            "C:\\Users\\new\\file.txt",
            "line 1\nline 2\n\n  line 4\tend",
            '{"name": "get_time", "arguments": {}}',
            "007",
            "true",
            "null",
            '<b>bold</b> & <a href="x">y</a>',
            "a] b} c) [x",
            "a, b=1, c",
            "Thought: x\nAction: get_time\nObservation: 3\nFinal Answer: 4",
            "```python\nprint(1)\n```",
            "word " * 3000,
        )
    },
}
MARKS = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|im_end|>", "<think>", "</think>", "</s>", "<|python_tag|>"),
    *("<function=get_time>", "</function>", "</parameter>", "<｜tool▁call▁end｜>", "<|tool_call_end|>", "[ARGS]"),
    *("<|end|>", "</invoke>", "<tool_calls>", "<arg_value>", "</arg_value>", "<|tool_call|>", "[get_time()]"),
)
# A mark that these forms cannot tell from their own.
AMBIGUOUS = {("muse", "<|end|>")}


def read_calls(read: ToolCallsRead) -> Calls:
    return [(call.name, call.arguments) for call in read.calls]  # type: ignore[misc]


def holds(writer: Writer, calls: Calls) -> bool:
    return writer.several or len(calls) == 1


@pytest.mark.parametrize("form", WRITERS)
def test_calls_come_back_as_they_were_written(form: str) -> None:
    writer = WRITERS[form]
    for what, calls in CALLS.items():
        if holds(writer, calls):
            for family in (writer.family, None):
                assert read_calls(read_tool_calls(writer.write(calls), TOOLS, family)) == calls, (what, family)


@pytest.mark.parametrize("form", WRITERS)
def test_forms_of_other_families_inside_an_argument_are_data(form: str) -> None:
    writer = WRITERS[form]
    for mark in MARKS:
        calls: Calls = [("store", {"text": f"before {mark} after", "note": "x"})]
        if (form, mark) not in AMBIGUOUS:
            for family in (writer.family, None):
                assert read_calls(read_tool_calls(writer.write(calls), TOOLS, family)) == calls, (mark, family)


@pytest.mark.parametrize("form", [form for form, writer in WRITERS.items() if not writer.plain])
def test_no_tools_need_be_known(form: str) -> None:
    writer = WRITERS[form]
    for calls in filter(lambda calls: holds(writer, calls), CALLS.values()):
        for family in (writer.family, None):
            assert read_calls(read_tool_calls(writer.write(calls), None, family)) == calls


@pytest.mark.parametrize("form", WRITERS)
def test_a_reply_cut_off_anywhere_never_holds_a_wrong_call(form: str) -> None:
    writer = WRITERS[form]
    for what in ("two", "every type", "code"):
        calls = CALLS[what] if holds(writer, CALLS[what]) else CALLS[what][:1]
        text = writer.write(calls)
        for end in range(1 + len(form) % 2, len(text), 2):
            for family in (writer.family, None):
                found = read_calls(read_tool_calls(text[:end], TOOLS, family))
                assert found == calls[: len(found)], text[:end]


@pytest.mark.parametrize(
    ("before", "after", "reasoning", "content"),
    [
        ("I will look.\n\n", "", "", "I will look."),
        ("", "\n\nDone.", "", ""),
        ("Before.\n", "\nAfter.", "", "Before."),
        ('<think>Maybe {"a": 1}.</think>\n\n', "", 'Maybe {"a": 1}.', ""),
        ("Hm.\n</think>\n", "", "Hm.", ""),
        ("<think>\n\n</think>\n\nOk.\n", "\n", "", "Ok."),
    ],
)
def test_text_around_the_calls_and_reasoning_in_front(before: str, after: str, reasoning: str, content: str) -> None:
    calls = CALLS["one"]
    writers = {form: writer for form, writer in WRITERS.items() if not writer.bare and not writer.channels}
    for form, writer in writers.items():
        for family in (writer.family, None):
            read = read_tool_calls(before + writer.write(calls) + after, TOOLS, family)

            assert read_calls(read) == calls, (form, family)
            assert read.reasoning == reasoning, (form, family)
            if form not in ("lfm2", "lfm2, json"):  # whose words stand behind the calls
                assert read.content.replace("Thought: I need it.", "").strip() == content, (form, family)


def test_the_tags_of_step3_are_not_a_deepseek_call() -> None:
    text = WRITERS["step3"].write(CALLS["code"])

    assert read_calls(read_tool_calls(text, TOOLS)) == CALLS["code"]
    assert read_calls(read_tool_calls(text, TOOLS, "deepseek_v3")) == []


def test_a_list_that_is_cut_off_keeps_the_calls_that_are_whole() -> None:
    calls = CALLS["two"]
    text = WRITERS["xlam"].write(calls)

    assert read_calls(read_tool_calls(text[:-1], TOOLS, "xlam")) == calls


def test_a_doctest_is_not_a_functionary_segment() -> None:
    assert read_tool_calls(">>> settings\n{'a': 1}").calls == ()


def test_a_key_without_its_closing_tag_ends_where_its_value_begins() -> None:
    read = read_tool_calls(
        "<tool_call>get_weather\n<arg_key>city\n<arg_value>Rome</arg_value>\n</tool_call>", TOOLS, "glm45"
    )

    assert read_calls(read) == [("get_weather", {"city": "Rome"})]
    assert [repair.kind for repair in read.repairs] == ["tag_unclosed"]


def test_the_opening_of_an_answer_around_a_call_is_not_content() -> None:
    call = '<tool_calls>[{"name": "get_time", "arguments": {}}]</tool_calls>'

    assert read_tool_calls(f"<answer>\n{call}\n</answer>", TOOLS).content == ""
    assert read_tool_calls(f"<answer>Let me look.\n{call}\n</answer>", TOOLS).content == "Let me look."
