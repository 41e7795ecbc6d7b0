"""The rigs against hostile text and cancellation with large budgets, for bench/endurance.py: each prints one line."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # for call_writers

import cancelling
import forgery
import growth
import hostile_runs

__all__ = ["run_all"]

_BATCH = 250  # cases between two looks at the clock


def run_all(folder: Path, *, replies: int, seconds: float, seed: int) -> None:
    """Run every rig.

    Args:
        folder: An existing folder for homes.
        replies: How many hostile runs, and how many cells of the forgery matrix.
        seconds: Of each rig at most.
        seed: Chooses the cases.
    """
    _hostile_runs(folder, replies, time.monotonic() + seconds, seed)
    _forgeries(replies, time.monotonic() + seconds, seed)
    _growth(folder, time.monotonic() + seconds, seed)
    for server in (False, True):
        _cancels(folder, time.monotonic() + seconds, seed, server)


def _hostile_runs(folder: Path, count: int, until: float, seed: int) -> None:
    home, tried, wrong = folder / "hostile", 0, []
    while tried < count and time.monotonic() < until:
        try:
            hostile_runs.check(home, min(_BATCH, count - tried), seed + tried)
        except AssertionError as failure:
            wrong.append(str(failure))
        tried += _BATCH
    print(f"hostile replies and results: about {tried} runs, {len(wrong)} violations {wrong[:3]}")


def _forgeries(count: int, until: float, seed: int) -> None:
    chosen, tried, found = forgery.sample(count, seed), 0, []
    while tried < len(chosen) and time.monotonic() < until:
        found += forgery.forged(chosen[tried : tried + _BATCH])
        tried += _BATCH
    ran = min(tried, len(chosen))
    print(f"forgery matrix: {ran} of {len(forgery.cells())} cells, {len(found)} destructive runs {found[:3]}")


def _growth(folder: Path, until: float, seed: int) -> None:
    tried, found = growth.worst_growth(seed, known=None, made=200, until=until)
    print(f"growth: {tried} measurements, {len(found)} exponents over {growth.LIMIT} {found[:3]}")
    short = growth.resumed(folder / "short", 500, growth.seconds)
    long = growth.resumed(folder / "long", 8000, growth.seconds)
    print(f"growth of resuming from 500 to 8000 turns: exponent {growth.slope(long, short):.2f}")


def _cancels(folder: Path, until: float, seed: int, server: bool) -> None:
    there = folder / f"cancel{server}"
    there.mkdir()
    count = 100 if server else sys.maxsize  # runs with a server take seconds each
    tried, found = cancelling.cancelled(there, count, seed, server=server, until=until)
    what = "with an MCP server" if server else "without a server"
    print(f"cancelled {what}: {tried} iterations, {len(found)} violations {list(found.items())[:3]}")
