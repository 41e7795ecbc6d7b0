"""A web app around an agent: a page with React (AI SDK's useChat), one with AG-UI, and the agent mounted beside them.

pip install "closeout[mcp]" uvicorn     # starlette comes with the extra mcp; FastAPI works the same way
npm install && npm run build
uvicorn app:app                         # MODEL=openai:gpt-5 for a real model; without it, a scripted one answers
"""

from __future__ import annotations

import asyncio
import os
import struct
import zlib
from pathlib import Path

from demo_model import DemoModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from closeout import Agent, AgentApp, File, tool
from closeout.tools.builtin import ask_user

ORDERS = {"4711": {"item": "a set of six wine glasses", "status": "delivered", "price": 42.5}}
SALES = {"Mar": 31, "Apr": 44, "May": 40, "Jun": 58}


@tool(read_only=True)
async def find_order(number: str) -> dict[str, object]:
    """Look up an order by its number."""
    await asyncio.sleep(0.3)
    return ORDERS.get(number) or {"error": f"There is no order {number}."}


@tool(approval="always", destructive=True)
def refund(order: str, amount: float, reason: str) -> str:
    """Pay back money for an order."""
    return f"{amount:.2f} EUR were refunded for order {order}."


def png(width: int, height: int, lines: bytes) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@tool(read_only=True)
def sales_chart() -> list[File]:
    """Draw the sales of this year, as a picture and as a table."""

    def pixel(x: int, y: int) -> bytes:
        at, inside = divmod(x, 60)
        drawn = inside >= 20 and y >= 120 - 2 * list(SALES.values())[at]
        return b"\x4a\x7f\xd0" if drawn else b"\xff\xff\xff"

    lines = b"".join(b"\0" + b"".join(pixel(x, y) for x in range(240)) for y in range(120))
    rows = [{"month": month, "sales": value} for month, value in SALES.items()]
    return [File("sales.png", png(240, 120, lines)), File.table("sales.csv", rows)]


agent = Agent(
    os.environ.get("MODEL") or DemoModel(),
    [find_order, refund, sales_chart, ask_user],
    name="order desk",
    instructions="You help the staff of a shop. Answer briefly.",
    home=os.environ.get("CLOSEOUT_HOME", "home"),
)
served = AgentApp(agent)


async def ask(request: Request) -> StreamingResponse:
    """Answer one question, without a chat: `curl -N 'localhost:8000/ask?q=…'`."""
    body = agent.stream(request.query_params["q"]).sse()
    return StreamingResponse(body, headers=body.headers)


app = Starlette(
    routes=[
        Route("/ask", ask),
        Mount("/agent", served),
        Mount("/", StaticFiles(directory=Path(__file__).parent / "static", html=True)),
    ],
    lifespan=served.lifespan,
)
