"""A run that is killed at any of its events is led on to the same end, and nothing is done twice or left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).parent / "harness" / "crash.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the harness forks a child for each kill point")
@pytest.mark.timeout(400)
def test_killed_at_every_event_a_run_is_resumed_to_the_same_end(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(HARNESS), str(tmp_path)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["ended"] == "answered: all done"
    assert len(found["paid"]) == len(set(found["paid"])) == 10
    assert found["events"] >= 100
    assert found["problems"] == []
