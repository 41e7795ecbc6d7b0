"""Execute the runs of an agent as DBOS workflows: one for each leg, and a sweep for what a dead executor holds.

Needs the extra `dbos`.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

try:
    from dbos import DBOS
except ImportError as error:
    raise ImportError("DBOS is not installed: pip install 'closeout[dbos]'.") from error

from closeout.agent import Agent
from closeout.errors import JournalError, JournalLocked, RunNotFound

__all__ = ["DBOSRuns"]

log = logging.getLogger("closeout")

# Seconds until a leg is tried again whose run another process executes, or whose time has not quite come.
RETRY_SECONDS = 1.0


class DBOSRuns:
    """Executes the runs of an agent on DBOS. Make it before `DBOS.launch()`.

    DBOS decides when and where a leg is executed. Only the journal records what has happened, so a workflow can be
    repeated, and a lost one is started again.

    Args:
        agent: The agent. All executors need access to its home.
        queue: The name of the queue of legs, which `work` registers.
    """

    def __init__(self, agent: Agent[Any, Any], *, queue: str = "closeout") -> None:
        self.agent = agent
        self.queue = queue
        self._name = f"closeout.leg.{agent.name}"
        self._doubtful: set[str] = set()  # Workflows that the last sweep found at work on a run that nobody executed.
        DBOS.workflow(name=self._name)(self._workflow())

    async def work(self, *, limit: int = 10, sweep_seconds: float = 10.0) -> None:
        """Execute legs in this process, and sweep regularly, until cancelled.

        Args:
            limit: The maximum number of concurrent legs.
            sweep_seconds: The interval between two sweeps. A leg of a dead executor is queued again by the second one.
        """
        await DBOS.register_queue_async(self.queue, worker_concurrency=limit)
        while True:
            try:
                await self.sweep()
            except JournalError as error:  # a database that is away for a while
                log.warning("No runs can be found: %s", error)
            await asyncio.sleep(sweep_seconds)

    async def wake(self, run_id: str) -> None:
        """Queue a leg of a run, without waiting for a sweep: after `submit`, `signal` or `decide`."""
        await self._queue(_new_leg(run_id), run_id)

    async def sweep(self) -> list[str]:
        """Queue a leg of each run that can continue and has none, also of those that a dead executor holds.

        Returns:
            Their ids.
        """
        ready = await self.agent.ready_runs()
        legs = await DBOS.list_workflows_async(name=self._name, status=["PENDING", "ENQUEUED"], load_output=False)
        idle = {leg.workflow_id: leg.input["args"][0] for leg in legs if leg.status == "PENDING"}
        for name, run_id in list(idle.items()):
            if await self._is_at_work(run_id):
                del idle[name]
        lost, self._doubtful = idle.keys() & self._doubtful, set(idle)
        for name in lost:
            await DBOS.resume_workflow_async(name, queue_name=self.queue)
        new = set(ready) - {leg.input["args"][0] for leg in legs}
        for run_id in new:
            await self.wake(run_id)
        return [*new, *(idle[name] for name in lost)]

    async def _is_at_work(self, run_id: str) -> bool:
        store = self.agent.store()
        assert store is not None
        with suppress(RunNotFound):
            return (await store.off_loop(store.run, run_id)).status == "running"
        return False

    def _workflow(self) -> Any:
        async def execute(run_id: str) -> str:
            status, delay, following = await DBOS.run_step_async({"name": "leg"}, self._leg, run_id)
            if delay is not None:
                await self._queue(following, run_id, delay)
            return str(status)

        return execute

    async def _leg(self, run_id: str) -> tuple[str, float | None, str]:
        """Execute a leg. Returns its outcome, the seconds until the next one without a signal, and a name for that."""
        try:
            leg = await self.agent.leg(run_id)
        except JournalLocked:
            return "locked", RETRY_SECONDS, _new_leg(run_id)
        delay = None if leg.until is None else (leg.until - datetime.now(UTC)).total_seconds()
        return leg.result.status, delay and max(RETRY_SECONDS, delay), _new_leg(run_id)

    async def _queue(self, name: str, run_id: str, delay: float | None = None) -> None:
        options: Any = {"workflow_name": self._name, "queue_name": self.queue, "workflow_id": name}
        if delay is not None:
            options["delay_seconds"] = delay
        await DBOS.enqueue_workflow_with_options_async(options, run_id)


def _new_leg(run_id: str) -> str:
    return f"{run_id}/{uuid.uuid4()}"
