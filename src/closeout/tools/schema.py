"""Turn a function's signature, hints and docstring into a JSON Schema, and a model's arguments into its arguments."""

from __future__ import annotations

import functools
import inspect
import json
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import cleandoc
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Required, get_origin, get_type_hints

from closeout.errors import ToolDefinitionError, ToolError
from closeout.repair.schema_rules import SchemaRules, fits_plainly, map_schemas
from closeout.tools.run_context import context_parameter, deps_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = [
    "Binding",
    "Docstring",
    "bind_as_given",
    "build_binding",
    "check_signature",
    "is_json_schema",
    "read_docstring",
    "readable_signature",
    "without_titles",
]

_SECTION = (
    r"Args|Arguments|Parameters|Params|Other Parameters|Keyword Args|Keyword Arguments|Returns?|Yields?|Raises|Warns|"
    r"Notes?|Examples?|References|See Also|Warnings?|Attributes|Todo"
)
_GOOGLE_HEAD = re.compile(rf"({_SECTION}):\s*$", re.IGNORECASE)
_NUMPY_HEAD = re.compile(rf"({_SECTION})\s*$", re.IGNORECASE)
_SPHINX = re.compile(r":(\w+)(?:[ \t]+([^:\n]*))?:(?:[ \t]+(.*))?$")
_SPHINX_PARAM = {"param", "parameter", "arg", "argument", "key", "keyword"}
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\(([^)]*)\))?\s*:\s*(.*)$")
_NUMPY_ITEM = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::\s*(.*))?$")
_PARAMETER_SECTIONS = {
    "args", "arguments", "parameters", "params", "other parameters", "keyword args", "keyword arguments",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Docstring:
    """A parsed docstring: the text before its first section, and each parameter's description and type."""

    text: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)


def read_docstring(docstring: str | None) -> Docstring:
    """Read a docstring in Google, NumPy or `:param` style; in any other style it is all `text`."""
    lines = cleandoc(docstring or "").splitlines()
    begins = (at for at, line in enumerate(lines) if _head_length(lines, at) or _SPHINX.match(line))
    start = next(begins, len(lines))
    found = Docstring("\n".join(lines[:start]).strip())
    heads = [at for at in range(start, len(lines)) if _head_length(lines, at)]
    for first, end in pairwise(sorted({start, *heads, len(lines)})):
        size = _head_length(lines, first)
        section = lines[first + size : end]
        if size == 0:
            _read_sphinx(section, found)
        elif lines[first].strip().removesuffix(":").lower() in _PARAMETER_SECTIONS:
            (_read_google if size == 1 else _read_numpy)(section, found)
    return found


def _head_length(lines: list[str], at: int) -> int:
    """The number of lines of the section head that begins here: 1 in Google style, 2 in NumPy style, 0 without one."""
    if _GOOGLE_HEAD.match(lines[at]):
        return 1
    is_underlined = at + 1 < len(lines) and re.fullmatch(r"-{3,}\s*", lines[at + 1])
    return 2 if is_underlined and _NUMPY_HEAD.match(lines[at]) else 0


def _read_google(lines: list[str], into: Docstring) -> None:
    for head, body in _items(lines):
        if item := _GOOGLE_ITEM.match(head):
            into.parameters[item[1]] = _flow([item[3], *body])
            if item[2]:
                into.types[item[1]] = item[2]


def _read_numpy(lines: list[str], into: Docstring) -> None:
    for head, body in _items(lines):
        if item := _NUMPY_ITEM.match(head):
            for name in item[1].split(","):
                bare = name.strip().lstrip("*")
                into.parameters[bare] = _flow(body)
                if item[2]:
                    into.types[bare] = item[2]


def _read_sphinx(lines: list[str], into: Docstring) -> None:
    for head, body in _items(lines):
        item = _SPHINX.match(head)
        if item is None or not item[2]:
            continue
        kind, words, text = item[1].lower(), item[2].split(), _flow([item[3] or "", *body])
        if kind in _SPHINX_PARAM:
            into.parameters[words[-1].lstrip("*")] = text
            if len(words) > 1:
                into.types[words[-1].lstrip("*")] = " ".join(words[:-1])
        elif kind == "type":
            into.types[words[-1]] = text


def _items(lines: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Entries of a section: a line at the section's own indent, and the deeper lines below it."""
    items: list[tuple[str, list[str]]] = []
    margin = 0
    for line in filter(str.strip, lines):
        indent = len(line) - len(line.lstrip())
        margin = margin if items else indent
        if indent <= margin:
            items.append((line.strip(), []))
        else:
            items[-1][1].append(line.strip())
    return items


def _flow(lines: Iterable[str]) -> str:
    return " ".join(line for line in lines if line).strip()


MAX_REPORTED_ERRORS = 4  # a model mends a few at a time
_PLAIN_TYPES = {
    "str": str, "string": str, "int": int, "integer": int, "float": float, "number": float,
    "bool": bool, "boolean": bool, "list": list, "dict": dict, "array": list, "object": dict,
}  # fmt: skip
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Binding:
    """A tool's `parameters` (JSON Schema object) and how arguments that fit them become a Python call."""

    parameters: Mapping[str, Any]
    adapter: TypeAdapter[dict[str, Any]] | None = None
    positional: tuple[str, ...] = ()  # parameters that Python takes by position only
    # The types of all parameters where each is one that needs no turning, and the names without a default.
    plain: Mapping[str, Any] | None = None
    required: frozenset[str] = frozenset()
    context: str = ""  # the parameter that receives the RunContext; models do not see it
    deps_type: Any = None  # the X of its annotation RunContext[X]

    def bind(self, tool: str, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of the hinted types; `ToolError` says which argument does not fit."""
        values = dict(arguments)
        if self.plain is not None and fits_plainly(values, self.plain, self.required):
            return [], values
        if self.adapter is not None:
            try:
                values = self.adapter.validate_python(values)
            except ValueError as error:
                from pydantic import ValidationError

                if not isinstance(error, ValidationError):
                    raise
                raise ToolError(_explain(tool, error)) from None
        if not self.positional:
            return [], values
        return [values.pop(name) for name in self.positional if name in values], values


def readable_signature(tool: str, function: Callable[..., Any]) -> inspect.Signature:
    """Return the function's signature. Raises `ToolDefinitionError` if Python cannot determine it."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        raise ToolDefinitionError(
            f"Tool {tool!r}: Python cannot determine the parameters of {function!r}. Wrap it in a def with type hints, "
            "or give its JSON Schema with parameters={...}."
        ) from None


def check_signature(tool: str, signature: inspect.Signature) -> None:
    """Refuse `*args`, which a model cannot fill. `**kwargs` without a type is left out of the schema."""
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise ToolDefinitionError(
                f"Tool {tool!r} takes *{parameter.name}, which a model cannot fill: arguments have names. "
                f"Take a list instead, for example {parameter.name}: list[str]."
            )


def bind_as_given(tool: str, parameters: Mapping[str, Any], context: str = "") -> Binding:
    """Return the binding for a JSON Schema that the caller wrote; arguments reach the function unchanged."""
    schema = dict(parameters)
    try:
        SchemaRules.of(schema)
    except ToolDefinitionError as error:
        reason = str(error).removeprefix("The schema is not a JSON Schema: ")
        raise ToolDefinitionError(f"Tool {tool!r}: parameters is not a JSON Schema: {reason}") from None
    if schema.get("type", "object") != "object" or not isinstance(schema.get("properties", {}), Mapping):
        raise ToolDefinitionError(
            f"Tool {tool!r}: parameters must describe an object, {{'type': 'object', 'properties': {{...}}}}, "
            f"and its type is {schema.get('type')!r}."
        )
    return Binding({"type": "object", "properties": {}, **schema}, context=context)


def is_json_schema(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema follows the JSON Schema draft that it names, or the latest, and is self-contained.

    Nothing is fetched: a schema comes from a server, and may name any address or file.
    """
    try:
        SchemaRules.of(schema)
    except ToolDefinitionError:
        return False
    return True


def build_binding(
    tool: str, function: Callable[..., Any], doc: Docstring, names: Mapping[str, Any] | None = None
) -> Binding:
    """Build the binding from a function's hints, defaults and docstring. `names` are extra names for its hints."""
    signature = readable_signature(tool, function)
    check_signature(tool, signature)
    context = context_parameter(signature)
    # A model cannot know what to put into untyped **kwargs.
    described = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD or p.annotation is not p.empty]
    signature = signature.replace(parameters=[p for p in described if p.name != context])
    hints = _read_hints(tool, function, names)
    _refuse_untyped(tool, signature, hints, doc)
    fields = {name: _accepted(_hint(parameter, hints, doc)) for name, parameter in signature.parameters.items()}
    adapter = _adapter(tool, signature, fields)
    try:
        schema = adapter.json_schema()
    except Exception as error:
        raise ToolDefinitionError(f"Tool {tool!r}: its parameters have no JSON Schema: {error}") from None
    parameters = signature.parameters.values()
    by_name = all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters)
    return Binding(
        parameters=_finish(schema, signature, {**doc.parameters, **_annotated_texts(hints)}),
        adapter=adapter,
        positional=tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY),
        plain=fields if by_name and all(hint in (str, int, bool) for hint in fields.values()) else None,
        required=frozenset(p.name for p in parameters if p.default is p.empty),
        context=context,
        deps_type=deps_of(hints.get(context)),
    )


# ------------------------------------------------------------------------------------------------ reading hints


def _read_hints(tool: str, function: Callable[..., Any], names: Mapping[str, Any] | None) -> dict[str, Any]:
    source: Any = function
    while isinstance(source, functools.partial):
        source = source.func
    source = inspect.unwrap(source)
    if not inspect.isroutine(source) and not inspect.isclass(source):
        source = type(source).__call__  # an object that is called like a function
    try:
        return get_type_hints(source, localns=dict(names) if names else None, include_extras=True)
    except NameError as error:
        raise ToolDefinitionError(
            f"Tool {tool!r}: a type hint uses the name {error.name!r}, which cannot be found. "
            "Define or import it at the top of the tool's module, not under TYPE_CHECKING."
        ) from None
    except Exception as error:
        raise ToolDefinitionError(f"Tool {tool!r}: its type hints cannot be read: {error}") from None


def _refuse_untyped(tool: str, signature: inspect.Signature, hints: Mapping[str, Any], doc: Docstring) -> None:
    """Raise ToolDefinitionError for a parameter without any type."""
    for name, parameter in signature.parameters.items():
        if name not in hints and _hint(parameter, hints, doc) is Any:
            raise ToolDefinitionError(
                f"Tool {tool!r}: the parameter {name!r} has no type, so a model cannot know what to pass. "
                f"Write {name}: str, for example, or {name}: Any."
            )


def _annotated_texts(hints: Mapping[str, Any]) -> dict[str, str]:
    """The first text of each `Annotated[str, "text"]`."""
    annotated = {name: hint.__metadata__ for name, hint in hints.items() if get_origin(hint) is Annotated}
    return {name: next((item for item in items if isinstance(item, str)), "") for name, items in annotated.items()}


def _hint(parameter: inspect.Parameter, hints: Mapping[str, Any], doc: Docstring) -> Any:
    """The type that an argument must have: the hint, else the docstring's plain type, else the default's, else any."""
    from pydantic.fields import FieldInfo

    default = parameter.default
    hint = hints.get(parameter.name, Any)
    if hint is Any:
        word = doc.types.get(parameter.name, "").split(",")[0].strip().lower()
        if word in _PLAIN_TYPES:
            hint = _PLAIN_TYPES[word]
        elif isinstance(default, str | int | float | list | dict):
            hint = type(default)
    if isinstance(default, FieldInfo):  # def f(q: str = Field(description="…"))
        return Annotated[hint, default]
    return hint


def _accepted(hint: Any) -> Any:
    """The hint with every `typing.TypedDict` rebuilt: below Python 3.12 pydantic takes only typing_extensions'."""
    if sys.version_info >= (3, 12):
        return hint
    import typing_extensions

    if typing.is_typeddict(hint) and type(hint).__module__ == "typing":
        keys = {name: _accepted(of) for name, of in get_type_hints(hint, include_extras=True).items()}
        make: Any = typing_extensions.TypedDict
        return make(
            hint.__name__, {n: of if n in hint.__required_keys__ else NotRequired[of] for n, of in keys.items()}
        )
    arguments = typing.get_args(hint)
    rebuilt = tuple(_accepted(item) for item in arguments)
    if all(new is old for new, old in zip(rebuilt, arguments, strict=True)):
        return hint
    if isinstance(hint, types.UnionType):
        return functools.reduce(operator.or_, rebuilt)
    return hint.copy_with(rebuilt) if hasattr(hint, "copy_with") else get_origin(hint)[rebuilt]


def _adapter(tool: str, signature: inspect.Signature, fields: Mapping[str, Any]) -> TypeAdapter[dict[str, Any]]:
    from pydantic import ConfigDict, TypeAdapter
    from pydantic.fields import FieldInfo
    from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

    keys: dict[str, Any] = {}
    extra: Any = None
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = fields[name]
            continue
        default = parameter.default
        needed = default.is_required() if isinstance(default, FieldInfo) else default is parameter.empty
        keys[name] = Required[fields[name]] if needed else NotRequired[fields[name]]
    make: Any = TypedDict  # its keys are known at run time only, which type checkers refuse
    arguments = make("Arguments", keys)
    arguments.__pydantic_config__ = ConfigDict(extra="forbid" if extra is None else "allow")
    if extra is not None:
        arguments.__extra_items__ = extra
    try:
        return TypeAdapter(arguments)
    except Exception as error:
        culprit = next((n for n, hint in fields.items() if not _is_known(hint)), None)
        where = f"parameter {culprit!r} has a type" if culprit else "a parameter has a type"
        raise ToolDefinitionError(
            f"Tool {tool!r}: {where} that JSON cannot carry. Use plain types, Literal, Enum, list, dict, dataclasses, "
            f"TypedDict or pydantic models. ({str(error).splitlines()[0]})"
        ) from None


def _is_known(hint: Any) -> bool:
    from pydantic import TypeAdapter

    try:
        TypeAdapter(hint).json_schema()
    except Exception:
        return False
    return True


# ------------------------------------------------------------------------------------------------ writing the schema


def _finish(schema: dict[str, Any], signature: inspect.Signature, texts: Mapping[str, str]) -> dict[str, Any]:
    """Short and stable: no titles, properties in the signature's order, descriptions and defaults put in."""
    tidy = _inline_single_uses(without_titles(schema))
    properties: dict[str, Any] = {}
    found = tidy.get("properties", {})
    for name, parameter in signature.parameters.items():
        if parameter.kind not in _VARIADIC:
            properties[name] = _describe(found.get(name, {}), parameter, texts.get(name, ""))
    finished: dict[str, Any] = {"type": "object", "properties": properties}
    if tidy.get("required"):
        finished["required"] = [name for name in properties if name in tidy["required"]]
    finished["additionalProperties"] = tidy.get("additionalProperties", False)
    if tidy.get("$defs"):
        finished["$defs"] = tidy["$defs"]
    return finished


def _describe(found: dict[str, Any], parameter: inspect.Parameter, text: str) -> dict[str, Any]:
    from pydantic.fields import FieldInfo
    from pydantic_core import to_jsonable_python

    entry = dict(found)
    default = parameter.default
    description = entry.pop("description", "") or text
    if default is not parameter.empty and not isinstance(default, FieldInfo):
        try:
            entry["default"] = to_jsonable_python(default)
        except Exception:  # a default that JSON cannot show is left out
            entry.pop("default", None)
    if entry.get("default", ...) is None:
        entry = _without_null(entry)
    return {**entry, "description": description} if description else entry


def _without_null(entry: dict[str, Any]) -> dict[str, Any]:
    """`int | None = None` is written as an optional int: leaving it out means None, and the schema is half as long."""
    entry = {key: value for key, value in entry.items() if key != "default"}
    options = entry.get("anyOf")
    if not isinstance(options, list) or {"type": "null"} not in options:
        return entry
    rest = [option for option in options if option != {"type": "null"}]
    others = {key: value for key, value in entry.items() if key != "anyOf"}
    return {**rest[0], **others} if len(rest) == 1 else {**others, "anyOf": rest}


def without_titles(schema: dict[str, Any], describe: Callable[[str], str] = str) -> dict[str, Any]:
    """Return the schema without the titles that generators write; a parameter called "title" stays.

    `describe` returns the text that replaces a description.
    """

    def drop(part: Mapping[str, Any]) -> Mapping[str, Any]:  # a discriminator is OpenAPI's and points into $defs
        kept = {key: value for key, value in part.items() if key not in ("title", "discriminator")}
        if isinstance(kept.get("description"), str):
            kept["description"] = describe(kept["description"])
        return kept

    tidy: dict[str, Any] = map_schemas(schema, drop)
    return tidy


def _inline_single_uses(schema: dict[str, Any]) -> dict[str, Any]:
    """Put a definition where it is used if that is one place only: small models read that better than a $ref."""
    definitions: dict[str, Any] = schema.get("$defs", {})

    def uses(part: Any, name: str) -> int:
        return json.dumps(part).count(f'"#/$defs/{name}"')

    # One use, and that from another place than itself, cannot be a cycle that the root reaches.
    reachable_once = {name for name, body in definitions.items() if uses(schema, name) == 1 and not uses(body, name)}

    def expand(part: Mapping[str, Any]) -> Mapping[str, Any]:
        name = str(part.get("$ref", "")).removeprefix("#/$defs/")
        if name not in reachable_once:
            return part
        body: dict[str, Any] = map_schemas(definitions[name], expand)
        return {**body, **{key: value for key, value in part.items() if key != "$ref"}}

    rest = {name: map_schemas(body, expand) for name, body in definitions.items() if name not in reachable_once}
    root = {key: value for key, value in schema.items() if key != "$defs"}
    inlined: dict[str, Any] = map_schemas(root, expand)
    return {**inlined, "$defs": rest} if rest else inlined


def _explain(tool: str, error: Any) -> str:
    """One short line for each argument that does not fit, for the model."""
    lines = []
    for item in error.errors(include_url=False, include_context=False)[:MAX_REPORTED_ERRORS]:
        where = ".".join(str(step) for step in item["loc"]) or "arguments"
        lines.append(f"{where}: {item['msg']}")
    return f"The arguments of {tool} do not fit. " + "; ".join(lines)
