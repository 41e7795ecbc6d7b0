"""The strategy of small models: one search and one request, and the agent for what they do not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Number, SmallModel, tool
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.messages import Message, ToolPolicy
from closeout.testing import RequestView, ScriptedClient, Turn, call, say

CANAL, LAKE = "The Orm Canal was dug in 1775. It ends at Lake Pell.", "Lake Pell is in the canton of Ulm."


@tool(policy=ToolPolicy(read_only=True, example="look_up"))
def search(query: str) -> str:
    """Search the documents."""
    return LAKE if query == "Lake Pell" else CANAL


def program(code: str) -> Any:
    return say(f"```python\n{code}\n```")


def asked(read: str | Turn, *programs: Any, **options: Any) -> tuple[Agent[Any], ScriptedClient]:
    """An agent whose model reads this in the first results and, as an agent, writes these programs."""
    left = iter(programs)

    def script(view: RequestView) -> Any:
        if "Answer from these facts only" not in view.text:
            return next(left)
        if LAKE in view.text:
            return say("Ulm")
        return say(read) if isinstance(read, str) else read

    model = ScriptedClient(script)
    options = {"dialect": "code", "home": False, **options}
    return Agent(model, [search], strategy=SmallModel(), **options), model


@pytest.mark.parametrize("dialect", ["code", "function_call"])
async def test_what_one_search_finds_is_answered_in_one_request(tmp_path: Path, dialect: str) -> None:
    if dialect == "code":
        pytest.importorskip("pydantic_monty")
    agent, model = asked("1775", dialect=dialect, home=tmp_path)
    result = await agent.run("When was the Orm Canal dug?")
    assert (result.answer, len(model.requests)) == ("1775", 1)
    assert CANAL in model.requests[0].messages[-1].text
    events = [row.event for row in open_store(tmp_path).rows(result.run_id)]
    assert [each.arguments for each in events if isinstance(each, ev.ToolStarted)] == [
        '{"query":"When was the Orm Canal dug?"}'
    ]


async def test_an_answer_that_is_not_in_the_results_is_left_to_the_agent() -> None:
    pytest.importorskip("pydantic_monty")
    cut = Turn(text="1775", finish_reason="length")
    for read in ("225", "177 years", "The facts do not say.", "", "Orm Canal", cut):
        agent, model = asked(read, program("final_answer(2000 - 1775)"))
        result = await agent.run("How old was the Orm Canal in 2000?")
        assert (result.answer, len(model.requests)) == ("225", 2)


async def test_an_answer_of_another_form_is_left_to_the_agent() -> None:
    pytest.importorskip("pydantic_monty")
    agent, model = asked("Lake Pell", program("final_answer(1 + 1)"), answer=Number())
    assert (await agent.run("How many ends has it?")).answer == "2"
    assert len(model.requests) == 2


async def test_the_agent_searches_on_and_answers_in_words_from_all_results() -> None:
    pytest.importorskip("pydantic_monty")
    programs = program('print(search("Lake Pell"))'), program('final_answer("Orm")')
    agent, model = asked("unknown", *programs)
    result = await agent.run("In which canton does the Orm Canal end?")
    assert (result.answer, len(model.requests)) == ("Ulm", 4)
    assert [repair.kind for repair in result.repairs] == ["answer_in_words"]
    assert all(text in model.requests[-1].messages[-1].text for text in (CANAL, LAKE))


async def test_the_same_results_are_not_read_twice() -> None:
    pytest.importorskip("pydantic_monty")
    agent, model = asked("yes", program('final_answer("true")'))
    assert (await agent.run("Is the Orm Canal older than 1800?")).answer == "yes"
    assert len(model.requests) == 2


async def test_an_answer_that_was_sent_back_is_not_made_again() -> None:
    pytest.importorskip("pydantic_monty")
    programs = program('print(search("Lake Pell"))'), program('final_answer("Orm")'), program('final_answer("Pell")')
    agent, model = asked("unknown", *programs, check=lambda answer, run: "No." if answer == "Ulm" else None)
    assert (await agent.run("In which canton does the Orm Canal end?")).answer == "Pell"
    assert len(model.requests) == 5


async def test_what_only_the_conversation_explains_is_left_to_the_agent() -> None:
    pytest.importorskip("pydantic_monty")
    agent, model = asked("1775", program("final_answer(2 * 3)"))
    earlier = [Message(role="user", content="What is 2 times 3?"), Message(role="assistant", content="Let me see.")]
    assert (await agent.run("Well?", history=earlier)).answer == "6"
    assert len(model.requests) == 1


async def test_without_a_tool_that_looks_things_up_the_model_begins() -> None:
    @tool(read_only=True)
    def price(article: str) -> str:
        """Look a price up."""
        return "3 euros"

    model = ScriptedClient([call("price", article="lamp"), say("3 euros")])
    agent = Agent(model, [price], strategy=SmallModel(), home=False)
    assert (await agent.run("What does a lamp cost?")).answer == "3 euros"
