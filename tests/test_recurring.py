"""Recurring runs: each time of a schedule begins one run, whoever looks, whatever the clocks do."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from cli_process import here
from closeout import Agent, RunContext, Webhook, delete_data, export_data, find_data, tool
from closeout.errors import ConfigError, UsageError
from closeout.fleet.chores import change_schedule, list_schedules, next_times
from closeout.fleet.personal_data import list_persons
from closeout.homes import Home
from closeout.journal.store import open_store
from closeout.testing import ScriptedClient, answer, call
from harness.recurring_runs import announced, recurring
from viewer_pages import Viewer

YEAR = datetime(2027, 1, 1, tzinfo=UTC)


def reporter(home: Home, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedClient(lambda view: answer("done")), home=home, name="reporter", **options)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def local(every: str, zone: str, after: str, count: int) -> list[str]:
    times = islice(next_times(every, zone, at(after).timestamp()), count)
    return [datetime.fromtimestamp(each, UTC).isoformat()[:16] for each in times]


def test_times_that_the_clocks_leave_out_or_repeat() -> None:
    # Europe/Berlin: 02:00 becomes 03:00 on 28 March 2027, 03:00 becomes 02:00 on 31 October.
    before = "2027-03-27T12:00+00:00"
    assert local("30 2 * * *", "Europe/Berlin", before, 2) == ["2027-03-28T01:00", "2027-03-29T00:30"]
    assert local("0,30 2 * * *", "Europe/Berlin", before, 2) == ["2027-03-28T01:00", "2027-03-29T00:00"]
    before = "2027-10-30T12:00+00:00"
    assert local("30 2 * * *", "Europe/Berlin", before, 2) == ["2027-10-31T00:30", "2027-11-01T01:30"]
    # Asked between the two, the second one does not come.
    assert local("30 2 * * *", "Europe/Berlin", "2027-10-31T00:45+00:00", 1) == ["2027-11-01T01:30"]
    # Every half hour is one of real time.
    assert local("*/30 * * * *", "Europe/Berlin", "2027-10-30T23:59+00:00", 5) == [
        "2027-10-31T00:00",
        "2027-10-31T00:30",
        "2027-10-31T01:00",
        "2027-10-31T01:30",
        "2027-10-31T02:00",
    ]
    assert local("0 7 * * 1-5", "Europe/Berlin", "2027-03-26T12:00+00:00", 1) == ["2027-03-29T05:00"]


async def test_two_instances_begin_each_run_once(any_home: Home) -> None:
    agents = [reporter(any_home), reporter(any_home)]
    # New York's clocks change on the 14th at 2:00, Berlin's on the 28th.
    store, now, end = open_store(any_home), at("2027-03-12T00:00+00:00"), at("2027-03-30T00:00+00:00")
    wanted = set[str]()
    for name, every, zone in (("work", "0 7 * * 1-5", "Europe/Berlin"), ("night", "30 2 * * 0", "America/New_York")):
        assert await agents[0].submit("Report.", run_id=name, every=every, timezone=zone, start_at=now) == name
        times = takewhile(lambda each: each < end.timestamp(), next_times(every, zone, now.timestamp()))
        wanted |= {f"{name}.{datetime.fromtimestamp(each, UTC):%Y%m%dT%H%M%SZ}" for each in times}
    while now < end:
        now += timedelta(days=1)
        await asyncio.gather(*(each.chores().fire(now.timestamp()) for each in agents))
        await agents[0].work(until_idle=True)
    runs = [each.run_id for each in store.runs(1000)]
    assert len(runs) == len(wanted) == 15
    assert set(runs) == wanted
    assert {"work.20270326T060000Z", "work.20270329T050000Z", "night.20270314T070000Z"} <= wanted
    assert {each.status for each in store.runs(1000)} == {"answered"}


async def test_missed_times_begin_one_run_which_names_them(any_home: Home) -> None:
    agent = reporter(any_home)
    await agent.submit("Report.", run_id="daily", every="0 7 * * *", start_at=YEAR, origin={"by": "ann"}, user="ann")
    await agent.chores().fire((YEAR + timedelta(days=10)).timestamp())
    await agent.chores().fire((YEAR + timedelta(days=10)).timestamp())
    store = open_store(any_home)
    (run,) = store.runs()
    assert run.run_id == "daily.20270101T070000Z"
    started = store.beginning(run.run_id)
    assert started is not None
    note = {"name": "daily", "time": "2027-01-01T07:00:00+00:00", "missed": 9}
    assert started.user == "ann"
    assert {"by": "ann", "schedule": note}.items() <= started.origin.items()
    (schedule,) = list_schedules(store)
    assert schedule.next == at("2027-01-11T07:00+00:00").timestamp()


async def test_a_run_begins_only_after_the_last_one_has_ended(any_home: Home) -> None:
    @tool(read_only=True)
    async def await_money(context: RunContext) -> str:
        """Wait."""
        return str(await context.wait_for("money"))

    steps = (call("await_money"), answer("done"))
    client = ScriptedClient(lambda view: steps[view.messages[-1]["role"] == "tool"])
    agent = Agent(client, [await_money], home=any_home, name="reporter", dialect="function_call")
    await agent.submit("Report.", run_id="hourly", every="0 * * * *", start_at=YEAR)
    chores, store = agent.chores(), open_store(any_home)
    for hours in range(1, 6):
        await chores.fire((YEAR + timedelta(hours=hours)).timestamp())
        await agent.work(until_idle=True)
    assert [each.run_id for each in store.runs()] == ["hourly.20270101T010000Z"]
    await agent.signal("hourly.20270101T010000Z", "money", 5)
    await agent.work(until_idle=True)
    await chores.fire((YEAR + timedelta(hours=5.5)).timestamp())
    assert [each.run_id for each in store.runs()] == ["hourly.20270101T020000Z", "hourly.20270101T010000Z"]
    started = store.beginning("hourly.20270101T020000Z")
    assert started is not None
    assert started.origin["schedule"]["missed"] == 3


async def test_a_schedule_is_replaced_paused_continued_and_removed(any_home: Home) -> None:
    agent, store = reporter(any_home), open_store(any_home)
    await agent.submit("Report.", run_id="daily", every="0 7 * * *", start_at=YEAR, max_turns=3)
    change_schedule(store, "daily", paused=True)
    later = (YEAR + timedelta(days=1)).timestamp()
    await agent.chores().fire(later)
    await agent.submit("Report more.", run_id="daily", every="0 7 * * *")
    (schedule,) = list_schedules(store)
    assert (schedule.paused, schedule.task["task"]) == (True, "Report more.")
    assert schedule.next == at("2027-01-01T07:00+00:00").timestamp()
    assert store.runs() == []
    change_schedule(store, "daily", paused=False)
    await agent.chores().fire(later)
    assert [each.task for each in store.runs()] == ["Report more."]
    change_schedule(store, "daily", paused=None)
    assert list_schedules(store) == []
    with pytest.raises(UsageError, match="There is no schedule 'daily'"):
        change_schedule(store, "daily", paused=None)


async def test_schedules_of_the_settings_are_kept_and_go_with_them(home: Path) -> None:
    daily = {"task": "Report.", "every": "0 7 * * *", "timezone": "Europe/Berlin"}
    store = open_store(home)
    await reporter(home).submit("By a program.", run_id="own", every="0 7 * * *")
    await reporter(home, config={"schedules": {"daily": daily}}).work(until_idle=True)
    assert [each.name for each in list_schedules(store)] == ["daily", "own"]
    other = Agent(ScriptedClient([]), home=home, name="other", config={"schedules": {"daily": daily}})
    with pytest.raises(ConfigError, match=r"'schedules\.daily': Another agent has a schedule 'daily'"):
        await other.work(until_idle=True)
    await reporter(home).work(until_idle=True)
    assert [each.name for each in list_schedules(store)] == ["own"]


async def test_a_run_that_cannot_begin_is_left_out_and_the_schedule_says_why(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "sales.csv"
    file.write_text("1")
    agent, store = reporter(home), open_store(home)
    await agent.submit("Report.", run_id="daily", every="0 7 * * *", start_at=YEAR, files=[file])
    file.unlink()
    await agent.chores().fire((YEAR + timedelta(days=1)).timestamp())
    (schedule,) = list_schedules(store)
    assert "sales.csv" in schedule.error
    assert store.runs() == []
    file.write_text("2")
    await agent.chores().fire((YEAR + timedelta(days=2)).timestamp())
    (schedule,) = list_schedules(store)
    assert (schedule.error, schedule.last) == ("", "daily.20270102T070000Z")


async def test_the_schedules_of_a_person_are_listed_exported_and_deleted_with_the_person(
    any_home: Home, tmp_path: Path
) -> None:
    for user in ("ann", "bob"):
        await reporter(any_home).submit("Report.", run_id=f"of-{user}", every="0 7 * * *", user=user)
    assert list_persons(any_home) == {"ann": 0, "bob": 0}
    (schedule,) = export_data(tmp_path / "out", "ann", home=any_home).schedules
    assert (schedule.name, schedule.task) == ("of-ann", {"task": "Report.", "user": "ann"})
    (exported,) = json.loads((tmp_path / "out" / "index.json").read_text())["schedules"]
    assert (exported["name"], exported["task"]["task"]) == ("of-ann", "Report.")
    if isinstance(any_home, Path):  # that of the command line
        for command in (["list"], ["delete", "--dry-run"]):
            done = await asyncio.to_thread(here, "data", *command, "--user", "ann")
            assert done.out.startswith("of-ann  0 7 * * * UTC, next ")
            assert done.err.startswith("0 runs, 1 schedule")
        done = await asyncio.to_thread(here, "data", "delete", "--user", "ann")
        assert done.sentence.startswith("data delete would delete 0 runs, 1 schedule. Add --yes")
    delete_data("ann", home=any_home)
    assert [each.name for each in list_schedules(open_store(any_home))] == ["of-bob"]
    assert find_data("ann", home=any_home).schedules == ()


async def test_what_cannot_recur_is_refused(home: Path) -> None:
    agent = reporter(home)
    for options, message in (
        ({"every": "every day"}, "every must be a cron expression, got 'every day'. Write minute"),
        ({"every": "0 25 * * *"}, "is not a cron expression: Bad hour"),
        ({"every": "0 0 31 2 *"}, "is not a cron expression: Bad day-of-month"),
        ({"every": "0 7 * * *", "timezone": "Berlin"}, "There is no time zone 'Berlin'"),
        ({"every": "0 7 * * *", "origin": {"at": YEAR}}, "keeps its arguments as JSON"),
    ):
        with pytest.raises(UsageError, match=message):
            await agent.submit("Report.", **options)  # type: ignore[arg-type]
    assert list_schedules(open_store(home)) == []


async def test_schedules_are_listed_and_changed_on_the_command_line(home: Path) -> None:
    await reporter(home).submit("Report.", run_id="daily", every="0 7 * * *", timezone="Europe/Berlin", start_at=YEAR)
    done = await asyncio.to_thread(here, "runs", "schedules")
    assert "daily  0 7 * * * Europe/Berlin, next 2027-01-01 07:00:00" in done.out  # the time of the schedule's zone
    assert done.out.endswith("reporter: Report.\n")
    for option, paused in (("--pause", True), ("--continue", False)):
        (found,) = (await asyncio.to_thread(here, "runs", "schedules", "daily", option, "--json")).json
        assert (found["paused"], found["task"]["task"]) == (paused, "Report.")
    store = open_store(home)
    store.submit(store.database.db.execute, "UPDATE schedules SET timezone='Mars/Base'").result()  # of a newer machine
    assert "Mars/Base, next 2027-01-01 " in (await asyncio.to_thread(here, "runs", "schedules")).out
    assert "Name one schedule, and one of" in (await asyncio.to_thread(here, "runs", "schedules", "--pause")).sentence
    assert (await asyncio.to_thread(here, "runs", "schedules", "daily", "--remove")).err == "0 schedules.\n"
    done = await asyncio.to_thread(here, "runs", "schedules", "daily", "--remove")
    assert "There is no schedule 'daily'." in done.sentence


async def test_the_viewer_lists_them(client: TestClient, home: Path) -> None:
    await reporter(home).submit("Report.", run_id="daily", every="0 7 * * *", start_at=YEAR)
    found = await (await client.get("/viewer/api/runs")).json()
    (schedule,) = found["schedules"]
    assert (schedule["name"], schedule["next"], schedule["paused"]) == ("daily", 1798786800.0, 0)
    assert found["unsent"] == []
    assert (await client.post("/viewer/api/schedules/daily/pause", json={})).status == 403  # from elsewhere


@pytest.mark.slow
def test_instances_that_are_killed_begin_each_run_once(home: Path, tmp_path: Path) -> None:
    runs, wanted, kills = recurring(home, tmp_path, first=date(2027, 3, 11), days=5, kill_every=5)
    assert (runs, kills >= 3) == (wanted, True)


@pytest.mark.slow
def test_instances_that_are_killed_announce_each_end(home: Path) -> None:
    names, receiver, kills = announced(home, runs=60, kill_every=40)
    assert {name.rpartition(".")[0] for name in receiver.received} == names
    assert (kills >= 2, receiver.tries > 60) == (True, True)


def test_the_page_of_runs_shows_them_and_the_webhooks_that_failed(viewer: Viewer, home: Path) -> None:
    async def prepare() -> str:
        webhook = Webhook("http://127.0.0.1:9/", "c" * 44, events="ended")
        agent = reporter(home, webhook=webhook)
        await agent.submit("Report.", run_id="daily", every="0 7 * * *")
        run = await agent.run("Report.")
        await agent.resume_due()
        return run.run_id

    with ThreadPoolExecutor(1) as pool:  # Playwright's event loop runs in this thread
        run_id = pool.submit(asyncio.run, prepare()).result()
    page = viewer.open()
    page.wait_for_selector(f"text=Webhooks that failed: {run_id}")
    assert "daily (in " in page.inner_text("p.grouped:has-text('Recurring:')")
    page.click("button:text('Pause')")
    page.wait_for_selector("text=daily (paused)")
    assert list_schedules(open_store(home))[0].paused
    page.click("button:text('Continue')")
    page.wait_for_selector("text=daily (in ")
