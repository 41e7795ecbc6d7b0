"""Random runs under `max_cost`: is it exceeded by more than the replies under way, or does a run stop while one fits?

Sub-agents, handoffs, fallbacks, pictures, retries, programs, histories, resumes, with the tariffs of ten models.

    python bench/max_cost.py [--runs 5000] [--seed 0]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "harness"))

from spending import spend

from closeout.journal.store import close_stores


async def main(runs: int, first: int) -> int:
    """Execute the runs and print what is wrong with each."""
    logging.disable(logging.WARNING)
    features, stopped, wrong, began = Counter[str](), 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + runs):
            kind, meter, fault = await spend(seed, Path(folder))
            features.update(kind.split("+"))
            stopped += meter.spent > meter.limit / 2
            if fault:
                wrong += 1
                print(f"seed {seed}, {kind}: {fault}", flush=True)
            close_stores()
            shutil.rmtree(Path(folder) / str(seed), ignore_errors=True)
    print(
        f"{runs:,} runs in {time.monotonic() - began:.0f} s: {wrong} faults; {stopped:,} used over half of their limit"
    )
    print(", ".join(f"{name} {count:,}" for name, count in features.most_common()))
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.runs, given.seed)))
