from typing import Literal

from pydantic_ai import Agent


def price(item: str, size: Literal["small", "large"] = "small") -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item] * (2 if size == "large" else 1)


agent = Agent("openai-chat:gpt-5", tools=[price])
print(agent.run_sync("What does a large lamp cost?").output)
