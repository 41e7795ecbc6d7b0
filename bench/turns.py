"""CPU of one turn of an agent with one tool, journal on, beside a bare aiohttp loop that makes the same requests.

The scripted HTTP server runs in another process, so that only the client's CPU counts. Rounds of both are interleaved;
each round gives a ratio, and the median of the ratios counts, so that whatever else the machine does at a moment weighs
on both alike.

The tool is read-only and runs in the event loop, or has no declaration, as most users write tools: then it runs in a
thread, its intent is synced to disk, and its outcome is written before anything follows, so that no call is made twice.
Both are measured with one run, and with 100 and 1,000 at once.

`--long` runs 1,000 turns instead: what does a turn cost beside one of 100 turns, and how much memory does it keep?

`--calls` counts the function calls of a turn, which is the same on every machine and at any load, and fails on the
version of Python that it was recorded on if they are more than 5 % above the share of the bare loop's.

`--rooms` says which part of the code takes what of a turn, by a profile.

The floor beside the figures is the bare loop with what a run cannot do without: two commits of the call to SQLite, one
of them synced, and a thread for the tool.

    python bench/turns.py [--quick] [--long] [--calls] [--rooms]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import sqlite3
import sys
import tempfile
import time
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import aiohttp

from _bare import QUESTION, bare_run, found, served
from closeout import Agent, tool
from closeout.journal import store
from closeout.tools.threads import run_in_thread

LENGTHS = (10, 50, 200)
LONG = 1000
CROWDS = {1: 50, 100: 20, 1000: 10}  # runs at once, and the turns of each
CALLS = {"read-only": 4.2, "undeclared": 5.2}  # function calls of a turn, times the bare loop's
RECORDED_ON = (3, 11)  # other versions of Python count otherwise


@tool(read_only=True, inline=True)
def lookup(key: str) -> str:
    """Look up a key.

    Args:
        key: the key
    """
    return found(key)


def plainly(key: str) -> str:
    """Look up a key.

    Args:
        key: the key
    """
    return found(key)


TOOLS = {"read-only": lookup, "undeclared": tool(name="lookup")(plainly)}


def agent_for(url: str, home: Path, turns: int, with_tool: Any = lookup) -> Agent:
    return Agent(
        "openai:scripted",
        [with_tool],
        base_url=url,
        api_key="k",
        dialect="function_call",
        max_turns=turns + 5,
        home=home,
    )


async def agent_turns(agent: Agent, question: str) -> int:
    result = await agent.run(question)
    assert result.status == "answered", result
    return result.usage.requests


async def at_once(runs: int, length: int, run: Callable[[str], Awaitable[int]], name: str) -> tuple[float, float]:
    """Milliseconds of CPU a turn, and turns a second, of so many runs."""
    began, cpu = time.perf_counter(), time.process_time()
    turns = await asyncio.gather(*(run(f"{QUESTION} ({name}-{number})") for number in range(runs)))
    assert set(turns) == {length}, (turns, length)
    total = runs * length
    return (time.process_time() - cpu) * 1000 / total, total / (time.perf_counter() - began)


async def measure(
    length: int, url: str, rounds: int, home: Path, with_tool: Any = lookup, runs: int = 1
) -> tuple[float, float, float, float]:
    """Milliseconds of CPU a turn, the bare loop and the agent; the medians of the rounds' ratios of CPU and speed."""
    spent: list[tuple[float, float, float, float]] = []
    agent = agent_for(url, home, length, with_tool)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for number in range(rounds + 1):
            bare = await at_once(runs, length, partial(bare_run, session, url, "k"), f"bare-{number}")
            own = await at_once(runs, length, partial(agent_turns, agent), f"agent-{number}")
            if number:  # the first round warms up
                spent.append((bare[0], own[0], own[0] / bare[0], own[1] / bare[1]))
    bare_ms, agent_ms, ratio, speed = (median(each) for each in zip(*spent, strict=True))
    return bare_ms, agent_ms, ratio, speed


def measured(length: int, rounds: int, with_tool: Any = lookup, runs: int = 1) -> tuple[float, float, float, float]:
    with served(length - 1, by="question") as url, tempfile.TemporaryDirectory() as home:
        return asyncio.run(measure(length, url, rounds, Path(home), with_tool, runs))


class Recorded:
    """Calls the tool as little as possible above the bare loop: in a thread, between two commits, the first synced."""

    def __init__(self, home: Path) -> None:
        self._db = sqlite3.connect(home / "floor.sqlite3", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("CREATE TABLE events (place INTEGER PRIMARY KEY, body BLOB)")

    def _commit(self, sync: str, body: str) -> None:
        self._db.execute(f"PRAGMA synchronous={sync}")
        self._db.execute("INSERT INTO events (body) VALUES (?)", (body,))

    async def __call__(self, key: str) -> str:
        self._commit("FULL", key * 100)  # about as long as the events of a call
        text: str = await run_in_thread(partial(found, key))
        self._commit("NORMAL", text * 20)
        return text


async def floor(length: int, url: str, rounds: int, home: Path) -> tuple[float, float]:
    """Milliseconds of CPU a turn of the bare loop that records its calls, and the median of the ratios."""
    spent = []
    call = Recorded(home)
    async with aiohttp.ClientSession() as session:
        for number in range(rounds + 1):
            bare, _ = await at_once(1, length, partial(bare_run, session, url, "k"), f"bare-{number}")
            own, _ = await at_once(1, length, partial(bare_run, session, url, "k", call=call), f"floor-{number}")
            if number:
                spent.append((own, own / bare))
    ms, ratio = (median(each) for each in zip(*spent, strict=True))
    return ms, ratio


def short_runs(quick: bool) -> None:
    work = 500 if quick else 2000  # turns of a measurement
    shares, found = [], dict[str, list[str]]()
    for length in LENGTHS:
        bare, agent, ratio, _ = measured(length, max(9, work // length))
        shares.append((length, ratio, agent))
        print(f"{length:>4} turns: bare loop {bare:.3f} ms CPU a turn, Agent {agent:.3f} ms, {ratio:.2f} times")
    with served(49, by="question") as url, tempfile.TemporaryDirectory() as home:
        ms, ratio = asyncio.run(floor(50, url, max(9, work // 50), Path(home)))
    print(f"  50 turns: bare loop with two commits and a thread for the call {ms:.3f} ms CPU a turn, {ratio:.2f} times")
    for runs, length in CROWDS.items():
        for kind, with_tool in TOOLS.items():
            bare, agent, ratio, speed = measured(length, max(1, work // length // runs), with_tool, runs)
            found.setdefault(kind, []).append(f"{ratio:.2f}")
            print(
                f"{runs:>5,} runs of {length} turns, tool {kind}: bare loop {bare:.3f} ms CPU a turn, Agent "
                f"{agent:.3f} ms, {ratio:.2f} times; {speed:.0%} of its turns a second"
            )
    flat = shares[-1][2] / shares[0][2]
    crowds = ", ".join(f"{runs:,}" for runs in CROWDS)
    print(
        f"bench turns: CPU a turn, times the bare aiohttp loop, with {crowds} runs at once: "
        f"{'; '.join(f'tool {kind} ' + ', '.join(ratios) for kind, ratios in found.items())}; "
        f"a turn at 200 costs {flat:.2f} of one at 10"
    )


async def profiled(run: Callable[[str], Awaitable[int]], name: str) -> Any:
    """Return the `pstats.Stats` of a second run: the first one warms up."""
    await run(f"{QUESTION} ({name} warms up)")
    profile = cProfile.Profile()
    profile.enable()
    await run(f"{QUESTION} ({name})")
    profile.disable()
    return pstats.Stats(profile)


async def calls_of_both(length: int, url: str, home: Path, with_tool: Any) -> tuple[float, float]:
    """Function calls of the bare loop and of the agent."""
    async with aiohttp.ClientSession() as session:
        bare = await profiled(partial(bare_run, session, url, "k"), "bare")
        agent = await profiled(partial(agent_turns, agent_for(url, home, length, with_tool)), "agent")
        return bare.total_calls, agent.total_calls


def count_calls() -> None:
    # Who commits, and how often, depends on the speed of the machine.
    store.QUICK_SECONDS, store.COMMIT_SECONDS = float("inf"), 3600.0
    found: dict[str, float] = {}
    for kind, with_tool in TOOLS.items():
        counts = []
        for length in (20, 60):
            with served(length - 1, by="question") as url, tempfile.TemporaryDirectory() as home:
                counts.append(asyncio.run(calls_of_both(length, url, Path(home), with_tool)))
        bare, agent = ((longer - shorter) / 40 for shorter, longer in zip(*counts, strict=True))
        found[kind] = agent / bare
        print(f"tool {kind}: bare loop {bare:.0f} function calls a turn, Agent {agent:.0f}")
    ratios = ", ".join(f"tool {kind} {ratio:.2f}" for kind, ratio in found.items())
    print(f"bench turns --calls: function calls of a turn, times the bare loop's: {ratios}")
    for kind, ratio in found.items():
        if sys.version_info[:2] == RECORDED_ON and ratio > CALLS[kind] * 1.05:
            sys.exit(
                f"A turn with a tool that is {kind} makes {ratio:.2f} times the calls of the bare loop's, over "
                f"5 % more than the {CALLS[kind]:.2f} that are recorded in this file. Make it do less, or record it."
            )


def room_of(place: tuple[str, int, str]) -> str:
    """Return the package whose code a function of a profile is."""
    file, _, name = place
    if "sqlite3" in name:
        return "SQLite"
    for package in ("closeout", "aiohttp", "asyncio"):
        inside = file.rpartition(f"/{package}/")[2]
        if inside != file:
            return f"closeout/{inside.partition('/')[0]}" if package == "closeout" else package
    return "other libraries"


def by_room(length: int = 400) -> None:
    """Print what each room of the house takes of a turn. Built-in functions count where they are called."""
    shares: dict[str, dict[str, float]] = defaultdict(dict)
    for kind, with_tool in TOOLS.items():
        with served(length - 1, by="question") as url, tempfile.TemporaryDirectory() as home:
            run = partial(agent_turns, agent_for(url, Path(home), length, with_tool))
            stats = asyncio.run(profiled(run, kind)).stats
        seconds: Counter[str] = Counter()
        for place, (_, _, own, _, callers) in stats.items():
            if "poll" in place[2]:  # waiting
                continue
            if place[0] == "~" and "sqlite3" not in place[2]:
                for caller, (_, _, of_caller, _) in callers.items():
                    seconds[room_of(caller)] += of_caller
            else:
                seconds[room_of(place)] += own
        for room, own in seconds.items():
            shares[room][kind] = own / seconds.total()
    print(f"{'':24}{''.join(f'{kind:>12}' for kind in TOOLS)}")
    for room, parts in sorted(shares.items(), key=lambda each: -max(each[1].values())):
        print(f"{room:24}{''.join(f'{parts.get(kind, 0):12.1%}' for kind in TOOLS)}")
    outside = sum(parts["read-only"] for room, parts in shares.items() if not room.startswith("closeout/"))
    print(f"bench turns --rooms: libraries take {outside:.0%} of a turn with a read-only tool")


class Watch:
    """Hears of each turn that is accepted: how much memory of Python's was in use by then, in bytes."""

    def __init__(self) -> None:
        self.memory: list[int] = []

    def __call__(self, event: object) -> None:
        if type(event).__name__ == "TurnAccepted":
            self.memory.append(tracemalloc.get_traced_memory()[0])


async def watched(url: str, home: Path) -> list[int]:
    """The memory in use after each turn of one long run."""
    watch, agent = Watch(), agent_for(url, home, LONG)
    await agent.run(f"{QUESTION} (warm)")
    tracemalloc.start()
    result = await agent.run(f"{QUESTION} (long)", listeners=[watch])
    tracemalloc.stop()
    assert result.status == "answered", result
    return watch.memory


def long_run() -> None:
    """A turn of a long run beside one of a run a tenth as long, for both: what differs is the prompt."""
    costs = []
    for length in (LONG // 10, LONG):
        with served(length - 1, by="question") as url, tempfile.TemporaryDirectory() as home:
            bare, agent, *_ = asyncio.run(measure(length, url, 5, Path(home)))
            costs.append((bare, agent))
            if length == LONG:
                memory = asyncio.run(watched(url, Path(home)))
        print(f"{length:>4} turns: bare loop {bare:.3f} ms CPU a turn, Agent {agent:.3f} ms")
    growth = [long / short for short, long in zip(*costs, strict=True)]
    halves = [(memory[end] - memory[end - 400]) / 400 / 1024 for end in (500, len(memory) - 1)]
    print(
        f"bench turns --long: a turn of {LONG} costs {growth[1]:.2f} of one of {LONG // 10} (the bare loop's "
        f"{growth[0]:.2f}); it keeps {halves[0]:.1f} kB up to turn 500 and {halves[1]:.1f} kB after, "
        f"{max(memory) / 2**20:.1f} MB in all"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--rooms", action="store_true")
    options = parser.parse_args()
    if options.long:
        long_run()
    elif options.calls:
        count_calls()
    elif options.rooms:
        by_room()
    else:
        short_runs(options.quick)


if __name__ == "__main__":
    main()
