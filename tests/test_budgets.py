"""Budgets over runs: each request is reserved at its largest cost; no limit is exceeded, whoever is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from cli_process import here
from closeout import Agent, ConfigError, UsageError, delete_data, find_data, tool, usage_totals
from closeout.budget_limits import NANO, BudgetLimit, read_limits
from closeout.errors import JournalError
from closeout.evaluate import evaluate
from closeout.homes import DatabaseHome, Home
from closeout.journal.events import AgentEnded, ModelReplied, Noted
from closeout.journal.ledger import LEDGER_NAME, Amount, Ledger, Refusal, open_ledger, spent_by_day
from closeout.journal.run_journal import Journal
from closeout.journal.store import open_store
from closeout.journal.usage_totals import GROUPS
from closeout.messages import Usage
from closeout.models.openai import OpenAIClient
from closeout.models.retry import RetryPolicy
from closeout.run.lifecycle import replay_run
from closeout.server.serve.host import AgentHost
from closeout.server.serving import viewer_app
from closeout.testing import Misbehaviour, RequestView, ScriptedClient, Turn, always, answer, call, serve_script
from postgres_server import PostgresServer
from raw_server import chat, http, raw_server
from serving import serving

PRICE = {"*": [1.0, 10.0]}  # dollars per million tokens


@tool(read_only=True)
def look_up(name: str) -> str:
    """Look up a number."""
    return f"{name}: 7"


@tool(approval="always")
def pay() -> str:
    """Pay."""
    return "paid"


def limit(text: str, key: str = "team") -> BudgetLimit:
    return read_limits({key: text})[0]


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(any_home: Home, clock: Clock) -> Any:
    made = Ledger(any_home, clock)
    yield made
    made.close()


def refused(ledger: Ledger, limits: Sequence[BudgetLimit], amount: Amount) -> Refusal:
    found = ledger.reserve(limits, amount)
    assert isinstance(found, Refusal)
    return found


def spend(ledger: Ledger, limits: Sequence[BudgetLimit], amount: Amount) -> None:
    found = ledger.reserve(limits, amount)
    assert isinstance(found, str)
    ledger.settle(found)


def dollars(amount: float) -> Amount:
    return Amount(int(amount * NANO), 0)


# ------------------------------------------------------------------------------------------------ limits


def test_a_limit_has_an_amount_a_unit_and_a_period() -> None:
    found = read_limits({"team": "100 USD/month", "user:ann": ["0.5 usd / day", "60 requests/minute or wait"]})
    assert [str(each) for each in found] == ["100 USD/month", "0.5 USD/day", "60 requests/minute"]
    assert [each.waits for each in found] == [False, False, True]
    assert str(limit("1000000 tokens")) == "1,000,000 tokens"
    assert [str(limit(text)) for text in ("1 run at once", "3 Runs  at once or wait")] == [
        "1 run at once",
        "3 runs at once",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        "5 EUR/day",
        "5 USD/week",
        "-5 USD/day",
        "0 USD/day",
        "1.5 requests/minute",
        "5 USD or wait",
        "1.5 runs at once",
        "3 runs",
        "",
        5,
        [],
    ],
)
def test_an_invalid_limit_is_refused_when_the_agent_is_made(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="budget"):
        Agent(ScriptedClient([answer("1")]), budget={"team": wrong})


def test_a_budget_without_keys_is_refused_with_the_form_to_use() -> None:
    with pytest.raises(ConfigError, match=r'\{"team": "100 USD/month"\}. To limit each run by itself, set max_cost'):
        Agent(ScriptedClient([answer("1")]), budget=5)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ the ledger


def test_a_reservation_counts_until_it_is_settled(ledger: Ledger) -> None:
    cap = [limit("1 USD/day")]
    first = ledger.reserve(cap, dollars(0.75))
    assert isinstance(first, str)
    assert refused(ledger, cap, dollars(0.5)).pending, "it fits if the first one turns out to be cheaper"
    ledger.settle(first, dollars(0.25))
    spend(ledger, cap, dollars(0.5))
    found = refused(ledger, cap, dollars(0.5))
    assert (found.pending, found.left) == (False, 0.25 * NANO)


def test_a_period_begins_anew_and_a_month_sums_its_days(ledger: Ledger, clock: Clock) -> None:
    limits = [limit("2 requests/minute"), limit("3 requests/month")]
    for _ in range(2):
        spend(ledger, limits, Amount())
    assert refused(ledger, limits, Amount()).wait == limits[0].window(clock.now)[1] - clock.now
    clock.now += 86400
    spend(ledger, limits, Amount())
    assert refused(ledger, limits, Amount()).limit.period == "month"


def test_every_key_pays_and_any_can_refuse(ledger: Ledger) -> None:
    ann, bob = read_limits({"user:ann": "1 USD/day", "team": "1.5 USD/day"}), read_limits({"team": "1.5 USD/day"})
    spend(ledger, ann, dollars(1))
    assert refused(ledger, ann, dollars(0.5)).limit.key == "user:ann"
    spend(ledger, bob, dollars(0.5))
    assert refused(ledger, bob, dollars(0.1)).limit.key == "team"


def test_what_a_killed_process_had_reserved_counts_as_spent(
    any_home: Home, ledger: Ledger, request: pytest.FixtureRequest
) -> None:
    script = (
        "import os, signal; from closeout.budget_limits import read_limits; from closeout.config import home_folder\n"
        "from closeout.journal.ledger import Amount, open_ledger\n"
        f"open_ledger(home_folder()).reserve(read_limits({{'team': '1 USD'}}), Amount({NANO // 2}, 0))\n"
        "open_ledger(home_folder()).reserve(read_limits({'team': '1 run at once'}), Amount(requests=0))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", script], check=False)
    assert killed.returncode == -signal.SIGKILL
    if isinstance(any_home, DatabaseHome):  # a lock ends at once, and a lease takes a while
        request.getfixturevalue("postgres").end_leases(any_home.schema)
    assert not refused(ledger, [limit("1 USD")], dollars(0.75)).pending, "nobody will settle it for less"
    spend(ledger, [limit("1 run at once")], Amount(requests=0))
    assert [(each.spent, each.reserved.requests) for each in spent_by_day(any_home)] == [(dollars(0.5), 0)]


# ------------------------------------------------------------------------------------------------ in a database


def cut(postgres: PostgresServer) -> None:
    postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")


@pytest.mark.parametrize("moment", ["before", "within", "stopped", "committed"])
def test_a_cut_connection_neither_loses_nor_doubles_a_reservation(
    database: DatabaseHome, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    import psycopg

    with closing(Ledger(database)) as ledger:
        link: Any = ledger._database._link  # type: ignore[attr-defined]
        whole, cuts = link.transaction, [moment] * 2

        @contextmanager
        def transaction() -> Iterator[Any]:
            found = cuts.pop() if cuts else ""
            if found == "before":
                cut(postgres)
            with whole() as raw:
                yield raw
                if found == "within":
                    cut(postgres)
                if found == "stopped":  # the server does not wait for a process that sleeps within a transaction
                    raw.execute("SET LOCAL idle_in_transaction_session_timeout = '10ms'")
                    time.sleep(0.1)
            if found == "committed":  # and nobody heard of it
                raise psycopg.OperationalError("connection lost")

        monkeypatch.setattr(link, "transaction", transaction)
        caps = [limit("1 USD/day"), limit("1 USD/day", "user:ann")]
        spend(ledger, caps, dollars(0.5))
        assert cuts == []
        found = {each.key: (each.spent, each.reserved.requests) for each in spent_by_day(database)}
        assert found == {"team": (dollars(0.5), 0), "user:ann": (dollars(0.5), 0)}
        if moment == "committed":
            monkeypatch.setattr("closeout.journal.postgres_link.PATIENCE", -1)
            cuts.append(moment)
            with pytest.raises(JournalError, match="connection lost"):
                ledger.reserve(caps, dollars(0.5))
            spend(ledger, caps, dollars(0.5))  # the one before was not sent, so it costs nothing


def test_requests_of_one_key_are_admitted_one_after_the_other(database: DatabaseHome) -> None:
    cap = [limit("1 USD/day"), limit("1 USD/day", "user:ann")]
    with closing(Ledger(database)) as first, closing(Ledger(database)) as second, closing(Ledger(database)) as third:

        def meanwhile(db: Any) -> Any:
            first._database.admit(db, ["team"])
            asked = second.thread.submit(second.reserve, cap, dollars(0.75))
            with pytest.raises(TimeoutError):
                asked.result(0.2)
            spend(third, [limit("1 USD/day", "user:bob")], dollars(0.5))
            return asked

        found = first._database.transact(meanwhile).result()
        assert isinstance(found, str)


def test_a_process_that_was_taken_for_dead_has_paid_in_full(database: DatabaseHome, postgres: PostgresServer) -> None:
    cap = [limit("1 USD/day")]
    with closing(Ledger(database)) as stopped, closing(Ledger(database)) as other:
        asked = stopped.reserve(cap, dollars(0.75))
        assert isinstance(asked, str)
        locks: Any = stopped._database.locks
        locks._closing.set()
        locks._thread.join()
        postgres.end_leases(database.schema)
        assert not refused(other, cap, dollars(0.5)).pending
        stopped.settle(asked, dollars(0.25))
        assert [(each.spent, each.reserved.requests) for each in spent_by_day(database)] == [(dollars(0.75), 0)]


def test_while_the_database_is_down_nothing_is_reserved_and_a_settlement_is_made_up_for(
    database: DatabaseHome, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("closeout.journal.postgres_link.PATIENCE", 0.1)
    with closing(Ledger(database)) as ledger:
        cap = [limit("1 USD/day")]
        asked = ledger.reserve(cap, dollars(0.75))
        assert isinstance(asked, str)
        postgres.stop()
        try:
            ledger.settle(asked, dollars(0.25))
            with pytest.raises(JournalError, match="Cannot reach the database"):
                ledger.reserve(cap, dollars(0.5))
        finally:
            postgres.start()
        spend(ledger, cap, dollars(0.75))
        assert [(each.spent.usd, each.reserved.requests) for each in spent_by_day(database)] == [(NANO, 0)]


def test_the_clock_of_the_database_decides_the_day(
    database: DatabaseHome, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    with closing(Ledger(database)) as ledger:
        spend(ledger, [limit("1 USD/day")], dollars(1))
    ((today,),) = postgres.execute("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD')")
    (spent,) = spent_by_day(database)
    assert spent.to_dict()["day"] == today


async def test_runs_usage_and_personal_data_have_budgets_there_too(database: DatabaseHome) -> None:
    agent = agent_of([answer("42")], budget={"team": "1 USD/day"}, home=database)
    result = await agent.run("How many?", user="安", budget={"user:安": "1 requests/day"})
    assert result.answer == "42"
    (kept,) = [row for row in here("runs", "usage", "--budgets", "--json").json if row["key"] == "user:安"]
    assert (kept["requests"], kept["reserved_usd"]) == (1, 0)
    async with TestClient(TestServer(viewer_app(database))) as client:
        shown = await (await client.get("/viewer/api/usage?by=key")).json()
    assert kept in shown["budgets"]
    assert find_data("安", home=str(database)).budget_keys == ("user:安",)
    delete_data("安", home=str(database))
    assert [spent.key for spent in spent_by_day(database)] == ["team"]


# ------------------------------------------------------------------------------------------------ runs


def agent_of(script: Any, **options: Any) -> Agent[Any, str]:
    config = {"llm": {"prices": PRICE, "max_tokens": 1000}}
    return Agent(ScriptedClient(script), config=config, tools=[look_up], **options)


def spent_in(home: Path) -> dict[str, Amount]:
    found = {each.key: each.spent for each in spent_by_day(home)}
    assert all(not each.reserved.requests for each in spent_by_day(home)), "nothing is left reserved"
    return found


async def test_a_run_pays_for_its_keys_and_those_of_the_agent(home: Path) -> None:
    agent = agent_of([answer("42")], budget={"team": "1 USD/day"})
    result = await agent.run("How many?", budget={"user:ann": "5 USD/day"})
    assert result.answer == "42"
    found = spent_in(home)
    assert found.keys() == {"team", "user:ann"}
    tokens = result.usage.input_tokens + 10 * result.usage.output_tokens
    assert found["team"] == found["user:ann"] == Amount(tokens * NANO // 10**6, result.usage.total_tokens)


def looks_up_until_closing(view: RequestView) -> Any:
    if view.body.get("tool_choice") == "none":
        return Turn(answer="7", usage=Usage(200, 10, requests=1))
    return Turn(calls=[call("look_up", name=f"place {view.number}")], usage=Usage(200, 100, requests=1))


async def test_a_run_that_reaches_its_budget_stops_with_an_answer(home: Path) -> None:
    config = {"llm": {"prices": PRICE, "max_tokens": 1000}}
    async with serve_script(looks_up_until_closing) as server:
        agent = Agent("openai:m", [look_up], base_url=server.base_url, config=config, budget={"team": "0.03 USD/day"})
        result = await agent.run("How many?")
        requests = len(server.requests)
    assert (result.stop_reason, result.answer) == ("budget", "7")
    assert requests == result.usage.requests > 3
    usd = spent_in(home)["team"].usd
    assert 0.03 * NANO - 0.014 * NANO < usd <= 0.03 * NANO


async def test_an_unknown_price_is_refused_before_anything_is_sent() -> None:
    asked = ScriptedClient([answer("1")])
    result = await Agent(asked, budget={"team": "1 USD"}, config={"llm": {"max_tokens": 100}}).run("How many?")
    assert result.failure is not None
    assert (result.status, result.usage.requests) == ("failed", 0)
    assert "llm.prices={MODEL: [INPUT, OUTPUT]}" in result.failure.message
    counted = await Agent(asked, budget={"team": "5 requests"}).run("How many?")
    assert counted.answer == "1", "requests are counted without a price"


async def test_a_request_that_does_not_fit_says_what_it_consists_of_and_what_would_help(home: Path) -> None:
    for reply, budget, helps in (
        (50, "0.001 USD/day", "Set a higher budget."),
        (5000, "0.006 USD/day", "Set a lower max_tokens, or a higher budget."),
    ):
        client = ScriptedClient(lambda view: Turn(calls=[call("look_up", name="x")]))
        agent = Agent(client, [look_up], max_tokens=reply, config={"llm": {"prices": PRICE}})
        result = await agent.run("How many?", budget={"team": budget})
        assert result.stop_reason == "budget"
        assert "more than the budget of team (" in result.error
        assert result.error.endswith(f"and its reply {reply:,}. {helps}")


async def test_a_budget_without_a_home_is_refused() -> None:
    with pytest.raises(UsageError, match="home"):
        await agent_of([answer("1")], budget={"team": "1 USD"}, home=False).run("How many?")


async def test_a_run_waits_for_the_next_period_if_the_limit_says_so(
    home: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_ledger(home), "clock", clock)
    monkeypatch.setattr("closeout.run.reservations.LONGEST_SLEEP", 0.01)

    def pass_a_minute(event: Any) -> None:
        if isinstance(event, Noted) and "Waiting for the next period" in event.message:
            clock.now += 60

    agent = agent_of([call("look_up", name="Bern"), answer("7")], budget={"team": "1 requests/minute or wait"})
    result = await agent.run("How many?", listeners=[pass_a_minute])
    assert (result.answer, clock.now) == ("7", Clock.now + 60)


async def test_a_run_waits_for_a_place_or_stops_if_as_many_as_allowed_are_executed(home: Path) -> None:
    at_work: list[int] = []
    most, are_two, may_end = 0, asyncio.Event(), asyncio.Event()

    @tool(read_only=True)
    async def work() -> str:
        """Work."""
        nonlocal most
        at_work.append(1)
        most = max(most, len(at_work))
        if most == 2:
            are_two.set()
        await asyncio.wait_for(may_end.wait(), 30)
        at_work.pop()
        return "done"

    def script(view: RequestView) -> Any:
        return answer("8") if "done" in view.text else Turn(calls=[call("work")])

    agent = Agent(ScriptedClient(script, by="question"), [work], home=home, name="ann")
    waiting = [asyncio.create_task(agent.run(f"{n}?", budget={"ann": "2 runs at once or wait"})) for n in range(5)]
    await asyncio.wait_for(are_two.wait(), 30)
    refused = await agent.run("More?", budget={"ann": "2 runs at once"})
    assert (refused.stop_reason, refused.usage.requests) == ("budget", 0)
    may_end.set()
    assert [result.answer for result in await asyncio.gather(*waiting)] == ["8"] * 5
    assert most == 2
    assert (await agent.run("More?", budget={"ann": "2 runs at once"})).answer == "8"
    assert spent_in(home) == {}
    paying = Agent(ScriptedClient([call("pay")] * 2), [pay], home=home, budget={"ann": "1 run at once"})
    for question in ("Pay?", "Pay more?"):
        assert (await paying.run(question)).status == "waiting", "a run that waits for a person gives its place back"
    below = team_of({"team": "1 run at once"}, main={"team": "1 run at once"})
    assert (await below.run("How many?")).answer == "8", "a sub-agent does not wait for its own run"


async def test_a_sub_agent_pays_for_the_keys_of_its_parent(home: Path) -> None:
    below = Agent(ScriptedClient([answer("8")]), config={"llm": {"prices": PRICE, "max_tokens": 1000}})
    agent = Agent(
        ScriptedClient([call("ask", task="Count."), answer("8")]),
        [below.as_tool("ask", "Counts.")],
        config={"llm": {"prices": PRICE, "max_tokens": 1000}},
        budget={"team": "1 USD"},
    )
    result = await agent.run("How many?")
    assert result.answer == "8"
    assert spent_in(home)["team"].requests == result.usage.requests == 3


def team_of(budget: Any, *, main: Any = None) -> Agent[Any]:
    """An agent whose sub-agent has a budget of its own."""
    config = {"llm": {"prices": PRICE, "max_tokens": 1000}}
    asked = ScriptedClient(lambda view: call("look_up", name="Bern") if view.turn == 1 else answer("8"))
    below = Agent(asked, [look_up], config=config, budget=budget)
    chief = ScriptedClient([call("clerk", task="Count."), answer("8")])
    return Agent(chief, [below.as_tool("clerk", "Counts.")], config=config, budget=main, home=True)


async def test_a_sub_agent_with_a_budget_pays_for_its_own_keys_too(home: Path) -> None:
    result = await team_of({"clerks": "1 USD", "team": "1 USD"}, main={"team": "1 USD"}).run("How many?")
    assert result.answer == "8"
    spent = spent_in(home)
    assert {key: amount.requests for key, amount in spent.items()} == {"clerks": 2, "team": 4}
    assert spent["clerks"].usd < spent["team"].usd
    by_key = {total.group["key"]: total.usage.requests for total in usage_totals(by=["key"])}
    assert by_key == {"clerks": 2, "team": 4}
    replayed, departure = await replay_run(team_of({"clerks": "1 USD"}).plan(), result.run_id, rows_of(home, result))
    assert (replayed.answer, departure) == ("8", "")


def rows_of(home: Path, result: Any) -> list[Any]:
    return list(open_store(home).rows(result.run_id))


async def test_a_sub_agent_that_reaches_its_budget_reports_so_and_its_caller_continues(home: Path) -> None:
    result = await team_of({"clerks": "1 requests"}).run("How many?")
    assert (result.answer, result.stop_reason) == ("8", "answered")
    assert {key: amount.requests for key, amount in spent_in(home).items()} == {"clerks": 1}
    (ended,) = [row.event for row in rows_of(home, result) if isinstance(row.event, AgentEnded)]
    assert ended.status == "budget"
    settings = {"agent": {"sub_agents": {"clerk": {"description": "Counts.", "budget": {"clerks": "1 requests"}}}}}
    agent = Agent(ScriptedClient([call("clerk", task="Go."), answer("8")]), config=settings, home=True)
    assert (await agent.run("How many?")).answer == "8", "the sub-agent of settings has no room any more"
    assert spent_in(home)["clerks"].requests == 1


KILLED = """
import asyncio, json, os, signal, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
home = Path(os.environ["CLOSEOUT_HOME"])
import test_budgets
from closeout.journal.ledger import close_ledgers, spent_by_day
from closeout.journal.store import close_stores


def child(act):
    pid = os.fork()
    if not pid:
        act()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def team():
    agent = test_budgets.team_of({"clerks": "1 USD"}, main={"team": "1 USD"})
    clients = [agent.plan().client, agent.plan().manager.local_tools[0].plan_of(False).client]
    for client in clients:  # every request that is answered is written down before its reply is known
        complete = client.complete

        async def counted(*args, complete=complete, **options):
            reply = await complete(*args, **options)
            usage = reply.usage
            with open(home / "sent", "a") as file:
                file.write(json.dumps([usage.input_tokens, usage.output_tokens]) + chr(10))
            return reply

        client.complete = counted
    return agent


def run_until(number, run_id):
    seen = 0

    def kill(event):
        nonlocal seen
        seen += type(event).__name__ != "Progress"
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(team().run("How many?", run_id=run_id, listeners=[kill]))


def resume(run_id):
    result = asyncio.run(team().resume(run_id))
    assert result.answer == "8", result


os.environ["CLOSEOUT_HOME"] = str(home / "warm")  # what is imported here is not imported in each child
asyncio.run(team().run("How many?"))
close_stores()
close_ledgers()
os.environ["CLOSEOUT_HOME"] = str(home)
(home / "sent").unlink()
number = 0
while True:
    number += 1
    status = child(lambda: run_until(number, f"run{number}"))
    if not status:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
    found = child(lambda: resume(f"run{number}"))
    assert not found, (number, found)
sent = [json.loads(line) for line in open(home / "sent")]
held = {each.key: each for each in spent_by_day(home)}
print(json.dumps({
    "events": number - 1,
    "sent": len(sent),
    "cost": sum(prompt + 10 * reply for prompt, reply in sent) * 1000,
    "counted": {key: each.spent.requests + each.reserved.requests for key, each in held.items()},
    "usd": {key: each.spent.usd + each.reserved.usd for key, each in held.items()},
}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks a child for each kill point")
def test_killed_at_every_event_a_run_pays_for_all_that_it_sent(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(Path(__file__).parent)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["events"] > 20
    assert found["counted"]["team"] >= found["sent"], "no request that was answered is free"
    assert found["cost"] <= found["usd"]["team"] <= NANO
    assert 0 < found["usd"]["clerks"] < found["usd"]["team"]


async def test_map_and_sessions_pay_and_a_resumed_run_keeps_its_keys(home: Path) -> None:
    agent = agent_of([answer("1")])
    tasks = [{"task": f"Task {number}", "budget": {f"user:{number}": "1 USD/day"}} for number in range(3)]
    assert len([result async for result in agent.map(tasks, key="sweep", budget={"all": "9 USD"})]) == 3
    found = spent_in(home)
    assert found.keys() == {"user:0", "user:1", "user:2"}, "a task's own argument replaces that of all"
    await agent.session("ann").run("Hello", budget={"user:ann": "1 USD/day"})
    run_id = await agent.submit("Later", budget={"user:bob": "1 USD/day"})
    await agent.resume(run_id)
    assert {"user:ann", "user:bob"} < spent_in(home).keys()


async def test_what_a_spent_budget_left_of_a_map_is_done_when_there_is_room_again(
    home: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_ledger(home), "clock", clock)
    agent = agent_of(lambda view: answer("1"), budget={"sweep": "2 requests/day"})
    tasks = [f"Task {number}" for number in range(4)]

    async def stops(**options: Any) -> list[str]:
        return sorted([result.stop_reason async for result in agent.map(tasks, key="night", limit=1, **options)])

    assert await stops() == ["answered", "answered", "budget", "budget"]
    clock.now += 86_400
    assert await stops(retry_failed=False) == ["answered", "answered", "budget", "budget"]
    assert await stops() == ["answered"] * 4


async def test_a_cancelled_request_counts_at_its_largest_cost(home: Path) -> None:
    started = asyncio.Event()

    def hang(view: RequestView) -> Any:
        started.set()
        return answer("1")

    async with serve_script(hang, misbehave=[always("hang")]) as server:
        agent = Agent(
            "openai:m",
            base_url=server.base_url,
            config={"llm": {"prices": PRICE, "max_tokens": 1000}},
            budget={"team": "1 USD"},
        )
        running = asyncio.ensure_future(agent.run("How many?"))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert spent_in(home)["team"].usd > 1000 * 10 * NANO // 10**6
    (total,) = usage_totals(by=["key"])
    assert (total.group, total.usage.requests) == ({"key": "team"}, 1)
    assert total.usage.input_tokens > 0, "the server has read the prompt"


@pytest.mark.parametrize(("fault", "lost"), [("dropped", 1), ("rate_limited", 0)])
async def test_an_attempt_that_may_have_cost_something_is_paid_and_reserved_again(
    home: Path, fault: str, lost: int
) -> None:
    client = {"retry": RetryPolicy(first_wait=0.001), "prices": PRICE, "max_tokens": 1000}
    async with serve_script([answer("42")], misbehave=[Misbehaviour(fault, at=1)]) as server:
        model = OpenAIClient("m", server.base_url, "none", **client)
        result = await Agent(model, budget={"team": "1 USD/day"}).run("How many?")
        spent = spent_in(home)["team"]
        assert result.answer == "42"
        assert (spent.requests, spent.usd > 1000 * 10 * NANO // 10**6) == (1 + lost, bool(lost))
    async with serve_script([answer("42")], misbehave=[Misbehaviour(fault, at=1)]) as server:
        model = OpenAIClient("m", server.base_url, "none", **client)
        result = await Agent(model, budget={"one": "1 requests"}).run("How many?")
        assert result.stop_reason == ("budget" if lost else "answered")


async def test_a_replay_touches_no_budget(home: Path) -> None:
    agent = agent_of([answer("1")], budget={"team": "2 requests"})
    first = await agent.run("How many?")
    before = spent_in(home)
    store = agent.store()
    assert store is not None
    await replay_run(agent.plan(), first.run_id, store.read(first.run_id).rows)
    assert spent_in(home) == before


def test_a_run_without_a_budget_loads_and_writes_nothing(home: Path) -> None:
    script = (
        "import sys; from closeout import Agent; from closeout.testing import ScriptedClient, answer\n"
        "print(Agent(ScriptedClient([answer('1')])).run_sync('How many?').answer)\n"
        "print([name for name in sys.modules if 'ledger' in name or 'reservations' in name or 'budget_limits' in name])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["1", "[]"]
    assert not list(home.glob("budgets*"))


# ------------------------------------------------------------------------------------------------ totals

# The `usage` objects of the vendors' guides to prompt caching and reasoning.
OPENAI_USAGE = [
    {
        "prompt_tokens": 2006,
        "completion_tokens": 300,
        "total_tokens": 2306,
        "prompt_tokens_details": {"cached_tokens": 1920},
        "completion_tokens_details": {"reasoning_tokens": 0},
    },
    {
        "prompt_tokens": 75,
        "completion_tokens": 1186,
        "total_tokens": 1261,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 1024},
    },
]
ANTHROPIC_USAGE = [
    {"input_tokens": 21, "cache_creation_input_tokens": 188_086, "cache_read_input_tokens": 0, "output_tokens": 393},
    {"input_tokens": 21, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 188_086, "output_tokens": 393},
]


def anthropic_reply(usage: dict[str, int]) -> bytes:
    body = {"type": "message", "role": "assistant", "model": "claude-sonnet-5", "stop_reason": "end_turn"}
    return http({**body, "content": [{"type": "text", "text": "42"}], "usage": usage})


async def test_cached_and_reasoning_tokens_are_charged_as_the_vendors_document(home: Path) -> None:
    prices = {"gpt-5": [1.25, 10.0, 0.125], "claude-sonnet-5": [3.0, 15.0, 0.3, 3.75]}
    config = {"llm": {"prices": prices, "max_tokens": 2000}}
    budget = {"team": "9 USD/day"}
    async with raw_server(
        *(http({**chat("42"), "model": "gpt-5", "usage": usage}) for usage in OPENAI_USAGE)
    ) as openai:
        agent = Agent("openai:gpt-5", base_url=f"{openai.url}/v1", config=config, budget=budget, name="a")
        await agent.run_many(["How many?"] * 2)
    async with raw_server(*map(anthropic_reply, ANTHROPIC_USAGE)) as anthropic:
        agent = Agent("anthropic:claude-sonnet-5", base_url=anthropic.url, config=config, budget=budget, name="b")
        await agent.run_many(["How many?"] * 2)
    cost_a = (86 + 75) * 1.25 + 1920 * 0.125 + (300 + 1186) * 10  # reasoning is part of the output
    cost_b = 2 * 21 * 3 + 188_086 * (3.75 + 0.3) + 2 * 393 * 15
    store, kept = open_store(home), usage_totals(by=GROUPS)
    store.transact(lambda db: db.execute("DELETE FROM usage"))  # as an older version left its runs
    store.transact(lambda db: db.execute("UPDATE runs SET counted=NULL"))
    assert usage_totals(by=GROUPS) == kept
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "rows", None)  # they are not read again
        assert usage_totals(by=GROUPS) == kept
    first, second = usage_totals(by=["agent", "model", "key"])
    assert first.group == {"agent": "a", "model": "openai:gpt-5", "key": "team"}, "as `closeout runs` names it"
    read = first.usage
    assert (read.input_tokens, read.output_tokens, read.cache_read_tokens) == (2006 + 75, 300 + 1186, 1920)
    assert read.cost_usd == pytest.approx(cost_a / 1e6)
    assert second.group == {"agent": "b", "model": "anthropic:claude-sonnet-5", "key": "team"}
    assert second.usage.input_tokens == 2 * (21 + 188_086)
    assert second.usage.cost_usd == pytest.approx(cost_b / 1e6)
    assert spent_in(home)["team"].usd == pytest.approx((cost_a + cost_b) * NANO / 1e6, abs=10)
    (today,) = usage_totals(by=["day"])
    assert usage_totals(by=["day"], since=today.group["day"]) == [today]
    assert usage_totals(until="2001-01-01") == []
    with pytest.raises(UsageError, match="Choose from day, key, user, model, agent"):
        usage_totals(by=["team"])


async def test_the_usage_of_a_run_is_counted_once_while_it_continues_and_not_after_its_deletion(any_home: Home) -> None:
    def requests() -> list[int]:
        return [total.usage.requests for total in usage_totals(any_home, by=["agent"])]

    @tool(approval="always")
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent(ScriptedClient([call("pay"), answer("done")]), [pay], home=any_home, name="clerk")
    waiting = await agent.run("Pay.")
    store = open_store(any_home)
    assert requests() == [1]
    journal = Journal.reopen(store, waiting.run_id)
    journal.append(ModelReplied("main", 9, "", usage={"requests": 1, "input_tokens": 5}))
    journal.flush()
    assert requests() == [2]
    journal.abandon()  # its process died
    assert requests() == [2]
    await agent.resume(waiting.run_id, decisions={each.id: True for each in waiting.waiting})
    assert requests() == [3]
    store.delete_runs([waiting.run_id])
    assert requests() == []


def test_the_command_shows_usage_and_budgets() -> None:
    used = (
        agent_of([answer("1")], home=True, budget={"user:ann": "1 USD/day"}, name="clerk").run_sync("How many?").usage
    )
    (found,) = here("runs", "usage", "--by", "agent,key", "--json").json
    assert (found["agent"], found["key"], found["input_tokens"]) == ("clerk", "user:ann", used.input_tokens)
    (kept,) = here("runs", "usage", "--budgets", "--json").json
    assert (kept["key"], kept["tokens"], kept["reserved_usd"]) == ("user:ann", used.total_tokens, 0)
    assert "$0.0001\n" in here("runs", "usage").out
    Agent(ScriptedClient([answer("1")]), home=True).run_sync("And how many unpriced?")
    assert "$0.0001 + 1 unpriced" in here("runs", "usage").out
    assert "user:ann" in here("runs", "usage", "--budgets").out


async def test_a_served_agent_limits_each_user_that_requests_name(home: Path) -> None:
    agent = agent_of([answer("42")], home=True)
    asked = {"model": "agent", "messages": [{"role": "user", "content": "How many?"}]}
    async with serving(agent, user_budget="1 requests/day") as served:
        users: list[dict[str, Any]] = [{"user": "ann"}, {"user": "ann"}, {"safety_identifier": "bob"}, {}]
        statuses = []
        for user in users:
            async with served.http.post(f"{served.base_url}/chat/completions", json={**asked, **user}) as response:
                statuses.append(response.status)
                await response.read()
        assert statuses == [200, 429, 200, 200]
        async with served.http.post(f"{served.base_url}/chat/completions", json={**asked, "user": 5}) as response:
            assert response.status == 400
        for code in (None, "rate_limit_exceeded"):
            body = {"input": "How many?", "user": "cy"}
            async with served.http.post(f"{served.base_url}/responses", json=body) as response:
                found = await response.json()
            assert (found["incomplete_details"], (found["error"] or {}).get("code")) == (None, code)
    assert {key: spent.requests for key, spent in spent_in(home).items()} == {
        "user:ann": 1,
        "user:bob": 1,
        "user:cy": 1,
        "user:unnamed": 1,
    }
    async with serving(agent, keys=["one", "two"], user_budget="1 requests/day") as served:
        for key in ("one", "two", "two"):
            headers = {"Authorization": f"Bearer {key}"}
            async with served.http.post(f"{served.base_url}/chat/completions", json=asked, headers=headers) as response:
                await response.read()
    assert [spent.requests for key, spent in spent_in(home).items() if key.startswith("user:key-")] == [1, 1]
    await agent.run("How many?", user="安")  # without a budget
    assert "安" in {total.group["user"] for total in usage_totals(home, by=["user"])}
    with pytest.raises(UsageError, match="5 EUR"):
        AgentHost(agent, user_budget="5 EUR")


async def test_an_evaluation_pays_too(home: Path) -> None:
    agent = agent_of([answer("42")], home=True, budget={"sweep": "2 requests"})
    tasks = [{"id": n, "question": f"How many {n}?", "answer": "42"} for n in range(4)]
    report = await evaluate(agent, tasks)
    assert spent_in(home)["sweep"].requests == 2
    finished = [trial for trial in report.trials if trial.outcome is not None]
    assert [report.value_of(trial) for trial in finished] == [1, 1], "a trial without budget is not wrong"
    assert (
        report.stopped
        == "a budget: The budget of sweep (2 requests) has no room for another request: 2 requests are used."
    )
    more = agent_of([answer("42")], home=True, budget={"sweep": "9 requests"})
    report = await evaluate(more, tasks)
    assert (report.stopped, sum(map(report.value_of, report.trials))) == ("", 4), (
        "the rest continues when there is room"
    )
    assert spent_in(home)["sweep"].requests == 4


async def test_a_ledger_that_another_process_holds_does_not_stop_the_event_loop(home: Path) -> None:
    agent = agent_of([answer("42")] * 2, home=True, budget={"team": "9 USD/day"})
    await agent.run("How many?")
    with closing(sqlite3.connect(home / LEDGER_NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        run = asyncio.ensure_future(agent.run("And now?"))
        await asyncio.sleep(0.1)  # the loop would wait for the file, and then fail
        assert not run.done()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        other.execute("ROLLBACK")
    await asyncio.to_thread(open_ledger(home).thread.submit(lambda: None).result)
    assert spent_in(home)["team"].requests == 1, "the request that was not sent costs nothing"


def test_killed_processes_never_exceed_a_budget(any_home: Home) -> None:
    bench = Path(__file__).parents[1] / "bench" / "budgets.py"
    # Those that continue the runs of the dead ones wait for their leases. A process that loses a run is started again.
    home = replace(any_home, lease=2.0).address if isinstance(any_home, DatabaseHome) else str(any_home)
    small = ["--runs", "40", "--processes", "2", "--kills", "2", "--cap", "0.15", "--home", home]
    done = subprocess.run([sys.executable, str(bench), *small], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("ok: 40 runs, 2 processes, 2 kills"), done.stdout
