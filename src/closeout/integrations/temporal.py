"""Execute the runs of an agent as Temporal workflows: an activity for each leg, timers and signals for the waits.

Needs the extra `temporal`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

try:
    from temporalio import activity, workflow
    from temporalio.client import Client
    from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy
    from temporalio.exceptions import TemporalError
    from temporalio.service import RPCError
    from temporalio.worker import Worker
except ImportError as error:
    raise ImportError("Temporal is not installed: pip install 'closeout[temporal]'.") from error

from closeout.agent import Agent
from closeout.errors import JournalError, RunNotFound

__all__ = ["RunWorkflow", "TemporalRuns"]

log = logging.getLogger("closeout")

LEG = "closeout.leg"
WAKE = "wake"
# The most days that a leg may take.
LEG_DAYS = 30
# Seconds to wait at least: the clocks of Temporal and of the journal may differ.
LEAST_WAIT = 1.0


@workflow.defn(name="closeout.run", sandboxed=False)  # it imports the agent, and is deterministic
class RunWorkflow:
    """Executes the legs of a run one after another, until the run has ended."""

    def __init__(self) -> None:
        self._wakings = 0

    @workflow.signal(name=WAKE)
    def wake(self) -> None:
        """Look at the run again: it was sent a signal, or somebody has decided."""
        self._wakings += 1

    @workflow.run
    async def run(self, run_id: str, heartbeat_seconds: float) -> str:
        """Execute a run. Returns the status with which it has ended."""
        while True:
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(args=[run_id, heartbeat_seconds])
            seen = self._wakings
            leg: Mapping[str, Any] = await workflow.execute_activity(
                LEG,
                run_id,
                start_to_close_timeout=timedelta(days=LEG_DAYS),
                heartbeat_timeout=timedelta(seconds=heartbeat_seconds),
                # Unlimited attempts. Another process may hold the run for a while.
                retry_policy=RetryPolicy(
                    backoff_coefficient=1.5,
                    maximum_interval=timedelta(seconds=10),
                    non_retryable_error_types=[RunNotFound.__name__],
                ),
            )
            if leg["ended"]:
                return str(leg["status"])
            wait = None
            if leg["until"] is not None:
                left = (datetime.fromisoformat(leg["until"]) - workflow.now()).total_seconds()
                wait = timedelta(seconds=max(LEAST_WAIT, left))
            with suppress(TimeoutError):
                await workflow.wait_condition(lambda seen=seen: self._wakings != seen, timeout=wait)


class TemporalRuns:
    """Executes the runs of an agent on Temporal.

    Temporal decides when and where a leg is executed. Only the journal records what has happened, so a leg can be
    repeated, and a lost workflow is started again.

    Args:
        agent: The agent. All workers need access to its home.
        client: The client of Temporal.
        task_queue: The name of the queue of workflows and legs. Defaults to one for the agent's name.
        heartbeat_seconds: The time without a heartbeat after which a worker counts as dead.
    """

    def __init__(
        self, agent: Agent[Any, Any], client: Client, *, task_queue: str = "", heartbeat_seconds: float = 30.0
    ) -> None:
        self.agent = agent
        self.client = client
        self.heartbeat_seconds = heartbeat_seconds
        self.task_queue = task_queue or f"closeout-{agent.name}"

    async def work(self, *, limit: int = 10, sweep_seconds: float = 10.0, **options: Any) -> None:
        """Execute workflows and legs in this process, and sweep regularly, until cancelled.

        Args:
            limit: The maximum number of concurrent legs.
            sweep_seconds: The interval between two sweeps.
            options: As for `temporalio.worker.Worker`.
        """
        async with Worker(
            self.client,
            task_queue=self.task_queue,
            workflows=[RunWorkflow],
            activities=[self._leg],
            max_concurrent_activities=limit,
            **options,
        ):
            while True:
                try:
                    await self.sweep()
                except (JournalError, RPCError, TemporalError) as error:  # one of them is away for a while
                    log.warning("No runs can be found: %s", error)
                await asyncio.sleep(sweep_seconds)

    async def wake(self, run_id: str) -> None:
        """Begin the workflow of a run, or let it look at the run again: after `submit`, `signal` or `decide`."""
        await self.client.start_workflow(
            RunWorkflow.run,
            args=[run_id, self.heartbeat_seconds],
            id=f"closeout/{self.agent.name}/{run_id}",
            task_queue=self.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal=WAKE,
        )

    async def sweep(self) -> list[str]:
        """Wake each run that can continue, whichever process submitted, signalled or decided it. Returns their ids."""
        ready = await self.agent.ready_runs()
        for run_id in ready:
            await self.wake(run_id)
        return ready

    @activity.defn(name=LEG)
    async def _leg(self, run_id: str) -> dict[str, Any]:
        beating = asyncio.create_task(_beat())
        try:
            found = await self.agent.leg(run_id)
        finally:
            beating.cancel()
        until = None if found.until is None else found.until.isoformat()
        return {"ended": found.ended, "status": found.result.status, "until": until}


async def _beat() -> None:
    timeout = activity.info().heartbeat_timeout
    while timeout is not None:
        activity.heartbeat()
        await asyncio.sleep(timeout.total_seconds() / 5)
