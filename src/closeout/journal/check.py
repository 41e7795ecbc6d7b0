"""Examines a home: whether the journal's file is whole, and which runs have a damaged record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from closeout.errors import JournalError
from closeout.homes import Home
from closeout.journal.events import RunStarted, ToolFinished
from closeout.journal.readonly import open_to_read
from closeout.journal.store import Row, Store

__all__ = ["HomeReport", "check_home"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeReport:
    """The contents of a home, and the problems found in it.

    Attributes:
        runs: how many runs the journal holds.
        events: how many events they have.
        file_problems: what SQLite's integrity check found.
        run_problems: for each damaged run, its name and what is wrong with its record.
    """

    runs: int
    events: int
    file_problems: tuple[str, ...]
    run_problems: tuple[tuple[str, tuple[str, ...]], ...]


def check_home(home: Home) -> HomeReport:
    """Read every row of the journal of a home and report what is damaged. Nothing is changed.

    Raises:
        JournalError: the journal cannot be opened.
    """
    with open_to_read(home) as store:
        damaged: list[tuple[str, tuple[str, ...]]] = []
        events = 0
        records = list(store.each_run())
        for record in records:
            found = store.read(record.run_id)
            events += len(found.rows)
            problems = (*found.problems, *_lost_contents(store, found.rows))
            if problems:
                damaged.append((record.run_id, problems))
        return HomeReport(
            runs=len(records), events=events, file_problems=store.database.examine(), run_problems=tuple(damaged)
        )


def _lost_contents(store: Store, rows: Iterable[Row]) -> Iterator[str]:
    """Yield what is wrong with the contents of the files that a run names."""
    for row in rows:
        event = row.event
        files = event.kept_files if isinstance(event, RunStarted) else ()
        for file in event.files if isinstance(event, ToolFinished) else files:
            try:
                if "sha256" in file:
                    store.content(str(file["sha256"]))
            except (JournalError, ValueError):
                yield f"the content of the file {str(file.get('name'))!r:.80} is missing or damaged"
