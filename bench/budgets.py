"""One budget for many processes that are killed: is its cap ever exceeded, and how much of it stays unused?

Processes work through their share of the runs, and are killed with SIGKILL and started again all the time. The scripted
server counts what it really charged: every reply that it began, whoever was there to read it.

    python bench/budgets.py [--runs 2000] [--processes 8] [--kills 50] [--cap 12.0]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from closeout import Agent, tool
from closeout.budget_limits import NANO
from closeout.journal.ledger import spent_by_day
from closeout.messages import Usage
from closeout.models.openai import OpenAIClient
from closeout.models.retry import RetryPolicy
from closeout.testing import RequestView, Turn, always, call, serve_script

PRICES = {"m": [1.0, 10.0]}  # dollars per million tokens
LONGEST_REPLY = 1000  # tokens
AT_ONCE = 4  # runs in a process
SECONDS = 0.1  # that a reply takes
RESTART_SECONDS = 0.3  # between kills


@tool(read_only=True, inline=True)
def look_up(name: str) -> str:
    """Look up a number."""
    return f"{name}: 7"


async def work(url: str, home: str, number: int, runs: int, cap: str) -> None:
    """Do one process's share of the runs; those that ended before are only loaded."""
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


async def measure(runs: int, processes: int, kills: int, cap: str, home: Path) -> str:
    """Return the line of results."""
    charged, began, left = Charged(), time.perf_counter(), kills
    dice = random.Random(7)
    async with serve_script(
        charged, misbehave=[always("slow", seconds=SECONDS)], by="question", record=False
    ) as server:

        async def start(number: int) -> asyncio.subprocess.Process:
            share = [str(number), str(runs // processes), cap]
            arguments = [__file__, "--work", server.base_url, str(home), *share]
            return await asyncio.create_subprocess_exec(sys.executable, *arguments)

        working = {number: await start(number) for number in range(processes)}
        while working:
            await asyncio.sleep(RESTART_SECONDS)
            for number, process in [*working.items()]:
                if process.returncode == 0:
                    del working[number]
                elif process.returncode is not None:
                    working[number] = await start(number)
            alive = [process for process in working.values() if process.returncode is None]
            if left and alive:
                os.kill(dice.choice(alive).pid, signal.SIGKILL)
                left -= 1
    amount = int(float(cap.split()[0]) * NANO)
    counted = sum(each.spent.usd + each.reserved.usd for each in spent_by_day(home))
    reserve = (3000 + LONGEST_REPLY * 10) * NANO // 10**6
    unused = amount - counted
    verdict = "ok" if charged.usd <= counted <= amount and unused <= reserve else "WRONG"
    return (
        f"{verdict}: {runs} runs, {processes} processes, {kills - left} kills, {charged.requests} requests; "
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
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        url, home, number, runs, cap = options.work
        asyncio.run(work(url, home, int(number), int(runs), cap))
        return
    with tempfile.TemporaryDirectory() as folder:
        cap = f"{options.cap} USD/month"
        print(asyncio.run(measure(options.runs, options.processes, options.kills, cap, Path(folder))))


if __name__ == "__main__":
    main()
