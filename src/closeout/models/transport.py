"""HTTP to model servers: connections, TLS, proxies, timeouts and errors. The only module that speaks to aiohttp."""

from __future__ import annotations

import asyncio
import atexit
import base64
import io
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit
from weakref import WeakKeyDictionary

from closeout.errors import (
    ConfigError,
    ModelError,
    ModelTimeout,
    ModelUnreachable,
    PermanentModelError,
    ServerFailed,
    StreamDropped,
)
from closeout.version import VERSION

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Endpoint", "Response", "close_pool", "get", "post"]

# Headers of every request, unless its endpoint sets them.
COMMON_HEADERS: Mapping[str, str] = {
    "Content-Type": "application/json",
    "Accept-Encoding": "identity",  # replies are short: unpacking them costs more than it saves
    "User-Agent": f"closeout/{VERSION}",
}
# Half of the 1,024 file descriptors that a process usually may open.
POOL_LIMIT = 512
CONNECT_SECONDS = 30.0
# A reply is at most 64 MiB: a hundred times the longest context of today in bytes would still fit.
MAX_BODY = 64 * 2**20
MAX_STREAM = 256 * 2**20  # events carry some hundred bytes for each token
MAX_ERROR_BODY = 64 * 2**10
DRAIN_SECONDS = 0.25
# aiohttp warns about raw bytes above this size; a file object is sent in pieces.
LARGE_BODY = 2**20
# A server that closes a pooled connection does so at once. If it closes one later, it may have worked on the request.
STALE_SECONDS = 5.0


class Endpoint:
    """The URL and the headers of requests. Raises ConfigError if the URL is invalid.

    The proxy comes from the environment (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`), read at the first
    request.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        parts = _checked(url)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        self.url = url.strip()
        self.origin = f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")
        self.headers = {name: _header(name, value) for name, value in (headers or {}).items()}

    @cached_property
    def route(self) -> tuple[Any, dict[str, Any]]:
        """The parsed URL and what every request passes to aiohttp."""
        from multidict import CIMultiDict
        from yarl import URL

        # Follow no redirect: it would send the key to an address that is not configured.
        options: dict[str, Any] = {"headers": CIMultiDict(self.headers), "allow_redirects": False}
        proxy, login = _proxy_for(urlsplit(self.url))
        if proxy is not None:
            options["proxy"] = proxy
        if login and self.url.startswith("https:"):
            options["proxy_headers"] = login
        elif login:  # the proxy reads a request without TLS itself
            options["headers"] = CIMultiDict({**self.headers, **login})
        return URL(self.url), options


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if parts.scheme not in {"http", "https"} or not _has_place(parts) or any(c.isspace() for c in url.strip()):
        raise ConfigError(f"'{url:.200}' is not the address of a server. Write it like http://localhost:8000/v1.")
    if parts.username or parts.password:  # it would appear in errors and records
        raise ConfigError(f"The address of {parts.hostname} contains a login. Use an API key instead.")
    return parts


def _header(name: str, value: str) -> str:
    """Strip a header's value, since a key read from a file ends in a line break. A break within it is an error."""
    value = value.strip()
    if any(character < " " or character == "\x7f" for character in value):
        raise ConfigError(f"The header {name} contains a line break or control character. Check the API key.")
    return value


def _proxy_for(parts: SplitResult) -> tuple[str | None, dict[str, str]]:
    """Return the environment's proxy for an address, and the header with its login."""
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    found = proxies.get(parts.scheme) or proxies.get("all")
    if not found or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None, {}
    proxy = urlsplit(found if "://" in found else f"http://{found}")
    if proxy.scheme not in {"http", "https"} or not _has_place(proxy):
        raise ConfigError(
            f"The proxy {proxy.scheme}://{proxy.netloc.rpartition('@')[2]} from the environment is not an HTTP proxy. "
            f"Set {parts.scheme.upper()}_PROXY to one, or NO_PROXY={parts.hostname} to go without."
        )
    bare = urlunsplit((proxy.scheme, proxy.netloc.rpartition("@")[2], "", "", ""))
    if proxy.username is None:
        return bare, {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return bare, {"Proxy-Authorization": "Basic " + base64.b64encode(login).decode()}


def _has_place(parts: SplitResult) -> bool:
    try:
        _ = parts.port
    except ValueError:
        return False
    return bool(parts.hostname)


# ------------------------------------------------------------------------------------------------ requests


class Response:
    """A response whose body has not been read. `close` closes the connection, which stops a server's generation."""

    __slots__ = ("_raw", "headers", "origin", "status")

    def __init__(self, raw: aiohttp.ClientResponse, origin: str) -> None:
        self._raw = raw
        self.origin = origin
        self.status: int = raw.status
        self.headers: Mapping[str, str] = raw.headers

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    async def read(self, limit: int = MAX_BODY) -> bytes:
        """Return the whole body. Raises ServerFailed if it is longer than `limit` bytes."""
        try:
            length = self._raw.content_length
            if length is not None and length <= limit and "Content-Encoding" not in self.headers:
                return await self._raw.read()
            return await self._read_pieces(limit)
        except Exception as error:
            self.close()
            raise _translated(error, self.origin, reading=True) from error
        except BaseException:  # cancelled: stop the server's generation
            self.close()
            raise

    async def _read_pieces(self, limit: int) -> bytes:
        pieces, size = [], 0
        async for piece in self._raw.content.iter_any():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                self.close()
                raise _too_long(self.origin, limit)
        self._raw.release()
        return b"".join(pieces)

    async def read_start(self, limit: int = MAX_ERROR_BODY) -> bytes:
        """Return the first `limit` bytes of an error's body, even if it is incomplete."""
        pieces: list[bytes] = []
        whole = False
        try:
            with suppress(Exception):
                while limit > 0 and (piece := await self._raw.content.read(limit)):
                    pieces.append(piece)
                    limit -= len(piece)
                whole = limit > 0
        finally:
            if whole:
                self._raw.release()
            else:
                self.close()
        return b"".join(pieces)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body in chunks. At its end the connection returns to the pool; otherwise it is closed."""
        size = 0
        try:
            async for piece in self._raw.content.iter_any():
                size += len(piece)
                if size > MAX_STREAM:
                    self.close()
                    raise _too_long(self.origin, MAX_STREAM)
                yield piece
        except Exception as error:
            raise _translated(error, self.origin, reading=True) from error
        finally:
            self._raw.release()

    async def drain(self) -> None:
        """Wait a moment for the end of a body, so that its connection can be used again."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while await self._raw.content.readany():
                    pass
        except Exception:
            self.close()

    def close(self) -> None:
        self._raw.close()


async def post(endpoint: Endpoint, body: bytes | None, *, timeout: float | None, method: str = "POST") -> Response:
    """Send a request.

    A request on a pooled connection that the server has closed is sent again on a new one.

    Args:
        endpoint: Where to send it.
        body: A JSON text.
        timeout: Seconds until the end of the response's body.
        method: The HTTP method.

    Returns:
        The response, once its status and headers have arrived.

    Raises:
        ModelError: The request failed.
    """
    loop = asyncio.get_running_loop()
    pool = _pools.get(loop)
    # After a fork the child has the parent's loop object and must not write to the parent's sockets.
    if pool is None or pool.session.closed or pool.process != os.getpid():
        pool = await _new_pool(loop)
    url, options = endpoint.route
    deadline = pool.deadline(timeout)
    while True:
        data: Any = body if body is None or len(body) <= LARGE_BODY else io.BytesIO(body)
        sent = loop.time()
        try:
            raw = await pool.session.request(method, url, data=data, timeout=deadline, **options)
        except Exception as error:
            if pool.was_stale(error) and loop.time() - sent < STALE_SECONDS:
                continue
            raise _translated(error, endpoint.origin, reading=False) from error
        return Response(raw, endpoint.origin)


async def get(endpoint: Endpoint, *, timeout: float | None) -> Response:
    """Send a GET request. See `post`."""
    return await post(endpoint, None, timeout=timeout, method="GET")


def _too_long(origin: str, limit: int) -> ServerFailed:
    return ServerFailed(f"{origin} sent more than {limit // 2**20} MiB in one reply.", about_request=True)


def _translated(error: Exception, origin: str, *, reading: bool) -> Exception:
    """Return an exception of aiohttp as a ModelError; other exceptions are returned unchanged."""
    import aiohttp

    if isinstance(error, ModelError):
        return error
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    reason = reason or type(error).__name__
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ModelUnreachable(f"No connection to {origin} in time. Is the address right and the server running?")
    if isinstance(error, TimeoutError):
        return ModelTimeout(f"No complete reply from {origin} in time. A longer llm.timeout may help.")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return PermanentModelError(
            f"The certificate of {origin} is not trusted: {error.certificate_error}. "
            "Point SSL_CERT_FILE at the authority that signed it."
        )
    if isinstance(error, aiohttp.ClientSSLError):
        return ModelUnreachable(f"No TLS connection to {origin}: {reason}. Does the server speak https?")
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ModelUnreachable(f"The proxy refused the way to {origin}: {error.status} {error.message}.")
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        proxy = f"{error.host}:{error.port}"
        return ModelUnreachable(f"No connection to the proxy {proxy}: {reason}. NO_PROXY names who is reached without.")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return ModelUnreachable(f"No such host: {origin}. Check base_url and the network.")
    if isinstance(error, aiohttp.ClientConnectorError):
        return ModelUnreachable(f"No connection to {origin}: {reason}. Is the server running?")
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | OSError):
        when = "in the middle of its reply" if reading else "before it replied"
        return StreamDropped(f"{origin} closed the connection {when}.")
    if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        return ConfigError(f"'{origin}' is not the address of a server. Write it like http://localhost:8000/v1.")
    if isinstance(error, aiohttp.ClientError):
        return ServerFailed(f"{origin} does not answer in HTTP: {reason[:200]}.")
    return error


# ------------------------------------------------------------------------------------------------ the pool


@dataclass(slots=True)
class _ConnectionPool:
    """The aiohttp session of one event loop, and the timeouts in use on it."""

    session: aiohttp.ClientSession
    guard: AsyncGenerator[None, None]
    process: int = field(default_factory=os.getpid)
    _deadlines: dict[float | None, aiohttp.ClientTimeout] = field(default_factory=dict)

    def deadline(self, seconds: float | None) -> aiohttp.ClientTimeout:
        found = self._deadlines.get(seconds)
        if found is None:
            from aiohttp import ClientTimeout

            if len(self._deadlines) > 64:  # shortened deadlines of retries differ each time
                self._deadlines.clear()
            connect = CONNECT_SECONDS if seconds is None else min(seconds, CONNECT_SECONDS)
            found = self._deadlines[seconds] = ClientTimeout(total=seconds, sock_connect=connect)
        return found

    @staticmethod
    def was_stale(error: Exception) -> bool:
        """Return True if a request failed because its pooled connection was closed, before any byte of a response."""
        import aiohttp

        if not isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
            return False
        connection = _used.get()
        return connection is not None and connection.requests > 1 and not connection.received


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _ConnectionPool] = WeakKeyDictionary()
# The connection of the current task's last request. aiohttp's errors do not name it.
_used: ContextVar[Any] = ContextVar("closeout_connection", default=None)


async def _new_pool(loop: asyncio.AbstractEventLoop) -> _ConnectionPool:
    import aiohttp

    _forget_dead_loops()
    session = aiohttp.ClientSession(
        connector=_connector_type()(limit=POOL_LIMIT, keepalive_timeout=30.0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=COMMON_HEADERS,
    )
    guard = _closing(session)
    pool = _pools[loop] = _ConnectionPool(session, guard)
    await anext(guard)
    return pool


@cache
def _connector_type() -> type[aiohttp.TCPConnector]:
    """Return a connector class whose connections count their requests and what each receives."""
    import aiohttp
    from aiohttp.client_proto import ResponseHandler

    class CountingConnection(ResponseHandler):
        requests = 0
        received = 0  # bytes since the last request was sent

        def data_received(self, data: bytes) -> None:
            self.received += len(data)
            super().data_received(data)

    class Connector(aiohttp.TCPConnector):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._factory = partial(CountingConnection, loop=self._loop)  # type: ignore[assignment]

        async def connect(self, *args: Any, **options: Any) -> Any:
            _used.set(None)
            found = await super().connect(*args, **options)
            connection = found.protocol
            if isinstance(connection, CountingConnection):
                connection.requests += 1
                connection.received = 0
                _used.set(connection)
            return found

    return Connector


async def _closing(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    """Close the session when its event loop shuts down: a loop closes its async generators then."""
    try:
        yield
    finally:
        await session.close()


async def close_pool() -> None:
    """Close the connections of the running loop. A later request opens new ones.

    Only needed for a loop that ends without `shutdown_asyncgens`; `asyncio.run` calls that.
    """
    pool = _pools.pop(asyncio.get_running_loop(), None)
    if pool is not None:
        await pool.guard.aclose()


def _forget_dead_loops() -> None:
    """Drop the sessions of closed loops, without the warnings of their destructors."""
    for loop, pool in list(_pools.items()):
        if loop.is_closed():
            _abandon(pool)
            del _pools[loop]


@atexit.register
def _abandon_all() -> None:
    for pool in list(_pools.values()):
        _abandon(pool)
    _pools.clear()


def _abandon(pool: _ConnectionPool) -> None:
    connector = pool.session.connector
    pool.session.detach()
    with suppress(Exception):
        if connector is not None and not connector.closed:
            # Its loop is gone: nothing can wait for the sockets, which close when they are collected.
            connector._closed = True
