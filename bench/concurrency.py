"""Many agents at once in one process: is anything lost, how many turns a second, how much memory each.

python bench/concurrency.py [--agents 500] [--turns 20]
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import aiohttp

from _bare import QUESTION, bare_run, served
from closeout import Agent
from turns import lookup


async def bare(url: str, agents: int) -> list[int]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        return await asyncio.gather(*(bare_run(session, url, f"b{n}") for n in range(agents)))


async def ours(url: str, agents: int, turns: int, home: Path) -> list[int]:
    async def one(number: int) -> int:
        agent = Agent("openai:scripted", [lookup], base_url=url, api_key=f"a{number}", dialect="function_call",
                      max_turns=turns + 5, home=home)  # fmt: skip
        result = await agent.run(QUESTION)
        assert result.answer == "42", result
        return result.usage.requests

    return await asyncio.gather(*(one(n) for n in range(agents)))


def child(kind: str, url: str, agents: int, turns: int, home: str) -> None:
    """One measurement in a process of its own: prints requests, wall and CPU seconds, peak kilobytes before, after."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.perf_counter(), time.process_time()
    done = asyncio.run(bare(url, agents) if kind == "bare" else ours(url, agents, turns, Path(home)))
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(sum(done), wall, cpu, before, peak)


def measure(kind: str, agents: int, turns: int) -> tuple[float, float, float, float]:
    with served(turns - 1) as url, tempfile.TemporaryDirectory() as home:
        command = [sys.executable, __file__, "--child", kind, url, home, "--agents", str(agents), "--turns", str(turns)]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    requests, wall, cpu, before, peak = map(float, out)
    assert requests == agents * turns, f"{kind}: {requests} of {agents * turns} requests"
    print(f"{kind:>6}: {requests / wall:7.0f} turns/s, {cpu * 1000 / requests:.3f} ms CPU a turn, "
          f"{(peak - before) / agents:.0f} kB a conversation at the peak")  # fmt: skip
    return requests / wall, cpu / requests, (peak - before) / agents, requests


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--agents", type=int, default=500)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--child", nargs=3)
    options = parser.parse_args()
    if options.child:
        kind, url, home = options.child
        return child(kind, url, options.agents, options.turns, home)
    plain = measure("bare", options.agents, options.turns)
    agent = measure("agent", options.agents, options.turns)
    print(
        f"bench concurrency: {options.agents} agents of {options.turns} turns at once, nothing lost; "
        f"{agent[0]:.0f} turns/s ({agent[0] / plain[0]:.2f} of the bare loop), CPU {agent[1] / plain[1]:.2f} times, "
        f"{agent[2]:.0f} kB an agent at the peak (bare {plain[2]:.0f} kB)"
    )
    return None


if __name__ == "__main__":
    main()
