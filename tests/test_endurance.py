"""Small editions of bench/endurance.py: write faults, power cuts and kill chains, each judged by the same oracle."""

from __future__ import annotations

import gc
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "harness"))

import disk
import soak
from database_homes import CUTS, DATABASE, Wire

from cli_process import closeout, here
from closeout.testing import Turn, answer, call, serve_script
from postgres_server import PostgresServer

SERVER = Path(__file__).parent / "mcp_servers" / "ledger.py"

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="the harness preloads a library"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = disk.build(tmp_path_factory.mktemp("disk"))
    if built is None:
        pytest.skip("there is no C compiler")
    return built


@pytest.fixture(scope="module")
def workers(library: Path) -> Iterator[disk.Workers]:
    with disk.Workers(library) as workers:
        yield workers


@pytest.mark.parametrize("fault", disk.FAULTS)
def test_a_write_that_fails_costs_no_effect_and_no_outcome(fault: str, workers: disk.Workers, tmp_path: Path) -> None:
    writes = disk.writes_of(disk.recorded_writes(workers, tmp_path))
    assert writes > 20
    chance = random.Random(fault)
    for at in sorted(chance.sample(range(1, writes + 1), 3)):
        assert disk.write_fault(workers, tmp_path / f"at{at}", fault, at) == [], (fault, at)


def test_a_power_cut_costs_no_payment(workers: disk.Workers, tmp_path: Path) -> None:
    entries = disk.recorded_writes(workers, tmp_path)
    for seed in range(6):
        assert disk.power_cut(workers, tmp_path / f"cut{seed}", entries, seed) == [], seed


def test_a_run_that_is_killed_again_and_again_pays_once(workers: disk.Workers, tmp_path: Path) -> None:
    hits, wrong = disk.kill_chain(workers, tmp_path / "chain", seed=3, kills=3, look=disk.look_around)
    assert wrong == []
    assert hits >= 1


def test_a_run_in_a_database_that_is_killed_or_cut_off_pays_once(
    postgres: PostgresServer, workers: disk.Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATABASE, postgres.url())
    hits, wrong = disk.kill_chain(workers, tmp_path / "chain", seed=3, kills=2)
    assert (wrong, hits >= 1) == ([], True)
    through = postgres.url().replace(str(postgres.folder), str(tmp_path))
    with Wire(postgres.folder, tmp_path) as wire:
        messages = disk.messages_of(workers, tmp_path, wire, through)
        assert messages > 60
        for cut in CUTS:
            for at in random.Random(cut).sample(range(1, messages + 1), 2):
                assert disk.connection_cut(workers, tmp_path / f"{cut}{at}", wire, through, cut=cut, at=at) == []


async def test_many_runs_one_after_another_leave_nothing_behind(tmp_path: Path) -> None:
    rounds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # what other tests have left is not counted here
    for seed in range(5):
        left, wrong = await soak.one_round(tmp_path, 5, seed)
        assert wrong == []
        rounds.append(left)
    assert soak.growing(rounds, kilobytes_a_run=1000) == []


@pytest.mark.parametrize("at", [1, 80])
def test_closeout_run_says_that_the_disk_is_full_and_the_run_can_be_resumed(
    at: int, library: Path, tmp_path: Path
) -> None:
    pytest.importorskip("mcp")
    paid = tmp_path / "paid.txt"
    script = [*(Turn(calls=[call("book", key=f"p{number}")]) for number in range(3)), answer("42")]
    with serve_script(script, by="question", record=False) as server:
        model = ("-m", "openai:scripted", "--base-url", server.base_url)
        full = {"LD_PRELOAD": str(library), "DISK_FAULT": "enospc_ever", "DISK_AT": str(at)}
        tools = ("--mcp", f"{sys.executable} {SERVER} {paid}") if at > 1 else ()
        stopped = closeout("run", "Pay.", *model, *tools, env=full)
        assert stopped.code == 3
        assert "Traceback" not in stopped.err
        said = stopped.err.splitlines()[-1]
        assert "is full. Free some space first." in said
        run_id = said.partition("closeout resume ")[2]
        assert bool(run_id) == (at > 1), "the first write fails before there is a run"
        resumed = here("resume", run_id) if run_id else here("run", "Pay.", *model)
    assert resumed.code == 0
    booked = paid.read_text().split() if paid.exists() else []
    assert len(booked) == len(set(booked))
