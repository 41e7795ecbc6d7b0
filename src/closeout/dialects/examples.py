"""Worked examples for weak models: which of an agent's own tools they are told with. Their text is a template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from closeout.messages import ToolSpec

__all__ = ["LOCAL_SERVER", "examples_slots"]

LOCAL_SERVER = "local"  # what tools without a server are said to be on

_COMPUTES = ("calc", "comput", "math", "arith")
_LOOKS_UP = ("search", "look", "find", "retriev", "query", "wiki", "get", "read", "fetch")


def examples_slots(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """The slots of an examples template: `look_up` and `compute`, each {"name", "parameter", "server"} or None.

    A tool fits if its one required parameter is a text. Without a tool to look things up there is no example: empty.
    """
    fitting = [(tool, parameter) for tool in tools if (parameter := _only_text(tool)) is not None]
    compute = next((_slot(tool, name) for tool, name in fitting if _is(tool, _COMPUTES)), None)
    others = [(tool, name) for tool, name in fitting if not _is(tool, _COMPUTES)]
    by_name = [(tool, name) for word in _LOOKS_UP for tool, name in others if word in tool.name.casefold()]
    look_up = next((_slot(tool, name) for tool, name in by_name), None)
    return {"look_up": look_up, "compute": compute} if look_up else {}


def _is(tool: ToolSpec, words: tuple[str, ...]) -> bool:
    return any(word in tool.name.casefold() for word in words)


def _slot(tool: ToolSpec, parameter: str) -> dict[str, str]:
    return {"name": tool.name, "parameter": parameter, "server": tool.server_name or LOCAL_SERVER}


def _only_text(tool: ToolSpec) -> str | None:
    properties = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required") or (list(properties) if len(properties) == 1 else [])
    if len(required) != 1 or not isinstance(properties.get(required[0]), dict):
        return None
    return str(required[0]) if properties[required[0]].get("type") == "string" else None
