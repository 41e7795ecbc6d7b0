"""A full-text index in a table of an SQLite database, by FTS5: runs, documents and tools are searched with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from closeout.language.words import is_unspaced, spaced

__all__ = ["TextIndex", "lacks_fts5"]


@dataclass(frozen=True, slots=True)
class TextIndex:
    """A full-text index.

    Attributes:
        table: The name of its table.
        columns: The names of its columns, each with how much a word in it counts.
        stems: Whether "opened" finds "opening": English words are compared by their stems.
        keeps_text: Whether entries can be removed one by one, which needs their text.
    """

    table: str
    columns: Mapping[str, float]
    stems: bool = True
    keeps_text: bool = True

    def create(self, db: sqlite3.Connection) -> None:
        """Create the table if it does not exist.

        Raises:
            sqlite3.OperationalError: SQLite has no FTS5, see `lacks_fts5`.
        """
        tokenizer = f"{'porter ' if self.stems else ''}unicode61 remove_diacritics 2"
        kept = "" if self.keeps_text else "content='', "
        db.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS {self.table} "
            f"USING fts5({', '.join(self.columns)}, {kept}tokenize='{tokenizer}')"
        )

    def add(self, db: sqlite3.Connection, entries: Iterable[tuple[int, *tuple[str, ...]]]) -> None:
        """Add entries: a number each, and a text for every column."""
        marks = ",?" * len(self.columns)
        statement = f"INSERT INTO {self.table} (rowid, {', '.join(self.columns)}) VALUES (?{marks})"  # noqa: S608
        db.executemany(statement, ((number, *map(spaced, texts)) for number, *texts in entries))

    def ranked(self, db: sqlite3.Connection, words: Sequence[str], limit: int) -> list[tuple[int, float]]:
        """Return the entries that have any of the words, best first, each with its BM25: the lower the better."""
        if not words:
            return []
        weights = ", ".join(map(str, self.columns.values()))
        statement = (
            f"SELECT rowid, bm25({self.table}, {weights}) AS score FROM {self.table} "  # noqa: S608
            f"WHERE {self.table} MATCH ? ORDER BY score, rowid LIMIT ?"
        )
        asked = dict.fromkeys(part for word in words for part in _parts(word))
        return db.execute(statement, (" OR ".join(map(_phrase, asked)), limit)).fetchall()

    def containing(self, db: sqlite3.Connection, text: str, *, begins: bool, below: int) -> Iterator[int]:
        """Yield the entries that have these words as a phrase, those with the highest numbers first.

        Args:
            db: The database.
            text: The words.
            begins: The last word may be the beginning of a longer one.
            below: Only entries with lower numbers.
        """
        statement = f"SELECT rowid FROM {self.table} WHERE {self.table} MATCH ? AND rowid < ? ORDER BY rowid DESC"  # noqa: S608
        return (number for (number,) in db.execute(statement, (_phrase(text) + "*" * begins, below)))


def lacks_fts5(error: sqlite3.Error) -> bool:
    """Return whether an error says that this Python's SQLite has no full-text search."""
    return "fts5" in str(error)


def _phrase(text: str) -> str:
    """Return text as a phrase of FTS5's query language: nothing in it is syntax."""
    return '"{}"'.format(spaced(text).replace('"', " ").strip())


def _parts(word: str) -> Iterator[str]:
    """Yield a word; of an unspaced script also its neighbours two by two: most Chinese words have two characters."""
    yield word
    if len(word) > 2 and is_unspaced(word):
        yield from map("".join, pairwise(word))
