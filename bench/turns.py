"""CPU of one turn of an agent with one tool, journal on, beside a bare aiohttp loop that makes the same requests.

The scripted HTTP server runs in another process, so that only the client's CPU counts. Rounds of both are interleaved;
of each the least counts, since noise only adds.

    python bench/turns.py [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import aiohttp

from _bare import QUESTION, bare_run, found, served
from closeout import Agent, tool

LENGTHS = (10, 50, 200)


@tool(read_only=True, inline=True)
def lookup(key: str) -> str:
    """Look up a key.

    Args:
        key: the key
    """
    return found(key)


async def agent_turns(url: str, key: str, home: Path, turns: int) -> int:
    agent = Agent(
        "openai:scripted", [lookup], base_url=url, api_key=key, dialect="function_call", max_turns=turns + 5, home=home
    )
    result = await agent.run(QUESTION)
    assert result.status == "answered", result
    return result.usage.requests


async def measure(length: int, url: str, rounds: int, home: Path) -> tuple[float, float]:
    """Milliseconds of CPU a turn: the bare loop, the agent."""
    best = [float("inf"), float("inf")]
    async with aiohttp.ClientSession() as session:
        for number in range(rounds + 1):
            for which in (0, 1):
                key = f"{which}-{number}"
                began = time.process_time()
                run = bare_run(session, url, key) if which == 0 else agent_turns(url, key, home, length)
                turns = await run
                spent = (time.process_time() - began) * 1000 / turns
                assert turns == length, (turns, length)
                if number:  # the first round warms up
                    best[which] = min(best[which], spent)
    return best[0], best[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    shares = []
    for length in LENGTHS:
        rounds = max(3, (300 if quick else 1500) // length)
        with served(length - 1) as url, tempfile.TemporaryDirectory() as home:
            bare, agent = asyncio.run(measure(length, url, rounds, Path(home)))
        shares.append((length, agent / bare, agent))
        print(f"{length:>4} turns: bare loop {bare:.3f} ms CPU a turn, Agent {agent:.3f} ms, {agent / bare:.2f} times")
    summary = ", ".join(f"{ratio:.2f} at {length}" for length, ratio, _ in shares)
    flat = shares[-1][2] / shares[0][2]
    print(
        f"bench turns: CPU a turn, times the bare aiohttp loop: {summary}; a turn at 200 costs {flat:.2f} of one at 10"
    )


if __name__ == "__main__":
    main()
