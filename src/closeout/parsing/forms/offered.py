"""The offered tools as the forms need them: names, schemas, and values typed by a schema."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol

from closeout.messages import ToolSpec
from closeout.parsing.forms.json_values import load
from closeout.parsing.numbers import read_integer, read_number

__all__ = ["HasSpec", "OfferedNames", "Untyped", "decode_entities", "kinds", "typed"]

_NAMESPACES = ("functions.", "default_api.", "tools.", "tool.")
_KNOWN_NAMESPACES = {"functions", "function", "defaultapi", "tools", "tool", "api"}
_JUNK = " \t\r\n`'\"*<>()[]{}:,;"
_CALL_INDEX = re.compile(r":\d{1,6}\Z")
_SEPARATORS = re.compile(r"[\s._\-:/\\]+")
_NAMESPACE_ENDS = re.compile(r"[.:/]+|__+")
_NO_SEPARATORS = str.maketrans("", "", " \t\r\n._-:/\\")
_LONGEST_NAME = 256  # characters


def fold(name: str) -> str:
    """A name without case and separators: names that differ in nothing else mean the same tool."""
    return _SEPARATORS.sub("", name).casefold()


class HasSpec(Protocol):
    """A function decorated with `@tool`."""

    @property
    def spec(self) -> ToolSpec: ...


class OfferedNames:
    """Looks up the offered tools by name. Without tools, every name is possible."""

    __slots__ = ("_acting", "_destructive", "_folded", "_parameters", "_servers")

    def __init__(self, tools: Iterable[ToolSpec | HasSpec | Mapping[str, Any]] | None = None) -> None:
        self._parameters: dict[str, Mapping[str, Any]] = {}
        self._servers: dict[str, list[str | None]] = {}
        self._destructive: set[str] = set()
        self._acting: set[str] = set()  # tools that may have effects
        self._folded: dict[str, set[str]] = {}
        for tool in tools or ():
            spec = getattr(tool, "spec", tool)
            for name, parameters, server in _described(tool):
                self._parameters.setdefault(name, parameters)
                self._servers.setdefault(name, []).append(server)
                self._folded.setdefault(fold(name), set()).add(name)
                if server:
                    self._folded.setdefault(fold(server) + fold(name), set()).add(name)
                if isinstance(spec, ToolSpec) and spec.policy.destructive:
                    self._destructive.add(name)
                if not (isinstance(spec, ToolSpec) and spec.policy.only_reads):
                    self._acting.add(name)

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def schema(self, name: str) -> Mapping[str, Any]:
        """The tool's whole parameter schema, `{}` for an unknown tool."""
        return self._parameters.get(name, {})

    def properties(self, name: str) -> Mapping[str, Any]:
        """The declared parameters of a tool, by name."""
        properties = self.schema(name).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def required(self, name: str) -> tuple[str, ...]:
        """The names of a tool's required parameters."""
        required = self.schema(name).get("required")
        return tuple(map(str, required)) if isinstance(required, list) else ()

    def only_parameter(self, name: str) -> str | None:
        """The parameter that a bare value must be meant for: the only one, or the only required one."""
        properties, required = self.properties(name), self.required(name)
        if len(properties) == 1:
            return str(next(iter(properties)))
        return required[0] if len(required) == 1 and required[0] in properties else None

    def server(self, name: str, named: str | None = None) -> str | None:
        """The server that a tool belongs to: the one that the call names, if the tool is there.

        Returns:
            None for a local tool; `named` for an unknown one.
        """
        servers = self._servers.get(name, [named])
        return named if named in servers else servers[0]

    def destructive(self, name: str) -> bool:
        """True if a tool is declared destructive."""
        return name in self._destructive

    def only_reads(self, name: str) -> bool:
        """True if a tool is declared to have no effects."""
        return name in self and name not in self._acting

    def find(self, name: str) -> str | None:
        """Return the offered tool that a written name means.

        Only differences that carry no meaning are accepted: case, separators, escapes, a namespace before the name, a
        call index after it, and quotes around it. A namespace is one that
        means all tools, the tool's server, or the name itself (`f.f`).

        Args:
            name: The name as the model wrote it.

        Returns:
            The tool's own name, None if no tool or more than one matches.
        """
        name = name[:_LONGEST_NAME].strip()
        if name in self._parameters:
            return name
        clean = name.strip(_JUNK)
        for written in (clean, _CALL_INDEX.sub("", clean)):
            parts = [fold(part) for part in _NAMESPACE_ENDS.split(written) if fold(part)]
            for first in range(len(parts)):
                matching = self._folded.get("".join(parts[first:]), ())
                if matching:
                    return next(iter(matching)) if len(matching) == 1 else None
                if parts[first] not in _KNOWN_NAMESPACES and parts[first] != parts[-1]:
                    break  # another namespace may hold another tool
        return None

    def mentioned(self, text: str) -> bool:
        """True if a text contains the name of an offered tool, up to case and separators."""
        plain = text.translate(_NO_SEPARATORS).casefold()
        return any(name in plain for name in self._folded)

    def resolve(self, name: str) -> str:
        """The offered tool's own name, or the name as written without a common namespace."""
        found = self.find(name)
        if found is not None:
            return found
        name = name.strip()
        for namespace in _NAMESPACES:
            if name.startswith(namespace) and len(name) > len(namespace):
                return name[len(namespace) :]
        return name

    def fits(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """True if arguments include what a tool requires and nothing that it does not declare.

        What may be null is required by strict schemas only, where all is, so it may be missing from a call.
        """
        properties = self.properties(name)
        return all(key in arguments or _may_be_null(properties.get(key)) for key in self.required(name)) and (
            not properties or all(key in properties for key in arguments)
        )


def _may_be_null(schema: object) -> bool:
    if not isinstance(schema, Mapping):
        return False
    kinds, choices = schema.get("type"), schema.get("anyOf")
    return (
        kinds == "null"
        or (isinstance(kinds, list) and "null" in kinds)
        or (isinstance(choices, list) and any(map(_may_be_null, choices)))
    )


def _described(tool: object) -> Iterator[tuple[str, Mapping[str, Any], str | None]]:
    """(name, parameters, server) of each tool in a description; one that is not understood yields nothing."""
    tool = getattr(tool, "spec", tool)
    if isinstance(tool, ToolSpec):
        yield tool.name, tool.parameters, tool.server_name
        return
    if not isinstance(tool, Mapping):
        return
    name, members = tool.get("name"), tool.get("tools")
    if tool.get("type") == "namespace" and isinstance(name, str) and isinstance(members, Iterable):
        for member in members:
            yield from ((f"{name}__{inner}", schema, server) for inner, schema, server in _described(member))
        return
    function = tool.get("function")
    if isinstance(function, Mapping):
        tool, name = function, function.get("name")
    if isinstance(name, str) and name:
        keys = ("parameters", "input_schema", "inputSchema")
        parameters: object = next((tool[key] for key in keys if tool.get(key)), {})
        server = tool.get("server_name")
        yield name, parameters if isinstance(parameters, Mapping) else {}, server if isinstance(server, str) else None


Untyped = Literal["json", "scalars"]
"""The reading of a parameter that the schema does not declare: as JSON if it is some, or as JSON only if it is a scalar
(a format whose own reference reader keeps undeclared containers as text)."""

_ALIASES = {
    "str": "string", "text": "string", "varchar": "string", "char": "string", "enum": "string",
    "int": "integer", "long": "integer", "short": "integer", "float": "number", "double": "number",
    "bool": "boolean", "dict": "object", "map": "object", "list": "array", "tuple": "array", "none": "null",
}  # fmt: skip
_KIND_OF = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});")
_MAX_DEPTH = 16  # nested references and unions in a schema


def kinds(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The JSON Schema types that a schema allows; empty when it does not say. `root` resolves local references."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    found: set[str] = set()
    declared = schema.get("type")
    for name in declared if isinstance(declared, list) else [declared]:
        if isinstance(name, str):
            found.add(_ALIASES.get(name.lower(), name.lower()))
    if not found:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            found.update(_KIND_OF.get(type(value), "null") for value in values)
    for word in ("anyOf", "oneOf", "allOf"):
        for member in schema.get(word) or () if isinstance(schema.get(word), list) else ():
            found |= kinds(member, root, depth + 1)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found |= kinds(_resolve(reference, root), root, depth + 1)
    if not found and isinstance(schema.get("properties"), Mapping):
        found.add("object")
    return frozenset(found)


def _resolve(reference: str, root: Any) -> Any:
    for part in reference[2:].split("/"):
        root = root.get(part) if isinstance(root, Mapping) else None
    return root


def typed(text: str, schema: Any, root: Mapping[str, Any], untyped: Untyped = "json") -> Any:
    """The value of a text. A text that fits no declared type stays text, for the tool's schema to judge."""
    allowed = kinds(schema, root)
    if not allowed:
        return _undeclared(text, untyped)
    if allowed == {"string"}:
        return text
    word = text.strip()
    if "string" not in allowed and word.lower() in ("null", "none"):
        return None
    for kind in ("null", "boolean", "integer", "number", "object", "array"):
        if kind in allowed:
            fits, value = _as_kind(word, kind)
            if fits:
                return value
    return text


def _as_kind(word: str, kind: str) -> tuple[bool, Any]:
    if kind == "null":
        return word.lower() in ("null", "none"), None
    if kind == "boolean":
        lower = word.lower()
        return lower in ("true", "false", "1", "0"), lower in ("true", "1")
    if kind in ("integer", "number"):
        number = read_integer(word) if kind == "integer" else read_number(word)
        return number is not None, number
    loaded = load(word) if word[:1] in "{[" else None
    if loaded is None:
        return False, None
    return isinstance(loaded.value, dict if kind == "object" else list), loaded.value


def _undeclared(text: str, untyped: Untyped) -> Any:
    word = text.strip()
    if word in _WORDS:
        return _WORDS[word]
    if word[:1] in "{[":
        loaded = load(word) if untyped == "json" else None
        return loaded.value if loaded and isinstance(loaded.value, dict | list) else text
    if word[:1] == '"' and untyped == "json":
        loaded = load(word, repair=False)
        return loaded.value if loaded else text
    number = read_number(word)
    return text if number is None or (isinstance(number, int) and str(number) != word) else number


def decode_entities(text: str) -> tuple[str, bool]:
    """(text, whether it was XML-escaped). Only a text that is escaped throughout is decoded.

    A raw `<` or a bare `&` shows that the writer did not escape, and then `&amp;` is meant literally.
    """
    if "&" not in text or "<" in text:
        return text, False
    if text.count("&") != len(_ENTITY.findall(text)):
        return text, False
    return html.unescape(text), True
