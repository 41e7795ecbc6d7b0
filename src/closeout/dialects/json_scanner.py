"""A pushdown automaton over the JSON of one action: where it ends, its name and its input, while it still streams in.

It finds borders and refuses what cannot be JSON; the value itself is read afterwards, by `react_action`.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from closeout.dialects.action_keys import INPUT_KEYS, NAME_KEYS, WRAPPER_KEYS
from closeout.dialects.json_steps import ARRAY_STEPS, BLANKS, OBJECT_STEPS, Expect
from closeout.dialects.string_decoder import StringDecoder

__all__ = ["JsonScanner", "Signal"]

_SPACE = re.compile(f"[{BLANKS}]*+")
_WORD = re.compile(r"[\w.+\-]*+")
_BODY = {quote: re.compile(rf"[^{quote}\\]*+(?:\\.[^{quote}\\]*+)*+", re.DOTALL) for quote in "\"'"}
_STRICT_BODY = re.compile(r'[^"\\\n]*+(?:\\.[^"\\\n]*+)*+', re.DOTALL)
_STOP = {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}
_NUMBER = re.compile(r"-?[0-9][0-9.eE+\-]*+\Z")
_WORDS = {"t": "true", "f": "false", "n": "null"}
_ENDS = frozenset(BLANKS + ",]}")  # what shows that a word has ended
_CONSTANTS = frozenset({"true", "false", "null"})
_PYTHON_CONSTANTS = frozenset({"True", "False", "None"})
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
        self._expect = Expect.VALUE
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
        return not self._quote and not self._comment and self._expect is Expect.COMMA_OR_END

    @property
    def string_ends(self) -> re.Pattern[str] | None:
        """What ends the open string, or must be looked at in it; None if no string is open, or its text matters."""
        if not self._quote or self._escaped or self._kept is not None or not self.lenient:
            return None
        return _STOP[self._quote]

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
            elif self._levels and self._levels[-1] is None:
                at = self._inside(text, at)
                signal, at = self._one(text, at) if at < size and not self._within_token() else (None, at)
            else:
                signal, at = self._one(text, at)
            if signal is not None:
                return signal, at
        return Signal.MORE, at

    def _one(self, text: str, at: int) -> tuple[Signal | None, int]:
        """Blanks and one token, or its beginning."""
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            return None, at
        return self._constant(text, at) if text[at].isalpha() else self._token(text[at], at)

    def _within_token(self) -> bool:
        return bool(self._quote) or self._number is not None

    # -------------------------------------------------------------------------------------------- strings

    def _string(self, text: str, at: int) -> int:
        """Up to the end of the string or of the text."""
        start = at
        if self._escaped:
            self._escaped = False
            at += 1
        body = _BODY[self._quote] if self.lenient else _STRICT_BODY
        end = at = body.match(text, at).end()  # type: ignore[union-attr]
        if at < len(text):
            if text[at] == self._quote:
                self._quote = ""
                at += 1
            elif text[at] == "\\":  # the last character, as the body takes whole escapes
                self._escaped = True
                end = at = at + 1
            else:
                self._refused = True
        self._keep(text, start, end)
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
            self._expect = Expect.COLON
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

    def _inside(self, text: str, at: int) -> int:
        """Past what is simple inside an input, where no name and no input key can be: as far as nothing is to be told.

        May end in an open string; else before what it leaves to the others.
        """
        closers, levels, expect, size = self._closers, self._levels, self._expect, len(text)
        table = OBJECT_STEPS if closers[-1] == "}" else ARRAY_STEPS
        outermost = levels.index(None) + 1  # containers open in the last one whose end is left to the others
        while at < size:
            character = text[at]
            following = table[expect].get(character)
            if following is None:
                expect = self._odd(character, expect)
                break
            if character == '"':
                end = self._short_string(text, at, expect)
                if end < 0:
                    at += 1
                    break
                at = end
            elif character in "tfn":
                end = at + len(_WORDS[character])
                if text[at:end] != _WORDS[character] or text[end : end + 1] not in _ENDS:
                    break
                at = end - 1
            elif character in "{[":
                if len(closers) >= self._max_depth:
                    break
                closers.append("}" if character == "{" else "]")
                levels.append(None)
                table = OBJECT_STEPS if character == "{" else ARRAY_STEPS
            elif character in "}]":
                if len(closers) == outermost:
                    expect = Expect.COMMA_OR_END if expect is Expect.NUMBER else expect
                    break
                closers.pop()
                levels.pop()
                table = OBJECT_STEPS if closers[-1] == "}" else ARRAY_STEPS
            expect = following
            at += 1
        self._expect = expect
        return at

    def _short_string(self, text: str, at: int, expect: Expect) -> int:
        """Where a string without escapes ends; -1 if it is not of that kind: then it is open now."""
        end = text.find('"', at + 1)
        if end >= 0 and self.lenient and text.find("\\", at, end) < 0:
            return end
        self._is_key = expect is Expect.KEY or expect is Expect.KEY_OR_END
        self._begin_string('"', keep=False)
        return -1

    def _odd(self, character: str, expect: Expect) -> Expect:
        """What is expected where a character stands that the table does not know."""
        if expect < Expect.DIGIT:
            return expect
        if expect is Expect.NUMBER and not character.isalnum() and character != "_":
            return Expect.COMMA_OR_END
        self._number = "x"  # what began like a number is none; `_digits` finds its end
        return Expect.VALUE

    def _constant(self, text: str, at: int) -> tuple[Signal | None, int]:
        """`true`, `null`, …; one that the text cuts in two is left for the next call."""
        end = _WORD.match(text, at).end()  # type: ignore[union-attr]
        if self._expect not in (Expect.VALUE, Expect.VALUE_OR_END) or not self._closers:
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
        if expect is Expect.COMMA_OR_END:
            return self._comma_or_end(character, at)
        if expect is Expect.COLON:
            if character != ":":
                return Signal.BROKEN, at
            self._expect = Expect.VALUE
            return None, at + 1
        if expect is Expect.KEY or expect is Expect.KEY_OR_END:
            return self._key_or_end(character, at)
        return self._value(character, at)

    def _comma_or_end(self, character: str, at: int) -> tuple[Signal | None, int]:
        if character == ",":
            self._expect = Expect.KEY if self._closers[-1] == "}" else Expect.VALUE
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
        if self._expect is Expect.KEY_OR_END or self.lenient:
            return self._end(character, at)
        return Signal.BROKEN, at

    def _value(self, character: str, at: int) -> tuple[Signal | None, int]:
        if self._closers and self._closers[-1] == "]" and character == "]":
            allowed = self._expect is Expect.VALUE_OR_END or self.lenient
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
        self._expect = Expect.KEY_OR_END if character == "{" else Expect.VALUE_OR_END
        return None, at + 1

    def _opens_string(self, character: str) -> bool:
        return character == '"' or (character == "'" and self.lenient)

    def _begin_string(self, quote: str, *, keep: bool) -> None:
        self._quote = quote
        self._kept = [] if keep else None
        self._kept_size = 0

    def _value_ended(self) -> Signal | None:
        self._expect = Expect.COMMA_OR_END
        if self._input_depth == len(self._closers):
            self._input_depth = -1
            return Signal.INPUT_END
        return None


def _decoded(text: str) -> str:
    if "\\" not in text:
        return text
    return StringDecoder().feed(text)
