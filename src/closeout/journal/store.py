"""The store: the runs kept in one home, written through one connection and read beside it.

One connection per process and home writes, and everything that has been put goes into one commit, in order. While
commits are quick, an event loop makes them itself, one for all of its runs; otherwise a thread does, so that neither a
slow disk nor another process's lock stops the loop. The statements are the same for SQLite and PostgreSQL; a
`JournalDatabase` executes them.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar

from pydantic_core import PydanticSerializationError, to_json

from closeout.errors import JournalError, JournalLocked, LeaseLost, RunExists, RunNotFound
from closeout.file_values import File
from closeout.homes import DatabaseHome, Home
from closeout.journal.claims import (
    IMPORTED,
    PROGRESS,
    ClaimedRun,
    Look,
    SuspectsGo,
    candidate_values,
    candidates,
    facts,
    look_of,
)
from closeout.journal.events import (
    Event,
    ModelRequested,
    RunEnded,
    RunResumed,
    RunStarted,
    is_unreadable,
    read_event,
    unreadable,
)
from closeout.journal.journal_database import (
    MESSAGE_LOCK,
    SEQ_BITS,
    EventRow,
    JournalDatabase,
    RunUpdate,
    SqlConnection,
)
from closeout.journal.locks import locked
from closeout.journal.on_sqlite import SqliteJournal
from closeout.journal.run_names import LAB, run_of_lane

__all__ = [
    "NEW_NOTE",
    "SERVED",
    "Row",
    "RunRecord",
    "RunRows",
    "Store",
    "close_store",
    "close_stores",
    "executor_of",
    "open_store",
    "server_name",
    "tombstone",
]

P = ParamSpec("P")
T = TypeVar("T")

BODY_LIMIT = 1024  # characters: a longer field is stored once, by hash
BODY_PART = 1 << 20  # characters of a body that are handled in one call, which holds the interpreter's lock
RETRY_SECONDS = 0.05  # seconds until a failed commit is repeated
# How long an event may wait for others to be committed with it. A kill within that time costs at most a reply of the
# model, which is then asked again; calls that must not be repeated do not wait.
COMMIT_SECONDS = 0.025
# A commit that takes longer is followed by a pause, this many times as long, in which a thread commits: slow commits
# stop an event loop for a twentieth of its time at most.
QUICK_SECONDS = 0.002
PAUSE = 20
LARGE = 1 << 18  # characters of an event: writing more takes too long for an event loop
GLANCE_SECONDS = 0.5  # Seconds for which notes that were read count as the latest.
_INSERT_RUN = (
    "INSERT INTO runs (run_id, started, status, task, model, agent, priority, tries) VALUES (?,?,?,?,?,?,?,?) "
    "ON CONFLICT (run_id) DO NOTHING"
)
_SELECT_CREATED = "SELECT id FROM runs WHERE run_id=? AND started=?"
_REOPEN_RUN = "UPDATE runs SET status='running', ended=NULL, tries=? WHERE id=?"
_UPDATE_RUN = "UPDATE runs SET status=?, ended=?, answer=?, stop_reason=?, due=?, counted=?, tries=0 WHERE id=?"
_NOTE_PROGRESS = "UPDATE runs SET tries=1 WHERE id=?"
_UPDATE_DUE = "UPDATE runs SET due=? WHERE id=?"
_SELECT_RUN = "SELECT id, run_id, started, ended, status, task, model, answer, stop_reason FROM runs"
_UNDER = "SELECT 1 FROM {values} WHERE run_id>value||'.' AND run_id<value||'/'"
_SELECT_PLACES = "SELECT place, body FROM events WHERE place>=? AND place<? ORDER BY place LIMIT ?"
# A subquery for each run: a join may look into all events.
_SELECT_BEGINNINGS = (
    "SELECT id, run_id, (SELECT body FROM events e WHERE e.place=r.id<<32 AND ({contains} OR {contains})) "
    "FROM runs r WHERE id<? ORDER BY id DESC LIMIT 1000"
)
_SELECT_HOLDING = (
    "SELECT run_id FROM (SELECT id, run_id FROM runs ORDER BY id DESC LIMIT ?) r WHERE EXISTS "
    "(SELECT 1 FROM events e WHERE e.place>=r.id<<32 AND e.place<(r.id+1)<<32 AND {contains}) ORDER BY id DESC"
)
_NOTE = "INSERT INTO notes VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value"
_SYNCED = "journal.synced"  # A note that changes when there is something to sync and nothing to write.
NEW_NOTE = "INSERT INTO notes VALUES (?,?) ON CONFLICT (name) DO NOTHING"
_SELECT_EVENTS = "SELECT place, body, crc FROM events WHERE place>=? AND place<? ORDER BY place"
_SELECT_LAST = "SELECT body FROM events WHERE place>=? AND place<? ORDER BY place DESC LIMIT 1"
# Messages to runs, as JSON. Their places are made as those of events. The first message makes the table.
_CREATE_MESSAGES = "CREATE TABLE IF NOT EXISTS messages (place INTEGER PRIMARY KEY, body BLOB NOT NULL)"
_COUNT_MESSAGES = "SELECT max(place) - ? + 1 FROM messages WHERE place>=? AND place<?"
_INSERT_MESSAGE = "INSERT INTO messages VALUES (?,?) ON CONFLICT (place) DO NOTHING"
_SELECT_MESSAGES = "SELECT body FROM messages WHERE place>=? AND place<? ORDER BY place"

SERVED = "serve"  # The key in the origin of a run that a server began. The server executes and streams it itself.
_ALL = 2**63 - 1  # SQLite's largest number
_LATEST = 2.0**37  # seconds: the year 6325. A later time was not written by this module, and no calendar shows it
_NO_REFS: Mapping[str, str] = {}
_Entry: TypeAlias = tuple[int, float, Event]  # seq, time


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True)
class RunRows:
    """The events of a run, and what is wrong with its record: gaps, rows that cannot be read, lost ends."""

    rows: tuple[Row, ...]
    problems: tuple[str, ...]


@dataclass(slots=True)
class _EventBatch:
    """Events put since the last commit began, by run number, and the content of the files that they name by its hash.

    `durable`: the commit must be synced.
    """

    events: dict[int, list[_Entry]] = field(default_factory=dict)
    durable: bool = False
    contents: dict[bytes, bytes] = field(default_factory=dict)
    updates: list[RunUpdate] = field(default_factory=list)

    def before(self, later: _EventBatch) -> _EventBatch:
        """This batch, which could not be written, followed by what was put after it."""
        for run, entries in later.events.items():
            self.events.setdefault(run, []).extend(entries)
        updates = [*self.updates, *later.updates]
        return _EventBatch(self.events, self.durable or later.durable, self.contents | later.contents, updates)

    @property
    def is_large(self) -> bool:
        """True if it takes long to encode."""
        events = [event for entries in self.events.values() for _, _, event in entries]
        sizes = [len(text) for event in events for name in event.bodies if (text := getattr(event, name))]
        sizes += [event.size - event.shared for event in events if isinstance(event, ModelRequested)]
        return bool(self.contents) or max(sizes, default=0) > LARGE


class Store:
    """The runs kept in one home. Get one from `open_store`: all runs of the process share it.

    Methods may be called from any thread. Those that write wait for the disk, except `put`, `commit`, `end_run` and
    `note`.
    """

    def __init__(self, home: Home, database: JournalDatabase | None = None) -> None:
        self.home = home
        self.database = database or _database_of(home)
        self.name = self.database.name  # the database as people read it
        self._state = threading.Lock()  # guards the batch and the job; never held while the disk is used
        self._writing = self.database.writing  # held while the writing connection is used
        self._batch = _EventBatch()
        self._in_commit: _EventBatch | None = None
        self._job: Future[None] | None = None  # the next commit, until it begins
        self._planned_by: asyncio.AbstractEventLoop | None = None  # calls the next commit
        self._waiters: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}  # for the next commit of a loop
        self._loops_rest_until = 0.0  # by the monotonic clock: until then commits are made in the writing thread
        self._syncs_soon = False  # the next commit of the timer must be synced
        self._failures: dict[int, BaseException] = {}  # why the last commit of a run's events failed
        self._notes: dict[str, str] = {}
        self._glances: dict[str, tuple[float, Collection[str]]] = {}
        self._glancing: set[str] = set()  # what is being read
        self._tries_again = False  # an earlier commit may have written some of the batch
        self._ends: dict[int, _Entry] = {}  # the last events of runs, which are written together with their outcome
        self._lost: set[int] = set()  # runs that another process has taken over from this one
        self._claimed: set[int] = set()  # runs that this process has taken, and that nobody executes yet
        self._executing: set[int] = set()  # runs that this process has begun or resumed, and not released
        self._tried: set[int] = set()  # runs that were interrupted, and have made no progress since
        self._writer = ThreadPoolExecutor(1, "closeout-journal", self._begin_writing)
        self._last_act: Future[Any] | None = None  # The newest task of the writing thread, which runs them in order.
        self._writer_thread = 0

    # -------------------------------------------------------------------------------------------- writing

    def _begin_writing(self) -> None:
        self._writer_thread = threading.get_ident()

    def submit(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function in the writing thread, after what was submitted before."""
        try:
            found = self._last_act = self._writer.submit(self._in_turn, partial(act, *args, **kwargs))
            return found
        except RuntimeError:
            return _called_here(act, *args, **kwargs)

    def _in_turn(self, act: Callable[[], T]) -> T:
        if self._job is not None:  # A requested commit does not wait for many runs to begin or end.
            with suppress(Exception):  # Its own turn repeats it and raises the error.
                self._commit()
        return act()

    async def off_loop(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the writing thread and wait for it without stopping the event loop."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(act, *args, **kwargs)))

    def create_run(
        self,
        run_id: str,
        model: str,
        started: RunStarted,
        later: Sequence[tuple[float, Event]] = (),
        *,
        files: Iterable[File] = (),
        submit: bool = False,
        priority: int = 0,
        began: float = 0.0,
    ) -> int:
        """Create a run together with its first event, lock it, and return its number.

        Args:
            run_id: the name of the run.
            model: the name of its model.
            started: its first event.
            later: the events of a fork, each with the seconds that the run has been at work.
            files: the files that `started` names. Their content is stored, if it is not.
            submit: leave it to the workers instead of locking it.
            priority: workers execute runs of a higher one first.
            began: when it began, in seconds since the epoch; now by default.

        Raises:
            RunExists: a run of this name exists.
            JournalError: it cannot be written.
        """
        at = began or self.clock()
        row = (_storable(run_id), at, "running", _storable(started.task[:200]), model)
        work = (_storable(executor_of(started)), priority, 0 if submit else 1)
        number = 0
        database, files = self.database, tuple(files)

        def create(db: SqlConnection) -> None:
            nonlocal number
            if db.execute(_INSERT_RUN, (*row, *work)).rowcount == 0:
                if number and db.execute(_SELECT_CREATED, row[:2]).fetchone() == (number,):
                    return  # by an earlier call, whose commit was not confirmed
                raise RunExists(f"A run {run_id} exists already. `closeout resume {run_id}` continues it.")
            if number:  # of an earlier call that was rolled back
                database.locks.drop(number, db)
            number = int(db.execute(_SELECT_CREATED, row[:2]).fetchone()[0])
            database.synced.clear(number)
            database.messages.clear(number)
            bodies = _Bodies()
            for file in files:
                digest = bytes.fromhex(file.sha256)
                if not db.execute("SELECT 1 FROM bodies WHERE hash=?", (digest,)).fetchone():
                    bodies[digest] = [file.data]
            begun = at - later[-1][0] if later else at
            entries = [(0, begun, started), *((n, begun + t, event) for n, (t, event) in enumerate(later, 1))]
            database.insert(db, _row(number, entries, bodies), bodies)
            if not submit:
                database.locks.take(run_id, number, db)  # before others see the run and think that its process died

        try:
            database.transact(create)
        except BaseException:
            self.release(number)
            raise
        if submit:
            database.tell(number)
        else:
            self._executing.add(number)
        return number

    def transact(self, act: Callable[[SqlConnection], T], *, holding: Sequence[int] = ()) -> T:
        """Return what a function does to the journal within one synced transaction. Raises JournalError.

        Args:
            act: The function. If the connection is cut, it is called again. An earlier call may have been committed.
            holding: The numbers of the locks that this process must still have at the end.
        """
        return self.database.transact(act, durable=True, holding=holding)

    def reopen_run(self, run_id: str, seen: RunRecord | None = None) -> int:
        """Lock a run to continue it, and return its number.

        Args:
            run_id: the name of the run.
            seen: the run as the caller saw it. If another process has continued it to an end since, it stays ended.

        Raises:
            RunNotFound: no run has this name.
            JournalLocked: the run is being executed, or was executed since it was seen.
        """
        number = self.number_of(run_id)
        expected = {seen.ended} if seen is not None else set()
        tries: list[int] = []

        def reopen(db: SqlConnection) -> None:
            ended, tried = db.execute("SELECT ended, tries FROM runs WHERE id=?", (number,)).fetchone() or (None, 0)
            if expected and _time(ended) not in expected:
                raise JournalLocked(f"Run {run_id} was continued by another process just now.")
            expected.add(None)  # as this leaves it, if it is called again
            tries.append(tried + 1)
            db.execute(_REOPEN_RUN, (tries[0], number))

        with self._writing:
            if number in self._claimed:
                self._claimed.discard(number)
            else:
                self.database.locks.take(run_id, number)
            try:
                self.database.transact(reopen, holding=(number,))
            except BaseException:
                self.database.locks.drop(number)
                raise
            self._executing.add(number)
            if tries[0] > 1:
                self._tried.add(number)
            return number

    # -------------------------------------------------------------------------------------------- work

    def look(
        self,
        agent: str,
        places: int,
        *,
        suspects: SuspectsGo = "last",
        exclude: Collection[str] = (),
        fresh_age: float = -math.inf,
    ) -> Look:
        """Look for the work of a process, and claim the runs that it may execute: `reopen_run`, or else `unclaim`.

        Args:
            agent: What executes the runs: see `executor_of`.
            places: How many more runs it may execute.
            suspects: Where runs come that were interrupted repeatedly; at most one of them is claimed.
            exclude: The ids of runs that are not to be claimed.
            fresh_age: For how many seconds a fresh run must have been recorded.

        Raises:
            JournalError: The journal cannot be read.
        """
        found = self.database.look(agent, places, suspects=suspects, exclude=exclude, fresh_age=fresh_age)
        self._claimed.update(claim.number for claim in found.claims)
        return found

    def ready(self, agent: str, now: float) -> tuple[dict[str, str], Look]:
        """Find what a look would find at a time, without claims.

        Returns:
            The runs that could be claimed, each with its status, and everything else that a look finds.
        """
        time = repr(now)
        parts = candidates("last", values=self.database.values_of, now=time)
        union = " UNION ALL ".join(f"SELECT * FROM ({part}) AS part" for part in parts)  # noqa: S608 - constants
        statement = f"SELECT id, run_id, status FROM ({union}) AS found ORDER BY priority DESC, rank, at"  # noqa: S608
        found = self.query(statement, candidate_values(agent, "[]", [_ALL] * 3, -math.inf))
        held = self.database.locks.held_of([number for number, *_ in found])
        ready = {run_id: status for number, run_id, status in found if number not in held}
        return ready, look_of(self.query(facts(time), (agent, agent)), [])

    def try_claim(self, run_id: str) -> ClaimedRun | None:
        """Claim a waiting run. Returns None if it does not wait any more, or another process has it."""
        number = self.number_of(run_id)
        if not self.database.locks.try_take(number):
            return None
        self._claimed.add(number)
        if self._status(number) != "waiting":
            self.unclaim(number)
            return None
        return ClaimedRun(run_id, number, "waiting", 0)

    def unclaim(self, number: int) -> None:
        """Let go of a claimed run, if it was not reopened."""
        if number in self._claimed:
            self._claimed.discard(number)
            self.release(number)

    def name_agent(self, run_id: str, agent: str) -> None:
        """Note what executes a run: see `executor_of`."""
        values = (_storable(agent), _storable(run_id))
        self.transact(lambda db: db.execute("UPDATE runs SET agent=? WHERE run_id=?", values))

    def add_events(
        self,
        run_id: str,
        make: Callable[[Sequence[Row], float], Sequence[Event]],
        due: Callable[[Sequence[Row]], float] = lambda rows: 0.0,
    ) -> RunRows:
        """Append events to a run that no process executes, synced, all or none of them.

        Args:
            run_id: the name of the run.
            make: returns the events, given the rows of the run and the time now.
            due: returns when the run can continue, given its rows with the new ones; 0 if it does not know.

        Returns:
            The rows of the run with the new ones, and what is wrong with its record.

        Raises:
            RunNotFound: no run has this name.
            JournalLocked: the run is being executed.
            JournalError: the events cannot be written.
        """
        number = self.number_of(run_id)
        with self._writing:
            self.database.locks.take(run_id, number)
            try:
                record = self._read_run(number)
                at = self.clock()
                seq = record.rows[-1].seq + 1 if record.rows else 0
                entries = [(seq + n, at, event) for n, event in enumerate(make(record.rows, at))]
                rows = (*record.rows, *(Row(*entry) for entry in entries))
                if entries:
                    update = (number, _UPDATE_DUE, (due(rows), number))
                    if self._write(_EventBatch({number: entries}, durable=True), [update]):
                        raise locked(run_id)
                    self._note_synced({number: entries})
            finally:
                self.database.locks.drop(number)
        return RunRows(rows, record.problems)

    def delete_runs(self, run_ids: Iterable[str]) -> int:
        """Delete runs, and return how many there were. The file does not shrink: new runs take the room.

        What-if comparisons of these runs hold the same texts, and are deleted with them.

        Args:
            run_ids: the names of the runs.

        Raises:
            RunNotFound: no run has this name; nothing is deleted.
            JournalLocked: one of the runs is being executed; nothing is deleted.
        """
        self.flush()
        named = tuple(run_ids)
        numbers = {run_id: self.number_of(run_id) for run_id in (*named, *self.lanes_of(named))}
        taken: list[int] = []

        def discard_all(db: SqlConnection) -> None:
            for run_id, number in numbers.items():
                self.database.discard(db, run_id, number)

        try:
            for run_id, number in sorted(numbers.items(), key=lambda item: item[1]):
                self.database.locks.take(run_id, number)
                taken.append(number)
            self.transact(discard_all, holding=taken)
        finally:
            for number in taken:
                self.database.locks.drop(number)
        self.database.delete_unused_bodies()
        return len(set(named))

    def lanes_of(self, run_ids: Iterable[str]) -> list[str]:
        """Return the ids of the lanes that what-if comparisons keep of runs, the oldest first."""
        wanted = set(run_ids)
        statement = "SELECT run_id FROM runs WHERE run_id>? AND run_id<? ORDER BY id"
        kept = [run_id for (run_id,) in self.query(statement, (f"{LAB}.", f"{LAB}/"))]
        return [lane for lane in kept if lane not in wanted and run_of_lane(lane) in wanted]

    # -------------------------------------------------------------------------------------------- messages to runs

    def lock_messages(self, number: int) -> bool:
        """Lock the messages of a run, and return whether they were free: nobody else can add one."""
        return self.database.locks.try_take(number + MESSAGE_LOCK)

    def unlock_messages(self, number: int) -> None:
        """Release the messages of a run, which this store has locked."""
        self.database.locks.drop(number + MESSAGE_LOCK)

    def add_message(self, number: int, body: bytes) -> None:
        """Add a message to those of a run, synced. The caller has locked them.

        Raises:
            JournalError: It cannot be written.
        """
        start, end = number << SEQ_BITS, number + 1 << SEQ_BITS

        count: int | None = None

        def add(db: SqlConnection) -> None:
            nonlocal count
            if not self.database.has_table("messages"):
                db.execute(_CREATE_MESSAGES)
            if count is None:  # if it is called again, the message has the same place
                count = db.execute(_COUNT_MESSAGES, (start, start, end)).fetchone()[0] or 0
            db.execute(_INSERT_MESSAGE, (start + count, body))
            # It precedes the commit, so that the executing process looks once too often rather than once too rarely.
            self.database.messages.set(number, count + 1)

        self.transact(add, holding=(number + MESSAGE_LOCK,))

    def count_messages(self, number: int) -> int:
        """Return how many messages were sent to a run. May be one too high. O(1)."""
        return self.database.messages.of(number)

    def messages(self, number: int, first: int = 0) -> list[bytes]:
        """Return the messages that were sent to a run, from one on, in order."""
        start, end = number << SEQ_BITS, number + 1 << SEQ_BITS
        if not self.database.has_table("messages"):
            return []
        return [body for (body,) in self.query(_SELECT_MESSAGES, (start + first, end))]

    def put(
        self,
        run: int,
        seq: int,
        at: float,
        event: Event,
        *,
        durable: bool = False,
        contents: Mapping[str, bytes] | None = None,
    ) -> None:
        """Add a run's next event to the next commit. Its end waits for `end_run`.

        Args:
            run: the number of the run.
            seq: the place of the event.
            at: its time.
            event: what happened.
            durable: sync that commit.
            contents: the contents of the files that the event names, by their SHA-256.

        Raises:
            LeaseLost: another process has taken the run over.
            JournalError: an earlier commit of the run's events failed.
        """
        if self._lost or self._failures:
            self.check_held(run)
        with self._state:
            if self._ends and run in self._ends:  # the run continues
                self._batch.events.setdefault(run, []).append(self._ends.pop(run))
            if type(event) is RunEnded:
                self._ends[run] = seq, at, event
                return
            self._batch.events.setdefault(run, []).append((seq, at, event))
            self._batch.durable |= durable
            if self._tried and run in self._tried and type(event).__name__ in PROGRESS:
                self._tried.discard(run)
                self._batch.updates.append((run, _NOTE_PROGRESS, (run,)))
            if contents:
                self._batch.contents.update((bytes.fromhex(digest), data) for digest, data in contents.items())

    def commit(self) -> Future[None]:
        """Begin to commit everything that has been put, in the writing thread.

        Returns:
            A future that is done when everything put before this call is committed. It raises JournalError.
        """
        with self._state:
            if self._job is not None:
                return self._job
            try:
                job = self._job = self._last_act = self._writer.submit(self._commit)
                return job
            except RuntimeError:
                pass
        return _called_here(self._commit)

    def commit_soon(self) -> None:
        """Have everything that has been put committed within `COMMIT_SECONDS`; at once outside of an event loop.

        One timer serves all runs of a loop. The next `put` of a run raises why its events could not be written.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        if self._planned_by is not loop:
            self._planned_by = loop
            loop.call_later(COMMIT_SECONDS, self._commit_planned, loop, time.thread_time())

    def _commit_planned(self, loop: asyncio.AbstractEventLoop, worked: float) -> None:
        self._planned_by = None
        with self._state:
            self._batch.durable |= self._syncs_soon
            is_empty = not self._batch.events
        if not is_empty:
            self._commit_for(loop)
        elif self._syncs_soon:
            self.submit(self._sync)
        busy = time.thread_time() - worked
        if busy > COMMIT_SECONDS / 2 and self._last_act is not None:
            # The writing thread waits five milliseconds for the interpreter after each statement. Let it catch up: a
            # kill then loses 0.02 instead of 0.3 seconds of 100 runs (bench/lost_by_kill.py).
            wait((self._last_act,), busy / 2)

    def _sync(self) -> None:
        """Sync what was committed without. SQLite syncs a transaction that writes something, and all before it."""
        self._syncs_soon = False
        self.database.transact(lambda db: db.execute(_NOTE, (_SYNCED, str(time.time_ns()))), durable=True)

    async def committed(self, run: int, *, syncs_soon: bool = False) -> None:
        """Wait until everything that has been put is committed, without stopping the event loop.

        What the runs of a loop wait for at the same time is one commit, and wakes the loop once.

        Args:
            run: the number of the run that waits.
            syncs_soon: sync it with the next commit that is durable, or that of the timer.

        Raises:
            JournalError: the run's events could not be written, or another process has taken it over.
        """
        loop = asyncio.get_running_loop()
        self._syncs_soon |= syncs_soon
        waiters = self._waiters.get(loop)
        if waiters is None and len(self._executing) == 1 and self._commit_here():  # there is nobody to wait for
            self.check_held(run)
            return
        if waiters is None:
            waiters = self._waiters[loop] = []
            loop.call_soon(self._commit_for, loop)
        waiter = loop.create_future()
        waiters.append(waiter)
        await waiter
        self.check_held(run)

    def _commit_for(self, loop: asyncio.AbstractEventLoop) -> None:
        """Commit what the runs of a loop have put, and wake those that wait for it."""
        waiters = self._waiters.pop(loop, ())
        with self._state:
            runs = list(self._batch.events)
        if self._commit_here():
            _wake(waiters)
            return

        def done(job: Future[None]) -> None:
            if (error := job.exception()) is not None:
                self._failures.update(dict.fromkeys(runs, error))
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_wake, waiters)

        self.commit().add_done_callback(done)

    def _commit_here(self) -> bool:
        """Commit in the thread of an event loop if that is quick, and return whether it was done."""
        began = time.monotonic()
        if not self.database.is_local or self._job is not None or began < self._loops_rest_until:
            return False
        with self._state:
            if self._batch.is_large:
                return False
        if not self._writing.acquire(blocking=False):
            return False
        try:
            self._commit_once(waits=False)
        except Exception:
            return False  # The writing thread tries again and raises the error.
        finally:
            self._writing.release()
            took = time.monotonic() - began
            if took > QUICK_SECONDS:
                self._loops_rest_until = began + PAUSE * took
        return True

    def flush(self) -> None:
        """Wait until everything that has been put is committed. Raises JournalError."""
        if threading.get_ident() == self._writer_thread:
            self._commit()
        else:
            self.commit().result()

    def end_run(
        self,
        number: int,
        status: str,
        answer: str | None,
        *,
        stop_reason: str,
        due: float = 0.0,
        also: Sequence[RunUpdate] = (),
    ) -> Future[None]:
        """Begin to commit the end of a run: its events and its outcome, synced. Then release it, whatever happened.

        Args:
            number: the number of the run.
            status: how it ended.
            answer: its answer.
            stop_reason: why it ended.
            due: when a run that waits can continue without a signal; 0 if its events say so.
            also: what else to change with it: its usage.

        Returns:
            A future that is done when the run is released. It raises JournalError if the end could not be written.
        """
        at = self.clock()

        def end() -> None:
            with self._state:
                last = self._ends.pop(number, None)
                if last is not None:
                    self._batch.events.setdefault(number, []).append(last)
                    self._batch.durable = True
            try:
                outcome = (status, at, _storable(answer), stop_reason, due, at, number)
                self._commit((number, _UPDATE_RUN, outcome), *also)
                self.check_held(number)
            finally:
                self.forget(number)
                self.release(number)

        return self.submit(end)

    def check_unlocked(self, run_id: str) -> None:
        """Raise JournalLocked while a process executes the run: its record may be incomplete only for that reason."""
        number = self.number_of(run_id)
        if number not in self._claimed and self.database.locks.held_of([number]):
            raise locked(run_id)

    def check_held(self, number: int) -> None:
        """Raise LeaseLost if another process has taken over a run that this one executes. Then nothing is written.

        Raises also why the last commit of its events failed, once.
        """
        if number in self._failures:
            raise self._failures.pop(number)
        if number in self._lost:
            raise LeaseLost(
                "Another process has taken this run over, because this one was silent for longer than its lease. "
                "Nothing more is recorded here. `closeout runs` shows what became of the run."
            )

    def release(self, number: int) -> None:
        """Unlock a run: another process may continue it."""
        with self._writing:
            self.database.locks.drop(number)
            for runs in (self._lost, self._tried, self._executing):
                runs.discard(number)
            self._failures.pop(number, None)

    def forget(self, run: int) -> None:
        """Drop events that could not be written of a run that is over, so that they do not hold up other runs."""
        with self._state:
            self._batch.events.pop(run, None)
            self._ends.pop(run, None)

    def _commit(self, *updates: RunUpdate) -> None:
        """Write everything that has been put, and then the updates: all of it or nothing. In the writing thread.

        A write that fails is repeated once, since a disk that was full for a moment must not end a run.
        """
        try:
            self._commit_once(*updates)
        except JournalLocked:
            raise  # the database has waited already
        except JournalError:
            time.sleep(RETRY_SECONDS)
            self._commit_once(*updates)

    def _commit_once(self, *updates: RunUpdate, waits: bool = True) -> None:
        with self._writing:
            with self._state:
                self._job = None
                batch = self._in_commit = self._batch
                self._batch = _EventBatch()
                if batch.durable:
                    self._syncs_soon = False
            try:
                if batch.events or updates:
                    self._write(batch, (*batch.updates, *updates), waits=waits)
            except BaseException:
                # Nothing is lost: the next commit tries again. A write that Ctrl-C interrupted may have succeeded.
                self._tries_again = True
                with self._state:
                    self._batch = batch.before(self._batch)
                raise
            finally:
                self._in_commit = None
            self._tries_again = False
            if batch.durable:
                self._note_synced(batch.events)

    def _note_synced(self, events: Mapping[int, Sequence[_Entry]]) -> None:
        """Note how many events of each run are safe, if that is possible."""
        for run, entries in events.items():
            with suppress(JournalError):
                self.database.synced.set(run, entries[-1][0] + 1)

    def _write(self, batch: _EventBatch, updates: Sequence[RunUpdate] = (), *, waits: bool = True) -> bool:
        """Write a batch and updates. Return whether a run was lost to another process, of which nothing is written."""
        bodies = _Bodies()
        bodies.update((digest, [data]) for digest, data in batch.contents.items())
        rows = [_row(run, entries, bodies) for run, entries in batch.events.items()]
        lost = self.database.append(
            rows, bodies=bodies, updates=updates, durable=batch.durable, again=self._tries_again, waits=waits
        )
        self._lost.update(lost)
        return bool(lost)

    def note(self, name: str, value: str) -> None:
        """Remember something small beyond runs, such as the dialect of an endpoint. Failures are ignored."""
        self._notes[name] = value
        self.submit(self._change_notes, _NOTE, (name, value))

    def _change_notes(self, statement: str, *rows: Sequence[str]) -> None:
        with suppress(JournalError):
            self.database.transact(lambda db: db.executemany(statement, rows))

    def noted(self, name: str) -> str | None:
        """Return what was remembered under a name, or None."""
        if name in self._notes:
            return self._notes[name]
        found = self.query("SELECT value FROM notes WHERE name=?", (name,))
        return str(found[0][0]) if found else None

    def forget_notes(self, *names: str) -> None:
        """Forget what was remembered under some names. Failures are ignored."""
        for name in names:
            self._notes.pop(name, None)
        self.submit(self._change_notes, "DELETE FROM notes WHERE name=?", *((name,) for name in names))

    def notes_that_begin_with(self, text: str) -> list[str]:
        """Return the rest of each name under which something is remembered and that begins with a text."""
        last = f"{text[:-1]}{chr(ord(text[-1]) + 1)}"
        found = self.query("SELECT name FROM notes WHERE name>=? AND name<? ORDER BY name", (text, last))
        return [name.removeprefix(text) for (name,) in found]

    def glance(self, text: str) -> tuple[float, Collection[str]]:
        """Return `notes_that_begin_with` as it was a moment ago, without waiting: many runs can look, often.

        Returns:
            When they were read, by the monotonic clock, and the rest of each name.
        """
        at, found = self._glances.get(text, (0.0, ()))
        if text not in self._glancing and time.monotonic() - at >= GLANCE_SECONDS:
            self._glancing.add(text)
            self.submit(self._glance, text)
        return at, found

    def _glance(self, text: str) -> None:
        at = time.monotonic()
        try:
            with suppress(JournalError):
                self._glances[text] = at, self.notes_that_begin_with(text)
        finally:
            self._glancing.discard(text)

    # -------------------------------------------------------------------------------------------- reading

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Read through a connection of its own, which no writer holds up."""
        return self.database.query(statement, values)

    def number_of(self, run_id: str) -> int:
        """Return the number of a run. Raises RunNotFound."""
        found = self.query("SELECT id FROM runs WHERE run_id=?", (_storable(run_id),))
        if not found and (day := self.noted(tombstone(run_id))):
            raise RunNotFound(f"Run {run_id} was deleted on {day}, and its sources with it.")
        if not found:
            raise RunNotFound(f"No run {run_id} in {self.name}. `closeout runs` lists them.")
        return int(found[0][0])

    def runs(self, limit: int = 100) -> list[RunRecord]:
        """Return the latest runs, newest first. A run that a dead process left "running" is "interrupted"."""
        return self._records(self.query(f"{_SELECT_RUN} ORDER BY id DESC LIMIT ?", (min(limit, _ALL),)))

    def version(self) -> int:
        """Return a number that changes when anything in the journal does, in whatever process."""
        return self.database.version()

    def beginnings(self, text: str = "", *, before: str = "") -> Iterator[tuple[str, RunStarted]]:
        """Iterate over the ids and first events of the runs, newest first. Large texts of the events are left out.

        Args:
            before: Only the runs that began earlier than this one.
            text: Leave out runs in whose first commit no text value or key ends with this. It may hold other events.
        """
        import json

        statement = _SELECT_BEGINNINGS.format(contains=self.database.contains)
        needles = (to_json(_storable(text))[1:], json.dumps(text)[1:].encode()) if text else (b"", b"")
        last = self.number_of(before) if before else _ALL
        while found := self.query(statement, (*needles, last)):
            for _, run_id, body in found:
                if body is not None and (started := self._started(body)) is not None:
                    yield run_id, started
            last = found[-1][0]

    def beginning(self, run_id: str) -> RunStarted | None:
        """Return the first event of a run without its large texts; None if it cannot be read. Raises RunNotFound."""
        found = self.query("SELECT body FROM events WHERE place=?", (self.number_of(run_id) << SEQ_BITS,))
        return self._started(found[0][0]) if found else None

    def _started(self, body: bytes) -> RunStarted | None:
        import json

        try:
            event = self._event(*json.loads(body)[0][1:3])
        except (ValueError, TypeError, IndexError, RecursionError):
            return None
        return event if isinstance(event, RunStarted) else None

    def imported_runs(self) -> Collection[str]:
        """Return the ids of the runs that came from a file and that nobody trusts yet."""
        return frozenset(self.notes_that_begin_with(IMPORTED))

    def trust_run(self, run_id: str) -> None:
        """Treat an imported run as one that began here."""
        self.forget_notes(f"{IMPORTED}{run_id}")
        self.flush()

    def clock(self, *, exact: bool = False) -> float:
        """Return the time in seconds since the epoch, by the clock that all processes of this home share.

        Args:
            exact: Ask the database. It may take a moment.
        """
        return self.database.clock(exact=exact)

    def run_ids(self, prefix: str, limit: int) -> list[str]:
        """Return the ids that begin with a text: the id that is the text itself first, then the newest."""
        text = _storable(prefix)
        statement = "SELECT run_id FROM runs WHERE substr(run_id, 1, ?)=? ORDER BY run_id=? DESC, id DESC LIMIT ?"
        return [str(found) for (found,) in self.query(statement, (len(prefix), text, text, limit))]

    def each_run(self, before: str = "", *, not_under: Sequence[str] = ()) -> Iterator[RunRecord]:
        """Iterate over all runs, newest first.

        Args:
            before: Only the runs that began earlier than this one.
            not_under: Leave out the runs named `NAME.…` for each of these names.
        """
        last, names = self.number_of(before) if before else _ALL, to_json(list(not_under)).decode()
        under = _UNDER.format(values=self.database.values_of)
        while found := self.query(
            f"{_SELECT_RUN} WHERE id<? AND NOT EXISTS ({under}) ORDER BY id DESC LIMIT 500", (last, names)
        ):
            yield from self._records(found)
            last = found[-1][0]

    def runs_with(self, kind: type[Event], most: int = _ALL) -> list[str]:
        """Return those of the latest runs, newest first, that have an event of a type, or may have one."""
        statement = _SELECT_HOLDING.format(contains=self.database.contains)
        return [run_id for (run_id,) in self.query(statement, (min(most, _ALL), f'"{kind.__name__}"'.encode()))]

    def runs_under(self, name: str) -> list[RunRecord]:
        """Return the run of this name and those named `NAME.…`, in the order in which they were created."""
        start = _storable(name)
        names = (start, f"{start}.", f"{start}/")
        rows = self.query(f"{_SELECT_RUN} WHERE run_id=? OR (run_id>? AND run_id<?) ORDER BY id", names)
        return self._records(rows)

    def run(self, run_id: str) -> RunRecord:
        """Return a run by its name. Raises RunNotFound."""
        found = self._records(self.query(f"{_SELECT_RUN} WHERE id=?", (self.number_of(run_id),)))
        if not found:
            raise RunNotFound(f"Run {run_id} was deleted just now.")
        return found[0]

    def _records(self, rows: Sequence[tuple[Any, ...]]) -> list[RunRecord]:
        held = self.database.locks.held_of([row[0] for row in rows if row[4] == "running"])
        found = []
        for number, run_id, started, ended, status, task, model, answer, stop_reason in rows:
            record = RunRecord(
                run_id=run_id,
                started=_time(started) or 0.0,
                ended=_time(ended),
                status="interrupted" if status == "running" and number not in held else str(status),
                task=str(task),
                model=str(model),
                answer=None if answer is None else str(answer),
                stop_reason=None if stop_reason is None else str(stop_reason),
            )
            found.append(record)
        return found

    def rows(self, run_id: str) -> Iterator[Row]:
        """Iterate over a run's events, in order. An event that cannot be read is `Unknown`; none is left out."""
        return iter(self.read(run_id).rows)

    def read(self, run_id: str) -> RunRows:
        """Return a run's events and what is wrong with its record. Raises RunNotFound, JournalError."""
        number = self.number_of(run_id)
        self._flush_run(number)
        return self._read_run(number)

    def rows_from(self, run_id: str, seq: int, limit: int = _ALL) -> list[Row]:
        """Return a run's events from a place on, all of them committed, without reading what is before it.

        Args:
            run_id: The name of the run.
            seq: The place of the first event wanted.
            limit: The most events to return.

        Raises:
            RunNotFound: No run has this name.
            JournalError: The journal cannot be read.
        """
        number = self.number_of(run_id)
        self._flush_run(number)
        start, end = number << SEQ_BITS, number + 1 << SEQ_BITS
        # The commit that holds the event `seq` may begin before it.
        last = min(start + seq, end - 1)
        first = self.query("SELECT max(place) FROM events WHERE place>=? AND place<=?", (start, last))[0][0]
        place = start if first is None else first
        rows: list[Row] = []
        # A row holds at least one event, mostly several: few rows are fetched at once.
        while stored := self.query(_SELECT_PLACES, (place, end, min(limit, 1000))):
            for place, body in stored:
                for offset, (at, event) in enumerate(self._events(body, rows[-1].time if rows else 0.0)):
                    if place - start + offset >= seq:
                        rows.append(Row(place - start + offset, at, event))
                if len(rows) >= limit:
                    return rows[:limit]
            place += 1
        return rows

    def last_event(self, run_id: str) -> Event | None:
        """Return the last event of a run, or None. Raises RunNotFound, JournalError."""
        return self._last(run_id)[1]

    def last_time(self, run_id: str) -> float:
        """Return the time of the last event of a run, 0 without events. Raises RunNotFound, JournalError."""
        return self._last(run_id)[0]

    def _last(self, run_id: str) -> tuple[float, Event | None]:
        number = self.number_of(run_id)
        self._flush_run(number)
        found = self.query(_SELECT_LAST, (number << SEQ_BITS, number + 1 << SEQ_BITS))
        return self._events(found[0][0], 0.0)[-1] if found else (0.0, None)

    def _flush_run(self, number: int) -> None:
        """Wait until what has been put of a run is committed."""
        with self._state:
            unwritten = number in self._batch.events
            unwritten |= self._in_commit is not None and number in self._in_commit.events
        if unwritten:
            self.flush()

    def _read_run(self, number: int) -> RunRows:
        start = number << SEQ_BITS
        # Read before the events: another process may write some, and the end of the run, at any moment.
        synced, status = self.database.synced.of(number), self._status(number)
        stored = self.query(_SELECT_EVENTS, (start, number + 1 << SEQ_BITS))
        rows: list[Row] = []
        problems: list[str] = []
        expected, latest = 0, 0.0
        for place, body, crc in stored:
            seq = place - start
            if seq != expected:
                missing = f"events {expected} to {seq - 1} are missing"
                problems.append(missing if seq > expected else f"event {seq} is stored twice")
            damaged = crc is not None and crc != _checksum(place, body)
            if damaged:
                problems.append(f"the row of event {seq} does not match its checksum")
            events = self._events(body, latest)
            for offset, (at, event) in enumerate(events):
                rows.append(Row(seq + offset, at, event))
                if not damaged and is_unreadable(event):
                    problems.append(f"event {seq + offset} cannot be read")
            expected = seq + max(len(events), 1)
            latest = events[-1][0] if events else latest
        if status != self._status(number):
            status = "running"  # it ended, or was resumed, meanwhile
        problems.extend(_lost_end(rows, expected, synced, status))
        return RunRows(tuple(rows), tuple(problems))

    def _status(self, number: int) -> str:
        found = self.query("SELECT status FROM runs WHERE id=?", (number,))
        return str(found[0][0]) if found else "running"

    def _events(self, body: bytes, before: float) -> list[tuple[float, Event]]:
        import json

        try:
            return [(float(at), self._event(kind, values, *refs)) for at, kind, values, *refs in json.loads(body)]
        except (ValueError, TypeError, RecursionError):
            return [(before, unreadable("Unreadable"))]

    def _event(self, kind: str, values: dict[str, Any], refs: Mapping[str, str] = _NO_REFS) -> Event:
        try:
            for name, digest in refs.items():
                field, _, place = name.partition("/")
                if place:
                    number, _, key = place.partition("/")
                    values[field][int(number)][key] = self._body(bytes.fromhex(digest))
                else:
                    values[field] = self._body(bytes.fromhex(digest))
            return read_event(kind, values)
        except (ValueError, KeyError, AttributeError, TypeError):
            return unreadable(kind)

    def _body(self, digest: bytes) -> str:
        return self._stored(digest).decode("utf-8", "surrogatepass")

    def _stored(self, digest: bytes) -> bytes:
        found = self.query("SELECT body FROM bodies WHERE hash=?", (digest,))
        if not found or not isinstance(found[0][0], bytes) or hashlib.sha256(found[0][0]).digest() != digest:
            raise ValueError("a stored body is missing or damaged")
        return found[0][0]

    def content(self, sha256: str) -> bytes:
        """Return the content of a file that an event names by its hash.

        Raises:
            JournalError: it is missing or damaged, or the journal cannot be read.
        """
        digest = bytes.fromhex(sha256)
        with self._state:  # it may not be committed yet
            for batch in (self._batch, self._in_commit):
                if batch is not None and digest in batch.contents:
                    return batch.contents[digest]
        try:
            return self._stored(digest)
        except ValueError:
            text = f"The content of a file ({sha256[:12]}…) is missing in {self.name}, or damaged. Was its run deleted?"
            raise JournalError(text) from None

    # -------------------------------------------------------------------------------------------- lifetime

    def pause(self) -> None:
        """Wait for the writer, and let nobody use the database until `proceed`: before a fork."""
        self.database.pause()
        self._state.acquire()

    def proceed(self, *, in_parent: bool) -> None:
        """Continue after a fork. In a child process the store is the parent's."""
        try:
            self.database.proceed(in_parent=in_parent)
        finally:
            self._state.release()

    def close(self) -> None:
        """Commit what has been put, and close the database."""
        with suppress(JournalError):
            self.flush()
        self._writer.shutdown()
        self.database.close()


def tombstone(run_id: str) -> str:
    """Return the name of the note that says when a person's run was deleted. It does not tell the id."""
    return f"deleted:{hashlib.sha256(run_id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _database_of(home: Home) -> JournalDatabase:
    if isinstance(home, DatabaseHome):
        from closeout.journal.on_postgres import PostgresJournal

        return PostgresJournal(home)
    return SqliteJournal(home)


def _called_here(act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call a function when there are no more threads, because the interpreter is shutting down."""
    done: Future[T] = Future()
    try:
        done.set_result(act(*args, **kwargs))
    except BaseException as error:
        done.set_exception(error)
    return done


def _wake(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():  # cancelled
            waiter.set_result(None)


def _row(run: int, entries: Sequence[_Entry], bodies: _Bodies) -> EventRow:
    items = [(at, type(event).__name__, *_apart(event, bodies)) for _, at, event in entries]
    place = (run << SEQ_BITS) + entries[0][0]
    try:
        body = to_json(items, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError):
        # Lone surrogates are written as escapes, foreign objects as their text.
        import json

        body = json.dumps(items, default=str).encode()
    return place, body, _checksum(place, body)


def _checksum(place: int, body: bytes | str) -> int:
    """CRC-32 of a row, its place included, so that rows cannot change places."""
    data = body.encode() if isinstance(body, str) else body
    return zlib.crc32(data, place & 0xFFFFFFFF)


def _apart(event: Event, bodies: _Bodies) -> tuple[Any, ...]:
    """An event as a row holds it: its fields that are not empty by default, and the hashes of the large ones."""
    empty = event.empty
    values = {name: each for name, each in event.values().items() if each or name not in empty or each != empty[name]}
    refs: dict[str, str] = {}
    for name in event.bodies:
        if name in values and (text := values[name]) and len(text) > BODY_LIMIT:
            values[name], refs[name] = "", bodies.add(text)
    if isinstance(event, ModelRequested) and event.added:  # messages, each with a text of its own
        values["added"] = [_message_apart(message, number, bodies, refs) for number, message in enumerate(event.added)]
    return (values, refs) if refs else (values,)


class _Bodies(dict[bytes, list[bytes]]):
    """The texts that are stored by hash, in parts. One that several events hold, such as a reply, is hashed once."""

    def __init__(self) -> None:
        self._added: dict[int, tuple[str, str]] = {}  # by id: Python's hash of 100 MB holds its lock for 30 ms

    def add(self, text: str) -> str:
        """Add a text and return its hash in hexadecimal."""
        if known := self._added.get(id(text)):
            return known[1]
        starts = range(0, len(text), BODY_PART)
        parts = [text[at : at + BODY_PART].encode("utf-8", "surrogatepass") for at in starts]
        found = hashlib.sha256()
        for part in parts:
            found.update(part)
        self[found.digest()] = parts
        self._added[id(text)] = text, found.hexdigest()  # the text is kept, so its id stays its own
        return found.hexdigest()


def _message_apart(message: Mapping[str, Any], number: int, bodies: _Bodies, refs: dict[str, str]) -> Mapping[str, Any]:
    """A message, or one without its large text, whose hash is then among `refs` as "added/NUMBER/KEY"."""
    for key in ("content", "prompt"):
        text = message.get(key)
        if isinstance(text, str) and len(text) > BODY_LIMIT:
            refs[f"added/{number}/{key}"] = bodies.add(text)
            message = {**message, key: ""}
    return message


def _lost_end(rows: Sequence[Row], expected: int, synced: int, status: str) -> Iterator[str]:
    """Signs that a record has lost its first or its last events."""
    if rows and rows[0].seq == 0 and not isinstance(rows[0].event, RunStarted):
        yield "it does not begin with RunStarted"
    if synced > expected:
        yield f"events {expected} to {synced - 1} are missing, which were safely on disk"
    elif status != "running" and not _has_ended(rows):
        yield f"the run ended ({status}), but its last events are missing"


def _has_ended(rows: Sequence[Row]) -> bool:
    for row in reversed(rows):
        if isinstance(row.event, (RunEnded, RunResumed)):
            return isinstance(row.event, RunEnded)
    return False


def executor_of(started: RunStarted) -> str | None:
    """Return the agent whose workers execute a run, or the `server_name` of its server.

    It is '' if nobody does, and None if only an agent with the handoffs of the run can tell.
    """
    if SERVED in started.origin:
        return server_name(started.origin[SERVED].get("agent", ""))
    if LAB in started.origin:
        return ""
    return None if started.handed else started.name


def server_name(name: str) -> str:
    """Return what executes the runs of servers of a name."""
    return f"{SERVED}:{name}"


def _time(at: Any) -> float | None:
    return at if isinstance(at, float) and 0 <= at < _LATEST else None


def _storable(text: str | None) -> str | None:
    return text and text.encode("utf-8", "replace").decode("utf-8")


# ------------------------------------------------------------------------------------------------ one store per home

_stores: dict[tuple[int, Home], Store] = {}
_stores_lock = threading.Lock()


def open_store(home: Home, make: Callable[[Home], Store] = Store) -> Store:
    """Return the process's store for a home. A child process after a fork gets its own.

    Raises:
        JournalError: the folder cannot be written, the database cannot be reached, or the journal cannot be read.
    """
    key = (os.getpid(), home.absolute())
    with _stores_lock:
        found = _stores.get(key)
        if found is None:
            # The real path counts: two stores of one folder would not see each other's run locks on every system.
            real = key if isinstance(home, DatabaseHome) else (key[0], Path(os.path.realpath(home)))
            found = _stores[key] = _stores[real] = _stores.get(real) or make(home)
        return found


def close_store(home: Home) -> None:
    """Close this process's store of a home, if it is open."""
    with _stores_lock:
        found = _stores.get((os.getpid(), home.absolute()))
        for key in [key for key, store in _stores.items() if store is found]:
            del _stores[key]
    if found is not None:
        found.close()


def close_stores() -> None:
    """Close every store of this process (tests, and long-lived programs that switch folders)."""
    with _stores_lock:
        own = [key for key in _stores if key[0] == os.getpid()]
        closing = {_stores.pop(key) for key in own}
    for store in closing:
        store.close()


_paused: list[Store] = []


def _before_fork() -> None:
    """Close all connections: SQLite keeps a process's locks in memory, where a child would inherit them as its own.

    Once the parent is gone, the child's writes and those of other processes would destroy each other.
    """
    _stores_lock.acquire()
    _paused[:] = {store for (process, _), store in _stores.items() if process == os.getpid()}
    for store in _paused:
        store.pause()


def _after_fork(*, in_parent: bool) -> None:
    if not in_parent:
        _stores.clear()
    for store in _paused:
        store.proceed(in_parent=in_parent)
    _paused.clear()
    _stores_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(in_parent=True),
        after_in_child=lambda: _after_fork(in_parent=False),
    )
