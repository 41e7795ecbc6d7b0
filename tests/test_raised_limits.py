"""Limits that are given again apply to the run that continues."""

import pytest

from closeout import Agent, tool
from closeout.errors import UsageError
from closeout.testing import ScriptedClient, answer, call

PRICES = {"llm": {"prices": {"m": [10.0, 10.0]}}}


def agent_in(home):
    @tool(read_only=True)
    def look() -> str:
        """Look."""
        return "nothing"

    script = [call("look"), call("look"), answer("42")]
    return Agent(ScriptedClient(script, name="m"), [look], home=home, max_tokens=100, config=PRICES)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ({"budget": {"team": "0.001 USD"}}, {"budget": {"team": "10 USD"}}),
        ({"max_cost": 0.000001}, {"max_cost": 5.0}),
    ],
)
async def test_a_higher_limit_continues_a_run_that_stopped_at_a_lower_one(low, high, tmp_path):
    assert (await agent_in(tmp_path).run("q", run_id="resumed", **low)).answer is None
    assert (await agent_in(tmp_path).run_once("q", run_id="once", **low)).answer is None
    assert [r.answer for r in await agent_in(tmp_path).run_many(["q"], key="night", **low)] == [None]

    assert (await agent_in(tmp_path).resume("resumed", **high)).answer == "42"
    assert (await agent_in(tmp_path).run_once("q", run_id="once", **high)).answer == "42"
    assert [r.answer for r in await agent_in(tmp_path).run_many(["q"], key="night", **high)] == ["42"]
    again = await agent_in(tmp_path).run_once("q", run_id="once", **high)
    assert (again.answer, again.usage.requests) == ("42", 3)


async def test_a_raised_limit_stays_with_the_run(tmp_path):
    agent = agent_in(tmp_path)
    await agent.run("q", run_id="r", max_cost=0.000001)
    await agent.resume("r", max_cost=0.000002)
    stopped = await agent.resume("r")
    assert "max_cost=2e-06" in stopped.error
    assert (await agent.run_once("q", run_id="r", max_cost=0.000002)).answer is None


async def test_a_run_without_requests_cost_nothing(tmp_path):
    results = await agent_in(tmp_path).run_many(["q", "r"], max_cost=0.000001)
    assert sum(result.usage.cost_usd for result in results) == 0.0
    missing = await agent_in(tmp_path).run_many([{"task": "q", "files": ["missing.txt"]}])
    assert missing[0].usage.cost_usd == 0.0


async def test_a_budget_without_a_known_length_of_replies_is_refused_before_anything_is_recorded(tmp_path):
    class OwnClient(ScriptedClient):
        max_reply = None

    agent = Agent(OwnClient([answer("42")], name="m"), home=tmp_path, budget={"team": "1 USD"}, config=PRICES)
    with pytest.raises(UsageError, match="how long a reply"):
        await agent.run("q")
    assert list(agent.store().runs()) == []
