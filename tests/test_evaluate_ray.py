"""Trials on a Ray cluster: what a task does, and that killed nodes and drivers repeat nothing that has effects."""

from __future__ import annotations

import asyncio
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Choice
from closeout.errors import UsageError
from closeout.evaluate import EvalTask, evaluate, evaluation
from closeout.evaluate.on_ray import Batch, prepare_folder, run_batch
from closeout.evaluate.trials import Trial, TrialClaim, TrialStore, evaluation_file
from closeout.homes import DatabaseHome, as_home
from closeout.journal.store import Store, open_store
from ray_agents import make_agent, make_paying_agent, payments
from scripted_answers import tasks

HERE = Path(__file__).parent


def batch(folder: Path, number: int) -> Batch:
    claims = [
        TrialClaim(n, EvalTask(id=f"t{n}", question=f"{n}?", answer=str(n)), 1, f"x.{n}-t{n}.e1", 0)
        for n in range(number)
    ]
    return Batch(
        name="x",
        node="n",
        folder="closeout-x",
        claims=tuple(claims),
        make_agent=partial(make_agent, str(folder)),
        scorers=("exact",),
        origin={},
    )


def test_a_task_returns_outcomes_scores_and_the_journal(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    prepare_folder("closeout-x")
    found = pickle.loads(pickle.dumps(run_batch(pickle.loads(pickle.dumps(batch(tmp_path, 3))))))
    assert [outcome.answer for outcome in found.outcomes] == ["0", "1", "2"]
    assert [scores["exact"].correct for scores in found.scores] == [True] * 3
    assert len(found.journal) > 1000
    assert os.environ["CLOSEOUT_HOME"] == str(home)
    assert not home.exists()


def make_of_task(folder: str, task: EvalTask) -> Agent[Any]:
    agent = make_agent(folder)
    return agent.with_answer(Choice(["0", "1"])) if task.id == "t2" else agent


def test_each_trial_has_the_agent_of_its_task(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    prepare_folder("closeout-x")
    given = replace(batch(tmp_path, 3), make_agent=partial(make_of_task, str(tmp_path)))
    assert [outcome.answer for outcome in run_batch(given).outcomes] == ["0", "1", None]


def test_a_task_records_in_a_database_and_takes_over_what_a_dead_one_left(
    tmp_path: Path, database: DatabaseHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    prepare_folder("closeout-x")
    asyncio.run(make_agent(str(tmp_path)).run("1?", run_id="x.1-t1.e1", task_id="t1"))
    dead = Store(database)  # a task whose process died just now
    dead.reopen_run("x.1-t1.e1")
    threading.Timer(0.7, lambda: dead.close()).start()
    monkeypatch.delenv("CLOSEOUT_HOME")
    address = as_home(database.address)
    assert (address, isinstance(address, DatabaseHome)) == (database, True)
    found = run_batch(replace(batch(tmp_path, 3), home=database))
    assert ([outcome.answer for outcome in found.outcomes], found.journal) == (["0", "1", "2"], b"")
    assert "CLOSEOUT_HOME" not in os.environ
    assert [run.status for run in open_store(database).runs()] == ["answered"] * 3


def test_a_trial_without_budget_is_stopped_not_wrong_and_continues_when_there_is_room(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    prepare_folder("closeout-x")
    poor, richer = (
        replace(batch(tmp_path, 3), make_agent=partial(make_agent, str(tmp_path), budget={"sweep": f"{n} requests"}))
        for n in (2, 9)
    )
    found = run_batch(poor)
    assert sorted(outcome.status for outcome in found.outcomes) == ["answered", "answered", "stopped"]
    stopped = next(outcome for outcome in found.outcomes if outcome.stopped)
    assert "The budget of sweep (2 requests) has no room" in stopped.error
    assert sorted(map(len, found.scores)) == [0, 1, 1]  # nothing judges it
    assert [outcome.answer for outcome in run_batch(richer).outcomes] == ["0", "1", "2"]
    assert len((tmp_path / "noted.txt").read_text().splitlines()) == 3


def test_trials_whose_record_is_lost_run_again_only_if_their_tools_have_no_effects(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    prepare_folder("closeout-x")
    for on_crash, ends, paid in (("report", ["Interrupted"] * 2, 0), ("rerun", ["", ""], 2)):
        agent = partial(make_paying_agent, str(tmp_path), on_crash=on_crash)
        found = run_batch(replace(batch(tmp_path, 2), make_agent=agent, lost=True))
        assert [outcome.error_kind for outcome in found.outcomes] == ends
        assert [scores["exact"].correct for scores in found.scores] == [not kind for kind in ends]
        assert payments(tmp_path).total() == paid


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_a_budget_or_a_cancellation_stops_an_evaluation_on_a_cluster(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent / "src")]))
    ray.init(num_cpus=1, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False)
    try:
        reports = []
        for each in ("2 requests", "9 requests"):
            agent = partial(make_agent, str(tmp_path), budget={"sweep": each})
            reports.append(asyncio.run(evaluate(agent, tasks(4), name="x", ray="auto")))
        assert asyncio.run(cancelled_while_a_node_works(tmp_path, monkeypatch)) == [False]
        quick = asyncio.run(evaluate(partial(make_agent, str(tmp_path)), tasks(4), name="y", ray="auto"))
    finally:
        ray.shutdown()
    assert reports[0].stopped.startswith("a budget: The budget of sweep (2 requests)")
    assert (reports[0].totals.finished, reports[0].totals.correct) == (2, 2)
    assert (reports[1].stopped, reports[1].totals.correct) == ("", 4)
    assert (quick.stopped, quick.totals.correct) == ("", 4)


async def cancelled_while_a_node_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Cancel an evaluation whose requests take long. Return, whenever its file is closed, if the driver still works."""
    works_at_close: list[bool] = []

    class Watched(TrialStore):
        def close(self) -> None:
            stacks = [traceback.extract_stack(frame) for frame in sys._current_frames().values()]
            works_at_close.append(any(frame.name == "_work" for stack in stacks for frame in stack))
            super().close()

    noted = folder / "noted.txt"
    before = len(noted.read_text().splitlines())
    slow = partial(make_agent, str(folder), seconds=1000.0)
    with monkeypatch.context() as patched:
        patched.setattr(evaluation, "TrialStore", Watched)
        evaluating = asyncio.create_task(evaluate(slow, tasks(4), name="y", ray="auto"))
        while len(noted.read_text().splitlines()) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        evaluating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await evaluating
    return works_at_close


def test_an_agent_must_be_made_on_each_node() -> None:
    with pytest.raises(UsageError, match="pass a function that makes the agent"):
        asyncio.run(evaluate(make_agent("."), tasks(1), ray="auto"))


def test_two_evaluations_of_one_name_have_ids_of_their_own(tmp_path: Path) -> None:
    first, second = (TrialStore(evaluation_file(tmp_path / folder, "x"), {}) for folder in "ab")
    again = TrialStore(evaluation_file(tmp_path / "a", "x"), {})
    assert first.id == again.id != second.id
    for store in (first, second, again):
        store.close()


@pytest.mark.parametrize(("on_crash", "paid", "ended"), [("report", 0, "Interrupted"), ("rerun", 1, "")])
def test_a_trial_that_a_node_had_begins_again_only_if_its_tools_have_no_effects(
    tmp_path: Path, home: Path, on_crash: str, paid: int, ended: str
) -> None:
    agent = make_paying_agent(str(tmp_path), on_crash=on_crash)
    asyncio.run(evaluate(agent, tasks(1), scorer="exact", name="x", max_tokens=0))
    store = TrialStore(evaluation_file(home, "x"))
    store.register("")
    store.send(store.exchange((), 1, 0.0, 0), "a node that is gone")
    store.close()
    report = asyncio.run(evaluate(agent, tasks(1), scorer="exact", name="x"))
    (trial,) = report.trials
    assert trial.outcome is not None
    assert trial.outcome.error_kind == ended
    assert payments(tmp_path).total() == paid


@contextmanager
def empty_cluster(folder: Path) -> Iterator[tuple[Any, Callable[[], Any]]]:
    """Yield a cluster that soon notices the death of a node, and a function that adds a node."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    small, made = {"object_store_memory": 80_000_000}, count()
    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": soon, **small})

    def add_node() -> Any:
        own = folder / f"node-{next(made)}"
        own.mkdir()
        return cluster.add_node(num_cpus=1, env_vars={"TMPDIR": str(own)}, **small)

    try:
        yield cluster, add_node
    finally:
        cluster.shutdown()


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_only_trials_that_began_on_a_node_are_interrupted_by_its_death(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent / "src")]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    noted = tmp_path / "noted.txt"
    with empty_cluster(tmp_path) as (cluster, add_node):
        node = add_node()
        driver = start_driver(cluster, tmp_path, 20, 1000)  # each model request takes so many seconds
        try:
            while not noted.exists() or len(noted.read_text().split("\n")) <= 10:  # the other ten are queued there
                assert driver.poll() is None
                time.sleep(0.02)
            began = {f"t{line.partition('?')[0]}" for line in noted.read_text().splitlines()}
            cluster.remove_node(node, allow_graceful=False)
            noted.with_name("fast").touch()
            add_node()
            assert driver.wait(240) == 0
        finally:
            driver.kill()
            driver.wait()
    assert (lost(home), len(began)) == (began, 10)
    assert len({f"t{purpose.removesuffix('?')}" for purpose in payments(tmp_path)} - began) == 10


Kill = Callable[[Any, list[Any], subprocess.Popen[bytes]], None]


def kill_driver(cluster: Any, nodes: list[Any], driver: subprocess.Popen[bytes]) -> None:
    driver.kill()


def kill_node(cluster: Any, nodes: list[Any], driver: subprocess.Popen[bytes]) -> None:
    cluster.remove_node(nodes.pop(0), allow_graceful=False)


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_killed_nodes_and_drivers_repeat_no_payment(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent / "src")]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    trials, interrupted = pay_through_kills(tmp_path, home, 60, [kill_driver, kill_node])
    paid = payments(tmp_path)
    assert max(paid.values()) == 1
    answered = {trial.task_id for trial in trials if trial.outcome and trial.outcome.status == "answered"}
    assert len(answered) + len(interrupted) == len(trials) == 60
    assert {f"t{purpose.removesuffix('?')}" for purpose in paid} <= answered | interrupted
    assert 0 < len(interrupted) <= 20  # what the killed node had
    runs = open_store(home).runs(limit=1000)
    assert len(answered) <= len(runs) <= 60
    assert open_store(home).read(runs[0].run_id).problems == ()
    assert len(list(tmp_path.glob("node-*/closeout-*"))) == 1  # that of the killed node


def start_driver(cluster: Any, folder: Path, trials: int, seconds: float = 0.3) -> subprocess.Popen[bytes]:
    arguments = [str(HERE / "ray_agents.py"), str(folder), str(trials), str(seconds)]
    return subprocess.Popen([sys.executable, *arguments], env={**os.environ, "RAY_ADDRESS": cluster.address})


def pay_through_kills(folder: Path, home: Path, number: int, kills: Sequence[Kill]) -> tuple[list[Trial], set[str]]:
    """Evaluate an agent that pays while nodes and drivers are killed.

    Returns:
        The trials, and the ids of the tasks whose trials were interrupted, or in which a call was.
    """
    with empty_cluster(folder) as (cluster, add_node):
        nodes = [add_node() for _ in range(2)]
        driver = start_driver(cluster, folder, number)
        try:
            for done, kill in enumerate(kills, 1):
                enough = number * done // (len(kills) + 1)
                while payments(folder).total() + len(lost(home)) < enough and driver.poll() is None:
                    time.sleep(0.02)
                kill(cluster, nodes, driver)
                if len(nodes) < 2:
                    nodes.append(add_node())
                if kill is kill_driver:
                    driver.wait()
                    driver = start_driver(cluster, folder, number)
            assert driver.wait(240) == 0
        finally:
            driver.kill()
            driver.wait()
    store = TrialStore(evaluation_file(home, "x"))
    trials = store.trials()
    store.close()
    return trials, lost(home)


def lost(home: Path) -> set[str]:
    """Return the tasks whose trials were reported as interrupted."""
    file = evaluation_file(home, "x")
    if not file.exists():
        return set()
    with closing(sqlite3.connect(file)) as db, suppress(sqlite3.OperationalError):  # its tables may be missing yet
        query = "SELECT id FROM trials JOIN tasks ON tasks.number=task WHERE error_kind='Interrupted'"
        return {task for (task,) in db.execute(query)}
    return set()
