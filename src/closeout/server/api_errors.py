"""Errors as OpenAI's APIs report them, and bodies that are checked before they are used."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from closeout.codec import decode_json
from closeout.errors import (
    CloseoutError,
    JournalError,
    JournalLocked,
    LeaseLost,
    ResumeRefused,
    RunExists,
    RunNotFound,
)
from closeout.models.long_steps import pause_after
from closeout.run.sse_stream import INTERNAL
from closeout.server.admission import Busy
from closeout.server.app import Handler, json_response

__all__ = ["TYPES", "ApiError", "api_errors", "error_body", "error_response", "json_body", "json_value"]

log = logging.getLogger("closeout.server")

UNAVAILABLE = "The server cannot read or write its runs now. Its log says more."
_OF_A_RUN = (RunNotFound, RunExists, JournalLocked, LeaseLost, ResumeRefused)  # their texts name the run only
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
RETRY_SECONDS = 5  # seconds until a refused client may ask again


class ApiError(Exception):
    """A request that cannot be served. The message says what is wrong and what to do.

    `repeatable`: the client may send it again, and nothing is done twice.
    """

    repeatable = False

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the error as the body of a response, or the data of an event."""
    kind = TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def error_response(
    error: ApiError, *, retry: bool = False, body: Callable[[ApiError], Mapping[str, Any]] = error_body
) -> web.Response:
    """Return the error as a response. Clients repeat a request that failed only if `retry` or the error says so."""
    repeat = retry or error.repeatable
    headers = {"Retry-After": str(RETRY_SECONDS)} if repeat else {"x-should-retry": "false"}
    return json_response(body(error), headers, status=error.status)


@web.middleware
async def api_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn the errors of the APIs into responses. `create_app` turns the others."""
    try:
        return await handler(request)
    except ApiError as error:
        return error_response(error)
    except Busy as error:
        return error_response(ApiError(429, str(error), code="too_many_requests"), retry=True)
    except web.HTTPRequestEntityTooLarge:
        return error_response(ApiError(413, f"The body is larger than {request.client_max_size:,} bytes."))
    except ConnectionError:
        return web.Response(status=499)  # the client is gone: nothing reaches it
    except JournalError as error:
        if isinstance(error, _OF_A_RUN):
            raise
        log.error("Error while serving %s %s: %s", request.method, request.path, error)  # its text names the home
        return error_response(ApiError(503, UNAVAILABLE, code="journal_error"), retry=True)
    except (web.HTTPException, CloseoutError):
        raise
    except Exception:
        log.exception("Error while serving %s %s", request.method, request.path)
        return error_response(ApiError(500, INTERNAL, code="internal"))


async def json_body(request: web.Request) -> dict[str, Any]:
    """Return the body of a request, a JSON object.

    Raises:
        ApiError: It is not one, or not declared as JSON: a web page may send other types to any server.
    """
    body = await json_value(request)
    if not isinstance(body, dict):
        raise ApiError(400, "The body must be a JSON object.")
    return body


async def json_value(request: web.Request) -> Any:
    """Return the body of a request, any JSON value.

    Raises:
        ApiError: It is not JSON, or not declared as such: a web page may send other types to any server.
    """
    if request.content_type != "application/json":
        raise ApiError(415, f"Send Content-Type: application/json, not {request.content_type[:80]}.")
    data = await request.read()
    began = time.thread_time()
    try:
        value = decode_json(data)
    except ValueError:
        raise ApiError(400, "The body is not valid JSON.") from None
    await pause_after(began, len(data))
    return value
