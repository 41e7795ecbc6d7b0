"""One budget for many processes that are killed: is its cap ever exceeded, and how much of it stays unused?

Processes work through their share of the runs, and are killed with SIGKILL and started again, evenly over the money
that is spent. The scripted server counts what it really charged: every reply that it began, whoever was there to read
it.

    python bench/budgets.py [--runs 2000] [--processes 8] [--kills 50] [--cap 12.0]
    python bench/budgets.py --postgres [--restarts 5]

With --postgres the home is a database on a server of the bench's own, which waits for the disk at each commit, and is
killed and started again, too. With --home it is another one.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from closeout import Agent, tool
from closeout.budget_limits import NANO
from closeout.homes import as_home
from closeout.journal.ledger import spent_by_day
from closeout.messages import Usage
from closeout.models.openai import OpenAIClient
from closeout.models.retry import RetryPolicy
from closeout.testing import RequestView, Turn, always, call, serve_script
from postgres_server import PostgresServer

PRICES = {"m": [1.0, 10.0]}  # dollars per million tokens
LONGEST_REPLY = 1000  # tokens
AT_ONCE = 4  # runs in a process
SECONDS = 0.1  # that a reply takes
LOOK_SECONDS = 0.05  # between looks at the processes
STARTS = multiprocessing.get_context("forkserver")  # imports once
LEASE = 3  # seconds, in a database


@tool(read_only=True, inline=True)
def look_up(name: str) -> str:
    """Look up a number."""
    return f"{name}: 7"


def work(url: str, home: str, number: int, runs: int, cap: str) -> None:
    """Do one process's share of the runs; those that ended before are only loaded."""
    asyncio.run(_work(url, home, number, runs, cap))


async def _work(url: str, home: str, number: int, runs: int, cap: str) -> None:
    client = OpenAIClient("m", url, "none", prices=PRICES, max_tokens=LONGEST_REPLY, retry=RetryPolicy(retries=0))
    agent = Agent(client, [look_up], home=home, budget={"team": cap})
    tasks = [f"Task {number}.{each}" for each in range(runs)]
    async for _ in agent.map(tasks, key=f"share-{number}", limit=AT_ONCE):
        pass


class Charged:
    """Answers requests and adds up what they cost."""

    def __init__(self) -> None:
        self.usd = 0
        self.requests = 0

    def __call__(self, view: RequestView) -> Any:
        sent = len(str(view.messages)) // 4
        written = random.Random(f"{view.question} {len(view.messages)}").randint(10, 300)
        closing = view.body.get("tool_choice") == "none"
        acts = not closing and len(view.messages) < 6
        self.usd += (sent * 1 + written * 10) * NANO // 10**6
        self.requests += 1
        usage = Usage(sent, written, requests=1)
        if acts:
            return Turn(calls=[call("look_up", name=f"place {len(view.messages)}")], usage=usage)
        return Turn(answer="7", usage=usage)


async def measure(
    runs: int, processes: int, kills: int, cap: str, home: str, *, restart: Callable[[], None], restarts: int
) -> str:
    """Return the line of results."""
    charged, began, killed = Charged(), time.perf_counter(), 0
    amount = int(float(cap.split()[0]) * NANO)
    dice = random.Random(7)
    async with serve_script(
        charged, misbehave=[always("slow", seconds=SECONDS)], by="question", record=False
    ) as server:

        def start(number: int) -> BaseProcess:
            share = server.base_url, home, number, runs // processes, cap
            process = STARTS.Process(target=work, args=share)
            process.start()
            return process

        working = {number: start(number) for number in range(processes)}
        due = {kills * (each + 1) // (restarts + 1) for each in range(restarts)}  # restarts, by the kills before
        while working:
            await asyncio.sleep(LOOK_SECONDS)
            if killed in due:
                due.remove(killed)
                await asyncio.to_thread(restart)
            for number, process in [*working.items()]:
                if process.exitcode == 0:
                    del working[number]
                elif process.exitcode is not None:
                    working[number] = start(number)
            alive = [process for process in working.values() if process.exitcode is None]
            if alive and killed < kills and charged.usd * (kills + 1) > amount * (killed + 1):
                dice.choice(alive).kill()
                killed += 1
    counted = sum(each.spent.usd + each.reserved.usd for each in spent_by_day(as_home(home)))
    reserve = (3000 + LONGEST_REPLY * 10) * NANO // 10**6
    unused = amount - counted
    verdict = "ok" if charged.usd <= counted <= amount and unused <= reserve else "WRONG"
    return (
        f"{verdict}: {runs} runs, {processes} processes, {killed} kills, "
        f"{f'{restarts - len(due)} restarts of the database, ' if restarts else ''}{charged.requests} requests; "
        f"cap {amount / NANO:.4f} USD, charged by the server {charged.usd / NANO:.4f}, counted {counted / NANO:.4f}, "
        f"unused {unused / NANO:.4f} (one request reserves up to {reserve / NANO:.4f}); "
        f"{time.perf_counter() - began:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--cap", type=float, default=12.0, help="US dollars")
    parser.add_argument("--home", help="an address or a folder")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--restarts", type=int, default=0, help="of the database, with --postgres")
    options = parser.parse_args()
    server = PostgresServer(fsync="on") if options.postgres else None

    def restart() -> None:
        assert server is not None, "--restarts needs --postgres"
        server.stop()
        server.start()

    try:
        with tempfile.TemporaryDirectory() as folder:
            home = options.home or folder
            if server is not None:
                server.start()
                home = server.url(lease=LEASE)
            share = options.runs, options.processes, options.kills, f"{options.cap} USD/month", home
            print(asyncio.run(measure(*share, restart=restart, restarts=options.restarts)))
    finally:
        if server is not None:
            server.remove()


if __name__ == "__main__":
    main()
