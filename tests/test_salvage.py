"""Calls that a model wrote where the dialect in use did not look; and prose about tools, which is never a call."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from call_writers import WRITERS
from closeout.messages import ToolPolicy, ToolSpec
from closeout.parsing.salvage import AMID_TEXT, salvage

SAMPLES = json.loads((Path(__file__).parent / "data" / "tool_parsers" / "prose.json").read_text(encoding="utf-8"))
SEARCH = ToolSpec(
    "search",
    "Search the web.",
    {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["query"],
    },
    server_name="web",
)
READ = ToolSpec("read_file", "", {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]})
TIME = ToolSpec("get_time", "", {"type": "object", "properties": {}})
TOOLS = [SEARCH, READ, TIME]
READING = [replace(tool, policy=ToolPolicy(read_only=True)) for tool in TOOLS]
MORE_TOOLS = [
    *TOOLS,
    ToolSpec("calculate", "", {"properties": {"expression": {"type": "string"}}, "required": ["expression"]}),
    ToolSpec("python", "", {"properties": {"code": {"type": "string"}}, "required": ["code"]}),
    ToolSpec("get_weather", "", {"properties": {"city": {"type": "string"}}, "required": ["city"]}),
]
ARGS = {"query": "tides"}
JSON_CALL = '{"name": "search", "arguments": {"query": "tides"}}'

MEANT = {
    "hermes": f"I'll look that up.\n<tool_call>\n{JSON_CALL}\n</tool_call>",
    "hermes, closing tag lost": f"<tool_call>\n{JSON_CALL}",
    "hermes, opening tag lost": f"{JSON_CALL}\n</tool_call>",
    "hermes and an invented result": f"<tool_call>{JSON_CALL}</tool_call>\n<tool_response>\nHigh.\n</tool_response>",
    "bare json": JSON_CALL,
    "bare json behind a sentence": f"Let me search for that.\n{JSON_CALL}",
    "bare json in a fence": f"I will search now:\n```json\n{JSON_CALL}\n```",
    "bare json in a fence left open": f"I will search now:\n```json\n{JSON_CALL}",
    "openai envelope": json.dumps(
        {
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "search", "arguments": json.dumps(ARGS)}}
            ]
        }
    ),
    "llama": '<|python_tag|>{"name": "search", "parameters": {"query": "tides"}}<|eom_id|>',
    "mistral": f"[TOOL_CALLS] [{JSON_CALL}]",
    "deepseek": "<｜tool▁call▁begin｜>search<｜tool▁sep｜>" + json.dumps(ARGS) + "<｜tool▁call▁end｜>",
    "deepseek, fenced": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n"
    + json.dumps(ARGS)
    + "\n```<｜tool▁call▁end｜>",
    "dsml": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="search">\n'
    '<｜DSML｜parameter name="query" string="true">tides</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "qwen coder": "<tool_call>\n<function=search>\n<parameter=query>\ntides\n</parameter>\n</function>\n</tool_call>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>"
    '{"query": "tides"}<|tool_call_end|><|tool_calls_section_end|>',
    "glm": "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>tides</arg_value>\n</tool_call>",
    "minimax": '<minimax:tool_call>\n<invoke name="search">\n<parameter name="query">tides</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "python, alone on the last line": 'I need current data.\nsearch(query="tides")',
    "python list": '[search(query="tides")]',
    "python, tool_code fence": '```tool_code\nprint(search(query="tides"))\n```',
    "python fence": 'Let me look.\n```python\nsearch(query="tides")\n```',
    "use_mcp_tool": "Checking.\n<use_mcp_tool>\n<server_name>web</server_name>\n<tool_name>search</tool_name>\n"
    '<arguments>\n{"query": "tides"}\n</arguments>\n</use_mcp_tool>',
    "react lines": "Thought: I need data.\nAction: search\nAction Input: tides",
    "react object": 'Thought: I need data.\nAction: search\nAction Input: {"query": "tides"}\nObservation: High at 9.',
    "react blob": 'Thought: x\nAction:\n```json\n{"action": "search", "action_input": {"query": "tides"}}\n```',
    "harmony": '<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "tides"}<|call|>',
    "intention in spite of a hedge": f"I cannot recall the times, so I'll search.\n<tool_call>{JSON_CALL}</tool_call>",
    "name in another case": JSON_CALL.replace('"search"', '"Search"'),
    "name with a prefix": f"<tool_call>{JSON_CALL.replace('search', 'functions.search')}</tool_call>",
    "name with its server": f"<tool_call>{JSON_CALL.replace('search', 'web.search')}</tool_call>",
    "broken json in tags": '<tool_call>{"name": "search", "arguments": {"query": "tides",}}</tool_call>',
    "chinese": f"我来查一下。\n<tool_call>{JSON_CALL}</tool_call>",
    "two": f"<tool_call>{JSON_CALL}</tool_call>\n<tool_call>{JSON_CALL}</tool_call>",
}


def made(text: str, tools: list[ToolSpec] = TOOLS) -> list[str]:
    """The names of the tools that a reply calls."""
    read = salvage(text, tools=tools)
    return [call.name for call in read.calls] if read is not None else []


@pytest.mark.parametrize("text", MEANT.values(), ids=MEANT.keys())
def test_a_call_in_another_form_is_found(text: str) -> None:
    read = salvage(text, tools=READING)

    assert read is not None
    assert {call.name for call in read.calls} == {"search"}
    assert all(call.arguments == ARGS for call in read.calls)
    assert read.repairs[0].kind == f"dialect:{read.family}"
    assert read.repairs[0].where == "reply"
    assert all(call.server_name == "web" for call in read.calls)
    strict = salvage(text, tools=TOOLS)  # of tools that say nothing, it is made or asked for again
    assert strict is not None
    assert strict.calls == read.calls or strict.defects == (AMID_TEXT,)


@pytest.mark.parametrize("before", ["", "Let me check.\n\n", "<think>I need to search.</think>\n"])
def test_every_familys_form_is_found(before: str) -> None:
    wanted = [("search", {"query": "tides of Brest"})]

    for form, writer in WRITERS.items():
        text = before * (not writer.channels) + writer.write(wanted)
        read, strict = salvage(text, tools=READING), salvage(text, tools=TOOLS)

        assert read is not None, form
        assert [(call.name, call.arguments) for call in read.calls] == wanted, form
        assert strict is not None, form
        amid = before.startswith("Let") and not writer.channels
        assert (strict.calls, strict.defects) == (((), (AMID_TEXT,)) if amid else (read.calls, ())), form


WRITTEN = {
    "tags": f"<tool_call>\n{JSON_CALL}\n</tool_call>",
    "bare": JSON_CALL,
    "a fence": f"```json\n{JSON_CALL}\n```",
    "python": 'search(query="tides")',
}


def test_a_call_that_is_announced_is_made() -> None:
    announced = SAMPLES["announced"]
    assert [each for each in announced if made(f"{each}\n{WRITTEN['tags']}", READING) != ["search"]] == []


@pytest.mark.parametrize("form", WRITTEN)
def test_a_call_that_is_shown_is_not_made(form: str) -> None:
    shown = [f"{before}{blank}{WRITTEN[form]}" for before in SAMPLES["shown"] for blank in ("\n", "\n\n")]
    assert [text for text in shown if made(text) != []] == []


def test_documentation_tutorials_and_logs_are_not_calls() -> None:
    assert [text for text in SAMPLES["prose"] if made(text, MORE_TOOLS) != []] == []


ABOUT = {
    "a mention": "I could call search(query=...) for this, but the answer is already above.",
    "a mention at the end": 'You can look it up with search(query="tides")',
    "a condition": 'If I needed fresh data I would call:\nsearch(query="tides")',
    "an example in tags": f"The syntax is: <tool_call>\n{JSON_CALL}\n</tool_call> - that's how you format it",
    "an example at the end": f"For example:\n<tool_call>\n{JSON_CALL}\n</tool_call>",
    "an example in a fence": f"A call looks like this:\n```json\n{JSON_CALL}\n```",
    "a fence, then an explanation": f"```json\n{JSON_CALL}\n```\nThis is what a call is made of.",
    "quoted": f'He wrote "{JSON_CALL}"',
    "in backticks": f"Use `{JSON_CALL}`",
    "in backticks with tags": f"Write `<tool_call>{JSON_CALL}</tool_call>`",
    "a list item": f"Possible calls:\n- <tool_call>{JSON_CALL}</tool_call>",
    "a table": f"| tool | call |\n| search | <tool_call>{JSON_CALL}</tool_call>",
    "a block quote": f"> <tool_call>{JSON_CALL}</tool_call>",
    "prose behind the call": f"<tool_call>{JSON_CALL}</tool_call>\nThe answer to your question is 42 metres.",
    "documentation": "search(query, limit) searches the web. It returns ten results.",
    "documentation at the end": "The signature of the tool is:\nsearch(query: str, limit: int = 10)",
    "a definition": json.dumps({"name": "search", "parameters": {"type": "object", "properties": {"query": {}}}}),
    "a list of tools": json.dumps([{"name": "search", "description": "Search.", "parameters": {"type": "object"}}]),
    "a refusal": f"I won't run this:\n<tool_call>{JSON_CALL}</tool_call>",
    "a past failure": f"Earlier this failed:\n<tool_call>{JSON_CALL}</tool_call>",
    "a placeholder": '<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>',
    "a placeholder in brackets": '<tool_call>{"name": "search", "arguments": {"query": "<your query>"}}</tool_call>',
    "a misspelt name": f"<tool_call>{JSON_CALL.replace('search', 'serach')}</tool_call>",
    "another tool": '<tool_call>{"name": "launch_rocket", "arguments": {"when": "now"}}</tool_call>',
    "bare json of another kind": '{"name": "Ada Lovelace", "parameters": {"born": 1815}}',
    "bare json with foreign keys": '{"name": "search", "arguments": {"colour": "red"}}',
    "bare json without what is required": '{"name": "search", "arguments": {"limit": 3}}',
    "json inside json": json.dumps({"log": {"name": "search", "arguments": ARGS}}),
    "json data": '{"results": [{"title": "Tides", "url": "https://example.org"}]}',
    "python code": 'def f():\n    return search(query="tides")\nprint(f())',
    "python code with the call inside": 'x = 1\nresult = search(query="tides")',
    "a final answer": f"Final Answer: 42\n{JSON_CALL}",
    "a boxed answer": f"\\boxed{{42}}\n<tool_call>{JSON_CALL}</tool_call>",
    "no action": "Thought: done\nAction: None\nAction Input: {}",
    "a final action": 'Action:\n```json\n{"action": "Final Answer", "action_input": "42"}\n```',
    "words": "Searching is what search engines do.",
    "an example in chinese": f"例如：\n<tool_call>{JSON_CALL}</tool_call>",
    "empty": "",
    "blank": " \n ",
}


@pytest.mark.parametrize("text", ABOUT.values(), ids=ABOUT.keys())
def test_prose_about_a_tool_is_not_a_call(text: str) -> None:
    assert made(text) == []


def test_a_value_under_the_name_of_a_tool_is_data() -> None:
    population = ToolSpec("population", "", {"properties": {"city": {"type": "string"}}, "required": ["city"]})

    assert salvage('{"population": "126000"}', tools=[population]) is None
    assert made('{"population": {"city": "Bonn"}}', [population]) == ["population"]


def test_nothing_is_salvaged_without_tools() -> None:
    assert salvage(MEANT["hermes"]) is None
    assert salvage(MEANT["hermes"], tools=[]) is None


def test_reasoning_is_looked_at_only_when_the_text_is_empty() -> None:
    reasoning = f"I should look this up.\n<tool_call>{JSON_CALL}</tool_call>"

    found = salvage("", reasoning, READING)

    assert found is not None
    assert found.calls[0].arguments == ARGS
    assert found.repairs[0].where == "reasoning"
    assert salvage("The tide is high at nine.", reasoning, TOOLS) is None
    assert made("<think>" + reasoning + "</think>", READING) == ["search"]
    assert made("<think>" + reasoning + "</think>") == []


def test_a_bare_form_in_reasoning_stays_a_thought() -> None:
    assert salvage("", f"Maybe this:\n{JSON_CALL}", TOOLS) is None
    assert salvage("", 'search(query="tides")', TOOLS) is None


def test_a_reply_that_was_cut_off_is_never_completed() -> None:
    cut = '<tool_call>{"name": "search", "arguments": {"query": "tid'

    for truncated in (False, True):
        found = salvage(cut, tools=TOOLS, truncated=truncated)
        assert found is not None
        assert (found.calls, found.defects[0].code) == ((), "broken_call")
    assert salvage("Action: search\nAction Input: ti", tools=TOOLS, truncated=True) is None
    assert salvage(f"<tool_call>{JSON_CALL}", tools=TOOLS, truncated=True) is not None
    assert salvage(MEANT["broken json in tags"], tools=TOOLS, truncated=True) is None


def test_a_call_that_ends_the_reply_and_cannot_be_read_is_a_defect() -> None:
    broken = [
        '<tool_call>\n{"name": "search", "arguments": {"query": "tides"',
        '<tool_call>{"name": "search", "arguments": {tides}}</tool_call>',
        "<tool_call>\n<function=search>\n<parameter=query>\ntid",
        '[TOOL_CALLS][{"name": "search", "arguments": {"qu',
        '<function_calls>\n<invoke name="search">\n<parameter name="query">tid',
        '<|python_tag|>{"name": "search", "parameters": {"query": "tid',
        '{"name": "search", "arguments": {"query": ',
    ]
    for text in broken:
        for reply in (text, f"I look it up.\n{text}"):
            if reply.startswith("I look") and text.startswith("{"):
                continue  # a call without a mark is one only if it is the reply
            found = salvage(reply, tools=TOOLS)
            assert found is not None, reply
            assert (found.calls, [defect.code for defect in found.defects]) == ((), ["broken_call"]), reply
    same = '<tool_call>{"name": "search", "arguments": {"query": "a", "query": "b"}}</tool_call>'
    found = salvage(same, tools=TOOLS)
    assert found is not None
    assert found.defects[0].refuses


def test_an_answer_about_a_call_that_breaks_off_stays_the_answer() -> None:
    begun = '<tool_call>{"name": "search", "arguments": {"query": "tid'
    answers = [
        f"It sent `{begun}",
        f"- {begun}",
        f"It sent this:\n```\n{begun}",
        f"It sent this:\n```\n{begun}\n```\nand stopped.",
        f"{begun}\n... and so on, until the limit.</tool_call> That is why it failed.",
        begun.replace("search", "another"),
        f"Final Answer: 42\n{begun}",
        "A call begins with <tool_call>",
        '{"name": "Ada Lovelace", "born": ',
    ]
    for text in answers:
        assert salvage(text, tools=TOOLS) is None, text


def test_the_text_in_front_of_the_call_is_kept_and_the_repairs_are_named() -> None:
    read = salvage(MEANT["name with a prefix"].replace("<tool_call>", "Let me look.\n<tool_call>"), tools=READING)

    assert read is not None
    assert read.content == "Let me look."
    assert [repair.kind for repair in read.repairs] == ["dialect:hermes"]


def test_one_unknown_name_among_several_calls_refuses_all() -> None:
    other = '<tool_call>{"name": "launch_rocket", "arguments": {}}</tool_call>'

    assert salvage(f"<tool_call>{JSON_CALL}</tool_call>\n{other}", tools=TOOLS) is None


def test_tools_may_have_the_openai_shape() -> None:
    tool = {"type": "function", "function": {"name": "search", "parameters": SEARCH.parameters}}

    read = salvage(MEANT["qwen coder"], tools=[tool])

    assert read is not None
    assert read.calls[0].name == "search"


PIECES = st.sampled_from(
    ("<tool_call>|</tool_call>|search(|query='x')|{'name': 'search'|'arguments': {|}}|```|\n|Action: search\n|[|]|"
     "Action Input: |for example |Let me search. |<think>|</think>|\ud800|查").replace("'", '"').split("|")
)  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=8), max_size=25).map("".join), st.booleans())
def test_any_text_is_survived_and_only_known_tools_come_back(text: str, truncated: bool) -> None:
    read = salvage(text, text, TOOLS, truncated=truncated)

    assert read is None or {call.name for call in read.calls} <= {"search", "read_file", "get_time"}


def test_a_call_without_what_a_strict_schema_lets_be_null_is_still_a_call() -> None:
    optional = {"limit": {"type": ["integer", "null"]}, "lang": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
    schema = {"type": "object", "properties": {"query": {"type": "string"}, **optional}}
    strict = ToolSpec("search", "", {**schema, "required": ["query", "limit", "lang"], "additionalProperties": False})
    for text in ('```json\n{"name": "search", "arguments": {"query": "x"}}\n```', 'search(query="x")'):
        assert made(text, [strict]) == ["search"], text
        assert made(text.replace("query", "limit"), [strict]) == [], text
