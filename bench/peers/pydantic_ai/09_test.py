from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel


def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


def scripted(messages, info):
    if len(messages) == 1:
        return ModelResponse([ToolCallPart("price", {"item": "lamp"})])
    return ModelResponse([TextPart(f"It costs {messages[-1].parts[0].content}.")])


def test_the_agent_looks_the_price_up():
    agent = Agent(FunctionModel(scripted), tools=[price])
    assert "40" in agent.run_sync("What does a lamp cost?").output
