"""Offer a served agent as an MCP tool over Streamable HTTP, at /mcp, to stateless clients and to older ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from aiohttp import web

from closeout.assembly.task_templates import task_templates
from closeout.server.api_errors import ApiError
from closeout.server.app import MAX_BODY
from closeout.server.safety import client_of
from closeout.server.serve.host import AgentHost
from closeout.server.serve.mcp_runs import REQUEST, FileShelf, RunTasks, agent_as_tool, tool_name

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

__all__ = ["add_mcp", "add_mcp_server"]

PATH = "/mcp"
CLOSE_SECONDS = 2.0  # seconds that a request may take after its client has gone


def add_mcp(app: web.Application, host: AgentHost, description: str = "") -> None:
    """Add the MCP server of an agent to an application, if the extra `mcp` is installed.

    Args:
        app: The application.
        host: Executes the runs.
        description: What the agent is for. Clients see it.
    """
    if find_spec("mcp") is None:
        return
    templates = task_templates(host.agent.config.agent)

    def make() -> Server[Any]:
        from closeout.tools.mcp.mcp_server import make_server

        return make_server(
            [agent_as_tool(host, description)],
            name=tool_name(host.name),
            resources=FileShelf(host),
            prompts=templates,
            tasks=RunTasks(host),
        )

    add_mcp_server(app, make)


def add_mcp_server(app: web.Application, make: Callable[[], Server[Any]]) -> None:
    """Add the route of an MCP server to an application, which checks who may ask: Host, Origin and key.

    Args:
        app: The application.
        make: Returns the server of the `mcp` library. Called by the first request.
    """
    endpoint = _McpEndpoint(make)
    for method in ("GET", "POST", "DELETE"):
        app.router.add_route(method, PATH, endpoint.handle)

    async def close(_: web.Application) -> None:
        await endpoint.close()

    app.on_shutdown.append(close)


class _McpEndpoint:
    """The server of the `mcp` library, started by the first request, in a task of its own."""

    def __init__(self, make: Callable[[], Server[Any]]) -> None:
        self._make = make
        self._manager: StreamableHTTPSessionManager | None = None
        self._owner: asyncio.Task[None] | None = None
        self._started, self._stop = asyncio.Event(), asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self._owner is None:
            self._owner = asyncio.create_task(self._own(), name="mcp endpoint")
        await self._started.wait()
        if self._manager is None or self._stop.is_set():
            raise ApiError(503, "The server is stopping. Try again later.")
        return await _BridgedRequest(request).served_by(self._manager)

    async def _own(self) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        try:
            manager = StreamableHTTPSessionManager(self._make(), max_request_body_size=MAX_BODY)
            async with manager.run():
                self._manager = manager
                self._started.set()
                await self._stop.wait()
        finally:
            self._manager = None
            self._started.set()

    async def close(self) -> None:
        """End the open streams and sessions."""
        self._stop.set()
        if self._owner is not None:
            await asyncio.gather(self._owner, return_exceptions=True)


class _BridgedRequest:
    """One request, as the library's ASGI application takes it."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._body: bytes | None = None
        self._response: web.StreamResponse | None = None
        self._gone = asyncio.Event()  # the client has closed the connection

    async def served_by(self, manager: StreamableHTTPSessionManager) -> web.StreamResponse:
        self._body = await self._request.read()
        serving = asyncio.create_task(manager.handle_request(self._scope(), self._receive, self._send))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self._gone.set()
            with suppress(Exception, asyncio.CancelledError):
                await asyncio.wait((serving,), timeout=CLOSE_SECONDS)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            raise
        assert self._response is not None
        return self._response

    def _scope(self) -> dict[str, Any]:
        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken

        request, client = self._request, client_of(self._request)
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.scheme,
            "path": request.path,
            "raw_path": request.rel_url.raw_path.encode(),
            "query_string": request.query_string.encode(),
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.raw_headers],
            "client": None,
            "server": None,
            REQUEST: request,
        }
        if client:  # a session belongs to the key that began it
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=client, scopes=[]))
        return scope

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self._response = web.StreamResponse(status=message["status"])
            for name, value in message.get("headers", ()):
                if name.lower() != b"transfer-encoding":
                    self._response.headers.add(name.decode("latin-1"), value.decode("latin-1"))
            return
        assert self._response is not None
        with suppress(ConnectionError):
            if not self._response.prepared:
                await self._response.prepare(self._request)
            await self._response.write(message.get("body", b""))
            if not message.get("more_body"):
                await self._response.write_eof()
