"""A loopback server that answers with exactly the bytes a test wants: what no well-behaved server would send."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Seen:
    """What came in: heads and bodies in order, how many connections, and whether the client closed one."""

    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    @property
    def sent(self) -> list[dict]:
        return [json.loads(body or b"{}") for body in self.bodies]


Answer = Callable[[int, Seen], bytes | list[bytes]]


def http(
    body: bytes | str | dict | list, status: int = 200, content_type: str = "application/json", **headers: str
) -> bytes:
    """A whole HTTP response."""
    if isinstance(body, dict | list):
        body = json.dumps(body)
    data = body.encode() if isinstance(body, str) else body
    extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(data)}\r\n{extra}\r\n"
    return head.encode() + data


def sse(*events: dict | str, end: bytes = b"") -> list[bytes]:
    """A chunked event stream, an event a chunk; `end` closes it (b"" leaves the connection to be dropped)."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    lines = [f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode() for event in events]
    return [head, *(b"%x\r\n%b\r\n" % (len(line), line) for line in lines), *([end] if end else [])]


END = b"0\r\n\r\n"
HOLD = b"hold"  # as the last piece of a list: the connection stays open until the client closes it


def chat(content: str | None = "hi", **message: object) -> dict:
    """A chat completion's body."""
    whole = {"role": "assistant", "content": content, **message}
    return {
        "model": "m",
        "choices": [{"index": 0, "message": whole, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2},
    }


@asynccontextmanager
async def raw_server(*answers: bytes | list[bytes] | Answer | None) -> AsyncIterator[Seen]:
    """Serves the answers in turn, the last for ever. None: silence until the client hangs up.

    A list is sent piece by piece and then ends the connection, unless its last piece is END.
    """
    seen = Seen()
    tasks: set[asyncio.Task] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"content-length: *(\d+)", head, re.IGNORECASE)
                seen.heads.append(head)
                seen.bodies.append(await reader.readexactly(int(length[1]) if length else 0))
                number = len(seen.bodies) - 1
                answer = answers[min(number, len(answers) - 1)]
                if callable(answer):
                    answer = answer(number, seen)
                if answer is None:
                    await reader.read()
                    seen.hung_up.set()
                    return
                if isinstance(answer, bytes):
                    writer.write(answer)
                    await writer.drain()
                    continue
                if answer and answer[-1] is HOLD:
                    writer.writelines(answer[:-1])
                    await reader.read()
                    seen.hung_up.set()
                    return
                for piece in answer:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if answer[-1:] != [END]:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            seen.hung_up.set()
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    seen.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield seen
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
