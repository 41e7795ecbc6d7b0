from closeout import Agent
from closeout.testing import ScriptedClient, call, say


def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


def test_the_agent_looks_the_price_up():
    model = ScriptedClient([call("price", item="lamp"), lambda request: say(f"It costs {request.last}.")])
    result = Agent(model, tools=[price], home=False).run_sync("What does a lamp cost?")
    assert "40" in result.answer
