"""Tools whose result is the answer of the run: `@tool(gives_answer=True)`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Boxed, CheckedRun, RequireCall, tool
from closeout.testing import ScriptedClient, Turn, answer, call
from journal_file import cuts


@dataclass
class Weather:
    city: str
    degrees: float


booked: list[str] = []


@tool(gives_answer=True)
def weather(city: str) -> Weather:
    """The weather of a city."""
    booked.append(city)
    return Weather(city, {"Bern": 14.5, "Ulm": 99}[city])


@tool(gives_answer=True)
def lookup(key: str) -> str | None:
    """Look up a key."""
    if key == "none":
        raise ValueError("no such key")
    return key.upper()


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "mcp_xml"])
@pytest.mark.parametrize(
    ("form", "value"),
    [(Weather, Weather("Bern", 14.5)), (None, '{"city": "Bern", "degrees": 14.5}')],
    ids=["typed", "text"],
)
async def test_a_result_is_the_answer_without_another_request(dialect: str, form: Any, value: Any) -> None:
    model = ScriptedClient([call("weather", city="Bern")])
    result = await Agent(model, [weather], answer=form, dialect=dialect, home=False).run("What is it like in Bern?")
    assert (result.value, result.status, result.stop_reason) == (value, "answered", "answered")
    assert (result.turns, len(model.requests)) == (1, 1)
    assert [message.role for message in result.messages][:2] == ["user", "assistant"]


async def test_a_failure_or_a_result_of_another_form_is_shown_to_the_model() -> None:
    model = ScriptedClient([call("lookup", key="none"), call("lookup", key="a")])
    result = await Agent(model, [lookup], answer=Boxed(), home=False).run("What is a?")
    assert (result.answer, len(model.requests)) == ("A", 2)
    assert "no such key" in model.requests[1].last

    model = ScriptedClient([call("lookup", key="a"), answer("7")])
    result = await Agent(model, [lookup], answer=int, home=False).run("What is a?")
    assert (result.value, model.requests[1].last) == (7, "A")


async def test_of_several_calls_in_a_reply_the_last_one_answers() -> None:
    both = Turn(calls=[call("lookup", key="a"), call("lookup", key="b"), call("lookup", key="none")])
    result = await Agent(ScriptedClient([both]), [lookup], home=False).run("What is b?")
    assert result.answer == "B"


async def test_a_check_may_send_the_model_back() -> None:
    def believable(answer: str, run: CheckedRun) -> str | None:
        return f"{run.value.degrees} degrees is too hot." if run.value.degrees > 50 else None

    model = ScriptedClient([call("weather", city="Ulm"), call("weather", city="Bern")])
    result = await Agent(model, [weather], answer=Weather, check=believable, home=False).run("Where is it nice?")
    assert result.value == Weather("Bern", 14.5)
    assert "99.0 degrees is too hot." in model.requests[1].text


async def test_killed_at_any_event_the_run_ends_with_the_same_answer(home: Path) -> None:
    def agent() -> Agent[Any, Any]:
        script = lambda view: call("weather", city="Bern")  # noqa: E731
        return Agent(ScriptedClient(script), [weather], answer=Weather, home=home)

    await agent().run("What is it like in Bern?", run_id="whole")
    for kept in cuts(home):
        booked.clear()
        result = await agent().resume("whole")
        assert (result.value, result.status) == (Weather("Bern", 14.5), "answered"), kept


async def test_an_agent_as_a_tool_may_answer_for_its_caller() -> None:
    clerk = Agent(ScriptedClient([answer("42")]))
    model = ScriptedClient([call("clerk", task="Find out.")])
    chief = Agent(model, [clerk.as_tool("clerk", "Finds things out.", gives_answer=True)], answer=int, home=False)
    result = await chief.run("How many?")
    assert (result.value, result.usage.requests, len(model.requests)) == (42, 2, 1)


# ------------------------------------------------------------------------------------------------ a call is demanded


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat"])
async def test_no_answer_counts_before_the_first_call(dialect: str) -> None:
    model = ScriptedClient([answer("B"), call("plain", key="a"), answer("A")])

    @tool(read_only=True)
    def plain(key: str) -> str:
        """Look up a key."""
        return key.upper()

    result = await Agent(model, [plain], strategy=RequireCall(), dialect=dialect, home=False).run("What is a?")
    assert (result.answer, result.rollbacks) == ("A", 1)
    assert "Call a tool before you answer." in model.requests[1].text
    demanded = [request.tool_choice for request in model.requests]
    assert demanded == (["required", "required", None] if dialect == "function_call" else [None] * 3)
