"""The web application that all servers share: which hosts may be named, security headers, errors as JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from closeout.codec import encode_json
from closeout.errors import CloseoutError, JournalError, RunNotFound, UsageError
from closeout.homes import Home

__all__ = ["HEADERS", "HOME", "LOOPBACK_HOSTS", "Handler", "create_app", "error_response", "json_response"]

HOME: Final = web.AppKey[Home]("home")
"""The folder that stores the runs."""

MAX_BODY = 16 * 2**20  # bytes
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})

HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
"""The headers of every response, streamed ones too. A page sets the Content-Security-Policy that it needs."""


def create_app(
    home: Home, *, hosts: Collection[str] | None = LOOPBACK_HOSTS, max_body: int = MAX_BODY
) -> web.Application:
    """Create the application without any routes. Features add theirs: `add_viewer(app)`.

    Args:
        home: The folder that stores the runs.
        hosts: The host names that a request may be addressed to; None for any. This refuses a web page elsewhere that
            resolves its own name to this computer.
        max_body: The bytes that the body of a request may have.
    """
    app = web.Application(client_max_size=max_body, middlewares=[_explain_errors, _host_check(hosts)])
    app.on_response_prepare.append(_add_headers)
    app[HOME] = home
    return app


def error_response(status: int, message: str, kind: str) -> web.Response:
    """Return an error as JSON, in the shape that OpenAI clients read."""
    return web.json_response({"error": {"message": message, "type": kind, "param": None, "code": None}}, status=status)


def json_response(value: Any, headers: Mapping[str, str] | None = None, *, status: int = 200) -> web.Response:
    """Return a value as JSON, written with the codec of the journal."""
    return web.Response(status=status, body=encode_json(value), content_type="application/json", headers=headers)


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


@web.middleware
async def _explain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RunNotFound as error:
        return error_response(404, str(error), "not_found")
    except JournalError as error:
        return error_response(503, str(error), "journal_error")
    except UsageError as error:
        return error_response(400, str(error), "invalid_request_error")
    except CloseoutError as error:
        return error_response(500, str(error), type(error).__name__)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return error_response(error.status, error.text or error.reason, "invalid_request_error")


def _host_check(hosts: Collection[str] | None) -> Middleware:
    @web.middleware
    async def check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
        if hosts is not None and _host_name(request.host) not in hosts:
            return error_response(
                403, f"This server does not answer for the host {request.host[:100]}.", "invalid_request_error"
            )
        return await handler(request)

    return check_host


def _host_name(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()
