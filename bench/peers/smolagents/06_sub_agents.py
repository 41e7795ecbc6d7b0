from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def price(item: str) -> float:
    """The price of an item in the shop.

    Args:
        item: the item
    """
    return {"lamp": 40.0, "chair": 85.0}[item]


model = OpenAIModel("gpt-5")
clerk = ToolCallingAgent(tools=[price], model=model, name="clerk", description="Knows the prices.")
chief = ToolCallingAgent(tools=[], model=model, managed_agents=[clerk])
print(chief.run("Ask the clerk what a lamp costs."))
