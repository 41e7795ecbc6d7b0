"""No reply and no tool result ends a run with an error inside it. The rig is tests/harness/hostile_runs.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "harness"))

import hostile_runs
import hostile_secrets


def test_no_reply_and_no_result_ends_a_run_with_an_error_inside_it(tmp_path: Path) -> None:
    hostile_runs.check(tmp_path, cases=50, number=1)


def test_a_tool_that_gives_a_secret_away_writes_it_nowhere(tmp_path: Path) -> None:
    hostile_secrets.check(tmp_path, cases=12, number=1)
