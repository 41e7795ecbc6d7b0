"""The sources of a run for its page: what it read, as it was read, and the passages that its answer quotes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from closeout.answers.citations import Citation, citations_in
from closeout.answers.sources import Evidence, JsonPath, sources_of
from closeout.errors import UsageError
from closeout.journal.events import RunEnded
from closeout.journal.store import Row

__all__ = ["all_sources", "list_sources", "show_source"]


def list_sources(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the citations of a run's answer, and what the run read, without the texts."""
    citations = _citations(rows)
    cited = {each.source.handle for each in citations if each.source is not None}
    sources = [{**_about(each), "cited": each.handle in cited} for each in sources_of(rows).values()]
    return {"citations": [each.to_dict() for each in citations], "sources": sources}


def show_source(rows: Sequence[Row], handle: str) -> dict[str, Any]:
    """Return one source with its texts, in which the quoted passages are marked.

    Raises:
        UsageError: The run has no such result.
    """
    source = sources_of(rows).get(handle)
    if source is None:
        raise UsageError(f"The run has no result {handle!r:.200}.")
    return _with_texts(source, _citations(rows))


def all_sources(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what `list_sources` does, and the texts of the cited sources: for a page without a server."""
    citations, found = _citations(rows), list_sources(rows)
    cited = {each.source.handle: each.source for each in citations if each.source is not None}
    return {**found, "texts": {handle: _with_texts(source, citations) for handle, source in cited.items()}}


def _citations(rows: Sequence[Row]) -> list[Citation]:
    ended = next((row.event for row in reversed(rows) if isinstance(row.event, RunEnded)), None)
    return [] if ended is None or ended.answer is None else citations_in(rows, ended.answer)


def _about(source: Evidence) -> dict[str, Any]:
    about = {name: getattr(source, name) for name in ("handle", "tool", "arguments", "time")}
    return {**about, "sha256": source.digest, "address": source.address()}


def _with_texts(source: Evidence, citations: Sequence[Citation]) -> dict[str, Any]:
    marks: dict[int, list[tuple[int, int, int]]] = {}  # by the number of the text: start, end, number of the citation
    for number, each in enumerate(citations):
        is_here = each.source is not None and each.source.handle == source.handle
        if is_here and (passage := source.passage(each.quote.text)) is not None:
            marks.setdefault(passage.text, []).append((passage.start, passage.end, number))
    texts = [
        {"path": _shown(path), "pieces": _pieces(text, marks.get(at, []))}
        for at, (path, text) in enumerate(source.texts)
    ]
    return {**_about(source), "texts": texts}


def _pieces(text: str, marks: Sequence[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Return a text in pieces, each with the numbers of the citations that quote it.

    Pieces, not places: browsers count characters in another way.
    """
    borders = sorted({0, len(text), *(border for start, end, _ in marks for border in (start, end))})
    return [
        {"text": text[left:right], "cited": [number for start, end, number in marks if start <= left and right <= end]}
        for left, right in pairwise(borders)
    ]


def _shown(path: JsonPath) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")
