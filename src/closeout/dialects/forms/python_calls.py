"""Python-style calls, `name(key=value, …)`, read by an own scanner: literals only, nothing is ever evaluated."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from closeout.dialects.forms.source import Source
from closeout.dialects.forms.toolbox import Toolbox
from closeout.messages import Repair, ToolCall

__all__ = ["CALL_START", "read_call", "read_calls"]

_NAME = re.compile(r"[^\W\d][\w-]{0,127}(?:\.[^\W\d][\w-]{0,127}){0,8}+")
_KEY = re.compile(r"\s*([^\W\d]\w{0,127})\s{0,16}=(?!=)")
_NUMBER = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F]{1,64}|(?:\d[\d_]{0,399}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,5})?)"
)
_WORD = re.compile(r"[^\W\d]\w*")
_BLANK = re.compile(r"(?:\s|#[^\n]*\n|\\\n)*+")
_ESCAPE = re.compile(r"\\(?:(\n)|([\\'\"abfnrtv0])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_STRING = re.compile(r"([rRbBuU]{0,2})('''|\"\"\"|'|\")")
_REST = {
    "'": re.compile(r"[^'\\\n]*+(?:\\.[^'\\\n]*+)*+'", re.DOTALL),
    '"': re.compile(r'[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"', re.DOTALL),
    "'''": re.compile(r"(?:[^'\\]|\\.|'(?!''))*+'''", re.DOTALL),
    '"""': re.compile(r'(?:[^"\\]|\\.|"(?!""))*+"""', re.DOTALL),
}
_LITERALS = {
    "True": True, "False": False, "None": None, "true": True, "false": False, "null": None,
}  # fmt: skip
_PLAIN = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_MAX_DEPTH = 64
CALL_START = re.compile(_NAME.pattern + r"\s{0,4}\(")


class _NotACall(Exception):
    """The text is no call in this form; caught in this module."""


@dataclass(slots=True)
class _Scanner:
    """Reads from `at` on. Every method either moves `at` behind what it read or raises `_NotACall`."""

    text: str
    at: int
    repairs: list[Repair] = field(default_factory=list)

    def blank(self) -> None:
        found = _BLANK.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def accept(self, mark: str) -> bool:
        self.blank()
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def take(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise _NotACall
        self.at = found.end()
        return found

    def call(self) -> tuple[str, list[Any], dict[str, Any]]:
        name = self.take(_NAME)[0]
        if not self.accept("("):
            raise _NotACall
        positional: list[Any] = []
        named: dict[str, Any] = {}
        while not self.accept(")"):
            key = _KEY.match(self.text, self.at)
            if key:
                self.at = key.end()
                if key[1] in named:
                    raise _NotACall
                named[key[1]] = self.value(0)
            elif named or (self.accept("**") and not self.text.startswith("{", self.at)):
                raise _NotACall
            else:
                positional.append(self.value(0))
            if not self.accept(","):
                if not self.accept(")"):
                    raise _NotACall
                break
        return name, positional, named

    def value(self, depth: int) -> Any:
        self.blank()
        mark = self.text[self.at : self.at + 1]
        if depth > _MAX_DEPTH or not mark:
            raise _NotACall
        if mark == "{":
            return self.mapping(depth)
        if mark in "[(":
            return self.sequence(mark, depth)
        if _STRING.match(self.text, self.at):
            return self.strings()
        number = _NUMBER.match(self.text, self.at)
        if number:
            self.at = number.end()
            return _as_number(number[0])
        word = self.take(_WORD)[0]
        if word not in _LITERALS:
            raise _NotACall
        return _LITERALS[word]

    def sequence(self, mark: str, depth: int) -> Any:
        self.at += 1
        items: list[Any] = []
        trailing = False
        while not self.accept(_CLOSERS[mark]):
            items.append(self.value(depth + 1))
            trailing = self.accept(",")
            if not trailing:
                if not self.accept(_CLOSERS[mark]):
                    raise _NotACall
                break
        return items[0] if mark == "(" and len(items) == 1 and not trailing else items

    def mapping(self, depth: int) -> Any:
        self.at += 1
        entries: dict[str, Any] = {}
        while not self.accept("}"):
            key = self.value(depth + 1)
            if not self.accept(":") or isinstance(key, list | dict):
                raise _NotACall
            entries[key if isinstance(key, str) else str(key)] = self.value(depth + 1)
            if not self.accept(","):
                if not self.accept("}"):
                    raise _NotACall
                break
        return entries

    def strings(self) -> str:
        """One string literal, or several side by side, which Python joins."""
        parts: list[str] = []
        while opening := _STRING.match(self.text, self.at):
            prefix, quote = opening[1].lower(), opening[2]
            self.at = opening.end()
            body = self.take(_REST[quote])[0][: -len(quote)]
            parts.append(body if "r" in prefix else _ESCAPE.sub(_unescape, body))
            self.blank()
        return "".join(parts)


def _unescape(found: re.Match[str]) -> str:
    if found[1]:
        return ""
    if found[2]:
        return _PLAIN.get(found[2], found[2])
    code = int(found[3] or found[4] or found[5], 16)
    return chr(code) if code < 0x110000 else found[0]


def _as_number(text: str) -> int | float:
    text = text.replace("_", "")
    if text.lower().lstrip("+-").startswith("0x"):
        return int(text, 16)
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _NotACall
    return number


def read_call(source: Source, at: int, toolbox: Toolbox) -> tuple[ToolCall, tuple[Repair, ...], int] | None:
    """The call that begins at `at`, its repairs and where it ends; None if there is none."""
    scanner = _Scanner(source.text, at)
    if source.exhausted:
        return None
    try:
        name, positional, named = scanner.call()
    except _NotACall:
        return None
    finally:
        source.spend(scanner.at - at)
    name = toolbox.resolve(name)
    repairs: tuple[Repair, ...] = ()
    if positional:
        parameters = [key for key in toolbox.properties(name) if key not in named]
        if len(positional) == 1 and isinstance(positional[0], dict) and not named and len(parameters) != 1:
            named = positional[0]
        elif len(positional) > len(parameters):
            return None
        else:
            named = {**dict(zip(parameters, positional, strict=False)), **named}
        repairs = (Repair("positional_arguments", "arguments", after=", ".join(named)[:80]),)
    return ToolCall(name, named, "", toolbox.server(name), source.text[at : scanner.at]), repairs, scanner.at


def read_calls(source: Source, at: int, toolbox: Toolbox) -> tuple[list[ToolCall], list[Repair], int] | None:
    """One call, or several between `[` and `]`, or one under the other. None if any of them is not one."""
    text = source.text
    scanner = _Scanner(text, at)
    bracket = scanner.accept("[")
    calls: list[ToolCall] = []
    repairs: list[Repair] = []
    while True:
        scanner.blank()
        if bracket and calls and text.startswith("]", scanner.at):
            return calls, repairs, scanner.at + 1
        read = read_call(source, scanner.at, toolbox)
        if read is None:
            return (calls, repairs, at) if calls and not bracket else None
        calls.append(read[0])
        repairs += read[1]
        at = scanner.at = read[2]
        separated = scanner.accept(",") or (not bracket and scanner.accept(";"))
        scanner.blank()
        if bracket and not separated and not text.startswith("]", scanner.at):
            return None
        if not bracket and not CALL_START.match(text, scanner.at):
            return calls, repairs, at
