"""Tools of other libraries as tools: LangChain's, and those of an MCP server written in Python. Neither is imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from closeout.errors import ToolDefinitionError
from closeout.tools.tool import Tool

__all__ = ["foreign_tool"]


def foreign_tool(something: Any) -> Tool[..., Any] | None:
    """Return a tool of another library as a `Tool`, None for anything else.

    Accepted are LangChain tools (`BaseTool`, `StructuredTool`), whose `ainvoke` is called, and the tool objects of
    `MCPServer` and `FastMCP`, whose function is called.

    Raises:
        ToolDefinitionError: It is such a tool, but it cannot be called from here; the message says what to do.
    """
    if isinstance(something, type):
        return None
    if hasattr(something, "ainvoke") and hasattr(something, "args_schema"):
        return _langchain_tool(something)
    if callable(getattr(something, "fn", None)) and isinstance(getattr(something, "parameters", None), Mapping):
        return _mcp_tool(something)
    if hasattr(something, "input_schema") or hasattr(something, "inputSchema"):
        name = getattr(something, "name", "")
        raise ToolDefinitionError(
            f"{name!r} only describes a tool of an MCP server, so it cannot be called. Pass its server instead: "
            'mcp_servers=["python server.py"], or a URL.'
        )
    return None


def _langchain_tool(wrapped: Any) -> Tool[..., Any]:
    async def invoke(**arguments: Any) -> Any:
        return await wrapped.ainvoke(arguments)

    # Only the arguments that the model must fill in, without those that LangChain injects.
    wanted = getattr(wrapped, "tool_call_schema", None) or wrapped.args_schema
    schema = dict(wanted) if isinstance(wanted, Mapping) else wanted.model_json_schema()
    kept = {key: value for key, value in schema.items() if key not in ("title", "description")}
    return Tool(invoke, name=_valid(wrapped.name), description=wrapped.description or "", parameters=kept)


def _mcp_tool(wrapped: Any) -> Tool[..., Any]:
    if getattr(wrapped, "context_kwarg", None) or getattr(wrapped, "resolved_params", None):
        raise ToolDefinitionError(
            f"The MCP tool {wrapped.name!r} takes the context of its server, so it can only be called through the "
            'server. Pass mcp_servers=["python server.py"].'
        )
    return Tool(wrapped.fn, name=_valid(wrapped.name), description=wrapped.description)


def _valid(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]
