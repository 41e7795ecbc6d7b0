"""Rounds of many agents in one process over HTTP, with faults, cancellations and resumes; what each round leaves.

A round may leave nothing behind: no task, thread or open file, and no memory that grows from round to round.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from closeout import Agent, tool
from closeout.errors import RunNotFound
from closeout.models.openai import OpenAIClient
from closeout.models.retry import RetryPolicy
from closeout.testing import RequestView, Turn, answer, call, serve_script, sometimes

__all__ = ["Left", "growing", "one_round"]

TURNS = 8
FAULTS = ("server_error", "dropped", "empty_body", "malformed", "truncated", "wrong_dialect", "repeated", "empty")


class Left(NamedTuple):
    """What is there after a round."""

    runs: int
    tasks: int
    threads: int
    files: int
    kilobytes: int


async def one_round(home: Path, runs: int, seed: int) -> tuple[Left, list[str]]:
    """Run so many agents at once. Returns what is left, and what is wrong with the runs."""

    def turn(view: RequestView) -> Turn:
        done = view.text.count("is known")
        return Turn(calls=[call("look", key=f"k{done}")]) if done < TURNS else answer("42")

    async with serve_script(turn, by="question", misbehave=[sometimes(each, 0.02, seed=seed) for each in FAULTS],
                            record=False) as server:  # fmt: skip
        found = await asyncio.gather(*(_one_run(server.base_url, home, f"{seed}-{number}") for number in range(runs)))
    await asyncio.sleep(0)
    gc.collect()
    left = Left(runs, len(asyncio.all_tasks()), threading.active_count(), _open_files(), _kilobytes())
    return left, [each for each in found if each]


async def _one_run(url: str, home: Path, name: str) -> str:
    """Run an agent, every fourth one cancelled and resumed. Returns what is wrong, or nothing."""

    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        return f"{key} is known " + "x" * 2000

    async with OpenAIClient("scripted", url, name, retry=RetryPolicy(first_wait=0.01)) as client:
        return await _result_of(Agent(client, [look], home=home, max_turns=40, stream=True), name)


async def _result_of(agent: Agent[Any, Any], name: str) -> str:
    work = asyncio.create_task(agent.run(f"What is {name}?", run_id=name))
    if name.endswith(("0", "4", "8")):
        await asyncio.sleep(0.02)
        work.cancel()
        await asyncio.wait([work])
        if work.cancelled():
            try:
                result = await agent.resume(name)
            except RunNotFound:
                result = await agent.run(f"What is {name}?", run_id=name)
        else:
            result = work.result()
    else:
        result = await work
    return "" if result.status in ("answered", "unanswered") else f"{name}: {result.status} {result.error}"


def growing(rounds: list[Left], *, kilobytes_a_run: float) -> list[str]:
    """Return what grows: the second half of the rounds compared with the second quarter."""
    early, late = rounds[len(rounds) // 4 : len(rounds) // 2], rounds[len(rounds) // 2 :]
    runs = sum(each.runs for each in rounds) * 3 / 8  # between the middles of both parts
    wrong = []
    for what in ("tasks", "threads", "files"):
        before, after = (median(getattr(each, what) for each in part) for part in (early, late))
        if after > before + (2 if what == "files" else 0):  # sockets close a little later
            wrong.append(f"{what}: {before} before, {after} after")
    grown = (median(each.kilobytes for each in late) - median(each.kilobytes for each in early)) / runs
    return [*wrong, f"{grown:.1f} kB a run"] if grown > kilobytes_a_run else wrong


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _kilobytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
