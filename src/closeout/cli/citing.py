"""The command `closeout runs cite`: the quotes of a run's answer and the results that they come from."""

from __future__ import annotations

import time

from closeout.answers.citations import Citation, citations_in
from closeout.cli import exits
from closeout.cli.terminal import print_json, printable
from closeout.config import home_folder
from closeout.errors import UsageError
from closeout.journal.events import RunEnded
from closeout.journal.readonly import open_to_read

__all__ = ["cite_command"]


def cite_command(run_id: str, *, as_json: bool) -> int:
    """Print every quote of the answer with its source. Return UNANSWERED if one is in no result, otherwise OK."""
    with open_to_read(home_folder()) as store:
        rows = store.read(run_id).rows
    ended = next((row.event for row in reversed(rows) if isinstance(row.event, RunEnded)), None)
    if ended is None or ended.answer is None:
        raise UsageError(f"Run {run_id} has no answer. closeout runs {run_id} shows what it has done.")
    found = citations_in(rows, ended.answer)
    if as_json:
        print_json([citation.to_dict() for citation in found])
    elif not found:
        print('The answer has no quotes. They are written [r3: "words of the result"].')
    for number, citation in enumerate(() if as_json else found, 1):
        print(f'[{number}] "{printable(citation.quote.text)}"')
        print(f"    {_place(citation)}")
    return exits.UNANSWERED if any(citation.problem for citation in found) else exits.OK


def _place(citation: Citation) -> str:
    source = citation.source
    if citation.by_provider:
        return f"cited by the model's provider: {printable(' '.join(filter(None, (citation.title, citation.address))))}"
    if source is None:
        return f"NOT FOUND: {printable(citation.problem)}"
    read = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(source.time))
    call = printable(f"{source.tool} {source.arguments}"[:200])
    return f"{source.handle}: {call} · read {read} · sha256 {source.digest[:16]}"
