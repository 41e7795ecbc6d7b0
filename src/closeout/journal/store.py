"""The SQLite file in which runs are kept: rows, bodies by content hash, run locks. What a row means is in `events`.

One connection a process and folder, in WAL mode; every run of the process writes through it, and what has piled up goes
in with one commit. A commit is a write to the log file without fsync (synchronous=NORMAL): it survives the death of the
process at any instant; after a power cut the last moments may be missing, the file stays whole.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from pydantic_core import PydanticSerializationError, to_json

from closeout.errors import JournalError, RunNotFound
from closeout.journal.events import Event, RunStarted
from closeout.journal.forks import closed_while_forking
from closeout.journal.reading import read_event, unreadable
from closeout.journal.runlock import RunLocks
from closeout.journal.trouble import LOCK_SECONDS, explained, journal_error, make_folder, unless_locked

__all__ = ["Row", "RunRecord", "Store", "open_store"]

FILE_NAME = "journal.sqlite3"
LOCKS_NAME = "journal.locks"
VERSION = 2  # 1 had a row for each event
BODY_LIMIT = 1024  # characters: a field longer than this is kept once, by hash
# A row holds what one run had to say in one commit: a JSON list of [time, type, fields], and where bodies are kept
# apart their hashes by field. Its place is run * 2**32 + seq of the first. One row costs half of what five do, and with
# one integer as its key the table grows at its end: a commit writes two pages, with the pair (run, seq) it was five.
SEQ_BITS = 32

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
  id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, started REAL NOT NULL, ended REAL,
  status TEXT NOT NULL, task TEXT NOT NULL, model TEXT NOT NULL, answer TEXT, stop_reason TEXT);
CREATE TABLE IF NOT EXISTS events (place INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bodies (hash BLOB PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
"""

_INSERT_RUN = "INSERT INTO runs (run_id, started, status, task, model) VALUES (?,?,?,?,?)"
_INSERT_EVENTS = "INSERT INTO events VALUES (?,?)"
_REPLACE_EVENTS = "INSERT OR REPLACE INTO events VALUES (?,?)"
_INSERT_BODY = "INSERT OR IGNORE INTO bodies VALUES (?,?)"
_ALL = 2**63 - 1  # SQLite's largest number
_LATEST = 2.0**37  # seconds: the year 6325. A later time was not written here, and no calendar shows it
_UPDATE_RUN = "UPDATE runs SET status=?, ended=?, answer=?, stop_reason=? WHERE id=?"
_NO_REFS: Mapping[str, str] = {}
_Entry: TypeAlias = tuple[int, float, Event]  # seq, time
_SELECT_RUN = "SELECT id, run_id, started, ended, status, task, model, answer, stop_reason FROM runs"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as the list of runs shows it. Times are seconds since the epoch; `task` is its first 200 characters."""

    run_id: str
    started: float
    ended: float | None
    status: str
    task: str
    model: str
    answer: str | None
    stop_reason: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """An event with its place and its time (seconds since the epoch)."""

    seq: int
    time: float
    event: Event


class Store:
    """The runs kept in one folder. Get one from `open_store`; it is shared by all runs of the process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._lock = threading.RLock()
        self._pending: dict[int, list[_Entry]] = {}  # by run
        self._insert = _INSERT_EVENTS
        self._known: set[bytes] = set()  # hashes that this process has written
        self._open(folder)

    def _open(self, folder: Path) -> None:
        make_folder(folder, FILE_NAME)
        self._connect()
        try:
            self._locks = RunLocks(folder / LOCKS_NAME)
        except BaseException:
            self._db.close()
            raise

    def _connect(self) -> None:
        with explained(self.path):
            self._db = sqlite3.connect(self.path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)
            try:
                unless_locked(lambda: self._prepare(self._db))
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        if self._version(db) < VERSION:
            db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version={VERSION};COMMIT;")

    def _version(self, db: sqlite3.Connection) -> int:
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if version > VERSION:
            raise JournalError(f"{self.path} is of a newer Closeout. Install that, or set another CLOSEOUT_HOME.")
        columns = [name for _, name, *_ in db.execute("PRAGMA table_info(events)")]
        if columns not in ([], ["place", "body"]):
            raise JournalError(
                f"{self.path} is of an earlier Closeout, whose runs are not read any more. "
                "Move it away, or set another CLOSEOUT_HOME."
            )
        return version

    # -------------------------------------------------------------------------------------------- writing

    def create_run(self, run_id: str, model: str, started: RunStarted) -> int:
        """A new run's number; it is there together with its first event, or not at all.

        Raises JournalError where the run exists already.
        """
        at = time.time()
        row = (_storable(run_id), at, "running", _storable(started.task[:200]), model)
        number = 0
        try:
            with self._transaction() as db:
                try:
                    cursor = db.execute(_INSERT_RUN, row)
                except sqlite3.IntegrityError:
                    text = f"There is a run {run_id} already. `closeout resume {run_id}` continues it."
                    raise JournalError(text) from None
                number = int(cursor.lastrowid or 0)
                bodies: dict[bytes, bytes] = {}
                db.execute(_INSERT_EVENTS, _row(number, [(0, at, started)], bodies))
                if bodies:
                    db.executemany(_INSERT_BODY, list(bodies.items()))
                self._locks.take(run_id, number)  # before others can see the run and take it for one left behind
        except BaseException:
            self.release(number)
            raise
        return number

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is done within, or nothing."""
        db = self._db
        with self._lock:
            try:
                db.execute("BEGIN IMMEDIATE")
                try:
                    yield db
                    db.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise journal_error(error, self.path) from error

    def reopen_run(self, run_id: str) -> int:
        """The number of a run to continue. Raises RunNotFound, or JournalLocked while another process leads it."""
        with self._lock, explained(self.path):
            number = self._number(run_id)
            self._locks.take(run_id, number)
            self._db.execute("UPDATE runs SET status='running', ended=NULL WHERE id=?", (number,))
            return number

    def end_run(self, number: int, status: str, answer: str | None, stop_reason: str) -> None:
        """Everything of the run is written, its outcome is in the list, and others may take it up."""
        row = (status, time.time(), None if answer is None else _storable(answer), stop_reason, number)
        self._commit((_UPDATE_RUN, row))

    def release(self, number: int) -> None:
        """Let go of the run: another process may continue it."""
        with self._lock:
            self._locks.drop(number)

    def put(self, run: int, seq: int, at: float, event: Event) -> None:
        """Take a run's next event in. It is safe once `flush` returns."""
        with self._lock:
            self._pending.setdefault(run, []).append((seq, at, event))

    def flush(self) -> None:
        """Write what has piled up, of all runs of the process, in one commit."""
        with self._lock:  # another thread may be about to write what this one needs to be safe
            if self._pending:
                self._commit()

    def _commit(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        """What has piled up, and then the statements: all of it or nothing."""
        with self._lock:
            pending, self._pending = self._pending, {}
            bodies: dict[bytes, bytes] = {}
            try:
                rows = [_row(run, entries, bodies) for run, entries in pending.items()]
                fresh = [(key, body) for key, body in bodies.items() if key not in self._known]
                if len(rows) == 1 and not (fresh or statements):
                    # All or nothing by itself: a transaction around it would be half the work.
                    self._db.execute(self._insert, rows[0])
                else:
                    with self._transaction() as db:
                        if fresh:
                            db.executemany(_INSERT_BODY, fresh)
                        db.executemany(self._insert, rows)
                        for statement, values in statements:
                            db.execute(statement, values)
            except BaseException as error:
                # Nothing is lost: the next flush tries again. What Ctrl-C broke off may have been written all the same.
                self._insert = _REPLACE_EVENTS
                for run, later in self._pending.items():
                    pending.setdefault(run, []).extend(later)
                self._pending = pending
                if isinstance(error, sqlite3.Error):
                    raise journal_error(error, self.path) from error
                raise
            self._insert = _INSERT_EVENTS
            if bodies:
                self._known.update(bodies)

    def forget_pending(self, run: int) -> None:
        """Drop what could not be written of a run that is over, so that it does not hold up others."""
        with self._lock:
            self._pending.pop(run, None)

    def note(self, name: str, value: str) -> None:
        """Remember something small beyond runs, such as the dialect that an endpoint turned out to speak."""
        with self._lock, explained(self.path):
            self._db.execute("INSERT OR REPLACE INTO notes VALUES (?,?)", (name, value))

    def noted(self, name: str) -> str | None:
        """What was remembered under a name, or None."""
        with self._lock, explained(self.path):
            found = self._db.execute("SELECT value FROM notes WHERE name=?", (name,)).fetchone()
        return None if found is None else str(found[0])

    # -------------------------------------------------------------------------------------------- reading

    def _number(self, run_id: str) -> int:
        found = self._db.execute("SELECT id FROM runs WHERE run_id=?", (_storable(run_id),)).fetchone()
        if found is None:
            raise RunNotFound(f"There is no run {run_id} in {self.path}. `closeout runs` lists them.")
        return int(found[0])

    def runs(self, limit: int = 100) -> list[RunRecord]:
        """The latest runs, newest first. A run left "running" by a process that died is "interrupted"."""
        with self._lock, explained(self.path):
            rows = self._db.execute(f"{_SELECT_RUN} ORDER BY id DESC LIMIT ?", (min(limit, _ALL),)).fetchall()
            return [self._record(row) for row in rows]

    def run(self, run_id: str) -> RunRecord:
        with self._lock, explained(self.path):
            number = self._number(run_id)
            return self._record(self._db.execute(f"{_SELECT_RUN} WHERE id=?", (number,)).fetchone())

    def _record(self, row: tuple[Any, ...]) -> RunRecord:
        number, run_id, started, ended, *texts = row
        shown: list[Any] = [text if text is None else str(text) for text in texts]
        record = RunRecord(run_id, _time(started) or 0.0, _time(ended), *shown)
        if record.status == "running" and not self._locks.held_anywhere(number):
            return replace(record, status="interrupted")
        return record

    def rows(self, run_id: str) -> Iterator[Row]:
        """The run's events, in order. One that cannot be read comes as `Unknown`; none is left out."""
        query = "SELECT place, body FROM events WHERE place>=? AND place<? ORDER BY place"
        with self._lock, explained(self.path):
            self.flush()
            number = self._number(run_id)
            start = number << SEQ_BITS
            fetched = self._db.execute(query, (start, number + 1 << SEQ_BITS)).fetchall()
        latest = 0.0
        for place, body in fetched:
            events = self._events(body, latest)
            for offset, (at, event) in enumerate(events):
                yield Row(place - start + offset, at, event)
            latest = events[-1][0] if events else latest

    def _events(self, body: bytes, before: float) -> list[tuple[float, Event]]:
        import json

        try:
            return [(float(at), self._event(kind, values, *refs)) for at, kind, values, *refs in json.loads(body)]
        except (ValueError, TypeError, RecursionError):
            return [(before, unreadable("Unreadable"))]

    def _event(self, kind: str, values: dict[str, Any], refs: Mapping[str, str] = _NO_REFS) -> Event:
        try:
            for name, digest in refs.items():
                values[name] = self._body(bytes.fromhex(digest))
            return read_event(kind, values)
        except (ValueError, KeyError, AttributeError, TypeError):
            return unreadable(kind)

    def _body(self, digest: bytes) -> str:
        with self._lock:
            found = self._db.execute("SELECT body FROM bodies WHERE hash=?", (digest,)).fetchone()
        if found is None or not isinstance(found[0], bytes) or hashlib.sha256(found[0]).digest() != digest:
            raise ValueError("a stored body is missing or damaged")
        return found[0].decode("utf-8", "surrogatepass")

    def pause(self) -> None:
        """Let nobody in, and have no connection open, until `go_on`."""
        self._lock.acquire()
        self._db.close()

    def go_on(self, *, reopen: bool) -> None:
        """`reopen` is False in a child process: this store is its parent's."""
        try:
            if reopen:
                with suppress(JournalError):  # whoever writes next is told
                    self._connect()
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            with suppress(JournalError):
                self.flush()
            self._db.close()
            self._locks.close()


def _row(run: int, entries: Sequence[_Entry], bodies: dict[bytes, bytes]) -> tuple[int, bytes]:
    items = [(at, type(event).__name__, *_apart(event, bodies)) for _, at, event in entries]
    place = (run << SEQ_BITS) + entries[0][0]
    try:
        return place, to_json(items, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError):
        # Lone surrogates and foreign objects: escapes carry the first, their text stands for the second.
        import json

        return place, json.dumps(items, default=str).encode()


def _apart(event: Event, bodies: dict[bytes, bytes]) -> tuple[Any, ...]:
    """What a row says of an event: itself, or without its large bodies and with their hashes."""
    values = event.values()
    refs: dict[str, str] = {}
    for name in event.bodies:
        text = values[name]
        if text and len(text) > BODY_LIMIT:
            body = text.encode("utf-8", "surrogatepass")
            digest = hashlib.sha256(body).digest()
            bodies[digest] = body
            values[name], refs[name] = "", digest.hex()
    return (values, refs) if refs else (values,)


def _time(at: Any) -> float | None:
    return at if isinstance(at, float) and 0 <= at < _LATEST else None


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


_stores: dict[tuple[int, Path], Store] = {}
_stores_lock = threading.Lock()
closed_while_forking(_stores, _stores_lock)


def open_store(folder: Path, make: Callable[[Path], Store] = Store) -> Store:
    """The process's store for a folder. A child process after a fork gets its own."""
    key = (os.getpid(), folder.absolute())
    with _stores_lock:
        found = _stores.get(key)
        if found is None:
            # By whatever way to the folder: two stores of one would not see, and would drop, each other's run locks.
            real = (key[0], Path(os.path.realpath(folder)))
            found = _stores[key] = _stores[real] = _stores.get(real) or make(folder)
        return found


def close_stores() -> None:
    """Close every store of this process (tests and long-lived programs that switch folders)."""
    with _stores_lock:
        own = [key for key in _stores if key[0] == os.getpid()]
        for store in {_stores.pop(key) for key in own}:
            store.close()
