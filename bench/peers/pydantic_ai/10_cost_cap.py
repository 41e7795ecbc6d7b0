from decimal import Decimal

from pydantic_ai import Agent, UsageLimitExceeded, UsageLimits


def read_page(number: int) -> str:
    """Read a page of the catalogue."""
    return f"Page {number}. " + "Lamps, chairs and tables. " * 2000


agent = Agent("openai-chat:gpt-5", tools=[read_page])
try:
    limits = UsageLimits(cost_limit=Decimal("0.10"))
    print("answered", agent.run_sync("Read the whole catalogue.", usage_limits=limits).output)
except UsageLimitExceeded:
    print("max_cost")
