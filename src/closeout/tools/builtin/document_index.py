"""Index a folder's documents in SQLite FTS5: find them, keep the index up to date, search it by BM25.

Only regular files inside the folder are listed: a symbolic link that leads out of it is not, and directories behind
links are not entered.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sqlite3
import stat
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from operator import mul
from pathlib import Path

from closeout.errors import ToolError, UsageError
from closeout.journal.database import SelfClosingConnection
from closeout.language.text_index import TextIndex, lacks_fts5
from closeout.language.words import telling_words, words
from closeout.results.normal import SURROGATE
from closeout.tools.builtin.document_text import TABLE_SUFFIXES, extract_text, looks_like_text
from closeout.tools.builtin.embeddings import Embed

__all__ = [
    "Document",
    "DocumentIndex",
    "Hit",
    "Passage",
    "Progress",
    "cut",
    "document_files",
    "query_words",
    "title_of",
]

logger = logging.getLogger("closeout")
PASSAGE_CHARACTERS = 700  # about 170 tokens: a few of them fit into any context, one holds a fact with its context

_HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*#*$")
_TABLE_ROW = re.compile(r"\s*\|")
_TABLE_RULE = re.compile(r"[\s|:-]+$")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？；])")


@dataclass(frozen=True, slots=True)
class Passage:
    """`heading` is the path of headings above it, "History › Opening"; lines count from 1, both ends included."""

    text: str
    heading: str
    first_line: int
    last_line: int


@dataclass(slots=True)
class _Paragraph:
    lines: list[str]
    first: int
    table: bool
    heading: re.Match[str] | None = None


def title_of(text: str, fallback: str) -> str:
    """Return the first heading near the top, or a short first line on its own; else a name made from the file's."""
    lines = [line.strip() for line in text[:2_000].splitlines()]
    for line in lines:
        if found := _HEADING.match(line):
            return found[2][:120]
    if len(lines) > 1 and 0 < len(lines[0]) <= 80 and not lines[1] and lines[0][-1] not in ".,;:。，；：{[":
        return lines[0]
    return re.sub(r"[_\-\s]+", " ", fallback).strip() or fallback


def cut(text: str, *, table: bool = False) -> Iterator[Passage]:
    """Yield passages of up to 700 characters that end where a heading or a paragraph does, where that is possible.

    A table that is cut keeps its head in each piece. `table=True`: the whole text is one, its first line the head.
    """
    path: list[tuple[int, str]] = []
    pending: list[tuple[str, int, int]] = []  # pieces that may still share a passage
    size = 0

    def flush() -> Iterator[Passage]:
        nonlocal size
        if pending:
            heading = " › ".join(name for _, name in path)
            yield Passage("\n\n".join(piece for piece, _, _ in pending), heading, pending[0][1], pending[-1][2])
            pending.clear()
            size = 0

    for block in _blocks(text, table):
        found = block.heading
        if found:
            yield from flush()
            level = len(found[1])
            path = [entry for entry in path if entry[0] < level] + [(level, found[2][:120])]
            continue
        for piece in _pieces(block):
            if size + len(piece[0]) > PASSAGE_CHARACTERS:
                yield from flush()
            pending.append(piece)
            size += len(piece[0])
    yield from flush()


def _blocks(text: str, table: bool) -> Iterator[_Paragraph]:
    """Headings, paragraphs and tables with the number of their first line."""
    lines = text.splitlines()
    if table:
        if lines:
            yield _Paragraph(lines, 1, table=True)
        return
    block: _Paragraph | None = None
    for number, line in enumerate(lines, 1):
        is_row = _TABLE_ROW.match(line) is not None
        # One that is indented is code, a comment of it as a rule.
        heading = _HEADING.match(line.strip()) if line.startswith("#") else None
        if block and (not line.strip() or heading or is_row != block.table):
            yield block
            block = None
        if heading:
            yield _Paragraph([line], number, table=False, heading=heading)
        elif line.strip():
            if block is None:
                block = _Paragraph([], number, is_row)
            block.lines.append(line.rstrip())
    if block:
        yield block


def _pieces(block: _Paragraph) -> Iterator[tuple[str, int, int]]:
    """A block cut to size, each piece with its first and last line."""
    head, rows = _table_head(block)
    most = max(PASSAGE_CHARACTERS, 2 * len(head))  # a long head takes half a passage at most: each passage has it
    start = block.first + len(block.lines) - len(rows)
    held: list[str] = []
    first = last = start
    size = len(head)
    for number, line in enumerate(rows, start):
        for part in _parts(line):
            if held and size + len(part) > most:
                yield head + "\n".join(held), first, last
                held, first, size = [], number, len(head)
            held.append(part)
            last = number
            size += len(part) + 1
    if held or head:
        last = block.first + len(block.lines) - 1
        yield (head + "\n".join(held)).rstrip("\n"), first if held else block.first, last


def _table_head(block: _Paragraph) -> tuple[str, list[str]]:
    if not block.table:
        return "", block.lines
    ruled = len(block.lines) > 1 and _TABLE_RULE.match(block.lines[1]) is not None
    count = 2 if ruled else 1
    head = "\n".join(line[:PASSAGE_CHARACTERS] for line in block.lines[:count])
    return head + "\n", block.lines[count:]


def _parts(line: str) -> Iterator[str]:
    """A line too long for a passage, cut after sentences, or anywhere if it has none."""
    if len(line) <= PASSAGE_CHARACTERS:
        yield line
        return
    held = ""
    for sentence in _SENTENCE_END.split(line):
        for start in range(0, len(sentence), PASSAGE_CHARACTERS):
            piece = sentence[start : start + PASSAGE_CHARACTERS]
            if held and len(held) + len(piece) >= PASSAGE_CHARACTERS:
                yield held
                held = ""
            held = f"{held} {piece}" if held and held.isascii() else held + piece
    if held:
        yield held


# ------------------------------------------------------------------------------------------------ the index

MAX_WORDS = 24  # Words of a query that are searched for.


def query_words(query: str) -> list[str]:
    """Return the words of a query that are worth a search: no stop words, unless it has only those."""
    text = query[:2_000]
    return list(dict.fromkeys(telling_words(text) or words(text)))[:MAX_WORDS]


Progress = Callable[[int, int, str], None]  # documents read, documents to read, name of the one just read

LAYOUT = 2  # The version of the database's layout; a cache of another layout is rebuilt.
FRESH_SECONDS = 2.0  # the folder is looked through again for a search that comes later than this after the last
BATCH = 200  # documents written in one transaction
CANDIDATES = 40  # passages that are ranked before some are chosen
# A share of the best score: what fits worse shares a common word and costs the reader tokens.
RELEVANT = 0.35
PER_DOCUMENT = 2  # passages of one document among the first: a question about two things finds both
# Title words name what all of a document is about.
_WORDS = TextIndex("words", {"title": 4.0, "heading": 2.0, "body": 1.0})
NAMED = 1.6  # The factor for a document whose whole title is in the query.

_TABLES = """
CREATE TABLE IF NOT EXISTS documents (
    id INTEGER PRIMARY KEY, path TEXT UNIQUE NOT NULL, changed INTEGER NOT NULL, size INTEGER NOT NULL,
    title TEXT NOT NULL, problem TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS passages (
    id INTEGER PRIMARY KEY, document INTEGER NOT NULL, heading TEXT NOT NULL, first INTEGER NOT NULL,
    last INTEGER NOT NULL, text TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS passages_of ON passages (document);
CREATE TABLE IF NOT EXISTS vectors (passage INTEGER PRIMARY KEY, made_by TEXT NOT NULL, vector BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS about (root TEXT NOT NULL);
"""
_PASSAGE = (
    "SELECT d.path, d.title, p.heading, p.text, p.first, p.last, ? "
    "FROM passages p JOIN documents d ON d.id = p.document WHERE p.id = ?"
)
_UNEMBEDDED = (
    "SELECT p.id, d.title || char(10) || p.heading || char(10) || p.text FROM passages p "
    "JOIN documents d ON d.id = p.document LEFT JOIN vectors v ON v.passage = p.id AND v.made_by = ? "
    "WHERE v.passage IS NULL"
)
EMBEDDED = 64  # passages in one call of the embedding function
FUSION = 60  # The constant of reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009).


@dataclass(frozen=True, slots=True)
class Document:
    """`path` is relative to the folder, with forward slashes. `problem` says why it could not be read, or is empty."""

    path: str
    title: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that fits a query; the lower its `score`, the better: SQLite's BM25, or of ranks that are fused."""

    path: str
    title: str
    heading: str
    text: str
    first_line: int
    last_line: int
    score: float


class DocumentIndex:
    """Opened on first use. Safe to use from several threads; several processes may share one cache file."""

    def __init__(
        self,
        folder: str | Path,
        *,
        cache: str | Path | None = None,
        progress: Progress | None = None,
        embed: Embed | None = None,
    ) -> None:
        root = Path(folder).expanduser()
        if not root.is_dir():
            what = "is a file" if root.exists() else "does not exist"
            raise UsageError(f"The documents folder {root} {what}. Give the path of a folder.")
        self.root = root.resolve()
        self._cache = Path(cache).expanduser() if cache is not None else None
        self._progress = progress
        self._embed = embed
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._looked = float("-inf")
        self._closer: weakref.finalize[[], DocumentIndex] | None = None

    # -------------------------------------------------------------------------------------------- asking

    def search(self, query: str, limit: int) -> list[Hit]:
        """Return the best passages, best first, at most `limit`; of one document two at most while others fit."""
        asked = query_words(query)
        with self._lock:
            self.refresh()
            db = self._open()
            found = _WORDS.ranked(db, asked, max(limit, CANDIDATES))
            hits = [Hit(*db.execute(_PASSAGE, (score, number)).fetchone()) for number, score in found]
            alike = self._alike(db, query, max(limit, CANDIDATES))
        hits = sorted((_favoured(hit, asked) for hit in hits), key=lambda hit: hit.score)
        hits = [hit for hit in hits if hit.score <= hits[0].score * RELEVANT]
        return _spread(_fused(hits, alike) if alike else hits, limit)

    def _alike(self, db: sqlite3.Connection, query: str, most: int) -> list[Hit]:
        """Return the passages whose vectors are nearest to the query's; none if the embedding function fails."""
        try:
            return [] if self._embed is None else self._nearest(db, self._embed, query, most)
        except Exception as error:  # the user's function may raise anything
            logger.warning("Documents are searched by words only: embed failed: %s: %s", type(error).__name__, error)
            return []

    def _nearest(self, db: sqlite3.Connection, embed: Embed, query: str, most: int) -> list[Hit]:
        made_by = f"{embed.__module__} {getattr(embed, '__qualname__', type(embed).__qualname__)}"
        rows = db.execute(_UNEMBEDDED, (made_by,)).fetchall()
        for start in range(0, len(rows), EMBEDDED):
            batch = rows[start : start + EMBEDDED]
            vectors = _vectors(embed, [text for _, text in batch])
            with db:
                made = ((number, made_by, vector.tobytes()) for (number, _), vector in zip(batch, vectors, strict=True))
                db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", made)
        (asked,) = _vectors(embed, [query])
        stored = db.execute("SELECT passage, vector FROM vectors WHERE made_by = ?", (made_by,))
        near = nlargest(most, ((sum(map(mul, asked, array("f", vector))), number) for number, vector in stored))
        return [Hit(*db.execute(_PASSAGE, (-score, number)).fetchone()) for score, number in near]

    def documents(self) -> list[Document]:
        """Return all documents, by path."""
        with self._lock:
            self.refresh()
            rows = self._open().execute("SELECT path, title, problem FROM documents ORDER BY path")
            return [Document(*row) for row in rows]

    def file_of(self, path: str) -> Path:
        """Return the file of a listed document. Raises `ToolError` if it now leads out of the folder or is gone."""
        file = self.root / path
        if _regular_file(self.root, file) is None:
            raise ToolError(f"{path} no longer exists.")
        return file

    def close(self) -> None:
        """Close the database. Using the index opens it again."""
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
            present = dict(_walk(self.root))
            gone = [path for path in known if path not in present]
            fresh = [path for path, state in present.items() if known.get(path) != state]
            if gone or fresh:
                self._update(connection, gone, {path: present[path] for path in fresh})
            self._looked = time.monotonic()

    def _update(self, connection: sqlite3.Connection, gone: list[str], fresh: dict[str, tuple[int, int]]) -> None:
        with connection:
            for path in gone:
                _forget(connection, path)
        files = list(fresh.items())
        for start in range(0, len(files), BATCH):
            with connection:
                for number, (path, (changed, size)) in enumerate(files[start : start + BATCH], start + 1):
                    _forget(connection, path)
                    _store(connection, self.root / path, (path, changed, size))
                    if self._progress is not None:
                        self._progress(number, len(files), path)

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
        except sqlite3.DatabaseError:  # another layout or folder, or not a database: rebuild the cache
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self._cache}{suffix}").unlink(missing_ok=True)
            return _prepared(str(self._cache), self.root)


def _prepared(database: str, root: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(database, timeout=30.0, check_same_thread=False, factory=SelfClosingConnection)
    try:
        if database != ":memory:":
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        layout = connection.execute("PRAGMA user_version").fetchone()[0]
        if layout not in (0, LAYOUT):
            raise sqlite3.DatabaseError("made by another version")
        connection.executescript(_TABLES)
        _WORDS.create(connection)
        made_for = connection.execute("SELECT root FROM about").fetchone()
        if made_for is not None and made_for[0] != str(root):
            raise sqlite3.DatabaseError("made for another folder")
        if made_for is None:
            with connection:
                connection.execute("INSERT INTO about VALUES (?)", (str(root),))
                connection.execute(f"PRAGMA user_version = {LAYOUT}")
    except sqlite3.OperationalError as error:
        connection.close()
        if lacks_fts5(error):
            raise UsageError("This Python's SQLite has no FTS5, which document search needs.") from None
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def _store(connection: sqlite3.Connection, path: Path, entry: tuple[str, int, int]) -> None:
    text, problem = "", ""
    try:
        text = extract_text(path)
    except ToolError as error:
        problem = str(error)
    title = title_of(text, path.stem)
    document = connection.execute(
        "INSERT INTO documents (path, changed, size, title, problem) VALUES (?, ?, ?, ?, ?)", (*entry, title, problem)
    ).lastrowid
    named = f"{title} {path.stem.replace('_', ' ')}"
    for passage in cut(text, table=path.suffix.lower() in TABLE_SUFFIXES):
        row = connection.execute(
            "INSERT INTO passages (document, heading, first, last, text) VALUES (?, ?, ?, ?, ?)",
            (document, passage.heading, passage.first_line, passage.last_line, passage.text),
        ).lastrowid
        _WORDS.add(connection, [(row or 0, named, passage.heading, passage.text)])


def _forget(connection: sqlite3.Connection, path: str) -> None:
    found = connection.execute("SELECT id FROM documents WHERE path = ?", (path,)).fetchone()
    if found is None:
        return
    for column in ("words WHERE rowid", "vectors WHERE passage"):
        connection.execute(f"DELETE FROM {column} IN (SELECT id FROM passages WHERE document = ?)", found)  # noqa: S608
    connection.execute("DELETE FROM passages WHERE document = ?", found)
    connection.execute("DELETE FROM documents WHERE id = ?", found)


def _vectors(embed: Embed, texts: Sequence[str]) -> list[array[float]]:
    """Return the vectors of some texts, each of length 1."""
    found = [*map(list, embed(texts))]
    if len(found) != len(texts):
        raise ValueError(f"embed must return a vector for each of {len(texts)} texts, got {len(found)}.")
    return [array("f", (each / (math.hypot(*vector) or 1.0) for each in vector)) for vector in found]


def _fused(*rankings: Sequence[Hit]) -> list[Hit]:
    """Return the hits of several rankings by reciprocal rank fusion, best first."""
    scores: dict[Hit, float] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, 1):
            same = replace(hit, score=0.0)
            scores[same] = scores.get(same, 0.0) - 1 / (FUSION + rank)
    return sorted((replace(hit, score=score) for hit, score in scores.items()), key=lambda hit: hit.score)


def _favoured(hit: Hit, asked: list[str]) -> Hit:
    """Rank a document higher if the query has its whole title: it is what is asked about, not what only mentions it."""
    named = set(query_words(hit.title)) <= set(asked)
    return replace(hit, score=hit.score * NAMED) if named else hit


def _spread(hits: Iterable[Hit], limit: int) -> list[Hit]:
    chosen: list[Hit] = []
    later: list[Hit] = []
    taken: dict[str, int] = {}
    for hit in hits:
        count = taken[hit.path] = taken.get(hit.path, 0) + 1
        (chosen if count <= PER_DOCUMENT else later).append(hit)
    return (chosen + later)[:limit]


def document_files(root: Path) -> Iterator[Path]:
    """Yield the files below a folder that count as documents."""
    for path, _ in _walk(root.resolve()):
        yield root / path


def _walk(root: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Path, and time and size of the last change, of each readable document below the folder; hidden ones left out."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder) / name
            if name.startswith((".", "~$")) or SURROGATE.search(name):  # bytes on disk that are not UTF-8
                continue
            found = _regular_file(root, file)
            if found is not None and looks_like_text(file):
                yield file.relative_to(root).as_posix(), (found.st_mtime_ns, found.st_size)


def _regular_file(root: Path, file: Path) -> os.stat_result | None:
    """The file's state if it is a regular file that lies inside the folder, links followed."""
    try:
        if not file.resolve(strict=True).is_relative_to(root):
            return None
        found = file.stat()
    except (OSError, RuntimeError, ValueError):  # gone, no right to look, a circle of links, a NUL in the name
        return None
    return found if stat.S_ISREG(found.st_mode) else None
