"""ReAct texts as models write them, well and badly, and a way to parse them; for the tests of the parser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from closeout.parsing.react import CotAgentOutputParser, CotEvent, joined

CALL = '{"action": "search", "action_input": {"q": "Überraschung 😀"}}'

SAMPLES = [
    "",
    " \n\n ",
    "42",
    "A plain answer.\nOn two lines.",
    "Thought: I wonder.",
    f"Thought: I need it.\nAction: {CALL}",
    f"Thought: I need it.\nAction: {CALL}\nObservation: 7\nThought: done\nFinal Answer: 7",
    f"**Thought:** so\n**Action:** ```json\n{CALL}\n```\nand more",
    f"## Thought 1: so\n\n* Action 1： {CALL}",
    f"\ufeffthought: low\nACTION:\n\n~~~\n{CALL}\n~~~",
    f"Action: ````{CALL}````",
    f"Action:\n```\n{CALL}\n{CALL}\n```",
    f"Action:\n```json\n{CALL}",
    f"Sure.\n{CALL}\n",
    f"{CALL} is how I would write it.",
    "The map is {a: [1, 2}\n[x] is ticked\n{ and\nThought: go\nAction: get_time",
    'Thought: `{"action": "x", "action_input": 1}` is a form\nFinal Answer: none',
    "Thought: like this\n```\nAction: search\n```\nFinal Answer: ok",
    '<tool_call>\n{"name": "f", "arguments": {"a": [1, {"b": null}]}}\n</tool_call>',
    "Write <tool_call> around it.",
    "<think>Action: no\nFinal Answer: no<think>deep</think></think>\nFinal Answer: yes",
    "I think.\nFinal Answer: not yet\n</think>\nFinal Answer: now",
    "<think>never closed\nAction: x",
    "Action: search\nAction Input: Paris weather\nObservation: rain",
    'Action: search\nAction Input: {"q": "x"} Observation: y',
    "Action: search Observation: y",
    "Action: search\n\n\nAction Input:\n```python\nprint('hi')\n```\n",
    'Action: "search"\nAction Input: "x"',
    'Action: Tool({"a": 1})',
    'Action: name ({"a": 1})\nmore',
    "Action: None\nFinal Answer: nothing to do",
    "Action: N/A",
    "Action: Final Answer\nAction Input: the end",
    'Action: {"action": "Final Answer", "action_input": "a\\n\\u00e9\\ud83d\\ude00 \\"q\\""}',
    "Action: {'action': 'a', 'action_input': {'x': True, 'y': None,}, } // done",
    'Action: {"action": "py", "action_input": "line 1\nline 2"}',
    'Action: {"action": "a", "action_input": NaN}',
    'Action: {"action": "a", "action": "b", "action_input": 1}',
    'Action: {"action": "a", "action_input": {"x": 1}, "final_answer": "2"}',
    'Action: {"action": "a", "action_input": {"x": "cut o',
    'Action: {"action": "a", "action_input": {"x": 1}\nObservation: 3',
    'Action: {"action": "a", "action_input": [1,\u00a02, {"b": \u0663}]}',
    'Action: {"action": "a", "action_input": {"b": 12//c\n, "c": [1x], "d": --5, "e": tru}}',
    'Action: {"action": "a", "action_input": [true,[null],{"k":{}},"", -0.5e-3 ,false]}',
    'Action: search Action Input: {"q": 1}',
    "Action #1: None\nAction Input #1: None\nFinal Answer: 4",
    "Action: Final Answer: 42",
    "Action: Observation: 42",
    "Final Answer: 42\nObserv",
    'Final Answer: {"action": "a", "action_input": 1}\nAction: none of it',
    "Final Answer: 42\nObservation: 43\nFinal Answer: 43",
    "Observation: 5\nFinal Answer: 5",
    "Action Input: orphan",
    "lone \ud800 surrogates \udc00 and NUL \x00\nFinal Answer: \ud83d",
]


def feed(
    text: str, cuts: Sequence[int] = (), finish_reason: str | None = "stop", **options: Any
) -> tuple[list[CotEvent], CotAgentOutputParser]:
    """All events of a text that is cut at these places, as they came."""
    parser = CotAgentOutputParser(**options)
    events: list[CotEvent] = []
    start = 0
    for end in (*sorted(cuts), len(text)):
        events += parser.feed(text[start:end])
        start = end
    return events + parser.close(finish_reason), parser


def parse(text: str, finish_reason: str | None = "stop", **options: Any) -> list[CotEvent]:
    return joined(feed(text, (), finish_reason, **options)[0])


def of_kind(events: Iterable[CotEvent], *kinds: str) -> list[CotEvent]:
    return [event for event in events if event.kind in kinds]


def action(text: str, finish_reason: str | None = "stop", **options: Any) -> CotEvent | None:
    """The one action of a text, or None."""
    found = of_kind(parse(text, finish_reason, **options), "action")
    assert len(found) <= 1
    return found[0] if found else None


def answer(text: str, **options: Any) -> str | None:
    found = of_kind(parse(text, **options), "final")
    return found[0].text if found else None


def defect(text: str, finish_reason: str | None = "stop", **options: Any) -> str | None:
    found = of_kind(parse(text, finish_reason, **options), "malformed")
    return found[0].code if found else None


def repairs(text: str) -> list[str]:
    found = action(text)
    assert found is not None
    return [repair.kind for repair in found.repairs]
