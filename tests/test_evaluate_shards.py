"""Shards of an evaluation become one evaluation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from closeout import Agent
from closeout.errors import UsageError
from closeout.evaluate import EvalReport, evaluate
from closeout.evaluate.evaluation import shard_of
from closeout.evaluate.merging import merge, shard_home, shard_homes
from closeout.journal.store import open_store
from scripted_answers import Scripted, echo, tasks


def share(home: Path, shard: int, shards: int = 3, *, reply: object = echo, instructions: str = "") -> EvalReport:
    agent = Agent(Scripted(reply), home=shard_home(home, "sweep", shard, shards), instructions=instructions or None)  # type: ignore[arg-type]
    options = {"scorer": "exact", "name": "sweep", "epochs": 2}
    return asyncio.run(evaluate(agent, tasks(10), shard=(shard, shards), **options))  # type: ignore[arg-type]


def test_merged_shards_are_the_whole_evaluation(home: Path, tmp_path: Path) -> None:
    parts = [share(home, shard) for shard in (1, 2, 3)]
    assert [len(part.trials) for part in parts] == [8, 6, 6]
    merged = merge("sweep", shard_homes(home, "sweep"), home)
    whole = asyncio.run(
        evaluate(Agent(Scripted(echo), home=tmp_path / "whole"), tasks(10), scorer="exact", name="sweep", epochs=2)
    )

    def table(report: EvalReport) -> list[tuple[object, ...]]:
        return [
            (t.task_id, t.epoch, t.run_id, t.state, t.outcome and t.outcome.answer, t.scores) for t in report.trials
        ]

    assert table(merged) == table(whole)
    assert merged.score == whole.score
    assert {record.run_id for record in open_store(home).runs()} == {trial.run_id for trial in merged.trials}
    assert table(merge("sweep", shard_homes(home, "sweep"), home)) == table(whole)


def test_a_shard_that_is_not_done_yet_is_merged_again_later(home: Path) -> None:
    share(home, 1, 2)
    client = Scripted(echo)

    def some(question: str, times: int) -> str:
        return echo(question, times)

    agent = Agent(client, home=shard_home(home, "sweep", 2, 2))
    options = {"scorer": "exact", "name": "sweep", "epochs": 2, "shard": (2, 2)}
    asyncio.run(evaluate(agent, tasks(10), max_tokens=300, concurrency=1, **options))  # type: ignore[arg-type]
    homes = shard_homes(home, "sweep")
    assert merge("sweep", homes, home).totals.finished == 10 + 3
    asyncio.run(evaluate(agent, tasks(10), **options))  # type: ignore[arg-type]
    merged = merge("sweep", homes, home)
    assert (merged.totals.finished, merged.totals.correct) == (20, 20)


def test_shards_of_different_agents_are_not_merged(home: Path) -> None:
    share(home, 1, 2)
    share(home, 2, 2, instructions="Be brief.")
    with pytest.raises(UsageError, match="with another agent: instructions differ"):
        merge("sweep", shard_homes(home, "sweep"), home)
    with pytest.raises(UsageError, match="There are no shards of other"):
        shard_homes(home, "other")


def test_every_task_is_in_exactly_one_shard() -> None:
    found = [position for shard in range(1, 8) for position in shard_of(100, shard, 7)]
    assert sorted(found) == list(range(100))
    for shard, shards in ((0, 2), (3, 2), (1, 0)):
        with pytest.raises(UsageError, match="A shard is i/n"):
            shard_of(10, shard, shards)
