"""`repair_arguments`: a call's arguments against the tool's JSON Schema. Valid ones are never touched.

Repairs go towards validity only: what is returned without errors satisfies the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from closeout.messages import Repair
from closeout.repair.argument_types import Fitting
from closeout.repair.diagnosis import diagnose, signature
from closeout.repair.json_text import repair_json
from closeout.repair.schema import SchemaRules, nests_deeper, short

__all__ = ["RepairedArguments", "repair_arguments"]

_WRAPPERS = ("arguments", "parameters", "args", "kwargs", "input", "params", "tool_input", "properties")
_BESIDE_WRAPPER = frozenset(("name", "tool", "tool_name", "type", "function", "id", "server_name"))
# Repairs that guess which part of a text is the JSON: a plain text argument may have been meant as it stands.
_DOUBTFUL_READING = frozenset(("surrounding_text", "call_syntax", "unquoted_string", "concatenated"))
_GUESSES = frozenset(("argument_leftover", "argument_spelling", "argument_dropped", "lone_value"))


class RepairedArguments(NamedTuple):
    """The arguments to call with, the repairs that made them so, and why they cannot be used.

    Without errors the arguments satisfy the schema. With errors (one sentence for the model) they are as they were
    given and `repairs` is empty.
    """

    arguments: Any
    repairs: tuple[Repair, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.errors


def repair_arguments(
    arguments: Mapping[str, Any] | str | Any,
    schema: Mapping[str, Any] | SchemaRules,
    aliases: Mapping[str, tuple[str, ...]] | None = None,
    *,
    defaults: Mapping[str, Any] | None = None,
    drop_unknown: bool = True,
    truncated: bool = False,
) -> RepairedArguments:
    """Arguments that satisfy `schema`, or one sentence that tells the model what to send instead.

    `arguments` is an object, or the model's text for one. `aliases` maps a parameter to other names that models give
    it; `defaults` fills required parameters that models leave out. `drop_unknown=False` refuses a call with arguments
    that the tool does not have, instead of dropping them (for calls with side effects). `truncated` is
    `repair_json`'s. Valid arguments come back as the same object. Never raises for any arguments; raises
    ToolDefinitionError if `schema` is no JSON Schema.
    """
    rules = schema if isinstance(schema, SchemaRules) else SchemaRules.of(schema)
    if isinstance(arguments, str):
        return _from_text(arguments, rules, aliases, defaults, drop_unknown, truncated)
    if (type(arguments) is dict or isinstance(arguments, Mapping)) and rules.accepts(arguments):
        return RepairedArguments(arguments)
    return _fitted(arguments, rules, aliases, defaults, drop_unknown)


def _from_text(
    text: str,
    rules: SchemaRules,
    aliases: Mapping[str, tuple[str, ...]] | None,
    defaults: Mapping[str, Any] | None,
    drop_unknown: bool,
    truncated: bool,
) -> RepairedArguments:
    """Arguments still in the model's own text: JSON to be read, nothing at all, or the only argument, bare."""
    if not text.strip() and not truncated:
        empty = repair_arguments({}, rules, aliases, defaults=defaults)
        if empty.errors:
            return RepairedArguments(text, (), empty.errors)
        return empty._replace(repairs=(Repair("empty_arguments", "arguments"), *empty.repairs))
    read = repair_json(text, truncated=truncated)
    doubtful = not read.ok or any(repair.kind in _DOUBTFUL_READING for repair in read.repairs)
    if read.ok:
        fitted = repair_arguments(read.value, rules, aliases, defaults=defaults, drop_unknown=drop_unknown)
        guessed = doubtful and any(repair.kind in _GUESSES for repair in fitted.repairs)
        if fitted.ok and not guessed:
            return fitted._replace(repairs=read.repairs + fitted.repairs)
        if not doubtful:
            return RepairedArguments(text, (), fitted.errors)
    if not truncated and text.lstrip()[:1] not in ("{", "["):
        lone = _fitted(text, rules, aliases, defaults, drop_unknown)
        if lone.ok:
            return lone
    if read.ok:
        return RepairedArguments(text, (), (diagnose(read.value, rules),))
    return RepairedArguments(text, (), (f"The arguments cannot be read, {read.error}; send {signature(rules)}.",))


def _fitted(
    arguments: Any,
    rules: SchemaRules,
    aliases: Mapping[str, tuple[str, ...]] | None,
    defaults: Mapping[str, Any] | None,
    drop_unknown: bool,
) -> RepairedArguments:
    """Arguments that do not satisfy the schema as they are: the first reading of them that can be made to."""
    if nests_deeper(arguments):
        return RepairedArguments(arguments, (), (diagnose(arguments, rules),))
    for reading, repairs in _readings(arguments, rules):
        fitting = Fitting(rules, drop_unknown=drop_unknown)
        fitted = fitting.fit_object(reading, rules.schema, "arguments", aliases=aliases, defaults=defaults)
        for key in ("anyOf", "oneOf"):
            if key in rules.schema:
                fitted = fitting.fit(fitted, {key: rules.schema[key]}, "arguments")
        if rules.accepts(fitted):
            return RepairedArguments(fitted, (*repairs, *fitting.repairs))
    return RepairedArguments(arguments, (), (diagnose(arguments, rules),))


def _readings(arguments: Any, rules: SchemaRules) -> list[tuple[Mapping[str, Any], tuple[Repair, ...]]]:
    """What object the arguments may mean, likeliest first."""
    if isinstance(arguments, Mapping):
        readings: list[tuple[Mapping[str, Any], tuple[Repair, ...]]] = []
        for wrapper in _WRAPPERS:
            if wrapper in arguments and wrapper not in rules.shape.properties and _only_wraps(arguments, wrapper):
                inner = arguments[wrapper]
                inner = repair_json(inner).value if isinstance(inner, str) else inner
                if isinstance(inner, dict):
                    readings.append((inner, (Repair("unwrapped", f"arguments.{wrapper}", wrapper, ""),)))
        return [*readings, (arguments, ())]
    if arguments is None:
        return [({}, (Repair("null_dropped", "arguments", "null", "{}"),))]
    if isinstance(arguments, list) and len(arguments) == 1 and isinstance(arguments[0], dict):
        return [(arguments[0], (Repair("list_to_value", "arguments"),))]
    lone = _lone_parameter(rules)
    if lone is None:
        return []
    repair = Repair("lone_value", f"arguments.{lone}", short(arguments), lone)
    return [({lone: arguments}, (repair,))]


def _only_wraps(arguments: Mapping[str, Any], wrapper: str) -> bool:
    return all(name == wrapper or name in _BESIDE_WRAPPER for name in arguments)


def _lone_parameter(rules: SchemaRules) -> str | None:
    """The parameter that a bare value must be meant for: the only one, or the only required one."""
    names = list(rules.shape.properties) if len(rules.shape.properties) == 1 else list(rules.shape.required)
    return names[0] if len(names) == 1 else None
