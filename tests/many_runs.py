"""Writes journals with many runs, or one long run, straight into the file: recording them would take minutes."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from closeout.journal import events as ev
from closeout.journal.events import Event
from closeout.journal.journal_database import SEQ_BITS
from closeout.journal.store import Store

WORDS = [
    "canal",
    "bridge",
    "opened",
    "year",
    "river",
    "length",
    "metres",
    "source",
    "page",
    "table",
    "number",
    "found",
    "search",
    "result",
    "query",
    "document",
    "Rideau",
    "Panama",
    "Corinth",
    "Kiel",
    "Suez",
    "lock",
    "gate",
    "ship",
    "tonnage",
    "engineer",
    "built",
    "treaty",
]
BEGAN = 1_760_000_000.0


def prose(random_: random.Random, words: int) -> str:
    return " ".join(random_.choices(WORDS, k=words))


def short_run(number: int, turns: int = 4) -> list[Event]:
    """The events of an ordinary run: a task, a few turns with a call each, an answer."""
    random_ = random.Random(number)
    usage = {"input_tokens": 900, "output_tokens": 60, "cache_read_tokens": 700, "requests": 1, "cost_usd": 0.0004}
    events: list[Event] = [ev.RunStarted("main", f"Task {number}: {prose(random_, 12)}?")]
    events.append(ev.AttemptStarted("main", 0))
    for turn in range(turns):
        handle, arguments = f"r{turn + 1}", {"query": prose(random_, 3)}
        call = {"id": f"c{turn}", "name": "search", "arguments": arguments, "server_name": None, "text": ""}
        text, result = prose(random_, 20), prose(random_, 60)
        events += [
            ev.ModelRequested("main", turn, turn=turn, messages=2 + 2 * turn, size=4000 + 500 * turn, shared=3500),
            ev.ModelReplied("main", turn, text, tool_calls=(call,), usage=usage, model="m", ms=800.0),
            ev.ToolStarted("main", handle, "search", arguments=json.dumps(arguments), turn=turn),
            ev.ToolFinished("main", handle, "search", ok=True, record=json.dumps({"summary": result}), ms=120.0),
            ev.TurnAccepted(
                "main", 0, turn, text=text, calls=(call,),
                returns=({"call": 0, "text": result, "handle": handle, "ok": True, "tokens": 80, "images": ()},),
            ),
        ]  # fmt: skip
    events.append(ev.ModelRequested("main", turns, turn=turns, messages=2 + 2 * turns, size=6000, shared=5500))
    events.append(ev.ModelReplied("main", turns, f"The answer is {number}.", usage=usage, model="m", ms=500.0))
    events.append(ev.AttemptEnded("main", 0, "answered", answer=str(number), turns=turns + 1))
    events.append(ev.RunEnded("main", "answered", "answered", answer=str(number), closing_text=f"It is {number}."))
    return events


def write_runs(home: Path, runs: Iterable[tuple[str, list[Event]]]) -> None:
    """Add runs that are over to the journal in a folder."""
    Store(home).close()  # makes the file
    db = sqlite3.connect(home / "journal.sqlite3")
    try:
        for run_id, events in runs:
            _write(db, run_id, events)
        db.commit()
    finally:
        db.close()


def _write(db: sqlite3.Connection, run_id: str, events: list[Event]) -> None:
    first, last = events[0], events[-1]
    assert isinstance(first, ev.RunStarted)
    ended = last if isinstance(last, ev.RunEnded) else None
    (count,) = db.execute("SELECT count(*) FROM runs").fetchone()
    began = BEGAN + 60.0 * count
    row: tuple[Any, ...] = (
        run_id, began, began + len(events), ended.status if ended else "running", first.task[:200], "openai:m",
        ended.answer if ended else None, ended.stop_reason if ended else None,
    )  # fmt: skip
    row = tuple(value.encode("utf-8", "replace").decode() if isinstance(value, str) else value for value in row)
    cursor = db.execute(
        "INSERT INTO runs (run_id, started, ended, status, task, model, answer, stop_reason) VALUES (?,?,?,?,?,?,?,?)",
        row,
    )
    start = (cursor.lastrowid or 0) << SEQ_BITS
    items = [[began + seq, type(event).__name__, event.values()] for seq, event in enumerate(events)]
    # One commit of the runtime holds a few events.
    batches = [(start + at, json.dumps(items[at : at + 5]).encode(), None) for at in range(0, len(items), 5)]
    db.executemany("INSERT INTO events VALUES (?,?,?)", batches)
