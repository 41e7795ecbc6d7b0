"""Every way of writing tool calls: what is a call, what is reasoning, what is the reply, and what a value means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from closeout import tool
from closeout.messages import ToolSpec
from closeout.parsing.forms import ToolCallsRead, families, forms_of, read_tool_calls
from closeout.parsing.reasoning import THINKING_TAGS, ThinkingSplitter, split_thinking

DATA = Path(__file__).parent / "data" / "tool_parsers"

WEATHER = ToolSpec(
    "get_weather",
    "",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
TIME = ToolSpec("get_time", "", {"type": "object", "properties": {}})
PYTHON = ToolSpec("python", "", {"type": "object", "properties": {"code": {"type": "string"}}})
TOOLS = [WEATHER, TIME, PYTHON]

ONE = [["get_weather", {"city": "Paris", "days": 3}]]
TWO = [*ONE, ["get_time", {}]]
JSON_ONE = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}'
JSON_TIME = '{"name": "get_time", "arguments": {}}'


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def calls(read: ToolCallsRead) -> list[list[Any]]:
    return [[call.name, call.arguments] for call in read.calls]


FORMS = rows("forms.jsonl")
SAMPLE = rows("sample.jsonl")
# These have marks of their own for reasoning and reply, or are the whole text.
ALONE = ("harmony", "muse", "beam", "kimi_k3", "glm4")
BEHIND = [row for row in FORMS if row["family"] not in ALONE]


@pytest.mark.parametrize("row", FORMS, ids=[f"{i}-{row['family']}" for i, row in enumerate(FORMS)])
def test_the_form_is_read_by_its_name_and_without(row: dict[str, Any]) -> None:
    for family in (row["family"], None):
        read = read_tool_calls(row["text"], TOOLS, family)

        assert calls(read) == row["calls"]
        assert read.family


@pytest.mark.parametrize("row", BEHIND, ids=[f"{i}-{row['family']}" for i, row in enumerate(BEHIND)])
def test_the_form_is_read_after_reasoning(row: dict[str, Any]) -> None:
    read = read_tool_calls("<think>hm</think>" + row["text"], TOOLS, row["family"])

    assert calls(read) == row["calls"]
    assert read.reasoning == "hm"


@pytest.mark.parametrize("row", SAMPLE, ids=[row["id"] for row in SAMPLE])
def test_servers_own_cases_are_read_as_they_assert(row: dict[str, Any]) -> None:
    read = read_tool_calls(row["text"], row["tools"], row["family"])

    assert calls(read) == row["calls"]
    if row["content"] is not None:
        assert read.content == row["content"].strip()


# ------------------------------------------------------------------------------------------------ content, reasoning


def test_content_is_the_text_in_front_of_the_first_call() -> None:
    text = f"First.\n<tool_call>{JSON_ONE}</tool_call>\nThen.\n<tool_call>{JSON_TIME}</tool_call>\nDone."

    read = read_tool_calls(text)

    assert read.content == "First."
    assert calls(read) == TWO


def test_lfm2_writes_its_text_after_the_calls() -> None:
    read = read_tool_calls("<|tool_call_start|>[get_time()]<|tool_call_end|>Checking the clock.")

    assert read.content == "Checking the clock."


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>a</think>b", "a", "b"),
        ("a</think>b", "a", "b"),
        ("</think>b", "", "b"),
        ("<think>a", "a", ""),
        ("<think>a<think>b</think>c</think>d", "a\nb\nc", "d"),
        ("[THINK]a[/THINK]b", "a", "b"),
        ("<seed:think>a</seed:think>b", "a", "b"),
        ("<mm:think>a</mm:think>b", "a", "b"),
        ("<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>", "a", "b"),
        ("<|channel>thought\na<channel|>b", "a", "b"),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>", "a", "b"),
        ("to=self<|message|>a<|eom|><|start|>assistant to=user<|message|>b<|eot|>", "a", "b"),
        ("<|open|>think<|sep|>a<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|>", "a", "b"),
        ("b<|im_end|>", "", "b"),
        ("b</s> </s>", "", "b"),
        ("plain words", "", "plain words"),
        ("", "", ""),
    ],
)
def test_reasoning_is_separate_from_text(text: str, reasoning: str, content: str) -> None:
    read = read_tool_calls(text)

    assert (read.calls, read.reasoning, read.content) == ((), reasoning, content)


@pytest.mark.parametrize("tag", THINKING_TAGS)
def test_a_streamed_text_and_a_whole_one_agree_on_what_is_thought(tag: str) -> None:
    text, splitter = f"<{tag}>a</{tag}>b", ThinkingSplitter()
    pieces = [piece for letter in text for piece in splitter.feed(letter)] + splitter.flush()
    whole = read_tool_calls(text)

    assert pieces == [(True, "a"), (False, "b")]
    assert (whole.reasoning, whole.content) == split_thinking(text) == ("a", "b")


def test_a_reasoning_mark_in_backticks_is_text() -> None:
    text = "The `<think>` tag opens it, `</think>` ends it."

    assert read_tool_calls(text).content == text
    assert read_tool_calls("`</think>` <think>`x`</think>yes").content == "`</think>` yes"


def test_a_call_in_reasoning_is_not_made() -> None:
    read = read_tool_calls(f"<think>I could use <tool_call>{JSON_ONE}</tool_call> here</think>No need.", TOOLS)

    assert read.calls == ()
    assert read.content == "No need."


def test_a_call_ends_reasoning_that_nothing_else_ends() -> None:
    read = read_tool_calls(f"<think>I will look.\n<tool_call>{JSON_ONE}</tool_call>", TOOLS)

    assert calls(read) == ONE
    assert read.reasoning == "I will look."


def test_reasoning_marks_inside_an_argument_are_data() -> None:
    text = '<think>x</think><tool_call>{"name": "f", "arguments": {"q": "what is </think>?"}}</tool_call>'

    assert calls(read_tool_calls(text)) == [["f", {"q": "what is </think>?"}]]


# ------------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "42", "42"),
        ({"type": "string"}, "null", "null"),
        ({"type": "integer"}, "42", 42),
        ({"type": "integer"}, "0042", "0042"),
        ({"type": "integer"}, "4.0", 4),
        ({"type": "integer"}, "many", "many"),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "0", False),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "object"}, "{'a': None,}", {"a": None}),
        ({"type": "array"}, '["x"]', ["x"]),
        ({"type": "integer"}, "null", None),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "integer"]}, "1abc", "1abc"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({"oneOf": [{"type": "array"}, {"type": "string"}]}, "[1]", [1]),
        ({"enum": [1, 2]}, "2", 2),
        ({"$ref": "#/$defs/n"}, "3", 3),
        ({}, "true", True),
        ({}, "None", None),
        ({}, "2.5", 2.5),
        ({}, "007", "007"),
        ({}, "some words", "some words"),
    ],
)
def test_plain_text_takes_the_type_that_the_tool_declares(schema: dict[str, Any], text: str, value: Any) -> None:
    parameters = {"type": "object", "properties": {"p": schema}, "$defs": {"n": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    reply = f"<tool_call><function=f><parameter=p>\n{text}\n</parameter></function></tool_call>"

    read = read_tool_calls(reply, [tool])

    assert calls(read) == [["f", {"p": value}]]
    arguments = read.calls[0].arguments
    assert not isinstance(arguments, str)
    assert type(arguments["p"]) is type(value)


def test_entities_are_decoded_only_in_a_value_that_is_escaped_throughout() -> None:
    a, b = "1 &lt; 2 &amp;&amp; x", "if a && b: &lt;"

    read = read_tool_calls(f"<function=f><parameter=a>{a}</parameter><parameter=b>{b}</parameter></function>")

    assert read.calls[0].arguments == {"a": "1 < 2 && x", "b": "if a && b: &lt;"}
    assert [repair.kind for repair in read.repairs] == ["xml_entities"]


def test_line_breaks_around_a_value_belong_to_the_tags_and_those_inside_to_the_value() -> None:
    read = read_tool_calls("<function=f><parameter=a>\n  x\n\n</parameter><parameter=b>x\n</parameter></function>")

    assert read.calls[0].arguments == {"a": "  x\n", "b": "x\n"}


def test_closing_tags_inside_a_value_are_data() -> None:
    read = read_tool_calls('<tool_call>{"name": "f", "arguments": {"q": "</tool_call> {"}}</tool_call>')
    tagged = read_tool_calls("<function=f><parameter=a>def g():\n  # </function>\n</parameter></function>")

    assert calls(read) == [["f", {"q": "</tool_call> {"}]]
    assert tagged.calls[0].arguments == {"a": "def g():\n  # </function>\n"}


def test_a_parameter_without_its_closing_tag_ends_where_the_next_begins() -> None:
    read = read_tool_calls("<function=f>\n<parameter=a>\nx\n<parameter=b>\ny\n</parameter>\n</function>")

    assert read.calls[0].arguments == {"a": "x", "b": "y"}
    assert [repair.kind for repair in read.repairs] == ["tag_unclosed"]


def test_python_literals_are_read() -> None:
    text = r"""[f(a='it\'s', b="\u00e9", c=[1, -2.5, {'k': (True, None)}], e=0x1F, g='a' 'b', h=r'\n', i='''x'''"""

    read = read_tool_calls(text + ")]")

    assert read.calls[0].arguments == {
        "a": "it's", "b": "é", "c": [1, -2.5, {"k": [True, None]}], "e": "0x1F", "g": "ab", "h": "\\n", "i": "x",
    }  # fmt: skip


@pytest.mark.parametrize(
    "code", ["f(a=g())", "f(a=x)", "f(a=1+1)", "f(a=__import__('os'))", "f(*a)", "f(a=[x for x in y])", "f(a=1, a=2)"]
)
def test_python_beyond_literals_is_not_a_call(code: str) -> None:
    assert read_tool_calls(f"[{code}]", family="pythonic").calls == ()


def test_positional_arguments_take_the_names_that_the_tool_declares() -> None:
    read = read_tool_calls("[get_weather('Paris', 3)]", TOOLS)

    assert calls(read) == ONE
    assert read.repairs[0].kind == "positional_arguments"


@pytest.mark.parametrize(
    "action",
    ["get_weather(city='Paris', days=3)", 'get_weather({"city": "Paris", "days": 3})', "get_weather('Paris', 3)"],
)
def test_an_action_may_be_written_as_a_call(action: str) -> None:
    assert calls(read_tool_calls(f"Thought: x\nAction: {action}\nObservation: y", TOOLS)) == ONE


# ------------------------------------------------------------------------------------------------ names, ids, ruins


def test_ids_and_servers_are_kept() -> None:
    tokens = "<|tool_call_begin|>functions.get_time:4<|tool_call_argument_begin|>{}<|tool_call_end|>"
    tags = (
        "<use_mcp_tool><server_name>geo</server_name><tool_name>f</tool_name><arguments>{}</arguments></use_mcp_tool>"
    )

    assert read_tool_calls(tokens, TOOLS).calls[0].id == "functions.get_time:4"
    assert read_tool_calls(tags).calls[0].server_name == "geo"


@pytest.mark.parametrize("name", ["functions.get_time", "get_time.get_time", "default_api.get_time"])
def test_a_namespace_in_front_of_a_known_name_is_dropped(name: str) -> None:
    assert calls(read_tool_calls(f'<tool_call>{{"name": "{name}"}}</tool_call>', TOOLS)) == [["get_time", {}]]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Par',
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>',
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Par",
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": ',
        '<|open|>tools<|sep|><|open|>call tool="calc" index="1"',
        '<|tool_call>call:get_weather{city:<|"|>Lon',
        "[get_weather(city='Par",
        '<use_mcp_tool><tool_name>f</tool_name><arguments>{"a": ',
    ],
)
def test_a_call_that_is_not_finished_is_none(text: str) -> None:
    assert read_tool_calls(text, TOOLS).calls == ()


def test_a_ruin_is_reported_and_only_control_tokens_are_hidden() -> None:
    written = '<tool_call>{"name": "f", "arguments": }</tool_call> hm'
    tokens = read_tool_calls('Look. <|tool_call>call:f{city:<|"|>Lon')

    assert read_tool_calls(written, family="hermes").content == written
    assert tokens.content == "Look."
    assert tokens.defects[0].code == "broken_call"


def test_json_values_one_after_the_other_are_calls() -> None:
    assert calls(read_tool_calls(f"{JSON_ONE};{JSON_TIME}")) == TWO
    assert calls(read_tool_calls(f"Let me see.\n{JSON_ONE}", TOOLS)) == ONE


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada", "parameters": {"born": 1815}, "died": 1852}',
        '{"arguments": {"x": 1}}',
        f'{{"log": {JSON_ONE}}}',
        f"He wrote {JSON_ONE} there.",
        json.dumps({"name": "get_weather", "parameters": WEATHER.parameters}),
    ],
)
def test_json_that_may_be_something_else_is_not_a_call(text: str) -> None:
    read = read_tool_calls(text, TOOLS)

    assert (read.calls, read.content) == ((), text)


def test_harmony_drops_code_for_a_built_in_that_was_not_offered() -> None:
    text = "<|start|>assistant to=container.exec<|channel|>commentary<|message|>python3 -c 'print(1)'"

    read = read_tool_calls(text)

    assert (read.calls, read.content) == ((), "")
    assert read.defects


def test_names_of_parsers_and_models_map_to_their_family() -> None:
    names = (
        "qwen3_coder Qwen3EngineToolParser mistralai-Ministral-3 deepseek-ai-DeepSeek-V3.1 gpt-oss glm45 hermes xlam"
    )

    assert all(map(forms_of, names.split()))
    assert forms_of("nothing of the kind") == ()
    assert {"hermes", "mistral", "harmony", "react"} <= set(families())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama4_json", JSON_ONE),
        ("meta-llama-Llama-3.2-3B-Instruct", "[get_weather(city='Paris', days=3)]"),
        ("meta-llama-Llama-3.2-3B-Instruct", JSON_ONE.replace("arguments", "parameters")),
        ("meta-llama/Llama-4-Scout", "[get_weather(city='Paris', days=3)]"),
        ("openai", '<|channel|>commentary to=functions.get_weather<|message|>{"city": "Paris", "days": 3}<|call|>'),
        ("Qwen/QwQ-32B", f"<tool_call>{JSON_ONE}</tool_call>"),
        ("watt-ai/watt-tool-8B", "[get_weather(city='Paris', days=3)]"),
    ],
)
def test_a_name_maps_to_all_forms_of_its_model(name: str, text: str) -> None:
    assert calls(read_tool_calls(text, TOOLS, name)) == ONE


def test_tools_are_taken_as_an_agent_takes_them():
    @tool
    def lookup(key: str) -> str:
        """Look a key up."""
        return key

    text = "<tool_call><function=lookup><parameter=key>5</parameter></function></tool_call>"
    openai = {"type": "function", "function": {"name": "lookup", "parameters": lookup.spec.parameters}}
    for tools in ([lookup], [lookup.spec], [openai]):
        assert read_tool_calls(text, tools).calls[0].arguments == {"key": "5"}


def test_content_that_a_server_left_out_holds_nothing():
    assert read_tool_calls(None) == read_tool_calls("")
