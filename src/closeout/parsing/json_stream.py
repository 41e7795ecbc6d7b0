"""Scan the JSON of one action while it streams in: find its end, its tool name and its input, and decode strings.

The scanner finds boundaries and rejects what cannot be JSON. `action_keys` reads the value once it is complete.
"""

from __future__ import annotations

import re
from enum import Enum, IntEnum, auto

from closeout.parsing.action_keys import INPUT_KEYS, NAME_KEYS, WRAPPER_KEYS
from closeout.parsing.json_text import NARROW

__all__ = ["JsonScanner", "Signal", "StringDecoder"]

_BLANKS = " \t\r\n\ufeff"
_SPACE = re.compile(f"[{_BLANKS}]*+")
_WORD = re.compile(r"[\w.+\-]*+")
_BODY = {quote: re.compile(rf"[^{quote}\\]*+(?:\\.[^{quote}\\]*+)*+", re.DOTALL) for quote in "\"'”"}
_STRICT_BODY = re.compile(r'[^"\\\n]*+(?:\\.[^"\\\n]*+)*+', re.DOTALL)
_NUMBER = re.compile(r"-?[0-9][0-9.eE+\-]*+\Z")
_CONSTANTS = frozenset({"true", "false", "null"})
_PYTHON_CONSTANTS = frozenset({"True", "False", "None"})
_NOT_FINITE = ("NaN", "Infini", "-NaN", "-Infini")
_SIMPLE = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "'": "'", "\\": "\\", "/": "/"}
_LONGEST_KEPT = 256  # characters of a key or a name; a longer one is not an action's

# One complete token inside an input: a value or an opening bracket, with its key before it and its comma after it; a
# closing bracket; a comma.
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_BLANK = f"[{_BLANKS}]*+"
_TOKEN = re.compile(
    rf"{_BLANK}(?:({_STRING}{_BLANK}:{_BLANK})?+"
    rf"(?:((?:{_STRING}|-?[0-9][0-9.eE+\-]*+|true|false|null)(?=[{_BLANKS},}}\]]))(?:{_BLANK}(,))?+|([{{\[]))"
    r"|([}\]])|(,))",
    re.DOTALL,
)
_PLAIN, _PLAIN_AND_COMMA, _OPENING, _CLOSING, _COMMA = range(2, 7)  # the last group that matched


class Signal(Enum):
    """Why `JsonScanner.scan` returned."""

    MORE = auto()  # all text is used up
    NAME = auto()  # `name` is known
    INPUT = auto()  # the input's value begins here
    INPUT_END = auto()  # the input's value ended here
    DONE = auto()  # the whole value is complete
    BROKEN = auto()  # this character is not valid here
    TOO_DEEP = auto()


class _Expect(IntEnum):
    """The tokens that the grammar allows next."""

    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


_WITH_KEY = (_Expect.KEY, _Expect.KEY_OR_END)
_WITHOUT_KEY = (_Expect.VALUE, _Expect.VALUE_OR_END)
_CLOSABLE = {
    "}": (_Expect.COMMA_OR_END, _Expect.KEY, _Expect.KEY_OR_END),
    "]": (_Expect.COMMA_OR_END, _Expect.VALUE, _Expect.VALUE_OR_END),
}


class JsonScanner:
    """A pushdown automaton over one JSON object or array, fed in pieces of any size.

    Args:
        lenient: Allow what the ReAct reader may repair: single and typographic quotes, full-width punctuation, Python
            constants, raw newlines in strings, comments and trailing commas.
        plain: The value is an input itself, so none of its keys are a name or an input.
        max_depth: Levels of nesting; a deeper value gives `Signal.TOO_DEEP`.
    """

    def __init__(self, *, lenient: bool = True, plain: bool = False, max_depth: int = 128) -> None:
        self.lenient = lenient
        self.name = ""
        self.has_input = False
        self.input_is_string = False
        self.duplicate = ""  # a name or input key that occurs twice in one action
        self.not_finite = False  # the value is broken by NaN or Infinity
        self._plain = plain
        self._max_depth = max_depth
        self._expect = _Expect.VALUE
        self._closers: list[str] = []  # closing brackets of the open containers
        self._levels: list[set[str] | None] = []  # each container's action keys so far; None inside an input
        self._quote = ""  # the open string's quote
        self._escaped = False
        self._is_key = False
        self._kept: list[str] | None = None  # the open string's text, if it may be a key or a name
        self._kept_size = 0
        self._number: str | None = None
        self._comment = ""  # "/", "line", "block" or "block*"
        self._key = ""
        self._input_depth = -1  # number of containers open around the input, while it is being read

    @property
    def closable(self) -> bool:
        """True if only closing brackets are missing."""
        return not self._quote and not self._comment and self._number is None and self._expect is _Expect.COMMA_OR_END

    def scan(self, text: str, at: int) -> tuple[Signal, int]:
        """Read on from `at` until there is something to report. Return the signal and the position after it."""
        size = len(text)
        signal: Signal | None = None
        while at < size and signal is None:
            if self._quote:
                signal, at = self._read_string(text, at)
            elif self._number is not None:
                signal, at = self._read_number(text, at)
            elif self._comment:
                signal, at = self._skip_comment(text, at)
            else:
                if self.lenient and self._levels and self._levels[-1] is None:
                    at = self._skip_tokens(text, at)
                at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
                if at < size:
                    signal, at = self._read_token(text, at)
        return signal or Signal.MORE, at

    # -------------------------------------------------------------------------------------------- tokens

    def _read_token(self, text: str, at: int) -> tuple[Signal | None, int]:
        """Read a bracket, a comma, a colon, a constant, or the beginning of a string, a number or a comment."""
        expect, character = self._expect, self._narrow(text[at])
        if character in "/#":
            if not self.lenient:
                return Signal.BROKEN, at
            self._comment = "/" if character == "/" else "line"
            return None, at + 1
        if expect is _Expect.COMMA_OR_END:
            if character != ",":
                return self._close(character, at)
            self._expect = _Expect.KEY if self._closers[-1] == "}" else _Expect.VALUE
            return None, at + 1
        if expect is _Expect.COLON:
            if character != ":":
                return Signal.BROKEN, at
            self._expect = _Expect.VALUE
            return None, at + 1
        if expect is _Expect.KEY or expect is _Expect.KEY_OR_END:
            return self._read_key(character, at)
        return self._read_value(text, at)

    def _narrow(self, character: str) -> str:
        """Return the JSON punctuation that a full-width character stands for."""
        return NARROW.get(character, character) if self.lenient else character

    def _skip_tokens(self, text: str, at: int) -> int:
        """Read complete tokens inside an input, where no key is a name or an input, as far as they are valid."""
        closers, levels, expect = self._closers, self._levels, self._expect
        outermost = levels.index(None) + 1
        while (token := _TOKEN.match(text, at)) is not None:
            kind = token.lastindex
            if kind == _CLOSING:
                if len(closers) == outermost or token[5] != closers[-1] or expect not in _CLOSABLE[token[5]]:
                    break
                closers.pop()
                levels.pop()
                expect = _Expect.COMMA_OR_END
            elif kind == _COMMA:
                if expect is not _Expect.COMMA_OR_END:
                    break
                expect = _Expect.KEY if closers[-1] == "}" else _Expect.VALUE
            elif expect not in (_WITH_KEY if token[1] is not None else _WITHOUT_KEY):
                break
            elif kind == _PLAIN:
                expect = _Expect.COMMA_OR_END
            elif kind == _PLAIN_AND_COMMA:
                expect = _Expect.KEY if closers[-1] == "}" else _Expect.VALUE
            elif len(closers) < self._max_depth:
                closers.append("}" if token[4] == "{" else "]")
                levels.append(None)
                expect = _Expect.KEY_OR_END if token[4] == "{" else _Expect.VALUE_OR_END
            else:
                break
            at = token.end()
        self._expect = expect
        return at

    def _close(self, character: str, at: int) -> tuple[Signal | None, int]:
        if character != self._closers[-1]:
            return Signal.BROKEN, at
        self._closers.pop()
        self._levels.pop()
        return (self._end_value() if self._closers else Signal.DONE), at + 1

    def _read_key(self, character: str, at: int) -> tuple[Signal | None, int]:
        if self._opens_string(character):
            self._is_key = True
            self._open_string(character, keep=self._levels[-1] is not None)
            return None, at + 1
        if self._expect is _Expect.KEY_OR_END or self.lenient:
            return self._close(character, at)
        return Signal.BROKEN, at

    def _read_value(self, text: str, at: int) -> tuple[Signal | None, int]:
        character = self._narrow(text[at])
        if character.isalpha():
            return self._read_constant(text, at)
        if character == "]" and self._closers and self._closers[-1] == "]":
            allowed = self._expect is _Expect.VALUE_OR_END or self.lenient
            return self._close(character, at) if allowed else (Signal.BROKEN, at)
        if self._begins_input(character):
            return Signal.INPUT, at
        if character in "{[":
            return self._open(character, at)
        if not self._closers:
            return Signal.BROKEN, at
        if self._opens_string(character):
            self._is_key = False
            self._open_string(character, keep=self._in_action() and self._key in NAME_KEYS)
            return None, at + 1
        if character in "-0123456789":
            self._number = ""
            return None, at
        return Signal.BROKEN, at

    def _open(self, character: str, at: int) -> tuple[Signal | None, int]:
        if len(self._closers) >= self._max_depth:
            return Signal.TOO_DEEP, at
        outermost = not self._closers and not self._plain
        in_list = bool(self._levels) and self._levels[-1] is not None and self._closers[-1] == "]"
        wrapped = self._in_action() and self._key in WRAPPER_KEYS
        self._levels.append(set() if outermost or in_list or wrapped else None)
        self._closers.append("}" if character == "{" else "]")
        self._expect = _Expect.KEY_OR_END if character == "{" else _Expect.VALUE_OR_END
        return None, at + 1

    def _read_constant(self, text: str, at: int) -> tuple[Signal | None, int]:
        """Read `true`, `null`, …; one that the text cuts in two is left for the next call."""
        end = _WORD.match(text, at).end()  # type: ignore[union-attr]
        if not self._closers:
            return Signal.BROKEN, at
        if end == len(text) and end - at < 6:
            return Signal.MORE, at
        word = text[at:end]
        if word not in _CONSTANTS and not (self.lenient and word in _PYTHON_CONSTANTS):
            self.not_finite = word.startswith(_NOT_FINITE)
            return Signal.BROKEN, at
        return (Signal.INPUT, at) if self._begins_input("t") else (self._end_value(), end)

    def _read_number(self, text: str, at: int) -> tuple[Signal | None, int]:
        end = _WORD.match(text, at).end()  # type: ignore[union-attr]
        assert self._number is not None
        if len(self._number) < _LONGEST_KEPT:
            self._number += text[at : min(end, at + _LONGEST_KEPT)]
        if end == len(text):
            return None, end
        number, self._number = self._number, None
        if _NUMBER.match(number):
            return self._end_value(), end
        self.not_finite = number.startswith(_NOT_FINITE)
        return Signal.BROKEN, end

    def _skip_comment(self, text: str, at: int) -> tuple[Signal | None, int]:
        if self._comment == "/":  # the second character says which kind it is
            if text[at] not in "/*":
                return Signal.BROKEN, at
            self._comment = "line" if text[at] == "/" else "block"
            return None, at + 1
        if self._comment == "block*" and text[at] == "/":
            self._comment = ""
            return None, at + 1
        end = text.find("\n" if self._comment == "line" else "*", at)
        if self._comment == "line":
            self._comment = "" if end >= 0 else "line"
        else:
            self._comment = "block*" if end >= 0 else "block"
        return None, end + 1 or len(text)

    # -------------------------------------------------------------------------------------------- strings

    def _opens_string(self, character: str) -> bool:
        return character == '"' or (character in "'“" and self.lenient)

    def _open_string(self, quote: str, *, keep: bool) -> None:
        self._quote = "”" if quote == "“" else quote
        self._kept = [] if keep else None
        self._kept_size = 0

    def _read_string(self, text: str, at: int) -> tuple[Signal | None, int]:
        """Read up to the end of the string or of the text."""
        start = at
        if self._escaped:
            self._escaped = False
            at += 1
        body = _BODY[self._quote] if self.lenient else _STRICT_BODY
        end = at = body.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            self._keep(text[start:end])
            return None, at
        if text[at] == "\\":  # the last character: the pattern takes whole escapes
            self._escaped = True
            self._keep(text[start : at + 1])
            return None, at + 1
        self._keep(text[start:end])
        if text[at] != self._quote:
            return Signal.BROKEN, at
        self._quote = ""
        return self._end_string(), at + 1

    def _keep(self, piece: str) -> None:
        if self._kept is not None:
            self._kept_size += len(piece)
            self._kept.append(piece)
            if self._kept_size > _LONGEST_KEPT:
                self._kept = None

    def _end_string(self) -> Signal | None:
        kept, self._kept = self._kept, None
        text = StringDecoder().feed("".join(kept)) if kept is not None else ""
        if self._is_key:
            self._key = text
            self._expect = _Expect.COLON
            seen = self._levels[-1]
            if seen is not None and (text in NAME_KEYS or text in INPUT_KEYS):
                if text in seen:
                    self.duplicate = text
                seen.add(text)
            return None
        if kept is not None and not self.name and text.strip():
            self.name = text.strip()
            return self._end_value() or Signal.NAME
        return self._end_value()

    # -------------------------------------------------------------------------------------------- the input

    def _in_action(self) -> bool:
        """True if the innermost container is an object that may hold a name and an input."""
        return bool(self._levels) and self._levels[-1] is not None and self._closers[-1] == "}"

    def _begins_input(self, character: str) -> bool:
        if self.has_input or self._key not in INPUT_KEYS or not self._in_action():
            return False
        self.has_input = True
        self._input_depth = len(self._closers)
        self.input_is_string = self._opens_string(character)
        return True

    def _end_value(self) -> Signal | None:
        self._expect = _Expect.COMMA_OR_END
        if self._input_depth == len(self._closers):
            self._input_depth = -1
            return Signal.INPUT_END
        return None


class StringDecoder:
    """Decode the inside of a JSON string in pieces.

    An escape, or half a surrogate pair, is held back until it is complete. What is not a valid escape is kept as it
    is, so that nothing is lost.
    """

    _ESCAPE = re.compile(
        r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\(.)", re.DOTALL
    )
    _UNFINISHED = re.compile(r"\\(?:u(?:[0-9a-fA-F]{0,3}|[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?))?\Z")

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> str:
        """Return what can be decoded so far."""
        text = self.held + text
        end = self._unfinished(text)
        self.held = text[end:]
        return self._ESCAPE.sub(self._decode, text[:end]) if "\\" in text else text

    def flush(self) -> str:
        """Return what was held back."""
        held, self.held = self.held, ""
        return self._ESCAPE.sub(self._decode, held)

    def _unfinished(self, text: str) -> int:
        """The position of an escape that the text cuts in two, or the text's length."""
        first = max(0, len(text) - 12)
        found = self._UNFINISHED.search(text, first)
        while found is not None:
            start = found.start()
            if (start - len(text[:start].rstrip("\\"))) % 2 == 0:  # the backslash is not itself escaped
                return start
            found = self._UNFINISHED.search(text, start + 1)
        return len(text)

    def _decode(self, found: re.Match[str]) -> str:
        high, low, single, simple = found.groups()
        if high:
            return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
        if single:
            return chr(int(single, 16))
        return _SIMPLE.get(simple, "\\" + simple)
