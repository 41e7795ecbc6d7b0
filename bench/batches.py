"""Random batches under one key, whose processes are killed: does anybody get another's answer, or pay twice or never?

python bench/batches.py [--batches 10000] [--seed 0] [--folder /dev/shm]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "harness"))

from batches import execute, import_all


def main(batches: int, first: int, folder: str | None) -> int:
    """Execute the batches and print what is wrong with each."""
    wrong, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        import_all(Path(inside))
        for done, seed in enumerate(range(first, first + batches), 1):
            if faults := execute(seed, Path(inside)):
                wrong += 1
                print(f"seed {seed}: {faults[0]}", flush=True)
            if done % 100 == 0 or done == batches:
                print(f"{done:,} batches in {time.monotonic() - began:.0f} s: {wrong} faults", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where the homes are, such as a file system in memory")
    given = parser.parse_args()
    sys.exit(main(given.batches, given.seed, given.folder))
