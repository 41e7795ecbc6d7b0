"""Runs under DBOS and Temporal: the engine schedules the legs, and only the journal says what has happened."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import engine_runs
from postgres_server import PostgresServer

SERVER = Path(__file__).parent / "temporal_server.py"


@pytest.fixture
def shared_home(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """A home with leases of three seconds, and a database for the engine."""
    name = f"engine_{os.getpid()}"
    monkeypatch.setenv("CLOSEOUT_HOME", postgres.url(schema=name, lease=3))
    monkeypatch.setenv("PAID", str(tmp_path / "paid"))
    postgres.execute(f"CREATE DATABASE {name}")
    yield postgres
    postgres.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def temporal() -> Iterator[str]:
    """The address of a server: that of TEMPORAL_ADDRESS, or the small one of these tests."""
    if given := os.environ.get("TEMPORAL_ADDRESS"):
        yield given
        return
    with subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.kill()


def check(found: dict[str, Any], count: int) -> None:
    assert found["ended"] == {"answered": count}, found
    assert (found["twice"], found["missing"], found["unknown"]) == ([], [], [])


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.dbos
async def test_on_dbos_runs_end_though_executors_are_killed_and_one_never_returns(
    shared_home: PostgresServer, tmp_path: Path
) -> None:
    database = f"postgresql+psycopg://closeout@/engine_{os.getpid()}?host={shared_home.folder}"
    check(await engine_runs.drive("dbos", database, tmp_path, count=8, kills=1, seconds=300), 8)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.temporal
async def test_on_temporal_runs_end_though_workers_are_killed_and_one_never_returns(
    shared_home: PostgresServer, temporal: str, tmp_path: Path
) -> None:
    check(await engine_runs.drive("temporal", temporal, tmp_path, count=8, kills=1, seconds=300), 8)
