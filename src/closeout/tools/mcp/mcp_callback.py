"""Receive the address that the browser is sent to after a login: on a loopback port, or typed by the person."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import TextIO
from urllib.parse import parse_qs, quote, urlsplit

from closeout.errors import UsageError

__all__ = ["Callback", "callback_on"]

_LONGEST = 16_384  # bytes of a request
_PAGE = (
    b"HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n"
    b"Referrer-Policy: no-referrer\r\nConnection: close\r\n\r\n%s\n"
)
_DONE = _PAGE % (b"200 OK", b"Done. You can close this page and go back to the terminal.")
_OTHER = _PAGE % (b"404 Not Found", b"Nothing is here.")


class Callback:
    """Waits for the address that the browser is sent to.

    Args:
        show: Shows the person the authorization server's page.
        typed: Where the person may type the address or the code; None if nobody can.
    """

    def __init__(self, show: Callable[[str], object], typed: TextIO | None = None) -> None:
        self._show, self._typed = show, typed
        self._state = ""
        self._left: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def sign_in(self, page: str) -> str:
        """Show a page and return the address that the browser was sent to from there."""
        self._left = asyncio.get_running_loop().create_future()
        self._state = parse_qs(urlsplit(page).query).get("state", [""])[0]
        self._show(page)
        with _typed_lines(self._typed, self._take_line):
            return await self._left

    def _take_line(self, line: str) -> None:
        text = line.strip()
        if text and not self._left.done():
            is_address = "://" in text or "code=" in text or "error=" in text
            # A code alone comes from the person who was shown the page, so its state is that of the page.
            self._left.set_result(text if is_address else f"?code={quote(text)}&state={quote(self._state)}")

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a request to the loopback port. Only one for this login ends the wait."""
        with suppress(ConnectionError, asyncio.LimitOverrunError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
                words = head.split(b"\r\n", 1)[0].decode("latin-1").split()
                address = words[1] if len(words) == 3 and words[0] == "GET" else ""
                state = parse_qs(urlsplit(address).query).get("state", [""])[0]
                is_ours = bool(self._state) and state == self._state
                writer.write(_DONE if is_ours else _OTHER)
                await writer.drain()
                if is_ours and not self._left.done():
                    self._left.set_result(address)
        writer.close()


@asynccontextmanager
async def callback_on(
    port: int, show: Callable[[str], object], typed: TextIO | None = None
) -> AsyncIterator[tuple[Callback, int]]:
    """Listen on a loopback port while the context is entered. Yields the callback and its port.

    Args:
        port: The port; 0 chooses a free one.
        show: Shows the person the authorization server's page.
        typed: Where the person may type the address or the code.

    Raises:
        UsageError: The port is taken.
    """
    callback = Callback(show, typed)
    try:
        server = await asyncio.start_server(callback.answer, "127.0.0.1", port, limit=_LONGEST)
    except OSError as error:
        raise UsageError(
            f"The login cannot listen on port {port}: {error.strerror or error}. Choose another one; 0 is a free one."
        ) from None
    async with server:
        yield callback, server.sockets[0].getsockname()[1]


@contextmanager
def _typed_lines(file: TextIO | None, take: Callable[[str], object]) -> Iterator[None]:
    """Pass on the lines of a file as they are typed. Files that cannot be waited for are left alone."""
    loop, reads = asyncio.get_running_loop(), ExitStack()

    def pass_on(file: TextIO) -> None:
        if line := file.readline():
            take(line)
        else:  # the end of the file; the browser may still come
            reads.close()

    with reads:
        if file is not None and sys.platform != "win32":
            with suppress(OSError, ValueError):
                loop.add_reader(file.fileno(), pass_on, file)
                reads.callback(loop.remove_reader, file.fileno())
        yield
