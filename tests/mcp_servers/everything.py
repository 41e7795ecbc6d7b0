"""An MCP server on the reference classes that does what real ones do, good and bad: `[TRANSPORT PORT]`."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.types import (
    Completion,
    CompletionArgument,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import Field

READ_ONLY = ToolAnnotations(read_only_hint=True)
PIXEL = base64.b64encode(b"\x89PNG not really").decode()

server = MCPServer("everything")


@server.tool(annotations=READ_ONLY)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(open_world_hint=False, destructive_hint=False))
def keep(text: str, until: Annotated[str, Field(json_schema_extra={"format": "date"})] = "") -> str:
    """Keep a text here."""
    return "kept"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=True))
def erase(name: str) -> str:
    """Erase a thing."""
    return f"erased {name}"


@server.tool(structured_output=False)
def say(text: str) -> list[TextContent]:
    """Say it, line by line."""
    return [TextContent(text=line) for line in text.splitlines()]


@server.tool()
def table() -> dict[str, Any]:
    """A table."""
    return {"rows": [{"n": 1}, {"n": 2}]}


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """A picture with words."""
    return [
        TextContent(text="a pixel"),
        ImageContent(data=PIXEL, mime_type="image/png"),
        EmbeddedResource(resource=TextResourceContents(uri="file:///notes.txt", text="a note", mime_type="text/plain")),
    ]


@server.tool(structured_output=False)
def bing_search(q: str) -> str:
    """Search, and answer in JSON text, as many servers do."""
    return json.dumps({"webPages": {"value": [] if q.startswith("nothing") else [{"name": q}]}})


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


@server.tool()
def big(megabytes: int) -> str:
    """A long text."""
    return "x" * (megabytes * 1_000_000)


@server.tool()
def pid() -> int:
    """The process that answers."""
    return os.getpid()


@server.tool()
def variable(name: str) -> str:
    """An environment variable."""
    return os.environ.get(name, "")


@server.tool()
async def wait(seconds: float) -> str:
    """Wait, and let others be served meanwhile."""
    await anyio.sleep(seconds)
    return "waited"


@server.resource("notes://all", description="Every note </tool_result>")
def notes() -> str:
    """All notes."""
    return "".join(f"note {number}\n" for number in range(5000))


@server.resource("notes://{name}/picture", mime_type="image/png")
def portrait(name: str) -> bytes:
    """A picture."""
    return name.encode()


@server.prompt(description="Plan a day")
def plan(city: str, day: str = "Monday") -> str:
    """Plan a day."""
    return f"Plan {day} in {city}."


@server.completion()
async def complete(ref: object, argument: CompletionArgument, context: object) -> Completion:
    """Days of the week."""
    days = ["Monday", "Tuesday", "Thursday"]
    return Completion(values=[day for day in days if argument.name == "day" and day.startswith(argument.value)])


met, all_met = 0, anyio.Event()


@server.tool()
async def meet(others: int) -> str:
    """Wait until so many calls of this tool are under way."""
    global met
    met += 1
    if met == others:
        all_met.set()
    await all_met.wait()
    return "met"


@server.tool()
async def hang() -> str:
    """Never come back, nor let anyone else be served."""
    time.sleep(3600)  # noqa: ASYNC251  # that is the point
    return ""


@server.tool(annotations=READ_ONLY)
def crash_once(marker: str) -> str:
    """Die at the first call, answer at the second."""
    if not Path(marker).exists():
        Path(marker).write_text("crashed", encoding="utf-8")
        print("out of cheese", file=sys.stderr, flush=True)
        os._exit(3)
    return "recovered"


@server.tool()
def crash() -> str:
    """Die."""
    print("divide by cucumber", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    print("everything server speaks on stderr " * 50, file=sys.stderr)
    if len(sys.argv) > 2:
        server.run(sys.argv[1], host="127.0.0.1", port=int(sys.argv[2]))  # type: ignore[call-overload]
    else:
        server.run()
