"""Serve `@tool` functions over MCP on stdin and stdout: `closeout mcp` serves the web tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from closeout.errors import ToolError
from closeout.messages import ToolPolicy, ToolSpec
from closeout.results.normal import compact_json, normalise
from closeout.results.tool_output import ToolOutput
from closeout.tools.manager import AnyTool
from closeout.tools.mcp_client import POLICY_KEY, STATED_FIELDS, require_mcp

__all__ = ["serve_tools"]

_DEFAULT = ToolPolicy()


async def serve_tools(tools: Iterable[AnyTool], *, name: str = "closeout", instructions: str | None = None) -> None:
    """Serve tools until the client closes stdin.

    A client reads from each tool's annotations what a call does to the world. Closeout's own client also reads the
    tool's aliases, duplicate key and rules for empty results.

    Args:
        tools: The tools. Their results are sent as JSON text, and mappings as structured content too.
        name: The server's name.
        instructions: What a client's model should know about the tools.

    Raises:
        UsageError: The extra `mcp` is not installed.
    """
    require_mcp()
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent

    offered = {tool.spec.name: tool for tool in tools}

    async def list_tools(context: Any, parameters: Any) -> ListToolsResult:
        return ListToolsResult(tools=[_definition(tool.spec) for tool in offered.values()])

    async def call_tool(context: Any, parameters: CallToolRequestParams) -> CallToolResult:
        tool = offered.get(parameters.name)
        if tool is None:
            text = f"Unknown tool: {parameters.name}. Choose from: {', '.join(offered)}."
            return CallToolResult(content=[TextContent(text=text)], is_error=True)
        try:
            async with asyncio.timeout(tool.spec.policy.timeout):
                value = await tool.call(parameters.arguments or {})
        except Exception as error:
            reason = str(error) if isinstance(error, (ToolError, OSError)) else f"{type(error).__name__}: {error}"
            text = f"Error executing tool {parameters.name}: {reason or type(error).__name__}"
            return CallToolResult(content=[TextContent(text=text)], is_error=True)
        plain = normalise(value.result if isinstance(value, ToolOutput) else value)
        text = plain if isinstance(plain, str) else compact_json(plain)
        return CallToolResult(
            content=[TextContent(text=text)], structured_content=plain if isinstance(plain, dict) else None
        )

    server: Server[Any] = Server(name, instructions=instructions, on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _definition(spec: ToolSpec) -> Any:
    from mcp.types import Tool, ToolAnnotations

    policy = spec.policy
    hints = ToolAnnotations(
        read_only_hint=policy.read_only,
        idempotent_hint=policy.idempotent,
        destructive_hint=policy.destructive or policy.approval not in (None, "never"),  # the client asks its user
    )
    stated = {
        field.name: normalise(getattr(policy, field.name))
        for field in fields(policy)
        if field.name in STATED_FIELDS and getattr(policy, field.name) != getattr(_DEFAULT, field.name)
    }
    return Tool(
        name=spec.name,
        description=spec.description,
        input_schema=dict(spec.parameters),
        annotations=hints,
        _meta={POLICY_KEY: stated} if stated else None,
    )
