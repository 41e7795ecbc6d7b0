"""The ledger of a home: what the budgets of all runs and processes have spent, and what requests under way may cost."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from closeout.budget_limits import NANO, BudgetLimit, Unit, period_start
from closeout.errors import JournalError
from closeout.homes import DatabaseHome, Home
from closeout.journal.database import explained, open_read_only
from closeout.journal.journal_database import SqlConnection, TakesRuns
from closeout.journal.ledger_file import LEDGER_NAME, LedgerFile
from closeout.journal.store import open_store

__all__ = [
    "LEDGER_NAME",
    "Amount",
    "Ledger",
    "LedgerDatabase",
    "Refusal",
    "Spent",
    "close_ledgers",
    "forget_key",
    "open_ledger",
    "spent_by_day",
]

T = TypeVar("T")

KEPT_SECONDS = 7200  # counters of minutes and hours are kept this long

_SUMS = ", ".join(f"CAST(COALESCE(SUM({column}), 0) AS BIGINT)" for column in ("usd", "tokens", "requests"))
# One statement, so that a request which is settled meanwhile is seen once.
_USED = f"""
SELECT 0, {_SUMS} FROM counters WHERE key = ? AND period = ? AND start >= ? AND start < ?
UNION ALL SELECT 1, {_SUMS} FROM reservations WHERE key = ? AND at >= ? AND at < ?
"""  # noqa: S608 - constants
_USED_BY_DAY = """
SELECT 0, key, start, usd, tokens, requests FROM counters WHERE period = 'day'
UNION ALL SELECT 1, key, at, usd, tokens, requests FROM reservations
"""
_ADD = """
INSERT INTO counters VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (key, period, start) DO UPDATE SET
  usd = counters.usd + excluded.usd, tokens = counters.tokens + excluded.tokens,
  requests = counters.requests + excluded.requests
"""
_AT_ONCE = "SELECT count(*) FROM reservations WHERE key = ? AND requests = 0"
_FORGET_OLD = "DELETE FROM counters WHERE key = ? AND period IN ('minute', 'hour') AND start < ?"
_RESERVE = "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?)"
_RESERVED = "SELECT key, at, usd, tokens, requests FROM reservations WHERE request = ? ORDER BY key"
_RELEASE = "DELETE FROM reservations WHERE key = ? AND request = ?"
_COUNTED = ("minute", "hour", "day")  # a month and all time are sums of days


class LedgerDatabase(Protocol):
    """A database that keeps a ledger: an SQLite file, or tables beside a journal in PostgreSQL.

    Its methods may be called from any thread and raise JournalErrors.
    """

    @property
    def locks(self) -> TakesRuns:
        """The processes that are alive, by their numbers."""

    def transact(self, act: Callable[[SqlConnection], T]) -> T:
        """Call a function within a transaction. If the connection is cut, it is called again.

        An earlier call may have been committed then.
        """

    def admit(self, db: SqlConnection, keys: Sequence[str]) -> float:
        """Admit nobody else to any of these keys, sorted, until the transaction ends. Return the database's time."""

    def wipe(self) -> None:
        """Overwrite the bytes of what was deleted, unless the journal's `wipe` does so."""

    def close(self) -> None:
        """Close the database. The process counts as dead then."""


@dataclass(frozen=True, slots=True)
class Amount:
    """What a request costs: billionths of a US dollar, and tokens. Without a request it is the place of a run."""

    usd: int = 0
    tokens: int = 0
    requests: int = 1

    def of(self, unit: Unit) -> int:
        """Return the amount in one unit."""
        return self.usd if unit == "USD" else self.tokens if unit == "tokens" else self.requests


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not admitted.

    Attributes:
        limit: The limit that it would exceed.
        left: What is left of the limit, requests under way not counted.
        wait: Seconds until the period ends, by the clock of the database.
        pending: Whether it may fit once the requests under way have been settled.
    """

    limit: BudgetLimit
    left: int
    wait: float
    pending: bool = False


@dataclass(frozen=True, slots=True)
class Spent:
    """What one key has spent on one day of UTC, and what its requests under way may cost at most."""

    key: str
    day: float
    spent: Amount
    reserved: Amount

    def to_dict(self) -> dict[str, object]:
        """Return the day and the amounts as JSON values."""
        return {
            "day": datetime.fromtimestamp(self.day, UTC).date().isoformat(),
            "key": self.key,
            "requests": self.spent.requests,
            "tokens": self.spent.tokens,
            "cost_usd": self.spent.usd / NANO,
            "reserved_usd": self.reserved.usd / NANO,
        }


class Ledger:
    """The budgets of a home, kept in an SQLite file of their own, or in the home's database.

    A request is admitted only if its largest possible cost fits; that is reserved until the request is settled. What a
    dead process had reserved counts as spent: its requests may have been answered, and nobody knows. The places of runs
    that may be executed at once are reservations, too, of nothing.

    Args:
        home: The home.
        clock: For tests. Otherwise the database's clock decides which day and minute it is.
    """

    def __init__(self, home: Home, clock: Callable[[], float] | None = None) -> None:
        self.clock = clock
        # Where an event loop has it called: another process may hold the database for a while.
        self.thread = ThreadPoolExecutor(1, "closeout-ledger")
        self._owed: dict[str, Amount | None] = {}  # what is to be settled, by request
        self._database = _database_of(home)
        self._process = self._database.transact(_next_process)
        # Held until the process ends, however it ends: its reservations are alive while it is.
        self._database.locks.take("of the ledger", self._process)

    def reserve(self, limits: Sequence[BudgetLimit], amount: Amount) -> str | Refusal:
        """Reserve the largest cost of a request for every key, or say which limit it would exceed.

        Returns:
            The id of the reservation, for `settle`.

        Raises:
            JournalError: The database cannot be reached or written, so nothing may be sent.
        """
        found = self._reserve(limits, amount)
        if isinstance(found, Refusal) and found.pending and self._settle_dead():
            return self._reserve(limits, amount)
        return found

    def settle(self, request: str, amount: Amount | None = None) -> None:
        """Replace a reservation by what the request cost; None: by all that was reserved.

        If the database cannot be reached, that is done before the next reservation. Until then it counts in full.
        """
        self._owed[request] = amount
        with suppress(JournalError):
            self._settle_owed()

    def close(self) -> None:
        """Close the database. What is still reserved counts as spent."""
        self.thread.shutdown()
        with suppress(JournalError):
            self._settle_owed()
        self._database.close()

    # ------------------------------------------------------------------------------------------ parts

    def _reserve(self, limits: Sequence[BudgetLimit], amount: Amount) -> str | Refusal:
        self._settle_owed()
        request, tries = secrets.token_hex(8), count()
        keys = sorted({limit.key for limit in limits})

        def reserve(db: SqlConnection) -> str | Refusal:
            now = self._database.admit(db, keys)
            if self.clock is not None:
                now = self.clock()
            if next(tries) and db.execute(_RESERVED, (request,)).fetchone():
                return request  # the connection was cut after it was committed
            if refusals := _refusals(db, limits, amount, now):
                # One that only waits for other requests is the last reason to name.
                return min(refusals, key=lambda refusal: (refusal.pending, refusal.limit.waits))
            cost = amount.usd, amount.tokens, amount.requests
            db.executemany(_RESERVE, [(key, request, self._process, now, *cost) for key in keys])
            return request

        try:
            return self._database.transact(reserve)
        except JournalError:
            self._owed[request] = Amount(requests=0)  # it may have been committed, and is not sent
            raise

    def _settle_owed(self) -> None:
        for request, amount in [*self._owed.items()]:
            self._database.transact(partial(_settle, request=request, amount=amount))
            self._owed.pop(request, None)

    def _settle_dead(self) -> bool:
        """Settle the reservations of dead processes at their full amount. Return whether there were any."""
        rows: list[Any] = self._database.transact(
            lambda db: db.execute(
                "SELECT DISTINCT request, process FROM reservations WHERE process <> ?", (self._process,)
            ).fetchall()
        )
        alive = self._database.locks.held_of(sorted({process for _, process in rows}))
        dead = [request for request, process in rows if process not in alive]
        for request in dead:
            self._database.transact(partial(_settle, request=request, amount=None))
        return bool(dead)


def _database_of(home: Home) -> LedgerDatabase:
    if isinstance(home, DatabaseHome):
        from closeout.journal.postgres_ledger import PostgresLedger

        return PostgresLedger(home)
    return LedgerFile(home)


def _next_process(db: SqlConnection) -> int:
    db.execute("UPDATE processes SET last = last + 1")
    return int(db.execute("SELECT last FROM processes").fetchone()[0])


def _refusals(db: SqlConnection, limits: Sequence[BudgetLimit], amount: Amount, now: float) -> list[Refusal]:
    found = []
    for limit in limits:
        if limit.unit == "runs":
            if db.execute(_AT_ONCE, (limit.key,)).fetchone()[0] >= limit.amount:
                found.append(Refusal(limit, 0, 0.0, pending=True))
            continue
        begin, end = limit.window(now)
        period = limit.period if limit.period in ("minute", "hour") else "day"
        used = db.execute(_USED, (limit.key, period, begin, end, limit.key, begin, end))
        amounts = {kind: Amount(*sums).of(limit.unit) for kind, *sums in used}
        spent, asked = amounts[0], amount.of(limit.unit)
        if spent + amounts[1] + asked > limit.amount:
            pending = spent + asked <= limit.amount
            found.append(Refusal(limit, max(limit.amount - spent, 0), end - now, pending))
    return found


def _settle(db: SqlConnection, *, request: str, amount: Amount | None) -> None:
    for key, at, *reserved in db.execute(_RESERVED, (request,)).fetchall():
        if not db.execute(_RELEASE, (key, request)).rowcount:
            continue  # another process, which took this one for dead, has settled it meanwhile
        spent = Amount(*reserved) if amount is None else amount
        cost = spent.usd, spent.tokens, spent.requests
        if not any(cost):
            continue
        db.executemany(_ADD, [(key, period, period_start(period, at), *cost) for period in _COUNTED])
        db.execute(_FORGET_OLD, (key, at - KEPT_SECONDS))


def spent_by_day(home: Home) -> list[Spent]:
    """Return what the keys of a home have spent, by day, and what is reserved. A home without budgets has nothing."""
    found: dict[tuple[float, str], list[Amount]] = {}
    for kind, key, at, *amounts in _query(home, _USED_BY_DAY):
        pair = found.setdefault((period_start("day", at), key), [Amount(requests=0), Amount(requests=0)])
        sums = zip((pair[kind].usd, pair[kind].tokens, pair[kind].requests), amounts, strict=True)
        pair[kind] = Amount(*(before + more for before, more in sums))
    return [Spent(key, day, *pair) for (day, key), pair in sorted(found.items())]


def _query(home: Home, statement: str) -> list[Any]:
    if isinstance(home, DatabaseHome):
        return open_store(home).query(statement)
    path = home / LEDGER_NAME
    if not path.exists():
        return []
    with explained(path), closing(open_read_only(path)) as db:
        return db.execute(statement).fetchall()


def forget_key(home: Home, key: str) -> None:
    """Delete what a key has spent. What is reserved by requests under way is forgotten, too.

    In a file the bytes are overwritten; in a database the journal's `wipe` does so.

    Raises:
        JournalError: The ledger cannot be written.
    """

    def forget(db: SqlConnection) -> None:
        db.execute("DELETE FROM counters WHERE key=?", (key,))
        db.execute("DELETE FROM reservations WHERE key=?", (key,))

    with closing(_database_of(home)) as database:
        database.transact(forget)
        database.wipe()


_ledgers: dict[tuple[int, Home], Ledger] = {}
_ledgers_lock = threading.Lock()


def open_ledger(home: Home) -> Ledger:
    """Return the process's ledger of a home. A child process after a fork gets its own. Raises JournalError."""
    real = home if isinstance(home, DatabaseHome) else Path(os.path.realpath(home))
    key = (os.getpid(), real)
    with _ledgers_lock:
        if key not in _ledgers:
            _ledgers[key] = Ledger(home)
        return _ledgers[key]


def close_ledgers() -> None:
    """Close every ledger of this process (tests, and long-lived programs that switch folders)."""
    with _ledgers_lock:
        for key in [key for key in _ledgers if key[0] == os.getpid()]:
            _ledgers.pop(key).close()
