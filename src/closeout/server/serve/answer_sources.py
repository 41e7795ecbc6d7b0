"""The citations of an answer as the annotations of OpenAI's APIs and the citations of Anthropic's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from closeout.answers.citations import citations_in
from closeout.journal.store import Row

__all__ = ["chat_annotations", "search_results", "url_citations"]

LONGEST_TITLE = 200  # characters


def url_citations(rows: Sequence[Row], run_id: str, answer: str) -> list[dict[str, Any]]:
    """Return the citations of an answer as annotations of the Responses API, without quotes that are in no result.

    A source without a web address has that of its page in the viewer, relative to the server.
    """
    annotations, at = [], 0
    for number, each in enumerate(citations_in(rows, answer), 1):
        forms = (each.quote.text, json.dumps(each.quote.text)[1:-1])
        written = next((form for form in forms if form and form in answer), "")
        start = max(answer.find(written, at), answer.find(written)) if written else 0
        at = end = start + len(written) if written else len(answer)  # a provider may not say what it cites for
        source = each.source
        called = "" if source is None else f"{source.handle}: {source.tool} {source.arguments}"[:LONGEST_TITLE]
        url = each.address or f"/viewer/#/run/{quote(run_id)}/sources?c={number}"
        if not each.problem:
            place = {"start_index": start, "end_index": end}
            annotations.append({"type": "url_citation", **place, "url": url, "title": each.title or called})
    return annotations


def chat_annotations(rows: Sequence[Row], run_id: str, answer: str) -> list[dict[str, Any]]:
    """Return the citations of an answer as annotations of Chat Completions."""
    found = url_citations(rows, run_id, answer)
    return [{"type": each.pop("type"), "url_citation": each} for each in found]


def search_results(rows: Sequence[Row], run_id: str, answer: str) -> list[dict[str, Any]]:
    """Return the citations of an answer as those of Anthropic's API."""
    return [
        {
            "type": "search_result_location",
            "cited_text": answer[each["start_index"] : each["end_index"]],
            "source": each["url"],
            "title": each["title"],
            "search_result_index": number,
            "start_block_index": 0,
            "end_block_index": 1,
        }
        for number, each in enumerate(url_citations(rows, run_id, answer))
    ]
