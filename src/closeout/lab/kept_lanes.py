"""The lanes that a what-if comparison keeps in the home, so that it can be continued: those paid for, or different."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from closeout.errors import JournalError, JournalLocked
from closeout.journal.events import Event, ModelFailed, ModelReplied, RunEnded, RunStarted
from closeout.journal.run_journal import Journal
from closeout.journal.run_names import LAB
from closeout.journal.store import Row, RunRecord, Store
from closeout.messages import Usage

__all__ = ["KeptComparison", "KeptLane", "paid_usage"]


class KeptComparison:
    """A comparison of recorded runs with an agent: a run of its own, under whose name its lanes are kept.

    It is kept from the first lane on that is. If it is stopped, the next one of its name continues it; if it has come
    to its end, the next one takes its place.

    Args:
        store: The home.
        name: What is compared with what, as a digest.

    Attributes:
        runs: The ids of the compared runs.
    """

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.runs: tuple[str, ...] = ()
        self._run_id = f"{LAB}.{name}"
        self._journal: Journal | None = None
        self._stopped = False
        self._lanes: dict[str, list[RunRecord]] = {}
        self._beginning = asyncio.Lock()

    async def load(self, choose: Callable[[], Sequence[str]]) -> Usage:
        """Find the runs: those of the comparison that was stopped, or what `choose` returns.

        Returns:
            What the stopped comparison has paid.

        Raises:
            JournalLocked: Another process is running this comparison.
        """
        return await self.store.off_loop(self._load, choose)

    def _load(self, choose: Callable[[], Sequence[str]]) -> Usage:
        found = self.store.runs_under(self._run_id)
        own = next((run for run in found if run.run_id == self._run_id), None)
        if own is not None and own.status == "running":
            raise JournalLocked(f"Another process is running this comparison ({self._run_id}).")
        self._stopped = own is not None and own.status == "interrupted"
        if not self._stopped:
            if found:
                self.store.delete_runs([run.run_id for run in found])
            self.runs = tuple(choose())
            return Usage()
        started = next(self.store.rows(self._run_id)).event
        assert isinstance(started, RunStarted)
        self.runs = tuple(map(str, started.origin[LAB]["runs"]))
        for run in found:
            if run is not own:
                self._lanes.setdefault(self._lane_of(run.run_id), []).append(run)
        return sum((paid_usage(self.store.rows(lanes[-1].run_id)) for lanes in self._lanes.values()), Usage())

    def _lane_of(self, run_id: str) -> str:
        """Return the name of a lane without the number of the try."""
        above, _, name = run_id.rpartition(".")
        return f"{above}.{name.partition('~')[0]}"

    async def lane(self, run_id: str, name: str) -> KeptLane:
        """Return the lane of a run, with what is kept of it."""
        lane = f"{self._run_id}.{run_id}.{name}"
        kept = self._lanes.get(lane, [])
        before = (await self.store.off_loop(self.store.read, kept[-1].run_id)).rows if kept else ()
        return KeptLane(self, lane, [run.run_id for run in kept], tuple(before), origin={"run": run_id, "lane": name})

    async def begin(self) -> None:
        """Keep the comparison, if it is not yet kept."""
        async with self._beginning:
            if self._journal is None and self._stopped:
                self._journal = await Journal.resume(self.store, self._run_id)
            elif self._journal is None:
                task = f"What-if comparison of {len(self.runs)} runs"
                started = RunStarted("main", task, name=LAB, origin={LAB: {"runs": self.runs}})
                self._journal = await Journal.begin(self.store, started, run_id=self._run_id)

    async def end(self, said: str) -> None:
        """Note that the comparison has come to its end."""
        if self._stopped:
            await self.begin()
        if self._journal is not None:
            await self._journal.end(RunEnded("main", "answered", "compared", answer=said))
            self._journal = None

    def abandon(self) -> None:
        """Leave the comparison unless it has ended. What is kept can be continued."""
        if self._journal is not None:
            self._journal.abandon()


class KeptLane:
    """One lane of a comparison, which is written to the home from its first request that is paid for.

    A lane that is continued is executed again, and what was paid before is taken from its earlier tries.

    Attributes:
        before: The events of its last try.
        run_id: The run in the home that keeps it; empty as long as nothing does.
    """

    def __init__(
        self,
        comparison: KeptComparison,
        name: str,
        tries: list[str],
        before: tuple[Row, ...],
        *,
        origin: Mapping[str, Any],
    ) -> None:
        self._comparison = comparison
        self._name = name
        self._tries = tries
        self._origin = origin
        self._journal: Journal | None = None
        self._paid: set[tuple[str, str]] = set()
        self._beginning = asyncio.Lock()
        self.before = before
        self.run_id = tries[-1] if tries else ""

    @property
    def was_stopped(self) -> bool:
        """True if the last try was stopped."""
        return bool(self.before) and not isinstance(self.before[-1].event, RunEnded)

    def note_paid(self, started: Event) -> None:
        """Note that the reply to a request was paid for. Others are written without their usage."""
        self._paid.add((started.agent, started.key))

    async def begin(self, source: Journal) -> None:
        """Write the lane to the home, from now on too, and wait until all events of its journal so far are written."""
        async with self._beginning:
            if self._journal is not None:
                await self._journal.committed()
                return
            await self._comparison.begin()
            store = self._comparison.store
            started = source.started
            assert started is not None
            started = replace(started, name=LAB, origin={LAB: self._origin})
            run_id = _next_try(self._tries[-1]) if self._tries else self._name
            model = str(started.fingerprint.get("model", ""))
            journal = await Journal.begin(store, started, model, run_id=run_id)
            self._journal, self.run_id = journal, run_id
            for row in source.rows()[1:]:
                self.add(row.event)
            await journal.committed()
        if self._tries:
            with suppress(JournalError):  # it may be looked at
                await store.off_loop(store.delete_runs, self._tries, sweep=False)

    def add(self, event: Event) -> None:
        """Write an event, if the lane is written."""
        if self._journal is None or event.momentary:
            return
        if isinstance(event, (ModelReplied, ModelFailed)) and (event.agent, event.key) not in self._paid:
            event = replace(event, usage={})
        self._journal.append(event)

    async def end(self, ended: RunEnded) -> None:
        """Write the end, if the lane is written."""
        if self._journal is not None:
            await self._journal.end(ended)
            self._journal = None

    def abandon(self) -> None:
        """Leave the lane without an end, unless it has one."""
        if self._journal is not None:
            self._journal.abandon()
            self._journal = None


def _next_try(run_id: str) -> str:
    above, _, name = run_id.rpartition(".")
    lane, _, number = name.partition("~")
    return f"{above}.{lane}~{int(number or 1) + 1}"


def paid_usage(rows: Any) -> Usage:
    """Return the usage of the requests of a kept lane that were paid for."""
    replies = (row.event for row in rows if isinstance(row.event, (ModelReplied, ModelFailed)))
    return sum((Usage(**event.usage) for event in replies), Usage())
