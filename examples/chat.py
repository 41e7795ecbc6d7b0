"""Serve a shop's chat over HTTP: replies are streamed, and conversations continue after a restart.

    python examples/chat.py --port 8080
    curl -N http://127.0.0.1:8080/chats/anna -d "Where is my order 4711?"
    curl http://127.0.0.1:8080/chats/anna

POST streams server-sent events, GET returns the conversation. The name in the address is the conversation. In a real
shop take it from the login, so that nobody reads another customer's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncIterator

from aiohttp import web

from closeout import Agent
from closeout.errors import UsageError
from closeout.journal.events import ToolStarted
from closeout.journal.subscribers import Progress

ORDERS = {"4711": "on its way, with you on Friday", "4712": "being packed"}


def order_status(number: str) -> str:
    """Look an order up.

    Args:
        number: Its number, four digits.
    """
    return ORDERS.get(number, "There is no order of this number.")


def make_app(model: str) -> web.Application:
    agent = Agent(
        model,
        tools=[order_status],
        instructions="You are the assistant of a lamp shop. Be brief. Look orders up; never guess their status.",
        max_turns=8,
    )

    async def keep_open(app: web.Application) -> AsyncIterator[None]:
        async with agent:
            yield

    async def reply(request: web.Request) -> web.StreamResponse:
        text = (await request.text()).strip()
        try:
            stream = agent.session(request.match_info["name"]).stream(text)
        except UsageError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)

        async def send(kind: str, value: str) -> None:
            await response.write(f"event: {kind}\ndata: {json.dumps(value)}\n\n".encode())

        async for event in stream:
            match event:
                case Progress(kind="text", text=piece):
                    await send("text", piece)
                case Progress(kind="discard"):  # the text so far is not part of the reply
                    await send("discard", "")
                case ToolStarted(name=name):
                    await send("tool", name)
        result = stream.result
        await send("done" if result.answer else "failed", result.answer or "Sorry, that did not work. Try again.")
        return response

    async def messages(request: web.Request) -> web.Response:
        session = agent.session(request.match_info["name"])
        shown = [message for message in session.messages if message.role in ("user", "assistant") and message.text]
        return web.json_response([{"role": message.role, "text": message.text} for message in shown])

    app = web.Application(client_max_size=64 * 1024)
    app.cleanup_ctx.append(keep_open)
    app.add_routes([web.post("/chats/{name}", reply), web.get("/chats/{name}", messages)])
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="openai:gpt-5")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    web.run_app(make_app(options.model), host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
