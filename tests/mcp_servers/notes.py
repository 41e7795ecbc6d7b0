"""An MCP server whose tools say what they do to notes: read, write (nothing said), delete."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("notes")


@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
def read_note(name: str) -> str:
    """Read a note."""
    return f"{name}: empty"


@server.tool(structured_output=False)
def write_note(name: str, text: str) -> str:
    """Write a note."""
    return f"{name} written: {text}"


@server.tool(annotations=ToolAnnotations(destructive_hint=True), structured_output=False)
def delete_note(name: str) -> str:
    """Delete a note."""
    return f"{name} deleted"


if __name__ == "__main__":
    server.run("stdio")
