"""A ledger in PostgreSQL: tables beside those of the journal, for the processes of all machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from closeout.homes import DatabaseHome
from closeout.journal.journal_database import SqlConnection
from closeout.journal.leases import RunLeases
from closeout.journal.postgres_link import PostgresLink
from closeout.journal.postgres_schema import FIRST_PROCESS, open_prepared

__all__ = ["PostgresLedger"]

T = TypeVar("T")

# A process that is stopped within a transaction keeps a key from all others for this long. They wait for longer.
STOPPED_SECONDS = 5.0

# The locks come first, in the order of the keys; then the clock is read.
_ADMIT = """
WITH admitted AS MATERIALIZED (
  SELECT pg_advisory_xact_lock(hashtextextended(?::text || ' ' || key, 0)) AS lock
  FROM unnest(?::text[]) AS asked(key))
SELECT count(lock), extract(epoch FROM clock_timestamp())::float8 FROM admitted
"""
_FORGET_LONG_DEAD = "DELETE FROM leases WHERE run > ? AND until < clock_timestamp() - interval '1 day'"


class PostgresLedger:
    """A ledger in a schema of a database: a `LedgerDatabase`. Requests of one key wait for each other, of others not.

    A process is alive while it renews its lease. One that was taken for dead has paid for its requests in full.

    Args:
        home: The database. Its tables are created, or brought up to date.
    """

    def __init__(self, home: DatabaseHome) -> None:
        self._home = home
        self._link = PostgresLink(home, stopped=STOPPED_SECONDS)
        open_prepared(self._link)
        self.transact(lambda db: db.execute(_FORGET_LONG_DEAD, (FIRST_PROCESS,)))
        self.locks = RunLeases(home)

    def transact(self, act: Callable[[SqlConnection], T]) -> T:
        """Call a function within a transaction, again while the connection is cut or the database restarts."""
        return self._link.transact(lambda: act(self._link))

    def admit(self, db: SqlConnection, keys: Sequence[str]) -> float:
        """Lock the keys until the transaction ends, and return the time of the server."""
        return float(db.execute(_ADMIT, (self._home.schema, list(keys))).fetchone()[1])

    def wipe(self) -> None:
        """Nothing: the journal's `wipe` rewrites all tables of the schema."""

    def close(self) -> None:
        """Give the lease back and close the connections."""
        self.locks.close()
        self._link.close()
