"""Kill nodes and drivers of a Ray cluster while an agent pays, and count how often each purpose was paid for.

Each node has a temporary folder of its own. Half of the kills take a node, half the driver; each is
followed by a new one. Each answered trial must have the answer that it has without kills.

    python bench/ray_kills.py [--kills 20] [--trials 1500] [--nodes 3]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "harness"))

from closeout.evaluate.trials import TrialStore, evaluation_file
from ray_agents import payments

ROOT = Path(__file__).parent.parent
SMALL: dict[str, Any] = {"object_store_memory": 80_000_000}


class PayingCluster:
    """A cluster whose nodes have folders of their own, and the driver of an evaluation on it."""

    def __init__(self, folder: Path, trials: int) -> None:
        from ray.cluster_utils import Cluster

        self.folder, self._trials = folder, trials
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
        self._made = count()
        self.nodes: list[Any] = []
        self.driver: subprocess.Popen[bytes] | None = None

    def add_node(self) -> None:
        own = self.folder / f"node-{next(self._made)}"
        own.mkdir()
        self.nodes.append(self._cluster.add_node(num_cpus=1, env_vars={"TMPDIR": str(own)}, **SMALL))

    def start_driver(self) -> None:
        env = {**os.environ, "RAY_ADDRESS": self._cluster.address, "CLOSEOUT_HOME": str(self.folder / "home")}
        command = [sys.executable, str(ROOT / "tests" / "ray_agents.py"), str(self.folder), str(self._trials)]
        self.driver = subprocess.Popen(command, env=env)

    def kill_node(self, number: int) -> None:
        self._cluster.remove_node(self.nodes.pop(number), allow_graceful=False)

    def kill_driver(self) -> None:
        assert self.driver is not None
        self.driver.kill()
        self.driver.wait()

    def close(self) -> None:
        if self.driver is not None:
            self.driver.kill()
            self.driver.wait()
        self._cluster.shutdown()


def ended(folder: Path) -> int:
    """Return how many trials have an outcome."""
    with suppress(Exception):  # the evaluation may not have begun
        store = TrialStore(evaluation_file(folder / "home", "x"))
        try:
            return sum(trial.outcome is not None for trial in store.trials())
        finally:
            store.close()
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--trials", type=int, default=1500)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        str(ROOT / name) for name in ("tests", "tests/harness", "src") if (ROOT / name).exists()
    )
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    chance = random.Random(options.seed)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = PayingCluster(folder, options.trials)
        killed: Counter[str] = Counter()
        try:
            for _ in range(options.nodes):
                cluster.add_node()
            cluster.start_driver()
            for number in range(1, options.kills + 1):
                enough = options.trials * number // (options.kills + 1)
                while ended(folder) < enough and cluster.driver is not None and cluster.driver.poll() is None:
                    time.sleep(0.1)
                time.sleep(chance.random())
                if cluster.driver is None or cluster.driver.poll() is not None:
                    break
                if number % 2:
                    cluster.kill_node(chance.randrange(len(cluster.nodes)))
                    cluster.add_node()
                    killed["nodes"] += 1
                else:
                    cluster.kill_driver()
                    cluster.start_driver()
                    killed["drivers"] += 1
                print(
                    f"  {number} kills, {ended(folder)} trials ended, {time.perf_counter() - began:.0f} s", flush=True
                )
            assert cluster.driver is not None
            code = cluster.driver.wait()
        finally:
            cluster.close()
        store = TrialStore(evaluation_file(folder / "home", "x"))
        trials = store.trials()
        store.close()
        paid = payments(folder)
    answered = {t.task_id for t in trials if t.outcome and t.outcome.status == "answered" and t.outcome.answer}
    interrupted = {t.task_id for t in trials if t.outcome and t.outcome.error_kind == "Interrupted"}
    wrong = {t.task_id for t in trials if t.task_id in answered and t.outcome and f"t{t.outcome.answer}" != t.task_id}
    unnoticed = {f"t{purpose.removesuffix('?')}" for purpose in paid} - answered - interrupted
    twice = [purpose for purpose, times in paid.items() if times > 1]
    lost = len(trials) - len(answered | interrupted)
    print(
        f"bench ray_kills: {killed['nodes']} nodes and {killed['drivers']} drivers killed in {options.trials} "
        f"trials on {options.nodes} nodes, {time.perf_counter() - began:.0f} s: {len(twice)} payments twice, "
        f"{len(answered)} answered ({len(wrong)} of them wrong), {len(interrupted)} reported as interrupted (of which "
        f"{sum(f'{task[1:]}?' in paid for task in interrupted)} had paid), {lost} without an outcome, "
        f"{len(unnoticed)} payments of no reported trial"
    )
    if code or twice or wrong or unnoticed or lost or sum(killed.values()) != options.kills:
        sys.exit("FAILED")


if __name__ == "__main__":
    main()
