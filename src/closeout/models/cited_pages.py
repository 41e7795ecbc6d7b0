"""The pages that a provider's own search tool cites, in one form for all providers.

A reply keeps them in `ModelReply.attached["citations"]`: texts with the address and the title of their source. They are
never sent back from there; what a server wants back is kept beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypedDict

__all__ = ["CitedPage", "cited_by_anthropic", "cited_by_gemini", "cited_by_openai", "with_citations"]


class CitedPage(TypedDict):
    """What a provider cites: its words, or the words of the reply that it supports."""

    text: str
    url: str
    title: str


def with_citations(attached: dict[str, Any], cited: Iterable[CitedPage]) -> dict[str, Any]:
    """Return what is attached to a reply, with the pages that it cites, each once."""
    pages: list[CitedPage] = []
    pages += (page for page in cited if page not in pages)
    return {**attached, "citations": pages} if pages else attached


def cited_by_openai(annotations: Any, text: str) -> Iterator[CitedPage]:
    """Yield the citations of OpenAI's APIs: `url_citation` and `file_citation` annotations of a text."""
    for each in _objects(annotations):
        about = _object(each, str(each.get("type"))) or each  # nested in Chat Completions, flat in Responses
        start, end = about.get("start_index"), about.get("end_index")
        said = text[start:end] if isinstance(start, int) and isinstance(end, int) and 0 <= start < end else ""
        quoted = about.get("cited_text") or about.get("content") or said
        yield _page(quoted, about.get("url"), about.get("title") or about.get("filename"))


def cited_by_anthropic(blocks: Iterable[Mapping[str, Any]]) -> Iterator[CitedPage]:
    """Yield the citations in the text blocks of Anthropic's API."""
    for block in blocks:
        for each in _objects(block.get("citations")):
            title = each.get("title") or each.get("document_title")
            yield _page(each.get("cited_text"), each.get("url") or each.get("source"), title)


def cited_by_gemini(choice: Mapping[str, Any], message: Mapping[str, Any]) -> Iterator[CitedPage]:
    """Yield the citations in Gemini's grounding metadata, which gateways put beside the message or into it."""
    places = (choice, message, _object(_object(message, "extra_content"), "google"))
    names = ("groundingMetadata", "grounding_metadata")
    for found in [_object(place, name) for place in places for name in names if name in place]:
        chunks = _objects(found.get("groundingChunks") or found.get("grounding_chunks"))
        for support in _objects(found.get("groundingSupports") or found.get("grounding_supports")):
            said = _object(support, "segment").get("text")
            indexes = support.get("groundingChunkIndices") or support.get("grounding_chunk_indices")
            for index in indexes if isinstance(indexes, list) else ():
                if isinstance(index, int) and 0 <= index < len(chunks):
                    page = _object(chunks[index], "web") or _object(chunks[index], "retrievedContext")
                    yield _page(said, page.get("uri"), page.get("title"))


def _page(text: Any, url: Any, title: Any) -> CitedPage:
    return {"text": _text(text), "url": _text(url), "title": _text(title)}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _object(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
