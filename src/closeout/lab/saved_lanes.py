"""Save lanes of a what-if comparison as runs of the home: those with paid requests, and those that differ."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from closeout.errors import JournalLocked
from closeout.journal.events import Event, ModelFailed, ModelReplied, RunEnded
from closeout.journal.retention import delete_runs
from closeout.journal.run_journal import Journal, open_journal
from closeout.journal.run_names import LAB
from closeout.journal.store import Store

__all__ = ["SavedLane", "delete_lanes"]


def delete_lanes(store: Store, comparison: str) -> None:
    """Delete the lanes saved by an earlier comparison of this name.

    Raises:
        JournalLocked: Another process is running this comparison.
        UsageError: A lane is on hold.
    """
    found = store.runs_under(comparison)
    if any(run.status == "running" for run in found):
        raise JournalLocked(f"Another process is running this comparison ({comparison}).")
    delete_runs(store, [run.run_id for run in found])


class SavedLane:
    """One lane of a comparison, which is written to the home from its first paid request on.

    Args:
        store: The home.
        name: The id of its run.
        origin: The origin of its run.

    Attributes:
        run_id: Its run in the home; empty until it is written.
    """

    def __init__(self, store: Store, name: str, *, origin: Mapping[str, Any]) -> None:
        self._store = store
        self._name = name
        self._origin = origin
        self._journal: Journal | None = None
        self._paid: set[tuple[str, str]] = set()
        self._beginning = asyncio.Lock()
        self.run_id = ""

    def note_paid(self, started: Event) -> None:
        """Note that a request was paid for. Other replies are written without usage."""
        self._paid.add((started.agent, started.key))

    async def begin(self, source: Journal) -> None:
        """Begin to write the lane to the home, and wait until all events of its journal so far are written."""
        async with self._beginning:
            if self._journal is not None:
                await self._journal.committed()
                return
            assert source.started is not None
            started = replace(source.started, name=LAB, origin={LAB: self._origin})
            model = str(started.fingerprint.get("model", ""))
            self._journal = await open_journal(Journal.start, self._store, started, model, run_id=self._name)
            self.run_id = self._name
            for row in source.rows()[1:]:
                self.add(row.event)
            await self._journal.committed()

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
