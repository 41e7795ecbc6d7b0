"""An MCP server that books payments into a file, and notes its process id beside it: `python ledger.py FILE`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

PAID = Path(sys.argv[1])
server = MCPServer("ledger")


@server.tool(structured_output=False)
async def book(key: str) -> str:
    """Book a payment."""
    await anyio.sleep(0.002)
    with PAID.open("a") as file:  # noqa: ASYNC230  # a line in a local file
        file.write(f"{key}\n")
    await anyio.sleep(0.002)
    return f"[{key}] done"


@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
def was_booked(key: str) -> str:
    """Say whether a payment is booked."""
    booked = PAID.exists() and key in PAID.read_text().split()
    return f"[{key}] done" if booked else f"{key} is not booked"


if __name__ == "__main__":
    with PAID.with_suffix(".pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    server.run("stdio")
