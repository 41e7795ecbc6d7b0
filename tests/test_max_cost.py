"""`max_cost` is kept with the tariff of the model that is about to be asked, from the first request on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "harness"))

from spending import spend

from closeout import Agent, Fallback, File, Message, tool
from closeout.errors import ServerFailed
from closeout.models.catalog import PRICES, Price
from closeout.run.lifecycle import replay_run
from closeout.testing import RequestView, ScriptedClient, answer, call

CHEAP, DEAR = PRICES["gpt-5-mini"], PRICES["gpt-5.5"]


class Priced(ScriptedClient):
    """A scripted model with a tariff, which counts the tokens of its prompts as agents estimate them."""

    def __init__(self, script: Any, price: Price, **options: Any) -> None:
        super().__init__(script, **options)
        self.price = price


def script(turns: int) -> Any:
    def reply(view: RequestView) -> Any:
        done = sum(message["role"] == "tool" for message in view.messages)
        return call("look", number=done) if done < turns and view.tools else answer("42")

    return reply


@tool(read_only=True)
def look(number: int) -> str:
    """Look."""
    return "word " * 50


def test_a_long_first_prompt_that_costs_more_than_the_limit_is_not_sent() -> None:
    model = Priced(script(0), DEAR)
    result = Agent(model, max_cost=0.01).run_sync("Sum up: " + "many words " * 30_000)
    assert (result.status, result.stop_reason, len(model.requests)) == ("unanswered", "max_cost", 0)


def test_a_long_history_counts() -> None:
    model = Priced(script(0), DEAR)
    history = [Message(role="user", content="many words " * 30_000), Message(role="assistant", content="Yes.")]
    result = Agent(model, max_cost=0.01).run_sync("And?", history=history)
    assert (result.stop_reason, len(model.requests)) == ("max_cost", 0)


def test_a_dear_sub_agent_is_asked_at_its_own_price() -> None:
    dear = Priced(script(0), DEAR)
    reader = Agent(dear, name="reader")
    model = Priced([call("reader", task="many words " * 3_000), answer("42")], CHEAP)
    result = Agent(model, [reader.as_tool("reader", "Reads.")], max_cost=0.02).run_sync("Go.")
    assert dear.requests == []
    assert result.usage.cost_usd is not None
    assert result.usage.cost_usd <= 0.02


class Down(Priced):
    async def complete(self, *arguments: Any, **options: Any) -> Any:
        raise ServerFailed("down")


def test_a_dear_model_is_not_asked_in_place_of_a_cheap_one_that_fails() -> None:
    dear = Priced(script(0), DEAR, name="dear")
    result = Agent(Fallback([Down([], CHEAP, name="cheap"), dear]), max_cost=0.01).run_sync("many words " * 5_000)
    assert (result.stop_reason, dear.requests) == ("max_cost", [])
    assert "would exceed the limit max_cost=0.01" in (result.error or "")


async def replayed(agent: Agent[Any, Any], run_id: str) -> tuple[str | None, str]:
    result, departure = await replay_run(agent.plan(), run_id, agent.store().read(run_id).rows)
    assert departure == ""
    return result.answer, result.stop_reason


async def test_a_dear_model_that_is_not_asked_does_not_count(tmp_path: Path) -> None:
    cheap, dear = Priced(script(3), CHEAP, name="cheap"), Priced(script(0), DEAR, name="dear")
    agent = Agent(Fallback([cheap, dear]), [look], max_cost=0.02, home=tmp_path)
    result = await agent.run("many words " * 5_000, run_id="r")
    assert (result.answer, len(cheap.requests), dear.requests) == ("42", 4, [])
    assert await replayed(agent, "r") == ("42", "answered")


async def test_a_run_that_a_dear_model_stopped_continues_with_a_higher_limit(tmp_path: Path) -> None:
    dear = Priced(script(0), DEAR, name="dear")
    agent = Agent(Fallback([Down([], CHEAP, name="cheap"), dear]), max_cost=0.01, home=tmp_path)
    assert (await agent.run("many words " * 5_000, run_id="r")).stop_reason == "max_cost"
    assert (await agent.resume("r", max_cost=1.0)).answer == "42"


def test_pictures_count_before_a_server_has_counted_them() -> None:
    model = Priced(script(0), DEAR)
    pictures = [File(f"{number}.png", b"\x89PNG\r\n\x1a\n" + bytes(24)) for number in range(3)]
    result = Agent(model, max_cost=0.02).run_sync("What is this?", files=pictures)
    assert (result.stop_reason, model.requests) == ("max_cost", [])


def test_a_run_that_fits_is_not_stopped() -> None:
    model = Priced(script(2), CHEAP)
    result = Agent(model, [look], max_cost=0.01).run_sync("Go.")
    assert (result.status, len(model.requests)) == ("answered", 3)


async def test_random_runs_stay_within_the_limit_and_stop_only_if_no_request_fits(tmp_path: Path) -> None:
    """bench/max_cost.py executes thousands."""
    for seed in range(25):
        features, _, wrong = await spend(seed, tmp_path)
        assert not wrong, (seed, features)


def test_a_first_request_that_fits_is_sent() -> None:
    config = {"llm": {"prices": {"m": [100.0, 100.0]}}}
    agent = Agent(ScriptedClient([answer("42")], name="m"), home=False, config=config, max_cost=4.0)
    assert agent.run_sync("word " * 20_000).answer == "42"
