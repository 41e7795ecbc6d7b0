from closeout import Agent


def read_page(number: int) -> str:
    """Read a page of the catalogue."""
    return f"Page {number}. " + "Lamps, chairs and tables. " * 2000


agent = Agent("openai:gpt-5", tools=[read_page], config={"agent": {"max_cost": 0.10}})
result = agent.run_sync("Read the whole catalogue.")
print(result.stop_reason, result.answer)
