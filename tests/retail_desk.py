"""A benchmark of the tests: a customer with a script, a shop with rules, judged by what the agent did to the orders.

It has the form of tau-bench: the customer is a tool, the shop's state is the run's state, and what counts is the state
at the end. The state travels in `ToolOutput.state_update`, so an interrupted trial resumes with it. A call that was
interrupted has changed nothing and runs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from closeout.evaluate.benchmarks.benchmark import Benchmark
from closeout.evaluate.scores import Attempted, Score
from closeout.evaluate.tasks import EvalTask
from closeout.results.tool_output import ToolOutput
from closeout.tools.run_context import RunContext
from closeout.tools.tool import tool

ORDERS: dict[str, dict[str, Any]] = {
    "A1": {"item": "kettle", "status": "delivered", "days": 5, "price": 40},
    "A2": {"item": "lamp", "status": "delivered", "days": 45, "price": 60},
    "A3": {"item": "chair", "status": "pending", "days": 0, "price": 120},
    "A4": {"item": "desk", "status": "shipped", "days": 0, "price": 300},
}

RULES = """\
You are the help desk of a shop. Talk to the customer only with the tool `say`. Rules:
- A delivered order may be returned for a refund within 30 days of delivery, not later.
- A pending order may be cancelled. A shipped order may be neither cancelled nor changed.
- Ask the customer to confirm before you change an order.
When the customer has nothing more to say, answer with one word: done."""

_TASKS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("return", "I want to return my kettle, order A1.", {"A1": "returned"}),
    ("too-late", "I want my money back for the lamp, order A2.", {}),
    ("cancel", "Please cancel my order A3.", {"A3": "cancelled"}),
    ("shipped", "Cancel order A4, I have changed my mind.", {}),
    ("two", "Return order A1 and cancel order A3, please.", {"A1": "returned", "A3": "cancelled"}),
    ("mixed", "Cancel my orders A3 and A4.", {"A3": "cancelled"}),
)


def _tasks() -> list[EvalTask]:
    question = "A customer is waiting. Help the customer within the rules."
    return [
        EvalTask(id=task_id, question=question, answer=wanted, metadata={"opening": opening})
        for task_id, opening, wanted in _TASKS
    ]


def tools(task: EvalTask) -> Sequence[Any]:
    """Return the tools of the desk for one task."""
    opening = str(task.metadata["opening"])

    @tool(repeatable=True, inline=True, on_crash="rerun")
    def say(message: str, context: RunContext) -> ToolOutput:
        """Say something to the customer, and hear the reply.

        Args:
            message: What to say.
        """
        said = int(context.state.get("said", 0))
        replies = [opening, "Yes, please go ahead.", "I see. Nothing else, thank you."]
        return ToolOutput(result=replies[min(said, len(replies) - 1)], state_update={"said": said + 1})

    @tool(read_only=True, repeatable=True, inline=True)
    def get_order(order: str, context: RunContext) -> dict[str, Any]:
        """Look up an order: item, status, days since delivery, price.

        Args:
            order: The order's number, such as A1.
        """
        if order not in ORDERS:
            return {"error": f"There is no order {order}."}
        return {**ORDERS[order], "status": context.state.get(order, ORDERS[order]["status"])}

    def change(order: str, status: str) -> ToolOutput:
        if order not in ORDERS:
            return ToolOutput(result=f"There is no order {order}.")
        return ToolOutput(result=f"Order {order} is {status}.", state_update={order: status})

    @tool(inline=True, on_crash="rerun")
    def cancel_order(order: str) -> ToolOutput:
        """Cancel an order.

        Args:
            order: The order's number.
        """
        return change(order, "cancelled")

    @tool(inline=True, on_crash="rerun")
    def return_order(order: str) -> ToolOutput:
        """Return an order and refund its price.

        Args:
            order: The order's number.
        """
        return change(order, "returned")

    return [say, get_order, cancel_order, return_order]


def orders_are_right(attempt: Attempted) -> Score:
    """Score a trial by the orders: exactly those that the rules allow have changed."""
    changed = {order: status for order, status in attempt.state.items() if order in ORDERS}
    right = changed == attempt.task.answer
    return Score(float(right), right, f"Changed: {changed or 'nothing'}; right: {attempt.task.answer or 'nothing'}.")


BENCHMARK = Benchmark(
    about="6 customers of a shop with rules, judged by the orders at the end (the form of tau-bench)",
    tasks=_tasks,
    scorer=orders_are_right,
    tools=tools,
    instructions=RULES,
)
