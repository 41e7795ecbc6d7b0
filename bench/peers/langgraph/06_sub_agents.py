from langchain.agents import create_agent


def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


def clerk(task: str) -> str:
    """Knows the prices."""
    agent = create_agent("openai:gpt-5", tools=[price])
    return agent.invoke({"messages": [("user", task)]})["messages"][-1].content


chief = create_agent("openai:gpt-5", tools=[clerk])
state = chief.invoke({"messages": [("user", "Ask the clerk what a lamp costs.")]})
print(state["messages"][-1].content)
