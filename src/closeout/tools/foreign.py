"""Tools of other libraries as tools: LangChain's, and those of an MCP server written in Python. Neither is imported.

Also managers with the two methods of the original systems.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Self

from closeout.errors import ToolDefinitionError, ToolError
from closeout.overrides import returned
from closeout.tools.manager import LOCAL, ToolManager, wire_name
from closeout.tools.tool import Tool

__all__ = ["foreign_tool", "is_foreign_manager", "tool_manager"]


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
    return Tool(invoke, name=wire_name(wrapped.name), description=wrapped.description or "", parameters=kept)


def _mcp_tool(wrapped: Any) -> Tool[..., Any]:
    if getattr(wrapped, "context_kwarg", None) or getattr(wrapped, "resolved_params", None):
        raise ToolDefinitionError(
            f"The MCP tool {wrapped.name!r} takes the context of its server, so it can only be called through the "
            'server. Pass mcp_servers=["python server.py"].'
        )
    return Tool(wrapped.fn, name=wire_name(wrapped.name), description=wrapped.description)


def is_foreign_manager(something: Any) -> bool:
    """Return whether something is not a `ToolManager` and has its two methods for a message history."""
    methods = (getattr(something, name, None) for name in ("get_all_tool_definitions", "execute_tool_call"))
    return not isinstance(something, ToolManager | type) and all(map(callable, methods))


def tool_manager(tools: Any) -> ToolManager | None:
    """Return the manager that is an agent's tools, alone or in a list; None if they are something else."""
    only = tools[0] if isinstance(tools, list | tuple) and len(tools) == 1 else tools
    if is_foreign_manager(only):
        return AdaptedManager(only)
    return only if isinstance(only, ToolManager) else None


class AdaptedManager(ToolManager):
    """A manager of another system: its definitions are asked for when it is first opened.

    Args:
        manager: Has `await get_all_tool_definitions()`, which returns `[{"name": server, "tools": [{"name",
            "description", "schema"}]}]`, and `await execute_tool_call(server_name, tool_name, arguments)`, which
            returns a dict with "result" or "error".
    """

    def __init__(self, manager: Any) -> None:
        super().__init__()
        self._manager = manager
        self._is_listed = False

    async def __aenter__(self) -> Self:
        if not self._is_listed:
            definitions = await returned(self._manager.get_all_tool_definitions())
            taken = {spec.name for spec in self.specs()}
            for server in definitions:
                for each in server.get("tools") or ():
                    made = self._tool(str(server.get("name") or LOCAL), each, taken)
                    taken.add(made.name)
                    self.add(made)
            self._is_listed = True
        return await super().__aenter__()

    def _tool(self, server: str, definition: Mapping[str, Any], taken: set[str]) -> Tool[..., Any]:
        name = wire_name(str(definition["name"]))
        return Tool(
            partial(self._execute, server, str(definition["name"])),
            name=wire_name(f"{server}-{name}") if name in taken else name,
            description=str(definition.get("description") or ""),
            parameters=dict(definition.get("schema") or {"type": "object", "properties": {}}),
        )

    async def _execute(self, server: str, name: str, /, **arguments: Any) -> Any:
        answer = self._manager.execute_tool_call(server_name=server, tool_name=name, arguments=arguments)
        if (answer := await returned(answer)).get("error"):
            raise ToolError(str(answer["error"]))
        return answer.get("result")
