"""The ledger of a home: what the budgets of all runs and processes have spent, and what requests under way may cost."""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from closeout.budget_limits import NANO, BudgetLimit, Unit, period_start
from closeout.errors import UsageError
from closeout.homes import DatabaseHome, Home
from closeout.journal.database import LOCK_SECONDS, empty_log, explained, make_folder, open_file, set_modes, transaction
from closeout.journal.locks import RunLocks

__all__ = [
    "LEDGER_NAME",
    "Amount",
    "Ledger",
    "Refusal",
    "Spent",
    "close_ledgers",
    "forget_key",
    "open_ledger",
    "spent_by_day",
]

LEDGER_NAME = "budgets.sqlite3"
LOCKS_FILE = "budgets.locks"
KEPT_SECONDS = 7200  # counters of minutes and hours are kept this long
VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS counters (
  key TEXT, period TEXT, start REAL, usd INTEGER, tokens INTEGER, requests INTEGER,
  PRIMARY KEY (key, period, start)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reservations (
  key TEXT, request TEXT, process INTEGER, at REAL, usd INTEGER, tokens INTEGER, requests INTEGER,
  PRIMARY KEY (key, request)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS reservations_by_request ON reservations (request);
CREATE TABLE IF NOT EXISTS processes (last INTEGER);
"""
_SUMS = "COALESCE(SUM(usd), 0), COALESCE(SUM(tokens), 0), COALESCE(SUM(requests), 0)"
_ADD = """
INSERT INTO counters VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
  usd = usd + excluded.usd, tokens = tokens + excluded.tokens, requests = requests + excluded.requests
"""
_COUNTED = ("minute", "hour", "day")  # a month and all time are sums of days


@dataclass(frozen=True, slots=True)
class Amount:
    """What a request costs: billionths of a US dollar, and tokens."""

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
        until: When the period ends, in seconds since the epoch.
        pending: Whether it may fit once the requests under way have been settled.
    """

    limit: BudgetLimit
    left: int
    until: float
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
    """The budgets of a home, kept in an SQLite file of their own.

    A request is admitted only if its largest possible cost fits; that is reserved until the request is settled. What a
    dead process had reserved counts as spent: its requests may have been answered, and nobody knows.

    Args:
        folder: The home.
        clock: For tests.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        make_folder(folder, LEDGER_NAME)
        self.path = folder / LEDGER_NAME
        self.now = clock
        self._guard = threading.Lock()
        # Where an event loop has it called: another process may hold the file for a while.
        self.thread = ThreadPoolExecutor(1, "closeout-ledger")
        with explained(self.path):
            self._db = open_file(self.path, _prepare)
        self._locks = RunLocks(folder / LOCKS_FILE)
        with self._transaction() as db:
            db.execute("UPDATE processes SET last = last + 1")
            self._process = int(db.execute("SELECT last FROM processes").fetchone()[0])
        # Held until the process ends, however it ends: its reservations are alive while it is.
        self._locks.take("of the ledger", self._process)

    def reserve(self, limits: Sequence[BudgetLimit], amount: Amount) -> str | Refusal:
        """Reserve the largest cost of a request for every key, or say which limit it would exceed.

        Returns:
            The id of the reservation, for `settle`.
        """
        now = self.now()
        with self._transaction() as db:
            refusals = self._refusals(db, limits, amount, now)
            if any(refusal.pending for refusal in refusals) and self._settle_dead(db):
                refusals = self._refusals(db, limits, amount, now)
            if refusals:  # one that only waits for other requests is the last reason to name
                return min(refusals, key=lambda refusal: (refusal.pending, refusal.limit.waits))
            request = secrets.token_hex(8)
            rows = [
                (key, request, self._process, now, amount.usd, amount.tokens, amount.requests)
                for key in sorted({limit.key for limit in limits})
            ]
            db.executemany("INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            return request

    def settle(self, request: str, amount: Amount | None = None) -> None:
        """Replace a reservation by what the request cost; None: by all that was reserved."""
        with self._transaction() as db:
            self._settle(db, request, amount)

    def close(self) -> None:
        """Close the file. What is still reserved counts as spent."""
        self.thread.shutdown()
        self._locks.close()
        self._db.close()

    # ------------------------------------------------------------------------------------------ parts

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._guard, explained(self.path), transaction(self._db) as db:
            yield db

    def _refusals(
        self, db: sqlite3.Connection, limits: Sequence[BudgetLimit], amount: Amount, now: float
    ) -> list[Refusal]:
        found = []
        for limit in limits:
            begin, end = limit.window(now)
            period = limit.period if limit.period in ("minute", "hour") else "day"
            counted = f"SELECT {_SUMS} FROM counters WHERE key = ? AND period = ? AND start >= ? AND start < ?"  # noqa: S608
            spent = Amount(*db.execute(counted, (limit.key, period, begin, end)).fetchone()).of(limit.unit)
            under_way = f"SELECT {_SUMS} FROM reservations WHERE key = ? AND at >= ? AND at < ?"  # noqa: S608
            reserved = Amount(*db.execute(under_way, (limit.key, begin, end)).fetchone()).of(limit.unit)
            asked = amount.of(limit.unit)
            if spent + reserved + asked > limit.amount:
                pending = spent + asked <= limit.amount
                found.append(Refusal(limit, max(limit.amount - spent, 0), end, pending))
        return found

    def _settle_dead(self, db: sqlite3.Connection) -> bool:
        """Settle the reservations of dead processes at their full amount. Return whether there were any."""
        rows = db.execute("SELECT DISTINCT request, process FROM reservations WHERE process != ?", (self._process,))
        dead: dict[int, bool] = {}
        settled = False
        for request, process in rows.fetchall():
            if process not in dead:
                dead[process] = not self._locks.held_anywhere(process)
            if dead[process]:
                self._settle(db, request, None)
                settled = True
        return settled

    def _settle(self, db: sqlite3.Connection, request: str, amount: Amount | None) -> None:
        rows = db.execute(
            "SELECT key, at, usd, tokens, requests FROM reservations WHERE request = ?", (request,)
        ).fetchall()
        for key, at, *reserved in rows:
            spent = Amount(*reserved) if amount is None else amount
            for period in _COUNTED:
                start = period_start(period, at)
                db.execute(_ADD, (key, period, start, spent.usd, spent.tokens, spent.requests))
            db.execute(
                "DELETE FROM counters WHERE key = ? AND period IN ('minute', 'hour') AND start < ?",
                (key, self.now() - KEPT_SECONDS),
            )
        db.execute("DELETE FROM reservations WHERE request = ?", (request,))


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    set_modes(db, path)
    if db.execute("PRAGMA user_version").fetchone()[0] == VERSION:
        return
    with transaction(db):
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        if db.execute("SELECT COUNT(*) FROM processes").fetchone()[0] == 0:
            db.execute("INSERT INTO processes VALUES (0)")
        db.execute(f"PRAGMA user_version={VERSION}")


def spent_by_day(home: Home) -> list[Spent]:
    """Return what the keys of a home have spent, by day, and what is reserved. A home without budgets has nothing."""
    if isinstance(home, DatabaseHome):
        return []
    path = home / LEDGER_NAME
    if not path.exists():
        return []
    found: dict[tuple[float, str], list[Amount]] = {}
    with explained(path):
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            for key, start, *amounts in db.execute(
                "SELECT key, start, usd, tokens, requests FROM counters WHERE period = 'day'"
            ):
                found[start, key] = [Amount(*amounts), Amount(requests=0)]
            for key, at, *amounts in db.execute("SELECT key, at, usd, tokens, requests FROM reservations"):
                pair = found.setdefault((period_start("day", at), key), [Amount(requests=0), Amount(requests=0)])
                sums = zip((pair[1].usd, pair[1].tokens, pair[1].requests), amounts, strict=True)
                pair[1] = Amount(*(before + more for before, more in sums))
        finally:
            db.close()
    return [Spent(key, day, *pair) for (day, key), pair in sorted(found.items())]


def forget_key(home: Home, key: str) -> None:
    """Delete what a key has spent, overwriting its bytes. What is reserved by requests under way is forgotten, too.

    Raises:
        JournalError: The ledger cannot be written.
    """
    if isinstance(home, DatabaseHome):
        return
    path = home / LEDGER_NAME
    with explained(path), closing(sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)) as db:
        db.execute("PRAGMA secure_delete=ON")
        db.execute("DELETE FROM counters WHERE key=?", (key,))
        db.execute("DELETE FROM reservations WHERE key=?", (key,))
        empty_log(db, path)


_ledgers: dict[tuple[int, str], Ledger] = {}
_ledgers_lock = threading.Lock()


def open_ledger(home: Home) -> Ledger:
    """Return the process's ledger of a home. A child process after a fork gets its own.

    Raises:
        UsageError: The home is a database.
    """
    if isinstance(home, DatabaseHome):
        raise UsageError("Budgets are kept in a home that is a folder, not yet in a database. Use max_cost per run.")
    key = (os.getpid(), os.path.realpath(home))
    with _ledgers_lock:
        if key not in _ledgers:
            _ledgers[key] = Ledger(home)
        return _ledgers[key]


def close_ledgers() -> None:
    """Close every ledger of this process (tests, and long-lived programs that switch folders)."""
    with _ledgers_lock:
        for key in [key for key in _ledgers if key[0] == os.getpid()]:
            _ledgers.pop(key).close()
