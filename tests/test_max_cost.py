"""`max_cost` is kept with the tariff of the model that is about to be asked, from the first request on."""

from __future__ import annotations

import random
from typing import Any

import pytest

from closeout import Agent, Fallback, Message, RunResult, tool
from closeout.errors import ServerFailed
from closeout.models.catalog import PRICES, Price
from closeout.testing import RequestView, ScriptedClient, answer, call

CHEAP, DEAR = PRICES["gpt-5-mini"], PRICES["gpt-5.5"]
REPLY = 40  # tokens of each reply here, at most


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


def largest_reply(price: Price) -> float:
    return REPLY * price.output / 1e6


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


def test_a_fallback_is_priced_as_its_dearest_model() -> None:
    class Down(Priced):
        async def complete(self, *arguments: Any, **options: Any) -> Any:
            raise ServerFailed("down")

    dear = Priced(script(0), DEAR, name="dear")
    result = Agent(Fallback([Down([], CHEAP, name="cheap"), dear]), max_cost=0.01).run_sync("many words " * 5_000)
    assert (result.stop_reason, dear.requests) == ("max_cost", [])


def test_a_run_that_fits_is_not_stopped() -> None:
    model = Priced(script(2), CHEAP)
    result = Agent(model, [look], max_cost=0.01).run_sync("Go.")
    assert (result.status, len(model.requests)) == ("answered", 3)


@pytest.mark.parametrize("seed", range(4))
def test_random_runs_stay_within_the_limit_but_for_the_replies_in_flight(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(12):
        price, turns = chance.choice(list(PRICES.values())), chance.randrange(8)
        limit = chance.choice([0.0005, 0.002, 0.01, 0.05])
        model = Priced(script(turns), price)
        task = "word " * chance.randrange(5, 2_000)
        result: RunResult[Any] = Agent(model, [look], max_cost=limit).run_sync(task)
        spent = result.usage.cost_usd or 0.0
        assert spent <= limit + largest_reply(price), (price, turns, limit)
        if result.stop_reason == "max_cost" and not model.requests:
            prompt = len(task) // 4
            assert prompt * price.input / 1e6 > limit / 4, "the first request would have fitted easily"


def test_a_first_request_that_fits_is_sent() -> None:
    config = {"llm": {"prices": {"m": [100.0, 100.0]}}}
    agent = Agent(ScriptedClient([answer("42")], name="m"), home=False, config=config, max_cost=4.0)
    assert agent.run_sync("word " * 20_000).answer == "42"
