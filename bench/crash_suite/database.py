"""A PostgreSQL server of the suite's own: in a private folder, on a socket in it, an empty database for each case."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any


class Postgres:
    """A running server. As root it runs as `nobody`, because PostgreSQL refuses to be root."""

    def __init__(self) -> None:
        found = shutil.which("initdb") or next(
            map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), None
        )
        if found is None:
            raise SystemExit("This runtime needs the programs of PostgreSQL (initdb, postgres, psql).")
        self._programs = Path(found).resolve().parent
        self.folder = Path(tempfile.mkdtemp(prefix="crash-pg-", dir="/tmp"))
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            import pwd

            user = pwd.getpwnam("nobody")
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        data = str(self.folder / "data")
        setup = ["-D", data, "-U", "suite", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        self._run("initdb", *setup)
        options = {"listen_addresses": "", "unix_socket_directories": self.folder, "max_connections": 200}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self._server = subprocess.Popen(
            [self._programs / "postgres", "-D", data, "-F", *settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            **self._as,
        )
        for _ in range(200):
            if self._sql("SELECT 1") == 0:
                return
            time.sleep(0.05)
        raise SystemExit("PostgreSQL does not start.")

    def _run(self, program: str, *arguments: str) -> int:
        command = [str(self._programs / program), *arguments]
        out = subprocess.DEVNULL
        return subprocess.run(command, stdout=out, stderr=out, cwd=self.folder, check=False, **self._as).returncode

    def _sql(self, statement: str) -> int:
        return self._run("psql", "-h", str(self.folder), "-U", "suite", "-d", "postgres", "-qc", statement)

    def database(self, name: str) -> str:
        """Make an empty database and return its address."""
        if self._sql(f"CREATE DATABASE {name}"):
            raise RuntimeError(f"cannot make the database {name}")
        return f"postgresql://suite@/{name}?host={self.folder}"

    def drop(self, name: str) -> None:
        self._sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def close(self) -> None:
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)
