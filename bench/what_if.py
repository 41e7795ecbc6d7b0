"""The what-if lab: are planted changes of behaviour found, does the same agent differ, what is paid?

In half of the recorded runs, the model of the candidate does one of ten things otherwise. Its instructions differ, so
each request is asked again. In the other half it does what was recorded: a finding there, or in the baseline, is false.
A second table has the share of a full rerun that each kind of change pays.

    python bench/what_if.py [--runs 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "harness"))

from shop import World

from closeout import Agent, tool
from closeout.evaluate import what_if
from closeout.journal.store import close_store
from closeout.testing import RequestView, ScriptedClient, answer, call

ITEMS = 3


def planted(kind: int, view: RequestView, known: int) -> Any:
    """Return what the candidate does otherwise at this point, None to do what was recorded."""
    paid, at_end = "receipt" in view.text, known >= ITEMS
    changes = [
        answer("6") if paid else None,
        call("pay", amount=6) if at_end and not paid else None,
        call("pay", amount=50) if at_end and not paid else None,
        call("pay", amount=5) if not paid else None,  # before it reads the prices
        call("pay", amount=5) if known == ITEMS - 1 and not paid else None,  # before the last price
        call("price", item="coffee") if known == 0 else None,
        call("price", item="coffee") if at_end and "coffee" not in view.text else None,
        call("pay", amount=5) if at_end and view.text.count("receipt") < 2 else None,
        answer("5") if at_end and not paid else None,
        answer("5"),
    ]
    return changes[kind]


def candidate(world: World) -> Agent:
    """Return the agent of the shop with other instructions, and with a change in every second run."""

    def script(view: RequestView) -> Any:
        found = re.search(r"tea (\d+)\.", view.text)
        number = int(found[1]) if found else 1
        turn = planted(number // 2 % 10, view, view.text.count("costs 5")) if number % 2 == 0 else None
        return world.script(view) if turn is None else turn

    agent = world.agent(pays="never", instructions="Be quick.")
    ScriptedClient.__init__(world.models[-1], script)
    return agent


async def compare(home: Path, runs: int) -> dict[str, int]:
    """Return what a comparison finds of the planted changes."""
    world = World(home, items=ITEMS)
    report = await what_if(candidate(world), runs, baseline=world.agent(pays="never"), allow_read_only=True)
    changed = {case.run_id for case in report.changed}
    wanted = {f"r{number}" for number in range(0, runs, 2)}
    return {
        "found": len(changed & wanted),
        "false": len(changed - wanted),
        "baseline": len(report.baseline_changed),
        "effects": len(world.paid),
        "left": len(report.left),
        "paid": sum(case.now.paid for case in report.cases if case.now is not None),
    }


@tool(read_only=True)
def stock(item: str) -> int:
    """Return how many there are."""
    return 3


KINDS: dict[str, Callable[[World], Agent]] = {
    "nothing": lambda w: w.agent(pays="never"),
    "version": lambda w: w.agent(pays="never", version="2"),
    "a check of the answer": lambda w: w.agent(pays="never", check=lambda answer, context: None),
    "a check that refuses the answer": lambda w: w.agent(
        pays="never", check=lambda answer, context: "Add the currency."
    ),
    "fewer turns": lambda w: w.agent(pays="never", max_turns=2),
    "temperature": lambda w: w.agent(pays="never", config={"llm": {"temperature": 0.1}}),
    "instructions": lambda w: w.agent(pays="never", instructions="Be quick."),
    "description of a tool": lambda w: w.agent(pays="never", description="Pay an amount."),
    "tool added": lambda w: w.agent(pays="never", tools=lambda price, pay: [price, pay, stock]),
    "model": lambda w: w.agent(pays="never", model="another"),
    "dialect": lambda w: w.agent(pays="never", dialect="cot_chat"),
}


async def shares(runs: int = 20, items: int = 8) -> dict[str, float]:
    """Return the share of the requests of a full rerun that each kind of change pays."""
    found = {}
    for kind, change in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), items=items)
            for number in range(runs):
                await world.agent(pays="never").run(f"Pay tea {number}.", run_id=f"r{number}")
            rerun = sum(len(model.requests) for model in world.models)
            report = await what_if(change(world), runs)
            found[kind] = report.paid / rerun
            close_store(Path(folder))
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    arguments = parser.parse_args()
    runs = arguments.runs
    logging.disable(logging.WARNING)
    for kind, share in (await shares()).items():
        print(f"{share:>6.0%}  {kind}")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        world = World(home, items=ITEMS)
        recorded = world.agent(pays="never")
        for number in range(runs):
            await recorded.run(f"Pay tea {number}.", run_id=f"r{number}")
        rerun = len(world.models[0].requests)
        world.paid.clear()
        began = time.perf_counter()
        same = await what_if(world.agent(pays="never"), runs)
        seconds = time.perf_counter() - began
        effects = len(world.paid)
        found = await compare(home, runs)
        close_store(home)
    print(
        f"what-if: {found['found']} of {(runs + 1) // 2} planted changes found, {found['false']} false, "
        f"{found['baseline']} in the baseline; {effects + found['effects']} effects; the same agent: "
        f"{len(same.changed)} changed, {same.paid} of {rerun} requests paid, {seconds / runs * 1e3:.1f} ms a run; "
        f"other instructions: {found['paid']} paid, "
        f"{found['left']} runs left the record"
    )


if __name__ == "__main__":
    asyncio.run(main())
