"""A journal in PostgreSQL: a schema that many processes of several machines write, each run under a lease.

A process has three connections: one writes, in the store's thread, one reads, one keeps the leases. A fourth one
listens for news if something waits for them. An idle worker keeps two: that which reads, and that which listens.

Every commit waits for the disk of the server: a commit that a crash of the server took back would leave a gap in a run
that continues.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pydantic_core import to_json

from closeout.errors import JournalError, JournalLocked, LeaseLost
from closeout.homes import DatabaseHome
from closeout.journal.claims import ClaimedRun, Look, SuspectsGo, candidate_values, candidates, facts, look_of
from closeout.journal.journal_database import MESSAGE_LOCK, SEQ_BITS, EventRow, RunUpdate, SqlConnection, delete_run
from closeout.journal.leases import SERVER_TIME, RunLeases, SentCounts
from closeout.journal.on_sqlite import references
from closeout.journal.postgres_link import PATIENCE, PostgresLink, explained_postgres
from closeout.journal.postgres_news import PostgresNews, channel_of
from closeout.journal.postgres_schema import open_prepared

__all__ = ["PostgresJournal"]

T = TypeVar("T")

_TABLES = (
    "events",
    "bodies",
    "body_uses",
    "runs",
    "messages",
    "signals",
    "outbox",
    "schedules",
    "usage",
    "usage_groups",
    "notes",
    "leases",
    "counters",
    "reservations",
)
_TRIES = 5  # Tries to write or delete bodies that others use at the same moment.
_INSERT_EVENTS = "INSERT INTO events SELECT * FROM unnest(?::bigint[], ?::bytea[], ?::bigint[])"
_REPLACE = " ON CONFLICT (place) DO UPDATE SET body = excluded.body, crc = excluded.crc"
_INSERT_BODIES = (
    "INSERT INTO bodies SELECT * FROM unnest(?::bytea[], ?::bytea[]) AS given(hash, body) ORDER BY hash "
    "ON CONFLICT DO NOTHING"
)
_INSERT_USES = (
    "INSERT INTO body_uses SELECT * FROM unnest(?::bigint[], ?::bytea[]) AS given(run, hash) ORDER BY hash, run "
    "ON CONFLICT DO NOTHING"
)
_INSERT_OTHER_USES = (
    "INSERT INTO body_uses SELECT * FROM unnest(?::bigint[], ?::bytea[]) AS given(run, hash) "
    "WHERE EXISTS (SELECT 1 FROM bodies WHERE bodies.hash = given.hash) ORDER BY hash, run ON CONFLICT DO NOTHING"
)
_FREE = " AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.run=r.id AND l.until>clock_timestamp())"
_VALUES = "json_array_elements_text(?::json) AS given(value)"
# It claims runs, each by its row, which others skip meanwhile, notes how many places are left, and finds everything
# else that a worker looks for. A look that changes nothing writes nothing.
_LOOK = f"""
WITH quickly AS MATERIALIZED (
  SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '{PATIENCE:.0f}s', true)),
continuing AS MATERIALIZED ({{}} FOR UPDATE OF r SKIP LOCKED),
fresh AS MATERIALIZED ({{}} FOR UPDATE OF r SKIP LOCKED),
suspect AS MATERIALIZED ({{}} FOR UPDATE OF r SKIP LOCKED),
best AS MATERIALIZED (
  SELECT found.*, row_number() OVER (ORDER BY priority DESC, rank, at) AS nth
  FROM (SELECT * FROM continuing UNION ALL SELECT * FROM fresh UNION ALL SELECT * FROM suspect) AS found, quickly
  ORDER BY nth LIMIT ?),
taken AS (
  INSERT INTO leases AS known SELECT id, 1, ?, clock_timestamp() + ? * interval '1 second' FROM best ORDER BY id
  ON CONFLICT (run) DO UPDATE SET token = known.token + 1, owner = excluded.owner, until = excluded.until
  WHERE known.until < clock_timestamp() RETURNING run, token),
here AS (
  SELECT ?::bigint AS id, ?::text AS agent, ? - (SELECT count(*) FROM taken) AS places),
noted AS (
  INSERT INTO workers SELECT id, agent, places, clock_timestamp() + interval '20 seconds' FROM here
  WHERE NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = here.id AND w.places = here.places
    AND w.until > clock_timestamp() + interval '10 seconds') AND here.id > 0
  ON CONFLICT (id) DO UPDATE SET places = excluded.places, until = excluded.until)
SELECT 'claim' AS kind, run_id, 1.0 * nth AS number, status AS name, id, tries, token
FROM taken JOIN best ON best.id = taken.run UNION ALL SELECT found.*, 0, 0, 0 FROM ({{}}) AS found
UNION ALL SELECT 'now', '', {SERVER_TIME}, '', 0, 0, 0
"""  # noqa: S608 - constants
_LOOKS: dict[SuspectsGo, str] = {
    suspects: _LOOK.format(*candidates(suspects, values=_VALUES, now=SERVER_TIME, free=_FREE), facts(SERVER_TIME))
    for suspects in ("nowhere", "first", "last")
}
_DELETE_BODIES = "DELETE FROM bodies WHERE NOT EXISTS (SELECT 1 FROM body_uses WHERE body_uses.hash = bodies.hash)"


class _NoCounts:
    """The number of events that are safe: here it is all of them, so there is nothing to note."""

    def of(self, run: int) -> int:
        """Return 0: nothing is known to be missing."""
        return 0

    def set(self, run: int, count: int) -> None:
        """Nothing."""

    def clear(self, run: int) -> None:
        """Nothing."""


class PostgresJournal:
    """A journal in a schema of a database: a `JournalDatabase`.

    Args:
        home: The database. Its tables are created, or brought up to date.
    """

    is_local = False
    contains = "position(?::bytea IN e.body) > 0"
    values_of = _VALUES

    def __init__(self, home: DatabaseHome) -> None:
        self.home = home
        self.name = str(home)
        self._link = PostgresLink(home)
        self._reader = PostgresLink(home)
        self.writing: threading.RLock = self._link.lock
        open_prepared(self._link)
        self.locks = RunLeases(home)
        channel = channel_of(home)
        self._worker = secrets.randbits(60)  # names this process to those who choose a worker
        self.news, self._chosen = PostgresNews(home, channel), PostgresNews(home, f"{channel}_{self._worker}")
        self.tell = self.locks.tell
        self.synced = _NoCounts()
        self.messages = SentCounts(self.locks)
        self._known: set[bytes] = set()  # hashes of bodies that this process has written

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
        """Write rows of events with their bodies, and then the updates, of the runs whose lease this process has.

        While the database restarts, it is tried again for some seconds.
        """
        numbers = {row[0] >> SEQ_BITS for row in rows} | {number for number, *_ in updates}
        tries = iter([again])

        def write() -> set[int]:
            with self._link.transaction():
                lost = self.locks.lost_of(self._link, numbers)
                left = [row for row in rows if row[0] >> SEQ_BITS not in lost]
                with self._link.pipeline():
                    # An earlier try that was cut off may have written them.
                    self._put(left, bodies, replace=next(tries, True))
                    for number, statement, values in updates:
                        if number not in lost:
                            self._link.execute(statement, values)
            return lost

        with self.writing, explained_postgres(self.home):
            lost = self._patiently(write)
            self._known.update(bodies)
            return lost

    def _patiently(self, act: Callable[[], T]) -> T:
        """Repeat what failed because the connection was cut, or because others deleted bodies meanwhile."""
        import psycopg

        for _ in range(_TRIES - 1):
            with suppress(psycopg.errors.ForeignKeyViolation):
                return self._link.patiently(act)
            self._known.clear()
        return self._link.patiently(act)

    def _put(self, rows: Sequence[EventRow], bodies: Mapping[bytes, list[bytes]], *, replace: bool) -> None:
        """Write rows with their bodies, and which run uses which body. Within a transaction."""
        if not rows:
            return
        uses = {(place >> SEQ_BITS, digest) for place, body, _ in rows for digest in references(body)}
        own = [use for use in uses if use[1] in bodies]
        new = [digest for digest in {digest for _, digest in own} if digest not in self._known]
        if new:
            self._link.execute(_INSERT_BODIES, (new, [b"".join(bodies[digest]) for digest in new]))
        for statement, pairs in ((_INSERT_USES, own), (_INSERT_OTHER_USES, list(uses - set(own)))):
            if pairs:
                self._link.execute(statement, ([run for run, _ in pairs], [digest for _, digest in pairs]))
        columns = ([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])
        self._link.execute(_INSERT_EVENTS + _REPLACE if replace else _INSERT_EVENTS, columns)

    def insert(self, db: SqlConnection, row: EventRow, bodies: Mapping[bytes, list[bytes]]) -> None:
        self._put([row], bodies, replace=False)

    def transact(self, act: Callable[[SqlConnection], T], *, durable: bool = False, holding: Collection[int] = ()) -> T:
        """Return what a function does within a transaction, under the leases that are named. Commits are durable.

        While the database restarts, it is called again for some seconds.
        """

        def once() -> T:
            with self._link.transaction():
                if holding and self.locks.lost_of(self._link, holding):
                    raise LeaseLost("Another process has taken the run over. Nothing was changed.")
                return act(self._link)

        with self.writing, explained_postgres(self.home):
            return self._patiently(once)

    # -------------------------------------------------------------------------------------------- looking for work

    def look(
        self, agent: str, places: int, *, suspects: SuspectsGo, exclude: Collection[str], fresh_age: float
    ) -> Look:
        """Look for the work of a worker, and take the runs that it may execute, in one statement."""
        excluded, before = to_json(list(exclude)).decode(), time.monotonic()
        limits = places, places, 0 if suspects == "nowhere" else min(places, 1)
        worker = 0 if self._reader.pooled else self._worker  # behind a pooler nobody could wake it
        found = self._reader.repeated(
            _LOOKS[suspects],
            (
                *candidate_values(agent, excluded, limits, fresh_age),
                *(places, self.locks.owner, self.home.lease, worker, agent, places, agent, agent),
            ),
        )
        claims = sorted((row for row in found if row[0] == "claim"), key=lambda row: row[2])
        if claims:
            self.locks.note_taken({row[4]: row[6] for row in claims})
        self.locks.note_time(found[-1][2], (before + time.monotonic()) / 2)
        self._link.rest()
        self.locks.rest()
        return look_of(found, [ClaimedRun(row[1], row[4], row[3], row[5]) for row in claims])

    def subscribe(self, act: Callable[[int], object], *, as_worker: bool = False) -> Callable[[], None]:
        """Call a function for news: of all runs, or those for which this process is chosen as the worker."""
        return (self._chosen if as_worker else self.news).subscribe(act)

    # -------------------------------------------------------------------------------------------- reading

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._reader.repeated(statement, values)

    def clock(self, *, exact: bool = False) -> float:
        """Return the time of the server. A clock of this machine only tells how long ago it was read."""
        if exact or not self.locks.knows_time:
            before = time.monotonic()
            ((now,),) = self.query(f"SELECT {SERVER_TIME}")
            self.locks.note_time(now, (before + time.monotonic()) / 2)
        return self.locks.time()

    def has_table(self, name: str) -> bool:
        """Return True: every table is made at the beginning."""
        return True

    def version(self) -> int:
        """Return a number that changes when anything is committed in the database."""
        ((snapshot,),) = self.query("SELECT pg_current_snapshot()::text")
        return int.from_bytes(hashlib.sha256(snapshot.encode()).digest()[:6])

    def examine(self) -> tuple[str, ...]:
        """Return nothing: the server looks after its files."""
        return ()

    # -------------------------------------------------------------------------------------------- deleting

    def discard(self, db: SqlConnection, run_id: str, number: int) -> None:
        delete_run(db, run_id, number)
        places = (number << SEQ_BITS, number + 1 << SEQ_BITS)
        db.execute("DELETE FROM messages WHERE place>=? AND place<?", places)
        db.execute("DELETE FROM body_uses WHERE run=?", (number,))
        db.execute("DELETE FROM leases WHERE run IN (?, ?)", (number, number + MESSAGE_LOCK))

    def delete_unused_bodies(self) -> None:
        """Delete the bodies that no run uses. If another process begins to use one of them, it is tried again."""
        with self.writing, explained_postgres(self.home):
            self._patiently(self._delete_bodies)

    def _delete_bodies(self) -> None:
        with self._link.transaction():
            self._link.execute(_DELETE_BODIES)

    def wipe(self) -> None:
        """Rewrite the tables without what was deleted. Others wait meanwhile."""
        try:
            with self.writing, explained_postgres(self.home):
                # VACUUM takes no settings of a transaction, and a pooler's must not be changed.
                if not self._link.pooled:
                    self._link.execute(f"SET lock_timeout = '{PATIENCE:.0f}s'")
                for table in _TABLES:
                    self._link.execute(f"VACUUM FULL {table}")
        except JournalLocked as error:
            raise JournalLocked(f"Everything was deleted, but the tables were not rewritten. {error}") from error

    # -------------------------------------------------------------------------------------------- lifetime

    def pause(self) -> None:
        self.writing.acquire()
        self._reader.lock.acquire()
        self.locks.pause()

    def proceed(self, *, in_parent: bool) -> None:
        """Continue after a fork. In a child process the connections and leases are the parent's."""
        if not in_parent:
            self._link.forget()
            self._reader.forget()
            self.news.forget()
            self._chosen.forget()
        self.locks.proceed(in_parent=in_parent)
        self._reader.lock.release()
        self.writing.release()

    def close(self) -> None:
        """Give the leases back and close the connections."""
        self.news.close()
        self._chosen.close()
        with suppress(JournalError):
            self.locks.close()
        with self.writing, self._reader.lock:
            self._link.close()
            self._reader.close()
