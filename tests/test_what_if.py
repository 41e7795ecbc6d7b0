"""The what-if lab: recorded runs again with a changed agent. Only what differs is paid for, and nothing has effects."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli_process import here
from closeout import Agent, tool
from closeout.cli.selecting import RunFilter
from closeout.errors import ResumeRefused, RunNotFound, UsageError
from closeout.evaluate import what_if
from closeout.journal.holds import Hold, set_hold
from closeout.journal.store import open_store
from closeout.journal.usage_totals import usage_totals
from closeout.lab.recorded_effects import CostLimit
from closeout.messages import Usage
from closeout.testing import ScriptedClient, answer, assert_no_regression, call, serve_script

sys.path.insert(0, str(Path(__file__).parent / "harness"))
from shop import CHANGES, HARMLESS, World

TASK = "What does tea cost? Pay it."


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "home", items=2)


async def recorded(world: World, **options: Any) -> None:
    result = await world.agent(pays="never", **options).run(TASK, run_id="r")
    assert (result.answer, world.paid) == ("5", [5])
    world.paid.clear()


def buyer(world: World, script: Any, **options: Any) -> Agent:
    """The agent of the shop with another model."""
    agent = world.agent(pays="never", **options)
    world.models[-1].__init__(script)  # type: ignore[misc]
    return agent


async def test_the_same_agent_does_the_same_and_costs_nothing(world: World) -> None:
    await recorded(world)
    agent = world.agent(pays="never")
    before = [row.event for row in open_store(world.home).rows("r")]
    report = await what_if(agent, 10, baseline=world.agent(pays="never"))
    (case,) = report.cases
    assert (case.changed, case.divergence, report.paid, report.cost) == (False, "", 0, 0.0)
    assert case.now == case.then == case.baseline or (case.now.cost, case.baseline.cost) == (0.0, 0.0)
    assert (case.now.answer, case.now.turns, case.now.tokens) == ("5", case.then.turns, case.then.tokens)
    assert report.grade.difference == report.tokens.difference == report.turns.difference == 0
    assert all(not model.requests for model in world.models[1:])
    assert world.paid == []
    assert [row.event for row in open_store(world.home).rows("r")] == before, "the record stays as it is"
    assert [run.run_id for run in open_store(world.home).each_run()] == ["r"]


async def test_settings_of_the_model_count_and_are_named(world: World) -> None:
    await recorded(world, config={"llm": {"top_p": 0.9, "extra_body": {"api_key": "k", "seed": 1}}})
    for llm, differences in (
        ({"top_p": 0.9, "extra_body": {"api_key": "k2", "seed": 1}}, ()),
        ({"extra_body": {"seed": 1}}, ("top_p: 0.9 then, unset now",)),
        ({"temperature": 0, "top_p": 0.9}, ("temperature: None then, 0.0 now",)),
    ):
        (case,) = (await what_if(world.agent(pays="never", config={"llm": llm}), ["r"])).cases
        assert case.differences[: len(differences)] == differences
        assert (case.changed, case.now.paid) == (False, 4 if differences else 0)
    (case,) = (await what_if(world.agent(pays="never", instructions="Be quick."), ["r"])).cases
    assert case.differences[0] == "instructions differ"


async def test_each_message_of_a_conversation_is_a_run(world: World) -> None:
    session = world.agent(pays="never").session("talk")
    await session.run("Was kostet 茶? Pay it.")
    await session.run("Danke.")
    world.paid.clear()
    same = (await what_if(world.agent(pays="never"), 5)).cases
    assert [(case.task, case.changed, case.now.paid) for case in same] == [
        ("Danke.", False, 0),
        ("Was kostet 茶? Pay it.", False, 0),
    ]
    (case,) = (await what_if(world.agent(pays="never", instructions="Be quick."), [same[0].run_id])).cases
    assert (case.changed, world.paid) == (False, [])
    assert "Was kostet 茶?" in world.models[-1].requests[0].messages[1].text


async def test_calls_in_another_order_get_their_recorded_results(world: World) -> None:
    await recorded(world)

    def backwards(view: Any) -> Any:
        known = view.text.count("costs 5")
        if known < 2:
            return call("price", item=f"tea {1 - known}")
        return call("pay", amount=5) if "receipt" not in view.text else answer("5")

    report = await what_if(buyer(world, backwards, instructions="Be quick."), ["r"])
    (case,) = report.cases
    assert (case.changed, case.added, case.lost, case.now.paid) == (True, (), (), 4), "the order"
    assert case.divergence == "turn 1: ModelReplied: tool_calls"
    assert world.paid == []


async def test_a_call_with_effects_that_is_not_in_the_record_is_never_made(world: World) -> None:
    await recorded(world)

    def generous(view: Any) -> Any:
        return call("pay", amount=6) if "receipt" not in view.text else answer("6")

    report = await what_if(buyer(world, generous, instructions="Be generous."), ["r"], allow_read_only=True)
    (case,) = report.left
    assert (case.now.status, case.now.left, case.now.answer) == ("left the record", 'pay({"amount": 6})', None)
    assert case.added == ('pay({"amount": 6})',)
    assert 'pay({"amount": 5})' in case.lost
    assert (case.now.paid, world.paid) == (1, [])
    assert report.grade.difference == -1


async def test_a_recorded_effect_serves_one_call_only(world: World) -> None:
    await recorded(world)

    def twice(view: Any) -> Any:
        return call("pay", amount=5)

    @tool(name="pay", description="Pay.", approval="never", repeatable=True)
    def pay_again(amount: int) -> str:
        world.paid.append(amount)
        return "receipt 17"

    agent = buyer(world, twice, instructions="Pay twice.", tools=lambda price, _: [price, pay_again])
    (case,) = (await what_if(agent, ["r"])).cases
    assert case.now.calls == ('pay({"amount": 5})',) * 2
    assert case.now.left == 'pay({"amount": 5})'
    assert world.paid == []


async def test_tools_that_only_read_run_if_that_is_allowed(world: World) -> None:
    await recorded(world)

    def script(view: Any) -> Any:
        return call("price", item="coffee") if "coffee costs" not in view.text else answer("7")

    agent = buyer(world, script, instructions="Buy coffee.")
    (case,) = (await what_if(agent, ["r"])).cases
    assert case.now.left == 'price({"item": "coffee"})'
    (case,) = (await what_if(agent, ["r"], allow_read_only=True)).cases
    assert (case.now.answer, case.now.left, case.added) == ("7", "", ('price({"item": "coffee"})',))
    assert world.paid == []


@pytest.mark.parametrize("change", sorted(CHANGES))
async def test_no_change_has_effects_and_none_of_prompt_or_tools_is_free(world: World, change: str) -> None:
    await recorded(world)
    agent = CHANGES[change](world)
    report = await what_if(agent, ["r"], baseline=world.agent(pays="never"))
    (case,) = report.cases
    assert world.paid == []
    assert report.baseline_changed == ()
    if change in ("nothing", "version"):
        assert (report.paid, case.changed) == (0, False)
    elif change in HARMLESS:
        assert case.now.paid == len(world.models[-2].requests) > 0
        assert case.baseline.paid == len(world.models[-1].requests) > 0
        if "renamed" not in change and change != "parameter added with a default":
            assert not case.changed, case


async def test_a_decision_of_a_person_is_taken_from_the_record(world: World) -> None:
    await world.agent().run(TASK, run_id="r")
    await world.agent().resume("r", decisions={"r3": True})
    world.paid.clear()
    (case,) = (await what_if(world.agent(), ["r"])).cases
    assert (case.changed, case.now.paid, case.now.answer) == (False, 0, "5")
    (case,) = (await what_if(world.agent(description="Pay now."), ["r"])).cases
    assert (case.changed, case.now.answer, world.paid) == (False, "5", [])


async def test_the_sub_agent_of_a_run_is_run_again_on_the_record(tmp_path: Path) -> None:
    sent: list[str] = []

    @tool
    def send(text: str) -> str:
        """Send a letter."""
        sent.append(text)
        return "sent"

    def clerk_says(text: str) -> Any:
        return lambda view: answer("done") if "sent" in view.text else call("send", text=text)

    def boss(clerk: Agent) -> Agent:
        script = ScriptedClient(
            lambda view: answer("finished") if "done" in view.text else call("clerk", task="Write to Ann.")
        )
        return Agent(script, [clerk.as_tool("clerk", "Writes letters.")], home=tmp_path, dialect="function_call")

    def clerk(text: str, **options: Any) -> Agent:
        return Agent(ScriptedClient(clerk_says(text)), [send], home=tmp_path, dialect="function_call", **options)

    await boss(clerk("Dear Ann")).run("Write to Ann.", run_id="r")
    assert sent == ["Dear Ann"]
    (case,) = (await what_if(boss(clerk("Dear Ann")), ["r"])).cases
    assert (case.changed, case.now.paid, case.divergence) == (False, 0, "")
    (case,) = (await what_if(boss(clerk("Hi Ann", instructions="Be short.")), ["r"])).cases
    assert case.now.left == 'send({"text": "Hi Ann"})'
    assert sent == ["Dear Ann"]


async def test_planted_changes_of_behaviour_are_found_and_nothing_else(tmp_path: Path) -> None:
    def script(view: Any) -> Any:
        return answer(f"about {view.question}")

    def careless(view: Any) -> Any:
        return answer("no idea" if view.question.endswith("7") else f"about {view.question}")

    def agent(model: Any, instructions: str) -> Agent:
        return Agent(ScriptedClient(model), instructions=instructions, home=tmp_path, dialect="function_call")

    for number in range(20):
        await agent(script, "Be exact.").run(f"茶 {number}", run_id=f"r{number}")
    report = await what_if(agent(careless, "Be quick."), 20, baseline=agent(script, "Be exact."))
    assert sorted(case.run_id for case in report.changed) == ["r17", "r7"]
    assert report.baseline_changed == ()
    assert report.grade.difference == pytest.approx(-0.1)
    assert report.baseline_grade.difference == 0
    with pytest.raises(AssertionError, match=r"2 of 20 runs are worse:\n(.|\n)*the answer was 'about 茶 7'"):
        await assert_no_regression(20, agent(careless, "Be quick."))
    assert len(await assert_no_regression(20, agent(careless, "Be quick."), grader=lambda *_: 1)) == 20


async def test_no_request_is_sent_after_the_cost_limit_and_none_that_no_limit_can_be_kept_for(tmp_path: Path) -> None:
    def agent(instructions: str, **llm: Any) -> Agent:
        client = ScriptedClient(lambda view: answer("5"))
        return Agent(client, instructions=instructions, home=tmp_path, config={"llm": llm})

    for number in range(3):
        await agent("Be exact.").run(f"{number}", run_id=f"r{number}")
    unpriced = agent("Be quick.")
    with pytest.raises(UsageError, match="the price of scripted is unknown"):
        await what_if(unpriced, 3, limit_cost=1)
    assert unpriced.plan().client.requests == []
    report = await what_if(agent("Be quick.", prices={"*": [1e6, 1e6]}), 3, limit_cost=1, parallel=1)
    assert (report.paid, len(report.skipped)) == (1, 2)
    assert report.skipped[0].now.problem == "The cost limit of 1 USD is reached."
    same = await what_if(agent("Be exact."), 3)
    assert (same.tokens.low, same.tokens.high) == (0, 0), "the same three times is no sample of others"


def test_a_cost_limit_is_reached_by_the_sum_of_all_requests() -> None:
    cost = CostLimit(1.0)
    cost.charge(Usage(requests=1, cost_usd=0.6))
    assert not cost.reached
    cost.charge(Usage(requests=1, cost_usd=0.4))
    assert cost.reached == "The cost limit of 1 USD is reached."


async def test_runs_that_cannot_be_compared_are_named(world: World, tmp_path: Path) -> None:
    await world.agent().run(TASK, run_id="waits")
    (case,) = (await what_if(world.agent(), ["waits"])).cases
    assert case.problem == "The run has not ended with an answer or without one."
    await world.agent(pays="never", config={"journal": {"prompts": False}}).run(TASK, run_id="r")
    report = await what_if(world.agent(pays="never"), ["r"])
    assert "recorded without its prompts" in report.cases[0].problem
    assert (report.grade, len(report.skipped)) == (None, 1)
    with pytest.raises(RunNotFound):
        await what_if(world.agent(), ["nothing"])
    with pytest.raises(UsageError, match="no ended run"):
        await assert_no_regression(5, world.agent(name="other"))


async def test_a_lane_that_was_paid_for_is_a_run_until_the_same_comparison_is_made_again(
    tmp_path: Path,
) -> None:
    def agent(instructions: str) -> Agent:
        client = ScriptedClient(lambda view: answer("5"))
        config = {"llm": {"prices": {"*": [1e6, 1e6]}}}
        return Agent(client, instructions=instructions, name="shop", home=tmp_path, config=config)

    for number in range(3):
        await agent("Be exact.").run(f"{number}", run_id=f"r{number}")
    compare: Any = partial(what_if, agent("Be quick."), 3, baseline=agent("Be exact."), parallel=1)
    store = open_store(tmp_path)

    def kept() -> list[str]:
        return sorted(run.status for run in store.each_run() if run.run_id.startswith("what-if."))

    limited = await compare(limit_cost=1)
    assert (limited.paid, kept()) == (1, ["answered"]), "no lane is begun after the limit"
    done = await compare()
    assert (done.paid, kept()) == (6, ["answered"] * 6), "the lane of the comparison before is gone"
    assert [run.run_id for run in RunFilter().select(store)] == ["r2", "r1", "r0"]
    for wanted in (RunFilter(status="answered"), RunFilter(text="5")):
        assert len([*wanted.select(store)]) == 9, "a filter finds lanes too"
    with pytest.raises(ResumeRefused, match="kept by a what-if comparison"):
        await agent("Be quick.").resume(done.cases[0].now.run_id, on_change="take")
    paid = {total.group["agent"]: total.usage.requests for total in usage_totals(tmp_path, by=["agent"])}
    assert paid == {"shop": 3, "what-if": 6}
    assert (await agent("Be quick.").check_runs()).others == 0
    set_hold(store, Hold("run", done.cases[0].now.run_id))
    with pytest.raises(UsageError, match="is on hold, so nothing was deleted"):
        await compare()
    assert kept() == ["answered"] * 6


def test_the_command_compares_and_says_so_by_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, file, text = tmp_path / "home", tmp_path / "agent.yaml", tmp_path / "new.md"
    text.write_text("Antworte 坏.", "utf-8")

    def script(view: Any) -> Any:
        return answer("坏" if "坏" in view.text else "好")

    with serve_script(script) as server:
        file.write_text(
            "agent: {name: greeter, instructions: Be kind.}\n"
            f"llm: {{provider: openai, model_name: m, base_url: {server.base_url}, api_key: k}}\n",
            "utf-8",
        )
        monkeypatch.setenv("CLOSEOUT_HOME", str(home))
        assert here("run", "你好", "-a", str(file)).code == 0
        sent = len(server.requests)
        same = here("eval", "what-if", str(file), "--json")
        assert (same.code, len(server.requests)) == (0, sent), same.err
        assert json.loads(same.out)["paid"] == 0
        other = here("eval", "what-if", str(file), "--last", "5", "--instructions", str(text))
        assert other.code == 1, other.err
        assert "answer: 好 → 坏" in other.out
        (page,) = (line.strip() for line in other.out.splitlines() if "#/compare/" in line)
        assert page.endswith(".candidate")
        assert "1 requests paid" in other.out
        missing = here("eval", "what-if", str(file), "--instructions", str(tmp_path / "no.md"))
        assert "cannot be read" in missing.err
