"""Open runs and new versions of their agent: what continues, what stops, and that the check says so beforehand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli_process import closeout
from closeout.errors import ResumeRefused, UsageError
from closeout.journal.store import close_store, open_store
from closeout.testing import assert_runs_continue
from journal_file import as_if_killed, store_events, stored_events

sys.path.insert(0, str(Path(__file__).parent / "harness"))
from shop import CHANGES, HARMLESS, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "home")


@pytest.mark.parametrize("change", CHANGES)
async def test_the_verdict_is_what_a_resume_does_after_a_kill_at_every_event(world: World, change: str) -> None:
    first = await world.agent(pays="never").run("What does tea cost? Pay it.", run_id="r")
    assert (first.answer, world.paid) == ("5", [5])
    events = stored_events(world.home)
    close_store(world.home)
    for kept in range(1, len(events), 2):  # bench/upgrade.py stops runs at random events
        places = list(events)[:kept]
        store_events(world.home, {place: events[place] for place in places})
        as_if_killed(world.home)
        begun = [events[place][1:] for place in places]
        paid_before = any(kind == "ToolStarted" and fields["name"] == "pay" for kind, fields in begun)
        world.paid.clear()
        agent = CHANGES[change](world)
        (check,) = (await agent.check_runs()).runs
        assert (world.paid, world.models[-1].requests) == ([], []), "the check has no effects"
        if check.verdict == "stops":
            assert check.problem
            assert check.remedy
            with pytest.raises(ResumeRefused):
                await agent.resume("r")
            assert world.paid == []
        else:
            result = await agent.resume("r")
            if result.waiting:
                result = await agent.resume("r", decisions={each.id: True for each in result.waiting})
            assert len(world.paid) <= (0 if paid_before else 1), (kept, check)
            assert result.status in ("answered", "unanswered"), (kept, result)
            assert (check.verdict == "unchanged") == (check.differences == ())
        if change in HARMLESS:
            assert (check.verdict, result.answer) == ("changed", "5"), (kept, check)
        close_store(world.home)


@pytest.mark.parametrize("change", sorted(HARMLESS))
async def test_a_run_that_waits_keeps_what_it_began_with(world: World, change: str) -> None:
    waiting = await world.agent().run("What does tea cost? Pay it.", run_id="r")
    assert waiting.status == "waiting"
    before = world.models[-1].requests[-1]
    agent = CHANGES[change](world)
    result = await agent.resume("r", decisions={"r2": True})
    assert (result.answer, world.paid) == ("5", [5])
    (request,) = world.models[-1].requests
    assert request.messages[: len(before.messages)] == before.messages
    assert [(t.name, t.description, t.parameters) for t in request.tools] == [
        (t.name, t.description, t.parameters) for t in before.tools
    ]


async def test_a_run_can_take_the_changes(world: World) -> None:
    await world.agent().run("What does tea cost? Pay it.", run_id="r")
    agent = world.agent(instructions="Be quick.", description="Pay an amount.", version="2")
    result = await agent.resume("r", on_change="take")
    assert result.status == "waiting", "the approval was for the tool as it was shown"
    result = await agent.resume("r", decisions={"r2": True})
    assert (result.answer, world.paid) == ("5", [5])
    (request,) = world.models[-1].requests
    assert "Be quick." in request.messages[0].text
    assert "Pay an amount." in {spec.description for spec in request.tools}
    resumed = [row.event for row in open_store(world.home).rows("r") if type(row.event).__name__ == "RunResumed"]
    assert [each.on_change for each in resumed] == ["take", ""], "it took the changes once"
    assert set(resumed[0].differences) == {"version: none then, 2 now", "instructions differ", "tool pay: changed"}


async def test_a_run_can_refuse_to_change(world: World) -> None:
    await world.agent().run("What does tea cost? Pay it.", run_id="r")
    agent = world.agent(instructions="Be quick.", on_change="refuse")
    with pytest.raises(ResumeRefused, match="instructions differ"):
        await agent.resume("r")
    assert [each.verdict for each in (await agent.check_runs()).runs] == ["stops"]
    assert (await agent.resume("r", on_change="keep")).status == "waiting"
    with pytest.raises(UsageError, match="on_change must be 'keep', 'take' or 'refuse', got 'new'"):
        world.agent(on_change="new")


async def test_a_call_of_a_tool_that_is_gone_tells_the_model_so(world: World) -> None:
    await world.agent().run("What does tea cost? Pay it.", run_id="r")
    events = stored_events(world.home)
    close_store(world.home)
    asked = next(place for place, event in events.items() if event[1] == "ModelRequested" and event[2]["call"] == 1)
    store_events(world.home, {place: event for place, event in events.items() if place < asked})
    as_if_killed(world.home)
    agent = world.agent(tools=lambda price, pay: [price], max_turns=3)
    assert [each.verdict for each in (await agent.check_runs()).runs] == ["changed"]
    await agent.resume("r")
    assert any("The tool pay no longer exists" in request.messages[-1].text for request in world.models[-1].requests)


async def test_runs_of_other_agents_are_counted_and_not_checked(world: World) -> None:
    await world.agent(name="buyer").run("What does tea cost? Pay it.")
    await world.agent(name="seller").run("What does tea cost? Pay it.", run_id="s")
    report = await world.agent(name="buyer", instructions="Be quick.").check_runs()
    assert [each.verdict for each in report.runs] == ["changed"]
    assert (report.others, report.ok) == (1, True)
    assert (await world.agent(name="buyer").check_runs(["s"])).runs[0].run_id == "s"


async def test_a_test_fails_with_the_reason_if_a_run_would_stop(world: World) -> None:
    await world.agent().run("What does tea cost? Pay it.", run_id="r")
    assert (await assert_runs_continue(world.agent(instructions="Be quick."))).ok
    with pytest.raises(AssertionError, match=r"1 of 1 open runs would stop:\nr: tool pay is gone, and a call of it"):
        await assert_runs_continue(world.agent(tools=lambda price, pay: [price]))


def test_the_command_lists_verdicts_for_people_and_programs(tmp_path: Path) -> None:
    source = """
from closeout import Agent, tool
from closeout.testing import ScriptedClient, call

@tool(approval="always")
def pay(amount: int{more}) -> str:
    \"\"\"{text}\"\"\"
    return "receipt"

agent = Agent(ScriptedClient(lambda view: call("pay", amount=5)), [pay], home={home!r})
if __name__ == "__main__":
    agent.run_sync("Pay 5 für 茶")
"""
    home = str(tmp_path / "home")
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "CLOSEOUT_HOME": home}

    def version(name: str, text: str, more: str = "") -> str:
        (tmp_path / f"{name}.py").write_text(source.format(home=home, text=text, more=more), encoding="utf-8")
        return f"{name}:agent"

    version("v1", "Pay.")
    subprocess.run([sys.executable, "v1.py"], cwd=tmp_path, check=True)
    changed = closeout("agent", "upgrade", "--check", version("v2", "Pay an amount."), env=env)
    assert changed.code == 0, changed.err
    assert "1  continue with a difference" in changed.out
    assert "tool pay: changed" in changed.out
    stops = closeout("agent", "upgrade", version("v3", "Pay.", ", currency: str"), "--json", env=env)
    assert stops.code == 1, stops.err
    (run,) = stops.json["runs"]
    assert (stops.json["ok"], run["verdict"], run["task"]) == (False, "stops", "Pay 5 für 茶")
    assert "defaults={'currency'" in run["remedy"]
