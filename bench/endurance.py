"""Kills, write faults, power cuts, hostile replies, forged calls, growth and cancellation, with large budgets.

The rigs are those of the tests (tests/harness). The oracle of disk.py: every payment is made exactly once, every call
has one outcome, the usage of the result equals the record's, the record is undamaged. Also measured: resume time and
the price of durability.

    python bench/endurance.py [--kills 1000] [--cuts 500] [--every 1] [--events 100000] [--replies 10000]
        [--seconds 1800] [--seed 1]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "harness"))

import disk
import rigs

from closeout import Agent, tool
from closeout.journal.store import close_stores, open_store
from closeout.messages import ModelReply, ToolCall, Usage
from closeout.models.base import BaseClient


class Endless(BaseClient):
    """A model that makes one call after the other."""

    name = "endless"

    def __init__(self) -> None:
        self.turns = 0

    async def complete(self, request: Any, *, on_delta: Any = None, on_retry: Any = None) -> ModelReply:
        self.turns += 1
        usage = Usage(100, 5, requests=1)
        if request.tool_choice == "none":
            return ModelReply("\\boxed{done}", usage=usage)
        text = f'{{"key":"k{self.turns}"}}'
        call = ToolCall("look", text, f"c{self.turns}", text=text)
        return ModelReply("", tool_calls=(call,), usage=usage)


def agent(home: Path, turns: int, *, read_only: bool) -> Agent:
    @tool(read_only=read_only, inline=True)
    def look(key: str) -> str:
        """Look up a key."""
        return f"about {key}"

    return Agent(Endless(), [look], home=home, max_turns=turns, keep_tool_result=5)


def write_faults(folder: Path, library: Path, every: int, until: float) -> None:
    writes = disk.count_writes(folder, library)
    tried, wrong = 0, []
    for fault in disk.FAULTS:
        for at in range(1, writes + 1, every):
            if time.monotonic() > until:
                break
            there = folder / f"{fault}{at}"
            wrong += [(fault, at, each) for each in disk.write_fault(there, library, fault, at)]
            tried += 1
            shutil.rmtree(there)
    print(f"write faults: {tried} of {writes} writes x {len(disk.FAULTS)} faults, {len(wrong)} violations {wrong[:3]}")


def power_cuts(folder: Path, library: Path, cuts: int, seed: int, until: float) -> None:
    tried, wrong = 0, []
    for at, found in disk.power_cuts(folder, library, cuts, seed):
        tried += 1
        wrong += [(at, each) for each in found]
        if time.monotonic() > until:
            break
    print(f"power cuts: {tried} rebuilt homes, {len(wrong)} violations {wrong[:3]}")


def kill_chains(folder: Path, kills: int, seed: int, until: float) -> None:
    hits, chains, wrong, chance = 0, 0, [], random.Random(seed)
    while hits < kills and time.monotonic() < until:
        there = folder / f"chain{chains}"
        look = disk.look_around if chains % 10 == 0 else None
        found, problems = disk.kill_chain(there, chance.randrange(2**32), 4, look)
        hits, chains = hits + found, chains + 1
        wrong += [(chains, each) for each in problems]
        shutil.rmtree(there)
    print(f"kill chains: {hits} kills in {chains} chains, {len(wrong)} violations {wrong[:3]}")


def resuming(folder: Path, events: int) -> None:
    for share in (16, 4, 1):
        turns = events // share // 5
        home = folder / f"resume{share}"
        asyncio.run(agent(home, turns, read_only=True).run("What?", run_id="run"))
        count = sum(1 for _ in open_store(home).rows("run"))
        began = time.process_time()
        asyncio.run(agent(home, turns, read_only=True).resume("run"))
        spent = time.process_time() - began
        print(f"resume: {count} events in {spent:.1f} s of CPU, {spent / count * 1e6:.0f} microseconds an event")
        close_stores()


def durability(folder: Path) -> None:
    """A turn whose call must not be repeated beside one whose call may be: CPU and time."""
    for read_only in (True, False):
        cpu, wall = [], []
        for number in range(6):
            began, at = time.process_time(), time.perf_counter()
            asyncio.run(agent(folder / "durable", 100, read_only=read_only).run("What?"))
            if number:
                cpu.append((time.process_time() - began) * 10)
                wall.append((time.perf_counter() - at) * 10)
        rule = "may be repeated" if read_only else "must not be repeated (two synced commits)"
        print(f"a turn with a call that {rule}: {median(cpu):.2f} ms of CPU, {median(wall):.2f} ms")
    close_stores()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--cuts", type=int, default=500)
    parser.add_argument("--every", type=int, default=1, help="try every n-th write")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--replies", type=int, default=10_000, help="hostile runs, and cells of the forgery matrix")
    parser.add_argument("--seconds", type=float, default=1800, help="of each rig at most")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        durability(folder)
        if options.events:
            resuming(folder, options.events)
        library = disk.build(folder)
        for name in ("faults", "cuts", "chains"):
            (folder / name).mkdir()
        if library is None:
            print("write faults and power cuts: skipped, they need Linux and a C compiler")
        else:
            write_faults(folder / "faults", library, options.every, time.monotonic() + options.seconds)
            power_cuts(folder / "cuts", library, options.cuts, options.seed, time.monotonic() + options.seconds)
        kill_chains(folder / "chains", options.kills, options.seed, time.monotonic() + options.seconds)
        rigs.run_all(folder, replies=options.replies, seconds=options.seconds, seed=options.seed)


if __name__ == "__main__":
    main()
