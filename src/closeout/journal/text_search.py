"""Full-text search over recorded runs, and the totals of each run: an SQLite FTS5 index beside the journal.

The index is a cache in a file of its own, so that recording a run costs nothing more and old journals can be searched.
Each search first brings it up to date. It can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import platformdirs

from closeout.codec import value_or_text
from closeout.errors import JournalError, RunNotFound
from closeout.homes import DatabaseHome, Home
from closeout.journal.database import FILE_NAME as JOURNAL_NAME
from closeout.journal.database import is_locked, open_file, set_modes, transaction
from closeout.journal.events import (
    AgentEnded,
    AgentStarted,
    AttemptEnded,
    Compacted,
    Event,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    Noted,
    RunEnded,
    RunStarted,
    ToolFinished,
    ToolStarted,
    TurnRolledBack,
)
from closeout.journal.journal_database import SEQ_BITS
from closeout.journal.store import RunRecord, Store
from closeout.journal.totals import RunTotals
from closeout.language.text_index import TextIndex, lacks_fts5

__all__ = ["IndexState", "RunHit", "SearchIndex", "forget_deleted", "parse_query", "texts_of"]

FILE_NAME = "search.sqlite3"
FORMAT = 6
BATCH_SECONDS = 0.5  # a commit after this long, so that others can search what is indexed and nothing is lost
BATCH_EVENTS = 2000  # events of one run that are indexed at once
EXCERPT = 160  # characters
_ALL = 2**63 - 1
_SEQ_MASK = (1 << SEQ_BITS) - 1
_SCHEMA = """
CREATE TABLE runs (
  run INTEGER PRIMARY KEY, run_id TEXT NOT NULL, next INTEGER NOT NULL, ended REAL, totals TEXT NOT NULL);
"""
_TEXTS = TextIndex("texts", {"text": 1.0}, stems=False, keeps_text=False)
_TERM = re.compile(r'"([^"]*)"?|(\S+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHit:
    """A run that a search found.

    Attributes:
        run: The run.
        seq: The number of the first event that matches.
        kind: What that event is: task, reply, call, result, answer, summary or note.
        agent: The path of the agent.
        excerpt: The text around the match.
        marks: Where the terms are in the excerpt: start and end of each.
    """

    run: RunRecord
    seq: int
    kind: str
    agent: str
    excerpt: str
    marks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class IndexState:
    """The progress of the search index."""

    indexed: int
    runs: int


@dataclass(frozen=True, slots=True)
class _Term:
    """A word or a phrase of a query. A word also finds longer words that begin with it."""

    text: str
    is_phrase: bool


def parse_query(text: str) -> list[_Term]:
    """Return the terms of a query. Whatever has no letter or digit is dropped."""
    terms = [_Term(phrase or word, bool(phrase)) for phrase, word in _TERM.findall(text)]
    return [term for term in terms if any(character.isalnum() for character in term.text)]


class SearchIndex:
    """The index of the runs in one store. Use it as a context manager; its methods may be called from any thread.

    Args:
        store: The runs. The index is kept in their folder; if that cannot be written, in the user's cache folder.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._seen = (-1, IndexState(0, 0))  # the journal's version at the last complete update
        self._path = _place(store.home)
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            if is_locked(error):
                raise self._failed(error) from error
            if lacks_fts5(error):
                raise JournalError("This Python's SQLite has no FTS5, which full-text search needs.") from error
            # A damaged cache is made again.
            self._delete()
            try:
                self._open()
            except sqlite3.DatabaseError as again:
                raise JournalError(f"Cannot make the search index {self._path} ({again}).") from again

    def _open(self) -> None:
        self._db = _connect(self._path)
        try:
            self._db.execute("PRAGMA secure_delete=ON")  # the words of a deleted run must not stay in free pages
            with transaction(self._db):
                if self._db.execute("PRAGMA user_version").fetchone()[0] != FORMAT:
                    for name in ("texts", "runs"):
                        self._db.execute(f"DROP TABLE IF EXISTS {name}")
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        self._db.execute(statement)
                    _TEXTS.create(self._db)
                    self._db.execute(f"PRAGMA user_version={FORMAT}")
            self._reader = _connect(self._path)
        except BaseException:
            self._db.close()
            raise

    def _delete(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                Path(f"{self._path}{suffix}").unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        with self._writing, self._reading:
            self._db.close()
            self._reader.close()

    # -------------------------------------------------------------------------------------------- indexing

    def update(self, seconds: float | None = None) -> IndexState:
        """Add what was recorded since the last update.

        Args:
            seconds: Stop after about this long; the next call continues. None: until everything is indexed.

        Raises:
            JournalError: The journal cannot be read.
        """
        with self._writing:
            version = self._store.version()
            if version == self._seen[0]:
                return self._seen[1]
            try:
                state = self._update(seconds)
            except sqlite3.Error as error:
                raise self._failed(error) from error
            if state.indexed == state.runs:
                self._seen = (version, state)
            return state

    def _update(self, seconds: float | None) -> IndexState:
        deadline = time.monotonic() + (float("inf") if seconds is None else seconds)
        stale, runs = self._stale()
        done = 0
        while done < len(stale):
            batch_ends = min(time.monotonic() + BATCH_SECONDS, deadline)
            with transaction(self._db):
                while done < len(stale):
                    done += self._index(*stale[done])
                    if time.monotonic() > batch_ends:
                        break
            if time.monotonic() > deadline:
                break
        return IndexState(runs - len(stale) + done, runs)

    def _stale(self) -> tuple[list[tuple[int, str, float | None]], int]:
        """Return the runs that have events that are not indexed, newest first, and the number of all runs."""
        known = {run: rest for run, *rest in self._db.execute("SELECT run, run_id, next, ended FROM runs")}
        found: list[tuple[int, str, float | None]] = []
        runs = self._store.query("SELECT id, run_id, ended FROM runs ORDER BY id DESC")
        for run, run_id, ended in runs:
            indexed = known.pop(run, None)
            if indexed is not None and indexed[0] != run_id:
                return self._start_again()
            if indexed is None or ended != indexed[2] or (ended is None and self._grown(run, indexed[1])):
                found.append((run, run_id, ended))
        if known:  # runs were removed: their texts must not stay
            return self._start_again()
        return found, len(runs)

    def _start_again(self) -> tuple[list[tuple[int, str, float | None]], int]:
        """Empty the index. Texts cannot be removed from it one by one, because it does not hold them."""
        with transaction(self._db):
            self._db.execute("DELETE FROM runs")
            self._db.execute("INSERT INTO texts(texts) VALUES('delete-all')")
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log held the words too
        return self._stale()

    def _grown(self, run: int, following: int) -> bool:
        """True if a run has events from number `following` on."""
        start = run << SEQ_BITS
        return bool(
            self._store.query(
                "SELECT 1 FROM events WHERE place>=? AND place<? LIMIT 1", (start + following, run + 1 << SEQ_BITS)
            )
        )

    def _index(self, run: int, run_id: str, ended: float | None) -> bool:
        """Index some of what is new of a run. Within a transaction, so that no other process does the same.

        Returns:
            Whether all of the run is indexed now.
        """
        found = self._db.execute("SELECT next, totals FROM runs WHERE run=?", (run,)).fetchone()
        following = found[0] if found else 0
        totals = RunTotals.from_counts(json.loads(found[1])) if found else RunTotals()
        try:
            rows = self._store.rows_from(run_id, following, BATCH_EVENTS)
        except RunNotFound:  # removed since
            return True
        is_whole = len(rows) < BATCH_EVENTS
        start = run << SEQ_BITS
        texts = []
        for row in rows:
            totals(row.event)
            if text := " \n ".join(texts_of(row.event)):
                texts.append((start + row.seq, f"{run_id} \n {text}" if row.seq == 0 else text))
        _TEXTS.add(self._db, texts)
        following = rows[-1].seq + 1 if rows else following
        counts = json.dumps(totals.counts)
        indexed = (run, run_id, following, ended if is_whole else None, counts)
        self._db.execute("INSERT OR REPLACE INTO runs VALUES (?,?,?,?,?)", indexed)
        return is_whole

    # -------------------------------------------------------------------------------------------- searching

    def totals(self, run_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return `RunTotals.counts` of those of the runs that are indexed."""
        wanted = list(run_ids)
        marks = ",".join("?" * len(wanted))
        statement = f"SELECT run_id, totals FROM runs WHERE run_id IN ({marks})"  # noqa: S608 - only question marks
        return {run_id: json.loads(counts) for run_id, counts in self._query(statement, wanted)}

    def _query(self, statement: str, values: list[str]) -> list[tuple[Any, ...]]:
        try:
            with self._reading:
                return self._reader.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def search(self, text: str, *, before: str = "") -> Iterator[RunHit]:
        """Iterate over the runs that contain all words of a text, newest first. Call `update` first.

        A word matches words that begin with it. Words in double quotes match as a phrase.

        Args:
            text: The query.
            before: Only runs that began earlier than this one.

        Raises:
            JournalError: The journal or the index cannot be read.
        """
        terms = parse_query(text)
        if not terms:
            return
        # A connection of its own, whose cursors are read only as far as runs are asked for.
        with closing(_connect(self._path)) as db:
            try:
                numbers = db.execute("SELECT run FROM runs WHERE run_id=?", (before,)).fetchone() or (_ALL,)
                for run, seq in _in_all([_runs_with(db, term, numbers[0]) for term in terms]):
                    with suppress(RunNotFound):  # removed since
                        yield self._hit(
                            db.execute("SELECT run_id FROM runs WHERE run=?", (run,)).fetchone(), seq, terms
                        )
            except sqlite3.Error as error:
                raise self._failed(error) from error

    def _hit(self, found: tuple[str] | None, seq: int, terms: list[_Term]) -> RunHit:
        if found is None:
            raise RunNotFound("The index was emptied meanwhile.")
        run = self._store.run(found[0])
        for row in self._store.rows_from(run.run_id, seq, 1):
            excerpt, marks = _excerpt(" · ".join(filter(None, texts_of(row.event))), terms)
            kind, _ = _SEARCHED.get(type(row.event), ("note", ()))
            return RunHit(run=run, seq=row.seq, kind=kind, agent=row.event.agent, excerpt=excerpt, marks=marks)
        return RunHit(run=run, seq=seq, kind="note", agent="main", excerpt="")

    def _failed(self, error: sqlite3.Error) -> JournalError:
        if is_locked(error):
            return JournalError(f"{self._path} is locked by another process. Try again later.")
        return JournalError(f"The search index {self._path} failed ({error}). Delete the file: it is made again.")


def _runs_with(db: sqlite3.Connection, term: _Term, below: int) -> Iterator[tuple[int, int]]:
    """Yield the runs that contain a term, newest first, each with the number of its first event that does."""
    places = _TEXTS.containing(db, term.text, begins=not term.is_phrase, below=min(below << SEQ_BITS, _ALL))
    for run, group in groupby(places, key=lambda place: place >> SEQ_BITS):
        yield run, min(group) & _SEQ_MASK


def _in_all(terms: list[Iterator[tuple[int, int]]]) -> Iterator[tuple[int, int]]:
    """Yield what is in the runs of every term, with the event of the first term."""
    try:
        while True:
            heads = [next(term) for term in terms]
            while (oldest := min(heads)[0]) != max(heads)[0]:
                heads = [head if head[0] == oldest else next(term) for head, term in zip(heads, terms, strict=True)]
            yield heads[0]
    except StopIteration:
        return


# The name of a hit in each type of event, and the fields of the event that are searched.
_SEARCHED: Mapping[type[Event], tuple[str, tuple[str, ...]]] = {
    RunStarted: ("task", ("task", "question", "name")),
    AgentStarted: ("task", ("task", "name")),
    MessageReceived: ("task", ("text", "by")),
    ModelReplied: ("reply", ("reasoning", "text", "model", "tool_calls")),
    ModelFailed: ("note", ("kind", "error")),
    ToolStarted: ("call", ("name", "arguments")),
    ToolFinished: ("result", ("record", "note")),
    TurnRolledBack: ("note", ("reason", "detail")),
    AttemptEnded: ("summary", ("experience",)),
    AgentEnded: ("answer", ("report",)),
    Compacted: ("summary", ("summary",)),
    RunEnded: ("answer", ("answer", "summary", "closing_text", "error")),
    Noted: ("note", ("message",)),
}


def texts_of(event: Event) -> Iterator[str]:
    """Yield the texts of an event that a search finds."""
    _, names = _SEARCHED.get(type(event), ("", ()))
    values: list[Any] = [getattr(event, name) for name in names]
    if isinstance(event, RunStarted) and event.question:
        values.remove(event.task)  # the question contains it
    elif isinstance(event, ModelReplied):
        values[-1] = [(call.get("name"), value_or_text(call.get("arguments"))) for call in event.tool_calls]
    elif isinstance(event, ToolStarted):
        values[-1] = value_or_text(event.arguments)
    elif isinstance(event, ToolFinished):
        record = value_or_text(event.record)
        values[0] = [record.get("summary"), record.get("result")] if isinstance(record, Mapping) else record
    yield from dict.fromkeys(_strings(values))


def _excerpt(text: str, terms: list[_Term]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the part of a text around the first term in it, on one line, and where the terms are in that part."""
    words = (r"\W+".join(map(re.escape, re.findall(r"\w+", term.text))) for term in terms)
    pattern = re.compile("|".join(words), re.IGNORECASE)
    first = pattern.search(text)
    start = max(0, first.start() - EXCERPT // 3) if first else 0
    part = " ".join(text[start : start + EXCERPT].split())
    shown = ("…" if start else "") + part + ("…" if start + EXCERPT < len(text) else "")
    return shown, tuple(match.span() for match in pattern.finditer(shown))


def _strings(value: Any) -> Iterator[str]:
    """Yield the words of a JSON value: its strings, keys and numbers."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            waiting.extend(reversed([part for item in each.items() for part in item]))
        elif isinstance(each, list | tuple):
            waiting.extend(reversed(each))
        elif isinstance(each, int | float) and not isinstance(each, bool):
            yield str(each)


# ------------------------------------------------------------------------------------------------ the file


def forget_deleted(store: Store) -> None:
    """Remove the words of deleted runs from the search index of a store, if it has one.

    Raises:
        JournalError: The index cannot be written.
    """
    if _place(store.home).exists():
        with SearchIndex(store) as index:
            index.update(0)


def _place(home: Home) -> Path:
    """Return where the index of a journal is kept: beside it if the folder can be written."""
    if isinstance(home, DatabaseHome):
        return home / FILE_NAME
    beside = home / FILE_NAME
    if os.access(home, os.W_OK) and (not beside.exists() or os.access(beside, os.W_OK)):
        return beside
    name = hashlib.sha256(os.fsencode(os.path.realpath(home / JOURNAL_NAME))).hexdigest()[:32]
    return Path(platformdirs.user_cache_dir("closeout", appauthor=False)) / "search" / f"{name}.sqlite3"


def _connect(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))  # it holds what runs contain
    except OSError as error:
        raise JournalError(f"Cannot write the search index {path} ({error.strerror}).") from None
    return open_file(path, set_modes)
