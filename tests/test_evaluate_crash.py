"""Workers of an evaluation are killed at random moments: nothing is lost and nothing is done twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SWEEPER = Path(__file__).parent / "harness" / "sweeper.py"
TASKS, TURNS, CONCURRENCY = 40, 3, 6

pytestmark = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="the harness forks its workers")


def sweep(folder: Path, *, workers: int, kills: int, seed: int) -> dict[str, Any]:
    command = [sys.executable, SWEEPER, folder, TASKS, TURNS, CONCURRENCY, workers, kills, seed]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(("workers", "kills"), [(1, 4), (3, 5)])
def test_killed_workers_lose_nothing_and_repeat_nothing(tmp_path: Path, workers: int, kills: int) -> None:
    found = sweep(tmp_path, workers=workers, kills=kills, seed=workers)
    assert found["error"] == ""
    assert found["killed"] == kills
    right = [n for n in range(TASKS) if n % 7]
    expected = {
        "score": len(right) / TASKS,
        "right": len(right),
        "turns": TASKS * TURNS,
        "tool_calls": TASKS * (TURNS - 1),
        "answers": [[f"t{n}", 1, str(n) if n % 7 else "wrong", "finished"] for n in range(TASKS)],
    }
    assert found["tables"]
    for table in found["tables"]:
        table.pop("error")
        assert table == expected
    assert found["different"] == found["expected"]
    # Sent again is at most what was in flight, or not yet committed, when a worker died.
    assert found["requests"] - found["expected"] <= kills * CONCURRENCY * TURNS
