"""A sweep: one process's share of an evaluation. It claims trials, runs and scores them, and stores the results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ParamSpec, TypeAlias, TypeVar

from closeout.agent import Agent
from closeout.errors import (
    AuthenticationFailed,
    ConfigError,
    JournalDamaged,
    JournalError,
    JournalLocked,
    ModelNotFound,
    ModelUnavailable,
    ResumeRefused,
    UsageError,
    error_type,
)
from closeout.evaluate.outcome import RunOutcome, store_of
from closeout.evaluate.pacing import AdaptiveLimit, SweepGate
from closeout.evaluate.scorers import Scorer
from closeout.evaluate.scores import Attempted, Score
from closeout.evaluate.tasks import EvalTask
from closeout.evaluate.trials import Finished, Released, TrialClaim, TrialStore
from closeout.homes import DatabaseHome
from closeout.run.gate import RequestGate

__all__ = ["AgentFor", "Sweep", "SweepSettings", "attempted", "may_run_again", "run_options", "score_attempt"]

P = ParamSpec("P")
T = TypeVar("T")
AgentFor: TypeAlias = Callable[[EvalTask], Agent[Any]]

# Seconds between checks for changes by other processes.
POLL_SECONDS = 0.5
# Seconds that a stopped sweep waits for tools before it interrupts their runs.
GRACE_SECONDS = 30.0
LONGEST_RETRY_WAIT = 60.0  # seconds
# Every other trial would fail in the same way: the sweep stops, and the trials can be run once that is corrected.
FATAL = (AuthenticationFailed, ConfigError, ModelNotFound, ModelUnavailable)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """The settings of a sweep.

    Attributes:
        concurrency: The number of trials at once, or "auto" for one that adapts to the endpoint.
        max_cost: US dollars that all workers of the evaluation may spend together.
        max_tokens: Tokens that they may spend.
        retries: How often a trial that failed for a transient reason is tried again.
        retry_wait: Seconds before the first of these tries; doubled for each further one.
        despite_changes: Resume runs of another agent.
        origin: Notes for the runs.
        command: The command that started this worker, for people.
    """

    concurrency: int | str = 10
    max_cost: float | None = None
    max_tokens: int | None = None
    retries: int = 3
    retry_wait: float = 2.0
    despite_changes: bool = False
    origin: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""

    def __post_init__(self) -> None:
        many = self.concurrency
        if many != "auto" and (not isinstance(many, int) or many < 1):
            raise UsageError(f"concurrency must be a number from 1, or 'auto', got {many!r}.")

    def retry_or_raise(self, claim: TrialClaim, outcome: RunOutcome) -> Released | None:
        """Return the release of a trial whose run failed for a transient reason, None if it is not tried again.

        Raises:
            ConfigError, ModelError: The run failed for a reason for which every other trial would fail too.
        """
        kind = error_type(outcome.error_kind)
        if kind is not None and issubclass(kind, FATAL):
            raise kind(outcome.error)
        if outcome.transient and claim.tries < self.retries:
            return Released(claim, min(self.retry_wait * 2**claim.tries, LONGEST_RETRY_WAIT), failed=True)
        return None


class Sweep:
    """One worker of an evaluation.

    Args:
        store: The evaluation's trials.
        agent_for: Returns the agent for a task.
        scorers: The scorers of the trials.
        settings: Its settings.
    """

    def __init__(
        self, store: TrialStore, agent_for: AgentFor, scorers: Sequence[Scorer], settings: SweepSettings
    ) -> None:
        self._store = store
        self._agent_for = agent_for
        self._scorers = scorers
        self._settings = settings
        self._database = ThreadPoolExecutor(1, "closeout-evaluation")
        limited = settings.max_cost is not None or settings.max_tokens is not None
        self.gate = SweepGate(
            settings.concurrency if isinstance(settings.concurrency, int) else AdaptiveLimit(),
            spend=self._spend if limited else None,
            max_cost=settings.max_cost,
            max_tokens=settings.max_tokens,
        )
        self._running: dict[asyncio.Task[None], TrialClaim] = {}
        self._done: list[Finished | Released] = []
        self._changed = asyncio.Event()
        self._paused = False
        self._failure: Exception | None = None

    @property
    def stopped(self) -> str:
        """The reason for an end before all trials were done, such as "stopped", "max_cost"; else empty."""
        return self.gate.closed

    def stop(self, reason: str = "stopped") -> None:
        """Send no more requests. Those in flight end, and the trials can be resumed later."""
        self.gate.close(reason)
        self._changed.set()

    async def run(self) -> None:
        """Work until every trial is done, including those claimed by other processes, or until it is stopped.

        Raises:
            JournalError: A journal cannot be written.
            ModelError: The endpoint refuses every request: a wrong key, address or model.
            UsageError: The budget cannot be kept.
        """
        try:
            await self._call(self._store.register, self._settings.command)
            await self._call(self._store.free_orphans)
            await self._call(self._store.wake_suspended)
            await self._work()
        finally:
            await self._interrupt()
            await self._call(self._store.release_all)
            self._database.shutdown()
        failure = self._failure or self.gate.failure
        if failure is not None:
            raise failure

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        next_look, closed_at = 0.0, 0.0
        while True:
            self._changed.clear()
            claims = await self._exchange()
            for claim in claims:
                task = asyncio.create_task(self._trial(claim))
                self._running[task] = claim
                task.add_done_callback(self._ended)
            now = loop.time()
            if self.gate.closed:
                closed_at = closed_at or now
                if not self._running and not self._done:
                    return
                idle = not self.gate.in_flight
                if idle and (self.gate.blocked >= len(self._running) or now > closed_at + GRACE_SECONDS):
                    await self._interrupt()
                    continue
            elif now >= next_look:
                next_look = now + POLL_SECONDS
                if await self._look() and not self._running and not self._done:
                    return
            if not self._done:
                await self._wait(0.05 if self.gate.closed else POLL_SECONDS)

    async def _exchange(self) -> list[TrialClaim]:
        """Store results and claim all trials that may run now."""
        done, self._done = self._done, []
        free = 0 if self.gate.closed or self._paused else self.gate.limit - len(self._running)
        if not done and free <= 0:
            return []
        cost, tokens = self.gate.take_spent()
        return await self._call(self._store.exchange, done, free, cost, tokens)

    async def _look(self) -> bool:
        """Read the controls and free the trials of dead processes. Return whether every trial is done."""
        control = await self._call(self._store.control)
        self._paused = control.state == "paused"
        if control.state == "stopped":
            self.stop()
        self.gate.set_limit(control.concurrency)
        if control.running > len(self._running) and not control.waiting:
            await self._call(self._store.free_orphans)
        return not control.waiting and not control.running

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _interrupt(self) -> None:
        """Cancel the running trials and release them. They can be resumed."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._done and self._store.worker:
            done, self._done = self._done, []
            await self._call(self._store.exchange, done, 0, *self.gate.take_spent())

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._changed.set()

    # -------------------------------------------------------------------------------------------- one trial

    async def _trial(self, claim: TrialClaim) -> None:
        try:
            done = await self._finish(claim)
        except asyncio.CancelledError:
            done = Released(claim)
        except Exception as error:
            done = Released(claim)
            self._failure = self._failure or error
            self.stop("failed")
        self._done.append(done)

    async def _finish(self, claim: TrialClaim) -> Finished | Released:
        task, settings = claim.task, self._settings
        try:
            agent = self._agent_for(task).with_gate(self.gate)
        except (*FATAL, UsageError):  # every task would fail with it
            raise
        except Exception as error:  # of the user's function
            text = f"The agent for this task could not be made: {type(error).__name__}: {error}"
            return Finished(claim, replace(RunOutcome.of_error(error), error=text), {})
        if claim.node and not isinstance(store_of(agent).home, DatabaseHome) and not await may_run_again(agent):
            return Finished(claim, RunOutcome.of_lost(), {})
        try:
            result = await agent.run_once(
                task.question,
                despite_changes=settings.despite_changes,
                **run_options(claim, self._store.path.stem, settings.origin),
            )
            outcome = RunOutcome.of_result(result)
        except JournalLocked:
            return Released(claim, after=POLL_SECONDS)
        except (ResumeRefused, JournalDamaged, UsageError) as error:
            outcome = RunOutcome.of_error(error)
        if outcome.stop_reason == "journal_failed":
            raise (error_type(outcome.error_kind) or JournalError)(outcome.error)
        if again := settings.retry_or_raise(claim, outcome):
            return again
        if outcome.suspended:
            return Finished(claim, outcome, {})
        attempt = attempted(claim, outcome, partial(_rows, agent, claim.run_id), self.gate)
        return Finished(claim, outcome, {each.name: await score_attempt(each, attempt) for each in self._scorers})

    # -------------------------------------------------------------------------------------------- the database

    async def _call(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the thread of the database. It is called even if the wait for it is cancelled."""
        called = asyncio.get_running_loop().run_in_executor(self._database, partial(act, *args, **kwargs))
        return await asyncio.shield(called)

    def _spend(self, cost: float, tokens: int) -> asyncio.Future[tuple[float, int]]:
        return asyncio.get_running_loop().run_in_executor(self._database, self._store.spend, cost, tokens)


async def may_run_again(agent: Agent[Any]) -> bool:
    """Return True if a run whose record is lost may begin again: none of the agent's tools has effects."""
    from closeout.run.subagents import may_rerun

    async with agent:
        return may_rerun(agent.plan())


def run_options(claim: TrialClaim, evaluation: str, origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Agent.run_once` for a trial. The origin of its run names the trial."""
    task = claim.task
    return {
        "run_id": claim.run_id,
        "files": task.files,
        "task_id": task.id,
        "ground_truth": " | ".join(task.golds) or None,
        "origin": {**origin, "evaluation": evaluation, "task": task.id, "epoch": claim.epoch},
    }


def attempted(
    claim: TrialClaim, outcome: RunOutcome, read_rows: Callable[[], Sequence[Any]], gate: RequestGate | None = None
) -> Attempted:
    """Return a trial as scorers see it."""
    return Attempted(
        task=claim.task,
        answer=outcome.answer,
        status=outcome.status,
        run_id=claim.run_id,
        epoch=claim.epoch,
        read_rows=read_rows,
        gate=gate,
    )


async def score_attempt(scorer: Scorer, attempt: Attempted) -> Score:
    """Return a trial's score. One that failed is wrong, and so is one whose scorer fails."""
    if attempt.status == "failed":
        return Score(0.0, False, "The run failed.")
    try:
        return await scorer.score(attempt)
    except JournalError:
        raise
    except Exception as error:  # an error in a user's function must not cost the other trials
        return Score(0.0, False, f"The scorer failed: {type(error).__name__}: {error}", judged=False)


def _rows(agent: Agent[Any], run_id: str) -> Sequence[Any]:
    store = agent.store()
    return () if store is None else store.read(run_id).rows
