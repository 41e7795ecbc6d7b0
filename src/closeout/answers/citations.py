"""Quotes in answers, each of which must be in a result of the run: `sources` says what is compared, and how."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, Field

from closeout.answers.reading import AnswerContract
from closeout.answers.sources import Evidence, sources_of
from closeout.answers.user_checks import Check, CheckedRun, CheckFunction
from closeout.journal.events import ModelReplied, has_conversation
from closeout.journal.store import Row

__all__ = [
    "Citation",
    "Cited",
    "Claim",
    "Quote",
    "Report",
    "citations_in",
    "citations_of",
    "cited",
    "quotes_in",
    "with_quotes_checked",
]

T = TypeVar("T")

LONGEST_QUOTE = 2_000  # characters; a longer one is refused
_MOST_PROBLEMS = 5  # wrong quotes that the model is shown at once
_LIKE = 60  # from this likeness on the nearest passage helps the model; it never makes a quote right


class Quote(BaseModel):
    """Words of a tool result, copied literally."""

    text: str = Field(description="Words copied from a tool result, unchanged and without gaps.")
    handle: str = Field("", description="The name of the result, such as r3, if it is known.")


class Claim(BaseModel):
    """A statement and the quotes that support it."""

    text: str
    quotes: list[Quote] = Field(min_length=1)


class Report(BaseModel):
    """An answer whose every claim has quotes, each looked up in the results of the run: `Agent(answer=Report)`."""

    title: str
    claims: list[Claim] = Field(min_length=1)


class Cited(BaseModel, Generic[T]):
    """A value and the quotes that support it, each looked up in the results of the run: `Agent(answer=Cited[int])`."""

    value: T
    quotes: list[Quote] = Field(min_length=1)


# [r3: "words"], [r1:reader/r2: “words”], ["words"], [r3：「字」]
_BRACKET = re.compile(
    r"""(?P<open>\[\s{0,3}(?:(?P<handle>[A-Za-z][\w:/.-]{0,200}?)\s{0,3}[:：])?\s{0,3}["“”„«「『])"""
    r"""|(?P<close>["“”»」』]\s{0,3}\])"""
)


def quotes_in(answer: str, value: Any = None) -> list[Quote]:
    """Return the quotes in an answer: in its value, or in its text, where they are written `[r3: "words"]`.

    `value` is the answer in its own type, which may contain `Quote` objects, or lists of them as JSON under "quotes".
    """
    if value is None and answer.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            value = json.loads(answer)
    found = list(_inside(value))
    if found or not isinstance(value, str | None):
        return found
    opened: re.Match[str] | None = None
    for bracket in _BRACKET.finditer(answer):
        if bracket["open"]:
            opened = opened or bracket
        elif opened is not None:
            found.append(Quote(text=answer[opened.end() : bracket.start()], handle=opened["handle"] or ""))
            opened = None
    return found


def _inside(value: Any) -> Iterator[Quote]:
    if isinstance(value, Quote):
        yield value
    elif isinstance(value, BaseModel):
        yield from _inside([getattr(value, name) for name in type(value).model_fields])
    elif isinstance(value, Mapping):
        for name, each in value.items():
            if name == "quotes" and isinstance(each, list):
                with suppress(ValueError):  # not in the form of quotes
                    yield from map(Quote.model_validate, each)
            else:
                yield from _inside(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _inside(each)


@dataclass(frozen=True)
class Citation:
    """A quote of an answer, and where it was found.

    Attributes:
        quote: The quote as the answer has it. Of a citation by the model's provider it is what the provider cites, or
            the words of the answer that it supports.
        source: The result that contains it; None if none does.
        problem: Why it does not count, in a sentence for the model; empty if it was found.
        address: The web address of the source, if it has one.
        title: The title of the source, if a provider told one.
        by_provider: Whether the provider's own search tool cites it: the run has not read the page.
    """

    quote: Quote
    source: Evidence | None
    problem: str = ""
    address: str = ""
    title: str = ""
    by_provider: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the citation as JSON data, without the text of its source."""
        source = self.source
        names = ("handle", "tool", "arguments", "time")
        about = None if source is None else {name: getattr(source, name) for name in names} | {"sha256": source.digest}
        record = {name: getattr(self, name) for name in ("problem", "address", "title", "by_provider")}
        return {"quote": self.quote.text, "source": about, **record}


def citations_in(rows: Sequence[Row], answer: str, value: Any = None) -> list[Citation]:
    """Return the citations of a run's answer: its quotes, and those of the provider's own search tool.

    `value` is the answer in its own type, if it is known.
    """
    quotes = quotes_in(answer, value)
    replies = (row.event for row in reversed(rows) if isinstance(row.event, ModelReplied))
    last = next((reply for reply in replies if has_conversation(reply.agent)), None)
    cited_pages = last.reply().attached.get("citations") if last is not None else None
    return [*(citations_of(quotes, sources_of(rows)) if quotes else ()), *_of_provider(cited_pages)]


def _of_provider(found: Any) -> Iterator[Citation]:
    """Yield what `models.cited_pages` kept of a reply."""
    for each in found if isinstance(found, list) else ():
        text, address, title = (str(each.get(name) or "") for name in ("text", "url", "title"))
        yield Citation(Quote(text=text), None, address=address, title=title, by_provider=True)


def citations_of(quotes: Iterable[Quote], sources: Mapping[str, Evidence]) -> list[Citation]:
    """Look up every quote. One that names a result must be in that result."""
    return [_looked_up(quote, sources) for quote in quotes]


def _looked_up(quote: Quote, sources: Mapping[str, Evidence]) -> Citation:
    shown = f'"{" ".join(quote.text[:200].split())[:120]}"'
    if len(quote.text) > LONGEST_QUOTE:
        return Citation(quote, None, f"{shown} has {len(quote.text)} characters. Quote at most {LONGEST_QUOTE}.")
    named = [source for name, source in sources.items() if not quote.handle or _belongs(name, quote.handle)]
    if not named:
        return Citation(quote, None, f"{shown} cannot be quoted from {quote.handle[:40] or 'a result'}: there is none.")
    found = next((source for source in named if source.contains(quote.text)), None)
    if found is not None:
        return Citation(quote, found, address=found.address(quote.text))
    where = f"result {quote.handle[:40]}" if quote.handle else "any result"
    elsewhere = next((source.handle for source in sources.values() if source.contains(quote.text)), "")
    if elsewhere:
        return Citation(quote, None, f"{shown} is not in {where}, but in {elsewhere}.")
    likeness, nearest = max((source.nearest(quote.text) for source in named), default=(0.0, ""))
    hint = f' The nearest passage is "{nearest[:300]}".' if likeness >= _LIKE else ""
    return Citation(quote, None, f"{shown} is not in {where} word for word.{hint}")


def _belongs(name: str, handle: str) -> bool:
    """Return whether a result is the one that a quote names, or of the sub-agent or program that it names.

    A sub-agent knows its results by shorter names, and its report is quoted with these.
    """
    return name.startswith((f"{handle}:", f"{handle}/")) or f"/{name}".endswith(f"/{handle}")


def with_quotes_checked(checks: tuple[Check, ...], contract: AnswerContract[Any] | None) -> tuple[Check, ...]:
    """Return an agent's checks, and `cited()` if its answers contain `Quote` objects and none of them is `cited()`."""
    schema = getattr(contract, "schema", None)
    parts = (schema, *schema.get("$defs", {}).values()) if isinstance(schema, Mapping) else ()
    is_checked = any(isinstance(each.function, _QuotesAreLiteral) for each in checks)
    if is_checked or not parts or Quote.model_json_schema() not in parts:
        return checks
    return (*checks, Check(cited(least=0), then="unanswered"))


def cited(*, least: int = 1) -> CheckFunction:
    """Return a check that refuses an answer with a quote that is in no result of the run.

    An answer that contains `Quote` objects, such as a `Report`, is checked without it, and a wrong one is not accepted.
    Pass the check for text, or to say what follows:

    ```python
    Agent(model, tools, answer=Report, check=Check(cited(), then="accept"))
    ```

    Args:
        least: The number of quotes that an answer must have.
    """
    return _QuotesAreLiteral(least)


@dataclass(frozen=True)
class _QuotesAreLiteral:
    least: int

    __name__ = "cited"

    def __call__(self, answer: str, run: CheckedRun[Any]) -> str | None:
        quotes = quotes_in(answer, run.value)
        if len(quotes) < self.least:
            return (
                f'The answer has {len(quotes)} of at least {self.least} quotes. Quote as [r3: "words of the result"].'
            )
        wrong = [citation.problem for citation in citations_of(quotes, run.sources) if citation.problem]
        if not wrong:
            return None
        more = f" {len(wrong) - _MOST_PROBLEMS} more quotes are wrong." if len(wrong) > _MOST_PROBLEMS else ""
        return f"Quotes must be copied from tool results. {' '.join(wrong[:_MOST_PROBLEMS])}{more}"
