"""The same agent in November: the tool has another name and needs a currency. Runs that wait since October continue.

closeout agent upgrade --check refunds:agent     # what CI asks before it deploys: see deploy.yml
python refunds.py RUN_ID                   # approves what a run waits for, and continues it
"""

import sys

from closeout import Agent, tool


@tool(approval="always", replaces="refund", defaults={"currency": "EUR"})
def pay_back(order: int, amount: float, currency: str) -> str:
    """Pay back an amount of an order, in a currency such as EUR."""
    return f"Paid back {amount} {currency} for order {order}."


instructions = "You handle refunds politely."
agent = Agent("openai:gpt-5", [pay_back], name="refunds", instructions=instructions, version="2026-11")

if __name__ == "__main__":
    (pending,) = agent.resume_sync(sys.argv[1]).waiting
    print(agent.resume_sync(sys.argv[1], decisions={pending.id: True}).answer)
