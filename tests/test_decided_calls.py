"""What a person was asked about is made as it was approved, or not at all, also after the agent has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, RunResult, tool
from closeout.errors import DecisionRefused
from closeout.server.serve.host import AgentHost
from closeout.testing import RequestView, ScriptedClient, answer, call

paid: list[Any] = []


def asking() -> Any:
    @tool(approval="always")
    def pay(amount: int, to: str = "ann") -> str:
        """Pay."""
        paid.append((amount, to))
        return "paid"

    return pay


def asking_no_more() -> Any:
    @tool
    def pay(amount: int, to: str = "ann") -> str:
        """Pay."""
        paid.append((amount, to))
        return "paid"

    return pay


def asking_no_more_in_cents() -> Any:
    @tool(aliases={"cents": ("amount",)})
    def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    return pay


def paying_bob() -> Any:
    @tool(approval="always")
    def pay(amount: int, to: str = "bob") -> str:
        """Pay."""
        paid.append((amount, to))
        return "paid"

    return pay


def taking_texts() -> Any:
    @tool(approval="always")
    def pay(amount: str) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    return pay


def agent(pay: Any, home: Path, *amounts: int) -> Agent[Any, Any]:
    def script(view: RequestView) -> Any:
        done = sum(message["role"] == "tool" for message in view.messages)
        return call("pay", amount=amounts[done]) if done < len(amounts) else answer("done")

    return Agent(ScriptedClient(script), [pay], home=home)


async def waiting(home: Path) -> RunResult[Any]:
    paid.clear()
    result = await agent(asking(), home, 10).run("Pay.", run_id="r")
    assert (result.status, paid) == ("waiting", [])
    return result


async def test_a_denied_call_is_not_made_by_an_agent_that_needs_no_approval_any_more(tmp_path: Path) -> None:
    for number, options in enumerate(({}, {"despite_changes": True}, {"on_change": "take"}, {"on_change": "keep"})):
        home = tmp_path / str(number)
        await waiting(home)
        result = await agent(asking_no_more(), home, 10).resume("r", decisions={"r1": False}, **options)
        assert (result.status, paid) == ("answered", []), options


async def test_an_approved_call_whose_arguments_changed_is_asked_about_again(tmp_path: Path) -> None:
    await waiting(tmp_path)
    changed = agent(asking_no_more_in_cents(), tmp_path, 10)
    result = await changed.resume("r", decisions={"r1": True}, despite_changes=True)
    assert [each.reason for each in result.waiting] == [
        "pay needs approval. The arguments have changed since this was asked."
    ]
    assert paid == []
    assert (await changed.resume("r", decisions={"r1": True}, despite_changes=True)).status == "answered"
    assert paid == [10]


async def test_an_approved_call_keeps_the_defaults_that_it_was_approved_with(tmp_path: Path) -> None:
    await waiting(tmp_path)
    assert (await agent(paying_bob(), tmp_path, 10).resume("r", decisions={"r1": True})).status == "answered"
    assert paid == [(10, "ann")]


async def test_a_decision_on_a_run_that_cannot_continue_is_refused_with_the_reason(tmp_path: Path) -> None:
    await waiting(tmp_path)
    changed = agent(taking_texts(), tmp_path, 10)
    async with AgentHost(changed) as host:
        with pytest.raises(DecisionRefused, match=r"The decision was not recorded.*tool pay has changed"):
            await host.decide("r", {"r1": True})
    assert (await agent(asking(), tmp_path, 10).resume("r", decisions={"r1": True})).status == "answered"
    assert paid == [(10, "ann")]


def noting(made: list[int], **policy: Any) -> Any:
    @tool(**policy)
    def pay(amount: int) -> str:
        """Pay."""
        made.append(amount)
        return "paid"

    return pay


async def test_a_destructive_call_that_was_made_before_is_asked_about(tmp_path: Path) -> None:
    for number, (policy, expected) in enumerate(
        [
            ({"destructive": True}, ([1, 2], "waiting")),
            ({"destructive": True, "repeatable": True}, ([1, 2, 1], "answered")),
            ({"destructive": True, "idempotent": True}, ([1, 2, 1], "answered")),
            ({"repeatable": True}, ([1, 2, 1], "answered")),
        ]
    ):
        made: list[int] = []
        paying = agent(noting(made, **policy), tmp_path, 1, 2, 1)
        result = await paying.run("Pay.", run_id=f"r{number}")
        assert (made, result.status) == expected, policy
        if result.waiting:
            assert result.waiting[0].reason == "pay was called with these arguments before."
            assert (await paying.resume(result.run_id, decisions={"r3": True})).status == "answered"
            assert made == [1, 2, 1]
