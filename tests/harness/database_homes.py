"""The home that a harness uses in a folder: `home` in it, or a schema of its own in the database of the environment."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from closeout.homes import DatabaseHome, Home, as_home

DATABASE = "HARNESS_DATABASE"  # the address of a database; without it, homes are folders
CUTS = ("before", "torn", "after")
SOCKET = ".s.PGSQL.5432"


def home_of(folder: Path) -> Home:
    """Return the home in a folder."""
    address = os.environ.get(DATABASE)
    if not address:
        return folder / "home"
    return as_home(f"{address}&schema=of_{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}")


def end_leases(folder: Path) -> None:
    """Let the leases of a dead process end now, as they would after some seconds."""
    home = home_of(folder)
    if not isinstance(home, DatabaseHome):
        return
    if _execute(home, "SELECT to_regclass(%s)", f"{home.schema}.leases") != [(None,)]:
        _execute(home, f"UPDATE {home.schema}.leases SET until='epoch'")


def remove_home(folder: Path) -> None:
    """Remove what is not in the folder itself."""
    home = home_of(folder)
    if isinstance(home, DatabaseHome):
        _execute(home, f"DROP SCHEMA IF EXISTS {home.schema} CASCADE")


def _execute(home: DatabaseHome, statement: str, *values: Any) -> list[Any]:
    import psycopg

    with psycopg.connect(home.url, autocommit=True) as db:
        db.execute("SET client_min_messages TO error")
        cursor = db.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


class Wire:
    """A socket between a client and PostgreSQL that breaks all its connections at one of the client's messages.

    Args:
        server: The folder with the server's socket.
        folder: The folder for this one.

    Attributes:
        sent: The number of messages that were sent.
    """

    def __init__(self, server: Path, folder: Path) -> None:
        self.sent = 0
        self._server = server
        self._cut, self._at = "", 0
        self._open: set[socket.socket] = set()
        self._unheard: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._break()

    def cut_at(self, message: int, cut: str) -> None:
        """Break at a message from now on: before it arrives, when half of it has, or before the server's answer."""
        with self._guard:
            self.sent, self._at, self._cut = 0, message, cut

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, server = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
                self._open |= {client, server}
                server.connect(str(self._server / SOCKET))
                for here, there, counts in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._forward, args=(here, there, counts), daemon=True).start()

    def _forward(self, here: socket.socket, there: socket.socket, counts: bool) -> None:
        cut = ""
        with suppress(OSError):
            while (data := here.recv(1 << 20)) and here not in self._unheard:
                with self._guard:
                    self.sent += counts
                    cut = self._cut if counts and self.sent == self._at else ""
                if cut == "after":
                    self._unheard.add(there)  # what it answers is not passed on
                elif cut:
                    there.sendall(data[: len(data) // 2] if cut == "torn" else b"")
                    break
                there.sendall(data)
        if (not counts and here in self._unheard) or (counts and cut in ("before", "torn")):
            self._break()
        for each in (here, there):
            _shut(each)

    def _break(self) -> None:
        for each in list(self._open):
            _shut(each)
        self._open.clear()


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
