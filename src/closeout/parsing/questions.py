"""Tell what a question in English asks for."""

from __future__ import annotations

import re

__all__ = [
    "ROLES",
    "asks_for_name",
    "asks_for_person",
    "asks_for_second",
    "asks_for_year",
    "asks_to_compare",
    "described_things",
    "rates_in",
]

ROLES = (  # of people and companies whom a question describes by what they are, do or did
    "architect",
    "artist",
    "author",
    "baker",
    "brewer",
    "brother",
    "builder",
    "captain",
    "chairman",
    "chairwoman",
    "champion",
    "chef",
    "coach",
    "commander",
    "company",
    "composer",
    "conductor",
    "cook",
    "creator",
    "curator",
    "daughter",
    "designer",
    "director",
    "discoverer",
    "doctor",
    "driver",
    "editor",
    "engineer",
    "father",
    "firm",
    "founder",
    "headmaster",
    "headmistress",
    "husband",
    "inventor",
    "keeper",
    "landlady",
    "landlord",
    "leader",
    "librarian",
    "maker",
    "manager",
    "manufacturer",
    "master",
    "mayor",
    "mother",
    "organist",
    "owner",
    "painter",
    "physician",
    "pilot",
    "president",
    "principal",
    "rector",
    "sculptor",
    "secretary",
    "singer",
    "sister",
    "skipper",
    "son",
    "teacher",
    "trainer",
    "warden",
    "wife",
    "winner",
    "writer",
)

_WANTS_NAME = re.compile(
    r"(?:of\b[^?]*,\s*)?(?:(?:at|by|for|from|in|of|on|to|under|with)\s+)?"
    r"(?:who|whom|whose|where|which\s+(?!year|number|day|date|month"
    r"|century|page|hour|time|floor|room|platform|line|age|price))\b|what (?:is|was) the name\b"
    r"|what (?:is|was) the (?:\w+est|most \w+|least \w+) of\b"
    r"|if\b[^?]*,\s*(?:who|which (?!year|number|day|date|month|price))\b"
    r"|what\s+(?:\w+\s+){1,3}(?:more|less|fewer|(?!number|other|after|under)\w{2,}er)\b[^?]*\bor\b"
    r"|what\s+(?!(?:is|was|are|were) the\b)(?:\w+\s+){1,3}(?:most|least|\w{3,}est)\b[^?]*\bor\b"
    r"|(?:is|was|are|were|do|does|did|has|have|had|can|could|will)\b[^?]*(?-i:[A-Z])\w*\s+or\s[^?]*(?-i:[A-Z])"
    r"|name (?:the|one)\s+(?!number|year|amount|price|sum|total)",
    re.IGNORECASE,
)
_DESCRIBED = re.compile(
    r"(?<!name of )\b(?:the|a|an|that|this|whose) (?:[a-z]+ ){0,2}?((?!name\b)[a-z]{3,})(?: (?:[a-z]+ed|built|open))?"
    r"(?: (?:at|by|for|from|in|near|of|on|to|under|with))?"
    r" (?:that|where|which|who|whom|whose)\b"
)
_ROLE = re.compile(
    rf"(?<!name of )(?<!ho is )(?<!ho was )\bthe (?:[a-z]+ )?({'|'.join(ROLES)}) (?:at|of)\b"
    rf"|(?:'s|’s|\b(?:his|her|its|their|whose)) (?:[a-z]+ )?({'|'.join(ROLES)})\b(?! *\?)"
)
_UNNAMED = re.compile(
    r"\b(?:an?|the|certain|home|native|his|her|its|their) (city|island|town|village)\b(?! (?:of )?[A-Z])"
    r"|\b(birthplace|hometown)\b|\bthis (?!day|month|one|time|way|week|year)([a-z]{3,})\b"
)
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_PERIOD = re.compile(rf"\b(?:an?|each|every|one|per|single) ({'|'.join(_SECONDS)})\b|\b(hour|dai|week)ly\b")
_EVERY = re.compile(rf"\bevery (\d{{1,6}}) ({'|'.join(_SECONDS)})s\b", re.ASCII)
_PART = re.compile(r"(?<=[.!?:;–—])\s+")  # a sentence, or a half of one
_WANTS_PERSON = re.compile(r"(?:(?:by|for|from|of|to|under|with)\s+)?whom?\b", re.IGNORECASE)
_WANTS_YEAR = re.compile(r"(?:which|what) year\b|when (?:was|were|did)\b", re.IGNORECASE)
_SECOND = re.compile(r"\bsecond (?:of|to|most|least|in|\w+est)\b|\bin the middle\b|\bsecond\W*$", re.IGNORECASE)
_COMPARES = re.compile(
    r"\b(?:or|most|least|first|last|second|neither|middle)\b|\w{2}est\b|\w{2}er of (?:the )?(?:two|three|both)\b",
    re.IGNORECASE,
)


def asks_for_name(question: str) -> bool:
    """Whether the answer is the name of a person, place or thing."""
    return any(map(_WANTS_NAME.match, [question.strip(), *_PART.split(question.strip())]))


def asks_for_person(question: str) -> bool:
    """Whether the answer is the name of a person: "Who is the mayor?"."""
    return any(map(_WANTS_PERSON.match, _PART.split(question.strip())))


def asks_to_compare(question: str) -> bool:
    """Whether the answer is one of several names, chosen by a number: "Which is older, …?", "Which is the oldest?"."""
    return asks_for_name(question) and _COMPARES.search(question) is not None


def asks_for_year(question: str) -> bool:
    """Whether the answer is a year."""
    return _WANTS_YEAR.search(question) is not None


def asks_for_second(question: str) -> bool:
    """Whether the answer is the second of several names in an order: "Which is the second oldest?"."""
    return asks_to_compare(question) and _SECOND.search(question) is not None


def described_things(question: str) -> set[str]:
    """Return the nouns of what is described instead of named: "the mayor of the town where it stands" has "town"."""
    found = (match for form in (_DESCRIBED, _ROLE, _UNNAMED) for match in form.finditer(question))
    return {next(filter(None, match.groups())) for match in found}


def rates_in(text: str, question: str) -> list[str]:
    """Return how often something happens in the period of a question, if a text only says after how long.

    Each is a sentence: "Every 12 minutes is 5 times an hour." A small model does not divide the hour.
    """
    asked = {match[1] or match[2].replace("dai", "day") for match in _PERIOD.finditer(question)}
    rates = []
    for number, unit in dict.fromkeys(_EVERY.findall(text)):
        for period in sorted(asked):
            seconds = int(number) * _SECONDS[unit]
            times, rest = divmod(_SECONDS[period], seconds) if seconds else (0, 0)
            if times > 1 and not rest:
                article = "an" if period == "hour" else "a"
                rates.append(f"Every {number} {unit}s is {times} times {article} {period}.")
    return rates
