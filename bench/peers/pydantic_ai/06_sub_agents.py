from pydantic_ai import Agent


def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


async def clerk(task: str) -> str:
    """Knows the prices."""
    return (await Agent("openai-chat:gpt-5", tools=[price]).run(task)).output


chief = Agent("openai-chat:gpt-5", tools=[clerk])
print(chief.run_sync("Ask the clerk what a lamp costs.").output)
