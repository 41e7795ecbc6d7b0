"""Reads one or more values from text that is almost JSON, naming every liberty taken. Linear time, no recursion.

Strings are read in `json_strings`; which texts are worth reading so is decided in `json_text`.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from closeout.messages import Repair
from closeout.repair.json_strings import KEY, QUOTES, Ambiguous, Broken, Effort, Role, read_string
from closeout.repair.json_words import is_atom, read_word
from closeout.repair.notes import Notes

__all__ = ["MAX_DEPTH", "STRICT", "Scanner"]

MAX_DEPTH = 128  # levels of nesting that are read with repairs; strict JSON may nest as deep as the parser allows
_STEPS = 3_000  # values, brackets and doubtful quotes for texts up to 64 kB; longer texts get their share


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


STRICT = json.JSONDecoder(parse_constant=_refuse)

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
    """One pass over one text. `values` are the root values read so far, `repairs` what was put right, once a kind."""

    def __init__(self, text: str, position: int = 0) -> None:
        self.text = text
        self.position = position
        self.values: list[Any] = []
        self._notes = Notes(text)
        self._stack: list[dict[str, Any] | list[Any]] = []
        self._keys: list[str] = []
        self._open: dict[type, int] = {dict: 0, list: 0}
        self._after_value = False
        self._after_comma = False
        self._effort = Effort(max(_STEPS, len(text) * _STEPS // 65_536))
        self._strict_budget = 4 * len(text) + 256  # characters that failed strict readings may cost in all

    @property
    def repairs(self) -> tuple[Repair, ...]:
        return self._notes.repairs

    def note(self, kind: str, position: int | None = None) -> None:
        """Records a repair at a position, by default where the scanner stands."""
        self._notes.add(kind, self.position if position is None else position)

    def noted(self, kind: str) -> bool:
        return kind in self._notes

    def read_value(self) -> None:
        """Reads one root value; raises Broken if there is none or it makes no sense."""
        self._value(self.skip(), "root")
        while self._stack:
            self._effort.spend(self.position)
            self._step()

    def reopen(self) -> bool:
        """After an object that was closed too early, when its members go on: continues it."""
        if (
            not self.values
            or not isinstance(self.values[-1], dict)
            or not _MORE_MEMBERS.match(self.text, self.position)
        ):
            return False
        self.note("extra_bracket", self.position - 1)
        self._push(self.values[-1])
        self._after_value = True
        while self._stack:
            self._effort.spend(self.position)
            self._step()
        return True

    def skip(self) -> str:
        """The next character that means something, "" at the end; the position moves to it."""
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
        character = self.skip()
        equals = _EQUALS.match(self.text, self.position)
        if equals:
            self.note("missing_colon")
            self.position = equals.end()
        elif character == ":":
            self.position += 1
        elif character in ",}]" or character == "":
            raise Broken(f'a colon and a value after the key "{key[:40]}"', self.position)
        else:
            self.note("missing_colon")
        character = self.skip()
        if character in ",}" or character == "":
            self.note("missing_value")
            self._put(None)
        else:
            self._value(character, "listed_member" if self._is_listed() else "member")

    def _put_clean(self, found: re.Match[str]) -> bool:
        """A whole plain member at once: most of a long text is such, and one match is the cheapest way."""
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
        """A member's key, or None when what stands there was something else that could be passed over."""
        if character in QUOTES:
            key = self._string("key")
            if key.lstrip()[:1] in _NO_KEY_STARTS and key.strip():  # a quote that belongs into the string before it
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
                value, self.position = STRICT.raw_decode(self.text, self.position)
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
        """A Python literal such as r"\\d+"; a word that merely lost its opening quote is none."""
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
        if not token or token[0] in ":=)":
            raise Broken("a value", self.position)
        if role == "root":
            token = token.rstrip(" ;)`")
            if not is_atom(token, loosely=True):
                raise Broken("an object", self.position)
        value, repairs = read_word(token)
        for repair in repairs:
            self.note(repair)
        self.position = end
        self._put(value)

    # ------------------------------------------------------------------------------------------ the stack

    def _put(self, value: Any) -> None:
        self._after_value = True
        if not self._stack:
            self.values.append(value)
            return
        container = self._stack[-1]
        if isinstance(container, dict):
            container[self._keys[-1]] = value
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
