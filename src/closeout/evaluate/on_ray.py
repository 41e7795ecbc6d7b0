"""Run the trials of an evaluation as tasks of a Ray cluster, and bring their journals home.

The driver claims trials like any worker, so drivers and ordinary workers may share an evaluation. A task runs a batch
of trials in a journal of its own on its node and returns their outcomes, their scores and that journal. When a node
dies, Ray runs its batches again on another one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closeout.agent import Agent
from closeout.errors import UsageError, error_type
from closeout.evaluate.outcome import RunOutcome, agent_for_task, origin_of, store_of
from closeout.evaluate.scorers import Scorer, ScorerSource, make_scorer
from closeout.evaluate.scores import Score
from closeout.evaluate.sweep import FATAL, SweepSettings, attempted, score_attempt
from closeout.evaluate.trials import Claim, Finished, Released, TrialStore
from closeout.journal.copying import copy_runs
from closeout.journal.database import FILE_NAME
from closeout.journal.store import Store, close_stores, open_store

__all__ = ["Batch", "BatchResult", "RaySweep", "run_batch"]

TRIALS_PER_TASK = 10
TASKS_PER_CPU = 2  # submitted, so that no CPU waits for the driver
# Retries of a batch whose node or process died.
MAX_TASK_RETRIES = 10
WAIT_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Trials for one task of the cluster.

    Attributes:
        name: The evaluation.
        claims: The trials.
        make_agent: Makes the agent, on the node.
        scorers: Names of scorers, or functions that can be pickled.
        origin: Notes for the runs.
    """

    name: str
    claims: tuple[Claim, ...]
    make_agent: Callable[[], Agent[Any]]
    scorers: tuple[ScorerSource, ...]
    origin: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A task's result: the outcome and the scores of each trial, and a compressed journal with their runs."""

    outcomes: tuple[RunOutcome, ...]
    scores: tuple[Mapping[str, Score], ...]
    journal: bytes


def run_batch(batch: Batch) -> BatchResult:
    """Run a batch of trials, in the process of a task.

    The node keeps their journal until the batch is done, so that a process that dies there loses nothing.
    """
    folder = Path(tempfile.gettempdir()) / f"closeout-{batch.claims[0].run_id}"
    before = os.environ.get("CLOSEOUT_HOME")
    os.environ["CLOSEOUT_HOME"] = str(folder / "home")
    try:
        agent = batch.make_agent()
        store = store_of(agent)
        outcomes, scores = zip(*asyncio.run(_run_trials(batch, agent, store)), strict=True)
        runs = {claim.run_id for claim in batch.claims}
        copy_runs(store.path.parent, open_store(folder / "pack"), runs)
        close_stores()
        return BatchResult(outcomes, scores, zlib.compress((folder / "pack" / FILE_NAME).read_bytes()))
    finally:
        close_stores()
        shutil.rmtree(folder, ignore_errors=True)
        if before is None:
            del os.environ["CLOSEOUT_HOME"]
        else:
            os.environ["CLOSEOUT_HOME"] = before


async def _run_trials(batch: Batch, agent: Agent[Any], store: Store) -> list[tuple[RunOutcome, Mapping[str, Score]]]:
    from closeout.run.subagents import clients_of

    scorers = [make_scorer(scorer, home=store.path.parent) for scorer in batch.scorers]
    try:
        async with agent:
            return await asyncio.gather(*(_run_trial(batch, claim, agent, store, scorers) for claim in batch.claims))
    finally:
        for client in clients_of(agent.plan()):
            await client.aclose()


async def _run_trial(
    batch: Batch, claim: Claim, agent: Agent[Any], store: Store, scorers: Sequence[Scorer]
) -> tuple[RunOutcome, Mapping[str, Score]]:
    task = claim.task
    try:
        result = await agent_for_task(agent, task).run_once(
            task.question,
            run_id=claim.run_id,
            files=task.files,
            task_id=task.id,
            ground_truth=" | ".join(task.golds) or None,
            origin={**batch.origin, **origin_of(batch.name, task.id, claim.epoch)},
        )
        outcome = RunOutcome.of_result(result)
    except UsageError as error:
        outcome = RunOutcome.of_error(error)
    attempt = attempted(claim, outcome, lambda: store.read(claim.run_id).rows)
    return outcome, {each.name: await score_attempt(each, attempt) for each in scorers}


class RaySweep:
    """The driver of an evaluation on a Ray cluster.

    Budgets are checked between batches: what is exceeded is at most what the batches in flight spend.

    Args:
        store: The evaluation's trials.
        make_agent: Makes the agent, on a node. It must be picklable, or importable there.
        scorers: Names of scorers, or functions.
        settings: How it works; `concurrency` does not apply.
        address: The cluster, "auto" for the one of this machine. Ignored if Ray is connected already.

    Raises:
        UsageError: Ray is not installed, or there is no cluster.
    """

    def __init__(
        self,
        store: TrialStore,
        make_agent: Callable[[], Agent[Any]],
        scorers: Sequence[ScorerSource],
        settings: SweepSettings,
        *,
        address: str = "auto",
    ) -> None:
        self._store = store
        self._make_agent = make_agent
        self._scorers = tuple(scorers)
        self._settings = settings
        self._ray = _connected(address)
        self._home = store.path.parent.parent
        self._batches: dict[Any, Batch] = {}  # batches in flight, by the reference of their result
        self.stopped = ""

    def stop(self, reason: str = "stopped") -> None:
        """Submit no more batches. Those in flight end."""
        self.stopped = self.stopped or reason

    async def run(self) -> None:
        """Work until every trial is done or the budget is spent.

        Raises:
            ModelError: The endpoint refuses every request.
            JournalError: A journal cannot be read or written.
        """
        await asyncio.to_thread(self._store.register, self._settings.command)
        try:
            await asyncio.to_thread(self._work)
        finally:
            for reference in self._batches:
                self._ray.cancel(reference, force=True)
            self._store.release_all()

    def _work(self) -> None:
        task = self._ray.remote(num_cpus=1, max_retries=MAX_TASK_RETRIES)(run_batch)
        self._store.free_orphans()
        while True:
            self._submit(task)
            if not self._batches:
                control = self._store.control()
                if self.stopped or (not control.waiting and not control.running):
                    return
                self._store.free_orphans()
            done, _ = self._ray.wait(list(self._batches), timeout=WAIT_SECONDS) if self._batches else ([], [])
            for reference in done:
                self._collect(reference)
            if not self._batches:
                time.sleep(WAIT_SECONDS)

    def _submit(self, task: Any) -> None:
        control = self._store.control()
        settings = self._settings
        if control.state == "stopped":
            self.stopped = self.stopped or "stopped"
        if settings.max_cost is not None and control.cost >= settings.max_cost:
            self.stopped = "max_cost"
        if settings.max_tokens is not None and control.tokens >= settings.max_tokens:
            self.stopped = "max_tokens"
        if self.stopped or control.state == "paused":
            return
        wanted = max(int(self._ray.cluster_resources().get("CPU", 0)), 1) * TASKS_PER_CPU - len(self._batches)
        claims = self._store.exchange((), max(wanted, 0) * TRIALS_PER_TASK, 0.0, 0)
        for first in range(0, len(claims), TRIALS_PER_TASK):
            chosen = tuple(claims[first : first + TRIALS_PER_TASK])
            batch = Batch(
                name=self._store.path.stem,
                claims=chosen,
                make_agent=self._make_agent,
                scorers=self._scorers,
                origin=settings.origin,
            )
            self._batches[task.remote(batch)] = batch

    def _collect(self, reference: Any) -> None:
        """Store the results of a batch. One that was lost for good runs again later."""
        from ray.exceptions import RayError, RayTaskError

        batch = self._batches.pop(reference)
        try:
            result: BatchResult = self._ray.get(reference)
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except RayError:
            lost = [Released(claim, after=WAIT_SECONDS, failed=True) for claim in batch.claims]
            self._store.exchange(lost, 0, 0.0, 0)
            return
        done = [
            self._done(claim, outcome, scores)
            for claim, outcome, scores in zip(batch.claims, result.outcomes, result.scores, strict=True)
        ]
        self._bring_home(result.journal, {each.claim.run_id for each in done if isinstance(each, Finished)})
        cost = sum(outcome.cost or 0.0 for outcome in result.outcomes)
        tokens = sum(outcome.input_tokens + outcome.output_tokens for outcome in result.outcomes)
        self._store.exchange(done, 0, cost, tokens)

    def _done(self, claim: Claim, outcome: RunOutcome, scores: Mapping[str, Score]) -> Finished | Released:
        kind = error_type(outcome.error_kind)
        if kind is not None and issubclass(kind, FATAL):
            raise kind(outcome.error)
        if outcome.transient and claim.tries < self._settings.retries:
            return Released(claim, self._settings.wait_before(claim.tries), failed=True)
        return Finished(claim, outcome, scores)

    def _bring_home(self, journal: bytes, run_ids: set[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / FILE_NAME).write_bytes(zlib.decompress(journal))
            copy_runs(Path(folder), open_store(self._home), run_ids)


def _connected(address: str) -> Any:
    """Return the module ray, connected to a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UsageError("--ray needs Ray: pip install 'closeout[ray]'.") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise UsageError(
                f"No Ray cluster at {address}: {error}. Start one with `ray start --head`, or leave --ray out."
            ) from None
    return ray
