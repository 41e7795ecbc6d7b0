"""An agent that looks up prices and pays, and the ways in which a new version of it may differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from closeout import Agent, Number, tool
from closeout.testing import RequestView, ScriptedClient, answer, call

__all__ = ["CHANGES", "HARMLESS", "World"]


class World:
    """A shop with a price list, which is only read, and payments, which are counted."""

    def __init__(self, home: Path, items: int = 1) -> None:
        self.home = home
        self.items = items
        self.paid: list[Any] = []
        self.models: list[ScriptedClient] = []

    def script(self, view: RequestView) -> Any:
        pay = next((name for name in view.tools if name.startswith("pay")), "pay")
        known = view.text.count("costs 5")
        if known < self.items:
            return call("price", item=f"tea {known}")
        if "receipt" not in view.text and "Interrupted" not in view.text:
            return call(pay, amount=5)
        return answer("5")

    def agent(
        self,
        *,
        tools: Any = None,
        description: str = "Pay.",
        pays: str = "always",
        model: str = "scripted",
        **options: Any,
    ) -> Agent:
        @tool(read_only=True)
        def price(item: str) -> str:
            """Return a price."""
            return f"{item} costs 5"

        @tool(approval=pays, description=description)
        def pay(amount: int) -> str:
            self.paid.append(amount)
            return "receipt 17"

        self.models.append(ScriptedClient(self.script, name=model))
        given = {"instructions": "Be exact.", "answer": Number(), "dialect": "function_call", **options}
        return Agent(self.models[-1], tools(price, pay) if tools else [price, pay], home=self.home, **given)


def renamed_tool(world: World, *, declared: bool) -> Any:
    @tool(name="pay_invoice", approval="always", replaces="pay" if declared else ())
    def pay_invoice(amount: int) -> str:
        """Pay an invoice."""
        world.paid.append(amount)
        return "receipt 17"

    return lambda price, pay: [price, pay_invoice]


def with_parameter(world: World, *, default: bool) -> Any:
    options: dict[str, Any] = {"defaults": {"currency": "EUR"}} if default else {}

    @tool(name="pay", approval="always", description="Pay.", **options)
    def pay(amount: int, currency: str) -> str:
        world.paid.append(amount)
        return f"receipt 17 in {currency}"

    return lambda price, _: [price, pay]


def renamed_parameter(world: World, *, declared: bool) -> Any:
    @tool(name="pay", approval="always", description="Pay.", aliases={"sum": "amount"} if declared else {})
    def pay(sum: int) -> str:  # noqa: A002
        world.paid.append(sum)
        return "receipt 17"

    return lambda price, _: [price, pay]


def widened(world: World) -> Any:
    @tool(name="pay", approval="always", description="Pay.")
    def pay(amount: int | str) -> str:
        world.paid.append(amount)
        return "receipt 17"

    return lambda price, _: [price, pay]


def narrowed(world: World) -> Any:
    @tool(name="pay", approval="always", description="Pay.")
    def pay(amount: str) -> str:
        world.paid.append(amount)
        return "receipt 17"

    return lambda price, _: [price, pay]


@tool(read_only=True)
def stock(item: str) -> int:
    """Return how many there are."""
    return 3


class Total(BaseModel):
    total: int


CHANGES: dict[str, Callable[[World], Agent]] = {
    "nothing": lambda w: w.agent(),
    "instructions": lambda w: w.agent(instructions="Be quick."),
    "instructions by a function": lambda w: w.agent(instructions=lambda context: "Be quick."),
    "description": lambda w: w.agent(description="Pay an amount."),
    "tool added": lambda w: w.agent(tools=lambda price, pay: [price, pay, stock]),
    "tool removed": lambda w: w.agent(tools=lambda price, pay: [price]),
    "tool renamed": lambda w: w.agent(tools=renamed_tool(w, declared=False)),
    "tool renamed, declared": lambda w: w.agent(tools=renamed_tool(w, declared=True)),
    "parameter added": lambda w: w.agent(tools=with_parameter(w, default=False)),
    "parameter added with a default": lambda w: w.agent(tools=with_parameter(w, default=True)),
    "parameter renamed": lambda w: w.agent(tools=renamed_parameter(w, declared=False)),
    "parameter renamed, declared": lambda w: w.agent(tools=renamed_parameter(w, declared=True)),
    "type widened": lambda w: w.agent(tools=widened(w)),
    "type narrowed": lambda w: w.agent(tools=narrowed(w)),
    "contract": lambda w: w.agent(answer=Total),
    "model": lambda w: w.agent(model="another"),
    "dialect": lambda w: w.agent(dialect="cot_chat"),
    "settings": lambda w: w.agent(max_turns=1),
    "version": lambda w: w.agent(version="2"),
}
HARMLESS = {
    "instructions",
    "instructions by a function",
    "description",
    "tool added",
    "tool renamed, declared",
    "parameter added with a default",
    "parameter renamed, declared",
    "type widened",
}
