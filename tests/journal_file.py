"""The events in a journal's file as they lie there: for tests that damage a record, or look at it from outside."""

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
    """Put these in place of what is there, each in a row of its own; bytes go in as they are."""
    db = sqlite3.connect(home / FILE)
    try:
        rows = [(place, e if isinstance(e, bytes) else json.dumps([e])) for place, e in events.items()]
        db.execute("DELETE FROM events")
        db.executemany("INSERT INTO events VALUES (?,?)", rows)
        db.commit()
    finally:
        db.close()
