"""Contracts for answers that are data: JSON and YAML, checked against a schema or a Python type.

How broken JSON is repaired is in `parsing`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from typing import Any, Generic, TypeAlias, overload

from closeout.answers.reading import Candidate, ContractReading, Problem, Value, failed, fenced_blocks, said, shorten
from closeout.codec import without_surrogates
from closeout.errors import UsageError
from closeout.messages import Constraint
from closeout.parsing.json_text import repair_json
from closeout.repair.schema_rules import short
from closeout.repair.schema_width import multiplies, too_wide
from closeout.results.normal import compact_json, normalise

__all__ = ["Json", "Yaml"]

_OPEN = re.compile(r"[{\[]")
# A string ends with its line at the latest, so that none is scanned twice.
_TOKEN = re.compile(r'"(?:[^"\\\n]++|\\.|\\\Z)*+(?:"|(?=\n)|\Z)|[{}\[\]]', re.DOTALL)
_MOST_PLACES = 100  # only the last pieces of JSON in a reply are read
_LONGEST_VALUE = 10_000  # characters of a reply that is one bare value
_MOST_TRIES = 8  # candidates that are read and checked, the last ones first
_MOST_PROBLEMS = 10  # the model is shown the first problems of an answer
_ABOUT_KEYS = frozenset({"missing", "required", "additionalProperties"})  # kinds of errors, of pydantic and JSON Schema
_OF_A_VALIDATOR = ("value_error", "assertion_error")  # the words are the user's; the value may be the whole answer
_BRACKET = re.compile(r"[\[\]{}]")
_DEEPEST_YAML = 100  # brackets; the YAML reader's time grows with the square of their depth
_MOST_YAML = 50_000  # characters; the YAML reader needs half a second for as many


_CheckValue: TypeAlias = Callable[[Any], tuple[Any, str]]
"""Returns (the typed value, "") or (None, what is wrong)."""


def _by_schema(schema: Mapping[str, Any], owner: str) -> _CheckValue:
    import jsonschema_rs

    if problem := too_wide(schema):
        raise UsageError(f"{owner} needs another JSON Schema: {problem}.")
    try:
        validator = jsonschema_rs.validator_for(dict(schema), mask="the value", offline=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise UsageError(f"{owner} needs a valid JSON Schema: {shorten(str(error), 200)}") from None

    def check(value: Any) -> tuple[Any, str]:
        try:
            if validator.is_valid(value):
                return value, ""
            if multiplies(schema, value):
                return None, "The answer does not fit its schema."
            found = list(islice(validator.iter_errors(value), _MOST_PROBLEMS + 1))
        except ValueError as error:
            return None, f"The answer does not fit. {shorten(str(error), 200)}."
        if not found:
            return value, ""
        return None, _listed(
            _Misfit(each.instance_path, each.message, each.instance, each.kind.name in _ABOUT_KEYS) for each in found
        )

    return check


def _by_type(wanted: Any, owner: str) -> tuple[Mapping[str, Any], _CheckValue]:
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(wanted)
        schema = adapter.json_schema()
    except (PydanticUserError, TypeError) as error:
        message = shorten(str(error), 200)
        raise UsageError(f"{owner} takes a JSON Schema (a dict), a pydantic model or a type: {message}") from None

    def check(value: Any) -> tuple[Any, str]:
        try:
            return adapter.validate_python(value), ""
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False)
            return None, _listed(
                _Misfit(
                    each["loc"],
                    each["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, "),
                    each["input"],
                    each["type"] in _ABOUT_KEYS or (not each["loc"] and each["type"] in _OF_A_VALIDATOR),
                )
                for each in found
            )

    return schema, check


@dataclass(frozen=True, slots=True)
class _Misfit:
    """A place where an answer does not fit. The message is about keys of the value, or about the value."""

    path: Sequence[str | int]
    message: str
    value: Any
    about_keys: bool

    def __str__(self) -> str:
        where = ".".join(shorten(str(step), 60) for step in self.path)
        value = "" if self.about_keys else f", got {short(self.value)}"
        return f"{where + ': ' if where else ''}{shorten(self.message, 200)}{value}"


def _listed(misfits: Iterable[_Misfit]) -> str:
    """Return the first of several problems as one line for the model."""
    found = list(islice(misfits, _MOST_PROBLEMS + 1))
    more = "; and more" if len(found) > _MOST_PROBLEMS else ""
    return f"The answer does not fit. {'; '.join(map(str, found[:_MOST_PROBLEMS]))}{more}."


class _Structured(Generic[Value]):
    """The base of `Json` and `Yaml`: a schema or a type that the answer must fit."""

    @overload
    def __init__(self: _Structured[Any]) -> None: ...

    @overload
    def __init__(self, wanted: type[Value]) -> None: ...

    @overload
    def __init__(self: _Structured[Any], wanted: Any) -> None: ...

    def __init__(self, wanted: Any = None) -> None:
        self._schema: Mapping[str, Any]
        self._check_value: _CheckValue
        if wanted is None:
            self._schema, self._check_value = {}, lambda value: (value, "")
        elif isinstance(wanted, Mapping):
            self._schema, self._check_value = wanted, _by_schema(wanted, type(self).__name__)
        else:
            self._schema, self._check_value = _by_type(wanted, type(self).__name__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({compact_json(self.schema)})"

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of the answer; empty when any value will do."""
        return self._schema

    def _check(self, value: Any) -> tuple[Any, str]:
        try:
            return self._check_value(without_surrogates(value))
        except RecursionError:
            return None, "The answer is nested too deeply."


class Json(_Structured[Value]):
    """The answer as JSON, alone, in a code fence or in prose; the last that fits wins.

    `wanted`: a JSON Schema as a dict, a pydantic model or any type that pydantic knows (`list[int]`), or None for any
    JSON. The value is the parsed JSON or, with a type, its instance. Text that is not strict JSON is repaired, and
    counts only if it then fits. Raises UsageError for an invalid schema.
    """

    @property
    def finish_prefix(self) -> str:
        return {"object": "{", "array": "["}.get(str(self.schema.get("type")), "")

    @cached_property
    def _wanted(self) -> str:
        return f" that fits this JSON Schema: {compact_json(dict(self.schema))}" if self.schema else ""

    def instruction(self) -> str:
        return f"End with the final answer as one JSON value{self._wanted}"

    def finishing(self) -> str:
        return f"Now write only the final answer, as one JSON value{self._wanted}"

    def constraint(self) -> Constraint | None:
        return Constraint("json_schema", self.schema, "answer") if self.schema else None

    def read(self, text: str) -> ContractReading[Value]:
        visible = said(text)
        candidates = _json_places(visible)
        problem: tuple[Problem, str] = ("missing", "There is no JSON in the reply.")
        for repaired in (False, True):
            for candidate in candidates[-1 : -_MOST_TRIES - 1 : -1]:
                found = repair_json(candidate.text)
                if not found.ok or (found.repairs and not repaired):
                    if problem[0] == "missing":
                        problem = ("unreadable", f"The JSON in the reply cannot be read: {found.error or 'malformed'}.")
                    continue
                value, wrong = self._check(found.value)
                if not wrong:
                    normal = compact_json(normalise(value))
                    return ContractReading(
                        value, normal, True, candidates=tuple(candidates), complete=candidate.complete
                    )
                if problem[0] != "violation":
                    problem = ("violation", wrong)
        return failed(*problem, tuple(candidates))


def _json_places(text: str) -> list[Candidate]:
    """Return where JSON may be, in reading order: brackets with all that is in them, or a bare value if that is all."""
    spans, opened = _brackets(text)
    places = [
        Candidate(text[start:end], start, end)
        for start, end in (_unboxed(text, *span) for span in spans[-_MOST_PLACES:])
    ]
    if opened is not None:
        # JSON that was cut off, or a lone bracket in prose.
        places.append(Candidate(text[opened:], opened, len(text), complete=False))
        places.sort(key=lambda place: place.start)
    if not places:
        whole = next((block.text for _, block in fenced_blocks(text)), text).strip()
        if len(whole) <= _LONGEST_VALUE and re.match(r'["\d-]|(?:true|false|null)\b', whole):
            places.append(Candidate(whole, 0, len(text)))
    return places


def _unboxed(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span of a bracket, and for `\\boxed{[…]}` that of the JSON in the box."""
    if text.endswith("\\boxed", 0, start) and text.startswith(("{", "["), start + 1):
        return start + 1, end - 1
    return start, end


def _brackets(text: str) -> tuple[list[tuple[int, int]], int | None]:
    """Return the spans of closed brackets that are in no other one, and the first bracket that is never closed."""
    spans: list[tuple[int, int]] = []
    stack: list[tuple[str, int]] = []
    token = _OPEN.search(text)
    while token:
        character = token[0][0]
        if character in "{[":
            stack.append((character, token.start()))
        elif stack and stack[-1][0] + character in ("{}", "[]"):
            start = stack.pop()[1]
            while spans and spans[-1][0] > start:
                spans.pop()
            spans.append((start, token.end()))
        # Quotes are prose outside of brackets and strings inside.
        token = (_TOKEN if stack else _OPEN).search(text, token.end())
    return spans, stack[0][1] if stack else None


class Yaml(_Structured[Value]):
    """The answer as a YAML mapping or list, in a code fence or alone; the last fence wins.

    `wanted` as in `Json`. The value is what the safe loader makes of it (dates are dates), the text is the YAML as
    written. Anchors are refused: they can blow a short text up without bound.
    """

    @property
    def finish_prefix(self) -> str:
        return "```yaml\n"

    @cached_property
    def _wanted(self) -> str:
        return f" Its content must fit this JSON Schema: {compact_json(dict(self.schema))}" if self.schema else ""

    def instruction(self) -> str:
        return f"End with the final answer as YAML in a ```yaml code block.{self._wanted}"

    def finishing(self) -> str:
        return f"Now write only the final answer, as YAML in a ```yaml code block.{self._wanted}"

    def constraint(self) -> Constraint | None:
        return None

    def read(self, text: str) -> ContractReading[Value]:
        visible = said(text)
        blocks = [block for language, block in fenced_blocks(visible) if language in ("yaml", "yml", "")]
        if not blocks and re.match(r"\s*(?:---\s*\n|- |[\w.-]{1,60}\s*:(?:\s|\Z))", visible):
            blocks = [Candidate(visible.strip(), 0, len(visible))]
        if not blocks:
            return failed("missing", "There is no ```yaml block in the reply.")
        candidates = tuple(blocks)
        problem: tuple[Problem, str] = ("empty", "The YAML block is empty.")
        for block in candidates[-1 : -_MOST_TRIES - 1 : -1]:
            value, wrong = _load_yaml(block.text)
            if wrong:
                problem = ("unreadable", wrong) if problem[0] == "empty" else problem
                continue
            checked, wrong = self._check(normalise(value) if self.schema else value)
            if not wrong:
                return ContractReading(checked, block.text, True, candidates=candidates, complete=block.complete)
            problem = ("violation", wrong)
        return failed(*problem, candidates)


def _deepest(text: str) -> int:
    """Return how many brackets are open at once, those in strings too."""
    return max(accumulate(1 if bracket in "[{" else -1 for bracket in _BRACKET.findall(text)), default=0)


def _load_yaml(text: str) -> tuple[Any, str]:
    import yaml

    if len(text) > _MOST_YAML:
        return None, f"The YAML in the reply is longer than {_MOST_YAML:,} characters."
    if _deepest(text) > _DEEPEST_YAML:
        return None, "The YAML in the reply is nested too deeply."
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            return None, "The YAML in the reply uses anchors; write every value out."
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at its line {mark.line + 1}" if mark else ""
        return (
            None,
            f"The YAML in the reply cannot be read{where}: {shorten(getattr(error, 'problem', '') or 'malformed')}.",
        )
    if not isinstance(value, dict | list):
        return None, "The YAML in the reply is neither a mapping nor a list."
    return value, ""
