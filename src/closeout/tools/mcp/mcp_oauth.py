"""Sign in to MCP servers with the OAuth client of the `mcp` library, and the logins that are kept."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any, Protocol, Self
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.utils import (
    extract_field_from_www_auth,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    union_scopes,
)
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from pydantic import AnyUrl, BaseModel, ValidationError

from closeout.errors import ConfigError
from closeout.redaction import redact
from closeout.tools.mcp.mcp_auth import McpAuth
from closeout.tools.mcp.mcp_config import McpServerConfig
from closeout.tools.mcp.mcp_logins import login_lock, read_login, write_login

__all__ = ["LoginFailed", "auth_for", "login_command", "revoke_login", "wants_login"]

_EARLY = 30.0  # seconds before its end in which a token is refreshed: clocks differ, and a request takes time
_SECONDS = 30.0  # Seconds for a request to refresh or to revoke a token.


class LoginFailed(OAuthFlowError):
    """A server wants a login that is not there, or the login failed. The text is for the user.

    `is_missing` is true if a person can mend it by signing in.
    """

    def __init__(self, text: str, *, is_missing: bool = False) -> None:
        super().__init__(text)
        self.is_missing = is_missing


class OnFailure(Protocol):
    """Called when a login is missing or fails: the library may not pass it on."""

    def __call__(self, problem: str, *, is_missing: bool, refused: httpx2.Request, scope: str = "") -> object: ...


def wants_login(config: McpServerConfig, response: httpx2.Response) -> str:
    """Return a sentence if a server wants a login that a person can make; empty for any other answer."""
    auth = config.auth or McpAuth()
    is_left_out = auth.sign_in is not None or auth.grant != "authorization_code" or _has_key(config)
    if response.status_code != 401 or is_left_out or not extract_resource_metadata_from_www_auth(response):
        return ""
    return f"MCP server {config.name!r} wants a login. Sign in with: {login_command(config)}"


def _has_key(config: McpServerConfig) -> bool:
    return any(name.lower() == "authorization" for name in config.headers)


def auth_for(config: McpServerConfig, on_failure: OnFailure) -> httpx2.Auth | None:
    """Return what signs in to a server; None if nobody has signed in and nobody is there to do it."""
    auth, provider = config.auth or McpAuth(), None
    if _has_key(config):
        return None
    if auth.grant == "client_credentials":
        provider = _client_credentials(config, auth)
    elif auth.sign_in is not None or read_login(config.url) is not None:
        provider = _KeptLogin(config, auth)
    return None if provider is None else provider.for_server(config, on_failure)


def login_command(config: McpServerConfig, scope: str = "") -> str:
    """Return the command that signs in to a server."""
    return f"closeout mcp login {config.address}" + (f' --scope "{scope}"' if scope else "")


async def revoke_login(config: McpServerConfig) -> str:
    """Ask the authorization server to end the tokens of a login (RFC 7009).

    Returns:
        Why they may still be valid; empty if they are not.
    """
    provider = _KeptLogin(config, config.auth or McpAuth()).for_server(config, _nobody)
    await provider._initialize()
    context = provider.context
    metadata, tokens, client = context.oauth_metadata, context.current_tokens, context.client_info
    if metadata is None or metadata.revocation_endpoint is None:
        return "The authorization server offers no way to revoke its tokens. They are valid until they end."
    if tokens is None or client is None or client.client_id is None:
        return ""
    sent = {"refresh_token": tokens.refresh_token, "access_token": tokens.access_token}
    try:
        async with httpx2.AsyncClient(timeout=_SECONDS) as http:
            for kind, token in sent.items():
                if token:
                    data = {"token": token, "token_type_hint": kind, "client_id": client.client_id}
                    data, headers = context.prepare_token_auth(data)
                    response = await http.post(str(metadata.revocation_endpoint), data=data, headers=headers)
                    response.raise_for_status()
    except (httpx2.HTTPError, OAuthFlowError) as error:
        response_of = getattr(error, "response", None)
        reason = type(error).__name__ if response_of is None else f"HTTP {response_of.status_code}"
        return f"The authorization server did not revoke the tokens ({reason}). They may be valid until they end."
    return ""


def _nobody(problem: str, *, is_missing: bool, refused: httpx2.Request, scope: str = "") -> None:
    """Leave out what went wrong: it is returned."""


class _Provider(OAuthClientProvider):
    """The library's client, whose failures are sentences for the user."""

    _lacks_rights = False  # the server refused the request because of the token's scopes

    def for_server(self, config: McpServerConfig, on_failure: OnFailure) -> Self:
        self._config, self._on_failure = config, on_failure
        return self

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        refused = ""
        for _ in range(2):
            try:
                await self._reload(request, refused)
            except (OAuthFlowError, ConfigError) as error:
                raise self._failed(error, request) from None
            if not self._initialized or not self.context.is_token_valid():
                break
            token = self.context.current_tokens.access_token if self.context.current_tokens else ""
            if token == refused:
                break
            self._add_auth_header(request)  # without the library's lock: requests need not wait for each other
            response = yield request
            self._lacks_rights = response.status_code == 403
            if response.status_code not in (401, 403) or self._must_refuse(response, request):
                return
            if self._lacks_rights:
                break
            refused = token
        flow = super()._auth_flow(request)
        try:
            sent = await anext(flow)
            while True:
                response = yield sent
                if sent is request:
                    self._lacks_rights = response.status_code == 403
                sent = await flow.asend(response)
        except StopAsyncIteration:
            return
        except (OAuthFlowError, ConfigError, ValueError) as error:
            raise self._failed(error, request) from None
        finally:
            await flow.aclose()

    async def _reload(self, request: httpx2.Request, refused: str) -> None:
        """Read the login again: another process may have changed it. The server has refused the token `refused`."""

    def _must_refuse(self, response: httpx2.Response, request: httpx2.Request) -> bool:
        """True if the server's refusal is the outcome of the request."""
        return False

    def _failed(self, error: Exception, request: httpx2.Request) -> LoginFailed:
        if not isinstance(error, LoginFailed):
            lines = str(error).splitlines() or [type(error).__name__]
            reason = redact(lines[0][:300].rstrip("."), self._config.secrets)
            error = LoginFailed(f"The login to MCP server {self._config.name!r} failed: {reason}.")
        self._on_failure(str(error), is_missing=error.is_missing, refused=request)
        return error


# ------------------------------------------------------------------------------------------------ without a person


class _ByClient(_Provider, ClientCredentialsOAuthProvider):
    pass


class _BySignedClient(_Provider, PrivateKeyJWTOAuthProvider):
    pass


class _NothingKept:
    """The storage of a client that signs in by itself: each session fetches its own tokens."""

    async def get_tokens(self) -> None:
        pass

    async def set_tokens(self, tokens: OAuthToken) -> None:
        pass

    async def get_client_info(self) -> None:
        pass

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        pass


def _client_credentials(config: McpServerConfig, auth: McpAuth) -> _Provider:
    scope = " ".join(auth.scopes) or None
    client_id, url, storage = auth.client_id or "", config.url, _NothingKept()
    if auth.private_key is None:
        return _ByClient(url, storage, client_id, auth.client_secret or "", scope=scope, issuer=auth.issuer)
    signed = SignedJWTParameters(
        issuer=client_id, subject=client_id, signing_key=auth.private_key, signing_algorithm=auth.signing_algorithm
    )
    return _BySignedClient(url, storage, client_id, signed.create_assertion_provider(), scope=scope, issuer=auth.issuer)


# ------------------------------------------------------------------------------------------------ by a person


class _KeptLogin(_Provider):
    """The library's client on a login that is kept: it is read for each request and written whole.

    Two things that the library leaves to the application: the authorization server and the end of a token are kept
    with it, so that another process can refresh it; and a token that ended early is refreshed before a person is asked.
    """

    def __init__(self, config: McpServerConfig, auth: McpAuth) -> None:
        metadata = OAuthClientMetadata(
            client_name="Closeout", redirect_uris=[AnyUrl(auth.callback)], scope=" ".join(auth.scopes) or None
        )
        super().__init__(
            config.url, metadata, self, self._show_page, self._page_left, client_metadata_url=auth.client_metadata_url
        )
        self._auth = auth
        self._is_new = auth.is_new  # nothing is read until the login is complete
        self._page = ""  # the authorization server's page

    # -------------------------------------------------------------------------------------------- the requests

    async def _reload(self, request: httpx2.Request, refused: str) -> None:
        """Read the login, and refresh it if it has ended. Of several processes that need it, one does so."""
        await self._initialize()
        if self._is_new or not self._must_refresh(refused):
            return
        async with login_lock(self._config.url):
            await self._initialize()
            if not self._must_refresh(refused):
                return  # another process was faster
            self.context.protocol_version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
            try:
                async with httpx2.AsyncClient(timeout=_SECONDS) as http:
                    response = await http.send(await self._refresh_token())
            except httpx2.HTTPError as error:
                problem = f"the authorization server cannot be reached ({type(error).__name__}), try again later"
                raise OAuthFlowError(problem) from None
            if response.status_code >= 500 or response.status_code == 429:
                raise OAuthFlowError(f"the authorization server answered HTTP {response.status_code}, try again later")
            await self._handle_refresh_response(response)

    def _must_refresh(self, refused: str) -> bool:
        tokens = self.context.current_tokens
        has_ended = not self.context.is_token_valid() or (tokens is not None and tokens.access_token == refused)
        return has_ended and self.context.can_refresh_token()

    def _must_refuse(self, response: httpx2.Response, request: httpx2.Request) -> bool:
        """True if a request needs a scope that a person must grant: it waits alone, and the session continues."""
        if not (self._lacks_rights and self._auth.sign_in is None):
            return False
        if extract_field_from_www_auth(response, "error") == "insufficient_scope":
            tokens = self.context.current_tokens
            scope = union_scopes(None if tokens is None else tokens.scope, extract_scope_from_www_auth(response)) or ""
            problem = self._sentence("asks for more rights than its login has", scope)
            self._on_failure(problem, is_missing=True, refused=request, scope=scope)
        return True

    async def _initialize(self) -> None:
        """Read the login."""
        login = {} if self._is_new else read_login(self._config.url) or {}
        context = self.context
        context.current_tokens = _model(OAuthToken, login.get("tokens"))
        context.client_info = _model(OAuthClientInformationFull, login.get("client")) or self._own_client()
        context.oauth_metadata = _model(OAuthMetadata, login.get("authorization_server"))
        context.protected_resource_metadata = _model(ProtectedResourceMetadata, login.get("resource"))
        context.auth_server_url = login.get("issuer")
        ends = login.get("expires_at")
        context.token_expiry_time = ends - _EARLY if isinstance(ends, int | float) else None
        self._initialized = True

    def _own_client(self) -> OAuthClientInformationFull | None:
        """The client that the settings name."""
        auth = self._auth
        if not auth.client_id:
            return None
        return OAuthClientInformationFull(
            client_id=auth.client_id,
            client_secret=auth.client_secret,
            token_endpoint_auth_method="client_secret_basic" if auth.client_secret else "none",
            redirect_uris=[AnyUrl(auth.callback)],
            issuer=auth.issuer,
        )

    async def _perform_authorization(self) -> httpx2.Request:
        metadata = self.context.client_metadata
        metadata.scope = union_scopes(metadata.scope, " ".join(self._auth.scopes))
        return await super()._perform_authorization()

    # -------------------------------------------------------------------------------------------- the person

    async def _show_page(self, page: str) -> None:
        if self._auth.sign_in is None:
            raise LoginFailed(self._sentence("does not accept its login any more"), is_missing=True)
        self._page = page

    async def _page_left(self) -> AuthorizationCodeResult:
        assert self._auth.sign_in is not None
        address = await self._auth.sign_in(self._page)
        found = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        if "error" in found:
            reason = found.get("error_description") or found["error"]
            raise LoginFailed(f"The login to MCP server {self._config.name!r} was refused: {reason[:300]}.")
        return AuthorizationCodeResult(code=found.get("code", ""), state=found.get("state"), iss=found.get("iss"))

    def _sentence(self, problem: str, scope: str = "") -> str:
        command = login_command(self._config, scope)
        return f"MCP server {self._config.name!r} {problem}. Sign in with: {command}"

    # -------------------------------------------------------------------------------------------- what is kept

    async def get_tokens(self) -> OAuthToken | None:
        return self.context.current_tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.context.client_info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Wait for the tokens: a client without them is no login."""

    async def set_tokens(self, tokens: OAuthToken) -> None:
        context = self.context
        login = {
            "name": self._config.name,
            "tokens": _plain(tokens),
            "expires_at": None if tokens.expires_in is None else time.time() + tokens.expires_in,
            "client": _plain(context.client_info),
            "authorization_server": _plain(context.oauth_metadata),
            "resource": _plain(context.protected_resource_metadata),
            "issuer": context.auth_server_url,
        }
        self._is_new = False
        write_login(self._config.url, login)


def _plain(value: BaseModel | None) -> Any:
    return None if value is None else value.model_dump(mode="json", exclude_none=True)


def _model(kind: Any, value: Any) -> Any:
    try:
        return None if value is None else kind.model_validate(value)
    except ValidationError:  # the file was changed, or is of another version of the library
        return None
