from agents import Agent, Runner, function_tool


@function_tool
def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


clerk = Agent(name="clerk", model="gpt-5", tools=[price])
tool = clerk.as_tool(tool_name="clerk", tool_description="Knows the prices.")
chief = Agent(name="chief", model="gpt-5", tools=[tool])
print(Runner.run_sync(chief, "Ask the clerk what a lamp costs.").final_output)
