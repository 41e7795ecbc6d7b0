"""Tell what a question in English asks for."""

from __future__ import annotations

import re

__all__ = ["ROLES", "asks_for_name", "asks_for_person", "asks_for_second", "asks_to_compare", "described_things"]

ROLES = (  # of people whom a question describes by what they did
    "architect",
    "author",
    "builder",
    "captain",
    "composer",
    "designer",
    "director",
    "discoverer",
    "engineer",
    "founder",
    "inventor",
    "maker",
    "owner",
    "painter",
    "sculptor",
    "writer",
)

_WANTS_NAME = re.compile(
    r"(?:of\b[^?]*,\s*)?(?:(?:at|by|for|from|in|of|on|to|under|with)\s+)?"
    r"(?:who|whom|whose|where|which\s+(?!year|number|day|date|month"
    r"|century|page|hour|time|floor|room|platform|line|age|price))\b|what (?:is|was) the name\b"
    r"|what (?:is|was) the (?:\w+est|most \w+|least \w+) of\b"
    r"|what\s+(?:\w+\s+){1,3}(?:more|less|fewer|(?!number|other|after|under)\w{2,}er)\b[^?]*\bor\b"
    r"|(?:is|was|are|were|do|does|did|has|have|had|can|could|will)\b[^?]*(?-i:[A-Z])\w*\s+or\s[^?]*(?-i:[A-Z])"
    r"|name (?:the|one)\s+(?!number|year|amount|price|sum|total)",
    re.IGNORECASE,
)
_DESCRIBED = re.compile(
    r"(?<!name of )\b(?:the|a|an|that|this|whose) (?:[a-z]+ ){0,2}?((?!name\b)[a-z]{3,})"
    r"(?: (?:at|by|for|from|in|near|of|on|to|under|with))?"
    r" (?:that|where|which|who|whom|whose)\b"
)
_ROLE = re.compile(rf"(?<!name of )(?<!ho is )(?<!ho was )\bthe ({'|'.join(ROLES)}) of\b")
_UNNAMED = re.compile(
    r"\b(?:an?|the|certain|home|native|his|her|its|their) (city|island|town|village)\b(?! (?:of )?[A-Z])"
    r"|\b(birthplace|hometown)\b"
)
_PART = re.compile(r"(?<=[.!?:;–—])\s+")  # a sentence, or a half of one
_WANTS_PERSON = re.compile(r"(?:(?:by|for|from|of|to|under|with)\s+)?whom?\b", re.IGNORECASE)
_SECOND = re.compile(r"\bsecond (?:of|to|most|least|in|\w+est)\b|\bin the middle\b|\bsecond\W*$", re.IGNORECASE)
_COMPARES = re.compile(
    r"\b(?:or|most|least|first|last|second|neither|middle)\b|\w{2}est\b|\w{2}er of (?:the )?(?:two|three|both)\b",
    re.IGNORECASE,
)


def asks_for_name(question: str) -> bool:
    """Whether the answer is the name of a person, place or thing."""
    return any(map(_WANTS_NAME.match, _PART.split(question.strip())))


def asks_for_person(question: str) -> bool:
    """Whether the answer is the name of a person: "Who is the mayor?"."""
    return any(map(_WANTS_PERSON.match, _PART.split(question.strip())))


def asks_to_compare(question: str) -> bool:
    """Whether the answer is one of several names, chosen by a number: "Which is older, …?", "Which is the oldest?"."""
    return asks_for_name(question) and _COMPARES.search(question) is not None


def asks_for_second(question: str) -> bool:
    """Whether the answer is the second of several names in an order: "Which is the second oldest?"."""
    return asks_to_compare(question) and _SECOND.search(question) is not None


def described_things(question: str) -> set[str]:
    """Return the nouns of what is described instead of named: "the mayor of the town where it stands" has "town"."""
    nouns = {match[1] for form in (_DESCRIBED, _ROLE) for match in form.finditer(question)}
    return nouns | {match[1] or match[2] for match in _UNNAMED.finditer(question)}
