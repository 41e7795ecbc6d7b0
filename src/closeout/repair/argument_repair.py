"""Repair a call's arguments until they satisfy the tool's JSON Schema, or say in one sentence what to send instead.

Valid arguments are never touched, and what is returned without errors is valid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from closeout.codec import without_surrogates
from closeout.messages import Repair
from closeout.parsing.json_text import repair_json
from closeout.parsing.numbers import may_be_inexact, plain_numbers, read_with_digits
from closeout.repair.digits import settled, too_large
from closeout.repair.fitting import Fitting
from closeout.repair.schema_rules import SchemaRules, nests_deeper, short

__all__ = ["RepairedArguments", "repair_arguments", "signature"]

MAX_ARGUMENTS = 10_000  # arguments of one call, far more than any real call has
_MAX_LENGTH = 400  # characters of a whole diagnostic
_MAX_MEMBERS = 12  # arguments named in a diagnostic

_WRAPPERS = ("arguments", "parameters", "args", "kwargs", "input", "params", "tool_input", "properties")
_BESIDE_WRAPPER = frozenset(("name", "tool", "tool_name", "type", "function", "id", "server_name"))
# Repairs that guess which part of a text is the JSON: a plain text argument may have been meant unchanged.
_DOUBTFUL_READING = frozenset(("surrounding_text", "call_syntax", "unquoted_string", "concatenated"))
# An object, a list or positional arguments: never one value as it is written.
_STRUCTURED = re.compile(r"""\s*+(?:[{\[｛［]|[(（]\s*+["'“])""")
_GUESSES = frozenset(("argument_synonym", "argument_dropped", "lone_value"))


class RepairedArguments(NamedTuple):
    """The arguments to call with, the repairs that were made, and why they cannot be used.

    Without errors the arguments satisfy the schema. With errors (one sentence for the model) the arguments are the
    ones that were passed in, and `repairs` is empty.
    """

    arguments: Any
    repairs: tuple[Repair, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if there are arguments to call with."""
        return not self.errors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """The arguments of `repair_arguments`, the schema compiled."""

    schema: SchemaRules
    aliases: Mapping[str, tuple[str, ...]] | None
    defaults: Mapping[str, Any] | None
    drop_unknown: bool | tuple[str, ...]


def repair_arguments(
    arguments: Mapping[str, Any] | str | Any,
    schema: Mapping[str, Any] | SchemaRules,
    aliases: Mapping[str, tuple[str, ...]] | None = None,
    *,
    defaults: Mapping[str, Any] | None = None,
    drop_unknown: bool | tuple[str, ...] = False,
    written: str = "",
    truncated: bool = False,
) -> RepairedArguments:
    """Return arguments that satisfy `schema`, or one sentence that tells the model what to send instead.

    Args:
        arguments: An object, or the model's text for one. Valid arguments are returned as the same object.
        schema: The tool's JSON Schema.
        aliases: Other names that models give a parameter.
        defaults: Values for required parameters that models leave out.
        drop_unknown: Drop arguments that the tool does not have, unless they resemble one that it has. For read-only
            tools: without the argument, a call with effects may do more than was asked for. Names: only these.
        written: The JSON text that `arguments` was read from, where it is known. A number keeps its digits by it where
            the schema asks for a text: `3.10` is not "3.1".
        truncated: The text was cut off, so that it must be complete as it is.

    Returns:
        The arguments, the repairs and the errors. Never raises for any arguments.

    Raises:
        ToolDefinitionError: If `schema` is not a JSON Schema.
    """
    rules = _Rules(
        schema=schema if isinstance(schema, SchemaRules) else SchemaRules.of(schema),
        aliases=aliases,
        defaults=defaults,
        drop_unknown=drop_unknown,
    )
    if isinstance(arguments, str):
        return _from_text(arguments, rules, truncated)
    return _from_value(arguments, rules, written)


def _from_value(arguments: Any, rules: _Rules, written: str = "") -> RepairedArguments:
    if isinstance(arguments, Mapping):
        if len(arguments) > MAX_ARGUMENTS:
            problem = f"A call may have at most {MAX_ARGUMENTS:,} arguments, got {len(arguments):,}"
            return RepairedArguments(arguments, (), (f"{problem}; send {signature(rules.schema)}.",))
        if not may_be_inexact(written) and rules.schema.accepts(arguments):
            return RepairedArguments(arguments)
    if nests_deeper(arguments):
        return RepairedArguments(arguments, (), (diagnose(arguments, rules.schema),))
    exact = read_with_digits(written, arguments) if written else arguments
    valid = isinstance(exact, Mapping) and rules.schema.accepts(plain_numbers(exact))
    fitted = RepairedArguments(exact) if valid else _fitted(exact, rules)
    try:
        used = settled(fitted.arguments, rules.schema, repaired=not valid) if fitted.ok else exact
    except ValueError as error:
        problem = f"The number {short(str(error), 40)[1:-1]} must be written as a whole number, without a point."
        return RepairedArguments(arguments, (), (problem,))
    if (number := too_large(used)) is not None:
        problem = f"The number {short(number, 40)[1:-1]} is too large; send a smaller one."
        return RepairedArguments(arguments, (), (problem,))
    if not fitted.ok:
        return fitted._replace(arguments=arguments)
    used = plain_numbers(used)
    return fitted._replace(arguments=arguments if valid and used == arguments else used)


def _from_text(text: str, rules: _Rules, truncated: bool) -> RepairedArguments:
    """Arguments still in the model's own text: JSON, nothing at all, or the only argument without its name."""
    if not text.strip() and not truncated:
        empty = _from_value({}, rules)
        if empty.errors:
            return RepairedArguments(text, (), empty.errors)
        return empty._replace(repairs=(Repair("empty_arguments", "arguments"), *empty.repairs))
    read = repair_json(text, truncated=truncated)
    read = read._replace(value=without_surrogates(read.value))  # as in JSON that needs no repair
    doubtful = not read.ok or any(repair.kind in _DOUBTFUL_READING for repair in read.repairs)
    if read.ok and (isinstance(read.value, dict | list) or read.value is None):
        fitted = _from_value(read.value, rules, text)
        guessed = doubtful and any(repair.kind in _GUESSES for repair in fitted.repairs)
        if fitted.ok and not guessed:
            return fitted._replace(repairs=read.repairs + fitted.repairs)
        if not doubtful:
            return RepairedArguments(text, (), fitted.errors)
    if not truncated and not (_STRUCTURED.match(text) or _names_parameter(text, rules.schema)):
        # A scalar is the only argument, as it is written: "00501" is a text before it is a number.
        quoted = read.ok and not read.repairs and isinstance(read.value, str)
        lone = _fitted(read.value if quoted else text, rules)
        if lone.ok:
            return lone
    if read.ok:
        return RepairedArguments(text, (), (diagnose(read.value, rules.schema),))
    return RepairedArguments(
        text, (), (f"The arguments cannot be read, {read.error}; send {signature(rules.schema)}.",)
    )


def _fitted(arguments: Any, rules: _Rules) -> RepairedArguments:
    """Arguments that do not satisfy the schema as they are: the first reading of them that can be made to."""
    schema, fitted = rules.schema.schema, arguments
    for reading, repairs in _readings(arguments, rules.schema):
        fitting = Fitting(rules.schema, drop_unknown=rules.drop_unknown)
        fitted = fitting.fit_object(reading, schema, "arguments", aliases=rules.aliases, defaults=rules.defaults)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                fitted = fitting.fit(fitted, {key: schema[key]}, "arguments")
        if rules.schema.accepts(plain_numbers(fitted)):
            return RepairedArguments(fitted, (*repairs, *fitting.repairs))
    # The diagnosis leaves out what would have been repaired.
    return RepairedArguments(arguments, (), (diagnose(fitted, rules.schema),))


def _readings(arguments: Any, rules: SchemaRules) -> list[tuple[Mapping[str, Any], tuple[Repair, ...]]]:
    """Return the objects that the arguments may mean, likeliest first."""
    if isinstance(arguments, Mapping):
        readings: list[tuple[Mapping[str, Any], tuple[Repair, ...]]] = []
        for wrapper in _WRAPPERS:
            if wrapper in arguments and _only_wraps(arguments, wrapper, rules):
                inner = arguments[wrapper]
                inner = repair_json(inner).value if isinstance(inner, str) else inner
                if isinstance(inner, dict):
                    readings.append((inner, (Repair("unwrapped", f"arguments.{wrapper}", wrapper, after=""),)))
        return [*readings, (arguments, ())]
    if arguments is None:
        return [({}, (Repair("null_dropped", "arguments", "null", after="{}"),))]
    if isinstance(arguments, list) and len(arguments) == 1 and isinstance(arguments[0], dict):
        return [(arguments[0], (Repair("list_to_value", "arguments"),))]
    lone = _lone_parameter(rules)
    found: list[tuple[Mapping[str, Any], tuple[Repair, ...]]] = []
    if lone is not None:
        repair = Repair("lone_value", f"arguments.{lone}", short(arguments), after=lone)
        found.append(({lone: arguments}, (repair,)))
    if arguments in ([], ""):  # an empty object of PHP, and no arguments that were encoded twice
        found.append(({}, (Repair("empty_arguments", "arguments", short(arguments), after="{}"),)))
    return found


def _only_wraps(arguments: Mapping[str, Any], wrapper: str, rules: SchemaRules) -> bool:
    own = rules.shape.properties
    return all(name not in own and (name == wrapper or name in _BESIDE_WRAPPER) for name in arguments)


def _names_parameter(text: str, rules: SchemaRules) -> bool:
    """True if a text begins with a parameter's name, as in `key: x` and `look(key="x")`: more than the bare value."""
    found = re.match(r"\s*+(?:[\w.]+\s*\(\s*)?[\"']?(\w+)[\"']?\s*[:=]", text)
    return found is not None and found[1] in rules.shape.properties


def _lone_parameter(rules: SchemaRules) -> str | None:
    """The parameter that a bare value must be meant for: the only one, or the only required one."""
    names = list(rules.shape.properties) if len(rules.shape.properties) == 1 else list(rules.shape.required)
    return names[0] if len(names) == 1 else None


# ------------------------------------------------------------------------------------------ diagnosis


def signature(rules: SchemaRules) -> str:
    """Return what a tool takes, in few words: `{"q": string, …}`. The dots are optional arguments."""
    shape = rules.shape
    members = [f'"{name}": {_type_words(rules, shape.properties.get(name))}' for name in shape.required[:_MAX_MEMBERS]]
    if len(members) < len(shape.properties):
        members.append("…")
    return "{" + ", ".join(members) + "}"


def diagnose(arguments: Any, rules: SchemaRules) -> str:
    """Return what is wrong with arguments, in one sentence that says what to send."""
    text = f"{_problem(arguments, rules)}.".encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 2] + "…."


def _problem(arguments: Any, rules: SchemaRules) -> str:
    if isinstance(arguments, Mapping):
        missing = [f'"{name}"' for name in rules.shape.required if name not in arguments]
        if missing:
            given = ", ".join(f'"{name}"' for name in list(arguments)[:_MAX_MEMBERS])
            plural = "s" if len(missing) > 1 else ""
            shown = f" (given: {given})" if given else ""
            return f"Missing argument{plural} {', '.join(missing)}{shown}; send {signature(rules)}"
    error = rules.first_error(arguments)
    if error is not None:
        return _sentence(error, rules)
    return "The arguments do not fit the schema, nest too deeply or hold text that is not valid Unicode"


def _sentence(error: Any, rules: SchemaRules) -> str:
    where = _where(error.instance_path)
    value = short(error.instance)
    kind = error.kind.name
    if kind == "type":
        wanted = " or ".join(_article(str(name)) for name in _detail(error, "types") or ["value of another type"])
        send = "" if error.instance_path else f"; send {signature(rules)}"
        return f"{where} must be {wanted}, not {value}{send}"
    if kind == "enum":
        options = _detail(error, "options") or []
        listed = ", ".join(short(option, 30) for option in list(options)[:_MAX_MEMBERS])
        return f"{where} must be one of {listed}, not {value}"
    if kind == "required":
        return f'{where} lacks "{_detail(error, "property")}"'
    if kind == "additionalProperties":
        names = ", ".join(f'"{name}"' for name in list(_detail(error, "unexpected") or [])[:_MAX_MEMBERS])
        known = ", ".join(f'"{name}"' for name in list(rules.shape.properties)[:_MAX_MEMBERS])
        only = f"there is only {known}" if known else "send {}"
        return f"{where} may not have {names}" + ("" if error.instance_path else f"; {only}")
    if kind in ("anyOf", "oneOfNotValid"):
        part: Any = rules.schema
        for step in list(error.schema_path)[:-1]:
            part = part.get(step, {}) if isinstance(part, dict) else {}
        return f"{where} must be {_type_words(rules, part)}, not {value}"
    return f"{where} does not fit: {short(error.message, 160)[1:-1]}"


def _detail(error: Any, name: str) -> Any:
    return getattr(error.kind, name, None)


def _where(path: list[Any]) -> str:
    if not path:
        return "The arguments"
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f'Argument "{name.lstrip(".")}"'


def _article(kind: str) -> str:
    return f"an {kind}" if kind[:1] in "aeio" else kind if kind == "null" else f"a {kind}"


def _type_words(rules: SchemaRules, schema: Any) -> str:
    part = rules.resolve(schema)
    options = part.get("enum")
    if isinstance(options, list) and len(options) <= 8:
        return "|".join(short(option, 30) for option in options)
    kinds = sorted(rules.types_of(part), key=lambda kind: kind == "null")
    if kinds == ["array"]:
        inner = sorted(rules.types_of(part.get("items", {})))
        return f"array of {'|'.join(inner)}" if inner else "array"
    return "|".join(kinds) or "any"
