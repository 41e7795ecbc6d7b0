"""A tool's JSON Schema, compiled once: whether a call satisfies it, which parameters it has, which types they take."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from closeout.errors import BrokenDependency, ToolDefinitionError
from closeout.parsing.numbers import plain_numbers
from closeout.repair.schema_width import multiplies, too_wide

if TYPE_CHECKING:
    import jsonschema_rs

__all__ = ["ObjectShape", "SchemaRules", "fits_plainly", "kind_of", "map_schemas", "nests_deeper", "short"]

MAX_ARGUMENT_DEPTH = 200  # levels; far beyond any real call, far below what overflows a validator's stack
_MAX_REFS = 16  # references followed one after another
_MAX_MERGED = 64  # schemas that one object may be made of through allOf

# Where a schema holds others: by name, in a list, alone.
_BY_NAME = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_IN_LIST = ("anyOf", "oneOf", "allOf", "prefixItems")
_ALONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_DEEPEST = 60  # levels of a schema; deeper ones become `{}`

_KINDS = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
    tuple: "array",
    type(None): "null",
}


def kind_of(value: Any) -> str:
    """Return the JSON type of a value; a float without a fraction counts as an integer, as JSON Schema says."""
    kind = _KINDS.get(type(value))
    if kind is None:
        kind = "object" if isinstance(value, Mapping) else "number" if isinstance(value, float) else "unknown"
    return "integer" if kind == "number" and value.is_integer() else kind


def nests_deeper(value: Any) -> bool:
    """Tell whether lists and objects in the value nest deeper than calls may. Does not recurse."""
    level = [value]
    for _ in range(MAX_ARGUMENT_DEPTH):
        below: list[Any] = []
        for item in level:
            for part in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
                if type(part) is dict or type(part) is list:
                    below.append(part)  # noqa: PERF401  # the hot path of every call: no generator for flat arguments
        if not below:
            return False
        level = below
    return True


def map_schemas(schema: Any, change: Callable[[Mapping[str, Any]], Mapping[str, Any]], depth: int = 0) -> Any:
    """Return a schema with each schema in it changed, the innermost first; the same object if nothing changes.

    Plain data in it is left alone.
    """
    if not isinstance(schema, Mapping):
        return schema
    if depth > _DEEPEST:
        return {}
    found: dict[str, Any] = {}
    for key, value in schema.items():
        new = value
        if key in _BY_NAME and isinstance(value, Mapping):
            new = {name: map_schemas(each, change, depth + 1) for name, each in value.items()}
            new = value if all(new[name] is value[name] for name in value) else new
        elif key in _IN_LIST and isinstance(value, list):
            new = [map_schemas(each, change, depth + 1) for each in value]
            new = value if all(a is b for a, b in zip(new, value, strict=True)) else new
        elif key in _ALONE:
            new = map_schemas(value, change, depth + 1)
        if new is not value:
            found[key] = new
    return change({**schema, **found} if found else schema)


def fits_plainly(arguments: Mapping[str, Any], kinds: Mapping[str, Any], required: frozenset[str]) -> bool:
    """Tell whether each argument is exactly of its name's Python type, and none is missing. False decides nothing.

    Nearly every call of nearly every tool is settled by this. Text beyond ASCII is not: it may hold lone surrogates.
    """
    for name, value in arguments.items():
        kind = type(value)
        if kinds.get(name) is not kind or (kind is str and not value.isascii()):
            return False
    return required <= arguments.keys()


def short(value: Any, limit: int = 60) -> str:
    """Return a value for a record or a message: JSON where possible, one line, bounded."""
    if isinstance(value, str):
        value = value if len(value) <= limit else value[: limit - 1] + "…"
    elif isinstance(value, Mapping | list | tuple):
        return f"{kind_of(value)} with {len(value)} items" if len(value) > 4 else _json(value, limit)
    return _json(value, limit)


def _json(value: Any, limit: int) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(type(value).__name__)
    return text if len(text) <= limit + 2 else text[: limit - 1] + "…"


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """The members of an object schema. `closed`: it allows only those that it names."""

    properties: Mapping[str, Any]
    required: tuple[str, ...]
    closed: bool


class SchemaRules:
    """One schema, compiled. A valid call costs microseconds; sub-schemas are compiled when a repair asks for them."""

    __slots__ = ("_formats", "_plain", "_required", "_subvalidators", "_validator", "schema", "shape")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema: dict[str, Any] = dict(schema)
        if problem := too_wide(self.schema):
            raise ToolDefinitionError(f"The schema cannot be used: {problem}.")
        self._validator = _compile(self.schema)
        self._subvalidators: dict[int, tuple[Any, Any]] = {}
        self._formats: Any = None  # a validator that asserts formats, False without any; made when it is needed
        self.shape = self.shape_of(self.schema)
        self._plain = _plain_members(self.schema)
        self._required = frozenset(self.shape.required)

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> SchemaRules:
        """Return the rules of a schema, compiled at most once for schemas of the same content.

        Raises ToolDefinitionError if it is not a JSON Schema, or refers to something outside itself.
        """
        try:
            return _rules_of(json.dumps(schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise ToolDefinitionError(f"The schema cannot be written as JSON: {error}.") from error

    def accepts(self, arguments: Any) -> bool:
        """Tell whether arguments satisfy the schema. Never raises; what cannot be checked is not accepted."""
        if self._plain and type(arguments) is dict and fits_plainly(arguments, self._plain, self._required):
            return True
        return not nests_deeper(arguments) and _is_valid(self._validator, arguments)

    def first_error(self, arguments: Any) -> jsonschema_rs.ValidationError | None:
        """Return the validator's first complaint, or None if it has none or cannot look into the arguments."""
        import jsonschema_rs

        if nests_deeper(arguments) or multiplies(self.schema, arguments):
            return None
        try:
            self._validator.validate(plain_numbers(arguments))
        except (ValueError, TypeError) as error:  # also lone surrogates and other values that are not JSON
            return error if isinstance(error, jsonschema_rs.ValidationError) else None
        return None

    def wrong_format(self, arguments: Any) -> tuple[str, str] | None:
        """Return the first value of accepted arguments without the `format` that the schema states, and that format.

        To JSON Schema a format is a remark, which a valid value may not follow.
        """
        import jsonschema_rs

        if self._formats is None:
            self._formats = '"format"' in json.dumps(self.schema) and jsonschema_rs.validator_for(
                self.schema, offline=True, validate_formats=True
            )
        if not self._formats or not self.accepts(arguments):
            return None
        for error in self._formats.iter_errors(plain_numbers(arguments)):
            if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Format):
                return ".".join(map(str, error.instance_path)), error.kind.format
        return None

    def accepts_part(self, schema: Any, value: Any) -> bool:
        """Tell whether a value satisfies a part of this schema."""
        if not isinstance(schema, Mapping):
            return schema is not False
        known = self._subvalidators.get(id(schema))
        if known is None:  # the schema is kept beside its validator, so that its id stays its own
            whole: dict[str, Any] = {key: self.schema[key] for key in ("$defs", "definitions") if key in self.schema}
            try:
                known = (schema, _compile({**whole, **self.resolve(schema)}))
            except ToolDefinitionError:
                known = (schema, None)
            self._subvalidators[id(schema)] = known
        return known[1] is not None and _is_valid(known[1], plain_numbers(value))

    def resolve(self, schema: Any) -> dict[str, Any]:
        """Follow `$ref`s to a schema, with what is beside them added; {} for what is not an object."""
        beside: dict[str, Any] = {}
        for _ in range(_MAX_REFS):
            if not isinstance(schema, dict):
                return beside
            if "$ref" not in schema:
                return {**schema, **beside} if beside else schema
            beside = {**{key: value for key, value in schema.items() if key != "$ref"}, **beside}
            schema = self._at(schema["$ref"])
        return beside

    def _at(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Any = self.schema
        for step in reference[1:].split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or key not in found:
                return None
            found = found[key]
        return found

    def shape_of(self, schema: Any) -> ObjectShape:
        """Return the members of an object schema, those from `$ref` and `allOf` included."""
        properties: dict[str, Any] = {}
        required: dict[str, None] = {}
        closed = False
        pending = [schema]
        for _ in range(_MAX_MERGED):
            if not pending:
                break
            part = self.resolve(pending.pop())
            own = part.get("properties")
            if isinstance(own, Mapping):
                properties = {**own, **properties}
            needs = part.get("required")
            if isinstance(needs, list):
                required.update(dict.fromkeys(str(name) for name in needs))
            closed = closed or part.get("additionalProperties") is False or part.get("unevaluatedProperties") is False
            more = part.get("allOf")
            if isinstance(more, list):
                pending.extend(more)
        return ObjectShape(properties, tuple(required), closed)

    def types_of(self, schema: Any, depth: int = 0) -> frozenset[str]:
        """Return the JSON types that a schema may accept; empty where it does not say."""
        part = self.resolve(schema)
        declared = part.get("type")
        if isinstance(declared, str):
            return frozenset((declared,))
        if isinstance(declared, list):
            return frozenset(str(name) for name in declared)
        values = part.get("enum") if isinstance(part.get("enum"), list) else [part["const"]] if "const" in part else []
        if values:
            return frozenset(kind_of(value) for value in values or ())
        for key in ("anyOf", "oneOf"):
            branches = part.get(key)
            if isinstance(branches, list) and depth < _MAX_REFS:
                kinds = [self.types_of(branch, depth + 1) for branch in branches]
                return frozenset().union(*kinds) if all(kinds) else frozenset()
        if "properties" in part:
            return frozenset(("object",))
        return frozenset(("array",)) if "items" in part else frozenset()


@lru_cache(maxsize=512)
def _rules_of(text: str) -> SchemaRules:
    return SchemaRules(json.loads(text))


_PLAIN = {"string": str, "boolean": bool, "integer": int}
_SAYS_NOTHING = frozenset(("title", "description", "default", "examples"))
_PLAIN_KEYS = _SAYS_NOTHING | {"type", "properties", "required", "additionalProperties"}


def _plain_members(schema: Mapping[str, Any]) -> dict[str, type]:
    """The Python types of an object's members where it demands nothing but types and names; of those that have one."""
    if schema.get("type") != "object" or not _PLAIN_KEYS.issuperset(schema):
        return {}
    found: dict[str, type] = {}
    for name, member in schema.get("properties", {}).items():
        kind = member.get("type") if isinstance(member, Mapping) else None
        if isinstance(kind, str) and kind in _PLAIN and _SAYS_NOTHING.issuperset(member.keys() - {"type"}):
            found[name] = _PLAIN[kind]
    return found


@cache
def _check_validator() -> None:
    """Raise BrokenDependency if jsonschema-rs does not work: an old version would refuse every call of every tool."""
    import jsonschema_rs

    try:
        validator = jsonschema_rs.validator_for({"type": "object"}, offline=True)
        works = validator.is_valid({}) and not validator.is_valid([])
    except Exception as error:
        raise _broken(error) from error
    if not works:
        raise _broken("it accepts what a schema forbids")


def _broken(reason: object) -> BrokenDependency:
    return BrokenDependency(
        f"Tool calls cannot be validated, because jsonschema-rs does not work: {reason}. "
        "Install the version that Closeout requires: pip install --upgrade closeout."
    )


def _compile(schema: dict[str, Any]) -> Any:
    import jsonschema_rs  # 20 ms, paid when the first schema is compiled

    _check_validator()
    try:
        return jsonschema_rs.validator_for(schema, offline=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, TypeError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise ToolDefinitionError(f"The schema is not a JSON Schema: {str(reason)[:200]}.") from error


def _is_valid(validator: Any, value: Any) -> bool:
    try:
        return bool(validator.is_valid(value))
    except (ValueError, TypeError):  # lone surrogates and other values that are not JSON
        return False
    except Exception as error:
        raise _broken(error) from error
