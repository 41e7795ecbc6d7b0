"""Many workers on one PostgreSQL: what idle ones ask, how soon a submitted run begins, how soon a dead one's continue.

Needs PostgreSQL's programs and `closeout[postgres]`. The server is the bench's own, on a socket, and waits for the disk
at each commit.

    python bench/workers.py [--workers 20] [--submissions 60] [--backlog 200]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from closeout import Agent, tool
from closeout.homes import as_home
from closeout.journal.events import ModelRequested, RunResumed
from closeout.journal.store import Store, close_stores, open_store
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from postgres_server import PostgresServer

LEASE = 3  # seconds
PLACES = 4  # of each worker
IDLE_SECONDS = 10.0


def make_agent(home: str) -> Agent:
    @tool(read_only=True)
    async def look(number: int, seconds: float) -> str:
        """Look."""
        await asyncio.sleep(seconds)
        return f"seen {number}"

    def turn(view: RequestView) -> Turn:
        done = sum(message.get("role") == "tool" for message in view.messages)
        kind, _, turns = view.question.partition(" ")
        return (
            answer("done")
            if done == int(turns)
            else Turn(calls=[call("look", number=done, seconds=0.0 if kind == "new" else 0.3)])
        )

    return Agent(ScriptedClient(turn), [look], home=home, name="bench", dialect="function_call")


def work(home: str) -> None:
    agent = make_agent(home)
    agent.store()
    print("up", flush=True)
    asyncio.run(agent.work(limit=PLACES))


def first_requests(store: Store, run_ids: list[str]) -> list[float]:
    """Return the seconds from the record of each run to its first request."""
    found = []
    for run_id in run_ids:
        rows = list(store.rows(run_id))
        found.append(next(row.time for row in rows if isinstance(row.event, ModelRequested)) - rows[0].time)
    return found


async def submissions(agent: Agent, store: Store, count: int) -> list[float]:
    """Submit runs one after the other to idle workers, and return how soon each began."""
    run_ids = []
    for _ in range(count):
        run_ids.append(await agent.submit("new 1"))
        await agent.result(run_ids[-1], timeout=60)
        await asyncio.sleep(random.uniform(0.05, 0.2))
    return first_requests(store, run_ids)


async def take_over(agent: Agent, store: Store, workers: list[subprocess.Popen[bytes]], backlog: int) -> list[float]:
    """Kill a quarter of the workers under a backlog, and return how long after the lease each run was continued."""
    run_ids = [await agent.submit("old 8") for _ in range(backlog + len(workers) * PLACES)]
    await asyncio.sleep(0.5)
    victims = workers[: max(1, len(workers) // 4)]
    lost: dict[str, float] = {}
    owners = dict(store.query("SELECT run, owner FROM leases WHERE until > clock_timestamp()"))
    numbers = dict(store.query("SELECT id, run_id FROM runs WHERE status='running'"))
    for victim in victims:
        victim.send_signal(signal.SIGKILL)
    at = time.time()
    for number, owner in owners.items():
        if int(owner.split(":")[1]) in {victim.pid for victim in victims} and number in numbers:
            lost[numbers[number]] = at
    for run_id in run_ids:
        await agent.result(run_id, timeout=300)
    found = []
    for run_id in lost:
        begun = [row.time for row in store.rows(run_id) if isinstance(row.event, RunResumed) and row.time > at]
        found += [begun[0] - at - LEASE] if begun else []  # without one, it ended at the moment of the kill
    return found


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def statements(server: PostgresServer, seconds: float) -> tuple[float, Counter[str]]:
    """Return the statements per second that the server executes, and how often each kind comes."""
    log = server.folder / "log"
    server.execute("ALTER SYSTEM SET log_statement='all'")
    server.execute("SELECT pg_reload_conf()")
    time.sleep(0.5)
    start = log.stat().st_size
    time.sleep(seconds)
    text = log.read_bytes()[start:].decode(errors="replace")
    server.execute("ALTER SYSTEM RESET log_statement")
    server.execute("SELECT pg_reload_conf()")
    found = re.findall(r"LOG:  (?:execute [^:]*|statement): *(.{0,40})", text)
    return len(found) / seconds, Counter(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--submissions", type=int, default=60)
    parser.add_argument("--backlog", type=int, default=200)
    parser.add_argument("--verbose", action="store_true", help="list the statements of idle workers")
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return
    server = PostgresServer(fsync="on")
    workers: list[subprocess.Popen[bytes]] = []
    try:
        server.start()
        home = server.url(schema="bench", lease=LEASE)
        store = open_store(as_home(home))
        agent = make_agent(home)
        command = [sys.executable, __file__, "--work", home]
        workers += [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(options.workers)]
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        time.sleep(12.0)  # idle ones close what they do not need
        ((own,),) = server.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name='closeout' AND pid IN "
            "(SELECT pid FROM pg_stat_activity WHERE backend_type='client backend')"
        )
        asked, kinds = statements(server, IDLE_SECONDS)
        waits = asyncio.run(submissions(agent, store, options.submissions))
        over = asyncio.run(take_over(agent, store, workers, options.backlog))
    finally:
        for worker in workers:
            worker.kill()
        close_stores()
        server.remove()
    if options.verbose:
        for kind, number in kinds.most_common():
            print(f"{number / IDLE_SECONDS:8.1f}/s  {kind}")
    print(
        f"{options.workers} workers, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: idle {own - 2} connections "
        f"and {asked:.0f} statements/s; submit to first request median {statistics.median(waits) * 1000:.0f} ms, 90 % "
        f"{quantile(waits, 0.9) * 1000:.0f} ms ({len(waits)} runs); continued after the lease: median "
        f"{statistics.median(over):.2f} s, 99 % {quantile(over, 0.99):.2f} s ({len(over)} runs of dead workers, "
        f"backlog {options.backlog})"
    )


if __name__ == "__main__":
    main()
