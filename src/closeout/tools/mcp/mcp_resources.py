"""The resources of an MCP server as two tools, which list and read them.

What is read is the result of a call: it is shortened, kept and paged like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from closeout.errors import ToolError
from closeout.tools.mcp.mcp_pages import all_pages

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, Tool

__all__ = ["call_resource_tool", "resource_tools"]

MAX_LISTED = 2_000  # resources, and templates
_SHOWN = ("uri", "uri_template", "name", "title", "description", "mime_type", "size")
_LIST, _READ = "list_resources", "read_resource"


def resource_tools(client: Client, taken: Collection[str]) -> list[Tool]:
    """Return the tools for the server's resources; none if it has no resources, or has tools of these names itself."""
    from mcp.types import Tool, ToolAnnotations

    if getattr(client.session.server_capabilities, "resources", None) is None or {_LIST, _READ} & set(taken):
        return []
    reads = ToolAnnotations(read_only_hint=True)
    uri = {"type": "string", "description": "Its uri; for a template, with its variables filled in"}
    schema = {"type": "object", "properties": {"uri": uri}, "required": ["uri"]}
    return [
        Tool(name=_LIST, description="List what can be read.", input_schema={"type": "object"}, annotations=reads),
        Tool(name=_READ, description="Read a resource.", input_schema=schema, annotations=reads),
    ]


async def call_resource_tool(client: Client, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
    """Call one of the tools of `resource_tools`."""
    from mcp.types import CallToolResult, EmbeddedResource

    if name == _READ:
        found = await client.read_resource(str(arguments["uri"]), cache_mode="bypass")
        if not found.contents:
            raise ToolError("The resource is empty.")
        return CallToolResult(content=[EmbeddedResource(resource=each) for each in found.contents])
    listed: dict[str, Any] = {"resources": await _all(client.list_resources, "resources")}
    if templates := await _all(client.list_resource_templates, "resource_templates"):
        listed["templates"] = templates
    return CallToolResult(content=[], structured_content=listed)


async def _all(list_page: Callable[..., Any], key: str) -> list[dict[str, Any]]:
    found, _ = await all_pages(list_page, key, MAX_LISTED)
    shown = (each.model_dump(mode="json", exclude_none=True) for each in found)
    return [{name: each[name] for name in _SHOWN if name in each} for each in shown]
