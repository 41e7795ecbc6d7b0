"""The tolerant JSON reader: `repair_json` reads text that should be JSON and names every repair.

Strict JSON is tried first, then foreign but well-formed tokens (Python, JavaScript, full-width punctuation) are
rewritten, then a tolerant scanner reads the text. Pure, linear, never raises.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn

from closeout.messages import Repair
from closeout.parsing.numbers import read_number
from closeout.parsing.python_source import parse_python

__all__ = ["MAX_REPAIRED", "RepairedJson", "read_broken_json", "repair_json"]


class Notes:
    """The repairs made in one text. A kind that occurs a thousand times is one entry that says so."""

    __slots__ = ("_found", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: dict[str, tuple[int, int]] = {}  # the first position of each kind, and how often it occurs

    def __contains__(self, kind: str) -> bool:
        return kind in self._found

    def add(self, kind: str, position: int) -> None:
        first, count = self._found.get(kind, (position, 0))
        self._found[kind] = first, count + 1

    @property
    def repairs(self) -> tuple[Repair, ...]:
        return tuple(
            Repair(
                kind,
                f"character {at}",
                self._text[max(0, at - 8) : at + 16],
                after="" if count == 1 else f"{count} places",
            )
            for kind, (at, count) in self._found.items()
        )


_NUMBER = re.compile(r"-?(?:0|[1-9]\d*+)(?:\.\d++)?+(?:[eE][+-]?\d++)?+")
_FLOAT = re.compile(r"(?:0|[1-9]\d*+)?+\.\d*+(?:[eE][+-]?\d++)?+")  # .5 and 5.
_LOOSE_NUMBER = re.compile(r"[+-]?(?:\d++(?:_\d++)*+\.?\d*+|\.\d++)(?:[eE][+-]?\d*+)?+|-")

_WORDS: dict[str, tuple[Any, str]] = {
    "true": (True, ""),
    "false": (False, ""),
    "null": (None, ""),
    "None": (None, "python_literal"),
    "undefined": (None, "javascript_literal"),
    "NaN": (None, "not_a_number"),
    "nan": (None, "not_a_number"),
    "Infinity": (None, "not_a_number"),
    "-Infinity": (None, "not_a_number"),
}


_NULL_OR_STRING = {"none", "nil"}
_QUOTED_COLON = re.compile(r"""["']\s*+:""")
_QUOTE_INSIDE = re.compile(r"""["“”](?!\Z)""")
_CUT_WORD = re.compile(r"(?i:tr|tru|fa|fal|fals|nu|nul)")  # literals that the end of the text may have cut off


def is_atom(token: str, *, loosely: bool = False) -> bool:
    """True if a token is a literal or a JSON number; `loosely` lets numbers in that only other languages write."""
    is_word = token in _WORDS or token.casefold() in ("true", "false", "null")
    return is_word or bool(_NUMBER.fullmatch(token)) or (loosely and bool(_LOOSE_NUMBER.fullmatch(token)))


def read_word(token: str) -> tuple[Any, tuple[str, ...]]:
    """The token's value, and the names of its repairs."""
    if token in _WORDS:
        value, repair = _WORDS[token]
        return value, (repair,) if repair else ()
    if token.casefold() in ("true", "false", "null"):
        return _WORDS[token.casefold()][0], ("python_literal",)
    if _NUMBER.fullmatch(token):
        return _number(token)
    if _LOOSE_NUMBER.fullmatch(token):
        return _loose_number(token)
    if token[-1] in "\"'":
        return token[:-1], ("unquoted_string", "missing_quote")
    return token, ("unquoted_string",)


def _number(token: str) -> tuple[Any, tuple[str, ...]]:
    try:
        return int(token) if token.lstrip("-").isdigit() else float(token), ()
    except ValueError:  # more digits than Python converts
        return token, ("huge_number",)


def _loose_number(token: str) -> tuple[Any, tuple[str, ...]]:
    digits = token.lstrip("+-")
    if not _FLOAT.fullmatch(digits):  # a code such as 00789 or +49789, not a quantity: it keeps its characters
        return token, ("unquoted_string",)
    value = read_number(token.removesuffix("."))
    if value is None or float(value) != value:
        return token, ("unquoted_string",)
    return float(value), ("loose_number",)


# Every alternative takes all that it looked at, so that no stretch of the text is read twice.
_TOKEN = re.compile(
    r"""
    (?: (?P<double>"(?:[^"\\\x00-\x1f]++|\\.)*+") | (?P<single>'(?:[^'\\\x00-\x1f]++|\\.)*+')
      | (?P<smart>“(?:[^“”\\\x00-\x1f]++|\\.)*+”) ) (?=\s*+(?:[,:}\]，：｝］]|\Z))
    | (?P<open>["'“])
    | (?P<wide>[：，｛｝［］])
    | (?P<comment>//[^\n]*+|\#[^\n]*+|/\*(?s:.*?)(?:\*/|\Z))
    | (?P<comma>,)(?=\s*+[}\]])
    | (?<![\w$.])(?:(?P<word>True|False|None|undefined|NaN)\b(?!\s*+:)|(?P<key>[A-Za-z_$][\w$]*+)(?=\s*+:))
    """,
    re.VERBOSE,
)
_MAX_TOKENS = 12_000  # strings, keys and words in texts up to 64 kB; longer texts get their share

_REWRITTEN_WORDS = {
    "True": ("true", "python_literal"),
    "False": ("false", "python_literal"),
    "None": ("null", "python_literal"),
    "undefined": ("null", "javascript_literal"),
    "NaN": ("null", "not_a_number"),
}
NARROW = {"：": ":", "，": ",", "｛": "{", "｝": "}", "［": "[", "］": "]"}
_IN_SINGLE = re.compile(r"""\\'|\\.|\"""")
_SINGLE_PIECES = {"\\'": "'", '"': '\\"'}


class _NotWellFormed(Exception):
    pass


def rewrite_tokens(text: str) -> tuple[str, tuple[Repair, ...]] | None:
    """Return a text in JSON's own tokens, and the repairs.

    None if nothing changes, there are too many tokens, or a string does not end.
    """
    notes = Notes(text)
    left = max(_MAX_TOKENS, len(text) * _MAX_TOKENS // 65_536)

    def rewrite(found: re.Match[str]) -> str:
        nonlocal left
        left -= 1
        if left < 0:
            raise _NotWellFormed
        kind = found.lastgroup
        token = found.group()
        if kind == "double":
            return token
        if kind == "wide":
            notes.add("full_width", found.start())
            return NARROW[token]
        if kind in ("single", "smart"):
            notes.add(f"{kind}_quotes", found.start())
            body = token[1:-1]
            if '"' in body or "\\'" in body:
                body = _IN_SINGLE.sub(lambda piece: _SINGLE_PIECES.get(piece[0], piece[0]), body)
            return f'"{body}"'
        if kind == "comma":
            notes.add("trailing_comma", found.start())
            return ""
        if kind == "key":
            notes.add("unquoted_key", found.start())
            return f'"{token}"'
        if kind == "comment":
            notes.add("comment", found.start())
            return " "
        if kind == "open":
            raise _NotWellFormed
        word, repair = _REWRITTEN_WORDS[token]
        notes.add(repair, found.start())
        return word

    try:
        rewritten = _TOKEN.sub(rewrite, text)
    except _NotWellFormed:
        return None
    return (rewritten, notes.repairs) if notes.repairs else None


# What a string is: "listed" ones are in a container that is itself an element of a list.
Role = Literal["key", "member", "listed_member", "element", "listed_element", "root"]

# A key as broken JSON may write it, up to its colon. The lengths bound the lookahead.
_QUOTED_KEY = r"""(?:"[^"\n]{0,80}+"|'[^'\n]{0,80}+'|[“‘][^”’\n]{0,80}+[”’])\s*+:"""
_BARE_KEY_PATTERN = r"[A-Za-z_$][\w$.-]{0,60}+[\"']?\s*+:"
KEY = rf"(?:{_QUOTED_KEY}|{_BARE_KEY_PATTERN})"

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


# A quote that closes and one that opens with nothing but separators, or the start of an object, between them: one
# string, or two?
_TORN = {
    opening: re.compile(rf"(?<!\\)[{re.escape(closers)}][\s,;+，]*+[{{\[]?(?<!\\){re.escape(opening)}")
    for opening, closers in QUOTES.items()
}


def _after_closer(is_listed: bool) -> str:
    """Return a pattern for the text after a bracket that closes a string's container: in a list, any value."""
    follower = rf"[\"'{{\[]|{KEY}" + (rf"|{_ATOM}" if is_listed else "")
    return rf"(?=\s*+(?:\Z|[}}\])`{{]|;\s*+\Z|//|/\*|,\s*+(?:\Z|{follower})))"


def _after_member(is_listed: bool) -> re.Pattern[str]:
    return re.compile(
        rf"\s*+(?:\Z|[}}\]]{_after_closer(is_listed)}|,\s*+(?:\Z|[}}\]]|//|/\*|\.\.\.|…|{KEY})|//|/\*|{_QUOTED_KEY})"
        rf"|[^\S\n]*+\n\s*+{_BARE_KEY_PATTERN}"
    )


def _after_element(is_listed: bool) -> re.Pattern[str]:
    return re.compile(
        rf"\s*+(?:\Z|[}}\]]{_after_closer(is_listed)}|//|/\*"
        rf"|,[\s,]*+(?:\Z|[\"'“‘{{\[}}\]]|//|/\*|\.\.\.|…|{_ATOM})"
        r"|\"(?:[^\"\\\n]|\\.){0,200}+\"(?:\s++\"(?:[^\"\\\n]|\\.){0,200}+\"){0,20}+\s*+[,\]])"
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

_CUT_ESCAPE = re.compile(r"(?<!\\)\\(?:u[0-9a-fA-F]{0,3})?\Z")
_ESCAPE = re.compile(r"""\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\'|["\\]""")
_PATH = re.compile(r"[A-Za-z]:\\(?=[^\\/\"])|\\\\(?=[^\\\"])")


class Broken(Exception):
    """The text cannot be read. `position` is a character offset; the message says what was expected there."""

    def __init__(self, expected: str, position: int) -> None:
        super().__init__(expected)
        self.position = position


class Ambiguous(Broken):
    """The text can be read in more than one way; no further reader is asked."""


@dataclass(slots=True)
class Effort:
    """The limit on guesses about one text: it bounds the time that hostile text can take."""

    left: int

    def spend(self, position: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise Broken("fewer mistakes before this place,", position)


class ReadString(NamedTuple):
    """A string's value, the position after it, and the names of its repairs."""

    value: str
    end: int
    repairs: tuple[str, ...]


def read_string(text: str, start: int, role: Role, effort: Effort) -> ReadString:
    """Read the string whose opening quote is at `start`. `role` says what may follow its closing quote."""
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
    """Return the end of the string if a quote in it turns out to open the next one, else 0."""
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
    """A Python triple-quoted string, whose content is taken as it is."""
    fence = opening * 3
    if opening not in "\"'" or not text.startswith(fence, start):
        return None
    end = text.find(fence, start + 3)
    if end < 0:
        return None
    return ReadString(text[start + 3 : end], end + 3, ("triple_quotes",))


def _closed(text: str, start: int, quote: int) -> ReadString:
    opening = text[start]
    body = text[start + 1 : quote]
    if opening in body[:1] + body[-1:] and len(body) > 1 and body[0] == body[-1] and body[-2:-1] != "\\":
        raise Ambiguous("quotes around the string once, or quotes inside it escaped", start)
    if torn := _TORN[opening].search(body):
        raise Ambiguous("one string, or a comma between two", start + 1 + torn.start())
    value, repairs = _decode(body)
    if opening == "'":
        repairs = (*repairs, "single_quotes")
    elif opening != '"':
        repairs = (*repairs, "smart_quotes")
    return ReadString(value, quote + 1, repairs)


def _open_ended(text: str, start: int, end: int) -> ReadString:
    if torn := _TORN[text[start]].search(text, start + 1, end):
        raise Ambiguous("one string, or a comma between two", torn.start())
    value, repairs = _decode(text[start + 1 : end])
    return ReadString(value, end, (*repairs, "missing_quote"))


def _unterminated(text: str, start: int, role: Role) -> ReadString:
    """No quote closes the string: it ends with its line if the next line is JSON again, else with the text."""
    newline = text.find("\n", start)
    if newline > 0 and role != "root" and _NEXT_LINE.match(text, newline + 1):
        return _open_ended(text, start, newline)
    if _CUT_ESCAPE.search(text, max(start + 1, len(text) - 8)):
        raise Broken("the end of an escape", len(text))
    closers = _CLOSERS_AT_END.search(text, max(start + 1, len(text) - 64)) if role != "root" else None
    return _open_ended(text, start, closers.start() if closers else len(text))


def _decode(body: str) -> tuple[str, tuple[str, ...]]:
    """Return the decoded characters between the quotes, and the names of the repairs."""
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

    def fix(found: re.Match[str]) -> str:
        piece = found.group()
        if piece == '"':
            repairs.append("unescaped_quote")
            return '\\"'
        if piece == "\\":
            repairs.append("unescaped_backslash")
            return "\\\\"
        return "'" if piece == "\\'" else piece

    fixed = _ESCAPE.sub(fix, body)
    return json.loads(f'"{fixed}"', strict=False), tuple(dict.fromkeys(repairs))


MAX_DEPTH = 128  # levels of nesting that are read with repairs; strict JSON may nest as deep as the parser allows
_STEPS = 3_000  # values, brackets and doubtful quotes for texts up to 64 kB; longer texts get their share


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key occurs twice")  # the scanner compares its values
    return value


STRICT = json.JSONDecoder(parse_constant=_refuse)
_DISTINCT = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_distinct)

_SPACE = re.compile(r"[ \t\r\n]*+")
_BETWEEN = re.compile(r"(?:[\s\ufeff\u200b-\u200d\u2060]++|//[^\n]*+|\#[^\n]*+|/\*(?s:.*?)(?:\*/|\Z))++")
_PLAIN_SCALAR = r"""(?:"[^"\\\x00-\x1f]*+"|-?(?:0|[1-9]\d*+)(?:\.\d++)?+(?:[eE][+-]?\d++)?+|true|false|null)"""
_PLAIN_RUN = re.compile(rf"(?:{_PLAIN_SCALAR}\s*+,\s*+){{4,}}+")
_MEMBER = re.compile(
    r"""(["'])([^"'\\\x00-\x1f]*+)\1[ \t\r\n]*+:[ \t\r\n]*+(?:(["'])([^"'\\\x00-\x1f]*+)\3|([\w.+-]++))"""
    rf"""(?=\s*+(?:,\s*+(?:\}}|{KEY})|\}}\s*+(?:[,}}\]]|\Z)))"""
)
_BARE_KEY = re.compile(r"[^\s:,{}\[\]\"'=][^:,{}\[\]\"'\n=]*+")
_BARE_ATOM = re.compile(r"[\w.+-]++(?=\s*+(?:[,}\]\"]|\Z|//|/\*|\#)|[^\S\n]*+\n)")
_BARE_VALUE = re.compile(r"[^,}\]\[{\n\r]++")
_MORE_MEMBERS = re.compile(rf"\s*+,\s*+(?={KEY})")
_CLOSER_IGNORED = re.compile(r"\s*+[,\]}]")
_ELLIPSIS = re.compile(r"\.\.\.|…")
_PREFIXED = re.compile(r"[rbfuRBFU]{1,2}(?=[\"'])")
_NO_KEY_STARTS = (",", "}", "]", ":")
_EQUALS = re.compile(r"=>?|:=")


class Scanner:
    """One pass over one text. `values` are the root values read so far, `notes` the repairs."""

    def __init__(self, text: str, position: int = 0) -> None:
        self.text = text
        self.position = position
        self.values: list[Any] = []
        self.notes = Notes(text)
        self._stack: list[dict[str, Any] | list[Any]] = []
        self._keys: list[str] = []
        self._open: dict[type, int] = {dict: 0, list: 0}
        self._after_value = False
        self._after_comma = False
        self._effort = Effort(max(_STEPS, len(text) * _STEPS // 65_536))
        self._strict_budget = 4 * len(text) + 256  # characters that failed strict readings may cost in all

    def note(self, kind: str, position: int | None = None) -> None:
        """Record a repair at a position, by default the current one."""
        self.notes.add(kind, self.position if position is None else position)

    def read_value(self) -> None:
        """Read one root value. Raises Broken if it is missing or makes no sense."""
        self._value(self.skip(), "root")
        self._close_all()

    def reopen(self) -> bool:
        """Continue an object that was closed too early, if more members follow."""
        last = self.values[-1]
        if not isinstance(last, dict) or not _MORE_MEMBERS.match(self.text, self.position):
            return False
        self.note("extra_bracket", self.position - 1)
        self._push(last)
        self._after_value = True
        self._close_all()
        return True

    def skip(self) -> str:
        """Move to the next character that is not space or a comment, and return it; "" at the end."""
        position = _SPACE.match(self.text, self.position).end()  # type: ignore[union-attr]
        if position < len(self.text):
            character = self.text[position]
            if character in "/#" or character > "~":
                between = _BETWEEN.match(self.text, position)
                if between:
                    self.note("comment" if "/" in between[0] or "#" in between[0] else "odd_space", position)
                    position = between.end()
        self.position = position
        return self.text[position : position + 1]

    # ------------------------------------------------------------------------------------------ inside containers

    def _close_all(self) -> None:
        """Read up to the end of the open containers."""
        while self._stack:
            self._effort.spend(self.position)
            self._step()

    def _step(self) -> None:
        character = self.skip()
        if character == "":
            self.note("missing_bracket")
            while self._stack:
                self._pop()
        elif character == ",":
            if not self._after_value:
                self.note("extra_comma")
            self.position += 1
            self._after_value, self._after_comma = False, True
        elif character in "}]":
            self._close(character)
        else:
            if self._after_value:
                self.note("missing_comma")
            self._after_value = self._after_comma = False
            if isinstance(self._stack[-1], dict):
                self._member(character)
            else:
                self._element(character)

    def _close(self, closer: str) -> None:
        if self._after_comma:
            self.note("trailing_comma")
        self._after_comma = False
        wanted: type = dict
        if closer == "]":
            wanted = list
        if type(self._stack[-1]) is not wanted:
            if not self._open[wanted]:
                follows = _CLOSER_IGNORED.match(self.text, self.position + 1)
                self.note("extra_bracket" if follows else "wrong_bracket")
                self.position += 1
                self._after_value = True
                if not follows:
                    self._pop()
                return
            self.note("missing_bracket")
            while type(self._stack[-1]) is not wanted:
                self._pop()
        self.position += 1
        self._pop()

    def _member(self, character: str) -> None:
        clean = _MEMBER.match(self.text, self.position)
        if clean and self._put_clean(clean):
            return
        key = self._key(character)
        if key is None:
            return
        self._keys[-1] = key
        end = self.position
        character = self.skip()
        equals = _EQUALS.match(self.text, self.position)
        if equals:
            self.note("missing_colon")
            self.position = equals.end()
        elif character == ":":
            self.position += 1
        elif character in ",}]" or character == "":
            raise Broken(f'a colon and a value after the key "{key[:40]}"', self.position)
        elif character in QUOTES and self.position == end and not self.text[end - 1].isspace():
            raise Ambiguous("a colon, or a key with escaped quotes", end)
        else:
            self.note("missing_colon")
        character = self.skip()
        if character in ",}" or character == "":
            self.note("missing_value")
            self._put(None)
        else:
            self._value(character, "listed_member" if self._is_listed() else "member")

    def _put_clean(self, found: re.Match[str]) -> bool:
        """Put a whole plain member, which is most of a long text; one match reads it."""
        key_quote, key, value_quote, string, word = found.groups()
        if word is None:
            value: Any = string
        elif is_atom(word):
            value, repairs = read_word(word)
            for repair in repairs:
                self.note(repair, found.start(5))
        else:
            return False
        if key_quote == "'" or value_quote == "'":
            self.note("single_quotes")
        self._keys[-1] = key
        self.position = found.end()
        self._put(value)
        if self.text.startswith(",", self.position):
            self.position += 1
            self._after_value, self._after_comma = False, True
        return True

    def _key(self, character: str) -> str | None:
        """A member's key, or None if something else was there that could be skipped."""
        if character in QUOTES:
            key = self._string("key")
            if key.lstrip()[:1] in _NO_KEY_STARTS and key.strip():  # a quote that belongs to the string before it
                raise Ambiguous("quotes inside strings to be escaped", self.position)
            return key
        if character in "{[":
            self._bracket_for_key(character)
            return None
        ellipsis = _ELLIPSIS.match(self.text, self.position)
        if ellipsis:
            self.note("ellipsis")
            self.position = ellipsis.end()
            self._after_value = True
            return None
        bare = _BARE_KEY.match(self.text, self.position)
        if not bare:
            raise Broken("a key", self.position)
        self.note("unquoted_key")
        self.position = bare.end()
        if not bare[0][-1].isspace() and self.text[self.position : self.position + 1] in ('"', "'"):
            self.position += 1  # only the opening quote was missing
        return bare[0].strip()

    def _bracket_for_key(self, character: str) -> None:
        container = self._stack[-1]
        if character == "{" and not container:  # "{{" of a template
            self.note("extra_bracket")
            self.position += 1
        elif character == "{" and len(self._stack) > 1 and isinstance(self._stack[-2], list):
            self.note("missing_bracket")
            self._pop()
        else:
            raise Broken("a key", self.position)

    def _element(self, character: str) -> None:
        run = _PLAIN_RUN.match(self.text, self.position)
        if run:
            try:
                values = STRICT.decode(f"[{run[0].rstrip()[:-1]}]")
            except ValueError:
                values = None
            if values:
                self._stack[-1].extend(values)  # type: ignore[union-attr]
                self.position = run.end()
                self._after_comma = True
                return
        self._value(character, "listed_element" if self._is_listed() else "element")

    # ------------------------------------------------------------------------------------------ values

    def _value(self, character: str, role: Role) -> None:
        if character in ("{", "["):
            self._container(character)
        elif character in QUOTES and character:
            self._put(self._string(role))
        elif not self._prefixed_string(role):
            self._bare(role)

    def _container(self, character: str) -> None:
        if self._strict_budget > 0:
            try:
                value, self.position = _DISTINCT.raw_decode(self.text, self.position)
            except json.JSONDecodeError as error:
                # Python counts the lines before the place of each error, hence the share of what was read before
                self._strict_budget -= error.pos - self.position + error.pos // 16
            except (ValueError, RecursionError):
                self._strict_budget -= len(self.text) - self.position
            else:
                self._put(value)
                return
        if len(self._stack) >= MAX_DEPTH:
            raise Broken(f"at most {MAX_DEPTH} levels of nesting", self.position)
        container: dict[str, Any] | list[Any] = {} if character == "{" else []
        self._put(container)
        self._push(container)
        self.position += 1
        self._after_value = self._after_comma = False

    def _string(self, role: Role) -> str:
        start = self.position
        value, self.position, repairs = read_string(self.text, start, role, self._effort)
        for repair in repairs:
            self.note(repair, start)
        return value

    def _prefixed_string(self, role: Role) -> bool:
        """A Python literal such as r"\\d+"; a word that only lost its opening quote is not one."""
        prefixed = _PREFIXED.match(self.text, self.position)
        if not prefixed:
            return False
        read = read_string(self.text, prefixed.end(), role, self._effort)
        if "missing_quote" in read.repairs:
            return False
        self.note("python_literal")
        for repair in read.repairs:
            self.note(repair)
        self.position = read.end
        self._put(read.value)
        return True

    def _bare(self, role: Role) -> None:
        """A value without quotes: a word, a number, or a string that lost them."""
        ellipsis = _ELLIPSIS.match(self.text, self.position)
        if ellipsis and role in ("element", "listed_element"):
            self.note("ellipsis")
            self.position = ellipsis.end()
            self._after_value = True
            return
        atom = _BARE_ATOM.match(self.text, self.position)
        found = atom if atom and is_atom(atom[0]) else _BARE_VALUE.match(self.text, self.position)
        token = found[0].strip() if found else ""
        end = found.end() if found else self.position
        for mark in ("//", "/*"):
            cut = token.find(" " + mark)
            if cut > 0:
                token, end = token[:cut].rstrip(), self.position + cut
        if not token or token[0] in ":=()：，｝］":
            raise Broken("a value", self.position)
        if role == "root":
            token = token.rstrip(" ;)`")
            if not is_atom(token, loosely=True):
                raise Broken("an object", self.position)
        if role in ("element", "listed_element") and all(map(is_atom, pieces := token.split())):
            token, end = pieces[0], self.position + len(pieces[0])
        self._refuse_doubtful(token, end)
        value, repairs = read_word(token)
        for repair in repairs:
            self.note(repair)
        self.position = end
        self._put(value)

    def _refuse_doubtful(self, token: str, end: int) -> None:
        """Raise Broken for a word that may mean more than one value."""
        if token.casefold() in _NULL_OR_STRING and token != "None":  # noqa: S105 - a word, no secret
            raise Ambiguous(f'null, or "{token}" in quotes', self.position)
        if _QUOTED_COLON.search(token):
            raise Ambiguous("a comma between two members", self.position)
        if _QUOTE_INSIDE.search(token):
            raise Ambiguous("quotes around the value only", self.position)
        if end == len(self.text) and _CUT_WORD.fullmatch(token):
            raise Broken("the rest of a word", end)

    # ------------------------------------------------------------------------------------------ the stack

    def _put(self, value: Any) -> None:
        self._after_value = True
        if not self._stack:
            self.values.append(value)
            return
        container = self._stack[-1]
        if isinstance(container, dict):
            key = self._keys[-1]
            if container.get(key, value) != value:
                self.note("duplicate_key")
            container[key] = value
        else:
            container.append(value)

    def _push(self, container: dict[str, Any] | list[Any]) -> None:
        self._stack.append(container)
        self._keys.append("")
        self._open[type(container)] += 1

    def _is_listed(self) -> bool:
        return len(self._stack) > 1 and isinstance(self._stack[-2], list)

    def _pop(self) -> None:
        self._open[type(self._stack.pop())] -= 1
        self._keys.pop()
        self._after_value, self._after_comma = True, False


_FENCE = re.compile(r"\s*+(?:```|~~~)[\w+-]*+[^\S\n]*+(?:\n|(?=[{\[\"]))")
_WRAPPER = re.compile(r"\s*+[A-Za-z_$][\w$.]*+\s*+\(\s*+(?=[{\[\"'\w])")
_ESCAPED_WHOLE = re.compile(r"\s*+(?:\{|\[\s*+\{?)\s*+\\\"")
_AFTER_ROOT = re.compile(r"(?:[\s,;)}\]]|```|~~~)*+")

_MOST_PYTHON = 10_000  # characters of a Python literal; its parser recurses
_SIDE_BY_SIDE = re.compile(r"""["']\s+["']""")  # two strings: one in Python, or a comma between them?
_MAX_ROOTS = 64
MAX_REPAIRED = 1_000_000  # characters; guessing at a longer broken text takes seconds


class RepairedJson(NamedTuple):
    """`value` is what the text means, `repairs` the repairs in order, `error` why there is no value.

    A strictly valid text has no repairs. With an error `value` is None and nothing should be done with it.
    """

    value: Any
    repairs: tuple[Repair, ...] = ()
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


def repair_json(text: object, *, truncated: bool = False) -> RepairedJson:
    """Read text that should be JSON, and repair what models commonly get wrong.

    Where a text can be read in two ways, it is refused with the reason: a wrong value is worse than none.

    Args:
        text: The text.
        truncated: The model was cut off (`finish_reason` "length"): only strict, complete JSON is read.

    Returns:
        The value and the named repairs, or an error. It never raises and takes linear time.
    """
    read = read_broken_json(text, truncated=truncated)
    scanned = _repair(str(text)) if read.ok and not read.repairs and _repeats_key(str(text)) else read
    twice = next((repair for repair in scanned.repairs if repair.kind == "duplicate_key"), None)
    if twice is None:
        return read
    return RepairedJson(None, (), f"not JSON: expected one value for a key, got two different ones at {twice.where}")


def _repeats_key(text: str) -> bool:
    try:
        _DISTINCT.decode(text)
    except (ValueError, RecursionError):
        return True
    return False


def read_broken_json(text: object, *, truncated: bool = False) -> RepairedJson:
    """Like `repair_json`, but a broken object with two values for a key keeps the last, named `duplicate_key`."""
    if not isinstance(text, str):
        return RepairedJson(None, (), f"expected text, got {type(text).__name__}")
    try:
        value = STRICT.decode(text)
    except (ValueError, RecursionError):
        pass
    else:
        return _complete(text, value, truncated)
    if truncated:
        return RepairedJson(None, (), "the text was cut off before its JSON was complete")
    if not text.strip():
        return RepairedJson(None, (), "the text is empty")
    if len(text) > MAX_REPAIRED:
        return RepairedJson(None, (), f"not JSON, and longer than the {MAX_REPAIRED:,} characters that are repaired")
    return _repair(text)


def _complete(text: str, value: Any, truncated: bool) -> RepairedJson:
    """Strict JSON: as it is, except a string that holds a whole JSON object or list, which was encoded twice."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return RepairedJson(STRICT.decode(value), (Repair("double_encoded", "text", text[:40]),))
        except (ValueError, RecursionError):
            return RepairedJson(value)
    if truncated and isinstance(value, (int, float)) and not isinstance(value, bool):
        return RepairedJson(None, (), "the text was cut off within a number")
    return RepairedJson(value)


def _repair(text: str) -> RepairedJson:
    if _ESCAPED_WHOLE.match(text):
        unescaped = _unescape(text)
        if unescaped is not None:
            inner = read_broken_json(unescaped) if not _ESCAPED_WHOLE.match(unescaped) else RepairedJson(None, (), "")
            if inner.ok:
                return RepairedJson(inner.value, (Repair("escaped_twice", "text", text[:40]), *inner.repairs))
    failure = Broken("JSON", 0)
    for start, around in _starts(text):
        try:
            value, repairs = _rewritten(text[start:]) or _scanned(text, start)
        except Ambiguous as error:
            return _failed(text, error)
        except Broken as error:
            failure = error
            continue
        if around == "surrounding_text" and not (isinstance(value, (dict, list)) and value):
            continue
        named = (Repair(around, "text", text[:start].strip()[:40]),) if around else ()
        return RepairedJson(value, named + repairs or (Repair("surrounding_text", "text", text[-40:]),))
    return _python_literal(text) or _failed(text, failure)


def _unescape(text: str) -> str | None:
    """`{\\"a\\": 1}` read as the inside of a JSON string."""
    try:
        return str(json.loads(f'"{text.strip()}"', strict=False))
    except ValueError:
        return None


def _starts(text: str) -> list[tuple[int, str]]:
    """Return the offsets at which reading may begin, likeliest first, each with the name of the text before it."""
    fence = _FENCE.match(text)
    if fence:
        return [(fence.end(), "code_fence")]
    starts = []
    beginning = Scanner(text)
    beginning.skip()
    wrapper = _WRAPPER.match(text, beginning.position)
    if wrapper:
        starts.append((wrapper.end(), "call_syntax"))
    else:
        starts.append((1 if text[0] == "\ufeff" else 0, "byte_order_mark" if text[0] == "\ufeff" else ""))
    if text.lstrip("\ufeff \t\r\n")[:1] not in ("{", "[", "｛", "［"):
        brace = text.find("{")
        bracket = text.find("[") if brace < 0 else -1
        starts.extend((at, "surrounding_text") for at in (brace, bracket) if at >= 0)
    return starts


def _rewritten(text: str) -> tuple[Any, tuple[Repair, ...]] | None:
    """The value of a text that is JSON but for foreign tokens."""
    rewritten = rewrite_tokens(text)
    if rewritten is None:
        return None
    try:
        return _DISTINCT.decode(rewritten[0]), rewritten[1]
    except (ValueError, RecursionError):
        return None


def _scanned(text: str, start: int) -> tuple[Any, tuple[Repair, ...]]:
    scanner = Scanner(text, start)
    value = _all_values(scanner)
    return value, scanner.notes.repairs


def _all_values(scanner: Scanner) -> Any:
    """All root values of the text, merged into one."""
    scanner.read_value()
    first = scanner.values[0]
    follower = "{" if isinstance(first, dict) else "[" if isinstance(first, list) else ""
    while True:
        while scanner.reopen():
            pass
        character = _past_root(scanner)
        position = scanner.position
        if not character:
            break
        if len(scanner.values) >= _MAX_ROOTS:
            raise Broken("the end of the text", position)
        try:
            if follower and character != follower:
                raise Broken("the end of the text", position)
            scanner.read_value()
        except Broken:
            if not follower:
                raise
            scanner.note("surrounding_text", position)
            break
    _refuse_ambiguous(scanner)
    return _together(scanner)


def _refuse_ambiguous(scanner: Scanner) -> None:
    """Raise Ambiguous if unescaped quotes in strings leave two ways to read the text."""
    if "unescaped_quote" not in scanner.notes:
        return
    torn = any(kind in scanner.notes for kind in ("missing_quote", "missing_bracket", "concatenated"))
    if torn or ("surrounding_text" in scanner.notes and scanner.text.rstrip()[-1:] in ("}", "]")):
        raise Ambiguous("quotes inside strings to be escaped", scanner.position)


def _past_root(scanner: Scanner) -> str:
    """Skip what may follow a whole value: a fence, a semicolon, stray brackets and commas. Return what is next."""
    while True:
        character = scanner.skip()
        after = _AFTER_ROOT.match(scanner.text, scanner.position)
        if not after or after.end() == scanner.position:
            return character
        if "," in after[0]:
            scanner.note("trailing_comma")
        if "}" in after[0] or "]" in after[0]:
            scanner.note("extra_bracket")
        scanner.position = after.end()


def _together(scanner: Scanner) -> Any:
    """Make one value of several that follow each other: equal objects are one, other values a list."""
    values = scanner.values
    if len(values) == 1:
        return values[0]
    scanner.note("concatenated")
    objects = [value for value in values if isinstance(value, dict) and value]
    if any(value != objects[0] for value in objects):
        raise Ambiguous("one object", scanner.position)
    return objects[0] if objects else {} if all(value == {} for value in values) else values


def _python_literal(text: str) -> RepairedJson | None:
    """A Python list or dict with what JSON has no form for: a tuple becomes a list."""
    if len(text) > _MOST_PYTHON or text.lstrip()[:1] not in ("{", "[") or _SIDE_BY_SIDE.search(text):
        return None
    tree = parse_python(text.strip())
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Expr):
        return None
    dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    if any(len({ast.dump(key) for key in node.keys if key}) < len(node.keys) for node in dicts):
        return None
    try:
        value = json.loads(json.dumps(ast.literal_eval(tree.body[0].value), allow_nan=False))
    except (ValueError, TypeError, RecursionError):
        return None
    return RepairedJson(value, (Repair("python_literal", "text", text[:40]),))


def _failed(text: str, failure: Broken) -> RepairedJson:
    at = failure.position
    near = text[max(0, at - 12) : at + 12].replace("\n", "\\n")
    return RepairedJson(None, (), f"not JSON: expected {failure} at character {at}, near {near!r}")
