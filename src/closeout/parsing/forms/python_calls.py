"""Python-style tool calls, `name(key=value, …)`: a scanner for literals, and the forms built on it.

Nothing is evaluated, except arithmetic on number literals and the concatenation of string literals.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from closeout.messages import Repair, ToolCall
from closeout.parsing.forms.form import Block, Form, Found
from closeout.parsing.forms.json_calls import calls_in, read_json_run
from closeout.parsing.forms.json_values import BLANKS, SEPARATORS, Pairs, Source, load_at, refusal_of
from closeout.parsing.forms.offered import OfferedNames, kinds

__all__ = [
    "CALL_START",
    "PYTHONIC",
    "PYTHON_TAG",
    "CallNode",
    "NotACall",
    "PythonScanner",
    "TooDeep",
    "bind",
    "read_calls",
    "settled",
]

_NAME = re.compile(r"[^\W\d][\w-]{0,127}(?:\.[^\W\d][\w-]{0,127}){0,8}+")
_KEY = re.compile(r"""\s*+(["']?)([^\W\d]\w{0,127})\1\s{0,16}(=(?!=)|:)""")
_NUMBER = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F]{1,64}|(?:\d[\d_]{0,399}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,5})?)"
)
_WORD = re.compile(r"[^\W\d]\w*+")
_SPACE = re.compile(r"(?:\s|#[^\n]*\n|\\\n)*+")
_ESCAPE = re.compile(r"\\(?:(\n)|([\\'\"abfnrtv0])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_STRING = re.compile(r"([rRbBuU]{0,2})('''|\"\"\"|'|\")")
_REST = {
    "'": re.compile(r"[^'\\\n]*+(?:\\.[^'\\\n]*+)*+'", re.DOTALL),
    '"': re.compile(r'[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"', re.DOTALL),
    "'''": re.compile(r"(?:[^'\\]|\\.|'(?!''))*+'''", re.DOTALL),
    '"""': re.compile(r'(?:[^"\\]|\\.|"(?!""))*+"""', re.DOTALL),
}
_NEXT_ITEM = r"""(?=\s*+(?:[)\]}]|,\s*+(?:[^\W\d][\w.]{0,80}+\s?[=:(]|["'\[{(\d+-]|(?:True|False|None)\b|[)\]}])))"""
_LOOSE_END = {quote: re.compile(quote + _NEXT_ITEM) for quote in "\"'"}
_STRING_ENDS = ",)]}:+%.="
_EXPRESSION = re.compile(r"[^,()\[\]{}'\"\n]++")
_ARITHMETIC = re.compile(r"[\d\s.+\-*/%()eE_]{1,200}")
_PLACEHOLDER = re.compile(r"\.\.\.|…|<[^<>]{0,60}>")
_LITERALS = {
    "True": True, "False": False, "None": None, "true": True, "false": False, "null": None,
}  # fmt: skip
_PLAIN = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_VALUE_ENDS = ",)]}"
_MAX_DEPTH = 64
_MAX_EXPRESSION = 4000  # characters
_LONGEST_LOOSE = 8_000  # characters of a string with unescaped quotes
CALL_START = re.compile(_NAME.pattern + r"\s{0,4}\(")
_QUOTED_CALL = re.compile(r"""(?P<quote>["'])(?P<name>""" + _NAME.pattern + r""")(?P=quote)\]?\s{0,4}(?=\()""")


class NotACall(Exception):
    """The text is not a call in this form. Caught by the callers of `PythonScanner`."""


class TooDeep(NotACall):
    """A literal is nested too deeply."""


class Written(str):
    """An argument written without quotes: a word or an expression, as it is in the text."""

    __slots__ = ()


@dataclass(slots=True)
class CallNode:
    """A call as written, before its arguments are bound to a tool's parameters."""

    name: str
    positional: list[Any]
    named: Pairs
    start: int
    end: int


@dataclass(slots=True)
class PythonScanner:
    """Reads from `at` on. Every method either moves `at` past what it read or raises NotACall."""

    text: str
    at: int
    repairs: list[Repair] = field(default_factory=list)
    looked: int = 0  # characters that were searched ahead of `at`

    def space(self) -> None:
        """Skip white space and comments."""
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def accept(self, mark: str) -> bool:
        """Skip white space and a mark, if the mark follows."""
        self.space()
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise NotACall
        self.at = found.end()
        return found

    def call(self) -> CallNode:
        """A call; its name may be in quotes."""
        start = self.at
        quoted = _QUOTED_CALL.match(self.text, self.at)
        if quoted:
            name, self.at = quoted["name"], quoted.end()
        else:
            name = self._take(_NAME)[0]
        if not self.accept("("):
            raise NotACall
        positional: list[Any] = []
        named = Pairs()
        while not self.accept(")"):
            key = _KEY.match(self.text, self.at)
            if key:
                self.at = key.end()
                value = self.value(0)
                if isinstance(value, Written) and (key[3] == ":" or value == key[2]):
                    raise NotACall  # a signature, not a call
                named.put(key[2], value)
            elif self.accept("**"):
                if not self.text.startswith("{", self.at):
                    raise NotACall
                unpacked = self._braces(0)
                for name_of, value in unpacked.items():
                    named.put(name_of, value)
                named.refusal = named.refusal or refusal_of(unpacked)
            elif named:
                raise NotACall
            else:
                positional.append(self.value(0))
            if not self.accept(","):
                if not self.accept(")"):
                    raise NotACall
                break
        return CallNode(name, positional, named, start, self.at)

    def value(self, depth: int, calls: bool = False) -> Any:
        """A literal, an expression as `Written`, or with `calls` a `CallNode`."""
        self.space()
        start, mark = self.at, self.text[self.at : self.at + 1]
        if depth > _MAX_DEPTH:
            raise TooDeep
        if not mark:
            raise NotACall
        if calls and (CALL_START.match(self.text, start) or _QUOTED_CALL.match(self.text, start)):
            return self.call()
        if mark == "{":
            value = self._braces(depth, calls)
        elif mark in "[(":
            value = self._sequence(mark, depth, calls)
        elif _STRING.match(self.text, start):
            value = self._strings()
        elif number := _NUMBER.match(self.text, start):
            self.at = number.end()
            value = _as_number(number[0])
        elif word := _WORD.match(self.text, start):
            self.at = word.end()
            value = _LITERALS.get(word[0], Written(word[0]))
        else:
            return self._expression()
        self.space()
        if self.text[self.at : self.at + 1] in _VALUE_ENDS:  # true at the end of the text as well
            return value
        self.at = start
        return self._expression()

    def _expression(self) -> Written:
        """Return the text up to the next comma or closing bracket."""
        start, depth = self.at, 0
        if _PLACEHOLDER.match(self.text, start):
            raise NotACall
        while self.at - start < _MAX_EXPRESSION:
            piece = _EXPRESSION.match(self.text, self.at)
            self.at = piece.end() if piece else self.at
            mark = self.text[self.at : self.at + 1]
            if mark in "\"'" and mark:
                self._strings()
                continue
            if mark in "([{" and mark:
                depth += 1
            elif not depth and mark in _VALUE_ENDS and mark:
                expression = self.text[start : self.at].strip()
                if not expression:
                    break
                return Written(expression)
            elif mark in ")]}" and mark:
                depth -= 1
            elif not mark or not depth:
                break
            self.at += 1
        raise NotACall

    def _sequence(self, mark: str, depth: int, calls: bool) -> Any:
        self.at += 1
        items: list[Any] = []
        trailing = False
        while not self.accept(_CLOSERS[mark]):
            items.append(self.value(depth + 1, calls))
            trailing = self.accept(",")
            if not trailing:
                if not self.accept(_CLOSERS[mark]):
                    raise NotACall
                break
        return items[0] if mark == "(" and len(items) == 1 and not trailing else items

    def _braces(self, depth: int, calls: bool = False) -> Any:
        """A dict, or a set as a list."""
        self.at += 1
        entries = Pairs()
        items: list[Any] = []
        while not self.accept("}"):
            start = self.at
            key = self._key()
            if key is not None and not items:
                entries.put(key, self.value(depth + 1))
            elif entries:
                raise NotACall
            else:
                self.at = start
                items.append(self.value(depth + 1, calls))
            if not self.accept(","):
                if not self.accept("}"):
                    raise NotACall
                break
        return items or (entries if entries.refusal else dict(entries))

    def _key(self) -> str | None:
        """A dict's key and its colon; None if an item of a set follows."""
        start = self.at
        try:
            if _STRING.match(self.text, start):
                key: Any = self._strings()
            else:
                number = _NUMBER.match(self.text, start)
                word = number or self._take(_WORD)
                self.at = word.end()
                key = str(_LITERALS.get(word[0], word[0]))
        except NotACall:
            return None
        return key if self.accept(":") else None

    def _strings(self) -> str:
        """One string literal, or several side by side, which Python joins."""
        parts: list[str] = []
        while opening := _STRING.match(self.text, self.at):
            prefix, quote = opening[1].lower(), opening[2]
            body = self._string_body(opening.end(), quote)
            parts.append(body if "r" in prefix else _ESCAPE.sub(_unescape, body) if "\\" in body else body)
            self.space()
        return "".join(parts)

    def _string_body(self, start: int, quote: str) -> str:
        """The text up to the closing quote: the first one, or the first that an item can follow."""
        text = self.text
        rest = _REST[quote].match(text, start)
        if rest:
            after = _SPACE.match(text, rest.end())
            following = text[after.end() : after.end() + 1] if after else ""
            if following in _STRING_ENDS or following in "\"'" or _STRING.match(text, rest.end()) or len(quote) == 3:
                self.at = rest.end()
                return text[start : rest.end() - len(quote)]
        if len(quote) == 1 and self.looked < _LONGEST_LOOSE:
            loose = _LOOSE_END[quote].search(text, start, start + _LONGEST_LOOSE)
            self.looked += (loose.end() if loose else min(len(text), start + _LONGEST_LOOSE)) - start
        else:
            loose = None
        if loose is None:
            if rest is None:
                raise NotACall
            self.at = rest.end()
            return text[start : rest.end() - 1]
        self.repairs.append(Repair("unescaped_quote" if rest else "raw_newline", "arguments", text[start : start + 24]))
        self.at = loose.end()
        return text[start : loose.start()]


def _unescape(found: re.Match[str]) -> str:
    if found[1]:
        return ""
    if found[2]:
        return _PLAIN.get(found[2], found[2])
    code = int(found[3] or found[4] or found[5], 16)
    return chr(code) if code < 0x110000 else found[0]


def _as_number(text: str) -> int | float | str:
    """A number, or the text of one that is written as a code: the schema may ask for a text."""
    digits = text.lstrip("+-")
    try:
        whole = int(text)
    except ValueError:
        whole = None
    if whole is not None or digits[:2].lower() == "0x" or "_" in text:
        return whole if whole is not None and str(whole) == text else text
    number = float(text)
    if not math.isfinite(number):
        raise NotACall
    return number


# ------------------------------------------------------------------------------------------------ expressions

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _computed(text: str) -> int | float | None:
    """The value of arithmetic on number literals, None if it is anything else."""
    if not _ARITHMETIC.fullmatch(text):
        return None
    try:
        value = _evaluated(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        return None
    return value if math.isfinite(value) else None


def _evaluated(node: ast.expr) -> int | float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _evaluated(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _evaluated(node.left), _evaluated(node.right)
        if max(abs(left), abs(right)) > 1e100:
            raise ValueError
        if isinstance(node.op, ast.Pow) and abs(right) <= 100 and abs(left) <= 1e6:
            power = left**right
            if isinstance(power, int | float):
                return power
        elif type(node.op) in _OPERATORS:
            result: int | float = _OPERATORS[type(node.op)](left, right)
            return result
    raise ValueError


def _joined(text: str) -> str | None:
    """The value of string literals joined by `+`, None if it is anything else."""
    scanner = PythonScanner(text, 0)
    parts: list[str] = []
    try:
        while _STRING.match(text, scanner.at):
            parts.append(scanner._strings())
            if not scanner.accept("+"):
                break
            scanner.space()
    except NotACall:
        return None
    return "".join(parts) if len(parts) > 1 and scanner.at >= len(text) else None


class _Settler:
    """Turns `Written` arguments into values of the declared types.

    Raises NotACall for an expression that no schema types, or that calls an offered tool.
    """

    def __init__(self, toolbox: OfferedNames, name: str) -> None:
        self._toolbox = toolbox
        self._root = toolbox.schema(name)
        self.repairs: list[Repair] = []

    def settled(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._object(arguments, self._root)

    def _object(self, value: dict[str, Any], schema: Any) -> dict[str, Any]:
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        known = properties if isinstance(properties, Mapping) else {}
        settled = {key: self._value(item, known.get(key)) for key, item in value.items()}
        return Pairs(settled.items(), refusal) if (refusal := refusal_of(value)) else settled

    def _value(self, value: Any, schema: Any) -> Any:
        if isinstance(value, Written):
            return self._expression(value, schema)
        if isinstance(value, dict):
            return self._object(value, schema)
        if isinstance(value, list):
            items = schema.get("items") if isinstance(schema, Mapping) else None
            return [self._value(item, items) for item in value]
        return value

    def _expression(self, written: Written, schema: Any) -> Any:
        if schema is None or any(self._toolbox.find(call[0][:-1]) for call in CALL_START.finditer(written)):
            raise NotACall
        allowed = kinds(schema, self._root)
        joined = _joined(written)
        computed = None if "string" in allowed else _computed(written)
        value = joined if joined is not None else computed if computed is not None else str(written)
        self.repairs.append(Repair("expression", "arguments", str(written)[:80], after=str(value)[:80]))
        return value


def bind(node: CallNode, toolbox: OfferedNames, text: str = "") -> tuple[ToolCall, list[Repair]]:
    """Bind a call's arguments to its tool's parameters.

    Raises:
        NotACall: There are more positional arguments than parameters, or an argument is itself a call.
    """
    name = toolbox.resolve(node.name)
    named: dict[str, Any] = node.named if node.named.refusal else dict(node.named)
    repairs: list[Repair] = []
    if node.positional:
        parameters = list(toolbox.properties(name))
        only = node.positional[0]
        if any(isinstance(value, Written) and _computed(value) is None for value in node.positional):
            raise NotACall  # prose or a signature
        if len(node.positional) == 1 and isinstance(only, dict) and not named and _holds_all(only, name, toolbox):
            named = only
        elif len(node.positional) > len(parameters):
            raise NotACall
        else:
            named = Pairs([*zip(parameters, node.positional, strict=False), *named.items()], node.named.refusal)
        repairs.append(Repair("positional_arguments", "arguments", after=", ".join(named)[:80]))
    settler = _Settler(toolbox, name)
    call = ToolCall(name, settler.settled(named), server_name=toolbox.server(name), text=text)
    return call, repairs + settler.repairs


def settled(call: ToolCall, toolbox: OfferedNames) -> ToolCall:
    """A call of a Python literal whose words and expressions are values of the declared types."""
    if not isinstance(call.arguments, dict):
        return call
    return replace(call, arguments=_Settler(toolbox, call.name).settled(call.arguments))


def _holds_all(value: dict[str, Any], name: str, toolbox: OfferedNames) -> bool:
    """True if a dict given as the only argument holds all arguments, rather than being one of them."""
    properties = toolbox.properties(name)
    return len(properties) != 1 or (bool(value) and all(key in properties for key in value))


def read_call(source: Source, at: int, toolbox: OfferedNames) -> tuple[ToolCall, tuple[Repair, ...], int] | None:
    """Return the call that begins at `at`, its repairs and its end, or None."""
    if source.exhausted:
        return None
    scanner = PythonScanner(source.text, at)
    try:
        node = scanner.call()
        call, repairs = bind(node, toolbox, source.text[at : node.end])
    except NotACall:
        return None
    finally:
        source.spend(scanner.at - at + 4 * scanner.looked)
    return call, (*scanner.repairs, *repairs), node.end


def read_calls(source: Source, at: int, toolbox: OfferedNames) -> tuple[list[ToolCall], list[Repair], int] | None:
    """One call, several between `[` and `]`, or one after another; None if any of them is not a call."""
    text = source.text
    scanner = PythonScanner(text, at)
    bracket = scanner.accept("[")
    calls: list[ToolCall] = []
    repairs: list[Repair] = []
    while True:
        scanner.space()
        if bracket and calls and text.startswith("]", scanner.at):
            return calls, repairs, scanner.at + 1
        read = read_call(source, scanner.at, toolbox)
        if read is None:
            return (calls, repairs, at) if calls and not bracket else None
        calls.append(read[0])
        repairs += read[1]
        at = scanner.at = read[2]
        separated = scanner.accept(",") or (not bracket and scanner.accept(";"))
        scanner.space()
        if bracket and not separated and not text.startswith("]", scanner.at):
            return None
        if not bracket and not CALL_START.match(text, scanner.at):
            return calls, repairs, at


# ------------------------------------------------------------------------------------------------ forms

_TAG = "<|python_tag|>"
_CODE_TOOLS = ("python", "code_interpreter", "ipython")
_LIST_START = re.compile(r"\[\s{0,64}" + CALL_START.pattern)


def read_marked(source: Source, toolbox: OfferedNames, opener: str, closer: str) -> Found:
    """Calls after the opening token, up to the closing token or the end of the text; JSON is accepted too."""
    blocks: list[Block] = []
    at = source.find(opener, 0)
    while at >= 0:
        block = _after_opener(source, toolbox, at, at + len(opener), closer=closer)
        blocks.append(block)
        at = source.find(opener, max(block.end, at + len(opener)))
    return Found(tuple(blocks))


def _after_opener(source: Source, toolbox: OfferedNames, start: int, at: int, *, closer: str) -> Block:
    text = source.text
    at = source.skip(BLANKS, at)
    if text[at : at + 1] == "{" or (text[at : at + 1] == "[" and not _LIST_START.match(text, at)):
        loaded, end = load_at(source, at)
        calls = calls_in(loaded.value, toolbox, explicit=bool(loaded.repairs)) if loaded else []
        repairs = list(loaded.repairs) if loaded else []
    else:
        read = read_calls(source, at, toolbox)
        calls, repairs, end = read or ([], [], None)
    stop = source.find(closer, end or at)
    if not calls or end is None or (stop >= 0 and text[end:stop].strip()):
        return Block(start, stop + len(closer) if stop >= 0 else len(text), broken="the calls cannot be read")
    return Block(start, stop + len(closer) if stop >= 0 else end, tuple(calls), tuple(repairs))


def read_python_tag(source: Source, toolbox: OfferedNames) -> Found:
    """After the tag: JSON calls, a Python-style call of a built-in tool, or code for a tool that runs code."""
    text = source.text
    blocks: list[Block] = []
    start = source.find(_TAG, 0)
    while start >= 0:
        at = source.skip(SEPARATORS, start + len(_TAG))
        following = source.find(_TAG, start + len(_TAG))
        stop = following if following >= 0 else len(text)
        blocks.append(read_json_run(source, toolbox, start, at) or _code(source, toolbox, start, at, stop=stop))
        start = source.find(_TAG, max(blocks[-1].end, start + len(_TAG)))
    return Found(tuple(blocks))


def _code(source: Source, toolbox: OfferedNames, start: int, at: int, *, stop: int) -> Block:
    read = read_calls(source, at, toolbox)
    if read and not source.text[read[2] : stop].strip().removesuffix("<|eom_id|>"):
        calls = tuple(
            ToolCall(call.name.removesuffix(".call"), call.arguments, server_name=call.server_name) for call in read[0]
        )
        if not toolbox or all(call.name in toolbox for call in calls):
            return Block(start, read[2], calls, tuple(read[1]))
    code = source.text[at:stop].strip()
    runner = next((name for name in _CODE_TOOLS if name in toolbox), None)
    if runner and code and code[:1] not in "{[":
        key = next(iter(toolbox.properties(runner)), "code")
        return Block(start, stop, (ToolCall(runner, {key: code}, server_name=toolbox.server(runner), text=code),))
    return Block(start, stop, broken="the text after the tag is not a call")


def _marked(family: str, opener: str, closer: str, **options: bool) -> Form:
    return Form(family, (opener,), partial(read_marked, opener=opener, closer=closer), **options)


PYTHONIC = (
    _marked("lfm2_pythonic", "<|tool_call_start|>", "<|tool_call_end|>", keeps_tail=True),
    _marked("pythonic", "<|python_start|>", "<|python_end|>"),
    _marked("pythonic", "<function_calls>", "</function_calls>"),
)
PYTHON_TAG = Form("llama3_json", (_TAG,), read_python_tag)
