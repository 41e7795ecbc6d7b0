"""The tools `search_documents` and `read_document` over one folder; `document_index` keeps their index."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from closeout.errors import ToolError
from closeout.messages import ToolPolicy
from closeout.tools.builtin.document_index import Document, DocumentIndex, Hit, Progress, query_words
from closeout.tools.builtin.document_text import extract_text
from closeout.tools.builtin.embeddings import Embed
from closeout.tools.tool import Tool, tool

__all__ = ["document_tools"]

PAGE_CHARACTERS = 5_000  # about 1,200 tokens of English
MAX_RESULTS = 20
# Passages at most. A small model takes its fact from any passage that it is shown, so a query gets one for every two of
# its words: more words describe more things.
PLAIN_RESULTS = 3
NEARLY = 0.7  # the share of the best passage's score from which another one fits nearly as well
# Characters of a passage. Sentences at its ends are left out of a longer one if they have no word of the query.
LONGEST_PLAIN = 400
LISTED = 15  # documents named in a message
KEPT_TEXTS = 8  # documents whose text is kept for the next page

_SEARCH = ToolPolicy(
    read_only=True,
    idempotent=True,
    timeout=600.0,  # the first call of all indexes the folder
    empty_at=("results",),
    example="look_up",
    aliases={"query": ("q", "question", "keywords", "search", "search_query", "text", "input", "term", "topic")},
)
_LIMIT_ALIASES = ("k", "top_k", "n", "max_results", "num_results", "count")
_READ_ALIASES = {
    "name": ("document", "file", "filename", "file_name", "path", "file_path", "title", "source", "where"),
    "page": ("page_number", "p"),
}
_STEM = 4  # letters that inflected forms of a word share: opened, opening
_SENTENCE = re.compile(r".+?(?:[.!?]\s+(?=[A-Z*])|\Z)", re.DOTALL)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,]*\d)")
_MARKED = re.compile(r"\s*(?:[|#>*+-]|\d{1,3}[.)]\s)")  # a row, a heading or an item of a list: a line of its own
_LINES = re.compile(r"^(.*):(\d+)(?:-\d+)?$")


def document_tools(
    folder: str | Path,
    *,
    cache: str | Path | None = None,
    progress: Progress | None = None,
    plain: bool = False,
    embed: Embed | None = None,
) -> tuple[Tool[..., Any], Tool[..., Any]]:
    """Make `search_documents` and `read_document` for the documents below a folder.

    The folder is indexed at the first call. Later calls read what has changed since.

    Args:
        folder: Its files of these kinds are read: plain text of any suffix, Markdown, HTML, CSV, JSON, and with
            `pip install 'closeout[documents]'` PDF, Word and Excel.
        cache: An SQLite file that keeps the index; default: memory.
        progress: Called with done, total and name for each document that is read, in the thread that reads it.
        embed: Returns a vector for each text. Passages are then found by meaning, too, and both rankings are fused.
        plain: A search returns the text of one to three passages instead of records. Small models read this best.

    Raises:
        UsageError: The folder does not exist.
    """
    index = DocumentIndex(folder, cache=cache, progress=progress, embed=embed)
    reader = _DocumentReader(index)

    @tool(read_only=True, idempotent=True, timeout=600.0, aliases=_READ_ALIASES)
    def read_document(name: str, page: int = 1) -> dict[str, Any]:
        """Read a document. Long documents have several pages.

        Args:
            name: The document's file name or title, as the search shows it.
            page: Which page to read.
        """
        return reader.read(name, page)

    return (_plain_search if plain else _search)(index), read_document


def _search(index: DocumentIndex) -> Tool[..., Any]:
    @tool(policy=_SEARCH, aliases={**_SEARCH.aliases, "limit": _LIMIT_ALIASES})
    def search_documents(query: str, limit: int = 4) -> Any:
        """Search the documents for a name or key words. Returns the passages that fit best, with their source.

        Args:
            query: A name or a few key words, for example: Eiffel Tower height
            limit: How many passages to return.
        """
        hits = index.search(query, max(1, min(limit, MAX_RESULTS)))
        return [_as_record(hit) for hit in hits] if hits else _nothing_found(query, index.documents())

    return search_documents


def _plain_search(index: DocumentIndex) -> Tool[..., Any]:
    @tool(policy=_SEARCH)
    def search_documents(query: str) -> Any:
        """Search the documents for a name or key words. Returns the passages that fit best.

        Args:
            query: A name or a few key words, for example: Eiffel Tower height
        """
        hits = index.search(query, max(1, min(len(query_words(query)) // 2, PLAIN_RESULTS)))
        if not hits:
            return _nothing_found(query, index.documents())
        return "\n".join(_as_sentences(hit, query) for hit in hits)

    return search_documents


def _as_record(hit: Hit) -> dict[str, str]:
    """A passage as a record: its subject, its text, and the name with which `read_document` continues."""
    return {"title": _subject(hit), "text": hit.text, "source": f"{hit.path}:{hit.first_line}-{hit.last_line}"}


def _as_sentences(hit: Hit, query: str) -> str:
    """The passage without what is beside the query at its ends, after its title unless it names its subject itself.

    Numbers are written without commas: a small model takes 1,842 for two numbers. Its paragraphs are one line: after an
    empty line, a small model has forgotten what was before.
    """
    text = _joined(_THOUSANDS.sub(lambda number: number[0].replace(",", ""), _trimmed(hit.text, query)))
    subject = _subject(hit)
    named = set(query_words(subject)) <= set(query_words(text))
    return text if named else f"{subject}: {text}"


def _joined(text: str) -> str:
    """Write a text with each row, heading and item on a line of its own, and all else between them on one line."""
    parts: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if parts and not _MARKED.match(line) and not _MARKED.match(parts[-1]):
            before = parts.pop()
            line = f"{before}{'' if _is_wide(before[-1]) and _is_wide(line[0]) else ' '}{line}"
        parts.append(line)
    return "\n".join(parts)


def _is_wide(character: str) -> bool:
    """Return True if words are written without spaces around this character."""
    return unicodedata.east_asian_width(character) in "WF"


def _trimmed(text: str, query: str) -> str:
    """Leave out first and last sentences of a long text that have no word of the query, while it is too long."""
    beginnings = tuple(word[:_STEM] for word in query_words(query))
    sentences = _SENTENCE.findall(text)

    def telling(sentence: str) -> bool:
        return any(word.startswith(beginnings) for word in query_words(sentence))

    if not beginnings or not any(map(telling, sentences)):
        return text
    while sum(map(len, sentences)) > LONGEST_PLAIN and not telling(sentences[0]):
        del sentences[0]
    while sum(map(len, sentences)) > LONGEST_PLAIN and not telling(sentences[-1]):
        del sentences[-1]
    return "".join(sentences).strip()


def _subject(hit: Hit) -> str:
    above = hit.heading.removeprefix(hit.title).removeprefix(" › ")
    return f"{hit.title} › {above}" if above else hit.title


def _nothing_found(query: str, documents: list[Document]) -> dict[str, Any]:
    note = "The folder holds no documents that can be read."
    if documents:
        note = f"No document mentions {query[:100]!r}. Try other words. There are documents on: {_titles(documents)}."
        unread = [document.problem for document in documents if document.problem]
        note += f" Not searched: {' '.join(unread[:3])}" if unread else ""
    return {"results": [], "note": note}


def _titles(documents: list[Document]) -> str:
    named = "; ".join(document.title for document in documents[:LISTED])
    return f"{named}; and {len(documents) - LISTED} more" if len(documents) > LISTED else named


class _DocumentReader:
    """Pages of documents, with the texts of the last few kept."""

    def __init__(self, index: DocumentIndex) -> None:
        self._index = index
        self._extract = lru_cache(KEPT_TEXTS)(_extract)

    def read(self, name: str, page: int) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        try:
            document, line = self._find(name)
        except ToolError:
            # Models ask for a document by its subject instead of its name.
            if (best := self._about(name)) is None:
                raise
            document, line = best, 0
            shown["note"] = f"No document is called {name[:100]!r}. This one fits it best."
        if document.problem:
            raise ToolError(document.problem)
        file = self._index.file_of(document.path)
        state = file.stat()
        pages = _pages(self._extract(file, state.st_mtime_ns, state.st_size))
        if line and page == 1:
            page = next((n for n, (first, last, _) in enumerate(pages, 1) if first <= line <= last), 1)
        if not 1 <= page <= len(pages):
            raise ToolError(
                f"{document.path} has {len(pages)} page{'s' * (len(pages) > 1)}; page {page} does not exist."
            )
        first, last, text = pages[page - 1]
        shown |= {"title": document.title, "source": f"{document.path}:{first}-{last}"}
        if len(pages) > 1:
            shown["page"] = f"{page} of {len(pages)}"
        return {**shown, "text": text}

    def _find(self, name: str) -> tuple[Document, int]:
        """The document meant, and the line in "name:12-20" (0: none)."""
        documents = self._index.documents()
        asked, line = name.strip().strip("\"'`"), 0
        if found := _LINES.match(asked):
            asked, line = found[1], int(found[2][:9])
        folded = asked.replace("\\", "/").removeprefix("./").casefold()
        for same in (  # exact first; then a part of the name that only one document has
            lambda d: d.path.casefold() == folded,
            lambda d: PurePosixPath(d.path).name.casefold() == folded,
            lambda d: PurePosixPath(d.path).stem.casefold() == folded,
            lambda d: d.title.casefold() == folded,
            lambda d: len(folded) > 2 and (folded in d.path.casefold() or folded in d.title.casefold()),
        ):
            matches = [document for document in documents if same(document)]
            if len(matches) == 1:
                return matches[0], line
            if matches:
                raise ToolError(
                    f"{asked!r} can mean: {', '.join(d.path for d in matches[:LISTED])}. Give one of these."
                )
        raise ToolError(_no_such_document(asked, documents))

    def _about(self, name: str) -> Document | None:
        """The document that mentions most words of a name, if none other fits it nearly as well."""
        hits = self._index.search(name, 4)
        if not hits or any(hit.path != hits[0].path and hit.score <= hits[0].score * NEARLY for hit in hits):
            return None
        best = hits[0]
        asked, there = set(query_words(name)), set(query_words(f"{best.path} {best.title} {best.text}"))
        if len(asked & there) * 2 <= len(asked):
            return None
        return next((each for each in self._index.documents() if each.path == best.path), None)


def _extract(file: Path, changed_ns: int, size: int) -> str:
    """The file's text. Time and size belong to the key of the cache, so that a changed file is read again."""
    return extract_text(file)


def _no_such_document(asked: str, documents: list[Document]) -> str:
    from rapidfuzz import fuzz, process

    if not documents:
        return "The folder holds no documents that can be read."
    paths = [document.path for document in documents]
    near = process.extractOne(asked[:200], paths, scorer=fuzz.WRatio, score_cutoff=75)
    hint = f"Did you mean {near[0]}? " if near else ""
    more = f", and {len(paths) - LISTED} more" if len(paths) > LISTED else ""
    return f"There is no document {asked[:100]!r}. {hint}There are: {', '.join(paths[:LISTED])}{more}."


def _pages(text: str) -> list[tuple[int, int, str]]:
    """(first line, last line, text) of each page; a page ends with a line unless one line alone is longer."""
    pages: list[tuple[int, int, str]] = []
    held: list[str] = []
    size, first = 0, 1
    number = 0
    for number, line in enumerate(text.splitlines(), 1):
        for start in range(0, max(len(line), 1), PAGE_CHARACTERS):
            part = line[start : start + PAGE_CHARACTERS]
            if held and size + len(part) > PAGE_CHARACTERS:
                pages.append((first, max(first, number - (start == 0)), "\n".join(held)))
                held, size, first = [], 0, number
            held.append(part)
            size += len(part) + 1
    pages.append((first, max(number, 1), "\n".join(held)))
    return pages
