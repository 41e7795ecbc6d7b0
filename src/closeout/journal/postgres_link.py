"""A connection to PostgreSQL that is opened again when it was cut, its statements with `?`, and errors as sentences.

A connection has no state: a pooler may give each transaction another one. Tables are named with their schema, and a
transaction begins with the settings that it needs.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from closeout.errors import JournalDamaged, JournalError, JournalFull, JournalLocked, UsageError
from closeout.homes import DatabaseHome

if TYPE_CHECKING:
    import psycopg

__all__ = ["PATIENCE", "PostgresLink", "explained_postgres", "is_cut"]

T = TypeVar("T")

PATIENCE = 20.0  # seconds that a statement waits for a database that restarts, and for another one's lock
_BETWEEN = 0.1  # seconds between two tries
IDLE = 10.0  # seconds after which a connection that an idle worker does not need is closed
# A connection whose other end is gone must not stop a worker for hours.
_NETWORK = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}

# Where a statement names one of our tables.
_TABLE = re.compile(
    r"\b(FROM|JOIN|INTO|UPDATE|TABLE|NOT EXISTS|REFERENCES|VACUUM FULL|INDEX \w+ ON)( )"
    r"(?=(?:runs|events|bodies|body_uses|messages|signals|notes|leases|outbox|schedules|workers|usage|usage_groups|counters|reservations|processes|format)\b)"
)

Raw: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"


class PostgresLink:
    """One connection, for one thread at a time. It is opened when it is first used: a `SqlConnection`.

    Args:
        home: The database.
        synced: Wait until a commit is on disk. Without it, a crash of the server may take back the last commits.
        stopped: Seconds after which the server ends a transaction of a process that was stopped; None: a lease.
    """

    def __init__(self, home: DatabaseHome, *, synced: bool = True, stopped: float | None = None) -> None:
        self.home = home
        self.lock = threading.RLock()
        self._raw: Raw | None = None
        self._is_closed = False
        self._used = 0.0  # when it was used last, by the monotonic clock
        self.pooled = False  # Known once it is open: a pooler may give each transaction another connection.
        self._begin = b"".join(
            [
                b"BEGIN; SET LOCAL lock_timeout = '%.0fs'; " % PATIENCE,
                # A process that is stopped within a transaction must not keep its locks for longer than its leases.
                b"SET LOCAL idle_in_transaction_session_timeout = '%.0fs'" % (stopped or home.lease),
                b"" if synced else b"; SET LOCAL synchronous_commit = off",
            ]
        )

    def connect(self) -> Raw:
        """Open the connection now. Raises JournalError at once if the database cannot be reached."""
        import psycopg

        with explained_postgres(self.home):
            options: dict[str, Any] = {**_missing_in(self.home.url), **dict(self.home.secrets)}
            # Nothing is prepared on the server: a pooler may execute the next statement elsewhere.
            raw: Raw = psycopg.connect(self.home.url, autocommit=True, prepare_threshold=None, **options)
            try:
                (real,) = raw.execute("SELECT pg_backend_pid()").fetchone() or (0,)
            except BaseException:
                raw.close()
                raise
            self.pooled = raw.info.backend_pid != real  # a pooler answers with a number of its own
            self._raw = raw
            return raw

    @property
    def raw(self) -> Raw:
        """The connection. If there is none, waits up to twenty seconds for the database. Raises JournalError."""
        self._used = time.monotonic()
        if self._raw is not None and not self._raw.closed:
            return self._raw
        if self._is_closed:  # a thread that outlives what it read for must not open a connection that nobody closes
            raise JournalError(f"The database {self.home} was closed in this process.")
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                return self.connect()
            except JournalError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(_BETWEEN)

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        """Execute a statement of the store, whose values are marked by `?`."""
        return self.raw.execute(_translated(statement, self.home.schema), _storable(values), binary=True)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> psycopg.Cursor[tuple[Any, ...]]:
        """Execute a statement for each row of values."""
        cursor = self.raw.cursor()
        cursor.executemany(_translated(statement, self.home.schema), [_storable(row) for row in rows])
        return cursor

    def repeated(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute a statement that may be executed twice, again if the connection was cut. Returns its rows."""
        with self.lock, explained_postgres(self.home):
            return self.patiently(lambda: self.execute(statement, values).fetchall())

    def changed(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Do what `repeated` does within a transaction, which waits for other people's locks for twenty seconds."""
        return self.transact(lambda: self.execute(statement, values).fetchall())

    def transact(self, act: Callable[[], T]) -> T:
        """Return what a function does within a transaction, again while the connection is cut."""

        def once() -> T:
            with self.transaction():
                return act()

        with self.lock, explained_postgres(self.home):
            return self.patiently(once)

    def patiently(self, act: Callable[[], T]) -> T:
        """Call a function, again while it fails because the connection was cut, for up to twenty seconds."""
        import psycopg

        give_up, pause = time.monotonic() + PATIENCE, 0.0
        while True:
            try:
                return act()
            except psycopg.Error as error:
                if not is_cut(error) or time.monotonic() > give_up:
                    raise
                time.sleep(pause)
                pause = _BETWEEN

    @contextmanager
    def transaction(self) -> Iterator[Raw]:
        """All that is done within, or nothing. Call it within `patiently`: the connection may be cut at any moment."""
        raw = self.raw
        raw.execute(self._begin)
        try:
            yield raw
            raw.execute("COMMIT")
        except BaseException:
            with suppress(Exception):
                raw.execute("ROLLBACK")
            raise

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        """Wait for the results of all statements within at once. Raises the first error of them."""
        import psycopg

        if self.pooled:  # PgBouncer 1.18 in transaction mode stalls on statements that wait for no result
            yield
            return
        failure: psycopg.Error | None = None
        try:
            with self.raw.pipeline():
                try:
                    yield
                except psycopg.Error as error:  # if it passed on, the library would log what else its end meets
                    failure = error
        except psycopg.Error as error:
            raise failure or error from None
        if failure is not None:
            raise failure

    def rest(self) -> None:
        """Close the connection if it was not used for some seconds. It is opened again when it is needed."""
        if self._raw is not None and time.monotonic() - self._used > IDLE and self.lock.acquire(blocking=False):
            try:
                raw, self._raw = self._raw, None
                raw.close()
            finally:
                self.lock.release()

    def forget(self) -> None:
        """Let go of the connection without closing it: in a child process it is the parent's."""
        self._raw = None

    def close(self) -> None:
        """Close the connection. It cannot be used again."""
        with self.lock:
            self._is_closed = True
            if self._raw is not None:
                self._raw.close()


def _missing_in(url: str) -> dict[str, Any]:
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(url)
    return {name: value for name, value in {**_NETWORK, "application_name": "closeout"}.items() if name not in given}


@cache
def _translated(statement: str, schema: str) -> Any:
    """Write a statement of the store for psycopg: `%s` for `?`, and tables with their schema."""
    return _TABLE.sub(rf'\1\2"{schema}".', statement).replace("%", "%%").replace("?", "%s").encode()


def _storable(values: Sequence[Any]) -> Sequence[Any]:
    """Replace what a text of PostgreSQL cannot hold: the character NUL, and half of a surrogate pair."""
    if not any(isinstance(value, str) for value in values):
        return values
    return [
        value.replace("\0", "\ufffd").encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for value in values
    ]


def is_cut(error: BaseException) -> bool:
    """Return whether an error says that the connection is gone."""
    if not type(error).__module__.startswith("psycopg"):
        return False
    import psycopg

    if not isinstance(error, psycopg.Error):
        return False
    # Without a code it is libpq's. 08: connection; 57P: the server ends it; 25P03: idle for too long.
    code = error.sqlstate or ("08" if isinstance(error, psycopg.OperationalError) else "")
    return code[:2] == "08" or code[:3] == "57P" or code == "25P03"


@contextmanager
def explained_postgres(home: DatabaseHome) -> Iterator[None]:
    """Turn errors of PostgreSQL into JournalErrors that say what to do."""
    try:
        import psycopg
    except ImportError:
        raise UsageError("A home in PostgreSQL needs psycopg: pip install 'closeout[postgres]'.") from None
    try:
        yield
    except psycopg.Error as error:
        raise _journal_error(error, home) from error


def _journal_error(error: psycopg.Error, home: DatabaseHome) -> JournalError:
    text = " ".join(str(error).split()).rstrip(".")
    for _, secret in home.secrets:
        text = text.replace(secret, "***") if secret else text
    code = error.sqlstate or ""
    if code.startswith("53"):  # insufficient resources
        if code == "53100":
            return JournalFull(f"The disk of the database {home} is full. Free some space first.")
        return JournalError(f"The database {home} is at its limits ({text}). Raise them, or use fewer processes.")
    if code in ("55P03", "57014"):
        return JournalLocked(
            f"Something in the database {home} has been locked for {PATIENCE:.0f} seconds ({text}). Try again later."
        )
    if code == "42501":
        return JournalError(f"The role of {home} may not do that ({text}). Grant it the schema {home.schema}.")
    if code.startswith("XX"):
        return JournalDamaged(f"The database {home} is damaged ({text}). Restore a backup.")
    if is_cut(error):
        return JournalError(
            f"Cannot reach the database {home} ({text}). Check the address, and that PostgreSQL is running there."
        )
    return JournalError(f"The journal in {home} failed: {text}.")
