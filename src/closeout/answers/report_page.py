"""A report with its sources as a page: Markdown, or HTML that needs nothing else."""

from __future__ import annotations

import time
from html import escape
from typing import TYPE_CHECKING, Any

from closeout.answers.citations import Citation, Report

if TYPE_CHECKING:
    from closeout.run.result import RunResult

__all__ = ["report_html", "report_markdown"]

AROUND = 240  # characters of the page shown before and after a quote
_STYLE = """
body { max-width: 46rem; margin: 3rem auto; padding: 0 1.2rem; font: 17px/1.6 Georgia, "Noto Serif", serif; }
h1 { font-size: 1.7rem; line-height: 1.25; }
h2 { font-size: 1.1rem; margin-top: 2.5rem; }
sup a { text-decoration: none; }
li { margin: 1.2rem 0; overflow-wrap: anywhere; }
li:target { background: #f3f4f7; }
blockquote { margin: .4rem 0; padding-left: .8rem; border-left: 3px solid #e2e5eb; white-space: pre-wrap; }
mark { background: #fde8c0; }
blockquote, small, footer { font-size: .85rem; color: #4d5768; }
"""


def report_markdown(result: RunResult[Any]) -> str:
    """Return the report of a run as Markdown, with numbered sources. Empty if the run has no report."""
    if not isinstance(result.value, Report):
        return ""
    claims, sources = _numbered(result)
    lines = [f"# {_plain(result.value.title)}", ""]
    for text, numbers in claims:
        lines += [_plain(text) + "".join(f" [{number}]" for number in numbers), ""]
    lines += ["## Sources", ""]
    for number, each in enumerate(sources, 1):
        lines.append(f"{number}. “{_plain(each.quote.text)}” {_plain(_where(each))}")
    return "\n".join([*lines, "", f"Every quote was looked up in what the run {result.run_id} has read.", ""])


def report_html(result: RunResult[Any]) -> str:
    """Return the report of a run as one HTML page, with the context of each quote. Empty if the run has no report."""
    if not isinstance(result.value, Report):
        return ""
    claims, sources = _numbered(result)
    marks = [" ".join(f'<sup><a href="#s{n}">[{n}]</a></sup>' for n in numbers) for _, numbers in claims]
    paragraphs = "\n".join(f"<p>{escape(text)}{mark}</p>" for (text, _), mark in zip(claims, marks, strict=True))
    listed = "\n".join(f'<li id="s{n}">{_source_html(each)}</li>' for n, each in enumerate(sources, 1))
    title = escape(result.value.title)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>{_STYLE}</style></head>
<body><h1>{title}</h1>
{paragraphs}
<h2>Sources</h2>
<ol>
{listed}
</ol>
<footer>Every quote was looked up in what the run {escape(result.run_id)} has read.</footer>
</body></html>
"""


def _numbered(result: RunResult[Any]) -> tuple[list[tuple[str, list[int]]], list[Citation]]:
    """Return the claims with the numbers of their sources, and the sources, each once."""
    report = result.value
    assert isinstance(report, Report)
    found, sources, claims = iter(result.citations), list[Citation](), list[tuple[str, list[int]]]()
    for claim in report.claims:
        numbers = []
        for each in (next(found) for _ in claim.quotes):
            if each not in sources:
                sources.append(each)
            numbers.append(sources.index(each) + 1)
        claims.append((claim.text, list(dict.fromkeys(numbers))))
    return claims, sources


def _source_html(citation: Citation) -> str:
    source = citation.source
    place = None if source is None else source.passage(citation.quote.text)
    if source is None or place is None:
        return f"“{escape(citation.quote.text)}” <small>Not found: {escape(citation.problem)}</small>"
    text = source.texts[place.text][1]
    before, after = text[max(place.start - AROUND, 0) : place.start], text[place.end : place.end + AROUND]
    quoted = f"{escape(before)}<mark>{escape(text[place.start : place.end])}</mark>{escape(after)}"
    where = escape(_where(citation))
    link = f'<a href="{escape(citation.address)}" rel="noopener noreferrer">{where}</a>' if citation.address else where
    return f"{link}<blockquote>{quoted}</blockquote><small>SHA-256 {source.digest}</small>"


def _where(citation: Citation) -> str:
    source = citation.source
    if source is None:
        return f"(not found: {citation.problem})"
    read = time.strftime("%Y-%m-%d %H:%M", time.localtime(source.time))
    called = f"{source.tool} {source.arguments}"[:200]
    return f"{citation.address or called} ({source.handle}, read {read})"


def _plain(text: str) -> str:
    """Return a text on one line in which nothing is Markdown or HTML."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>#|" else c for c in " ".join(text.split()))
