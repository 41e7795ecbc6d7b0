"""How memory and the CPU of a turn grow: with the turns of a run, with the length of its prompt, and with runs at once.

Each curve is measured in a process of its own. Memory is what the process has resident beyond what it had after a short
run, in MB.

- turns: one run with a scripted model that calls a tool in each turn, the journal on disk; nothing is sent.
- prompt: one run over HTTP whose prompt has everything that came before, beside the bare aiohttp loop (see turns.py).
- crowd: runs of ten turns over HTTP, all at once.

    python bench/memory.py [turns|prompt|crowd] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "harness"))

import aiohttp
from endless import endless_agent

from _bare import QUESTION, bare_run, served
from turns import agent_for, agent_turns, at_once

TURNS = (1000, 2000, 5000, 10_000, 20_000)
PROMPTS = (100, 500, 1000, 2000, 5000)
CROWDS = (10, 100, 300, 1000)
CROWD_TURNS = 10


def resident(*, collects: bool = True) -> float:
    """Return the resident memory of this process in MB."""
    if collects:
        gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def of_turns(points: tuple[int, ...]) -> str:
    """Watch one run at some of its turns."""
    with tempfile.TemporaryDirectory() as home:
        await endless_agent(Path(home), 50).run("warm up")
        base, turn, last, cpu = resident(), 0, 0, time.process_time()
        found = []

        def watch(event: object) -> None:
            nonlocal turn, last, cpu
            if type(event).__name__ != "TurnAccepted":
                return
            turn += 1
            if turn in points:
                spent = (time.process_time() - cpu) * 1000 / (turn - last)
                found.append((turn, resident() - base, spent))
                print(f"  {turn:>6,} turns: {found[-1][1]:7.1f} MB, {spent:.2f} ms CPU a turn since the point before")
                last, cpu = turn, time.process_time()

        await endless_agent(Path(home), points[-1] + 1).run("go", listeners=[watch])
    (few, less, _), (turns, more, _) = found[0], found[-1]
    return f"a run keeps {less * 1024 / few:.1f} kB a turn over {few:,} turns, {more * 1024 / turns:.1f} over {turns:,}"


async def of_prompts(points: tuple[int, ...]) -> str:
    """Run conversations of several lengths."""
    last = ""
    for length in points:
        with served(length - 1, by="question") as url, tempfile.TemporaryDirectory() as home:
            agent = agent_for(url, Path(home), length)
            async with aiohttp.ClientSession() as session:
                if length == points[0]:
                    await agent_turns(agent, f"{QUESTION} (warm)")
                base = resident()
                bare, _ = await at_once(1, length, partial(bare_run, session, url, "k"), "bare")
                own, _ = await at_once(1, length, partial(agent_turns, agent), "agent")
        kept = resident() - base
        last = f"{length:,} turns cost {own / bare:.1f} times the bare loop's"
        print(
            f"  {length:>6,} turns: bare loop {bare:.3f} ms CPU a turn, Agent {own:.3f} ms, {kept:.1f} MB more after it"
        )
    return last


async def of_crowds(points: tuple[int, ...]) -> str:
    """Run crowds of several sizes, and watch the most memory that each needs."""
    last = ""
    for runs in points:
        with served(CROWD_TURNS - 1, by="question") as url, tempfile.TemporaryDirectory() as home:
            agent = agent_for(url, Path(home), CROWD_TURNS)
            await at_once(10, CROWD_TURNS, partial(agent_turns, agent), "warm")
            base, most = resident(), 0.0
            crowd = asyncio.create_task(at_once(runs, CROWD_TURNS, partial(agent_turns, agent), "crowd"))
            while not crowd.done():
                await asyncio.wait([crowd], timeout=0.1)
                most = max(most, resident(collects=False))
            ms, _ = crowd.result()
        print(
            f"  {runs:>6,} runs: at most {most - base:6.1f} MB, {(most - base) * 1024 / runs:5.0f} kB a run; "
            f"{ms:.2f} ms CPU a turn; {resident() - base:.1f} MB more after it"
        )
        last = f"{runs:,} runs at once take {(most - base) * 1024 / runs:.0f} kB each"
    return last


CURVES = {"turns": (of_turns, TURNS), "prompt": (of_prompts, PROMPTS), "crowd": (of_crowds, CROWDS)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curve", nargs="?", choices=list(CURVES))
    parser.add_argument("--quick", action="store_true", help="only the first three points")
    options = parser.parse_args()
    if options.curve:
        measure, points = CURVES[options.curve]
        print(f"{options.curve}: {asyncio.run(measure(points[:3] if options.quick else points))}")
        return
    said = []
    for curve in CURVES:
        command = [sys.executable, __file__, curve, *(["--quick"] if options.quick else [])]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        print(out, end="", flush=True)
        said.append(out.strip().splitlines()[-1].partition(": ")[2])
    print(f"bench memory: {'; '.join(said)}")


if __name__ == "__main__":
    main()
