"""Interrupted runs are resumed: in a batch, after lost rows, by one process; replays say where they differ."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Boxed, RunResult, StreamHandler, tool
from closeout.errors import DecisionRefused, JournalLocked
from closeout.journal import events as ev
from closeout.journal.store import close_stores, open_store
from closeout.journal.totals import RunTotals
from closeout.messages import Usage
from closeout.run.lifecycle import replay_run
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, once
from journal_file import cut_after, cut_record

TURNS = 6


def make_agent(home: Path, ran: list[str] | None = None, misbehave: Any = (), **options: Any) -> Agent:
    """An agent whose model looks six keys up, judged by nothing but what the request holds."""

    @tool(read_only=True, inline=True)
    def look(key: str) -> str:
        """Look up a key."""
        if ran is not None:
            ran.append(key)
        return f"[{key}] known"

    def script(view: RequestView) -> Turn:
        name = view.question.split()[-1]
        left = [f"{name}{n}" for n in range(TURNS) if f"[{name}{n}] known" not in view.text]
        return Turn(f"Next is {left[0]}.", calls=[call("look", key=left[0])]) if left else answer(f"{name} is done")

    model = ScriptedClient(script, by="question", misbehave=misbehave)
    return Agent(model, [look], home=home, answer=Boxed(), **options)


def kinds(events: list[ev.Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def events_of(home: Path, run_id: str) -> list[ev.Event]:
    return [row.event for row in open_store(home).rows(run_id)]


BATCH = """
import asyncio, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_resume import make_agent
from closeout.journal import events as ev

home, left = Path(sys.argv[1]), int(sys.argv[3])

def listen(event):
    global left
    if isinstance(event, ev.TurnAccepted):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    agent = make_agent(home)
    names = ("a", "b", "c", "d")
    await asyncio.gather(*(agent.run(f"Do {n}", run_id=f"run-{n}", listeners=[listen]) for n in names))

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kill -9 is what POSIX systems call it")
@pytest.mark.parametrize("after", [1, 13])
async def test_a_killed_batch_is_resumed_run_by_run(home: Path, after: int) -> None:
    command = [sys.executable, "-c", BATCH, str(home), str(Path(__file__).parent), str(after)]
    killed = await asyncio.to_thread(subprocess.run, command, check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    store = open_store(home)
    started = [record.run_id for record in store.runs()]
    assert {record.status for record in store.runs()} <= {"interrupted", "answered"}
    done = {run_id: sum(name == "ToolFinished" for name in kinds(events_of(home, run_id))) for run_id in started}
    assert started
    for run_id in started:
        ran: list[str] = []
        result = await make_agent(home, ran).resume(run_id)
        name = run_id[-1]
        assert (result.answer, result.turns) == (f"{name} is done", TURNS + 1)
        assert len(ran) == TURNS - done[run_id], "what was done is not done again"
        assert store.run(run_id).status == "answered"


@pytest.mark.parametrize("lost", [1, 2, 5, 9, 14, 20])
async def test_a_record_without_its_last_rows_is_resumed_to_the_same_end(home: Path, lost: int) -> None:
    first = await make_agent(home).run("Do a", run_id="run")
    whole = kinds(events_of(home, "run"))
    cut_record(home, -lost)
    ran: list[str] = []
    again = await make_agent(home, ran).resume("run")
    assert (again.answer, again.turns, again.usage.total_tokens) == (
        first.answer,
        first.turns,
        first.usage.total_tokens,
    )
    kept = whole[: len(whole) - lost]
    assert len(ran) == TURNS - kept.count("ToolFinished")
    now = [name for name in kinds(events_of(home, "run")) if name not in ("RunResumed", "RunEnded")]
    assert sorted(now) == sorted(name for name in whole if name != "RunEnded"), "nothing twice, nothing missing"


def _resume_there(home: Path, answers: Any) -> None:
    try:
        result = asyncio.run(make_agent(home).resume("held", despite_changes=True))
        answers.put(str(result.answer))
    except JournalLocked as error:
        answers.put(f"refused: {error}")
    finally:
        close_stores()


async def test_a_run_that_is_being_led_cannot_be_resumed_by_another_process_or_task(home: Path) -> None:
    refused: list[str] = []

    async def others() -> None:
        answers: Any = multiprocessing.get_context("spawn").Queue()
        process = multiprocessing.get_context("spawn").Process(target=_resume_there, args=(home, answers))
        process.start()
        refused.append(await asyncio.to_thread(answers.get, timeout=60))
        await asyncio.to_thread(process.join)
        with pytest.raises(JournalLocked, match="being executed right now"):
            await make_agent(home).resume("held", despite_changes=True)

    @tool
    async def wait(key: str) -> str:
        """Wait while others try."""
        await others()
        return "waited"

    client = ScriptedClient([call("wait", key="a"), answer("42")])
    result = await Agent(client, [wait], home=home).run("What?", run_id="held")
    assert result.answer == "42"
    assert refused[0].startswith("refused: Run held is being executed right now")


async def test_a_resume_of_a_resume_is_a_resume(home: Path) -> None:
    agent = make_agent(home)
    await agent.run("Do a", run_id="run")
    for count in (1, 2, 3):
        assert (await agent.resume("run")).answer == "a is done"
        assert kinds(events_of(home, "run")).count("RunResumed") == count


# ------------------------------------------------------------------------------------------------ replay


async def recorded(home: Path) -> tuple[RunResult, list[Any]]:
    result = await make_agent(home).run("Do a", run_id="run")
    return result, list(open_store(home).rows("run"))


async def test_a_replay_of_the_same_agent_asks_nothing_and_departs_nowhere(home: Path) -> None:
    first, rows = await recorded(home)
    ran: list[str] = []
    agent = make_agent(home, ran)
    result, departure = await replay_run(agent.plan(), "run", rows)
    assert (result.answer, result.usage, result.turns, departure) == (first.answer, first.usage, first.turns, "")
    client = agent.plan().client
    assert isinstance(client, ScriptedClient)
    assert (client.requests, ran) == ([], [])
    assert len(list(open_store(home).rows("run"))) == len(rows), "and writes nothing"


async def test_a_replay_says_where_a_changed_agent_first_departs(home: Path) -> None:
    _, rows = await recorded(home)
    _, departure = await replay_run(make_agent(home, instructions="Be brief.").plan(), "run", rows)
    assert departure.startswith("main: ModelRequested 0: ")
    _, departure = await replay_run(make_agent(home, keep_tool_result=1, max_turns=3).plan(), "run", rows)
    assert departure.startswith("main: "), departure
    result, departure = await replay_run(make_agent(home, max_turns=3).plan(), "run", rows)
    assert departure == "main: ModelRequested 3: purpose was 'act', now 'close'", "its closing turn comes sooner"
    assert result.status in ("answered", "unanswered", "failed")


async def test_the_conversation_of_a_changed_agent_has_each_turn_once(home: Path) -> None:
    await recorded(home)
    cut_after(home, "TurnAccepted", 3)
    agent = make_agent(home, format_observation=lambda output: f"found {output.result}")
    result = await agent.resume("run", despite_changes=True)
    shown = [message["content"] for message in result.messages if message["role"] == "tool"]
    assert shown == [f"found [a{number}] known" for number in range(TURNS)]


async def test_a_record_of_half_a_run_replays_as_far_as_it_goes(home: Path) -> None:
    _, rows = await recorded(home)
    result, _ = await replay_run(make_agent(home).plan(), "run", rows[: len(rows) // 2])
    assert (result.status, result.stop_reason) == ("failed", "journal_failed")
    assert "The record of run run ends here" in result.error


# ------------------------------------------------------------------------------------------------ long runs


COUNT = """
import asyncio, gc, json, sys, tracemalloc
from pathlib import Path
from closeout import Agent, tool
from closeout.models.base import BaseClient
from closeout.messages import ModelReply, ToolCall, Usage

class Endless(BaseClient):
    name = "endless"
    turns = 0
    async def complete(self, request, *, on_delta=None, on_retry=None):
        self.turns += 1
        size = sum(len(m.get("content") or "") for m in request.messages[-3:])
        usage = Usage(size, 5, requests=1)
        if request.tool_choice == "none":
            return ModelReply("\\\\boxed{done}", usage=usage)
        text = '{"key":"k%d"}' % self.turns
        return ModelReply("", tool_calls=(ToolCall("look", text, f"c{self.turns}", text=text),), usage=usage)

@tool(read_only=True, inline=True)
def look(key: str) -> str:
    "Look up."
    return "about " + key

def run_agent(turns):
    agent = Agent(Endless(), [look], home=Path(sys.argv[1]), max_turns=turns, keep_tool_result=5)
    return asyncio.run(agent.run("What?"))

def calls(turns):
    count = 0
    def trace(frame, event, arg):
        nonlocal count
        count += event == "call"
    sys.setprofile(trace)
    try:
        result = run_agent(turns)
    finally:
        sys.setprofile(None)
    assert result.turns == turns, result
    return count

def memory(turns):
    gc.collect()
    tracemalloc.start()
    run_agent(turns)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak

run_agent(50)
print(json.dumps({"calls": [calls(n) for n in (50, 150, 450)], "memory": [memory(n) for n in (150, 450)]}))
"""


@pytest.mark.timeout(120)
def test_the_steps_and_the_memory_of_a_run_grow_with_its_turns_and_not_faster(home: Path) -> None:
    """Counted in function calls and bytes, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT, str(home)], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    few, more, many = found["calls"]
    per_turn = (more - few) / 100
    assert many - more <= per_turn * 300 * 1.15, found
    small, large = found["memory"]
    assert large <= small * 3 * 1.3, found


# ------------------------------------------------------------------------------------------------ the bill


def billed(home: Path) -> Usage:
    """What the record says that the run has cost."""
    return RunTotals(events_of(home, "run")).usage


async def cancelled(start: Callable[..., Any], *, at: int) -> None:
    """Cancel a run while this request of it hangs."""
    sent, hanging = 0, asyncio.Event()

    def listen(event: Any) -> None:
        nonlocal sent
        sent += isinstance(event, ev.ModelRequested)
        if sent == at:
            hanging.set()

    running = asyncio.ensure_future(start(listeners=[listen]))
    await hanging.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_cancelled_request_counts_once_however_often_the_run_is_resumed(home: Path) -> None:
    first = await make_agent(home / "other").run("Do a")
    await cancelled(partial(make_agent(home, misbehave=once("hang", at=2)).run, "Do a", run_id="run"), at=2)
    assert (billed(home).requests, billed(home).input_tokens > 0) == (2, True)
    await cancelled(partial(make_agent(home, misbehave=once("hang", at=1)).resume, "run"), at=1)
    assert billed(home).requests == 3

    resumed = await make_agent(home).resume("run")
    again = await make_agent(home).resume("run")
    assert resumed.answer == again.answer == "a is done"
    assert resumed.usage == again.usage == billed(home)
    assert resumed.usage.requests == first.usage.requests + 2
    assert resumed.usage.total_tokens > first.usage.total_tokens


async def test_a_permanently_failed_request_counts_in_the_resumed_run(home: Path) -> None:
    first = await make_agent(home / "other").run("Do a")
    failed = await make_agent(home, misbehave=once("server_error", at=2, times=9)).run("Do a", run_id="run")
    assert (failed.status, failed.usage.requests) == ("failed", 2)
    resumed = await make_agent(home).resume("run")
    again = await make_agent(home).resume("run")
    assert resumed.usage == again.usage == billed(home)
    assert resumed.usage.requests == first.usage.requests + 1


async def test_what_was_spent_on_a_cancelled_request_counts_against_the_limit(home: Path) -> None:
    limited = {"config": {"agent": {"max_tokens": 900}}}
    whole = await make_agent(home / "other", **limited).run("Do a")
    hang = make_agent(home, misbehave=once("hang", at=5), **limited)
    await cancelled(partial(hang.run, "Do a", run_id="run"), at=5)
    for _ in range(3):
        hang = make_agent(home, misbehave=once("hang", at=1), **limited)
        await cancelled(partial(hang.resume, "run"), at=1)
    resumed = await make_agent(home, **limited).resume("run")
    assert (whole.stop_reason, resumed.stop_reason) == ("answered", "max_tokens")
    assert resumed.usage.total_tokens <= 900


async def test_a_watcher_hears_of_every_try_in_pairs(home: Path) -> None:
    await cancelled(partial(make_agent(home, misbehave=once("hang", at=2)).run, "Do a", run_id="run"), at=2)
    heard: list[dict[str, Any]] = []
    await make_agent(home).resume("run", listeners=[StreamHandler(heard.append)])
    told = [event["event"] for event in heard if event["event"] in ("start_of_llm", "end_of_llm", "show_error")]
    assert told == ["start_of_llm", "end_of_llm"] * (TURNS + 2)


async def test_a_cancelled_sub_agents_request_counts_too(home: Path) -> None:
    def agent(misbehave: Any = ()) -> Agent:
        clerk = Agent(ScriptedClient([answer("42")], misbehave=misbehave))

        def script(view: RequestView) -> Any:
            return answer("42") if view.messages[-1]["role"] == "tool" else call("clerk", task="find out")

        return Agent(ScriptedClient(script), [clerk.as_tool("clerk", "Finds out.")], home=home)

    await cancelled(partial(agent("hang").run, "What?", run_id="run"), at=2)
    resumed = await agent().resume("run")
    again = await agent().resume("run")
    assert resumed.usage == again.usage == billed(home)
    assert resumed.usage.requests == 4


def _changed_agent(home: Path, key_type: type, *calls: Turn, paid: list[int] | None = None) -> tuple[Agent, Any]:
    """An agent whose calls depend on the type of its tool's argument: a recorded reply with "1" is a call with 1."""

    def look(key: Any) -> str:
        return f"found {key!r}"

    def pay(amount: int) -> str:
        assert paid is not None
        paid.append(amount)
        return "paid"

    look.__annotations__["key"] = key_type
    model = ScriptedClient([*calls, answer("done")])
    tools = [tool(read_only=True)(look), tool(on_crash="report")(pay)]
    return Agent(model, tools, home=home), model


async def test_a_changed_agent_gets_no_result_of_another_call(home: Path) -> None:
    calls = [call("look", key="1"), call("look", key="2")]
    await _changed_agent(home, str, *calls)[0].run("x", run_id="r")
    cut_after(home, "ToolFinished", 1)
    agent, model = _changed_agent(home, int)
    await agent.resume("r", despite_changes=True)
    shown = [str(each["content"]) for each in model.requests[-1].messages if each["role"] == "tool"]
    assert shown == ["found 1", "found 2"], "neither '1' nor '2' has been looked up by these calls"


async def test_a_changed_call_that_was_interrupted_gets_no_result_of_the_former_one(home: Path) -> None:
    await _changed_agent(home, str, call("look", key="1"))[0].run("x", run_id="r")
    cut_after(home, "ToolFinished")
    await _changed_agent(home, int)[0].resume("r", despite_changes=True)
    cut_after(home, "ToolStarted", 1)  # the process died while the changed call was made
    agent, model = _changed_agent(home, int)
    await agent.resume("r", despite_changes=True)
    assert [each["content"] for each in model.requests[-1].messages if each["role"] == "tool"] == ["found 1"]


async def test_a_changed_agent_repeats_no_payment_that_was_interrupted(home: Path) -> None:
    paid: list[int] = []
    await _changed_agent(home, str, call("look", key="1"), call("pay", amount=5), paid=paid)[0].run("x", run_id="r")
    cut_after(home, "ToolStarted", 1)
    agent, model = _changed_agent(home, int, paid=paid)
    await agent.resume("r", despite_changes=True)
    assert paid == [5]
    assert "the program stopped while this call was running" in str(model.requests[-1].messages[-1]["content"])


@pytest.mark.parametrize("checks", [False, True])
async def test_a_model_that_repeats_an_interrupted_payment_at_once_is_asked_to_check_first(
    checks: bool, home: Path
) -> None:
    paid: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid for the {len(paid)}. time"

    @tool(read_only=True)
    def was_paid(amount: int) -> str:
        """Look it up."""
        return f"{amount} is not paid"

    def script(view: RequestView) -> Turn:
        if "closing turn" in view.text or "paid for" in view.text:
            return answer("done")
        look = checks and "may have taken effect" in view.text and "is not paid" not in view.text
        return Turn(calls=[call("was_paid" if look else "pay", amount=5)])

    payer = Agent(ScriptedClient(script), [pay, was_paid], home=home)
    await payer.run("x", run_id="r")
    cut_after(home, "ToolStarted")
    result = await payer.resume("r")
    assert result.answer == "done"
    assert len(paid) == 2
    rolled = [row.event.detail for row in result.read_rows() if isinstance(row.event, ev.TurnRolledBack)]
    assert rolled[0].startswith("pay: pay was cut off with these arguments and may have taken effect:")
    assert len(rolled) == (1 if checks else 5), "once it has looked, or if it insists"
    replayed, departure = await replay_run(payer.plan(), "r", list(open_store(home).rows("r")))
    assert (replayed.answer, departure) == ("done", "")


async def test_a_person_decides_whether_a_call_that_was_cut_off_is_made_again(home: Path) -> None:
    paid: list[str] = []

    @tool(on_crash="ask")
    def pay(invoice: str) -> str:
        """Pay an invoice."""
        paid.append(invoice)
        return f"paid {invoice}"

    def agent(run_id: str) -> Agent[Any]:
        def script(view: RequestView) -> Turn:
            return answer(view.last) if view.messages[-1]["role"] == "tool" else call("pay", invoice="N08")

        return Agent(ScriptedClient(script), [pay], home=home / run_id)

    for run_id in ("again", "not"):
        await agent(run_id).run("Pay.", run_id=run_id)
        cut_after(home / run_id, "ToolStarted")
        waiting = await agent(run_id).resume(run_id)
        (asked,) = waiting.waiting
        assert (waiting.status, asked.id, asked.kind, asked.tool) == ("waiting", "r1.again1", "approval", "pay")
        assert "may have taken effect" in asked.reason
        with pytest.raises(DecisionRefused, match="made again as it was, or denied"):
            await agent(run_id).resume(
                run_id, decisions={asked.id: {"verdict": "approve", "arguments": {"invoice": "N09"}}}
            )
        paid.clear()
        if run_id == "again":
            done = await agent(run_id).resume(run_id, decisions={asked.id: True})
            assert (done.answer, paid) == ("paid N08", ["N08"])
            assert (await agent(run_id).resume(run_id)).answer == done.answer  # nothing is asked or made again
            cut_after(home / run_id, "CallRepeated")  # the process died once more, in the repeated call
            paid.clear()
            waiting = await agent(run_id).resume(run_id)
            assert ([each.id for each in waiting.waiting], paid) == (["r1.again2"], [])
            assert (await agent(run_id).resume(run_id, decisions={"r1.again2": True})).answer == "paid N08"
            assert paid == ["N08"]
        else:
            denied = {"verdict": "deny", "text": "The bank has it."}
            done = await agent(run_id).resume(run_id, decisions={asked.id: denied})
            assert "decided not to make it again. The bank has it." in str(done.answer)
            assert paid == []


async def test_a_request_that_was_under_way_when_the_process_died_is_charged(home: Path) -> None:
    prices = {"llm": {"prices": {"*": [1000, 0]}}}  # a dollar for a thousand tokens of a prompt
    whole = await make_agent(home, config=prices).run("Check a", run_id="run")
    cut_after(home, "ModelRequested", -2)
    for deaths in (1, 2):
        found = await make_agent(home, config=prices).resume("run")
        lost = [each for each in events_of(home, "run") if isinstance(each, ev.ModelFailed)]
        assert len(lost) == deaths
        assert found.answer == whole.answer
        assert found.usage.requests == whole.usage.requests + deaths
        assert found.usage.cost_usd == pytest.approx(whole.usage.cost_usd + deaths * 0.046, rel=0.02)
        cut_after(home, "ModelFailed", deaths - 1)
    limited = await make_agent(home, config=prices, max_cost=whole.usage.cost_usd + 0.02).resume("run")
    assert (limited.status, limited.usage.requests) == ("unanswered", 5 + 3)
