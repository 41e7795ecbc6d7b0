"""HTTP to model servers, the one module on aiohttp: connections, TLS, proxies, deadlines, and their failures as ours.

What is sent and what a reply means is the clients' business.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import io
import os
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit
from weakref import WeakKeyDictionary

from closeout import __version__
from closeout.errors import (
    ConfigError,
    ModelError,
    ModelTimeout,
    ModelUnreachable,
    PermanentModelError,
    ServerFailed,
    StreamDropped,
)

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Endpoint", "Response", "close_pool", "get", "post"]

# What every request carries, where its endpoint does not say otherwise.
COMMON_HEADERS: Mapping[str, str] = {
    "Content-Type": "application/json",
    "Accept-Encoding": "identity",  # replies are short: unpacking them costs more than it saves
    "User-Agent": f"closeout/{__version__}",
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


class Endpoint:
    """An address that requests of one kind go to, with the headers that they all carry.

    Raises ConfigError for an address that is none. The URL and the proxy from the environment (`HTTPS_PROXY`,
    `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`) are worked out once, at the first request.
    """

    __slots__ = ("_route", "headers", "origin", "url")

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        parts = _checked(url)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        self.url = url.strip()
        self.origin = f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")
        self.headers = {name: _header(name, value) for name, value in (headers or {}).items()}
        self._route: tuple[Any, dict[str, Any]] | None = None

    def route(self) -> tuple[Any, dict[str, Any]]:
        """The parsed URL and what every request passes to aiohttp."""
        if self._route is None:
            from multidict import CIMultiDict
            from yarl import URL

            # A redirect would carry the key to an address that nobody configured: none is followed.
            options: dict[str, Any] = {"headers": CIMultiDict(self.headers), "allow_redirects": False}
            proxy, login = _proxy_for(urlsplit(self.url))
            if proxy is not None:
                options["proxy"] = proxy
            if login and self.url.startswith("https:"):
                options["proxy_headers"] = login
            elif login:  # without TLS there is no tunnel: the request itself is what the proxy reads
                options["headers"] = CIMultiDict({**self.headers, **login})
            self._route = (URL(self.url), options)
        return self._route


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if parts.scheme not in {"http", "https"} or not _has_place(parts) or any(c.isspace() for c in url.strip()):
        raise ConfigError(f"'{url:.200}' is not the address of a server. Write it like http://localhost:8000/v1.")
    if parts.username or parts.password:  # it would stand in errors and records, and HTTP takes only one login
        raise ConfigError(f"The address of {parts.hostname} holds a login. Give an API key in its place.")
    return parts


def _header(name: str, value: str) -> str:
    """A key read from a file ends in a line break as a rule; one within it is a mistake."""
    value = value.strip()
    if any(character < " " or character == "\x7f" for character in value):
        raise ConfigError(f"The header {name} would hold a line break or control character. Is the API key whole?")
    return value


def _proxy_for(parts: SplitResult) -> tuple[str | None, dict[str, str]]:
    """The proxy that the environment names for an address, and the header that logs in to it."""
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
    """An answer whose body is still to be read. `close` ends the connection, which stops a server's generation."""

    __slots__ = ("_origin", "_raw", "headers", "status")

    def __init__(self, raw: aiohttp.ClientResponse, origin: str) -> None:
        self._raw = raw
        self._origin = origin
        self.status: int = raw.status
        self.headers: Mapping[str, str] = raw.headers

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    async def read(self, limit: int = MAX_BODY) -> bytes:
        """The whole body. One longer than `limit` bytes is a ServerFailed."""
        try:
            length = self._raw.content_length
            if length is not None and length <= limit and "Content-Encoding" not in self.headers:
                return await self._raw.read()
            return await self._read_pieces(limit)
        except Exception as error:
            self.close()
            raise _translated(error, self._origin, reading=True) from error
        except BaseException:  # cancelled: what the server still writes is for nobody
            self.close()
            raise

    async def _read_pieces(self, limit: int) -> bytes:
        pieces, size = [], 0
        async for piece in self._raw.content.iter_any():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                self.close()
                raise ServerFailed(f"{self._origin} sent more than {limit // 2**20} MiB in one reply.")
        self._raw.release()
        return b"".join(pieces)

    async def read_start(self, limit: int = MAX_ERROR_BODY) -> bytes:
        """The first `limit` bytes of a body, however it ends: what an error says. The connection is closed."""
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
        """The body as it comes in. Read to its end, the connection goes back to the pool; broken off, it is closed."""
        size = 0
        try:
            async for piece in self._raw.content.iter_any():
                size += len(piece)
                if size > MAX_STREAM:
                    self.close()
                    raise ServerFailed(f"{self._origin} sent more than {MAX_STREAM // 2**20} MiB in one reply.")
                yield piece
        except Exception as error:
            raise _translated(error, self._origin, reading=True) from error
        finally:
            self._raw.release()

    async def drain(self) -> None:
        """Waits a moment for the end of a body that has no more to say, so that its connection can be used again."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while await self._raw.content.readany():
                    pass
        except Exception:
            self.close()

    def close(self) -> None:
        self._raw.close()


def post(endpoint: Endpoint, body: bytes, *, timeout: float | None) -> Awaitable[Response]:
    """Sends a body; returns once status and headers are there. Raises ModelError.

    `timeout`: seconds for everything up to the end of the reply's body.
    """
    data: Any = body if len(body) <= LARGE_BODY else io.BytesIO(body)
    return _request(endpoint, "POST", data, timeout)


def get(endpoint: Endpoint, *, timeout: float | None) -> Awaitable[Response]:
    """Asks for an address; as `post`."""
    return _request(endpoint, "GET", None, timeout)


async def _request(endpoint: Endpoint, method: str, data: Any, timeout: float | None) -> Response:
    loop = asyncio.get_running_loop()
    keeper = _keepers.get(loop)
    # After a fork the child has the parent's loop object and must not write to the parent's sockets.
    if keeper is None or keeper.session.closed or keeper.process != os.getpid():
        keeper = await _new_keeper(loop)
    url, options = endpoint.route()
    try:
        raw = await keeper.session.request(method, url, data=data, timeout=keeper.deadline(timeout), **options)
    except Exception as error:
        raise _translated(error, endpoint.origin, reading=False) from error
    return Response(raw, endpoint.origin)


def _translated(error: Exception, origin: str, *, reading: bool) -> Exception:
    """aiohttp's exceptions as ModelErrors; what is no failure of the wire stays what it is."""
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


class _Keeper:
    """The session of one event loop and the deadlines in use on it."""

    __slots__ = ("_deadlines", "guard", "process", "session")

    def __init__(self, session: aiohttp.ClientSession, guard: AsyncGenerator[None, None]) -> None:
        self.session = session
        self.guard = guard
        self.process = os.getpid()
        self._deadlines: dict[float | None, aiohttp.ClientTimeout] = {}

    def deadline(self, seconds: float | None) -> aiohttp.ClientTimeout:
        found = self._deadlines.get(seconds)
        if found is None:
            from aiohttp import ClientTimeout

            if len(self._deadlines) > 64:  # shortened deadlines of retries differ each time
                self._deadlines.clear()
            connect = CONNECT_SECONDS if seconds is None else min(seconds, CONNECT_SECONDS)
            found = self._deadlines[seconds] = ClientTimeout(total=seconds, sock_connect=connect)
        return found


_keepers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Keeper] = WeakKeyDictionary()


async def _new_keeper(loop: asyncio.AbstractEventLoop) -> _Keeper:
    _forget_dead_loops()
    session = _session()
    guard = _closing(session)
    keeper = _keepers[loop] = _Keeper(session, guard)
    await anext(guard)
    return keeper


def _session() -> aiohttp.ClientSession:
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=POOL_LIMIT, keepalive_timeout=30.0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=COMMON_HEADERS,
    )


async def _closing(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    """An event loop closes its async generators when it shuts down: that is when the session must go."""
    try:
        yield
    finally:
        await session.close()


async def close_pool() -> None:
    """Closes the running loop's connections; a later request opens new ones.

    Only needed where a loop ends without `shutdown_asyncgens`; `asyncio.run` and its like see to it.
    """
    keeper = _keepers.pop(asyncio.get_running_loop(), None)
    if keeper is not None:
        await keeper.guard.aclose()


def _forget_dead_loops() -> None:
    """Drops sessions whose loop is gone without having closed them, without a word from their destructors."""
    for loop, keeper in list(_keepers.items()):
        if loop.is_closed():
            _abandon(keeper)
            del _keepers[loop]


@atexit.register
def _abandon_all() -> None:
    for keeper in list(_keepers.values()):
        _abandon(keeper)
    _keepers.clear()


def _abandon(keeper: _Keeper) -> None:
    connector = keeper.session.connector
    keeper.session.detach()
    with suppress(Exception):
        if connector is not None and not connector.closed:
            # Its loop is gone: there is nothing to wait with, the sockets close when they are collected.
            connector._closed = True
