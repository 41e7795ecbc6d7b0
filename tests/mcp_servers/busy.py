"""An MCP server on stdio that reports progress, changes its tools and offers some that cannot be called: `[TOOLS]`."""

from __future__ import annotations

import base64
import json
import sys
import time
from typing import Any

MANY = int(sys.argv[1]) if len(sys.argv) > 1 else 0
PAGE = 5_000
PICTURE = base64.b64encode(b"\x89PNG" + bytes(range(256)) * 40).decode()
tools: list[dict[str, Any]] = [
    {"name": "slow", "inputSchema": {"type": "object"}},
    {"name": "endless", "inputSchema": {"type": "object"}},
    {"name": "silent", "inputSchema": {"type": "object"}},
    {"name": "grow", "inputSchema": {"type": "object"}},
    {"name": "chart", "inputSchema": {"type": "object"}},
    {"name": "later", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}},
    {"name": "either", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}},
    {"name": "slow", "inputSchema": {"type": "object"}},
    *({"name": f"tool_{number}", "inputSchema": {"type": "object"}} for number in range(MANY)),
]


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def call(parameters: dict[str, Any]) -> dict[str, Any]:
    name, token = parameters["name"], parameters.get("_meta", {}).get("progressToken")
    if name in ("slow", "endless"):
        for step in range(1, 6 if name == "slow" else 60):
            time.sleep(0.15)
            progress = {"progressToken": token, "progress": step, "total": 5, "message": f"step {step}"}
            send(method="notifications/progress", params=progress)
        return {"content": [{"type": "text", "text": "done"}]}
    if name == "silent":
        sys.stdin.readline()  # whatever comes next: the call has been given up
    if name == "grow":
        tools.append({"name": "grown", "inputSchema": {"type": "object"}})
        send(method="notifications/tools/list_changed")
    if name == "chart":
        structured = {
            "title": "a chart",
            "image": PICTURE,
            "uri": f"data:image/png;base64,{PICTURE}",
            "dna": "ACGT" * 90,
        }
        image = {"type": "image", "data": PICTURE, "mimeType": "image/png"}
        return {"content": [image], "structuredContent": structured}
    return {"content": [{"type": "text", "text": name}]}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method, parameters = asked["method"], asked.get("params") or {}
    if method == "initialize":
        about = {"serverInfo": {"name": "busy", "version": "1"}, "capabilities": {"tools": {"listChanged": True}}}
        send(id=asked["id"], result={"protocolVersion": parameters["protocolVersion"], **about})
    elif method == "tools/list":
        start = int(parameters.get("cursor") or 0)
        following = {"nextCursor": str(start + PAGE)} if start + PAGE < len(tools) else {}
        send(id=asked["id"], result={"tools": tools[start : start + PAGE], **following})
    elif method == "tools/call":
        send(id=asked["id"], result=call(parameters))
    else:
        send(id=asked["id"], error={"code": -32601, "message": "Method not found"})
