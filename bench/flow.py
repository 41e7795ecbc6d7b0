"""Flow rules: what was read does not decide what is done, in random programs; and what the labels cost a turn.

Each random program runs twice in the sandbox, with other untrusted texts. The calls that the rules leave unguarded, and
what counts as trusted output, must be the same, but that an error may end one run early. Runs of a chat with and
without rules are timed, in turn, in CPU seconds.

    python bench/flow.py [--programs 20000] [--first 0] [--turns 60] [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from closeout import Agent, Flow, tool
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from closeout.tools.builtin.program_sandbox import ProgramSandbox
from random_programs import check_programs


async def programs(first: int, count: int) -> None:
    """Check random programs, and print how many violate the rules."""
    found: Counter[str] = Counter()
    sandbox = ProgramSandbox(1.0, "flow")
    try:
        for seed in range(first, first + count):
            checked = await check_programs(seed, sandbox)
            found.update(free=checked.free, guarded=checked.guarded, understood=int(checked.understood))
            if checked.difference:
                found["violations"] += 1
                print(f"program {seed}: {checked.difference}")
    finally:
        await sandbox.aclose()
    line = f"programs: {found['violations']} of {count} violate the rules; {found['understood']} were understood; "
    print(f"{line}{found['free']} calls and outputs were free, {found['guarded']} calls guarded")


@tool(read_only=True)
def read(page: int) -> str:
    """Read a page."""
    return f"The text of page {page}, which nobody vouches for. " * 20


@tool
def note(text: str) -> str:
    """Write a note."""
    return "noted"


async def seconds_a_turn(flow: Flow | None, turns: int, home: Path) -> float:
    """Return the CPU seconds of a turn."""

    def script(view: RequestView) -> Turn:
        if view.turn > turns:
            return answer("done")
        return call("read", page=view.turn) if view.turn % 2 else call("note", text=f"page {view.turn}")

    agent = Agent(ScriptedClient(script), [read, note], flow=flow, home=home, max_turns=turns + 1)
    began = time.process_time()
    result = await agent.run("Read.")
    assert result.answer == "done"
    return (time.process_time() - began) / turns


async def cost(turns: int, rounds: int) -> tuple[float, float]:
    """Return the median CPU seconds of a turn, without rules and with them."""
    times: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for with_rules in (False, True):
                flow = Flow(allow={"note": "untrusted"}) if with_rules else None
                found = await seconds_a_turn(flow, turns, Path(folder))
                if number:  # the first one imports
                    times[with_rules].append(found)
    return statistics.median(times[False]), statistics.median(times[True])


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="the first program")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    without, with_rules = asyncio.run(cost(options.turns, options.rounds))
    print(
        f"cost: {without * 1000:.2f} ms CPU a turn without rules, {with_rules * 1000:.2f} with, ratio "
        f"{with_rules / without:.2f}"
    )
    asyncio.run(programs(options.first, options.programs))


if __name__ == "__main__":
    main()
