"""Instances that begin recurring runs and announce ends, and that are killed: each time once, each end at least once.

A simulated clock in a file says when schedules begin runs. Webhooks have delays of a tenth of a second, so that they
are tried again within a test.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from aiohttp import web

from closeout import Agent, Webhook
from closeout.fleet import announcing
from closeout.fleet.chores import list_schedules
from closeout.homes import Home
from closeout.journal.store import open_store
from closeout.testing import ScriptedClient, answer

KEY = b"the key of this harness, 32 byte"
# name, minutes, hours, weekdays (1: Monday), zone
SCHEDULES = (
    ("work", (0,), (7,), (1, 2, 3, 4, 5), "Europe/Berlin"),
    ("night", (15, 30), (2,), (0, 1, 2, 3, 4, 5, 6), "America/New_York"),
    ("island", (45,), (1, 13), (6, 0), "Australia/Lord_Howe"),
)


def wanted(first: date, last: date) -> set[str]:
    """The ids of the runs of all schedules between two days, in UTC, without the library that the code uses."""
    found = set[str]()
    for name, minutes, hours, weekdays, zone in SCHEDULES:
        for days in range(-1, (last - first).days + 2):
            day = first + timedelta(days=days)
            for hour in hours if day.isoweekday() % 7 in weekdays else ():
                for minute in minutes:
                    at = datetime.combine(day, clock_time(hour, minute), ZoneInfo(zone)).astimezone(UTC)
                    while at.astimezone(ZoneInfo(zone)).time() != clock_time(hour, minute):  # left out by the clocks
                        before = at - timedelta(minutes=1)
                        if before.astimezone(ZoneInfo(zone)).utcoffset() != at.astimezone(ZoneInfo(zone)).utcoffset():
                            break
                        at = before
                    if first <= at.date() < last:
                        found.add(f"{name}.{at:%Y%m%dT%H%M%SZ}")
    return found


@dataclass(slots=True)
class HalfReceiver:
    """A receiver that fails half the time: with an error, or after it has taken the notice."""

    seed: int = 1
    received: Counter[str] = field(default_factory=Counter)
    tries: int = 0
    url: str = ""

    @contextmanager
    def listening(self) -> Iterator[HalfReceiver]:
        """Listen in a thread of its own."""
        import threading

        chance, ready = random.Random(self.seed), threading.Event()
        stop: list[Callable[[], object]] = []

        async def receive(request: web.Request) -> web.Response:
            name, at, body = request.headers["webhook-id"], request.headers["webhook-timestamp"], await request.read()
            signed = base64.b64encode(hmac.digest(KEY, f"{name}.{at}.".encode() + body, hashlib.sha256)).decode()
            if request.headers["webhook-signature"] != f"v1,{signed}":
                return web.Response(status=401)
            self.tries += 1
            fails = chance.random() < 0.5
            if not fails or chance.random() < 0.2:  # some are received, and the answer is lost
                self.received[name] += 1
            return web.Response(status=503 if fails else 204)

        async def serve() -> None:
            app, over = web.Application(), asyncio.Event()
            app.router.add_post("/", receive)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
            loop = asyncio.get_running_loop()
            stop.append(lambda: loop.call_soon_threadsafe(over.set))
            ready.set()
            await over.wait()
            await runner.cleanup()

        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        ready.wait()
        try:
            yield self
        finally:
            stop[0]()
            thread.join()


def _agent(home: Home, url: str) -> Agent[Any, Any]:
    announcing.DELAYS = (0.1,) * 60
    announcing.SECONDS = 0.5
    webhook = Webhook(url, base64.b64encode(KEY).decode(), events="ended", allow_private=True) if url else None
    return Agent(ScriptedClient(lambda view: answer("done")), home=home, name="reporter", webhook=webhook)


def instance(home: Home, url: str, clock: Path | None) -> None:
    """Work until killed."""

    logging.getLogger("closeout").setLevel(logging.ERROR)

    async def work() -> None:
        agent = _agent(home, url)
        if clock is None:
            await agent.work(limit=20)
            return
        chores = agent.chores()
        while True:
            await chores.fire(float(await asyncio.to_thread(clock.read_text)))
            await agent.work(until_idle=True)
            await asyncio.sleep(0.01)

    asyncio.run(work())


class Instances:
    """Some instances. `kill` kills one with SIGKILL and starts another one."""

    def __init__(self, count: int, home: Home, url: str, clock: Path | None = None, *, seed: int = 1) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "closeout.run.orchestrator", "closeout.fleet.working"])
        self._start = lambda: context.Process(target=instance, args=(home, url, clock), daemon=True)
        self._chance = random.Random(seed)
        self._processes = [self._start() for _ in range(count)]
        self.kills = 0
        for each in self._processes:
            each.start()

    def kill(self) -> None:
        """Kill one of them and start another one."""
        place = self._chance.randrange(len(self._processes))
        self._processes[place].kill()
        self._processes[place].join()
        self._processes[place] = self._start()
        self._processes[place].start()
        self.kills += 1

    def close(self) -> None:
        """Kill all."""
        for each in self._processes:
            each.kill()
            each.join()


def recurring(
    home: Home, folder: Path, *, first: date, days: int, kill_every: int, seconds: float = 600.0
) -> tuple[set[str], set[str], int]:
    """Let two instances begin the runs of some days. One is killed at some of the times.

    Returns:
        The runs, those that were wanted, and the number of kills.
    """
    store, agent, last = open_store(home), _agent(home, ""), first + timedelta(days=days)
    now, times = datetime.combine(first, clock_time(), UTC), 0
    clock, give_up, chance = folder / "clock", time.monotonic() + seconds, random.Random(1)
    clock.write_text(str(now.timestamp()))
    for name, minutes, hours, weekdays, zone in SCHEDULES:
        every = f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * {','.join(map(str, weekdays))}"
        start = now - timedelta(seconds=1)
        asyncio.run(agent.submit("Report.", run_id=name, every=every, timezone=zone, start_at=start))
    with ExitStack() as stack:
        instances = Instances(2, home, "", clock)
        stack.callback(instances.close)
        while time.monotonic() < give_up:
            at = min(each.next for each in list_schedules(store))
            if at <= now.timestamp() or store.query("SELECT 1 FROM runs WHERE status='running' LIMIT 1"):
                time.sleep(0.005)
                continue
            now, times = datetime.fromtimestamp(at, UTC), times + 1
            if now.date() >= last:
                break
            clock.with_suffix(".new").write_text(str(at))
            clock.with_suffix(".new").replace(clock)
            if times % kill_every == 0:
                time.sleep(chance.uniform(0.0, 0.05))
                instances.kill()
    runs = [each.run_id for each in store.each_run()]
    assert len(runs) == len(set(runs))
    return set(runs), wanted(first, last), instances.kills


def announced(home: Home, *, runs: int, kill_every: int, seconds: float = 600.0) -> tuple[set[str], HalfReceiver, int]:
    """Let two instances execute runs and announce their ends. One is killed after some of the tries.

    Returns:
        The runs, the receiver, and the number of kills.
    """
    store, give_up = open_store(home), time.monotonic() + seconds
    with HalfReceiver().listening() as receiver, ExitStack() as stack:
        agent = _agent(home, receiver.url)

        async def submit() -> set[str]:
            return {await agent.submit(f"Report {n}.", run_id=f"run-{n}") for n in range(runs)}

        names = asyncio.run(submit())
        instances = Instances(2, home, receiver.url)
        stack.callback(instances.close)
        while time.monotonic() < give_up:
            if receiver.tries // kill_every > instances.kills:
                instances.kill()
            time.sleep(0.02)
            open_runs = store.query("SELECT 1 FROM runs WHERE status='running' LIMIT 1")
            if not open_runs and not store.query("SELECT 1 FROM outbox LIMIT 1"):
                break
        return names, receiver, instances.kills
