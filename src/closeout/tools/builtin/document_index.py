"""A folder's documents in an SQLite FTS5 index: found, kept up to date, searched by BM25. No tools here.

Only regular files inside the folder are ever listed: a symbolic link that leads out of it is not, and directories
behind links are not entered. Reading goes through that list, so a name cannot escape the folder.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from closeout.errors import ToolError, UsageError
from closeout.tools.builtin.extract import TABLE_SUFFIXES, extract_text, looks_like_text
from closeout.tools.builtin.passages import cut, match_expression, query_terms, split_words, title_of

__all__ = ["Document", "DocumentIndex", "Hit", "Progress"]

Progress = Callable[[int, int, str], None]  # documents read, documents to read, name of the one just read

LAYOUT = 1  # of the database; a cache of another layout is built anew
FRESH_SECONDS = 2.0  # the folder is looked through again for a search that comes later than this after the last
BATCH = 200  # documents written in one transaction
CANDIDATES = 40  # passages that are ranked before some are chosen
RELEVANT = 0.35  # of the best score: what fits worse shares a common word and costs the reader tokens
PER_DOCUMENT = 2  # passages of one document among the first: a question about two things finds both
# How much a word counts in the title, the headings and the text: title words name what all of a document is about.
WEIGHTS = "4.0, 2.0, 1.0"

_TABLES = """
CREATE TABLE IF NOT EXISTS documents (
    id INTEGER PRIMARY KEY, path TEXT UNIQUE NOT NULL, changed INTEGER NOT NULL, size INTEGER NOT NULL,
    title TEXT NOT NULL, problem TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS passages (
    id INTEGER PRIMARY KEY, document INTEGER NOT NULL, heading TEXT NOT NULL, first INTEGER NOT NULL,
    last INTEGER NOT NULL, text TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS passages_of ON passages (document);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(
    title, heading, body, tokenize = 'porter unicode61 remove_diacritics 2');
CREATE TABLE IF NOT EXISTS about (root TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Document:
    """`path` is relative to the folder, with forward slashes. `problem` says why it could not be read, or is empty."""

    path: str
    title: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that fits a query; `score` is SQLite's BM25, the lower the better."""

    path: str
    title: str
    heading: str
    text: str
    first_line: int
    last_line: int
    score: float


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    changed: int
    size: int


class DocumentIndex:
    """Opened on first use. Safe to use from several threads; several processes may share one cache file."""

    def __init__(
        self, folder: str | Path, *, cache: str | Path | None = None, progress: Progress | None = None
    ) -> None:
        root = Path(folder).expanduser()
        if not root.is_dir():
            what = "is a file" if root.exists() else "does not exist"
            raise UsageError(f"The documents folder {root} {what}. Give the path of a folder.")
        self.root = root.resolve()
        self._cache = Path(cache).expanduser() if cache is not None else None
        self._progress = progress
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._looked = float("-inf")
        self._closer: weakref.finalize[[], DocumentIndex] | None = None

    # -------------------------------------------------------------------------------------------- asking

    def search(self, query: str, limit: int) -> list[Hit]:
        """The passages that fit best, at most `limit`, best first; of one document two at most while others fit."""
        terms = query_terms(query)
        if not terms:
            return []
        with self._lock:
            self.refresh()
            rows = self._open().execute(
                f"SELECT d.path, d.title, p.heading, p.text, p.first, p.last, bm25(words, {WEIGHTS}) AS score "  # noqa: S608
                "FROM words JOIN passages p ON p.id = words.rowid JOIN documents d ON d.id = p.document "
                "WHERE words MATCH ? ORDER BY score, p.id LIMIT ?",
                (match_expression(terms), max(limit, CANDIDATES)),
            )
            hits = [Hit(*row) for row in rows]
        return _spread([hit for hit in hits if hit.score <= hits[0].score * RELEVANT], limit)

    def documents(self) -> list[Document]:
        """All documents, by path."""
        with self._lock:
            self.refresh()
            rows = self._open().execute("SELECT path, title, problem FROM documents ORDER BY path")
            return [Document(*row) for row in rows]

    def file_of(self, path: str) -> Path:
        """The file of a listed document; `ToolError` if it meanwhile leads out of the folder or is gone."""
        file = self.root / path
        if _regular_file(self.root, file) is None:
            raise ToolError(f"{path} is not there any more.")
        return file

    def close(self) -> None:
        """Close the database. The index may be used again: it is then opened anew."""
        with self._lock:
            if self._closer is not None:
                self._closer()
            self._connection = self._closer = None
            self._looked = float("-inf")

    # -------------------------------------------------------------------------------------------- keeping up to date

    def refresh(self) -> None:
        """Read what is new or changed in the folder and forget what is gone."""
        with self._lock:
            if time.monotonic() - self._looked < FRESH_SECONDS:
                return
            connection = self._open()
            known = {
                path: (changed, size)
                for path, changed, size in connection.execute("SELECT path, changed, size FROM documents")
            }
            present = {file.path: file for file in _walk(self.root)}
            gone = [path for path in known if path not in present]
            fresh = [file for path, file in present.items() if known.get(path) != (file.changed, file.size)]
            if gone or fresh:
                self._update(connection, gone, fresh)
            self._looked = time.monotonic()

    def _update(self, connection: sqlite3.Connection, gone: list[str], fresh: list[_File]) -> None:
        with connection:
            for path in gone:
                _forget(connection, path)
        for start in range(0, len(fresh), BATCH):
            with connection:
                for number, file in enumerate(fresh[start : start + BATCH], start + 1):
                    _forget(connection, file.path)
                    _store(connection, self.root, file)
                    if self._progress is not None:
                        self._progress(number, len(fresh), file.path)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = self._connect()
            self._connection = connection
            self._closer = weakref.finalize(self, connection.close)
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        if self._cache is None:
            return _prepared(":memory:", self.root)
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _prepared(str(self._cache), self.root)
        except sqlite3.OperationalError as error:  # locked, read-only, a directory
            raise UsageError(f"The document cache {self._cache} cannot be opened: {error}.") from None
        except sqlite3.DatabaseError:  # another layout, another folder, or no database: a cache is rebuilt, not mended
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self._cache}{suffix}").unlink(missing_ok=True)
            return _prepared(str(self._cache), self.root)


def _prepared(database: str, root: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(database, timeout=30.0, check_same_thread=False)
    try:
        if database != ":memory:":
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        layout = connection.execute("PRAGMA user_version").fetchone()[0]
        if layout not in (0, LAYOUT):
            raise sqlite3.DatabaseError("made by another version")
        connection.executescript(_TABLES)
        made_for = connection.execute("SELECT root FROM about").fetchone()
        if made_for is not None and made_for[0] != str(root):
            raise sqlite3.DatabaseError("made for another folder")
        if made_for is None:
            with connection:
                connection.execute("INSERT INTO about VALUES (?)", (str(root),))
                connection.execute(f"PRAGMA user_version = {LAYOUT}")
    except sqlite3.OperationalError as error:
        connection.close()
        if "fts5" in str(error):
            raise UsageError("This Python's SQLite has no FTS5, which document search needs.") from None
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def _store(connection: sqlite3.Connection, root: Path, file: _File) -> None:
    path = root / file.path
    text, problem = "", ""
    try:
        text = extract_text(path)
    except ToolError as error:
        problem = str(error)
    title = title_of(text, path.stem)
    document = connection.execute(
        "INSERT INTO documents (path, changed, size, title, problem) VALUES (?, ?, ?, ?, ?)",
        (file.path, file.changed, file.size, title, problem),
    ).lastrowid
    named = split_words(f"{title} {Path(file.path).stem.replace('_', ' ')}")
    for passage in cut(text, table=path.suffix.lower() in TABLE_SUFFIXES):
        row = connection.execute(
            "INSERT INTO passages (document, heading, first, last, text) VALUES (?, ?, ?, ?, ?)",
            (document, passage.heading, passage.first_line, passage.last_line, passage.text),
        ).lastrowid
        connection.execute(
            "INSERT INTO words (rowid, title, heading, body) VALUES (?, ?, ?, ?)",
            (row, named, split_words(passage.heading), split_words(passage.text)),
        )


def _forget(connection: sqlite3.Connection, path: str) -> None:
    found = connection.execute("SELECT id FROM documents WHERE path = ?", (path,)).fetchone()
    if found is None:
        return
    connection.execute("DELETE FROM words WHERE rowid IN (SELECT id FROM passages WHERE document = ?)", found)
    connection.execute("DELETE FROM passages WHERE document = ?", found)
    connection.execute("DELETE FROM documents WHERE id = ?", found)


def _spread(hits: Iterable[Hit], limit: int) -> list[Hit]:
    chosen: list[Hit] = []
    later: list[Hit] = []
    taken: dict[str, int] = {}
    for hit in hits:
        count = taken[hit.path] = taken.get(hit.path, 0) + 1
        (chosen if count <= PER_DOCUMENT else later).append(hit)
    return (chosen + later)[:limit]


def _walk(root: Path) -> Iterator[_File]:
    """Readable documents below the folder, hidden ones left out."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder) / name
            if name.startswith((".", "~$")) or not _is_encodable(name):
                continue
            found = _regular_file(root, file)
            if found is not None and looks_like_text(file):
                yield _File(file.relative_to(root).as_posix(), found.st_mtime_ns, found.st_size)


def _regular_file(root: Path, file: Path) -> os.stat_result | None:
    """The file's state if it is a regular file that lies inside the folder, links followed."""
    try:
        if not file.resolve(strict=True).is_relative_to(root):
            return None
        found = file.stat()
    except (OSError, RuntimeError, ValueError):  # gone, no right to look, a circle of links, a NUL in the name
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _is_encodable(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:  # bytes on disk that are no UTF-8
        return False
    return True
