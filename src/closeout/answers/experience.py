"""Failure experience: what the next attempt learns from one without an answer. Pure functions over simple records.

It combines the model's own account with the calls in the journal, so it exists even if the model writes nothing.
`generator` asks the model for the account.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from closeout.answers.reading import said, shorten
from closeout.parsing.forms.reader import find_call_mark
from closeout.results.budgets import largest_fit

__all__ = [
    "FAILURE_SUMMARY_ASSISTANT_PREFIX",
    "FAILURE_SUMMARY_PROMPT",
    "CallFact",
    "FailureExperience",
    "FailureType",
    "estimate_tokens",
    "experience_from",
    "extract_failure_experience_summary",
    "render_experiences",
]

FailureType = Literal["incomplete", "blocked", "misdirected", "format_missed"]

FAILURE_SUMMARY_PROMPT = """\
This attempt ends here without an accepted answer. Another attempt will start from the task alone and will see nothing \
of this conversation but what you write now. Call no tools and do not answer the task. Write exactly these sections:

Failure type: one of
- incomplete: the work was going well but was not finished
- blocked: a tool that failed or information that could not be found stood in the way
- misdirected: the approach was wrong
- format_missed: an answer was found but not given in the form asked for
What happened: what was tried, in what order, and why there is no answer
Useful findings: every fact, number, name, source and intermediate result worth keeping, one a line"""
"""Asks the model for its account, in the sections that `experience_from` reads."""

FAILURE_SUMMARY_ASSISTANT_PREFIX = "Failure type:"
"""The start of the account. It ends without a space because some servers refuse a prefix that ends with one."""

_HEADING = re.compile(
    r"^[ \t#>*_\-\d.]{0,12}(failure[ _]type|what[ _]happened|useful[ _]findings)[*_ ]*[:：][*_ ]*",
    re.IGNORECASE | re.MULTILINE,
)
_TYPE = re.compile("|".join(get_args(FailureType)).replace("_", "[_ -]?"), re.IGNORECASE)
_QUERY_KEYS = ("query", "q", "queries", "question", "keyword", "keywords", "search_query")
_PAGE_KEYS = ("url", "link", "page", "document", "path", "file", "source")
_MOST_LISTED = 40  # queries, pages and failures each; the last ones are kept
_DEFAULT_BUDGET = 2_000  # tokens for all experiences together


@dataclass(frozen=True, slots=True)
class CallFact:
    """One tool call of the attempt, from the journal. `summary` is its result or error in a few words."""

    tool: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    ok: bool = True
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureExperience:
    """Lessons of an attempt. The first three fields come from the model's account, the others from the journal."""

    type: FailureType
    what_happened: str = ""
    findings: str = ""
    queries: tuple[str, ...] = ()  # "tool: query"
    pages: tuple[str, ...] = ()
    failed_tools: tuple[str, ...] = ()  # "tool: why"
    done: tuple[str, ...] = ()  # "tool(arguments) → result" of calls with effects

    def text(self, budget_tokens: int = sys.maxsize) -> str:
        """Return the experience as the next attempt reads it.

        Args:
            budget_tokens: The most tokens to use, by an estimate that is rather too high. Old queries are dropped
                first, findings last.
        """
        parts = [f"Failure type: {self.type}"]
        if self.done:
            parts.append(_done(self.done, budget_tokens // 2))
        if self.findings:
            parts.append(f"Useful findings:\n{self.findings}")
        if self.what_happened:
            parts.append(f"What happened: {self.what_happened}")
        kept: list[str] = []
        for part in parts:
            if part := _fitting(part, budget_tokens):
                kept.append(part)
            budget_tokens -= estimate_tokens(part) + 1
        listed = (
            ("Tools that failed", self.failed_tools),
            ("Pages already read", self.pages),
            ("Queries already tried", self.queries),
        )
        for title, items in listed:
            if items := _last_that_fit(title, items, budget_tokens):
                kept.append(_listing(title, items))
                budget_tokens -= estimate_tokens(kept[-1]) + 1
        return "\n".join(kept)


def experience_from(
    summary: str | None, facts: Sequence[CallFact] = (), *, reason: str = "", reply: str = ""
) -> FailureExperience:
    """Build the experience of an attempt.

    Args:
        summary: The model's account, or None if it wrote none.
        facts: The tool calls of the attempt.
        reason: Why the attempt ended ("max_turns", "rollbacks", …); used if the account does not say.
        reply: A closing reply that was not accepted; used as findings if the account lists none.
    """
    sections = _sections(extract_failure_experience_summary(summary or ""))
    failures = [fact for fact in facts if not fact.ok]
    happened = sections.get("what happened", "")
    if not happened:
        made = f"{len(facts)} tool call{'s' * (len(facts) != 1)} made, {len(failures)} failed."
        happened = f"The attempt ended without an accepted answer ({reason or 'no answer'}). {made}"
    kind = sections.get("failure type", "")
    if kind and not _TYPE.search(kind):  # one of the user's own
        happened = f"{kind}\n{happened}"
    findings = sections.get("useful findings", "")
    if not findings:
        findings = _own_findings(facts, reply)
    return FailureExperience(
        type=_type_of(kind, facts, reply),
        what_happened=happened,
        findings=findings,
        queries=_unique(f"{fact.tool}: {asked}" for fact in facts for asked in _values(fact, _QUERY_KEYS)),
        pages=_unique(page for fact in facts if fact.ok for page in _values(fact, _PAGE_KEYS)),
        failed_tools=_unique(f"{fact.tool}: {shorten(fact.summary or 'failed', 160)}" for fact in failures),
    )


def extract_failure_experience_summary(text: str) -> str:
    """Return the model's account from its reply, without reasoning and tool calls; "" if nothing else is in it.

    A reply that is nothing but reasoning returns the reasoning.
    """
    visible = said(text)
    call = find_call_mark(visible)  # the account ends where the model still calls a tool
    account = visible[:call] if call >= 0 else visible
    return account.strip().strip("`").strip()


def render_experiences(experiences: Sequence[FailureExperience | str], budget_tokens: int = _DEFAULT_BUDGET) -> str:
    """Return what the next attempt is shown of all earlier ones, in at most `budget_tokens`; "" if there were none.

    The last attempt gets half of the budget, the others share the rest.
    """
    if not experiences:
        return ""
    numbered = len(experiences) > 1
    head = (
        "Earlier attempts at this task ended without an answer. Build on what they found. Do not repeat their "
        "searches, do not read the same pages again, and avoid what failed."
    )
    left = max(budget_tokens - estimate_tokens(head) - 8 * len(experiences), 0)
    earlier = left // 2 // (len(experiences) - 1) if numbered else 0
    parts = [head]
    for number, experience in enumerate(experiences, 1):
        share = earlier if number < len(experiences) else left - earlier * (len(experiences) - 1)
        text = experience.text(share) if isinstance(experience, FailureExperience) else _fitting(experience, share)
        if text:
            parts.append(f"Attempt {number}:\n{text}" if numbered else text)
    return "\n\n".join(parts)


def estimate_tokens(text: str) -> int:
    """Return an upper estimate without a tokenizer: one token per 3 ASCII characters or per other character."""
    ascii_count = len(text.encode("ascii", "ignore"))
    return (ascii_count + 2) // 3 + len(text) - ascii_count


# ------------------------------------------------------------------------------------------------ the account


def _sections(account: str) -> dict[str, str]:
    """Split the account by its headings, in lower case; without headings all of it is "what happened"."""
    headings = list(_HEADING.finditer(account))
    if not headings:
        return {"what happened": account} if account else {}
    ends = [heading.start() for heading in headings[1:]] + [len(account)]
    sections: dict[str, str] = {}
    for heading, end in zip(headings, ends, strict=True):
        name = heading[1].lower().replace("_", " ")
        body = account[heading.end() : end].strip()
        if body:
            sections[name] = f"{sections[name]}\n{body}" if name in sections else body
    return sections


def _type_of(written: str, facts: Sequence[CallFact], reply: str) -> FailureType:
    """Return the first type that the model names, otherwise what the calls suggest."""
    named = _TYPE.search(written)
    if named:
        folded = re.sub("[ -]", "_", named[0].lower())
        return next(kind for kind in get_args(FailureType) if kind.replace("_", "") == folded.replace("_", ""))
    if reply.strip():
        return "format_missed"
    last = facts[-4:]
    return "blocked" if last and not any(fact.ok for fact in last) else "incomplete"


# ------------------------------------------------------------------------------------------------ the journal


def _own_findings(facts: Sequence[CallFact], reply: str) -> str:
    """Return what the attempt found if the model does not say: its last reply, then results, newest first."""
    lines = [f"- The attempt's last reply: {shorten(said(reply), 600)}"] if reply.strip() else []
    results = [fact for fact in facts if fact.ok and fact.summary.strip()]
    found = dict.fromkeys(f"- {fact.tool}({_brief(fact)}): {shorten(fact.summary, 200)}" for fact in reversed(results))
    return "\n".join(lines + [*found][:12])


def _brief(fact: CallFact) -> str:
    if isinstance(fact.arguments, str):
        return shorten(fact.arguments, 80)
    return shorten(", ".join(str(value) for value in fact.arguments.values()), 80)


def _values(fact: CallFact, keys: tuple[str, ...]) -> list[str]:
    """Return the values of the arguments with one of these names."""
    if isinstance(fact.arguments, str):
        return []
    found: list[str] = []
    for name, value in fact.arguments.items():
        if str(name).lower() in keys:
            each = value if isinstance(value, list | tuple) else (value,)
            found += [one if isinstance(one, str) else json.dumps(one, default=str) for one in each]
    return [shorten(text, 200) for text in found if text.strip()]


def _unique(texts: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))[-_MOST_LISTED:]


# ------------------------------------------------------------------------------------------------ within a budget


def _listing(title: str, items: Sequence[str]) -> str:
    return f"{title}:\n" + "\n".join(f"- {item}" for item in items)


def _done(calls: tuple[str, ...], budget: int) -> str:
    """List the calls that must not be repeated; says how many there are if not all fit."""
    title = "Already done, do not repeat"
    kept = _last_that_fit(title, calls, budget)
    return _listing(title if len(kept) == len(calls) else f"{title} (the last {len(kept)} of {len(calls)})", kept)


def _last_that_fit(title: str, items: tuple[str, ...], budget: int) -> tuple[str, ...]:
    left = budget - estimate_tokens(f"{title}:\n")
    kept: list[str] = []
    for item in reversed(items):
        left -= estimate_tokens(f"- {item}\n")
        if left < 0:
            break
        kept.append(item)
    return tuple(reversed(kept))


def _fitting(text: str, budget: int) -> str:
    """Return the longest start of a text that fits; the cut is marked."""
    if estimate_tokens(text) <= budget:
        return text
    cut = largest_fit(
        21,
        min(len(text), max(budget, 0) * 8),
        lambda length: text[:length].rstrip() + " …",
        lambda part: estimate_tokens(part) <= budget,
    )
    return cut or ""
