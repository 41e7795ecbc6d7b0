"""Middleware: what governs requests and calls, in an order that is part of its meaning."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import closeout
from closeout import Agent, AgentPlace, CallDecided, Calling, Middleware, Sending, UsageError, tool
from closeout.journal.store import open_store
from closeout.run.lifecycle import replay_run
from closeout.run.middleware.chain import wrap
from closeout.run.middleware.order import ORDER
from closeout.run.plan import Scope
from closeout.testing import ScriptedClient, answer, call
from journal_file import cut_after


class Noting(Middleware):
    """Notes when it sends."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    async def send(self, sending: Any, send: Any) -> Any:
        self.notes.append(f"{self.name} before")
        found = await send(sending)
        self.notes.append(f"{self.name} after")
        return found


async def test_the_first_middleware_is_outermost_and_one_that_does_not_send_adds_no_frame() -> None:
    notes: list[str] = []

    async def post(sending: Any) -> Any:
        notes.append("post")
        return sending

    assert wrap([Middleware(), Middleware()], "send", post) is post
    send = wrap([Noting("a", notes), Middleware(), Noting("b", notes)], "send", post)
    assert await send("request") == "request"  # type: ignore[arg-type, comparison-overlap]
    assert notes == ["a before", "b before", "post", "b after", "a after"]


def test_the_order_is_part_of_the_meaning() -> None:
    assert [each.__name__.removesuffix("Middleware") for each in ORDER] == [
        # decided again when a record is executed again
        "Flow",
        "",  # the user's: their reasons are among those that a person is asked for
        "Approval",
        "Crash",
        "Background",
        # done once
        "Gate",  # a request that waits for the gate has reserved nothing
        "Budget",
        "Login",
        "Deadline",
        "Secrets",  # nobody outside sees a value
    ]


LOOP = ("attempt", "session", "orchestrator", "requests", "calls", "closing")
CONCERNS = re.compile(r"(?<!over)flow|secret|ledger|\bgate|gate\b|login|approval|timer", re.IGNORECASE)


def test_the_loop_names_no_concern() -> None:
    run = Path(closeout.__file__).parent / "run"
    found = {
        f"{name}.py:{number}: {line.strip()}"
        for name in LOOP
        for number, line in enumerate((run / f"{name}.py").read_text("utf-8").splitlines(), 1)
        if CONCERNS.search(line)
    }
    assert not found


def test_a_scope_does_not_grow_with_the_features() -> None:
    assert len(fields(Scope)) <= 13


# ------------------------------------------------------------------------------------------------ a user's own


@tool
def pay(amount: int) -> str:
    """Pay a bill."""
    return f"paid {amount}"


class Limit(Middleware):
    """Refuses large amounts, and lets a person decide on middling ones."""

    def __init__(self, refuses: int = 100, asks: int = 10) -> None:
        self.refuses, self.asks = refuses, asks

    async def decide(self, calling: Calling) -> None:
        amount = calling.arguments.get("amount", 0)
        if amount >= self.refuses:
            calling.refuse(f"{amount} is too much.")
        elif amount >= self.asks:
            calling.ask(f"{amount} is a lot.")


class Watch(Middleware):
    """Notes what it surrounds, for each agent of a run."""

    notes: list[str]

    def __init__(self, place: AgentPlace) -> None:
        self.agent = place.agent

    def below(self, place: AgentPlace) -> Middleware:
        return type(self)(place)

    async def send(self, sending: Sending, send: Any) -> Any:
        self.notes.append(f"{self.agent} asks")
        return await send(sending)

    async def call(self, calling: Calling, call: Any) -> Any:
        self.notes.append(f"{self.agent} calls {calling.name}")
        return await call(calling)


def payer(*amounts: int, **options: Any) -> Agent:
    steps = [call("pay", amount=amount) for amount in amounts]

    def script(view: Any) -> Any:
        made = sum(message["role"] == "assistant" for message in view.messages)
        return steps[made] if made < len(steps) else answer("done")

    return Agent(ScriptedClient(script), [pay], dialect="function_call", **options)


def decided(home: Path) -> list[tuple[str, str, str]]:
    events = (row.event for row in open_store(home).rows("r"))
    return [(each.request, each.decision, each.reason) for each in events if isinstance(each, CallDecided)]


async def test_what_middleware_decides_is_recorded_and_holds_for_replays(home: Path) -> None:
    agent = payer(5, 50, 500, middleware=[Limit()], home=home)
    result = await agent.run("Pay.", run_id="r")
    (waiting,) = result.waiting
    assert (waiting.id, waiting.reason) == ("r2", "50 is a lot.")
    result = await agent.resume("r", decisions={"r2": True})
    shown = [message["content"] for message in result.messages if message["role"] == "tool"]
    assert ["paid 5" in shown[0], "paid 50" in shown[1], "500 is too much." in shown[2]] == [True] * 3
    assert decided(home) == [("r2.Limit", "ask", "50 is a lot."), ("r3.Limit", "refuse", "500 is too much.")]
    replayed, departure = await replay_run(agent.plan(), "r", list(open_store(home).rows("r")))
    assert (replayed.answer, departure, replayed.warnings) == ("done", "", ())


async def test_middleware_that_decides_otherwise_on_resume_is_named_and_the_record_holds(home: Path) -> None:
    await payer(5, 500, middleware=[Limit()], home=home).run("Pay.", run_id="r")
    for limit, then, now in (
        (Limit(refuses=1000, asks=1000), "r2 (pay)", "refuse (500 is too much.) then, allow now"),
        (Limit(refuses=5), "r1 (pay)", "allow then, refuse (5 is too much.) now"),
    ):
        agent = payer(5, 500, middleware=[limit], home=home)
        replayed, departure = await replay_run(agent.plan(), "r", list(open_store(home).rows("r")))
        (warning,) = replayed.warnings
        assert f"Limit decided otherwise on {then} than when the run was recorded: {now}" in warning
        assert (replayed.answer, departure) == ("done", "")
    cut_after(home, "ModelReplied", 2)
    resumed = await payer(5, 500, middleware=[Limit(refuses=1000, asks=1000)], home=home).resume("r")
    assert (resumed.answer, len(resumed.warnings)) == ("done", 1)
    assert decided(home) == [("r2.Limit", "refuse", "500 is too much.")]


async def test_sub_agents_programs_and_successors_are_governed_too(home: Path) -> None:
    class Here(Watch):
        notes: list[str] = []  # noqa: RUF012 - of this test alone

    clerk = payer(7, name="clerk")
    inner = ScriptedClient([call("run_program", code="pay(amount=3)"), answer("counted")])
    billing = Agent(inner, [pay], name="billing", code_mode=True)
    steps = [call("ask", task="Pay."), call("transfer_to_billing")]
    tools = [clerk.as_tool("ask", "Pays.")]
    agent = Agent(ScriptedClient(steps), tools, handoffs=[billing], middleware=[Here], home=home)
    result = await agent.run("Go.")
    assert result.answer == "counted"
    assert Here.notes == [
        "main asks",
        "main calls ask",
        "main/r1:ask asks",
        "main/r1:ask calls pay",
        "main/r1:ask asks",
        "main asks",
        "main calls transfer_to_billing",
        "main/handoff:billing asks",
        "main/handoff:billing calls run_program",
        "main/handoff:billing/r3:program calls pay",
        "main/handoff:billing asks",
    ]


async def test_a_program_of_the_record_meets_the_same_refusals_again(home: Path) -> None:
    tries = "paid = []\nfor amount in (5, 500):\n    try:\n        paid.append(pay(amount=amount))\n"
    programs = [f"{tries}    except Exception as error:\n        paid.append(str(error))", "print(paid)"]

    def agent(heard: list[str]) -> Agent:
        def script(view: Any) -> Any:
            made = sum(message["role"] == "assistant" for message in view.messages)
            heard[:] = [view.last]
            return call("run_program", code=programs[made]) if made < len(programs) else answer("done")

        return Agent(ScriptedClient(script), [pay], code_mode=True, middleware=[Limit()], home=home)

    await agent(first := []).run("Pay.", run_id="r")
    cut_after(home, "ModelReplied", 1)
    await agent(again := []).resume("r")
    assert first == again
    assert "500 is too much." in again[0]


def test_what_is_no_middleware_is_refused() -> None:
    with pytest.raises(UsageError, match="middleware must hold Middleware objects, or what makes one, got 5"):
        payer(middleware=[5])
    with pytest.raises(UsageError, match="middleware must be a list"):
        payer(middleware=Limit())


def test_a_run_knows_the_middleware_that_it_began_with() -> None:
    plan = payer(middleware=[Limit(), Watch]).plan()
    assert plan.fingerprint(())["middleware"] == ["Limit", "Watch"]
    assert "middleware" not in payer().plan().fingerprint(())
