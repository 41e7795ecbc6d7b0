"""Trials on a Ray cluster: what a task of it does, and that the loss of a node loses no trial."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from functools import partial
from pathlib import Path

import pytest

from closeout.errors import UsageError
from closeout.evaluate import EvalTask, evaluate
from closeout.evaluate.on_ray import Batch, run_batch
from closeout.evaluate.trials import Claim
from ray_agents import make_agent
from scripted_answers import tasks, until


def batch(folder: Path, number: int) -> Batch:
    claims = [
        Claim(n, EvalTask(id=f"t{n}", question=f"{n}?", answer=str(n)), 1, f"x.{n}-t{n}.e1", 0) for n in range(number)
    ]
    return Batch(
        name="x",
        claims=tuple(claims),
        make_agent=partial(make_agent, str(folder)),
        scorers=("exact",),
        origin={},
    )


def test_a_task_returns_outcomes_scores_and_the_journal_and_leaves_nothing(tmp_path: Path, home: Path) -> None:
    found = pickle.loads(pickle.dumps(run_batch(pickle.loads(pickle.dumps(batch(tmp_path, 3))))))
    assert [outcome.answer for outcome in found.outcomes] == ["0", "1", "2"]
    assert [scores["exact"].correct for scores in found.scores] == [True] * 3
    assert len(found.journal) > 1000
    assert os.environ["CLOSEOUT_HOME"] == str(home)
    assert not home.exists()


def test_an_agent_must_be_made_on_each_node() -> None:
    with pytest.raises(UsageError, match="pass a function that makes the agent"):
        asyncio.run(evaluate(make_agent("."), tasks(1), ray="auto"))


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_node_that_is_killed_loses_no_trial(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    here = str(Path(__file__).parent)
    source = str(Path(__file__).parent.parent / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, source]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    try:
        nodes = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False)
        noted = tmp_path / "noted.txt"

        async def main() -> object:
            work = asyncio.ensure_future(
                evaluate(partial(make_agent, str(tmp_path), 0.3), tasks(60), scorer="exact", name="x", ray="auto")
            )
            await until(lambda: noted.exists() and len(noted.read_text().splitlines()) > 20)
            await asyncio.to_thread(cluster.remove_node, nodes[1], allow_graceful=False)
            return await work

        report = asyncio.run(main())
        from closeout.journal.store import open_store

        assert (report.totals.finished, report.totals.correct) == (60, 60)  # type: ignore[attr-defined]
        runs = open_store(home).runs(limit=1000)
        assert len(runs) == 60
        assert {run.status for run in runs} == {"answered"}
        assert open_store(home).read("x.7-t7.e1").problems == ()
        assert len({line.split()[1] for line in noted.read_text().splitlines()}) > 1
    finally:
        ray.shutdown()
        cluster.shutdown()
        sys.modules.pop("ray_agents", None)
