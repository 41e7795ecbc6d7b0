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


def tried(tmp_path: Path, *options: str) -> Any:
    done = subprocess.run([sys.executable, str(HARNESS), str(tmp_path), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_fork
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("store", "stride"), [("folder", "29"), ("database", "59")])  # bench/endurance.py: each
def test_killed_at_every_event_a_run_is_resumed_to_the_same_end(
    tmp_path: Path, store: str, stride: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store == "database":
        server: PostgresServer = request.getfixturevalue("postgres")
        monkeypatch.setenv(DATABASE, server.url())
    found = tried(tmp_path, "run", stride)
    assert (tmp_path / "imports" / "home").exists() == (store == "folder")
    assert found["ended"] == "answered: all done"
    assert len(found["paid"]) == len(set(found["paid"])) == 10
    assert found["events"] >= 100
    assert found["problems"] == []


@needs_fork
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("scenario", "stride", "ordered"),
    [("asking_old", "23", ["p1", "p2"]), ("asking_new", "31", ["p1", "p2"]), ("asking_task", "19", ["p1"])],
)
def test_what_a_server_asks_survives_a_kill(tmp_path: Path, scenario: str, stride: str, ordered: list[str]) -> None:
    found = tried(tmp_path, scenario, stride)
    assert (found["ended"], found["paid"]) == ("answered: all done", ordered)
    assert found["events"] >= 15
    assert found["problems"] == []


@needs_fork
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("scenario", "payments", "events"), [("waiting", 6, 100), ("fork", 6, 60), ("timers", 1, 70)])
def test_suspended_runs_and_forks_survive_a_kill_too(tmp_path: Path, scenario: str, payments: int, events: int) -> None:
    found = tried(tmp_path, scenario, "37")  # bench/endurance.py: at each event, which takes minutes
    signals = [
        "s1=r1.wait",
        "s2=r3.wait",
        "s3=r5.wait",
        "s4=r6:watch/r1.wait",
        "s5=r7.wait",
    ]  # each what was sent to it
    received = [f" signal:{each}" for each in signals] if scenario == "timers" else []
    assert found["ended"] == "".join(["answered: all done", *received])
    assert len(found["paid"]) == len(set(found["paid"])) == payments
    assert found["events"] >= events
    assert found["problems"] == []


@needs_fork
@pytest.mark.timeout(400)
def test_a_report_of_readers_in_the_background_survives_a_kill(tmp_path: Path) -> None:
    found = tried(tmp_path, "research", "43")  # every citation opens: tests/harness/crash.py
    assert found["ended"].startswith("answered: ")
    assert found["paid"] == ["p1", "p2", "p3", "p4"]
    assert found["events"] >= 80
    assert found["problems"] == []


@needs_fork
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("scenario", "stride"), [("map", "73"), ("session", "79"), ("serve", "71")])
def test_a_sweep_a_conversation_and_a_server_that_wait_survive_a_kill(
    tmp_path: Path, scenario: str, stride: str
) -> None:
    found = tried(tmp_path, scenario, stride)
    waits = ("s1=r1.wait", "s2=r4:watch/r1.wait", "s3=r5.wait")
    first, second = [[f"signal:{part}{each}" for each in waits] for part in (1, 2)]
    seen = [*first, *second] if scenario == "session" else second  # a conversation knows its first part
    left = ["1f1.txt", "2f1.txt", *(['{"1f1": 1, "2f1": 1}'] if scenario == "session" else [])]
    ended = [f"answered: all done {' '.join(signals)}" for signals in (first, seen)]
    assert found["ended"] == " | ".join([*ended, *left])
    assert found["paid"] == ["1p1", "2p1"]
    assert found["events"] >= 100
    assert found["problems"] == []
