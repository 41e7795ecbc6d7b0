"""Sign in to the MCP server that a run waits for, from the viewer's page.

The page shows the address of the authorization server as a link; nothing is opened by itself. The authorization server
sends the browser back to this server. Only the answer to a login that was begun here counts, in the browser that began
it: the state must be that of the login, and the cookie that of the browser.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

from closeout.errors import CloseoutError, UsageError
from closeout.tools.mcp.mcp_auth import McpAuth
from closeout.tools.mcp.mcp_config import McpServerConfig, read_servers
from closeout.tools.mcp.mcp_logins import same_address

__all__ = ["CALLBACK", "SignIns"]

CALLBACK = "/viewer/login/callback"
# Seconds that a person has to sign in.
SIGN_IN_SECONDS = 600.0
# Seconds until the authorization server's page must be known.
PAGE_SECONDS = 60.0
DONE = "Done. You can close this page and go back to the run."
UNKNOWN = "This login was not begun in this browser, or it is over. Begin it again on the run's page.\n"


@dataclass(slots=True)
class _SignIn:
    """One login that is under way, and the cookie of the browser that began it."""

    name: str
    cookie: str
    state: str = ""
    page: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    left: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    task: asyncio.Task[None] | None = None

    async def show(self, page: str) -> str:
        """Hand over the authorization server's page, and wait for the address that the browser was sent to."""
        self.state = parse_qs(urlsplit(page).query).get("state", [""])[0]
        if not self.page.done():
            self.page.set_result(page)
        return await self.left


class SignIns:
    """The logins that are under way, one for each server."""

    def __init__(self) -> None:
        self._begun: dict[str, _SignIn] = {}  # by the server's address
        self._problems: dict[str, str] = {}

    def problem(self, url: str) -> str:
        """Return why the last login to a server failed; empty if it did not."""
        return self._problems.get(same_address(url), "")

    async def begin(
        self, request: web.Request, url: str, known: Iterable[McpServerConfig], scope: str = ""
    ) -> web.Response:
        """Begin to sign in to a server. The response has the address of the page to open, empty if none is needed.

        Args:
            request: From the browser, which returns here after the login.
            url: The server's address.
            known: The servers of the settings, which may describe the login.
            scope: The rights to ask for, besides those of the settings.

        Raises:
            UsageError: The login cannot begin.
        """
        config = _config_of(url, known)
        auth = config.auth or McpAuth()
        if auth.grant != "authorization_code" or auth.sign_in is not None:
            raise UsageError(f"Nobody signs in to MCP server {config.name!r} by hand: its settings say how.")
        address = same_address(url)
        await self._end(address)
        signing = self._begun[address] = _SignIn(
            f"closeout-login-{hashlib.sha256(address.encode()).hexdigest()[:12]}", secrets.token_urlsafe(24)
        )
        callback = auth.redirect_url or f"{request.scheme}://{request.host}{CALLBACK}"
        rights = (*auth.scopes, *(each for each in scope.split() if each not in auth.scopes))
        mine = replace(auth, redirect_url=callback, sign_in=signing.show, is_new=True, scopes=rights)
        signing.task = asyncio.create_task(self._sign_in(address, replace(config, auth=mine), signing))
        try:
            async with asyncio.timeout(PAGE_SECONDS):
                page = await asyncio.shield(signing.page)
        except TimeoutError:
            await self._end(address)
            raise UsageError(f"MCP server {config.name!r} did not say where to sign in.") from None
        response = web.json_response({"page": page})
        response.set_cookie(
            signing.name, signing.cookie, path=CALLBACK, httponly=True, samesite="Lax", max_age=int(SIGN_IN_SECONDS)
        )
        return response

    async def _sign_in(self, address: str, config: McpServerConfig, signing: _SignIn) -> None:
        from closeout.tools.mcp.mcp_client import McpServer, require_mcp

        self._problems.pop(address, None)
        try:
            require_mcp()
            server = McpServer(replace(config, start_timeout=SIGN_IN_SECONDS))
            try:
                await server.open()
            finally:
                await server.aclose()
            if not signing.page.done():
                signing.page.set_result("")  # the server wants no login
        except Exception as error:  # whatever a server can make the library raise
            reason = str(error) if isinstance(error, CloseoutError) else f"The login failed: {type(error).__name__}."
            self._problems[address] = reason
            if not signing.page.done():
                signing.page.set_exception(UsageError(reason))
        finally:
            if not signing.page.done():
                signing.page.set_exception(UsageError("Another login to this server was begun."))
            if self._begun.get(address) is signing:
                del self._begun[address]

    async def receive(self, request: web.Request) -> web.Response:
        """Take the browser that comes back from an authorization server."""
        state = request.query.get("state", "")
        for signing in self._begun.values():
            is_ours = hmac.compare_digest(signing.state.encode(), state.encode("utf-8", "replace"))
            cookie = request.cookies.get(signing.name, "")
            is_same = hmac.compare_digest(signing.cookie.encode(), cookie.encode("utf-8", "replace"))
            if signing.state and is_ours and is_same and not signing.left.done():
                signing.left.set_result(str(request.rel_url))
                return web.Response(text=DONE)
        return web.Response(text=UNKNOWN, status=400)

    async def _end(self, address: str) -> None:
        signing = self._begun.pop(address, None)
        if signing is not None and signing.task is not None:
            signing.task.cancel()
            await asyncio.wait([signing.task])

    async def close(self) -> None:
        """End the logins that are under way."""
        for address in list(self._begun):
            await self._end(address)


def _config_of(url: str, known: Iterable[McpServerConfig]) -> McpServerConfig:
    address = same_address(url)
    found = next((each for each in known if each.url and same_address(each.url) == address), None)
    return read_servers(url)[0] if found is None else found
