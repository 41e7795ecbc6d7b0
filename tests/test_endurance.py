"""Small editions of bench/endurance.py: write faults, power cuts and kill chains, each judged by the same oracle."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "harness"))

import disk
import soak

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="the harness preloads a library"),
]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[disk.Workers]:
    library = disk.build(tmp_path_factory.mktemp("disk"))
    if library is None:
        pytest.skip("there is no C compiler")
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


async def test_many_runs_one_after_another_leave_nothing_behind(tmp_path: Path) -> None:
    rounds = []
    for seed in range(8):
        left, wrong = await soak.one_round(tmp_path, 5, seed)
        assert wrong == []
        rounds.append(left)
    assert soak.growing(rounds, kilobytes_a_run=1000) == []
