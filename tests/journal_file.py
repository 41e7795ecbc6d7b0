"""Reads and replaces the events in a journal's file, for tests that damage a record or look at it from outside."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from closeout.journal.store import close_stores

FILE = "journal.sqlite3"


def stored_events(home: Path) -> dict[int, list[Any]]:
    """Place → [time, type, fields] of every event on disk, in order."""
    found = {}
    db = sqlite3.connect(home / FILE)
    try:
        for place, body in db.execute("SELECT place, body FROM events ORDER BY place").fetchall():
            found.update({place + number: event for number, event in enumerate(json.loads(body))})
    finally:
        db.close()
    return found


def store_events(home: Path, events: dict[int, list[Any] | bytes]) -> None:
    """Replace the stored events, one row each and without a checksum; bytes go in as they are."""
    db = sqlite3.connect(home / FILE)
    try:
        rows = [(place, e if isinstance(e, bytes) else json.dumps([e])) for place, e in events.items()]
        db.execute("DELETE FROM events")
        db.executemany("INSERT INTO events VALUES (?,?,NULL)", rows)
        db.commit()
    finally:
        db.close()


def as_if_killed(home: Path) -> None:
    """Make the runs look as if their process was killed before it could record and sync their ends."""
    db = sqlite3.connect(home / FILE)
    try:
        db.execute("UPDATE runs SET status='running', ended=NULL")
        db.commit()
    finally:
        db.close()
    (home / "journal.synced").unlink(missing_ok=True)


def cut_record(home: Path, end: int) -> None:
    """Leave so many events, or drop as many as a negative number says, as a process that was killed then does."""
    close_stores()
    events = stored_events(home)
    store_events(home, {place: events[place] for place in list(events)[:end]})
    as_if_killed(home)


def cut_after(home: Path, kind: str, number: int = 0) -> None:
    """Leave the events up to one of a type, the first unless a number says which."""
    kinds = [event[1] for event in stored_events(home).values()]
    cut_record(home, [end for end, each in enumerate(kinds, 1) if each == kind][number])


def cuts(home: Path, step: int = 1) -> Iterator[int]:
    """Leave the first event, then the first two and so on up to all but the last. Yields how many."""
    events = stored_events(home)
    for kept in range(1, len(events), step):
        close_stores()
        store_events(home, {place: events[place] for place in list(events)[:kept]})
        as_if_killed(home)
        yield kept
