"""Tools that wait for a time or for a signal: the run is suspended, and every signal is received once, in order."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cli_process import here
from closeout import Agent, RunContext, tool
from closeout.errors import DecisionRefused, RateLimited, RunNotFound, SignalRefused, ToolError, UsageError
from closeout.fleet.due_runs import DueRuns, due_runs
from closeout.homes import DatabaseHome, Home
from closeout.journal import events as ev
from closeout.journal.sent_signals import MAX_PAYLOAD, open_signals
from closeout.journal.store import open_store
from closeout.models.openai import OpenAIClient
from closeout.models.retry import RetryPolicy
from closeout.run.lifecycle import replay_run
from closeout.run.waits.decisions import awaited, record_decisions
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from raw_server import chat, http, raw_server

LATER = timedelta(days=3)


class Shop:
    """Tools that wait, and what they did after it."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.shipped: list[str] = []

        @tool(read_only=True, timeout=None)
        async def await_payment(order: str, context: RunContext, timeout: float | None = None) -> str:
            """Wait until an order is paid."""
            self.began.append(order)
            paid = await context.wait_for("payment", timeout=timeout)
            self.shipped.append(f"{order}:{paid}")
            return f"[{order}] paid {paid}"

        @tool(read_only=True)
        async def remind(hours: float, context: RunContext) -> str:
            """Wait some hours."""
            self.began.append(f"{hours:g} h")
            await context.sleep(hours * 3600)
            return f"[{hours:g}] over"

        @tool(read_only=True)
        async def wait_until(when: str, context: RunContext) -> str:
            """Wait until a time."""
            await context.sleep_until(datetime.fromisoformat(when))
            return f"[{when}] over"

        self.tools = [await_payment, remind, wait_until]


def calls_then_done(*calls: Any) -> Callable[[RequestView], Turn]:
    """A model that makes these calls together, and says what it has seen when it has all results."""

    def script(view: RequestView) -> Turn:
        found = [str(message["content"]) for message in view.messages if message["role"] == "tool"]
        return answer(" | ".join(found)) if found else Turn(calls=list(calls))

    return script


def shop_agent(home: Path, *calls: Any, shop: Shop | None = None, **options: Any) -> Agent:
    return Agent(ScriptedClient(calls_then_done(*calls)), (shop or Shop()).tools, home=home, **options)


def tomorrow() -> datetime:
    return datetime.now(UTC) + LATER


# ------------------------------------------------------------------------------------------------- timers


async def test_a_timer_suspends_the_run_until_its_time(home: Path) -> None:
    shop = Shop()
    agent = shop_agent(home, call("remind", hours=2), shop=shop)
    before = datetime.now(UTC).timestamp()
    result = await agent.run("Remind me.", run_id="r")
    assert (result.status, result.answer, shop.began) == ("waiting", None, ["2 h"])
    (pending,) = result.waiting
    assert (pending.id, pending.kind, pending.tool, pending.by_person) == ("r1.wait", "timer", "remind", False)
    assert pending.expires is not None
    assert before + 7200 <= pending.expires <= datetime.now(UTC).timestamp() + 7200
    assert await agent.resume_due() == []
    (result,) = await agent.resume_due(now=tomorrow())
    assert (result.status, result.answer) == ("answered", "[2] over")
    assert shop.began == ["2 h", "2 h"]
    assert result.usage.requests == 2
    assert await agent.resume_due(now=tomorrow()) == []


async def test_a_long_wait_that_a_model_server_asks_for_suspends_a_run_that_is_kept(home: Path) -> None:
    effects: list[str] = []

    @tool
    async def pay(order: str) -> str:
        """Pay for an order."""
        effects.append(order)
        return "paid"

    def agent(**options: Any) -> Agent:
        replies = [call("pay", order="b7"), RateLimited("Quota.", status=429, retry_after=7200.0), answer("done")]

        def play(view: RequestView) -> Any:
            if isinstance(reply := replies.pop(0), Exception):
                raise reply
            return reply

        return Agent(ScriptedClient(play), [pay], **{"home": home, **options})

    kept = agent()
    result = await kept.run("Pay.")
    (pending,) = result.waiting
    assert (result.status, pending.kind) == ("waiting", "timer")
    assert pending.expires is not None
    assert 7000 < pending.expires - datetime.now(UTC).timestamp() <= 7200
    assert await kept.resume_due() == []
    (result,) = await kept.resume_due(now=tomorrow())
    assert (result.answer, effects) == ("done", ["b7"])
    assert (await agent(home=False).run("Pay.")).status == "failed"
    patient = agent(config={"llm": {"max_wait": 7200, "max_retries": 0}})
    assert (await patient.run("Pay.")).status == "failed"  # a shorter wait is one of the retries


async def test_a_servers_429_suspends_a_run_for_long_waits_and_is_waited_for_in_the_process_for_short_ones(
    home: Path,
) -> None:
    per_day = {"error": {"message": "Quota GenerateRequestsPerDay is used up.", "details": [{"retryDelay": "1s"}]}}
    per_minute = {
        "error": {"message": "Quota GenerateRequestsPerMinute is used up.", "details": [{"retryDelay": "0s"}]}
    }
    in_days = {"error": {"message": "Your limit is reached. Try again in 2 days and 3 hours."}}
    for body, headers, waits in (
        (per_day, {}, 3600),
        (per_minute, {}, None),
        (in_days, {}, 183_600),
        (
            {"error": {"message": "Too many requests"}},
            {"Retry_After": formatdate(time.time() + 7200, usegmt=True)},
            7200,
        ),
        ({"error": {"message": "Too many requests"}}, {"x_ratelimit_reset": f"{time.time() + 9000:.0f}"}, 9000),
    ):
        replies = [http(body, status=429, **headers), http(chat("done"))]
        async with raw_server(lambda number, _, replies=replies: replies[number]) as server:
            client = OpenAIClient("m", server.url, retry=RetryPolicy(retries=1, first_wait=0.001))
            agent = Agent(client, home=home)
            result = await agent.run("Q")
            if waits is not None:
                (pending,) = result.waiting
                assert pending.expires == pytest.approx(time.time() + waits, abs=20), body
                (result,) = await agent.resume_due(now=datetime.fromtimestamp(pending.expires + 1, UTC))
        assert (result.answer, len(server.bodies)) == ("done", 2)


async def test_looking_for_due_runs_reads_no_run_that_only_waits(
    any_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(read_only=True, approval="always")
    async def ask(key: str) -> str:
        """Ask."""
        return f"[{key}] done"

    agent = shop_agent(any_home, call("remind", hours=2))
    for number in range(3):
        await agent.run("Remind me.", run_id=f"r{number}")
    await shop_agent(any_home, call("await_payment", order="b7", timeout=60)).run("Pay.", run_id="paid")
    asking = Agent(ScriptedClient(calls_then_done(call("ask", key="k"))), [ask], home=any_home)
    await asking.run("Ask.", run_id="decided")
    store, now = open_store(any_home), datetime.now(UTC).timestamp()
    read: list[str] = []
    monkeypatch.setattr(store, "rows", lambda run_id: read.append(run_id) or iter(store.read(run_id).rows))
    assert (due_runs(store), read) == ([], [])
    _, others = store.ready(agent.name, now)
    assert now + 30 < others.next_due < now + 90, "the time at which the wait for the payment ends"
    assert (due_runs(store, now + 90), read) == (["paid"], [])
    await agent.signal("paid", "payment", 5)
    record_decisions(store, "decided", {"r1": True})
    assert sorted(due_runs(store)) == ["decided", "paid"]
    assert read == ["paid"]
    _, others = store.ready(agent.name, now)
    waits = DueRuns(store)
    assert waits.among(others.unsure, now) == waits.among(others.unsure, now) == ["paid"]
    assert read == ["paid"] * 2, "what it waits for, once"
    store.transact(lambda db: db.execute("UPDATE runs SET due=0"))  # as a journal of an older version has it
    assert sorted(due_runs(store)) == ["decided", "paid"]
    assert sorted(due_runs(store, now + 7300)) == ["decided", "paid", "r0", "r1", "r2"]
    store.transact(lambda db: db.execute("UPDATE runs SET agent=NULL"))  # so has one of a still older version
    assert sorted(await agent.ready_runs()) == ["decided", "paid"]


async def test_a_wrong_clock_of_a_worker_neither_ends_a_wait_nor_prolongs_it(
    database: DatabaseHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86400)
    agent = shop_agent(database, call("remind", hours=2))
    (pending,) = (await agent.run("Remind me.", run_id="r")).waiting
    assert pending.expires is not None
    assert real() + 7100 < pending.expires < real() + 7300
    assert await agent.resume_due() == []
    assert (await agent.resume("r")).status == "waiting"
    monkeypatch.setattr(time, "time", lambda: real() - 86400)
    store = open_store(database)
    assert abs(store.clock(exact=True) - real()) < 60 > abs(store.clock() - real())
    (result,) = await agent.resume_due(now=datetime.fromtimestamp(real(), UTC) + LATER)
    assert result.answer == "[2] over"


async def test_the_first_deadline_holds_however_often_the_run_is_resumed(home: Path) -> None:
    agent = shop_agent(home, call("remind", hours=2))
    first = await agent.run("Remind me.", run_id="r")
    assert (await agent.resume("r")).waiting == first.waiting
    assert (await shop_agent(home, call("remind", hours=2)).resume("r")).waiting == first.waiting
    requests = [row.event for row in open_store(home).rows("r") if isinstance(row.event, ev.DecisionRequested)]
    assert len(requests) == 1


async def test_a_time_in_the_past_does_not_suspend_the_run(home: Path) -> None:
    agent = shop_agent(home, call("wait_until", when="2020-01-01T08:00:00+01:00"), call("remind", hours=0))
    assert (await agent.run("Wait.")).answer == "[2020-01-01T08:00:00+01:00] over | [0] over"


@pytest.mark.parametrize("when", ["2030-01-01T08:00:00", "9999-12-31T23:59:59-12:00"])
async def test_a_time_must_have_a_zone_and_a_year_of_the_calendar(home: Path, when: str) -> None:
    result = await shop_agent(home, call("wait_until", when=when)).run("Wait.")
    assert result.status == "answered"
    assert "with a time zone" in str(result.answer) or "beyond the year 9999" in str(result.answer)


@pytest.mark.parametrize("hours", [1e300, float("nan"), float("inf")])
async def test_a_tool_that_waits_for_ever_fails_with_a_reason(home: Path, hours: float) -> None:
    @tool(read_only=True)
    async def wait(context: RunContext) -> str:
        """Wait."""
        await context.sleep(hours)
        return "over"

    result = await Agent(ScriptedClient(calls_then_done(call("wait"))), [wait], home=home).run("Wait.")
    assert "wait must wait a number of seconds" in str(result.answer) or "beyond the year" in str(result.answer)


async def test_a_tool_with_effects_cannot_wait_and_one_outside_of_a_run_neither(home: Path) -> None:
    @tool
    async def pay(context: RunContext) -> str:
        """Pay later."""
        await context.sleep(5)
        return "paid"

    result = await Agent(ScriptedClient(calls_then_done(call("pay"))), [pay], home=home).run("Pay.")
    assert "pay waits, so it must be read_only or declared on_crash='rerun'." in str(result.answer)
    assert result.warnings[0].startswith("pay waits, so"), "the developer reads it too"
    with pytest.raises(ToolError, match="only in a run"):
        await RunContext().wait_for("payment")


async def test_now_must_have_a_zone(home: Path) -> None:
    with pytest.raises(UsageError, match="with a time zone"):
        await shop_agent(home).resume_due(now=datetime(2030, 1, 1))


# ------------------------------------------------------------------------------------------------- signals


async def test_a_signal_resumes_the_run_with_its_payload(home: Path) -> None:
    shop = Shop()
    agent = shop_agent(home, call("await_payment", order="a"), shop=shop)
    result = await agent.run("Ship a.", run_id="r")
    (pending,) = result.waiting
    assert (pending.kind, dict(pending.arguments), pending.expires) == ("signal", {"signal": "payment"}, None)
    assert awaited(pending) == "the signal 'payment'"
    await agent.signal("r", "refund", 1)
    assert await agent.resume_due() == []
    assert await agent.signal("r", "payment", {"付款": [5, None]})
    (result,) = await agent.resume_due()
    assert result.answer == "[a] paid {'付款': [5, None]}"
    assert shop.shipped == ["a:{'付款': [5, None]}"]
    assert [each.payload for each in open_signals(open_store(home), "r", "payment")] == []
    replayed, departure = await replay_run(agent.plan(), "r", list(open_store(home).rows("r")))
    assert (replayed.answer, departure) == (result.answer, "")
    assert len(shop.shipped) == 1


async def test_signals_that_arrive_before_the_waits_are_received_once_and_in_order(any_home: Home) -> None:
    @tool(read_only=True)
    async def collect(context: RunContext) -> str:
        """Collect three payments."""
        return str([await context.wait_for("payment") for _ in range(3)])

    model = ScriptedClient(calls_then_done(call("collect")))
    agent = Agent(model, [collect], home=any_home)
    run_id = await agent.submit("Collect.", run_id="r")
    for number in (1, 2):
        await agent.signal(run_id, "payment", number)
    result = await agent.resume(run_id)
    assert [each.id for each in result.waiting] == ["r1.wait3"]
    await agent.signal(run_id, "payment", 3)
    await agent.signal(run_id, "payment", 4)
    (result,) = await agent.resume_due()
    assert result.answer == "[1, 2, 3]"
    assert [each.payload for each in open_signals(open_store(any_home), "r", "payment")] == ["4"]


async def test_concurrent_waits_receive_one_signal_each(home: Path) -> None:
    shop = Shop()
    calls = [call("await_payment", order="a"), call("remind", hours=1), call("await_payment", order="b")]
    agent = shop_agent(home, *calls, shop=shop)
    result = await agent.run("Ship both.", run_id="r")
    assert [each.id for each in result.waiting] == ["r1.wait", "r2.wait", "r3.wait"]
    await agent.signal("r", "payment", 1)
    (result,) = await agent.resume_due()
    assert [each.id for each in result.waiting] == ["r2.wait", "r3.wait"]
    await agent.signal("r", "payment", 2)
    (result,) = await agent.resume_due()
    assert [each.id for each in result.waiting] == ["r2.wait"]
    (result,) = await agent.resume_due(now=tomorrow())
    assert result.answer == "[a] paid 1 | [1] over | [b] paid 2"
    assert shop.shipped == ["a:1", "b:2"]


async def test_a_tool_may_wait_for_several_things_at_once(home: Path) -> None:
    @tool(read_only=True)
    async def both(context: RunContext) -> str:
        """Wait for two signals."""
        return str(await asyncio.gather(context.wait_for("a"), context.wait_for("b", timeout=60)))

    agent = Agent(ScriptedClient(calls_then_done(call("both"))), [both], home=home)
    result = await agent.run("Wait.", run_id="r")
    assert sorted(each.arguments["signal"] for each in result.waiting) == ["a", "b"]
    await agent.signal("r", "b", 2)
    (result,) = await agent.resume_due()
    assert [each.arguments["signal"] for each in result.waiting] == ["a"]
    await agent.signal("r", "a", 1)
    (result,) = await agent.resume_due()
    assert result.answer == "[1, 2]"


async def test_concurrent_waits_of_a_call_keep_their_outcomes_in_whatever_order_they_come(home: Path) -> None:
    @tool(read_only=True)
    async def chains(context: RunContext) -> str:
        """Wait for two chains of events."""

        async def chain(*names: str) -> list[Any]:
            await context.sleep(0)
            return [await context.wait_for(name) for name in names]

        return str(await asyncio.gather(chain("a", "c"), chain("b", "d")))

    agent = Agent(ScriptedClient(calls_then_done(call("chains"))), [chains], home=home)
    result = await agent.run("Wait.", run_id="r")
    for name in "bdac":
        await agent.signal("r", name, name)
        for result in await agent.resume_due():  # a chain goes on when the tool is called again
            assert result.run_id == "r"
    assert result.answer == "[['a', 'c'], ['b', 'd']]"
    made = [row.event.text for row in open_store(home).rows("r") if isinstance(row.event, ev.DecisionMade)]
    assert sorted(filter(None, made)) == ['"a"', '"b"', '"c"', '"d"']


async def test_a_wait_that_times_out_raises_and_leaves_a_late_signal_for_others(home: Path) -> None:
    @tool(read_only=True, retries=2)
    async def expect(context: RunContext) -> str:
        """Expect a payment within an hour."""
        try:
            return f"paid {await context.wait_for('payment', timeout=3600)}"
        except TimeoutError:
            return f"late, then {await context.wait_for('payment', timeout=0)}"

    agent = Agent(ScriptedClient(calls_then_done(call("expect"))), [expect], home=home)
    result = await agent.run("Expect.", run_id="r")
    assert awaited(result.waiting[0]).startswith("the signal 'payment' until 20")
    (result,) = await agent.resume_due(now=tomorrow())
    assert "The signal 'payment' has not arrived in time." in str(result.answer)


class Either:
    """An agent whose tool waits twice for the first of two signals, and what it got."""

    def __init__(self, home: Home, **options: Any) -> None:
        self.got: list[Any] = []

        @tool(read_only=True)
        async def either(context: RunContext) -> str:
            """Wait for the first of two signals, twice."""
            first = await context.wait_for(["paid", "付款取消"])
            self.got.append(first)
            try:
                second = await context.wait_for(("paid", "付款取消"), timeout=3600)
            except TimeoutError as error:
                return f"{first} {error}"
            return f"{first} {second}"

        self.agent = Agent(ScriptedClient(calls_then_done(call("either"))), [either], home=home, **options)


async def test_the_first_of_several_signals_is_received_and_the_others_stay(any_home: Home) -> None:
    agent = Either(any_home).agent
    result = await agent.run("Wait.", run_id="r")
    (pending,) = result.waiting
    assert (pending.signals, dict(pending.arguments)) == (("paid", "付款取消"), {"signals": ["paid", "付款取消"]})
    assert awaited(pending) == "the first of the signals 'paid' and '付款取消'"
    await agent.signal("r", "other", 0)
    assert await agent.resume_due() == []
    await agent.signal("r", "付款取消", {"by": "李"})
    await agent.signal("r", "paid", 90)
    (result,) = await agent.resume_due()
    assert result.answer == "('付款取消', {'by': '李'}) ('paid', 90)"
    assert [each.name for each in open_signals(open_store(any_home), "r", "paid", "付款取消", "other")] == ["other"]
    replayed, departure = await replay_run(agent.plan(), "r", list(open_store(any_home).rows("r")))
    assert (replayed.answer, departure) == (result.answer, "")


async def test_a_signal_sent_before_the_wait_is_the_first_and_a_timeout_names_all(home: Path) -> None:
    agent = Either(home).agent
    run_id = await agent.submit("Wait.")
    await agent.signal(run_id, "paid", None)
    result = await agent.resume(run_id)
    assert [each.id for each in result.waiting] == ["r1.wait2"]
    (result,) = await agent.resume_due(now=tomorrow())
    assert result.answer == "('paid', None) None of the signals 'paid', '付款取消' has arrived in time."


async def test_the_first_of_several_signals_survives_a_kill_before_it_is_marked_and_a_fork(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Either(home)
    await one.agent.run("Wait.", run_id="r")
    await one.agent.signal("r", "付款取消", 1)
    monkeypatch.setattr("closeout.run.waits.timers.mark_received", lambda *_: None)  # the process dies before it
    (result,) = await one.agent.resume_due()
    assert [each.id for each in result.waiting] == ["r1.wait2"]
    other = Either(home)
    assert (await other.agent.resume("r")).waiting == result.waiting, "it is not received a second time"
    last = len(list(open_store(home).rows("r"))) - 1
    fork = await other.agent.fork("r", at=f"e{last}", new_run_id="fork")
    assert [each.id for each in fork.waiting] == ["r1.wait"], "it waits for signals of its own"
    await other.agent.signal("r", "paid", 2)
    await other.agent.signal("fork", "paid", 3)
    results = {each.run_id: each for each in await other.agent.resume_due()}
    assert results["r"].answer == "('付款取消', 1) ('paid', 2)"
    assert results["fork"].waiting[0].id == "r1.wait2"
    assert set(other.got) == {("付款取消", 1), ("paid", 3)}


@pytest.mark.parametrize("names", [[], {"a"}, ["a", ""], ["a", 5], "", None])
async def test_a_wait_needs_names_of_signals(home: Path, names: Any) -> None:
    @tool(read_only=True)
    async def wait(context: RunContext) -> str:
        """Wait."""
        return str(await context.wait_for(names))

    result = await Agent(ScriptedClient(calls_then_done(call("wait"))), [wait], home=home).run("Wait.")
    assert "needs the name of a signal" in str(result.answer) or "needs a short name" in str(result.answer)


async def test_a_tool_that_is_tried_again_does_not_wait_a_second_time(home: Path) -> None:
    tries = []

    @tool(read_only=True, retries=3)
    async def flaky(context: RunContext) -> str:
        """Wait, and fail at first."""
        paid = await context.wait_for("payment")
        tries.append(paid)
        if len(tries) < 3:
            raise ConnectionError("try again")
        return f"paid {paid}"

    agent = Agent(ScriptedClient(calls_then_done(call("flaky"))), [flaky], home=home)
    await agent.run("Wait.", run_id="r")
    await agent.signal("r", "payment", 7)
    (result,) = await agent.resume_due()
    assert (result.answer, tries) == ("paid 7", [7, 7, 7])


async def test_a_signal_with_the_same_id_is_sent_once(home: Path) -> None:
    agent = shop_agent(home, call("await_payment", order="a"), call("await_payment", order="b"))
    await agent.run("Ship.", run_id="r")
    assert [await agent.signal("r", "payment", 1, id="evt-1") for _ in range(2)] == [True, False]
    (result,) = await agent.resume_due()
    assert not await agent.signal("r", "payment", 1, id="evt-1")
    assert await agent.resume_due() == []
    assert [each.id for each in result.waiting] == ["r2.wait"]


async def test_what_cannot_be_sent_is_refused_with_the_reason(home: Path) -> None:
    agent = shop_agent(home, call("remind", hours=0))
    await agent.run("Wait.", run_id="over")
    with pytest.raises(SignalRefused, match=r"is over \(answered\)"):
        await agent.signal("over", "payment")
    with pytest.raises(RunNotFound):
        await agent.signal("nobody", "payment")
    run_id = await agent.submit("Wait.", run_id="r")
    for name in ("", " ", "a\nb", "x" * 201):
        with pytest.raises(SignalRefused, match="needs a short name"):
            await agent.signal(run_id, name)
    for payload in (object(), float("nan"), {"a": {1, 2}}):
        with pytest.raises(SignalRefused, match="is not JSON"):
            await agent.signal(run_id, "payment", payload)
    with pytest.raises(SignalRefused, match="Store it elsewhere"):
        await agent.signal(run_id, "payment", "x" * MAX_PAYLOAD)


async def test_nobody_decides_a_wait(home: Path) -> None:
    agent = shop_agent(home, call("remind", hours=1), call("await_payment", order="a"))
    result = await agent.run("Wait.", run_id="r")
    for pending in result.waiting:
        with pytest.raises(DecisionRefused, match="which nobody decides"):
            await agent.resume("r", decisions={pending.id: "now"})


# ------------------------------------------------------------------------------------------------- the rest of a run


async def test_a_wait_in_a_sub_agent_suspends_its_callers(home: Path) -> None:
    shop = Shop()
    clerk = Agent(ScriptedClient(calls_then_done(call("await_payment", order="a"))), shop.tools, home=home)
    tools = [clerk.as_tool("clerk", "Handles an order.")]
    agent = Agent(ScriptedClient(calls_then_done(call("clerk", task="ship"))), tools, home=home)
    result = await agent.run("Ship.", run_id="r")
    assert [each.id for each in result.waiting] == ["r1:clerk/r1.wait"]
    await agent.signal("r", "payment", 5)
    (result,) = await agent.resume_due()
    assert "[a] paid 5" in str(result.answer)
    assert result.usage.requests == 4


async def test_a_fork_waits_for_signals_of_its_own_unless_the_call_has_its_result(home: Path) -> None:
    shop = Shop()

    def script(view: RequestView) -> Turn:
        done = view.text.count("] paid")
        return answer("done") if done == 2 else Turn(calls=[call("await_payment", order="ab"[done])])

    agent = Agent(ScriptedClient(script), shop.tools, home=home)
    await agent.run("Ship.", run_id="r")
    for number in (1, 2):
        await agent.signal("r", "payment", number)
    (result,) = await agent.resume_due()
    assert (result.answer, shop.shipped) == ("done", ["a:1", "b:2"])
    rows = list(open_store(home).rows("r"))
    received = [n for n, row in enumerate(rows) if isinstance(row.event, ev.DecisionMade)]
    early = await agent.fork("r", at=f"e{received[0]}", new_run_id="early")
    assert [each.id for each in early.waiting] == ["r2.wait"]  # the first call's outcome belongs to its beginning
    late = await agent.fork("r", at=2, new_run_id="late")
    assert (late.status, shop.shipped) == ("waiting", ["a:1", "b:2"])
    await agent.signal("late", "payment", 3)
    (result,) = await agent.resume_due()
    assert (result.run_id, result.status, shop.shipped) == ("late", "answered", ["a:1", "b:2", "b:3"])


async def test_a_session_waits_with_its_message(home: Path) -> None:
    agent = shop_agent(home, call("await_payment", order="a"))
    session = agent.session("ann")
    assert (await session.run("Ship.")).status == "waiting"
    with pytest.raises(DecisionRefused, match="waits"):
        await session.run("And?")
    await agent.signal("ann.1", "payment", 5)
    await agent.resume_due()
    assert "paid 5" in str(session.messages)


async def test_map_with_a_key_continues_runs_whose_wait_is_over(any_home: Home) -> None:
    agent = shop_agent(any_home, call("await_payment", order="a"))
    first = await agent.run_many(["Ship 1.", "Ship 2."], key="orders")
    assert [each.status for each in first] == ["waiting", "waiting"]
    await agent.signal(first[1].run_id, "payment", 9)
    again = await agent.run_many(["Ship 1.", "Ship 2."], key="orders")
    assert [(each.status, each.answer) for each in again] == [("waiting", None), ("answered", "[a] paid 9")]


async def test_a_cancelled_run_is_not_woken_and_waits_again_when_it_is_resumed(home: Path) -> None:
    agent = shop_agent(home, call("await_payment", order="a"))
    await agent.run("Ship.", run_id="r")
    running = asyncio.ensure_future(agent.resume("r"))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await agent.signal("r", "payment", 5)
    result = await agent.resume("r")
    assert result.answer == "[a] paid 5"


async def test_other_agents_and_deleted_runs_are_left_alone(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine, other = shop_agent(home, call("remind", hours=1), name="mine"), shop_agent(home, name="other")
    changed = shop_agent(home, name="mine", instructions="Be brief.", on_change="refuse")
    for run_id in ("r", "gone"):
        await mine.run("Wait.", run_id=run_id)
    await mine.signal("gone", "payment")
    open_store(home).delete_runs(["gone"])
    with caplog.at_level(logging.WARNING, "closeout"):
        assert await other.resume_due(now=tomorrow()) == []
        assert await changed.resume_due(now=tomorrow()) == []
    assert "Run r is due, but it is not resumed" in caplog.text
    assert [each.run_id for each in await mine.resume_due(now=tomorrow())] == ["r"]
    with closing(sqlite3.connect(home / "journal.sqlite3")) as db, db:
        assert db.execute("SELECT count(*) FROM signals WHERE run_id='gone'").fetchone() == (0,)


async def test_waiting_is_not_work(home: Path) -> None:
    agent = shop_agent(home, call("remind", hours=0.00003), max_seconds=60)
    await agent.run("Wait.", run_id="r")
    (result,) = await agent.resume_due(now=tomorrow())
    assert result.status == "answered"
    assert result.seconds < 60


# ------------------------------------------------------------------------------------------------- the command line

MODULE = """
from pathlib import Path
from closeout import Agent, RunContext, tool
from closeout.testing import ScriptedClient, answer, call

@tool(read_only=True)
async def await_payment(context: RunContext) -> str:
    "Wait for a payment."
    return f"paid {await context.wait_for('the payment', timeout=1e6)}"

def agent():
    play = lambda view: answer(view.text[view.text.index("paid "):]) if "paid" in view.text else call("await_payment")
    return Agent(ScriptedClient(play), [await_payment], home=Path(HOME), name="shop")
"""


BUSY_SERVER = """
from closeout import Agent
from closeout.errors import ServerFailed
from closeout.testing import ScriptedClient, answer

def agent():
    busy = ServerFailed("Daily quota reached", status=429, retry_after=7200)
    return Agent(ScriptedClient([busy, answer("done")] if FAILS else [answer("done")]), name="desk")
"""


def test_a_wait_for_a_models_server_is_ended_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "busy_desk.py").write_text(BUSY_SERVER.replace("FAILS", "True"))
    (tmp_path / "free_desk.py").write_text(BUSY_SERVER.replace("FAILS", "False"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert import_module("busy_desk").agent().run_sync("Go.", run_id="r").status == "waiting"
    assert "closeout resume r --now" in here("runs", "r").out
    done = here("resume", "r", "--now", "-a", "free_desk:agent", "--quiet")
    assert (done.code, done.out) == (0, "done\n")
    assert "has no wait that --now could end" in here("resume", "r", "--now", "-a", "free_desk:agent").sentence
    assert "Leave out the RUN_ID, --force and --now" in here("resume", "--due", "--now").sentence


def test_signals_and_due_runs_on_the_command_line(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_module.py").write_text(MODULE.replace("HOME", repr(str(home))))
    monkeypatch.syspath_prepend(str(tmp_path))
    from shop_module import agent  # type: ignore[import-not-found]

    agent().run_sync("Wait.", run_id="r")
    assert "waits for the signal 'the payment' until 20" in here("runs").out
    shown = here("runs", "r").out
    assert "r1.wait waits for the signal 'the payment' until 20" in shown
    assert "closeout runs signal r 'the payment'" in shown
    assert "r1.wait waits for the signal 'the payment' until" in here("approve").out
    refused = here("approve", "r")
    assert (refused.code, "which nobody decides" in refused.err) == (2, True)
    assert "The payload '{' is not JSON: Expecting property" in here("runs", "signal", "r", "the payment", "{").sentence
    assert here("runs", "signal", "nobody", "x").code == 2
    assert here("resume", "--due", "-a", "shop_module:agent").err == "0 runs resumed.\n"
    assert "It is kept until the run waits for it." in here("runs", "signal", "r", "other").err
    sent = here("runs", "signal", "r", "the payment", "-", "--id", "e1", "--json", stdin='"五"'.encode())
    assert sent.json == {"run_id": "r", "signal": "the payment", "sent": True, "awaited": True}
    told = here("runs", "signal", "r", "the payment", "2", "--id", "e2").err
    assert "closeout resume r --agent PACKAGE.MODULE:AGENT" in told
    again = here("runs", "signal", "r", "the payment", "-", "--id", "e1", stdin='"五"'.encode())
    assert again.err == "A signal with the id e1 was sent to this run before.\n"
    other = here("runs", "signal", "r", "the payment", "1", "--id", "e1")
    assert (other.code, "was sent with another name or payload" in other.err) == (2, True)
    unknown = here("resume", "--due")
    assert (unknown.code, "Name it with --agent" in unknown.err) == (3, True)
    (found,) = here("resume", "--due", "-a", "shop_module:agent", "--json").json
    assert (found["run_id"], found["status"], found["answer"]) == ("r", "answered", "paid 五")
    assert here("resume").code == 2
    assert here("resume", "r", "--due").code == 2
