"""A journal in an SQLite file: one connection of a process writes, in WAL mode, and another one reads beside it.

An ordinary commit is a write without fsync: it survives the death of the process at any instant. A durable commit is
synced and survives a power cut, together with everything before it.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import to_json

from closeout.errors import JournalError
from closeout.journal.claims import ClaimedRun, Look, SuspectsGo, candidate_values, candidates, facts, look_of
from closeout.journal.database import (
    FILE_NAME,
    LOCK_SECONDS,
    connect,
    explained,
    journal_error,
    make_folder,
    open_connection,
    transaction,
    wipe,
)
from closeout.journal.journal_database import SEQ_BITS, EventRow, RunUpdate, SqlConnection, delete_run
from closeout.journal.locks import LOCKS_NAME, RunLocks
from closeout.journal.run_counts import MESSAGES_NAME, SYNCED_NAME, RunCounts

__all__ = ["SqliteJournal", "references"]

T = TypeVar("T")

SWEEPS = 5  # tries to delete unused texts while other processes write; later deletions try again
_INSERT_EVENTS = "INSERT INTO events VALUES (?,?,?)"
_REPLACE_EVENTS = "INSERT OR REPLACE INTO events VALUES (?,?,?)"
# Takes rows from one blob: between two statements the thread may wait 5 ms for the interpreter's lock.
_ROWS = (
    "SELECT json_extract(value,'$[0]'), substr(?,json_extract(value,'$[1]'),json_extract(value,'$[2]')), "
    "json_extract(value,'$[3]') FROM json_each(?)"
)
_DELETIONS = "journal.deletions"  # a note that changes when runs are deleted
_REFERENCE = re.compile(rb'"([0-9a-f]{64})"')  # refers to a body by its hash
_NO_RUNS: frozenset[int] = frozenset()


class SqliteJournal:
    """A journal in a folder: a `JournalDatabase`.

    Args:
        folder: The folder. It is created.
    """

    is_local = True
    contains = "instr(CAST(e.body AS BLOB), ?)"
    values_of = "json_each(?)"

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self.name = str(self.path)
        self.writing = threading.RLock()
        self._reading = threading.RLock()  # held while the reading connection is used
        self._reader: sqlite3.Connection | None = None
        self._open(folder)

    def _open(self, folder: Path) -> None:
        make_folder(folder, FILE_NAME)
        self.db = connect(self.path)
        try:
            self.locks = RunLocks(folder / LOCKS_NAME)
            self.synced = RunCounts(folder / SYNCED_NAME)
            self.messages = RunCounts(folder / MESSAGES_NAME)
        except BaseException:
            self.db.close()
            raise

    # -------------------------------------------------------------------------------------------- writing

    def append(
        self,
        rows: Sequence[EventRow],
        *,
        bodies: Mapping[bytes, list[bytes]],
        updates: Sequence[RunUpdate] = (),
        durable: bool = False,
        again: bool = False,
        waits: bool = True,
    ) -> Collection[int]:
        """Write rows of events with their bodies, and then the updates. The locks keep others from these runs."""
        db = self.db
        insert = _REPLACE_EVENTS if again else _INSERT_EVENTS
        try:
            if not waits:
                db.execute("PRAGMA busy_timeout=0")
            if durable or updates:
                db.execute("PRAGMA synchronous=FULL")
            try:
                if len(rows) == 1 and not (bodies or updates):
                    # One statement is all or nothing by itself: a transaction around it would double its cost.
                    db.execute(insert, rows[0])
                else:
                    with transaction(db):
                        self._insert_bodies(bodies)
                        starts = accumulate((len(body) for _, body, _ in rows), initial=1)
                        places = [
                            (place, start, len(body), crc)
                            for (place, body, crc), start in zip(rows, starts, strict=False)
                        ]
                        whole = b"".join(body for _, body, _ in rows)
                        db.execute(insert.replace("VALUES (?,?,?)", _ROWS), (whole, to_json(places).decode()))
                        for _, statement, values in updates:
                            db.execute(statement, values)
            finally:
                if durable or updates:
                    db.execute("PRAGMA synchronous=NORMAL")
                if not waits:
                    db.execute(f"PRAGMA busy_timeout={LOCK_SECONDS * 1000:.0f}")
        except sqlite3.Error as error:
            raise journal_error(error, self.path) from error
        return _NO_RUNS

    def insert(self, db: SqlConnection, row: EventRow, bodies: Mapping[bytes, list[bytes]]) -> None:
        db.execute(_INSERT_EVENTS, row)
        self._insert_bodies(bodies)

    def _insert_bodies(self, bodies: Mapping[bytes, list[bytes]]) -> None:
        """Store bodies. SQLite fetches and joins the parts of a large one, without the interpreter's lock."""
        for digest, parts in bodies.items():
            if self.db.execute("SELECT 1 FROM bodies WHERE hash=?", (digest,)).fetchone():
                continue  # Even an INSERT OR IGNORE copies the whole body first.
            if len(parts) == 1:
                self.db.execute("INSERT INTO bodies VALUES (?,?)", (digest, *parts))
                continue
            self.db.create_function("part", 1, parts.__getitem__)
            numbers = "WITH RECURSIVE numbers (n) AS (VALUES (0) UNION ALL SELECT n+1 FROM numbers WHERE n+1<?)"
            joined = "SELECT ?,CAST(group_concat(part(n),'') AS BLOB) FROM numbers"
            self.db.execute(f"{numbers} INSERT INTO bodies {joined}", (len(parts), digest))

    def transact(self, act: Callable[[SqlConnection], T], *, durable: bool = False, holding: Collection[int] = ()) -> T:
        """Return what a function does within a transaction. What this process holds, nobody can take from it."""
        with self.writing, explained(self.path):
            if durable:
                self.db.execute("PRAGMA synchronous=FULL")
            try:
                with transaction(self.db) as db:
                    return act(db)
            finally:
                if durable:
                    self.db.execute("PRAGMA synchronous=NORMAL")

    # -------------------------------------------------------------------------------------------- looking for work

    def look(
        self, agent: str, places: int, *, suspects: SuspectsGo, exclude: Collection[str], fresh_age: float
    ) -> Look:
        now = repr(self.clock())
        parts = candidates(suspects, values=self.values_of, now=now)
        best = f"SELECT * FROM ({') UNION ALL SELECT * FROM ('.join(parts)}) ORDER BY priority DESC, rank, at"  # noqa: S608
        excluded, limit = to_json(list(exclude)).decode(), places + 50
        claims: list[ClaimedRun] = []
        while places:
            limits = limit, limit, 0 if suspects == "nowhere" else limit
            rows = self.query(best, candidate_values(agent, excluded, limits, fresh_age))
            for number, run_id, *state in rows:
                claim = ClaimedRun(run_id, number, state[0], state[1])
                is_second = claim.is_suspect and any(each.is_suspect for each in claims)
                if len(claims) < places and not is_second and self.locks.try_take(number):
                    if self.query("SELECT status, tries, due FROM runs WHERE id=?", (number,)) == [tuple(state[:3])]:
                        claims.append(claim)
                    else:  # another process has executed it since it was found
                        self.locks.drop(number)
            if len(claims) == places or len(rows) < limit:
                break
            limit *= 8  # others execute the first ones
        return look_of(self.query(facts(now), (agent, agent)), claims)

    # -------------------------------------------------------------------------------------------- reading

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._reading, explained(self.path):
            if self._reader is None:
                self._reader = self._connect_reader()
            return self._reader.execute(statement, values).fetchall()

    def _connect_reader(self) -> sqlite3.Connection:
        db = open_connection(self.path)
        db.execute("PRAGMA query_only=1")
        return db

    def clock(self, *, exact: bool = False) -> float:
        """Return the time of this machine: its processes share it."""
        return time.time()

    def has_table(self, name: str) -> bool:
        return bool(self.query("SELECT 1 FROM sqlite_master WHERE name=?", (name,)))

    def version(self) -> int:
        return int(self.query("PRAGMA data_version")[0][0])

    def tell(self, number: int) -> None:
        """Nothing: others see it when they look."""

    def subscribe(self, act: Callable[[int], object], *, as_worker: bool = False) -> Callable[[], None]:
        """Do nothing: waiting processes poll."""
        return lambda: None

    def examine(self) -> tuple[str, ...]:
        """Return the result of SQLite's check of the file's pages and indexes."""
        if not self.path.exists():
            return ()
        try:
            found = [str(line) for (line,) in self.query("PRAGMA integrity_check(20)")]
        except JournalError as error:
            found = [str(error)]
        return () if found == ["ok"] else tuple(found)

    # -------------------------------------------------------------------------------------------- deleting

    def discard(self, db: SqlConnection, run_id: str, number: int) -> None:
        db.execute("PRAGMA secure_delete=ON")  # what is deleted must not stay in free pages
        delete_run(db, run_id, number)
        if self.has_table("messages"):
            places = (number << SEQ_BITS, number + 1 << SEQ_BITS)
            db.execute("DELETE FROM messages WHERE place>=? AND place<?", places)

    def delete_unused_bodies(self) -> None:
        """Delete the bodies that no event refers to. Reads the whole journal."""
        with self.writing, explained(self.path):
            db = self.db
            for _ in range(SWEEPS):
                # Read without a lock, because other processes wait only for some seconds to write.
                version = db.execute("PRAGMA data_version").fetchone()
                used: set[bytes] = set()
                for (body,) in db.execute("SELECT body FROM events"):
                    used |= references(body)
                stored = db.execute("SELECT hash FROM bodies")
                unused = [key for key in stored if isinstance(key[0], bytes) and key[0] not in used]
                if not unused:
                    return
                with transaction(db):
                    if db.execute("PRAGMA data_version").fetchone() != version:
                        continue  # another process wrote meanwhile, perhaps a reference
                    db.executemany("DELETE FROM bodies WHERE hash=?", unused)
                    # Processes of earlier versions remember which bodies are stored. This makes them look again.
                    db.execute("INSERT OR REPLACE INTO notes VALUES (?,?)", (_DELETIONS, str(time.time_ns())))
                return

    def wipe(self) -> None:
        """Rewrite the file without the bytes of what was deleted."""
        wipe(self.path)

    # -------------------------------------------------------------------------------------------- lifetime

    def pause(self) -> None:
        """Wait for the writer and close the connections: SQLite's must not be open during a fork."""
        self.writing.acquire()
        self._reading.acquire()
        self.db.close()
        self._close_reader()

    def proceed(self, *, in_parent: bool) -> None:
        """Open the connections again. In a child process only let go of the parent's locks."""
        try:
            if in_parent:
                with suppress(JournalError):  # the next write raises it
                    self.db = connect(self.path)
            else:
                self._close_files()
        finally:
            self._reading.release()
            self.writing.release()

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _close_files(self) -> None:
        self.locks.close()
        self.synced.close()
        self.messages.close()

    def close(self) -> None:
        with self.writing, self._reading:
            self.db.close()
            self._close_reader()
            self._close_files()


def references(row: bytes | str) -> set[bytes]:
    """Return the hashes of the large texts and files that a stored row refers to, and whatever looks like one."""
    found = _REFERENCE.findall(row if isinstance(row, bytes) else str(row).encode())
    return {bytes.fromhex(digest.decode()) for digest in found}
