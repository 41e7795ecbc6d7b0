"""Offer a served agent as an MCP tool over Streamable HTTP, at /mcp, to stateless clients and to older ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any

from aiohttp import web

from closeout.errors import RunNotFound, ToolError
from closeout.journal.events import RunEnded, ToolStarted
from closeout.run.subagents import may_destroy
from closeout.run.waiting import Decision, PendingDecision, awaited, pending_decisions
from closeout.server.api_errors import ApiError
from closeout.server.app import MAX_BODY
from closeout.server.host import AgentHost
from closeout.server.mcp_asking import decisions_by_client, decisions_of
from closeout.server.openai_chat import answer_of
from closeout.server.safety import client_of
from closeout.tools.run_context import RunContext
from closeout.tools.tool import tool

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

__all__ = ["TOOL_DESCRIPTION", "add_mcp", "tool_name"]

PATH = "/mcp"
# The description of the tool that an agent is.
TOOL_DESCRIPTION = "An agent that works on a task with tools of its own until it has an answer."
CLOSE_SECONDS = 2.0  # seconds that a request may take after its client has gone

_REQUEST = "closeout.request"  # the application's request in the library's scope

_call: ContextVar[tuple[Any, Any]] = ContextVar("closeout_mcp_call")  # the library's context and parameters


def tool_name(name: str) -> str:
    """Return the name of the tool that an agent is."""
    return re.sub(r"\W+", "_", name).strip("_") or "agent"


def add_mcp(app: web.Application, host: AgentHost, description: str = "") -> None:
    """Add the route of the MCP server to an application, if the extra `mcp` is installed.

    Args:
        app: The application.
        host: Executes the runs.
        description: What the agent is for, told to the clients.
    """
    if find_spec("mcp") is None:
        return
    endpoint = _McpEndpoint(host, description or TOOL_DESCRIPTION)
    for method in ("GET", "POST", "DELETE"):
        app.router.add_route(method, PATH, endpoint.handle)

    async def close(_: web.Application) -> None:
        await endpoint.close()

    app.on_shutdown.append(close)


class _McpEndpoint:
    """The server of the `mcp` library, started by the first request, in a task of its own."""

    def __init__(self, host: AgentHost, description: str) -> None:
        self._host, self._description = host, description
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

        from closeout.tools.mcp_server import make_server

        # Who may ask is checked by the application: Host, Origin and key.
        server = make_server([self._tool()], name=tool_name(self._host.name), around=_in_call)
        manager = StreamableHTTPSessionManager(server, max_request_body_size=MAX_BODY)
        try:
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

    def _tool(self) -> Any:
        host = self._host

        async def ask(task: str) -> dict[str, Any]:
            """Run the agent.

            Args:
                task: What it should find out or do, with everything that it needs to know.
            """
            run = _CalledRun(host, *_call.get())
            decisions = await run.begin(task)
            try:
                ended = await run.followed()
                while ended is not None and ended.status == "waiting":
                    pending = await run.pending()
                    decisions = decisions or await decisions_by_client(run.context, pending, run.id)
                    left = await host.decide(run.id, decisions)
                    decisions = {}
                    if not any(each.by_person for each in left):
                        ended = await run.followed()
            except asyncio.CancelledError:  # the client does not want the answer any more
                if not host.stopping:
                    await host.cancel(run.id)
                raise
            try:
                return {"answer": answer_of(host, run.id, ended), "run_id": run.id}
            except ApiError as error:
                raise ToolError(str(error)) from None

        destructive = may_destroy(host.agent.plan())
        made = tool(name=tool_name(host.name), description=self._description, timeout=None, destructive=destructive)
        return made(ask)


@contextmanager
def _in_call(context: Any, parameters: Any) -> Iterator[None]:
    """Make a call of the library known to the tool that it runs."""
    token = _call.set((context, parameters))
    try:
        yield
    finally:
        _call.reset(token)


class _CalledRun:
    """The run of one call, or of several of a stateless client, which answers what the run asks by calling again."""

    def __init__(self, host: AgentHost, context: Any, parameters: Any) -> None:
        self._host = host
        self.context, self._parameters = context, parameters
        self.id = ""
        self._seen = 0  # events
        self._calls = count(1)

    async def begin(self, task: str) -> dict[str, Decision]:
        """Start the run, or find the one that the client answers; returns its answers."""
        host, request = self._host, self.context.request.scope[_REQUEST]
        state, user = self._parameters.request_state, client_of(request)
        if not state:
            self.id = await host.submit(task, notes={"api": "mcp", "user": user, **host.deps.notes(request)})
            return {}
        try:
            found = await host.find(state)
        except RunNotFound:
            found = None
        if found is None or (found.notes.get("api"), found.notes.get("user")) != ("mcp", user):
            raise ToolError("The request state is not that of a call of this client. Make the call without it.")
        self.id = state
        return decisions_of(self._parameters.input_responses or {}, await self._undecided(), state)

    async def followed(self) -> RunEnded | None:
        """Follow the run until it ends or waits, and report its progress."""
        ended, progress = None, RunContext.current().progress
        async for row in self._host.follow(self.id, self._seen):
            self._seen = row.seq + 1
            if isinstance(row.event, ToolStarted):
                progress(next(self._calls), message=row.event.name)
            elif isinstance(row.event, RunEnded) and row.event.agent == "main":
                ended = row.event
        return ended

    async def pending(self) -> list[PendingDecision]:
        """Return what a person has to decide. Raises ToolError if the run waits for something else."""
        pending = await self._undecided()
        by_person = [each for each in pending if each.by_person]
        if not by_person:
            what = awaited(pending[0]) if pending else "another client's decision to take effect"
            raise ToolError(f"The run waits for {what}. Its answer then: closeout runs {self.id}")
        return by_person

    async def _undecided(self) -> tuple[PendingDecision, ...]:
        return pending_decisions(await self._host.rows(self.id))


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
            _REQUEST: request,
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
