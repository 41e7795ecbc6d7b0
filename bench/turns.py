"""CPU of one turn of an agent with one tool, journal on, beside a bare aiohttp loop that makes the same requests.

The scripted HTTP server runs in another process, so that only the client's CPU counts. Rounds of both are interleaved;
each round gives a ratio, and the median of the ratios counts, so that whatever else the machine does at a moment weighs
on both alike.

The tool is read-only and runs in the event loop. At 50 turns two others are measured as well: the same function
declared read-only, which runs in a thread, and with no declaration, as most users write tools: then its intent and its
outcome are also synced to disk, so that no call is made twice.

`--long` runs 1,000 turns instead: what does a turn cost beside one of 100 turns, and how much memory does it keep?

    python bench/turns.py [--quick] [--long]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import aiohttp

from _bare import QUESTION, bare_run, found, served
from closeout import Agent, tool

LENGTHS = (10, 50, 200)
LONG = 1000
KINDS_AT = 50  # turns


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


TOOLS = {
    "read-only, inline": lookup,
    "read-only, in a thread": tool(name="lookup", read_only=True)(plainly),
    "undeclared": tool(name="lookup")(plainly),
}


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


async def measure(
    length: int, url: str, rounds: int, home: Path, with_tool: Any = lookup
) -> tuple[float, float, float]:
    """Milliseconds of CPU a turn, the bare loop and the agent; and the median of the rounds' ratios."""
    spent: tuple[list[float], list[float]] = ([], [])
    agent = agent_for(url, home, length, with_tool)
    async with aiohttp.ClientSession() as session:
        for number in range(rounds + 1):
            for which in (0, 1):
                question = f"{QUESTION} ({which}-{number})"
                began = time.process_time()
                run = agent_turns(agent, question) if which else bare_run(session, url, "k", question)
                turns = await run
                assert turns == length, (turns, length)
                if number:  # the first round warms up
                    spent[which].append((time.process_time() - began) * 1000 / turns)
    return median(spent[0]), median(spent[1]), median(agent / bare for bare, agent in zip(*spent, strict=True))


def short_runs(quick: bool) -> None:
    shares = []
    for length in LENGTHS:
        rounds = max(9, (500 if quick else 2000) // length)
        with served(length - 1, by="question") as url, tempfile.TemporaryDirectory() as home:
            bare, agent, ratio = asyncio.run(measure(length, url, rounds, Path(home)))
        shares.append((length, ratio, agent))
        print(f"{length:>4} turns: bare loop {bare:.3f} ms CPU a turn, Agent {agent:.3f} ms, {ratio:.2f} times")
    kinds = []
    for kind, with_tool in TOOLS.items():
        rounds = max(9, (500 if quick else 2000) // KINDS_AT)
        with served(KINDS_AT - 1, by="question") as url, tempfile.TemporaryDirectory() as home:
            _, agent, ratio = asyncio.run(measure(KINDS_AT, url, rounds, Path(home), with_tool))
        kinds.append(f"{kind} {ratio:.2f}")
        print(f"{KINDS_AT:>4} turns, tool {kind}: Agent {agent:.3f} ms, {ratio:.2f} times")
    summary = ", ".join(f"{ratio:.2f} at {length}" for length, ratio, _ in shares)
    flat = shares[-1][2] / shares[0][2]
    print(
        f"bench turns: CPU a turn, times the bare aiohttp loop: {summary}; "
        f"a turn at 200 costs {flat:.2f} of one at 10; "
        f"by kind of tool at {KINDS_AT}: {', '.join(kinds)}"
    )


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
            bare, agent, _ = asyncio.run(measure(length, url, 5, Path(home)))
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
    options = parser.parse_args()
    if options.long:
        long_run()
    else:
        short_runs(options.quick)


if __name__ == "__main__":
    main()
