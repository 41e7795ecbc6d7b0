"""An MCP server whose list and results are valid in part. Counts its orders in the file that is its argument."""

import json
import sys
from pathlib import Path

ORDER = {
    "name": "order",
    "inputSchema": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    "outputSchema": {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]},
    "annotations": {"destructiveHint": False},
}
TEXT = {"type": "text", "text": "ordered, number A-4711"}
RESULTS = {
    "no structure": {"content": [TEXT]},
    "wrong structure": {"content": [TEXT], "structuredContent": {"order": None}},
    "unknown part": {"content": [TEXT, {"type": "hologram", "x": 1}], "structuredContent": {"order": "A-4711"}},
    "no content": {"structuredContent": {"order": "A-4711"}},
    "another field": {"toolResult": "ordered, number A-4711", "isError": None},
}

for line in sys.stdin:
    message = json.loads(line)
    if message.get("id") is None:
        continue
    result: dict = {}
    if message["method"] == "initialize":
        info = {"name": "shop", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    elif message["method"] == "tools/list":
        schemas = {
            "array": {"type": "array"},
            "nonsense": {"type": "nonsense"},
            "bare": {},
            "nulls": {"type": "object", "properties": None, "required": None, "$defs": None},
            "names": {"type": "object", "properties": ["item"], "required": "item"},
            "half": {"type": "object", "properties": {"a": {"type": "text"}, "b": {"type": "string", "enum": None}}},
        }
        result = {"tools": [*({"name": name, "inputSchema": each} for name, each in schemas.items()), ORDER]}
    elif message["method"] == "tools/call":
        with Path(sys.argv[1]).open("a", encoding="utf-8") as orders:
            orders.write("one\n")
        result = RESULTS[message["params"]["arguments"]["item"]]
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
