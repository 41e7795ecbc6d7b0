"""Small editions of bench/endurance.py: write faults, power cuts and kill chains, each judged by the same oracle."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "harness"))

import disk

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


@pytest.mark.parametrize("fault", disk.FAULTS)
def test_a_write_that_fails_costs_no_effect_and_no_outcome(fault: str, library: Path, tmp_path: Path) -> None:
    writes = disk.count_writes(tmp_path, library)
    assert writes > 20
    chance = random.Random(fault)
    for at in sorted(chance.sample(range(1, writes + 1), 3)):
        assert disk.write_fault(tmp_path / f"at{at}", library, fault, at) == [], (fault, at)


def test_a_power_cut_costs_no_payment(library: Path, tmp_path: Path) -> None:
    found = {at: wrong for at, wrong in disk.power_cuts(tmp_path, library, cuts=6, seed=7) if wrong}
    assert found == {}


def test_a_run_that_is_killed_again_and_again_pays_once(tmp_path: Path) -> None:
    hits, wrong = disk.kill_chain(tmp_path / "chain", seed=3, kills=3, look=disk.look_around)
    assert wrong == []
    assert hits >= 1
