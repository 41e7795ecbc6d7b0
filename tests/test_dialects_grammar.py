"""The grammars of ReAct replies bind a real engine: a tiny model that only recites the alphabet makes right calls."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from closeout.answers.contracts import AnswerContract, Choice, Json, Number
from closeout.dialects.constrain import action_constraint, program_grammar, rewording_grammar
from closeout.dialects.cot import CotCompletion
from closeout.dialects.protocol import HistoryView, get_dialect
from closeout.messages import Capabilities, Constraint, ModelRequest, Step, ToolSpec
from closeout.models.local import LocalClient
from closeout.parsing.program import parse_python
from tiny_gguf import write_model

pytest.importorskip("xllamacpp")

TOOLS = (
    ToolSpec("get_time"),
    ToolSpec(
        "order",
        "",
        {
            "type": "object",
            "properties": {
                "size": {"enum": ["small", "large"]},
                "count": {"type": "integer"},
                "gift": {"type": "boolean"},
            },
            "required": ["size"],
            "additionalProperties": False,
        },
    ),
)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[LocalClient]:
    async with LocalClient(write_model(tmp_path / "tiny.gguf"), max_context=2048) as client:
        yield client


@pytest.mark.parametrize("tools", [TOOLS[:1], TOOLS[1:], TOOLS], ids=["no input", "some input", "a choice"])
@pytest.mark.parametrize("primed", [False, True])
async def test_a_constrained_reply_is_a_call_that_fits_its_schema(
    client: LocalClient, primed: bool, tools: tuple[ToolSpec, ...]
) -> None:
    constraint = action_constraint(tools, Capabilities(grammar=True), primed=primed, may_answer=False)
    request = ModelRequest(prompt="Thought:", constraint=constraint, max_tokens=900)
    reply = await client.complete(request)
    assert reply.text.startswith(" " if primed else "Thought: ")
    reading = get_dialect("cot_completion" if primed else "cot_chat").reader(tools).close(reply)
    (made,) = reading.calls
    schema = next(tool.parameters for tool in tools if tool.name == made.name)
    assert jsonschema_rs.validator_for(dict(schema)).is_valid(made.arguments)


@pytest.mark.parametrize(
    "contract", [Choice(["north", "north [west]"]), Number(), Json({"enum": [["a", 1], {"b": None}]})], ids=repr
)
async def test_a_constrained_answer_fits_its_contract_and_ends(client: LocalClient, contract: AnswerContract) -> None:
    constraint = action_constraint((), Capabilities(grammar=True), primed=True, answer=contract.constraint())
    reply = await client.complete(ModelRequest(prompt="Thought:", constraint=constraint, max_tokens=900))
    reading = get_dialect("cot_completion").reader(()).close(reply)
    assert contract.read(reading.answer or "").ok or reply.finish_reason == "length"
    assert reply.finish_reason == "stop"


LOOK_UP_AND_COMPUTE = (
    ToolSpec("calculate", "", {"type": "object", "properties": {"e": {"type": "string"}}, "required": ["e"]}),
    ToolSpec("search", "", {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}),
)
WEAK = Capabilities(grammar=True, weak=True)


async def after_thought(client: LocalClient, thought: str, finder: str = "search") -> list[str]:
    """The first two lines that follow a thought, when one tool can find something."""
    view = HistoryView("", "How many?", LOOK_UP_AND_COMPUTE, [Step(1, thought)])
    dialect = get_dialect("cot_completion")
    assert isinstance(dialect, CotCompletion)
    rule = dialect.thought_rule(view, WEAK)
    assert rule is not None
    assert rule.finders == {"search"}
    rule = replace(rule, finders=frozenset({finder}))
    constraint = action_constraint(LOOK_UP_AND_COMPUTE, WEAK, primed=True, thought=rule)
    reply = await client.complete(ModelRequest(prompt="Thought:", constraint=constraint, max_tokens=900))
    return reply.text.splitlines()[:2]


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_thought_keeps_the_letters_of_the_one_before(client: LocalClient, count: int) -> None:
    before = "".join(f"{letter} = height of it, " for letter in "abc"[:count]) + "answer = a."
    thought, _ = await after_thought(client, before)
    assert re.findall(r"(?:^ |, )([a-f]) = ", thought) == list("abc"[:count])
    assert ", answer = " in thought


@pytest.mark.parametrize("finder", ["calculate", "search"])
async def test_only_tools_that_find_may_follow_a_fact_described_in_words(client: LocalClient, finder: str) -> None:
    thought, action = await after_thought(client, "a = height of it, answer = a.", finder)
    assert re.match(" a = [a-z]", thought)
    assert f'"action": "{finder}"' in action or action.startswith(f"Action: {finder} ")


async def test_a_program_is_fenced(client: LocalClient) -> None:
    constraint = Constraint("grammar", program_grammar(()))
    reply = await client.complete(ModelRequest(prompt="Question: a\n", constraint=constraint, max_tokens=700))
    first, *lines = reply.text.splitlines()
    assert first == "```python"
    assert all(line and len(line) <= 301 and (line[0] != "`" or line == "```") for line in lines)


@pytest.mark.parametrize("numbers", [("7",), ("1,200", "7"), ("0.5", "12", "3")], ids=str)
async def test_the_plan_of_a_program_states_the_numbers_of_the_question(
    client: LocalClient, numbers: tuple[str, ...]
) -> None:
    planned = re.sub(
        r"\(plan \| .*?\) line", "plan line", program_grammar(numbers)
    )  # the tiny model would write no plan
    reply = await client.complete(
        ModelRequest(prompt="Question: a\n", constraint=Constraint("grammar", planned), max_tokens=700)
    )
    plan = reply.text.splitlines()[1]
    assert plan.startswith("#")
    assert all(re.search(rf"(?<![\d.,]){re.escape(number)}(?!\d)", plan) for number in numbers)


def test_a_plan_is_free_without_numbers_and_with_many() -> None:
    assert program_grammar(()) == program_grammar(("1", "2", "3", "4"))


@pytest.mark.parametrize(
    "beginnings", [["print("], ['print(search("Orm', "print(search(\"Æ'"], ["print(a", "print(b"] * 2]
)
async def test_a_program_that_must_look_something_up_only_prints(client: LocalClient, beginnings: list[str]) -> None:
    constraint = Constraint("grammar", program_grammar((), printing=beginnings))
    reply = await client.complete(ModelRequest(prompt="Question: a\n", constraint=constraint, max_tokens=700))
    first, *lines = reply.text.splitlines()
    assert first == "```python"
    assert all(line.startswith("print(") or line == "```" for line in lines)
    if len(beginnings) > 3:  # one of them
        assert lines[0].startswith(tuple(beginnings))
    else:
        assert all(line.startswith(beginning) for line, beginning in zip(lines, beginnings, strict=False))
        assert len(lines) >= len(beginnings)


@pytest.mark.parametrize("query", ["brass", 'a "brass" \\ `instrument`\nBODY NAMED', "乐器" * 90])
async def test_a_program_that_searches_in_other_words_names_them_first(client: LocalClient, query: str) -> None:
    grammar = rewording_grammar(query, 'print(search("')
    for short in (grammar.replace("{8,80}", "{8}").replace("{1,4}", "{1}"), grammar):
        reply = await client.complete(ModelRequest(prompt="a", constraint=Constraint("grammar", short), max_tokens=700))
        plan, search = reply.text.removeprefix("```python\n").splitlines()[:2]
        assert plan.startswith(f"# {query[:5]}")
        assert " may be called: " in plan
        assert re.fullmatch(r'print\(search\("[^"\\]+ or [^"\\]+"\)\)', search)


@pytest.mark.parametrize(
    ("makes", "beginning"),
    [
        ("value", r"[a-z][a-z0-9_]* = [^A-Z]|final_answer\([^A-Z]"),
        ("name", r'[a-z][a-z0-9_]* = \{|final_answer\("[^"]+"\)$'),
        ("size", r"final_answer\(abs\([^\n]+\)\)$"),
        ("choice", r"numbers = \{"),
        ("second", r"numbers = \{"),
        ("least", r"numbers = \{"),
        ("most", r"numbers = \{"),
    ],
)
async def test_a_program_that_reads_facts_begins_with_a_variable_or_the_answer(
    client: LocalClient, makes: Any, beginning: str
) -> None:
    constraint = Constraint("grammar", program_grammar(("7",), makes=makes))
    reply = await client.complete(ModelRequest(prompt="Question: a\n", constraint=constraint, max_tokens=700))
    first, second, *_ = reply.text.splitlines()
    assert first == "```python"
    assert re.match(beginning, second)


async def test_a_program_that_must_use_a_number_calculates_with_it(client: LocalClient) -> None:
    grammar = program_grammar((), using="24")
    for short in (grammar.replace("{1,150}", "{1,9}").replace("{0,80}", "{0,9}"), grammar):
        reply = await client.complete(ModelRequest(prompt="a", constraint=Constraint("grammar", short), max_tokens=700))
        assert re.search(r"final_answer\(.*(24 ?[-+*/]|[-+*/] ?\(?24)", reply.text), reply.text


@pytest.mark.parametrize(
    ("makes", "chosen"),
    [
        ("choice", "max("),
        ("choice", "min("),
        ("choice", "sorted("),
        ("most", "max("),
        ("least", "min("),
        ("second", "sorted("),
    ],
)
async def test_a_choice_by_number_is_a_valid_program(client: LocalClient, makes: Any, chosen: str) -> None:
    grammar = program_grammar((), makes=makes)
    short = grammar.replace('[^\\n]{1,300} "}', '"}').replace(
        '("max(" | "min(") by ")" | "sorted(" by', f'"{chosen}" by'
    )
    short = short.replace(' by "[" "-"? [0-9] "])"', ' by "[" "-"? [0-9] "])"' if chosen == "sorted(" else ' by ")"')
    reply = await client.complete(ModelRequest(prompt="a", constraint=Constraint("grammar", short), max_tokens=700))
    program = parse_python(reply.text.removeprefix("```python\n").partition("```")[0])
    assert program is not None
    assert f"final_answer({chosen}numbers, key=" in reply.text
