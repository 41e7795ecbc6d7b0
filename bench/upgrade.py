"""Open runs and changed agents: is the verdict of the check what a resume does, and what does a check cost?

Runs of an agent wait for an approval, or are cancelled at a random event. For each kind of change they are checked with
the changed agent, and then resumed with it. A verdict is wrong if a run that should continue is refused, or the other
way round. An effect is wrong if a check makes it, or a resume makes it twice.

    python bench/upgrade.py [--runs 50]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "harness"))

from shop import CHANGES, World

from closeout.errors import ResumeRefused
from closeout.journal.events import Event
from closeout.journal.store import close_store, open_store
from closeout.lab.upgrade import RunCheck


async def open_runs(home: Path, count: int) -> None:
    """Record runs that wait, or that are cancelled at a random event."""
    chance = random.Random(37)
    for number in range(count):
        world = World(home, items=chance.randint(1, 12))
        if number % 2:
            await world.agent().run("What does tea cost? Pay it.", run_id=f"r{number}")
            continue
        left = chance.randint(3, 40)

        def stop(event: object) -> None:
            nonlocal left
            left -= isinstance(event, Event)
            if left == 0:
                running.cancel()  # noqa: B023

        running = asyncio.ensure_future(
            world.agent().run("What does tea cost? Pay it.", run_id=f"r{number}", listeners=[stop])
        )
        await asyncio.gather(running, return_exceptions=True)
    close_store(home)


async def resumed(world: World, change: str, check: RunCheck) -> str:
    """Resume a run with the changed agent. Return what is wrong; empty if nothing is."""
    world.paid.clear()
    agent = CHANGES[change](world)
    try:
        result = await agent.resume(check.run_id)
        if result.waiting:
            result = await agent.resume(check.run_id, decisions={each.id: True for each in result.waiting})
    except ResumeRefused:
        return "" if check.verdict == "stops" else "refused, and should continue"
    if check.verdict == "stops":
        return "continued, and should be refused"
    return "paid twice" if len(world.paid) > 1 else ""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    runs = parser.parse_args().runs
    logging.disable(logging.WARNING)
    wrong: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    seconds = events = effects = 0.0
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        await open_runs(base, runs)
        for change in CHANGES:
            home = Path(folder) / "changed"
            shutil.copytree(base, home)
            world = World(home, items=12)
            agent = CHANGES[change](world)
            ids = [record.run_id for record in open_store(home).each_run() if record.status in ("waiting", "cancelled")]
            events += sum(len(open_store(home).read(each).rows) for each in ids)
            began = time.perf_counter()
            report = await agent.check_runs(ids)
            seconds += time.perf_counter() - began
            effects += len(world.paid)
            for check in report.runs:
                verdicts[check.verdict] += 1
                if problem := await resumed(world, change, check):
                    wrong[f"{change}: {problem}"] += 1
            close_store(home)
            shutil.rmtree(home)
    for problem, count in wrong.most_common():
        print(f"{count:>6}  {problem}")
    total = sum(verdicts.values())
    print(
        f"upgrade: {total} checks of {len(CHANGES)} kinds of change, {sum(wrong.values())} wrong verdicts or effects, "
        f"{effects:.0f} effects during checks; {dict(verdicts)}; {seconds / total * 1e3:.1f} ms a check, "
        f"{seconds / events * 1e5:.1f} ms for 100 events"
    )


if __name__ == "__main__":
    asyncio.run(main())
