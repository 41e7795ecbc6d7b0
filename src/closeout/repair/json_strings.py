"""Where a string in broken JSON ends and what it says: unescaped quotes, backslashes and newlines, foreign quotes.

What stands around strings is read in `json_scan`. Every look ahead is bounded, so reading stays linear.
"""

from __future__ import annotations

import json
import re
from typing import Literal, NamedTuple

__all__ = ["KEY", "QUOTES", "Ambiguous", "Broken", "Effort", "ReadString", "Role", "read_string"]

# What a string is: "listed" ones stand in a container that is itself an element of a list.
Role = Literal["key", "member", "listed_member", "element", "listed_element", "root"]

# A key as it may stand in broken JSON, up to its colon. The lengths bound the look ahead.
_QUOTED_KEY = r"""(?:"[^"\n]{0,80}+"|'[^'\n]{0,80}+'|[“‘][^”’\n]{0,80}+[”’])\s*+:"""
_BARE_KEY = r"[A-Za-z_$][\w$.-]{0,60}+[\"']?\s*+:"
KEY = rf"(?:{_QUOTED_KEY}|{_BARE_KEY})"

# opening quote → the characters that may close it
QUOTES = {
    '"': '"',
    "'": "'",
    "`": "`'´",
    "´": "´'`",
    "“": '”“"',
    "”": '”"',
    "„": '”“"',
    "‘": "’‘'",
    "’": "’'",
    "«": "»",
    "「": "」",
}

_BODY = {
    opening: re.compile(rf"(?:[^\\{re.escape(closers)}]++|\\.)*+", re.DOTALL) for opening, closers in QUOTES.items()
}
_BODY_RAW = {opening: re.compile(rf"[^{re.escape(closers)}]*+") for opening, closers in QUOTES.items()}

_ATOM = r"(?:-?\d|(?:true|false|null|True|False|None)\b)"


def _after_closer(is_listed: bool) -> str:
    """What may follow a bracket that closes the container around a string: in a list, any value."""
    follower = rf"[\"'{{\[]|{KEY}" + (rf"|{_ATOM}" if is_listed else "")
    return rf"(?=\s*+(?:\Z|[}}\])`{{]|;\s*+\Z|//|/\*|,\s*+(?:\Z|{follower})))"


def _after_member(is_listed: bool) -> re.Pattern[str]:
    return re.compile(
        rf"\s*+(?:\Z|[}}\]]{_after_closer(is_listed)}|,\s*+(?:\Z|[}}\]]|//|/\*|\.\.\.|…|{KEY})|//|/\*|{_QUOTED_KEY})"
        rf"|[^\S\n]*+\n\s*+{_BARE_KEY}"
    )


def _after_element(is_listed: bool) -> re.Pattern[str]:
    return re.compile(
        rf"\s*+(?:\Z|[}}\]]{_after_closer(is_listed)}|//|/\*"
        rf"|,\s*+(?:\Z|[\"'“‘{{\[}}\]]|//|/\*|\.\.\.|…|{_ATOM})"
        r"|\"(?:[^\"\\\n]|\\.){0,200}+\"\s*+[,\]])"
        r"|[^\S\n]*+\n\s*+[\"'{\[]"
    )


_AFTER: dict[Role, re.Pattern[str]] = {
    "key": re.compile(r"(?!\w)"),
    "member": _after_member(is_listed=False),
    "listed_member": _after_member(is_listed=True),
    "element": _after_element(is_listed=False),
    "listed_element": _after_element(is_listed=True),
    "root": re.compile(r"[\s,;)]{0,16}+(?:\Z|```)"),
}
_NEXT_ELEMENT = re.compile(r"\w[^\"\n]{0,200}+\"\s*+[,\]]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_MAYBE_END = re.compile(r"\s*+[}\],]")
_COLON = re.compile(r"\s*+:")
_COMMA_BEFORE = re.compile(r",\s*+\Z")
_NEXT_LINE = re.compile(rf"\s*+(?:[}}\]]|\Z|{KEY})")
_CLOSERS_AT_END = re.compile(r"[\s}\]]{1,64}+\Z")

_ESCAPE = re.compile(r"""\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\'|["\\]""")
_PATH = re.compile(r"[A-Za-z]:\\(?=[^\\/\"])|\\\\(?=[^\\\"])")


class Broken(Exception):
    """The text cannot be read. `position` is a character offset; the message says what was expected there."""

    def __init__(self, expected: str, position: int) -> None:
        super().__init__(expected)
        self.position = position


class Ambiguous(Broken):
    """The text can be read in more than one way; no further reader is asked."""


class Effort:
    """How much guessing one text is worth: it bounds the time that hostile text can take."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, position: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise Broken("fewer mistakes before this place,", position)


class ReadString(NamedTuple):
    """A string's value, where the text goes on after it, and the names of what was put right in it."""

    value: str
    end: int
    repairs: tuple[str, ...]


def read_string(text: str, start: int, role: Role, effort: Effort) -> ReadString:
    """Reads the string whose opening quote stands at `start`. `role` says what may follow its closing quote."""
    opening = text[start]
    tripled = _tripled(text, start, opening)
    if tripled is not None:
        return tripled
    is_path = _PATH.match(text, start + 1) is not None
    body = (_BODY_RAW if is_path else _BODY)[opening]
    after = _AFTER[role]
    previous = likely = -1
    position = start + 1
    while (quote := body.match(text, position).end()) < len(text):  # type: ignore[union-attr]
        if text[quote] == "\\":  # a lone backslash at the very end of the text
            break
        if after.match(text, quote + 1):
            return _closed(text, start, quote)
        never_closed = _never_closed(text, start, previous, quote, role)
        if never_closed > 0:
            return _open_ended(text, start, never_closed)
        if _MAYBE_END.match(text, quote + 1):
            likely = quote
        previous = quote
        position = quote + 1
        effort.spend(position)
    return _closed(text, start, likely) if likely >= 0 else _unterminated(text, start, role)


def _never_closed(text: str, start: int, previous: int, quote: int, role: Role) -> int:
    """Where the string ends if a quote in it turns out to open what comes next; 0 if it does not."""
    if (
        role in ("element", "listed_element")
        and text[quote - 1] == ","
        and quote - 1 > start
        and _NEXT_ELEMENT.match(text, quote + 1)
    ):
        return quote - 1
    if previous >= 0 and _COLON.match(text, quote + 1):
        comma = _COMMA_BEFORE.search(text, max(start + 1, previous - 64), previous)
        return comma.start() if comma else 0
    return 0


def _tripled(text: str, start: int, opening: str) -> ReadString | None:
    """A Python triple-quoted string, whose content is taken as it stands."""
    fence = opening * 3
    if opening not in "\"'" or not text.startswith(fence, start):
        return None
    end = text.find(fence, start + 3)
    if end < 0:
        return None
    return ReadString(text[start + 3 : end], end + 3, ("triple_quotes",))


def _closed(text: str, start: int, quote: int) -> ReadString:
    value, repairs = _decode(text[start + 1 : quote])
    opening = text[start]
    if opening == "'":
        repairs = (*repairs, "single_quotes")
    elif opening != '"':
        repairs = (*repairs, "smart_quotes")
    return ReadString(value, quote + 1, repairs)


def _open_ended(text: str, start: int, end: int) -> ReadString:
    value, repairs = _decode(text[start + 1 : end])
    return ReadString(value, end, (*repairs, "missing_quote"))


def _unterminated(text: str, start: int, role: Role) -> ReadString:
    """No quote closes the string: it ends with its line if the next line is JSON again, else with the text."""
    newline = text.find("\n", start)
    if newline > 0 and role != "root" and _NEXT_LINE.match(text, newline + 1):
        return _open_ended(text, start, newline)
    closers = _CLOSERS_AT_END.search(text, max(start + 1, len(text) - 64)) if role != "root" else None
    return _open_ended(text, start, closers.start() if closers else len(text))


def _decode(body: str) -> tuple[str, tuple[str, ...]]:
    """What the characters between the quotes mean, and what had to be put right."""
    repairs: list[str] = []
    if "\n" in body or "\r" in body or "\t" in body:
        repairs.append("raw_newline")
    if _CONTROL.search(body):
        repairs.append("control_character")
    if "\\" not in body:
        if '"' in body:
            repairs.append("unescaped_quote")
        return body, tuple(repairs)
    if _PATH.match(body) and "\\\\" not in body[2:]:
        return body, (*repairs, "unescaped_backslash")

    def mend(found: re.Match[str]) -> str:
        piece = found.group()
        if piece == '"':
            repairs.append("unescaped_quote")
            return '\\"'
        if piece == "\\":
            repairs.append("unescaped_backslash")
            return "\\\\"
        return "'" if piece == "\\'" else piece

    mended = _ESCAPE.sub(mend, body)
    return json.loads(f'"{mended}"', strict=False), tuple(dict.fromkeys(repairs))
