"""Between tools as they are known (server and tool) and as a model names them. No wire formats, no execution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from closeout.codec import decode_json
from closeout.errors import UsageError
from closeout.messages import ToolCall, ToolSpec

__all__ = ["Offer", "offered_tools", "tool_call_infos"]


SEPARATOR = "__"  # between server and tool where two servers offer the same name


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools of one request, and which server each offered name belongs to."""

    specs: tuple[ToolSpec, ...] = ()
    servers: Mapping[str, str | None] = field(default_factory=dict)

    def resolve(self, call: ToolCall) -> ToolCall:
        """The call with the server that offered its name; a call of an unknown name stays as it is."""
        return replace(call, server_name=self.servers.get(call.name, call.server_name))


def offered_tools(definitions: Sequence[ToolSpec] | Sequence[Mapping[str, Any]]) -> Offer:
    """ToolSpecs, or servers with their tools, as an Offer. A name that two servers share becomes `server__tool`."""
    if all(isinstance(item, ToolSpec) for item in definitions):
        specs = [item for item in definitions if isinstance(item, ToolSpec)]
    else:
        specs = [spec for server in definitions for spec in _of_server(server)]
        counts = Counter(spec.name for spec in specs)
        specs = [spec if counts[spec.name] == 1 else _qualified(spec) for spec in specs]
    return Offer(tuple(specs), {spec.name: spec.server_name for spec in specs})


def _qualified(spec: ToolSpec) -> ToolSpec:
    return replace(spec, name=f"{spec.server_name}{SEPARATOR}{spec.name}") if spec.server_name else spec


def _of_server(server: ToolSpec | Mapping[str, Any]) -> list[ToolSpec]:
    if isinstance(server, ToolSpec):
        return [server]
    if "name" not in server:
        raise UsageError('A tool definition needs a "name": {"name": server, "tools": [{"name", "schema"}]}.')
    return [
        ToolSpec(
            name=str(tool["name"]),
            description=str(tool.get("description") or ""),
            parameters=tool.get("schema") or tool.get("parameters") or {"type": "object", "properties": {}},
            server_name=str(server["name"]),
        )
        for tool in server.get("tools") or ()
        if "name" in tool
    ]


def tool_call_infos(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Calls as dicts: server_name, tool_name, arguments (an object where the text is one), id (made up if missing)."""
    return [
        {
            "server_name": call.server_name,
            "tool_name": call.name.removeprefix(f"{call.server_name}{SEPARATOR}"),
            "arguments": _object_or_text(call.arguments),
            "id": call.id or f"call_{number}",
        }
        for number, call in enumerate(calls)
    ]


def _object_or_text(arguments: Mapping[str, Any] | str) -> dict[str, Any] | str:
    if not isinstance(arguments, str):
        return dict(arguments)
    try:
        value = decode_json(arguments) if arguments.strip() else {}
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments
