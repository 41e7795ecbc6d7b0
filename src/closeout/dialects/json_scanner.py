"""A pushdown automaton over the JSON of one action: where it ends, its name and its input, while it still streams in.

It finds borders and refuses what cannot be JSON; the value itself is read afterwards, by `react_action`.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from closeout.dialects.action_keys import INPUT_KEYS, NAME_KEYS, WRAPPER_KEYS
from closeout.dialects.string_decoder import StringDecoder

__all__ = ["JsonScanner", "Signal"]

_SPACE = re.compile(r"[ \t\r\n\ufeff]*+")
_WORD = re.compile(r"[\w.+\-]*+")
_STRICT_STOP = re.compile(r'["\\\n]')
_STOP = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}
_NUMBER = re.compile(r"-?\d[\d.eE+\-]*+\Z")
_CONSTANTS = frozenset({"true", "false", "null"})
_PYTHON_CONSTANTS = frozenset({"True", "False", "None"})
# Members and elements that need no second look, each with the comma behind it, as many as there are: scalars, and
# containers of scalars. Possessive throughout, so a run that fails is not tried again in another way.
_STRING = r'"(?:[^"\\\n]++|\\[^\n])*+"'
_SCALAR = rf"(?:{_STRING}|-?\d[\d.eE+\-]*+(?=[\s,\]}}])|true\b|false\b|null\b)"
_MEMBER = rf"{_STRING}\s*+:\s*+{_SCALAR}\s*+"
_FLAT_OBJECT = rf"\{{\s*+(?:{_MEMBER}(?:,\s*+{_MEMBER})*+)?+\}}"
_FLAT_LIST = rf"\[\s*+(?:{_SCALAR}\s*+(?:,\s*+{_SCALAR}\s*+)*+)?+\]"
_FLAT = rf"(?:{_SCALAR}|{_FLAT_OBJECT}|{_FLAT_LIST})"
_MEMBERS = re.compile(rf"(?:\s*+{_STRING}\s*+:\s*+{_FLAT}\s*+,)++")
_ELEMENTS = re.compile(rf"(?:\s*+{_FLAT}\s*+,)++")
_LONGEST_KEPT = 256  # characters of a key or a name; longer ones are no key or name of ours


class Signal(Enum):
    """Why `scan` came back."""

    MORE = auto()  # all text is used up
    NAME = auto()  # `name` is known
    INPUT = auto()  # the input's value begins here
    INPUT_END = auto()  # and ended here
    DONE = auto()  # the whole value is complete
    BROKEN = auto()  # this character cannot stand here
    TOO_DEEP = auto()


class _Expect(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


class JsonScanner:
    """Scans one JSON object or array, in pieces of any size.

    `lenient` lets pass what rule 11 of the parser may put right: single quotes, Python constants, raw newlines in
    strings, comments, trailing commas. `plain` scans a value that is an input itself and so has no name and input keys.
    """

    def __init__(self, *, lenient: bool = True, plain: bool = False, max_depth: int = 128) -> None:
        self.lenient = lenient
        self.name = ""
        self.has_input = False
        self.duplicate = ""  # a name or input key that stands twice in one action
        self.input_is_string = False
        self._plain = plain
        self._max_depth = max_depth
        self._expect = _Expect.VALUE
        self._closers: list[str] = []  # of the open containers
        self._levels: list[set[str] | None] = []  # for containers that hold action keys: those seen; else None
        self._quote = ""
        self._escaped = False
        self._refused = False  # a raw newline in a string, where that is not let pass
        self._is_key = False
        self._kept: list[str] | None = None  # pieces of the string that is being read, if it matters
        self._kept_size = 0
        self._number: str | None = None
        self._comment = ""
        self._key = ""
        self._input_depth = -1  # number of open containers around the input while it is being read

    @property
    def closable(self) -> bool:
        """Whether nothing is missing but closing brackets."""
        return not self._quote and not self._comment and self._expect is _Expect.COMMA_OR_END

    def scan(self, text: str, at: int) -> tuple[Signal, int]:
        """Goes on at a position until something is to be told. Returns what, and the position after it."""
        size = len(text)
        while at < size:
            if self._quote:
                at = self._string(text, at)
                if not self._quote or self._refused:
                    signal = self._after_string()
                    if signal is not None:
                        return signal, at
                continue
            if self._number is not None:
                signal, at = self._digits(text, at)
            elif self._comment:
                signal, at = self._skip_comment(text, at)
            else:
                at = _SPACE.match(text, self._run(text, at)).end()  # type: ignore[union-attr]
                if at == size:
                    break
                if text[at].isalpha():
                    signal, at = self._constant(text, at)
                else:
                    signal, at = self._token(text[at], at)
            if signal is not None:
                return signal, at
        return Signal.MORE, at

    # -------------------------------------------------------------------------------------------- strings

    def _string(self, text: str, at: int) -> int:
        """Up to the end of the string or of the text."""
        start = at
        stop = _STOP[self._quote] if self.lenient else _STRICT_STOP
        size = len(text)
        while at < size:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = stop.search(text, at)
            if found is None:
                at = size
                break
            at = found.start()
            if text[at] == "\\":
                self._escaped = True
                at += 1
            elif text[at] == "\n":
                self._refused = True
                break
            else:
                self._keep(text, start, at)
                self._quote = ""
                return at + 1
        self._keep(text, start, at)
        return at

    def _keep(self, text: str, start: int, end: int) -> None:
        if self._kept is not None and end > start:
            self._kept_size += end - start
            if self._kept_size > _LONGEST_KEPT:
                self._kept = None
            else:
                self._kept.append(text[start:end])

    def _after_string(self) -> Signal | None:
        if self._refused:
            return Signal.BROKEN
        kept, self._kept = self._kept, None
        text = _decoded("".join(kept)) if kept is not None else ""
        if self._is_key:
            self._key = text
            self._note_key(text)
            self._expect = _Expect.COLON
            return None
        if kept is not None and not self.name and text.strip():
            self.name = text.strip()
            return self._value_ended() or Signal.NAME
        return self._value_ended()

    def _note_key(self, key: str) -> None:
        seen = self._levels[-1]
        if seen is not None and (key in NAME_KEYS or key in INPUT_KEYS):
            if key in seen:
                self.duplicate = key
            seen.add(key)

    # -------------------------------------------------------------------------------------------- the rest

    def _run(self, text: str, at: int) -> int:
        """Past simple members or elements, if that is what comes. Only where no name or input can be among them."""
        if not self._levels or self._levels[-1] is not None or len(self._levels) >= self._max_depth:
            return at
        if self._closers[-1] == "}":
            here, run, after = (_Expect.KEY, _Expect.KEY_OR_END), _MEMBERS, _Expect.KEY
        else:
            here, run, after = (_Expect.VALUE, _Expect.VALUE_OR_END), _ELEMENTS, _Expect.VALUE
        found = run.match(text, at) if self._expect in here else None
        if found is None:
            return at
        self._expect = after
        return found.end()

    def _constant(self, text: str, at: int) -> tuple[Signal | None, int]:
        """`true`, `null`, …; one that the text cuts in two is left for the next call."""
        end = _WORD.match(text, at).end()  # type: ignore[union-attr]
        if self._expect not in (_Expect.VALUE, _Expect.VALUE_OR_END) or not self._closers:
            return Signal.BROKEN, at
        if end == len(text) and end - at < 6:
            return Signal.MORE, at
        if not self._known(text[at:end]):
            return Signal.BROKEN, at
        signal = self._input_begins("t")
        return (signal, at) if signal else (self._value_ended(), end)

    def _known(self, word: str) -> bool:
        return word in _CONSTANTS or (self.lenient and word in _PYTHON_CONSTANTS)

    def _digits(self, text: str, at: int) -> tuple[Signal | None, int]:
        end = _WORD.match(text, at).end()  # type: ignore[union-attr]
        assert self._number is not None
        if len(self._number) < _LONGEST_KEPT:
            self._number += text[at : min(end, at + _LONGEST_KEPT)]
        if end == len(text):
            return None, end
        number, self._number = self._number, None
        return (self._value_ended(), end) if _NUMBER.match(number) else (Signal.BROKEN, end)

    def _skip_comment(self, text: str, at: int) -> tuple[Signal | None, int]:
        if self._comment == "/":  # its second character says which kind it is
            if text[at] not in "/*":
                return Signal.BROKEN, at
            self._comment = "line" if text[at] == "/" else "block"
            return None, at + 1
        if self._comment == "line":
            end = text.find("\n", at)
            if end >= 0:
                self._comment = ""
            return None, (end + 1 or len(text))
        if self._comment == "block*" and text[at] == "/":
            self._comment = ""
            return None, at + 1
        end = text.find("*", at)
        self._comment = "block*" if end >= 0 else "block"
        return None, (end + 1 or len(text))

    def _token(self, character: str, at: int) -> tuple[Signal | None, int]:
        expect = self._expect
        if character in "/#":
            if not self.lenient:
                return Signal.BROKEN, at
            self._comment = "/" if character == "/" else "line"
            return None, at + 1
        if expect is _Expect.COMMA_OR_END:
            return self._comma_or_end(character, at)
        if expect is _Expect.COLON:
            if character != ":":
                return Signal.BROKEN, at
            self._expect = _Expect.VALUE
            return None, at + 1
        if expect is _Expect.KEY or expect is _Expect.KEY_OR_END:
            return self._key_or_end(character, at)
        return self._value(character, at)

    def _comma_or_end(self, character: str, at: int) -> tuple[Signal | None, int]:
        if character == ",":
            self._expect = _Expect.KEY if self._closers[-1] == "}" else _Expect.VALUE
            return None, at + 1
        return self._end(character, at)

    def _end(self, character: str, at: int) -> tuple[Signal | None, int]:
        if character != self._closers[-1]:
            return Signal.BROKEN, at
        self._closers.pop()
        self._levels.pop()
        return (self._value_ended() if self._closers else Signal.DONE), at + 1

    def _key_or_end(self, character: str, at: int) -> tuple[Signal | None, int]:
        if self._opens_string(character):
            self._is_key = True
            self._begin_string(character, keep=self._levels[-1] is not None)
            return None, at + 1
        if self._expect is _Expect.KEY_OR_END or self.lenient:
            return self._end(character, at)
        return Signal.BROKEN, at

    def _value(self, character: str, at: int) -> tuple[Signal | None, int]:
        if self._closers and self._closers[-1] == "]" and character == "]":
            allowed = self._expect is _Expect.VALUE_OR_END or self.lenient
            return self._end(character, at) if allowed else (Signal.BROKEN, at)
        signal = self._input_begins(character)
        if signal:
            return signal, at
        in_action = self._in_action()
        if character in "{[":
            return self._open(character, at, in_action)
        if not self._closers:
            return Signal.BROKEN, at
        if self._opens_string(character):
            self._is_key = False
            self._begin_string(character, keep=in_action and self._key in NAME_KEYS)
            return None, at + 1
        if character in "-0123456789":
            self._number = ""
            return None, at
        return Signal.BROKEN, at

    def _in_action(self) -> bool:
        """Whether the innermost container is an object that may hold a name and an input."""
        return bool(self._levels) and self._levels[-1] is not None and self._closers[-1] == "}"

    def _input_begins(self, character: str) -> Signal | None:
        if self.has_input or self._key not in INPUT_KEYS or not self._in_action():
            return None
        self.has_input = True
        self._input_depth = len(self._closers)
        self.input_is_string = self._opens_string(character)
        return Signal.INPUT

    def _open(self, character: str, at: int, in_action: bool) -> tuple[Signal | None, int]:
        if len(self._closers) >= self._max_depth:
            return Signal.TOO_DEEP, at
        outermost = not self._closers and not self._plain
        in_list = bool(self._levels) and self._levels[-1] is not None and self._closers[-1] == "]"
        wrapped = in_action and self._key in WRAPPER_KEYS
        self._levels.append(set() if outermost or in_list or wrapped else None)
        self._closers.append("}" if character == "{" else "]")
        self._expect = _Expect.KEY_OR_END if character == "{" else _Expect.VALUE_OR_END
        return None, at + 1

    def _opens_string(self, character: str) -> bool:
        return character == '"' or (character == "'" and self.lenient)

    def _begin_string(self, quote: str, *, keep: bool) -> None:
        self._quote = quote
        self._kept = [] if keep else None
        self._kept_size = 0

    def _value_ended(self) -> Signal | None:
        self._expect = _Expect.COMMA_OR_END
        if self._input_depth == len(self._closers):
            self._input_depth = -1
            return Signal.INPUT_END
        return None


def _decoded(text: str) -> str:
    if "\\" not in text:
        return text
    return StringDecoder().feed(text)
