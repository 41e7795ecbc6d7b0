"""Every call that is made is one that a person approved: this tool, these arguments, once."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Decision, tool
from closeout.errors import CloseoutError, ResumeRefused
from closeout.journal import events as ev
from closeout.journal.store import Store, close_store, open_store
from closeout.run.waits.decisions import call_digest, pending_decisions
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from closeout.tools.tool import Tool

SERVER = Path(__file__).parent / "mcp_servers" / "turncoat.py"
MODES: tuple[dict[str, Any], ...] = (
    {},
    {"on_change": "keep"},
    {"on_change": "take"},
    {"on_change": "refuse"},
    {"despite_changes": True},
)


class Shop:
    """Versions of a tool that pays, each of which notes how it was called."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.paid: list[tuple[str, dict[str, Any]]] = []
        self.versions = {made.spec.description + str(at): made for at, made in enumerate(self._made())}

    def _made(self) -> list[Tool[Any, Any]]:
        note = self.paid.append

        @tool(name="pay", approval="always", description="Pay.")
        async def first(amount: int) -> str:
            note(("Pay.0", {"amount": amount}))
            return "receipt"

        @tool(name="pay", approval="always", description="Pay in cents.")
        async def cents(amount: int) -> str:
            note(("Pay in cents.1", {"amount": amount}))
            return "receipt"

        @tool(name="pay", approval="always", description="Pay.", defaults={"currency": "EUR"})
        async def currency(amount: int, currency: str) -> str:
            note(("Pay.2", {"amount": amount, "currency": currency}))
            return "receipt"

        @tool(name="pay", approval="always", description="Pay.", aliases={"total": "amount"})
        async def total(total: int) -> str:
            note(("Pay.3", {"total": total}))
            return "receipt"

        @tool(name="pay", approval="always", description="Pay.")
        async def wide(amount: int | str) -> str:
            note(("Pay.4", {"amount": amount}))
            return "receipt"

        @tool(name="pay_bill", approval="always", description="Pay.", replaces="pay")
        async def renamed(amount: int) -> str:
            note(("Pay.5", {"amount": amount}))
            return "receipt"

        return [first, cents, currency, total, wide, renamed]

    def agent(self, version: str) -> Agent:
        def script(view: RequestView) -> Turn:
            pay = next((name for name in view.tools if name.startswith("pay")), "pay")
            if view.turn > 3:
                return answer("done")
            return Turn(calls=[call(pay, amount=view.turn * 10 + each) for each in range(view.turn % 2 + 1)])

        return Agent(ScriptedClient(script), [self.versions[version]], home=self.home, dialect="function_call")

    def shown(self, request: ev.DecisionRequested) -> set[str]:
        """The versions that the person saw who was asked."""
        arguments = json.loads(request.arguments)
        return {name for name, each in self.versions.items() if call_digest(each.spec, arguments) == request.digest}


def declared(version: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of an earlier version as a version takes them, by what it declares."""
    if version == "Pay.3" and "amount" in arguments:
        return {"total": arguments["amount"]}
    return {"currency": "EUR", **arguments} if version == "Pay.2" else arguments


def an_edit(chance: random.Random, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Other arguments with which a person approves the call, or None."""
    name = next(iter(arguments))
    return chance.choice(
        [None, None, None, None, {**arguments, name: chance.randrange(1_000, 9_999)}, {**arguments, "x": 1}, {}]
    )


Approved = tuple[str, str | None]  # what was approved, and the arguments that the person gave instead


@dataclass
class Watched:
    """A run, what a person approved in it, and for which of that a call was made."""

    run_id: str
    given: Counter[Approved] = field(default_factory=Counter)
    used: Counter[Approved] = field(default_factory=Counter)
    copied: Counter[Approved] = field(default_factory=Counter)  # with a fork: of calls that the first run made

    def events(self, store: Store) -> list[ev.Event]:
        return [row.event for row in store.rows(self.run_id)]

    def approved(self, store: Store) -> Counter[Approved]:
        made = [each for each in self.events(store) if isinstance(each, ev.DecisionMade) and each.verdict == "approve"]
        return Counter((each.digest, each.arguments) for each in made) - self.copied


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 135])
async def test_every_call_is_one_that_was_approved(tmp_path: Path, seed: int) -> None:
    chance, shop = random.Random(seed), Shop(tmp_path)
    names, store, forks = list(shop.versions), open_store(tmp_path), 0
    for number in range(6):
        runs, version = [Watched(f"r{number}")], chance.choice(names)
        await shop.agent(version).run("Pay.", run_id=f"r{number}")
        for _ in range(12):
            run, paid = chance.choice(runs), len(shop.paid)
            decisions: dict[str, Decision] = {}
            for pending in pending_decisions(store.rows(run.run_id)):
                verdict: Any = chance.choice(["approve"] * 4 + ["deny", None])
                edit = an_edit(chance, dict(pending.arguments)) if verdict == "approve" else None
                if verdict is not None:
                    decisions[pending.id] = Decision(verdict=verdict, arguments=edit, hash=pending.hash)
                if verdict == "approve":
                    run.given[pending.hash, None if edit is None else json.dumps(edit)] += 1
            version = chance.choice([version, version, *names])
            agent, mode = shop.agent(version), chance.choice(MODES)
            result = await cut_off(chance.choice([2, 4, 6, *[1_000] * 9]), agent, run.run_id, decisions, **mode)
            assert isinstance(result, CloseoutError | asyncio.CancelledError) or result.status, result
            approved = run.approved(store)
            asked = {each.digest: each for each in run.events(store) if isinstance(each, ev.DecisionRequested)}
            assert approved <= run.given, "nothing is approved that the person did not approve"
            keeps = mode.get("on_change", "keep") == "keep" and "despite_changes" not in mode
            for called, arguments in shop.paid[paid:]:
                fits = [
                    (digest, edit)
                    for digest, edit in (approved - run.used).elements()
                    if arguments == declared(called, json.loads(edit or asked[digest].arguments))
                    and (keeps or same(shop, called, shop.shown(asked[digest])))
                ]
                assert fits, (run.run_id, mode, called, arguments, approved, run.used)
                run.used[fits[0]] += 1
            if getattr(result, "status", "") == "answered":
                break
            if chance.random() < 0.3:
                made = len(shop.paid)
                runs += await forked(chance, shop.agent(chance.choice([version, *names])), run.run_id, store)
                assert len(shop.paid) == made, "a fork makes no call that nobody approved in it"
        forks += len(runs) - 1
    assert len(shop.paid) > 1
    assert forks
    close_store(tmp_path)


async def forked(chance: random.Random, agent: Agent, run_id: str, store: Store) -> list[Watched]:
    """A fork of a run at one of its events. It begins with the approvals of the calls that were made before."""
    at = chance.randrange(sum(1 for _ in store.rows(run_id)))
    try:
        fork = Watched((await agent.fork(run_id, at=f"e{at}")).run_id)
    except CloseoutError:  # nothing is left to do there, or the agents differ
        return []
    fork.copied = fork.approved(store)
    return [fork]


async def test_a_run_stops_rather_than_ask_again_for_a_call_that_was_made(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    await shop.agent("Pay.0").run("Pay.", run_id="r")
    (waits,) = (await shop.agent("Pay.0").resume("r", decisions={"r1": True, "r2": True})).waiting
    made = list(shop.paid)
    assert len(made) == 2
    (check,) = (await shop.agent("Pay.3").check_runs(on_change="take")).runs
    assert (check.verdict, "in the place of one that was made" in check.problem) == ("stops", True)
    with pytest.raises(ResumeRefused, match="in the place of one that was made"):
        await shop.agent("Pay.3").resume("r", decisions={waits.id: True}, on_change="take")
    assert shop.paid == made
    await shop.agent("Pay.0").resume("r", decisions={waits.id: True})
    assert len(shop.paid) == 3


async def cut_off(after: int, agent: Agent, run_id: str, decisions: dict[str, Decision], **options: Any) -> Any:
    """The result of resuming a run, or how it failed; it is cancelled after so many events."""
    left = iter(range(after))

    def cancel(event: object) -> None:
        if next(left, None) is None:
            asyncio.get_running_loop().call_soon(resumed.cancel)

    resumed = asyncio.ensure_future(agent.resume(run_id, decisions=decisions, listeners=[cancel], **options))
    return (await asyncio.gather(resumed, return_exceptions=True))[0]


def same(shop: Shop, version: str, shown: set[str]) -> bool:
    spec = shop.versions[version].spec
    return any(
        (spec.name, spec.description, spec.parameters) == (each.name, each.description, each.parameters)
        for each in (shop.versions[name].spec for name in shown)
    )


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: " ".join(map(str, mode.values())) or "default")
@pytest.mark.parametrize("announced", [True, False])
async def test_an_approval_is_for_the_tool_that_its_server_has_when_it_is_called(
    tmp_path: Path, mode: dict[str, Any], announced: bool
) -> None:
    unit = tmp_path / "unit"
    unit.write_text("cents")
    servers = [{"name": "turncoat", "command": sys.executable, "args": [str(SERVER), str(unit)]}]

    def script(view: RequestView) -> Turn:
        if announced and view.turn == 1:
            unit.write_text("euros")
            return Turn(calls=[call("look")])
        return answer("done") if "receipt" in view.text else Turn(calls=[call("pay", amount=100)])

    def agent() -> Agent:
        return Agent(ScriptedClient(script), mcp_servers=servers, home=tmp_path / "home", dialect="function_call")

    (asked,) = (await agent().run("Pay.", run_id="r")).waiting
    shown = [row.event for row in open_store(tmp_path / "home").rows("r") if isinstance(row.event, ev.ToolsChanged)]
    assert ["euros" in each.tools for each in shown] == [True] * announced
    unit.write_text("bitcoin")
    try:
        again = await agent().resume("r", decisions={asked.id: True}, **mode)
    except CloseoutError:
        assert mode.get("on_change") != "take"
        assert not mode.get("despite_changes")
    else:
        assert [each.id for each in again.waiting] == [asked.id]
        assert not unit.with_suffix(".paid").exists()
        assert (await agent().resume("r", decisions={asked.id: True}, **mode)).answer == "done"
        assert unit.with_suffix(".paid").read_text() == "100 bitcoin\n"
    unit_then = "euros" if announced else "cents"
    if not unit.with_suffix(".paid").exists():
        unit.write_text(unit_then)
        assert (await agent().resume("r", decisions={asked.id: True}, **mode)).answer == "done"
        assert unit.with_suffix(".paid").read_text() == f"100 {unit_then}\n"
