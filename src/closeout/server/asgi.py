"""A served agent as an ASGI application, to mount into FastAPI, Starlette or Django."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Self, TypeAlias
from urllib.parse import quote

import aiohttp
from aiohttp import web
from yarl import URL

from closeout.agent import Agent
from closeout.server.app import MAX_BODY
from closeout.server.safety import USER_HEADER
from closeout.server.serve.host import AgentHost
from closeout.server.serving import mounted_app

__all__ = ["AgentApp"]

_Message: TypeAlias = MutableMapping[str, Any]
PREFIX_HEADER = "x-forwarded-prefix"
# Headers that concern one connection, or that are written again.
_NOT_FORWARDED = {"connection", "content-length", "expect", "keep-alive", "transfer-encoding", "upgrade"}
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)


class AgentApp:
    """What `closeout serve` serves, inside an application of your own.

    ```python
    served = AgentApp(agent)
    app = FastAPI(lifespan=served.lifespan)
    app.mount("/agent", served)
    ```

    The application around it authenticates requests: it checks sessions and keys, and names the user.

    Args:
        agent: The agent. It must keep its runs in a home.
        user: Returns the user of a request from its ASGI scope. A user sees the runs and chats that they began. Without
            it, every client sees all of them.
        options: Those of `AgentHost`: `name`, `max_runs`, `user_budget`, `deps` and so on.
    """

    def __init__(
        self, agent: Agent[Any], *, user: Callable[[Mapping[str, Any]], str] | None = None, **options: Any
    ) -> None:
        self.host = AgentHost(agent, **options)
        self._user = user
        self._runner: web.AppRunner | None = None
        self._client: aiohttp.ClientSession | None = None
        self._entering = asyncio.Lock()

    async def __aenter__(self) -> Self:
        async with self._entering:
            if self._client is None:
                app = mounted_app(self.host, with_users=self._user is not None)
                self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=2.0)
                await self._runner.setup()
                self._client = aiohttp.ClientSession(
                    connector=_SocketPairs(self._runner), auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
                )
        return self

    async def __aexit__(self, *_: object) -> None:
        client, runner, self._client = self._client, self._runner, None
        if client is not None and runner is not None:
            await runner.cleanup()
            await client.close()

    @asynccontextmanager
    async def lifespan(self, _: Any = None) -> AsyncIterator[None]:
        """Start with the application around it, and stop with it: `FastAPI(lifespan=served.lifespan)`.

        Without it, the first request starts the agent's host, and interrupted runs wait until then.
        """
        async with self:
            yield

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[Any]],
    ) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self.__aenter__()
            body, more = b"", True
            while more and len(body) <= MAX_BODY:  # what is larger is refused by its length
                message = await receive()
                body += message.get("body", b"")
                more = message.get("more_body", False)
            answering = asyncio.ensure_future(self._answer(scope, body, send))
            leaving = asyncio.ensure_future(_left(receive))
            try:
                await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                if not answering.done():
                    answering.cancel()
                await asyncio.gather(answering, leaving, return_exceptions=True)
            if not answering.cancelled():
                answering.result()

    async def _answer(self, scope: Mapping[str, Any], body: bytes, send: Callable[[_Message], Any]) -> None:
        prefix = quote(str(scope.get("root_path", "")))
        path = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1").removeprefix(prefix) or "/"
        url = URL(f"http://agent{path}?{scope['query_string'].decode('latin-1')}", encoded=True)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = [each for each in headers if each[0].lower() not in {*_NOT_FORWARDED, USER_HEADER, PREFIX_HEADER}]
        headers.append((PREFIX_HEADER, prefix))
        if self._user is not None:
            headers.append((USER_HEADER, self._user(scope)))
        assert self._client is not None
        async with self._client.request(
            scope["method"], url, headers=headers, data=body or None, allow_redirects=False, timeout=_NO_TIMEOUT
        ) as response:
            found = [(name.lower(), value) for name, value in response.raw_headers]
            found = [each for each in found if each[0] not in (b"connection", b"keep-alive", b"transfer-encoding")]
            await send({"type": "http.response.start", "status": response.status, "headers": found})
            async for piece in response.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def _live(self, receive: Callable[[], Awaitable[_Message]], send: Callable[[_Message], Any]) -> None:
        await receive()
        await self.__aenter__()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.__aexit__()
        await send({"type": "lifespan.shutdown.complete"})


async def _left(receive: Callable[[], Awaitable[_Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _SocketPairs(aiohttp.BaseConnector):
    """Connects a client with the application of a runner, in one process and without a port."""

    def __init__(self, runner: web.AppRunner) -> None:
        super().__init__(limit=0)
        self._runner = runner

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        assert self._runner.server is not None
        await loop.connect_accepted_socket(self._runner.server, theirs)
        _, protocol = await loop.create_connection(self._factory, sock=ours)
        return protocol
