"""A run that is killed at any of its events resumes to the same end, and nothing is done twice or left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from postgres_server import PostgresServer

HARNESS = Path(__file__).parent / "harness" / "crash.py"
DATABASE = "HARNESS_DATABASE"  # tests/harness/database_homes.py


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the harness forks a child for each kill point")


def tried(tmp_path: Path, *options: str) -> dict[str, Any]:
    """Return the problems of scenarios, killed at each event of a stride. bench/endurance.py kills at every one."""
    done = subprocess.run([sys.executable, str(HARNESS), str(tmp_path), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip([option.partition(":")[0] for option in options], found, strict=True))


@needs_fork
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("store", "stride"), [("folder", 29), ("database", 59)])
def test_killed_at_every_event_a_run_is_resumed_to_the_same_end(
    tmp_path: Path, store: str, stride: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store == "database":
        server: PostgresServer = request.getfixturevalue("postgres")
        monkeypatch.setenv(DATABASE, server.url())
    found = tried(tmp_path, f"run:{stride}")["run"]
    assert (tmp_path / "run" / "imports" / "home").exists() == (store == "folder")
    assert found["ended"] == "answered: all done"
    assert len(found["paid"]) == len(set(found["paid"])) == 10
    assert found["events"] >= 100
    assert found["problems"] == []


@needs_fork
@pytest.mark.timeout(400)
def test_what_a_server_asks_survives_a_kill(tmp_path: Path) -> None:
    ordered = {"asking_old": ["p1", "p2"], "asking_new": ["p1", "p2"], "asking_task": ["p1"]}
    for scenario, found in tried(tmp_path, "asking_old:23", "asking_new:31", "asking_task:19").items():
        assert (found["ended"], found["paid"]) == ("answered: all done", ordered[scenario]), scenario
        assert found["events"] >= 15, scenario
        assert found["problems"] == [], scenario


@needs_fork
@pytest.mark.timeout(400)
def test_suspended_runs_and_forks_survive_a_kill_too(tmp_path: Path) -> None:
    # Each with what was sent to it.
    signals = ("s1=r1.wait", "s2=r3.wait", "s3=r5.wait", "s4=r6:watch/r1.wait", "s5=r7.wait")
    received = {"timers": "".join(f" signal:{each}" for each in signals)}
    expected = {"waiting": (6, 100), "fork": (6, 60), "timers": (1, 70)}
    for scenario, found in tried(tmp_path, "waiting:37", "fork:37", "timers:37").items():
        payments, events = expected[scenario]
        assert found["ended"] == f"answered: all done{received.get(scenario, '')}", scenario
        assert len(found["paid"]) == len(set(found["paid"])) == payments, scenario
        assert found["events"] >= events, scenario
        assert found["problems"] == [], scenario


@needs_fork
@pytest.mark.timeout(400)
def test_a_report_of_readers_in_the_background_survives_a_kill(tmp_path: Path) -> None:
    found = tried(tmp_path, "research:43")["research"]  # every citation opens: tests/harness/crash.py
    assert found["ended"].startswith("answered: ")
    assert found["paid"] == ["p1", "p2", "p3", "p4"]
    assert found["events"] >= 80
    assert found["problems"] == []


@needs_fork
@pytest.mark.timeout(400)
def test_a_sweep_a_conversation_and_a_server_that_wait_survive_a_kill(tmp_path: Path) -> None:
    waits = ("s1=r1.wait", "s2=r4:watch/r1.wait", "s3=r5.wait")
    first, second = [[f"signal:{part}{each}" for each in waits] for part in (1, 2)]
    for scenario, found in tried(tmp_path, "map:73", "session:79", "serve:71").items():
        seen = [*first, *second] if scenario == "session" else second  # a conversation knows its first part
        left = ["1f1.txt", "2f1.txt", *(['{"1f1": 1, "2f1": 1}'] if scenario == "session" else [])]
        ended = [f"answered: all done {' '.join(signals)}" for signals in (first, seen)]
        assert found["ended"] == " | ".join([*ended, *left]), scenario
        assert found["paid"] == ["1p1", "2p1"], scenario
        assert found["events"] >= 100, scenario
        assert found["problems"] == [], scenario
