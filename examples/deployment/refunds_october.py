"""An agent that pays refunds after an approval, as it was deployed in October.

python refunds_october.py "Refund 30 EUR for order 17"    # waits for the approval
"""

import sys

from closeout import Agent, tool


@tool(approval="always")
def refund(order: int, amount: float) -> str:
    """Refund an amount of an order."""
    return f"Refunded {amount} for order {order}."


agent = Agent("openai:gpt-5", [refund], name="refunds", instructions="You handle refunds.", version="2026-10")

if __name__ == "__main__":
    result = agent.run_sync(" ".join(sys.argv[1:]))
    print(result.answer or f"{result.status}: closeout approve {result.run_id}")
