"""Reads and replaces the events in a journal's file, for tests that damage a record or look at it from outside."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

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
