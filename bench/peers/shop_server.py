"""The MCP server that the program 05_mcp.py uses."""

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # mcp 1
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("shop")


@server.tool()
def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"lamp": 40.0, "chair": 85.0}[item]


server.run()
