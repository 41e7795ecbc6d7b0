"""Text cut into passages, and words cut for a full-text index: headings, paragraphs, tables, English and Chinese. Pure.

FTS5's own tokenizer takes a run of Chinese for one word. Here every such character becomes a word of its own, in the
index as in the query, and a query asks for neighbours as a phrase: so words of one and two characters are found too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Passage", "cut", "match_expression", "query_terms", "split_words", "title_of"]

PASSAGE_CHARACTERS = 700  # about 170 tokens: a few of them fit into any context, one holds a fact with its context
MAX_TERMS = 24  # of a query; what comes after them is left out

_HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*#*$")
_TABLE_ROW = re.compile(r"\s*\|")
_TABLE_RULE = re.compile(r"[\s|:-]+$")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？；])")
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_ONE_CJK = re.compile(f"([{_CJK}])")
_TERM = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")


@dataclass(frozen=True, slots=True)
class Passage:
    """`heading` is the path of headings above it, "History › Opening"; lines count from 1, both ends included."""

    text: str
    heading: str
    first_line: int
    last_line: int


@dataclass(slots=True)
class _Block:
    lines: list[str]
    first: int
    table: bool
    heading: re.Match[str] | None = None


def title_of(text: str, fallback: str) -> str:
    """The first heading near the top, or a short first line that stands alone; else a name made of the file's."""
    lines = [line.strip() for line in text[:2_000].splitlines()]
    for line in lines:
        if found := _HEADING.match(line):
            return found[2][:120]
    if len(lines) > 1 and 0 < len(lines[0]) <= 80 and not lines[1] and lines[0][-1] not in ".,;:。，；：{[":
        return lines[0]
    return re.sub(r"[_\-\s]+", " ", fallback).strip() or fallback


def cut(text: str, *, table: bool = False) -> Iterator[Passage]:
    """Passages of up to 700 characters that end where a heading or a paragraph does, where that is possible.

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


def _blocks(text: str, table: bool) -> Iterator[_Block]:
    """Headings, paragraphs and tables with the number of their first line."""
    lines = text.splitlines()
    if table:
        if lines:
            yield _Block(lines, 1, table=True)
        return
    block: _Block | None = None
    for number, line in enumerate(lines, 1):
        is_row = _TABLE_ROW.match(line) is not None
        # One that is indented is code, a comment of it as a rule.
        heading = _HEADING.match(line.strip()) if line.startswith("#") else None
        if block and (not line.strip() or heading or is_row != block.table):
            yield block
            block = None
        if heading:
            yield _Block([line], number, table=False, heading=heading)
        elif line.strip():
            if block is None:
                block = _Block([], number, is_row)
            block.lines.append(line.rstrip())
    if block:
        yield block


def _pieces(block: _Block) -> Iterator[tuple[str, int, int]]:
    """A block cut to size, each piece with its first and last line."""
    head, rows = _table_head(block)
    most = max(PASSAGE_CHARACTERS, 2 * len(head))  # a long head takes half a passage at most: it stands in each
    start = block.first + len(block.lines) - len(rows)
    held: list[str] = []
    first, size = start, len(head)
    for number, line in enumerate(rows, start):
        for part in _parts(line):
            if held and size + len(part) > most:
                yield head + "\n".join(held), first, max(first, number - 1)
                held, first, size = [], number, len(head)
            held.append(part)
            size += len(part) + 1
    if held or head:
        last = block.first + len(block.lines) - 1
        yield (head + "\n".join(held)).rstrip("\n"), first if held else block.first, last


def _table_head(block: _Block) -> tuple[str, list[str]]:
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


# ------------------------------------------------------------------------------------------------ words

_STOP_WORDS = frozenset({
    "a", "about", "an", "and", "are", "as", "at", "be", "been", "between", "by", "can", "could", "did", "do", "does",
    "for", "from", "had", "has", "have", "how", "i", "in", "into", "is", "it", "its", "many", "me", "much", "of", "on",
    "or", "please", "tell", "than", "that", "the", "their", "there", "they", "this", "to", "was", "were", "what",
    "when", "where", "which", "who", "whom", "whose", "why", "will", "with", "would", "you",
})  # fmt: skip
_CHINESE_STOP = re.compile(
    "什么时候|是什么|为什么|哪一年|多少年|怎么样|什么|哪年|哪个|哪里|哪些|多少|怎么|如何|请问|之间|以及|[的了是在和与吗呢有多几]"
)


def split_words(text: str) -> str:
    """The text as FTS5's unicode61 tokenizer should see it: Chinese, Japanese and Korean characters apart."""
    if text.isascii():
        return text
    return _ONE_CJK.sub(r" \1 ", unicodedata.normalize("NFKC", text.encode("utf-8", "replace").decode()))


def query_terms(query: str) -> list[str]:
    """The words of a query that are worth asking for: no question words, unless there are no others."""
    found = _TERM.findall(unicodedata.normalize("NFKC", query[:2_000]).replace("\x00", " "))
    every = [term.lower() for term in found]
    telling: list[str] = []
    for term in every:
        if _ONE_CJK.match(term):
            telling.extend(part for part in _CHINESE_STOP.split(term) if part)
        elif term not in _STOP_WORDS:
            telling.append(term)
    return list(dict.fromkeys(telling or every))[:MAX_TERMS]


def match_expression(terms: list[str]) -> str:
    """An FTS5 query for any of the terms; every one is quoted, so that no text is taken for its syntax."""
    asked: list[str] = []
    for term in terms:
        if not _ONE_CJK.match(term):
            asked.append(f'"{term}"')
            continue
        asked.append(f'"{" ".join(term)}"')
        if len(term) > 2:  # neighbours two by two: most Chinese words have two characters
            asked.extend(f'"{a} {b}"' for a, b in pairwise(term))
    return " OR ".join(dict.fromkeys(asked))
