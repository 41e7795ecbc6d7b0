"""Access control of a server: keys, and no web pages of other origins."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from closeout.errors import ConfigError
from closeout.server.api_errors import ApiError, error_response
from closeout.server.app import Handler

__all__ = [
    "USER_HEADER",
    "client_key",
    "client_of",
    "is_loopback",
    "key_check",
    "origin_check",
    "seen_by",
    "separate_clients",
    "separate_users",
]

PUBLIC = frozenset({"/healthz"})
USER_HEADER = "x-closeout-user"
_WITH_USERS: Final = web.AppKey[bool]("with users")
_OPERATORS: Final = web.AppKey[Sequence[bytes]]("operators")  # digests of their keys; missing: everybody is one


def is_loopback(address: str) -> bool:
    """Return whether a server at this address can be reached from this computer only."""
    import ipaddress

    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def key_check(keys: Sequence[str]) -> Middleware:
    """Return a middleware that refuses requests without one of the keys. Without keys, all requests pass.

    A key is sent as `Authorization: Bearer KEY` or as `x-api-key: KEY`.

    Raises:
        ConfigError: A key is empty, or the keys are one text, whose characters would be the keys.
    """
    if isinstance(keys, str):
        raise ConfigError("keys must be a list, got a text. Pass keys=[KEY].")
    if not all(key.strip() for key in keys):
        raise ConfigError(
            "One of the keys is empty, so everybody would have it. Remove it: splitting a text that ends in a comma "
            "leaves an empty key."
        )
    digests = _digests(keys)

    @web.middleware
    async def check_key(request: web.Request, handler: Handler) -> web.StreamResponse:
        if digests and request.path not in PUBLIC and not _is_known(client_key(request.headers), digests):
            message = "The API key is missing or wrong. Send it as `Authorization: Bearer KEY`."
            return error_response(ApiError(401, message, code="invalid_api_key"))
        return await handler(request)

    return check_key


def client_of(request: web.Request) -> str:
    """Return the user of a request, or else a short name for its API key, empty if it has none."""
    if _WITH_USERS in request.app:
        if user := request.headers.get(USER_HEADER, ""):
            return user
        raise ApiError(401, "This request has no user.", code="no_user")
    key = client_key(request.headers)
    return f"key-{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}" if key else ""


def separate_clients(app: web.Application, operator_keys: Sequence[str]) -> None:
    """Let a request see only the runs that its key began, unless the key is an operator's."""
    app[_OPERATORS] = _digests(operator_keys)


def separate_users(app: web.Application) -> None:
    """Let a request see only the runs that its user began, whom the `USER_HEADER` names. Clients must not set it."""
    app[_OPERATORS], app[_WITH_USERS] = (), True


def seen_by(request: web.Request) -> str:
    """Return the client whose runs a request may see and change, empty if it may see all."""
    operators = request.app.get(_OPERATORS)
    return "" if operators is None or _is_known(client_key(request.headers), operators) else client_of(request)


def _digests(keys: Sequence[str]) -> list[bytes]:
    return [hashlib.sha256(key.encode()).digest() for key in keys]


def client_key(headers: Mapping[str, str]) -> str:
    """Return the key that a client sent; empty if it sent none."""
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _is_known(key: str, digests: Sequence[bytes]) -> bool:
    """Compare a key with all known ones, in a time that does not depend on how much of it is right."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
    matches = [hmac.compare_digest(digest, each) for each in digests]  # all of them, even after a match
    return any(matches)


@web.middleware
async def origin_check(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests from web pages of another origin: a browser sends them to loopback addresses too."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.host:
        message = f"Requests from web pages of {origin[:100]} are not served."
        return error_response(ApiError(403, message, code="cross_origin"))
    return await handler(request)
