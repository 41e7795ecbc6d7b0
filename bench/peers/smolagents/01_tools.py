from typing import Literal

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def price(item: str, size: Literal["small", "large"] = "small") -> float:
    """The price of an item in the shop.

    Args:
        item: the item
        size: its size
    """
    return {"lamp": 40.0, "chair": 85.0}[item] * (2 if size == "large" else 1)


agent = ToolCallingAgent(tools=[price], model=OpenAIModel("gpt-5"))
print(agent.run("What does a large lamp cost?"))
