"""How a connection to an MCP server is made: the process or the HTTP client, its error output, what went wrong.

Holding and using the connection is mcp_client.py's business.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

from closeout.errors import ToolError, UsageError
from closeout.tools.mcp_config import McpServerConfig

__all__ = ["ErrorTail", "ServerFailed", "open_transport", "overflowed", "reason", "require_mcp"]

STDERR_KEPT = 4_000  # bytes of a server's error output that are kept for a message
STDERR_SHOWN = 600  # characters of it in a message
MAX_EVENT_BYTES = 256_000_000  # of one result over streamable HTTP
LINES_SHOWN = 4
CONNECT_SECONDS = 30.0
SILENCE_SECONDS = 86_400.0  # of an event stream: a slow tool is silent as long as it works, and calls have deadlines


class ServerFailed(ToolError):
    """A server could not be started or reached; the text names it and says why."""


def open_transport(
    config: McpServerConfig, errors: ErrorTail, stack: AsyncExitStack
) -> AbstractAsyncContextManager[Any]:
    _keep_quiet()
    if config.transport == "stdio":
        from mcp import StdioServerParameters, stdio_client

        parameters = StdioServerParameters(
            command=_program(config), args=list(config.args), env=dict(config.env), cwd=config.cwd,
            encoding_error_handler="replace",
        )  # fmt: skip
        return stdio_client(parameters, errlog=errors.open())
    if config.transport == "sse":
        from mcp.client.sse import sse_client

        return sse_client(
            config.url, headers=dict(config.headers), timeout=CONNECT_SECONDS, sse_read_timeout=SILENCE_SECONDS
        )
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    http = httpx2.AsyncClient(
        headers=dict(config.headers),
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS),
        event_hooks={"response": [errors.note]},
    )
    stack.push_async_callback(http.aclose)
    return streamable_http_client(config.url, http_client=http, max_sse_event_size=MAX_EVENT_BYTES)


def _program(config: McpServerConfig) -> str:
    """The full path of the command; `ServerFailed` if there is none."""
    if config.cwd and not Path(config.cwd).is_dir():
        raise ServerFailed(f"MCP server {config.name!r} could not be started: there is no folder {config.cwd!r} (cwd).")
    found = shutil.which(config.command, path=config.env.get("PATH"))
    if found is None and config.cwd and (beside := Path(config.cwd, config.command)).is_file():
        found = str(beside)
    if found is None and config.command in ("python", "python3"):
        found = sys.executable
    if found is None:
        raise ServerFailed(
            f"MCP server {config.name!r} could not be started: there is no command {config.command!r}. "
            "Install it or give its full path."
        )
    return found


def _keep_quiet() -> None:
    """The library logs what servers send; unless the program set up logging, that must not reach the terminal."""
    for name in ("mcp", "client", "httpx2"):
        logger = logging.getLogger(name)
        if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            logger.addHandler(logging.NullHandler())


def require_mcp() -> None:
    """Raises `UsageError` if the extra `mcp` is not installed."""
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise UsageError("MCP servers need the extra 'mcp': pip install 'closeout[mcp]'.")


def reason(error: BaseException, status: int | None = None) -> str:
    """The first real cause in a tree of exceptions, in one sentence without its full stop.

    `status` is that of the server's last answer over HTTP, if it was an error.
    """
    causes = list(_leaves(error))
    cause = causes[0] if causes else error
    status = getattr(getattr(cause, "response", None), "status_code", status)
    if status in (401, 403):
        return f"it answered HTTP {status}; give its key in headers={{'Authorization': 'Bearer …'}}"
    if status is not None:
        return f"it answered HTTP {status}"
    text = str(cause).strip().rstrip(".").splitlines()
    if text and text[0] == "Connection closed":
        return "it ended before it was ready"
    return text[0][:300] if text else type(cause).__name__


def overflowed(error: BaseException) -> bool:
    """Whether a stream ended of an event longer than the HTTP library reads: 1 MB."""
    return any(type(cause).__name__ == "SSEError" and "limit" in str(cause) for cause in _leaves(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    elif not isinstance(error, asyncio.CancelledError):
        yield error


class ErrorTail:
    """What a server said of its errors: the end of its error output, or the status of its last HTTP answer.

    A thread drains the output: the process never waits, no terminal shows it.
    """

    def __init__(self) -> None:
        self._writer: TextIO | None = None
        self._drained: threading.Thread | None = None
        self._kept = b""
        self.status: int | None = None

    async def note(self, response: Any) -> None:
        """Remember the last answer of a server over HTTP if it was an error: the library does not hand it on."""
        self.status = response.status_code if response.status_code >= 400 else None

    def open(self) -> TextIO:
        """The file that the process is to write its errors to."""
        receive, send = os.pipe()
        self._writer = os.fdopen(send, "w", encoding="utf-8", errors="replace")
        self._drained = threading.Thread(target=self._drain, args=(receive,), name="closeout-mcp-stderr", daemon=True)
        self._drained.start()
        return self._writer

    def _drain(self, receive: int) -> None:
        with os.fdopen(receive, "rb", buffering=0) as pipe:
            while chunk := pipe.read(65_536):
                self._kept = (self._kept + chunk)[-STDERR_KEPT:]

    def release(self) -> None:
        """Close our end once the process has its own, so that the pipe ends with the process."""
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()

    def settle(self) -> None:
        """Wait a moment for the rest of the output of a process that ends."""
        self.release()
        if self._drained is not None:
            self._drained.join(0.5)

    def quoted(self) -> str:
        """The last words as a sentence that starts with a blank, or the empty text."""
        lines = [" ".join(line.split()) for line in self._kept.decode("utf-8", "replace").splitlines()]
        words = " / ".join([line for line in lines if line][-LINES_SHOWN:])
        return f" Its last words: {words[-STDERR_SHOWN:]}." if words else ""
