"""The grammars of ReAct replies bind a real engine: a tiny model that only recites the alphabet makes right calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import jsonschema_rs
import pytest

from closeout.answers.contracts import AnswerContract, Choice, Json, Number
from closeout.dialects.constrain import PROGRAM_GRAMMAR, action_constraint
from closeout.dialects.protocol import get_dialect
from closeout.messages import Capabilities, Constraint, ModelRequest, ToolSpec
from closeout.models.local.embedded import LocalClient
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


@pytest.mark.parametrize(
    ("tools", "primed"),
    [(TOOLS[:1], True), (TOOLS[1:], False), (TOOLS, True)],
    ids=["no input", "some input", "a choice"],
)
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


async def test_a_program_is_fenced(client: LocalClient) -> None:
    constraint = Constraint("grammar", PROGRAM_GRAMMAR)
    reply = await client.complete(ModelRequest(prompt="Question: a\n", constraint=constraint, max_tokens=700))
    first, *lines = reply.text.splitlines()
    assert first == "```python"
    assert all(line and len(line) <= 301 and (line[0] != "`" or line == "```") for line in lines)
