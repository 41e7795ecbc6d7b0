"""The interface between the store and the database that keeps a journal: SQLite in a folder, or PostgreSQL.

The statements are the store's, and the same for both databases, with `?` for a value. Here is what differs: appending,
which a lock or a lease must allow, deleting for good, and what SQLite keeps in files of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from closeout.journal.claims import Look, SuspectsGo

__all__ = [
    "MESSAGE_LOCK",
    "SEQ_BITS",
    "EventRow",
    "JournalDatabase",
    "NumberOfEach",
    "RunUpdate",
    "SqlConnection",
    "SqlCursor",
    "TakesRuns",
    "delete_run",
]

T = TypeVar("T")

# A row holds what one run put into one commit: a JSON list of [time, type, fields], with the hashes of fields that are
# stored apart. Its place is run * 2**32 + seq of the first event. One row costs half as much as five, and with one
# integer as its key the table grows at its end: a commit writes two pages instead of five.
SEQ_BITS = 32
MESSAGE_LOCK = 1 << 30  # Added to a run's number, it is the lock of the run's messages.

EventRow: TypeAlias = tuple[int, bytes, int]  # place, body, checksum
RunUpdate: TypeAlias = tuple[int, str, tuple[Any, ...]]  # the number of a run, a statement that changes it, its values


def delete_run(db: SqlConnection, run_id: str, number: int) -> None:
    """Delete a run and what is noted of it, within a transaction. Its messages and its bodies stay."""
    places = (number << SEQ_BITS, number + 1 << SEQ_BITS)
    db.execute("DELETE FROM events WHERE place>=? AND place<?", places)
    db.execute("DELETE FROM outbox WHERE place>=? AND place<?", places)
    db.execute("DELETE FROM runs WHERE id=?", (number,))
    db.execute("DELETE FROM signals WHERE run_id=?", (run_id,))
    # A note on a run ends with its name.
    db.execute("DELETE FROM notes WHERE substr(name, length(name)-?)=?", (len(run_id), f" {run_id}"))
    # The groups that no other run has are deleted, too: they name persons and budgets.
    groups = db.execute("DELETE FROM usage WHERE run=? RETURNING usage_group", (number,)).fetchall()
    unused = (
        "DELETE FROM usage_groups WHERE id=? AND NOT EXISTS (SELECT 1 FROM usage WHERE usage_group=usage_groups.id)"
    )
    db.executemany(unused, groups)


class SqlCursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """The number of rows that were changed."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""

    def __iter__(self) -> Iterator[Any]: ...


class SqlConnection(Protocol):
    """A connection within a transaction."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> SqlCursor:
        """Execute a statement."""

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> SqlCursor:
        """Execute a statement for each row of values."""


class TakesRuns(Protocol):
    """The right to execute runs, by their numbers: only one process has that of a run at a time."""

    def take(self, run_id: str, number: int, db: SqlConnection | None = None) -> None:
        """Take a run, within a transaction if one is given. Raises JournalLocked while any process has it."""

    def try_take(self, number: int) -> bool:
        """Take a run if it is free, and return whether it was."""

    def drop(self, number: int, db: SqlConnection | None = None) -> None:
        """Let go of a run, if this object has it; within a transaction if one is given."""

    def held_of(self, numbers: Sequence[int]) -> Collection[int]:
        """Return those of some runs that any process has."""


class NumberOfEach(Protocol):
    """A number for each run, which costs next to nothing to read."""

    def of(self, run: int) -> int:
        """Return the number of a run; 0 if the run is unknown."""

    def set(self, run: int, count: int) -> None:
        """Remember the number of a run. Raises JournalError."""

    def clear(self, run: int) -> None:
        """Forget the number of a lost run whose number a new one gets."""


class JournalDatabase(Protocol):
    """A database that keeps a journal. Its methods may be called from any thread and raise JournalErrors.

    Attributes:
        name: The database as people read it, without secrets.
        is_local: True if commits are often so quick that an event loop may make them.
        writing: Held while something is written.
        locks: Who executes which run.
        synced: The number of events of each run that are known to be safe.
        messages: The number of messages that were sent to each run. It may be one too many.
        values_of: SQL for the table of the values in a JSON list.
        contains: SQL that is true if the body `e.body` has the text of a parameter in it.
    """

    name: str
    is_local: bool
    writing: threading.RLock
    contains: str
    values_of: str

    @property
    def locks(self) -> TakesRuns: ...
    @property
    def synced(self) -> NumberOfEach: ...
    @property
    def messages(self) -> NumberOfEach: ...

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
        """Write rows of events with their bodies, and then the updates: all of it or nothing.

        Args:
            rows: The rows.
            bodies: The texts and files that they refer to, each in parts, by hash.
            updates: Changes of runs.
            durable: Survive a power cut.
            again: An earlier try may have written some of the rows.
            waits: Wait for the lock of another process. A local database raises JournalLocked without.

        Returns:
            The runs that another process has taken over. Of these, nothing is written.
        """

    def insert(self, db: SqlConnection, row: EventRow, bodies: Mapping[bytes, list[bytes]]) -> None:
        """Write a row of a new run with its bodies, within a transaction."""

    def transact(self, act: Callable[[SqlConnection], T], *, durable: bool = False, holding: Collection[int] = ()) -> T:
        """Return what a function does within a transaction: all of it is written, or nothing.

        Args:
            act: The function. If the connection is cut, it is called again. An earlier call may have been committed.
            durable: Survive a power cut.
            holding: Numbers of runs that this process must have taken, and still have at the end.
        """

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Read through a connection of its own, which no writer holds up."""

    def clock(self, *, exact: bool = False) -> float:
        """Return the time in seconds since the epoch, by the clock that all processes of this journal share.

        Args:
            exact: Ask the database. Without it, the time may be off as far as a clock drifts within a lease.
        """

    def has_table(self, name: str) -> bool:
        """Return whether a table exists that is made when it is needed first."""

    def version(self) -> int:
        """Return a number that changes when anything in the journal does, in whatever process."""

    def look(
        self, agent: str, places: int, *, suspects: SuspectsGo, exclude: Collection[str], fresh_age: float
    ) -> Look:
        """Look for the work of a worker, and take the runs that it may execute: see `Store.look`."""

    def tell(self, number: int) -> None:
        """Report to other processes that a run has news: a signal, for instance. Letting go of a run is reported."""

    def subscribe(self, act: Callable[[int], object], *, as_worker: bool = False) -> Callable[[], None]:
        """Call a function, in another thread, with the number of each run that has news, 0 for all.

        A database may have no news, and none comes while it cannot be reached. Returns what ends the calls.

        Args:
            act: The function.
            as_worker: Call it only if the worker that looks in this process is chosen for a run.
        """

    def discard(self, db: SqlConnection, run_id: str, number: int) -> None:
        """Delete a run, which this process has taken, and what is noted of it, within a transaction. Its bodies stay.

        The bytes of the run do not stay in free pages.
        """

    def delete_unused_bodies(self) -> None:
        """Delete the bodies that no event refers to. Whatever looks like a reference counts as one."""

    def wipe(self) -> None:
        """Overwrite the bytes of what was deleted. Takes as long as a copy."""

    def examine(self) -> tuple[str, ...]:
        """Return what is wrong with the database itself."""

    def pause(self) -> None:
        """Wait for the writer and let nobody use the connections until `proceed`: before a fork."""

    def proceed(self, *, in_parent: bool) -> None:
        """Continue after a fork. In a child process this object is the parent's, and only lets go of what is shared."""

    def close(self) -> None:
        """Close the connections and files."""
