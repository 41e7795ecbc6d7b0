"""An MCP server that does what a script says, over stdio or HTTP.

A script has the steps for each moment: "start", a method such as "initialize", or the end of the handshake, "ready". A
step is a list of an operation and its argument; without steps the server answers as it should. It does not speak the
newest protocol: a client that asks for it is told so, and begins the handshake.

    python scripted_mcp.py SCRIPT.json     (such as {"tools/call": [["hang"]]})
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

TOOLS = [{"name": "act", "description": "Act.", "inputSchema": {"type": "object"}}]


def honest(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The answer of a server that works."""
    if method == "initialize":
        about = {"serverInfo": {"name": "scripted", "version": "1"}, "capabilities": {"tools": {}}}
        return {"result": {"protocolVersion": params["protocolVersion"], **about}}
    if method == "tools/list":
        return {"result": {"tools": TOOLS}}
    if method == "tools/call":
        return {"result": {"content": [{"type": "text", "text": "acted"}]}}
    return {"error": {"code": -32601, "message": "Method not found"}} if method != "ping" else {"result": {}}


def lines(message: dict[str, Any], steps: list[list[Any]]) -> list[tuple[str, Any]]:
    """Return what happens after a request: ("send", message), ("write", bytes), ("hang", …), ("die", …), ("say", …)."""
    number, answer = message.get("id"), honest(message["method"], message.get("params") or {})
    happens: list[tuple[str, Any]] = []
    is_answered = False
    for operation, *rest in steps:
        argument = rest[0] if rest else None
        if operation in ("result", "error"):
            happens.append(("send", {"jsonrpc": "2.0", "id": number, operation: argument}))
            is_answered = True
        elif operation in ("batch", "request"):  # a list of one answer; an invalid request with the id of the call
            send = {"jsonrpc": "2.0", "id": number}
            happens.append(
                ("send", [{**send, "result": argument}] if operation == "batch" else {**send, "method": argument})
            )
            is_answered = operation == "batch"
        elif operation == "id":
            happens.append(("send", {"jsonrpc": "2.0", "id": argument, **answer}))
            is_answered = True
        elif operation == "ask":  # a request of the server's own
            happens.append(
                ("send", {"jsonrpc": "2.0", "id": f"s{len(happens)}", "method": argument, "params": rest[1]})
            )
        elif operation == "note":
            happens += [("send", {"jsonrpc": "2.0", "method": argument, "params": rest[1]})] * rest[2]
        elif operation == "token":  # progress of the call
            token = (message.get("params") or {}).get("_meta", {}).get("progressToken")
            progress = {"progressToken": token, "progress": 1}
            happens += [("send", {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})] * argument
        elif operation == "write":
            happens.append(("write", argument.encode("latin-1") * (rest[1] if len(rest) > 1 else 1)))
            is_answered = True
        elif operation == "twice":
            happens += [("send", {"jsonrpc": "2.0", "id": number, **answer})] * 2
            is_answered = True
        else:
            happens.append((operation, argument))
            is_answered = operation in ("hang", "die", "http", "close") or is_answered
    if not is_answered:
        happens.append(("send", {"jsonrpc": "2.0", "id": number, **answer}))
    return happens


def serve_stdio(script: dict[str, Any]) -> None:
    """Serve on standard input and output until the input ends."""
    out = sys.stdout.buffer

    def act(happens: list[tuple[str, Any]]) -> None:
        for operation, argument in happens:
            if operation == "send":
                out.write(json.dumps(argument).encode() + b"\n")
            elif operation == "write":
                out.write(argument)
            elif operation == "say":
                sys.stderr.write(argument)
            out.flush()
            if operation == "die":
                sys.stderr.flush()
                os._exit(argument) if argument >= 0 else os.kill(os.getpid(), -argument)
            elif operation == "close":
                os.close(1)
            elif operation == "stubborn":
                import signal

                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                while True:
                    signal.pause()

    if "start" in script:
        act([each for each in lines({"method": "start"}, script["start"]) if each[0] != "send"])
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            act(lines(message, script.get(message["method"], [])))
        elif message.get("method") == "notifications/initialized":
            act(lines({"method": "ready", "id": 0}, script.get("ready", [["hang"]])))


async def serve_http(scripts: dict[str, dict[str, Any]]) -> tuple[str, Callable[[], Any]]:
    """Serve each script under its name. Returns the address, and a function that ends the server."""
    import asyncio

    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(handle(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await answer_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            writer.close()

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        verb, path, _ = head.split(" ", 2)
        script = scripts[path.split("/")[1]]
        size = next((int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length:")), 0)
        body = await reader.readexactly(size)
        if "start" in script:
            happens = lines({"method": "start"}, script["start"])
        elif verb != "POST":
            happens = lines({"method": verb}, script.get(verb, [["http", [405, {}, ""]]]))
        else:
            message = json.loads(body)
            if "id" not in message or "method" not in message:
                happens = lines({"method": "ready"}, script.get("ready", [["http", [202, {}, ""]]]))
            else:
                happens = lines(message, script.get(message["method"], []))
        sent = [each for operation, each in happens if operation == "send"]
        is_stream = len(sent) > 1 or any("method" in each for each in sent)
        if is_stream:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for operation, argument in happens:
            if operation == "send" and is_stream:
                writer.write(b"event: message\ndata: " + json.dumps(argument).encode() + b"\n\n")
            elif operation == "send":
                respond(writer, 200, {"Content-Type": "application/json"}, json.dumps(argument).encode())
            elif operation == "http":
                status, headers, text = argument
                respond(writer, status, headers, text if isinstance(text, bytes) else text.encode())
            elif operation == "write":
                writer.write(argument)
            elif operation == "hang":
                await writer.drain()
                await asyncio.sleep(3_600)
            elif operation == "drip":
                while True:
                    writer.write(argument.encode())
                    await writer.drain()
                    await asyncio.sleep(0.05)
            await writer.drain()
            if operation in ("close", "die"):
                return False
        return not is_stream

    def respond(writer: asyncio.StreamWriter, status: int, headers: dict[str, str], body: bytes) -> None:
        fields = {"Content-Length": str(len(body)), **headers}
        written = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 {status} X\r\n{written}\r\n".encode("latin-1", "replace") + body)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=2**20)

    async def end() -> None:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", end


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123  pathlib would double the process's start
        serve_stdio(json.load(file))
