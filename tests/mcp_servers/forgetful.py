"""An MCP server over HTTP that forgets its sessions: `PORT STATUS CALLS` (its answer then, and a file of calls)."""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

from aiohttp import web

PORT, STATUS, CALLS = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
TOOLS: list[dict[str, Any]] = [
    {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "pay", "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": True}},
    {"name": "forget", "inputSchema": {"type": "object"}},
]
numbers = count(1)
sessions: set[str] = set()


async def answer(request: web.Request) -> web.Response:
    message = json.loads(await request.read())
    method, session = message["method"], request.headers.get("mcp-session-id", "")
    if method == "server/discover":
        return web.json_response(reply(message, error={"code": -32601, "message": "Method not found"}))
    if method == "initialize":
        name = f"s{next(numbers)}"
        sessions.add(name)
        about = {"serverInfo": {"name": "forgetful", "version": "1"}, "capabilities": {"tools": {}}}
        result = {"protocolVersion": message["params"]["protocolVersion"], **about}
        return web.json_response(reply(message, result=result), headers={"mcp-session-id": name})
    if session not in sessions:
        error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
        return web.json_response({"jsonrpc": "2.0", "id": None, "error": error}, status=STATUS)
    if "id" not in message:
        return web.Response(status=202)
    if method == "tools/list":
        return web.json_response(reply(message, result={"tools": TOOLS}))
    name = message["params"]["name"]
    with CALLS.open("a") as file:  # noqa: ASYNC230  # a line for the test to read
        file.write(f"{session} {name}\n")
    if name == "forget":
        sessions.clear()
    return web.json_response(reply(message, result={"content": [{"type": "text", "text": f"{name} in {session}"}]}))


def reply(message: dict[str, Any], **outcome: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], **outcome}


async def refuse(request: web.Request) -> web.Response:
    return web.Response(status=405)


app = web.Application()
app.router.add_post("/mcp", answer)
app.router.add_get("/mcp", refuse)
app.router.add_delete("/mcp", refuse)
web.run_app(app, host="127.0.0.1", port=PORT, print=lambda *words: None)
