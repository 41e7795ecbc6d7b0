"""Hostile MCP servers, all at once beside honest ones: those of tests/harness/hostile_mcp.py, the large ones too.

    python bench/hostile_mcp.py [ROUNDS]

Each server lies, breaks off, floods or falls silent at one moment. A user must be told in a sentence which server it is
and what is wrong; nothing may hang; the others must work.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "harness"))

from hostile_mcp import KINDS, visit


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    faults, longest = 0, 0.0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            found, seconds = asyncio.run(visit(KINDS, Path(folder)))
        longest = max(longest, seconds)
        for each in found:
            if each.fault:
                faults += 1
                print(f"{each.name} {each.fault}: {each.told[:300]!r}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"hostile_mcp: {len(KINDS)} servers, {rounds} rounds: {faults} faults "
        f"(a hang, an unclear sentence, harm to others), {longest:.1f} s, peak {peak} MB"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
