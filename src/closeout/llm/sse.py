"""Server-sent events out of bytes that come in any pieces. No connection, no JSON."""

from __future__ import annotations

from closeout.errors import ServerFailed

__all__ = ["EventReader"]

# One event carries a few tokens; a megabyte is an image; beyond this it is no event stream.
MAX_EVENT = 16 * 2**20


class EventReader:
    """Feeds on bytes, gives the `data` of each complete event. Comments, ids and event names are passed over.

    Line ends may be LF, CRLF or CR; an event's several data lines are joined by LF, as the standard says.
    """

    __slots__ = ("_data", "_partial", "_size", "_skip_lf")

    def __init__(self) -> None:
        self._partial: list[bytes] = []  # pieces of a line whose end has not come yet
        self._data: list[bytes] = []
        self._size = 0
        self._skip_lf = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that this chunk completes. Raises ServerFailed for an event beyond 16 MiB."""
        if not chunk:
            return []
        # A CR has ended its line already; the LF of the same line end may come with the next chunk.
        if self._skip_lf and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._skip_lf = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = chunk.split(b"\n")
        events: list[bytes] = []
        if lines and self._partial:
            lines[0] = b"".join((*self._partial, lines[0]))
            self._partial.clear()
        for line in lines:
            self._take(line, events)
        if rest:
            self._partial.append(rest)
            self._grow(len(rest))
        return events

    def close(self) -> list[bytes]:
        """The data of an event that the end of the stream completes: servers leave out the last empty line."""
        events: list[bytes] = []
        if self._partial:
            self._take(b"".join(self._partial), events)
            self._partial.clear()
        self._take(b"", events)
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
            self._size = 0
        elif line.startswith(b"data:"):
            data = line[6:] if line[5:6] == b" " else line[5:]
            self._data.append(data)
            self._grow(len(data))

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > MAX_EVENT:
            raise ServerFailed("The server sent an event of more than 16 MiB; this is no reply.")
