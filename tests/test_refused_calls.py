"""Calls that must not run: contradictory, not a number, beside an answer, quoted, after an invented result, cut off."""

from __future__ import annotations

import pytest

from call_writers import WRITERS
from closeout import Agent, tool
from closeout.messages import Capabilities, ToolPolicy, ToolSpec
from closeout.parsing.forms import read_tool_calls
from closeout.parsing.salvage import salvage
from closeout.testing import ScriptedClient, answer, say

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "depth": {"type": "number"}},
    "required": ["path"],
}
DESTRUCTIVE = [ToolSpec("wipe", "", SCHEMA, policy=ToolPolicy(destructive=True)), ToolSpec("list_files", "", SCHEMA)]
HARMLESS = [ToolSpec("wipe", "", SCHEMA), ToolSpec("list_files", "", SCHEMA)]
CALL = '{"name": "wipe", "arguments": {"path": "/"}}'

REFUSED = {
    "two actions": '{"action": "list_files", "action": "wipe", "action_input": {"path": "/"}}',
    "two tools under two keys": '{"tool": "wipe", "name": "list_files", "arguments": {"path": "/"}}',
    "two inputs": '{"action": "wipe", "action_input": {"path": "/"}, "action_input": {"path": "/tmp"}}',
    "two inputs under two keys": '{"name": "wipe", "arguments": {"path": "/"}, "parameters": {"path": "/tmp"}}',
    "two values for a parameter": '{"name": "wipe", "arguments": {"path": "/", "path": "/tmp"}}',
    "two values in tags": '<tool_call>{"name": "wipe", "arguments": {"path": "/", "path": "/tmp"}}</tool_call>',
    "two values in broken JSON": '<tool_call>{"name":"wipe","arguments":{"path":"/","path":"/tmp",}}</tool_call>',
    "two parameter tags": "<function=wipe><parameter=path>/</parameter><parameter=path>/tmp</parameter></function>",
    "two keyword arguments": "[wipe(path='/', path='/tmp')]",
    "an answer beside the call": '{"action": "wipe", "action_input": {"path": "/"}, "final_answer": "done"}',
    "an answer in an envelope": '{"tool_call": {"name": "wipe", "arguments": {"path": "/"}}, "answer": "done"}',
    "not a number": '{"name": "wipe", "arguments": {"path": "/", "depth": NaN}}',
    "an infinity in tags": '<tool_call>{"name": "wipe", "arguments": {"path": "/", "depth": -Infinity}}</tool_call>',
    "not a number in broken JSON": '<tool_call>{"name": "wipe", "arguments": {"path": "/", "depth": NaN,}}</tool_call>',
    "ReAct with two values": 'Action: wipe\nAction Input: {"path": "/", "path": "/tmp"}',
    "ReAct with NaN": 'Action: wipe\nAction Input: {"path": "/", "depth": NaN}',
    "ReAct with a call and an answer": 'Action: {"action": "wipe", "action_input": {"path": "/"}, "final_answer": "x"}',
}
UNCERTAIN = {
    "after an invented result": f"Observation: it is empty\n<tool_call>{CALL}</tool_call>",
    "after an invented tool response": f"<tool_response>ok</tool_response>\n<tool_call>{CALL}</tool_call>",
    "before an invented result": f"<tool_call>{CALL}</tool_call>\nObservation: done",
    "a page": f"The page says:\n{CALL}",
    "a page with a marked call": f"The page says:\n<tool_call>{CALL}</tool_call>",
    "a page that announces": f"The page says: I'll wipe it now.\n<tool_call>{CALL}</tool_call>",
    "a log": f"2024-05-01 12:00 INFO call\n{CALL}",
    "an example in a fence": f"For example:\n```json\n{CALL}\n```",
    "backticks": f"`{CALL}`",
    "a block quote": f"> <tool_call>{CALL}</tool_call>",
    "bare": CALL,
    "bare after an intention": f"I'll wipe it now.\n{CALL}",
    "bare in a fence": f"```json\n{CALL}\n```",
    "Python-style": "[wipe(path='/')]",
    "Python-style in a fence": "```python\nwipe(path='/')\n```",
    "a name over its arguments": 'wipe\n{"path": "/"}',
    "marked, with prose after it": f"<tool_call>{CALL}</tool_call>\nThat call would delete everything.",
}


def makes_call(text: str, tools: list[ToolSpec]) -> bool:
    found = salvage(text, tools=tools)
    return found is not None and bool(found.calls)


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_no_form_reads_a_refused_call_back(text: str) -> None:
    read = read_tool_calls(text, HARMLESS)

    assert read.calls == ()
    assert any(defect.refuses for defect in read.defects)
    assert not makes_call(text, HARMLESS)
    assert not makes_call(f"{text}\n<tool_call>{CALL}</tool_call>", HARMLESS)


@pytest.mark.parametrize("text", UNCERTAIN.values(), ids=UNCERTAIN)
def test_a_destructive_tool_needs_a_certain_call(text: str) -> None:
    assert not makes_call(text, DESTRUCTIVE)


@pytest.mark.parametrize(
    "text", [f"<tool_call>{CALL}</tool_call>", f"<think>I'll wipe the disk now.</think>\n<tool_call>{CALL}</tool_call>"]
)
def test_a_marked_call_of_a_destructive_tool_is_found_if_there_is_no_other_text(text: str) -> None:
    found = salvage(text, tools=DESTRUCTIVE)

    assert found is not None
    assert found.calls[0].name == "wipe"
    assert salvage(text, tools=DESTRUCTIVE, truncated=True) is None


QUOTATIONS = {
    "a page": "The page says:\n{}",
    "a page, then prose": "The page says:\n{}\nI will not follow it.",
    "an example": "For example:\n\n{}",
    "quotation marks": 'He wrote "{}"',
    "backticks": "Use `{}`",
    "a fence": "This is what the log shows:\n```\n{}\n```",
    "a block quote": "> {}",
    "a list": "- {}",
    "an escape": "\\{}",
    "a refusal": "I won't run this:\n{}",
}


@pytest.mark.parametrize("quotation", QUOTATIONS.values(), ids=QUOTATIONS)
def test_a_quoted_call_of_a_destructive_tool_is_text_in_every_form(quotation: str) -> None:
    written = {form: writer.write([("wipe", {"path": "/"})]) for form, writer in WRITERS.items()}

    assert [form for form in written if makes_call(quotation.replace("{}", written[form]), DESTRUCTIVE)] == []


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("dialect", ["function_call", "mcp_xml", "cot_chat", "cot_completion"])
async def test_no_run_executes_a_destructive_tool_from_such_a_reply(dialect: str, stream: bool) -> None:
    wiped: list[str] = []

    @tool(destructive=True)
    def wipe(path: str, depth: float = 1.0) -> str:
        """Delete everything in a folder."""
        wiped.append(path)
        return "deleted"

    @tool
    def list_files(path: str) -> str:
        """List the files in a folder."""
        return "a.txt"

    for name, text in {**REFUSED, **UNCERTAIN}.items():
        capabilities = Capabilities(completions=True, native_tools=dialect == "function_call", known=True)
        client = ScriptedClient(
            [say(text), say("So be it."), answer("done"), answer("done")], capabilities=capabilities
        )
        result = await Agent(client, [wipe, list_files], dialect=dialect, stream=stream, home=False).run("Clean up.")
        assert wiped == [], (name, result)
