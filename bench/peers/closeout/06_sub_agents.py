from closeout import Agent


def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


clerk = Agent("openai:gpt-5", tools=[price])
chief = Agent("openai:gpt-5", tools=[clerk.as_tool("clerk", "Knows the prices.")])
print(chief.run_sync("Ask the clerk what a lamp costs.").answer)
