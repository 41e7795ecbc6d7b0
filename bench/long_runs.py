"""Run agents for a thousand turns in a small context, and ask at the end for facts from all over the run.

Prints the turns taken, the requests in which one does not extend the one before, and how many of the facts were found.
The model is scripted: see tests/harness/long_runs.py.

    python bench/long_runs.py [--turns 1000] [--context 32768] [--thoughts 40,100,200] [--results 40,200]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "harness"))

from long_runs import Reader, long_run

WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}),
    "agent.compaction": ({}, {"compaction": True}),
    "a model that writes no summary": ({"sums_up": False}, {}),
    "a server that does not tell its length": ({"tells": False}, {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--context", type=int, default=32_768, help="tokens")
    parser.add_argument("--thoughts", default="40,100,200", help="words of a thought")
    parser.add_argument("--results", default="40,200", help="words of a result")
    parser.add_argument("--dialect", default="function_call")
    options = parser.parse_args()
    ended = every = 0
    most = 0.0
    for name, (reading, settings) in WAYS.items():
        print(f"{name}\n  words of thought, result | turns | a break in so many requests | summaries | refused | facts")
        for thought in map(int, options.thoughts.split(",")):
            for result in map(int, options.results.split(",")):
                reader = Reader(options.turns, options.context, thought, result, **reading)
                found = asyncio.run(long_run(reader, options.dialect, **settings))
                every += 1
                ended += found.turns >= options.turns and found.facts == len(reader.asked)
                most = max(most, found.breaks / found.requests)
                print(
                    f"  {thought}, {result} | {found.turns} | {found.requests / max(found.breaks, 1):.0f} | "
                    f"{found.summaries} | {found.refused} | {found.facts} of {len(reader.asked)} | {found.stop}",
                    flush=True,
                )
    print(
        f"bench long_runs: {ended} of {every} runs of {options.turns} turns in {options.context:,} tokens ended with "
        f"every fact; at most {100 * most:.0f} % of a run's requests do not extend the one before"
    )


if __name__ == "__main__":
    main()
