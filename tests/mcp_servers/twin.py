"""An MCP server whose tools have the names of others: `add` as in everything.py, `say.hello` with a full stop."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server = MCPServer("twin")


@server.tool()
def add(a: int, b: int) -> str:
    """Put together."""
    return f"{a}{b}"


@server.tool(name="say.hello")
def say_hello() -> str:
    """Say hello."""
    return "hello"


@server.tool(name="price.now")
def price_now() -> str:
    """Give the price."""
    return "price with a full stop"


@server.tool(name="price/now")
def price_slash_now() -> str:
    """Give the price."""
    return "price with a slash"


@server.tool()
def google_search(q: str) -> str:
    """Search the web."""
    return '{"organic": []}'


@server.tool()
def crooked(n: int) -> int:
    """A tool whose schema is none."""
    return n


server._tool_manager.get_tool("crooked").parameters = {"type": "object", "properties": {"n": {"type": "integre"}}}  # type: ignore[union-attr]


if __name__ == "__main__":
    server.run()
