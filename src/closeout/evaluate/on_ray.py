"""Run the trials of an evaluation as tasks of a Ray cluster, and bring their journals home.

The driver claims trials like any worker, so drivers and ordinary workers may share an evaluation. It chooses the node
of each trial and notes it before it sends the trial there. A task runs a batch of trials in the journal that its node
keeps for the evaluation, and returns their outcomes, their scores and their runs. An interrupted trial is resumed on
its node. If the node is gone, so are the intents of its calls: a trial that had begun is run again if no tool of the
agent has effects, and is otherwise reported as interrupted. If the home is a database, runs are recorded there: no node
keeps a journal, and any of them resumes an interrupted trial. Ray itself repeats nothing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from closeout.agent import Agent
from closeout.errors import BudgetReached, JournalError, JournalLocked, UsageError
from closeout.evaluate.outcome import RunOutcome, agent_for_task, store_of
from closeout.evaluate.scorers import Scorer, ScorerSource, make_scorer
from closeout.evaluate.scores import Score
from closeout.evaluate.sweep import AgentFor, SweepSettings, attempted, may_run_again, run_options, score_attempt
from closeout.evaluate.trials import Finished, Released, TrialClaim, TrialStore
from closeout.homes import DatabaseHome, Home
from closeout.journal.copying import copy_runs
from closeout.journal.database import FILE_NAME
from closeout.journal.events import ModelFailed, ModelReplied
from closeout.journal.store import Store, close_stores, open_store

__all__ = ["Batch", "BatchResult", "RaySweep", "prepare_folder", "remove_folder", "run_batch"]

T = TypeVar("T")

TRIALS_PER_TASK = 10
# More than one, so that no CPU waits for the driver.
TASKS_PER_CPU = 2
# Retries of a trial whose task's process died.
MAX_TRIES = 10
WAIT_SECONDS = 0.5
# Seconds that a node has to delete its folder at the end.
CLEAN_UP_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Trials for one task of the cluster.

    Attributes:
        name: The evaluation.
        node: The node.
        folder: The name of the folder that the node keeps for the evaluation.
        claims: The trials.
        lost: True if the trials began on a node whose record is lost.
        make_agent: Makes the agent for a task, on the node.
        scorers: Names of scorers, or functions that can be pickled.
        origin: Notes for the runs.
        home: The database that keeps the runs; None for the folder of the node.
    """

    name: str
    node: str
    folder: str
    claims: tuple[TrialClaim, ...]
    make_agent: AgentFor
    scorers: tuple[ScorerSource, ...]
    origin: Mapping[str, Any]
    home: DatabaseHome | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A task's result: the outcome and the scores of each trial, and a compressed journal with their runs.

    The journal is empty if the runs are at home already.
    """

    outcomes: tuple[RunOutcome, ...]
    scores: tuple[Mapping[str, Score], ...]
    journal: bytes


def prepare_folder(name: str) -> bool:
    """Make a node's folder for an evaluation. Return True if it existed, with the records of earlier tasks."""
    folder = Path(tempfile.gettempdir()) / name
    existed = folder.is_dir()
    folder.mkdir(mode=0o700, exist_ok=True)
    return existed


def remove_folder(name: str) -> None:
    """Delete a node's folder for an evaluation."""
    shutil.rmtree(Path(tempfile.gettempdir()) / name, ignore_errors=True)


def run_batch(batch: Batch) -> BatchResult:
    """Run a batch of trials, in the process of a task.

    The node keeps their journal until the evaluation is done, so that a process or a driver that dies loses nothing.

    Raises:
        JournalError: The node's folder is gone, with the records of earlier tasks.
    """
    folder = Path(tempfile.gettempdir()) / batch.folder
    if not folder.is_dir():
        raise JournalError(f"{folder} is gone, the folder of an evaluation at work. Start the evaluation again.")
    before = os.environ.get("CLOSEOUT_HOME")
    os.environ["CLOSEOUT_HOME"] = str(folder / "home") if batch.home is None else batch.home.address
    try:
        agents = [batch.make_agent(claim.task) for claim in batch.claims]
        store = store_of(agents[0])
        outcomes, scores = zip(*asyncio.run(_run_trials(batch, agents, store)), strict=True)
        if isinstance(store.home, DatabaseHome):
            return BatchResult(outcomes, scores, b"")
        with tempfile.TemporaryDirectory(dir=folder) as pack:
            copy_runs(store.home, open_store(Path(pack)), {claim.run_id for claim in batch.claims})
            close_stores()
            return BatchResult(outcomes, scores, zlib.compress((Path(pack) / FILE_NAME).read_bytes()))
    finally:
        close_stores()
        if before is None:
            del os.environ["CLOSEOUT_HOME"]
        else:
            os.environ["CLOSEOUT_HOME"] = before


async def _run_trials(
    batch: Batch, agents: Sequence[Agent[Any]], store: Store
) -> list[tuple[RunOutcome, Mapping[str, Score]]]:
    from closeout.run.subagents import clients_of

    scorers = [make_scorer(scorer, home=store.home) for scorer in batch.scorers]
    trials = zip(batch.claims, agents, strict=True)
    try:
        return await asyncio.gather(*(_run_trial(batch, claim, agent, store, scorers) for claim, agent in trials))
    finally:
        for client in {id(each): each for agent in agents for each in clients_of(agent.plan())}.values():
            await client.aclose()


class _BudgetGate:
    """Interrupts the run of the current task when a budget has no room for a request, so that it can be resumed."""

    def __init__(self) -> None:
        self.reached: BudgetReached | None = None
        task = asyncio.current_task()
        assert task is not None
        self.task = task

    async def enter(self) -> None: ...

    def leave(self, outcome: ModelReplied | ModelFailed | None) -> None: ...

    def retried(self, error: Exception) -> None: ...

    async def over_budget(self, error: BudgetReached) -> None:
        if self.reached is None:
            self.reached = error
            self.task.cancel()
        await asyncio.get_running_loop().create_future()  # until it is cancelled


async def _run_trial(
    batch: Batch, claim: TrialClaim, agent: Agent[Any], store: Store, scorers: Sequence[Scorer]
) -> tuple[RunOutcome, Mapping[str, Score]]:
    task, gate = claim.task, _BudgetGate()
    runner = agent_for_task(agent, task).with_gate(gate)
    options = run_options(claim, batch.name, batch.origin)
    try:
        if batch.lost and not await may_run_again(runner):
            outcome = RunOutcome.of_lost()
        else:
            async with agent:
                result = await _once_free(lambda: runner.run_once(task.question, **options), store)
            outcome = RunOutcome.of_result(result)
    except UsageError as error:
        outcome = RunOutcome.of_error(error)
    except asyncio.CancelledError:
        if gate.reached is None:
            raise
        gate.task.uncancel()
        return RunOutcome.of_stopped(gate.reached), {}
    attempt = attempted(claim, outcome, lambda: store.read(claim.run_id).rows)
    return outcome, {each.name: await score_attempt(each, attempt) for each in scorers}


async def _once_free(run: Callable[[], Awaitable[T]], store: Store) -> T:
    """Run a trial. In a database, first wait until the lease of a dead task has ended."""
    home = store.home
    give_up = time.monotonic() + (2 * home.lease if isinstance(home, DatabaseHome) else 0.0)
    while True:
        try:
            return await run()
        except JournalLocked:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(WAIT_SECONDS)


class RaySweep:
    """The driver of an evaluation on a Ray cluster.

    Budgets are checked between batches: the batches in flight may exceed them.

    Args:
        store: The evaluation's trials.
        make_agent: Makes the agent for a task, on a node. It must be picklable, or importable there.
        scorers: Names of scorers, or functions.
        settings: Its settings; `concurrency` does not apply.
        home: Where the runs are kept.
        address: The cluster, "auto" for the one of this machine. Ignored if Ray is connected already.

    Raises:
        UsageError: Ray is not installed, or there is no cluster.
    """

    def __init__(
        self,
        store: TrialStore,
        make_agent: AgentFor,
        scorers: Sequence[ScorerSource],
        settings: SweepSettings,
        *,
        home: Home,
        address: str = "auto",
    ) -> None:
        self._store = store
        self._make_agent = make_agent
        self._scorers = tuple(scorers)
        self._settings = settings
        self._ray = _connected(address)
        self._home = home
        self._database = home if isinstance(home, DatabaseHome) else None
        self._kept: dict[str, bool] = {}  # node → True if its folder has records of earlier drivers
        self._sent: set[int] = set()  # the numbers of the trials that this driver sent
        self._batches: dict[Any, Batch] = {}  # batches in flight, by the reference of their result
        self.stopped = ""
        self._left = False  # True: nobody waits for the batches in flight

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
        working = asyncio.ensure_future(asyncio.to_thread(self._work))
        try:
            await asyncio.shield(working)
        finally:
            self._left = True
            await asyncio.wait([working])  # it uses the store, also if this task is cancelled
            for reference in self._batches:
                self._ray.cancel(reference, force=True)
            self._store.release_all()
        if not self.stopped:
            await asyncio.to_thread(self._clean_up)

    def _work(self) -> None:
        self._store.free_orphans()
        while not self._left:
            self._submit()
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

    def _submit(self) -> None:
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
        free = self._free()
        claims = self._store.exchange((), sum(max(tasks, 0) for tasks in free.values()) * TRIALS_PER_TASK, 0.0, 0)
        new: list[TrialClaim] = []
        lost: list[TrialClaim] = []
        begun: dict[str, list[TrialClaim]] = {}
        for claim in claims:
            if claim.node in free and (self._kept[claim.node] or claim.number in self._sent):
                begun.setdefault(claim.node, []).append(claim)
            else:
                (lost if claim.node and self._database is None else new).append(claim)
        for node, chosen in begun.items():
            free[node] -= self._send(chosen, node)
        for chosen in (new, lost):
            while chosen:
                node = max(free, key=free.__getitem__)
                free[node] -= self._send(chosen[:TRIALS_PER_TASK], node, lost=chosen is lost)
                del chosen[:TRIALS_PER_TASK]

    def _free(self) -> dict[str, int]:
        """Return how many tasks may be sent to each node that is alive and has CPUs."""
        busy = Counter(batch.node for batch in self._batches.values())
        return {
            node["NodeID"]: cpus * TASKS_PER_CPU - busy[node["NodeID"]]
            for node in self._ray.nodes()
            if node["Alive"] and (cpus := int(node["Resources"].get("CPU", 0))) and self._prepared(node["NodeID"])
        }

    def _folder(self, node: str) -> str:
        return f"closeout-{self._store.id}-{node}"  # a machine may be several nodes

    def _prepared(self, node: str) -> bool:
        """Make a node's folder, once. Return False if the node cannot be used now."""
        from ray.exceptions import RayError

        if node not in self._kept:
            try:
                self._kept[node] = self._ray.get(self._on(node, prepare_folder, self._folder(node), num_cpus=0))
            except RayError:
                return False
        return True

    def _on(self, node: str, function: Callable[[Any], Any], argument: Any, *, num_cpus: int) -> Any:
        """Call a function on a node, at most once. Return the reference of its result."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node, soft=False)
        task = self._ray.remote(num_cpus=num_cpus, max_retries=0, scheduling_strategy=there)(function)
        return task.remote(argument)

    def _send(self, claims: Sequence[TrialClaim], node: str, *, lost: bool = False) -> int:
        """Send trials to a node, and return the number of tasks."""
        if not lost:  # the note of a lost one says that it began
            self._store.send(claims, node)
            self._sent.update(claim.number for claim in claims)
        sent = 0
        for first in range(0, len(claims), TRIALS_PER_TASK):
            batch = Batch(
                name=self._store.path.stem,
                node=node,
                folder=self._folder(node),
                claims=tuple(claims[first : first + TRIALS_PER_TASK]),
                make_agent=self._make_agent,
                scorers=self._scorers,
                origin=self._settings.origin,
                home=self._database,
                lost=lost,
            )
            self._batches[self._on(node, run_batch, batch, num_cpus=1)] = batch
            sent += 1
        return sent

    def _clean_up(self) -> None:
        """Delete the nodes' folders: every run is at home."""
        tasks = [self._on(node, remove_folder, self._folder(node), num_cpus=0) for node in self._free()]
        self._ray.wait(tasks, num_returns=len(tasks), timeout=CLEAN_UP_SECONDS)

    def _collect(self, reference: Any) -> None:
        """Store the results of a batch. The trials of one that was lost are claimed again."""
        from ray.exceptions import RayError, RayTaskError, TaskUnschedulableError, WorkerCrashedError

        batch = self._batches.pop(reference)
        try:
            result: BatchResult = self._ray.get(reference)
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except RayError as error:
            if isinstance(error, TaskUnschedulableError):  # the node was gone before it began the task
                self._store.send([claim for claim in batch.claims if not claim.node], "")
            failed = isinstance(error, WorkerCrashedError)
            back = [
                Finished(claim, RunOutcome.of_lost(), {})
                if failed and claim.tries >= MAX_TRIES
                else Released(claim, WAIT_SECONDS, failed)
                for claim in batch.claims
            ]
            self._store.exchange(back, 0, 0.0, 0)
            return
        done = [
            self._done(claim, outcome, scores)
            for claim, outcome, scores in zip(batch.claims, result.outcomes, result.scores, strict=True)
        ]
        if result.journal:
            self._bring_home(result.journal, {each.claim.run_id for each in done if isinstance(each, Finished)})
        cost = sum(outcome.cost or 0.0 for outcome in result.outcomes)
        tokens = sum(outcome.input_tokens + outcome.output_tokens for outcome in result.outcomes)
        self._store.exchange(done, 0, cost, tokens)

    def _done(self, claim: TrialClaim, outcome: RunOutcome, scores: Mapping[str, Score]) -> Finished | Released:
        if outcome.stopped:
            self.stop(f"a budget: {outcome.error}")
            return Released(claim)
        return self._settings.retry_or_raise(claim, outcome) or Finished(claim, outcome, scores)

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
