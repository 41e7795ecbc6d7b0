"""The command `closeout cite`: the quotes of a run's answer and the results that they come from."""

from __future__ import annotations

import hashlib
import time

from closeout.answers.citations import Citation, citations_of, quotes_in
from closeout.answers.sources import sources_of
from closeout.cli import exits
from closeout.cli.terminal import print_json, printable
from closeout.config import home_folder
from closeout.errors import UsageError
from closeout.journal.events import RunEnded
from closeout.journal.readonly import open_to_read
from closeout.results.normal import compact_json

__all__ = ["cite_command"]


def cite_command(run_id: str, *, as_json: bool) -> int:
    """Print every quote of the answer with its source. Return UNANSWERED if one is in no result, otherwise OK."""
    with open_to_read(home_folder()) as store:
        rows = store.read(run_id).rows
    ended = next((row.event for row in reversed(rows) if isinstance(row.event, RunEnded)), None)
    if ended is None or ended.answer is None:
        raise UsageError(f"Run {run_id} has no answer. closeout runs {run_id} shows what it has done.")
    quotes = quotes_in(ended.answer)
    found = citations_of(quotes, sources_of(rows)) if quotes else []
    if as_json:
        print_json([_described(citation) for citation in found])
    elif not found:
        print('The answer has no quotes. They are written [r3: "words of the result"].')
    for number, citation in enumerate(() if as_json else found, 1):
        print(f'[{number}] "{printable(citation.quote.text)}"')
        print(f"    {_place(citation)}")
    return exits.UNANSWERED if any(citation.problem for citation in found) else exits.OK


def _described(citation: Citation) -> dict[str, object]:
    source = citation.source
    about = None
    if source is not None:
        names = ("handle", "tool", "arguments", "time")
        about = {**{name: getattr(source, name) for name in names}, "sha256": _digest(source.value)}
    return {"quote": citation.quote.text, "source": about, "problem": citation.problem}


def _place(citation: Citation) -> str:
    source = citation.source
    if source is None:
        return f"NOT FOUND: {printable(citation.problem)}"
    read = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(source.time))
    call = printable(f"{source.tool} {source.arguments}"[:200])
    return f"{source.handle}: {call} · read {read} · sha256 {_digest(source.value)[:16]}"


def _digest(value: object) -> str:
    """Return the SHA-256 of a result: of a text itself, of other values as JSON."""
    return hashlib.sha256(
        (value if isinstance(value, str) else compact_json(value)).encode("utf-8", "replace")
    ).hexdigest()
