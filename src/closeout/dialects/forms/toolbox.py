"""The tools at hand as the forms need them: names, schemas, servers. Knows ToolSpec, `@tool` and OpenAI dicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from closeout.messages import ToolSpec

__all__ = ["HasSpec", "Toolbox"]

_NAMESPACES = ("functions.", "default_api.", "tools.", "tool.")


class HasSpec(Protocol):
    """A function that `@tool` made a tool of."""

    @property
    def spec(self) -> ToolSpec: ...


class Toolbox:
    """Looks tools up by name. Empty when the caller gave no tools: then every name is as good as any other."""

    __slots__ = ("_parameters", "_servers")

    def __init__(self, tools: Iterable[ToolSpec | HasSpec | Mapping[str, Any]] | None = None) -> None:
        self._parameters: dict[str, Mapping[str, Any]] = {}
        self._servers: dict[str, str | None] = {}
        for tool in tools or ():
            for name, parameters, server in _described(tool):
                self._parameters.setdefault(name, parameters)
                self._servers.setdefault(name, server)

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
        properties = self.schema(name).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def only_parameter(self, name: str) -> str | None:
        """The parameter that a bare value can only be meant for: the only one, or the only required one."""
        properties, required = self.properties(name), self.schema(name).get("required")
        if len(properties) == 1:
            return str(next(iter(properties)))
        single = isinstance(required, list) and len(required) == 1 and required[0] in properties
        return str(required[0]) if single and isinstance(required, list) else None

    def server(self, name: str) -> str | None:
        return self._servers.get(name)

    def resolve(self, name: str) -> str:
        """The tool's own name for a name with a namespace in front (`functions.f`, `f.f`), else the name as it is."""
        name = name.strip()
        if name in self._parameters:
            return name
        for namespace in _NAMESPACES:
            if name.startswith(namespace) and len(name) > len(namespace):
                return name[len(namespace) :]
        last = name.rpartition(".")[2]
        return last if last in self._parameters else name


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
