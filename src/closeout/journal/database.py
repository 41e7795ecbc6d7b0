"""The SQLite file of a journal: opening, its schema, migration from the previous format, and errors as sentences."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from closeout.errors import JournalDamaged, JournalError, JournalFull, JournalLocked

__all__ = [
    "CHECKED",
    "FILE_NAME",
    "JOURNAL_FILES",
    "LOCK_SECONDS",
    "VERSION",
    "SelfClosingConnection",
    "connect",
    "explained",
    "is_locked",
    "journal_error",
    "make_folder",
    "open_connection",
    "open_file",
    "open_or_create",
    "open_read_only",
    "set_modes",
    "transaction",
    "version_of",
    "wipe",
]

FILE_NAME = "journal.sqlite3"
# The files of a journal in its folder. A process that opens and closes one of the first three drops SQLite's locks.
JOURNAL_FILES = (
    FILE_NAME,
    f"{FILE_NAME}-wal",
    f"{FILE_NAME}-shm",
    "journal.locks",
    "journal.synced",
    "journal.messages",
)
# 5 had no outbox and no schedules, 4 nothing of what workers look for, 3 no times at which waiting runs can continue, 2
# no checksums; 1, in the end, had the rows of 2, and before that a row for each event.
VERSION = 6
CHECKED = 3  # the first format whose events have checksums
LOCK_SECONDS = 20.0  # Seconds that a commit waits for the write lock of another process.
_LITTLE_SPACE = 64 * 1024  # bytes: less than SQLite needs for its index and a page
_OPEN_SECONDS = 20.0  # Seconds that opening waits while another process turns the file into a journal.

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
  id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, started REAL NOT NULL, ended REAL,
  status TEXT NOT NULL, task TEXT NOT NULL, model TEXT NOT NULL, answer TEXT, stop_reason TEXT);
CREATE TABLE IF NOT EXISTS events (place INTEGER PRIMARY KEY, body BLOB NOT NULL, crc INTEGER);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bodies (hash BLOB PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
"""
# When a waiting run can continue: 0 says that its events must be looked at.
_ADD_DUE = "ALTER TABLE runs ADD COLUMN due REAL NOT NULL DEFAULT 0"
# What workers look for: the agent whose workers execute a run ('' if none do), its priority, and how often it was
# interrupted since it last made progress (1 for one that is executed). The end up to which its usage is counted.
_ADD_WORK = """
ALTER TABLE runs ADD COLUMN agent TEXT;
ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN counted REAL;
UPDATE runs SET priority = 9 - CAST(substr((
  SELECT name FROM notes WHERE name LIKE 'priority %' AND substr(name, 12) = run_id), 10, 1) AS integer)
  WHERE run_id IN (SELECT substr(name, 12) FROM notes WHERE name LIKE 'priority %');
DELETE FROM notes WHERE name LIKE 'priority %';
CREATE TABLE IF NOT EXISTS signals (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL,
  payload TEXT NOT NULL, sent REAL NOT NULL, received INTEGER NOT NULL DEFAULT 0, UNIQUE (run_id, id));
CREATE INDEX IF NOT EXISTS signals_open ON signals (run_id) WHERE received=0;
CREATE INDEX runs_next ON runs (priority DESC, (tries=0), id) WHERE status='running' AND tries<2;
CREATE INDEX runs_suspect ON runs (priority DESC, id) WHERE status='running' AND tries>1;
CREATE INDEX runs_unnamed ON runs (id) WHERE agent IS NULL AND status IN ('running', 'waiting');
CREATE TABLE usage_groups (
  id INTEGER PRIMARY KEY, day TEXT NOT NULL, keys TEXT NOT NULL, person TEXT NOT NULL, model TEXT NOT NULL,
  agent TEXT NOT NULL, tool TEXT NOT NULL, UNIQUE (day, keys, person, model, agent, tool));
CREATE TABLE usage (
  usage_group INTEGER NOT NULL, run INTEGER NOT NULL, requests INTEGER NOT NULL, input INTEGER NOT NULL,
  cache_read INTEGER NOT NULL, cache_write INTEGER NOT NULL, output INTEGER NOT NULL, usd REAL NOT NULL,
  unpriced INTEGER NOT NULL, calls INTEGER NOT NULL, failures INTEGER NOT NULL, seconds REAL NOT NULL,
  result_tokens INTEGER NOT NULL, PRIMARY KEY (usage_group, run)) WITHOUT ROWID;
CREATE INDEX usage_by_run ON usage (run);
CREATE INDEX runs_uncounted ON runs (id) WHERE counted IS NULL OR ended IS NULL OR counted<>ended
"""
# The events to announce, by their places: `due` is NULL if one was given up. The recurring runs: `task` holds the
# arguments of `Agent.submit` as JSON, `last` is the run that began last.
_ADD_OUTBOX = """
CREATE TABLE outbox (
  place INTEGER PRIMARY KEY, agent TEXT NOT NULL, tries INTEGER NOT NULL DEFAULT 0, due REAL DEFAULT 0,
  error TEXT NOT NULL DEFAULT '');
CREATE INDEX outbox_due ON outbox (agent, due);
CREATE TABLE schedules (
  name TEXT PRIMARY KEY, agent TEXT NOT NULL, every TEXT NOT NULL, timezone TEXT NOT NULL, task TEXT NOT NULL,
  next REAL NOT NULL, paused INTEGER NOT NULL DEFAULT 0, configured INTEGER NOT NULL, last TEXT NOT NULL DEFAULT '',
  error TEXT NOT NULL DEFAULT '')
"""
_INDEXES = """
CREATE INDEX IF NOT EXISTS runs_due ON runs (due) WHERE status='waiting';
CREATE INDEX IF NOT EXISTS runs_running ON runs (id) WHERE status='running'
"""
_FROM_PLACES = (
    "INSERT INTO events SELECT place, CAST('[[' || printf('%.6f', time) || ',' || json_quote(type) || ',' || "
    "CAST(body AS TEXT) || iif(refs IS NULL, '', ',' || refs) || ']]' AS BLOB) FROM events_1"
)
_OF_EVENT = ["time", "type", "body", "refs"]
_COLUMNS = {
    1: [["run", "seq", *_OF_EVENT], ["place", *_OF_EVENT], ["place", "body"]],
    2: [["place", "body"]],
    3: [["place", "body", "crc"]],
    4: [["place", "body", "crc"]],
    5: [["place", "body", "crc"]],
    6: [["place", "body", "crc"]],
}


class SelfClosingConnection(sqlite3.Connection):
    """Closes itself when nothing refers to it: a run opens its home, and nobody closes that. Python 3.13 would warn."""

    def __del__(self) -> None:
        self.close()


def open_connection(database: str | Path, *, uri: bool = False) -> sqlite3.Connection:
    """Open an SQLite database for several threads, which begin and end transactions themselves."""
    return sqlite3.connect(
        database,
        uri=uri,
        timeout=LOCK_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        factory=SelfClosingConnection,
    )


def connect(path: Path) -> sqlite3.Connection:
    """Open the journal for writing. A new file gets the schema, a file of the previous format is migrated.

    Raises:
        JournalError: the file cannot be opened, or it is of a format that this version does not know.
    """
    with explained(path):
        return open_file(path, prepare)


def open_file(path: Path, prepare: Callable[[sqlite3.Connection, Path], None]) -> sqlite3.Connection:
    """Open an SQLite file for writing, and prepare the connection."""
    db = open_connection(path)
    try:
        _wait_while_locked(lambda: prepare(db, path))
    except BaseException:
        db.close()
        raise
    return db


def open_read_only(path: Path, how: str = "mode=ro") -> sqlite3.Connection:
    """Open an SQLite file to read it.

    `mode=ro` reads beside a writer and needs the log's index; `mode=ro&immutable=1` is for a file without writers.
    """
    uri = f"{path.absolute().as_uri()}?{how}"
    return open_connection(uri, uri=True)


def set_modes(db: sqlite3.Connection, path: Path) -> None:
    """Set the modes of a connection: readers and a writer at the same time."""
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Set the modes of a connection, and bring the file's schema up to date."""
    set_modes(db, path)
    if version_of(db, path) == VERSION:
        return
    with transaction(db):
        version = version_of(db, path)
        if version == VERSION:  # another process has done it meanwhile
            return
        if version == 0:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
        if version == 1:
            _join_columns(db)
        if version in (1, 2):
            db.execute("ALTER TABLE events ADD COLUMN crc INTEGER")
        if version < 4:
            db.execute(_ADD_DUE)
        added = (_ADD_WORK if version < 5 else "", _ADD_OUTBOX, _INDEXES)
        for statement in ";".join(added).split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version={VERSION}")


def _join_columns(db: sqlite3.Connection) -> None:
    """Write the events of format 1, whose parts had columns of their own, as rows of format 2."""
    db.execute("ALTER TABLE events RENAME TO events_1")
    for statement in _SCHEMA.replace(", crc INTEGER", "").split(";"):
        db.execute(statement)
    keys = {name for _, name, *_ in db.execute("PRAGMA table_info(events_1)")}
    db.execute(_FROM_PLACES if "place" in keys else _FROM_PLACES.replace("place", "(run << 32) + seq"))
    db.execute("DROP TABLE events_1")


def version_of(db: sqlite3.Connection, path: Path) -> int:
    """Return the format of a journal: 0 for an empty file, else 1 to 6.

    Raises:
        JournalError: the format is newer than this version of Closeout, or of none.
    """
    with snapshot(db):  # another process may be making the tables
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        columns = [name for _, name, *_ in db.execute("PRAGMA table_info(events)")]
    if version > VERSION:
        raise JournalError(f"{path} was written by a newer Closeout. Install that, or set another CLOSEOUT_HOME.")
    if not columns:
        return 0
    if columns not in _COLUMNS.get(version, []):
        raise JournalError(
            f"{path} was written by a version of Closeout whose runs this one cannot read. "
            "Move the file away, or set another CLOSEOUT_HOME."
        )
    return 2 if columns in _COLUMNS[2] else version


def _wait_while_locked(act: Callable[[], None]) -> None:
    """Repeat `act` while another process holds the file: SQLite does not wait while a file is turned into a journal."""
    give_up = time.monotonic() + _OPEN_SECONDS
    while True:
        try:
            return act()
        except sqlite3.OperationalError as error:
            if not is_locked(error) or time.monotonic() > give_up:
                raise
        time.sleep(0.01)


def make_folder(folder: Path, file: str) -> None:
    """Create the folder of a journal and an empty file in it, readable by their owner only."""
    try:
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for made in missing:
            _sync_folder(made.parent)
        with suppress(FileExistsError):
            os.close(os.open(folder / file, os.O_CREAT | os.O_EXCL, 0o600))  # SQLite gives its other files this mode
            _sync_folder(folder)
    except OSError as error:
        raise JournalError(
            f"Cannot create {folder} for the record of runs ({error.strerror}). Set CLOSEOUT_HOME to a folder you own."
        ) from None


def open_or_create(path: Path) -> int:
    """Open a file beside a journal to read and write it, and return its descriptor. Raises JournalError."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise JournalError(f"Cannot write {path} ({error.strerror}). Set CLOSEOUT_HOME to a folder you own.") from None


def _sync_folder(folder: Path) -> None:
    """Make new entries of a folder survive a power cut, where the system can."""
    if os.name == "nt":
        return
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def wipe(path: Path) -> None:
    """Rewrite an SQLite file without the bytes of what was deleted, and empty its log. Takes as long as a copy.

    Raises:
        JournalError: Another process uses the file, or it cannot be written.
    """
    with explained(path), closing(sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)) as db:
        db.execute("VACUUM")
        is_read = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if is_read:
        raise JournalLocked(
            f"Everything was deleted, but another process is reading {path}, so its log still holds the bytes. Repeat "
            "this when that process has ended."
        )


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Write all that is done within, or nothing if it raises. Other writers wait."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


@contextmanager
def snapshot(db: sqlite3.Connection) -> Iterator[None]:
    """See one state of the file throughout, also within a transaction."""
    if db.in_transaction:
        yield
        return
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("COMMIT")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into JournalErrors that say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise journal_error(error, path) from error


def journal_error(error: sqlite3.Error, path: Path) -> JournalError:
    """Return the JournalError for an error of SQLite."""
    text = str(error)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code, without its extension
    io_error = code == sqlite3.SQLITE_IOERR or "disk I/O" in text
    # SQLite calls it an I/O error if there is no space for its index, the file "-shm".
    if code == sqlite3.SQLITE_FULL or "disk is full" in text or (io_error and _is_full(path)):
        return JournalFull(f"The disk that holds {path} is full. Free some space first.")
    if io_error:
        return JournalError(
            f"The system reported an I/O error for {path} ({text}). Check the disk, its quota and the limit on file "
            "sizes first; `closeout doctor --check` examines the journal."
        )
    if is_locked(error):
        return JournalLocked(
            f"{path} has been locked by another process for {LOCK_SECONDS:.0f} seconds. Try again later."
        )
    if "not a database" in text or "malformed" in text or "corrupt" in text:
        return JournalDamaged(
            f"{path} is damaged ({text}). Move it away to start with an empty journal; "
            "`sqlite3 FILE .recover` may save runs."
        )
    if "readonly" in text or "unable to open" in text:
        return JournalError(f"Cannot write {path} ({text}). Set CLOSEOUT_HOME to a folder you own.")
    return JournalError(f"The journal {path} failed: {text}.")


def is_locked(error: sqlite3.Error) -> bool:
    """Return True if another process holds a lock. SQLITE_PROTOCOL: it was stopped while it recovered the log."""
    codes = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in codes


def _is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < _LITTLE_SPACE
    except OSError:
        return False
