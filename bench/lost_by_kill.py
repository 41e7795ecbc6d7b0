"""How much of the record does kill -9 lose, with 1, 100 and 1,000 runs at once in the process?

A process begins the runs; the model answers without a pause, so that nothing but the journal waits. Each call of the
tool, which may be repeated, appends its time to a file. The process is killed at a random moment. Calls that are in the
file and not in the record were lost; the age of the oldest is the loss.

    python bench/lost_by_kill.py [--runs 1 100 1000] [--kills 10] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from closeout import Agent, RunContext, tool
from closeout.journal.events import ToolStarted
from closeout.journal.store import close_stores, open_store
from closeout.testing import ScriptedClient, call

LONGEST = 6.0  # Seconds after the first call at which a process is killed at the latest.


async def crowd(home: Path, runs: int) -> None:
    """Execute runs that do not end."""
    log = os.open(home / "calls", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    @tool(read_only=True, repeatable=True)
    async def look(number: int, context: RunContext) -> str:
        """Look at a page."""
        os.write(log, f"{context.run_id} {context.handle} {time.time()}\n".encode())
        await asyncio.sleep(0)
        return f"page {number}"

    agent = Agent(
        ScriptedClient(lambda view: call("look", number=len(view.messages))), [look], home=home, max_turns=1_000_000
    )
    async with asyncio.TaskGroup() as group:
        for number in range(runs):
            group.create_task(agent.run("Look.", run_id=f"r{number}"))


def lost_seconds(home: Path, runs: int, seed: int) -> float:
    """Kill a crowd at a random moment. Returns the age of the oldest call that is not in the record."""
    command = [sys.executable, __file__, "--crowd", str(home), "--runs", str(runs)]
    with subprocess.Popen(command) as process:
        calls = home / "calls"
        while process.poll() is None and not (calls.exists() and calls.stat().st_size):
            time.sleep(0.01)
        time.sleep(random.Random(seed).uniform(0.0, LONGEST))
        process.kill()
        killed = time.time()
    if process.returncode != -signal.SIGKILL:
        raise SystemExit(f"The process ended before it was killed, with exit code {process.returncode}.")
    made: dict[str, dict[str, float]] = {}
    for line in calls.read_text().splitlines():
        run_id, handle, at = line.split()
        made.setdefault(run_id, {})[handle] = float(at)
    store = open_store(home)
    for run in store.each_run():
        for row in store.rows(run.run_id):
            if isinstance(row.event, ToolStarted):
                made.get(run.run_id, {}).pop(row.event.handle, None)
    close_stores()
    return max((killed - at for each in made.values() for at in each.values()), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 100, 1000], help="at once in a process")
    parser.add_argument("--kills", type=int, default=10, help="of each crowd")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--crowd", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.crowd is not None:
        asyncio.run(crowd(options.crowd, options.runs[0]))
        sys.exit("The runs have ended by themselves.")
    figures: dict[int, list[float]] = {}
    for runs in options.runs:
        lost = figures[runs] = []
        for seed in range(options.kills):
            with tempfile.TemporaryDirectory() as home:
                lost.append(lost_seconds(Path(home), runs, seed))
            print(f"{runs:>5,} runs, kill {seed + 1} of {options.kills}: {lost[-1]:.3f} s", file=sys.stderr)
    if options.json:
        print(json.dumps(figures))
        return
    found = "; ".join(f"{runs:,} at once {median(lost):.3f}, {max(lost):.3f}" for runs, lost in figures.items())
    print(f"lost by a kill, median and most in seconds: {found} ({options.kills} kills each)")


if __name__ == "__main__":
    main()
