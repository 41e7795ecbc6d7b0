"""A PgBouncer in front of the tests' PostgreSQL, in transaction mode unless told otherwise."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from postgres_server import PostgresServer

# Debian's is not on the PATH of everybody.
PGBOUNCER = shutil.which("pgbouncer") or (
    None if "TESTS_PATH_ONLY" in os.environ else shutil.which("pgbouncer", path="/usr/sbin")
)
SECONDS = 20.0  # until it must answer


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def pooler(postgres: PostgresServer, *, mode: str = "transaction", size: int = 2, lease: int = 60) -> Iterator[str]:
    """Yield an address behind a pooler, to which `&schema=…` can be added.

    Args:
        postgres: The server.
        mode: What a client keeps a connection for: "transaction" or "session".
        size: Connections to the server.
        lease: The parameter of the address.
    """
    assert PGBOUNCER is not None, "a test with the marker pgbouncer is skipped without it"
    port = _free_port()
    settings = postgres.folder / f"pgbouncer-{port}.ini"
    settings.write_text(
        f"[databases]\npostgres = host={postgres.folder} user=closeout\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = {size}\nunix_socket_dir =\n"
    )
    settings.chmod(0o644)
    with (postgres.folder / "pgbouncer.log").open("ab") as log:
        process = subprocess.Popen([PGBOUNCER, str(settings)], stdout=log, stderr=log, **postgres.as_user)
    try:
        give_up = time.monotonic() + SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, "PgBouncer did not start"
            assert time.monotonic() < give_up, "PgBouncer does not answer"
            time.sleep(0.02)
        yield f"postgresql://closeout@127.0.0.1:{port}/postgres?lease={lease}"
    finally:
        process.terminate()
        process.wait(SECONDS)
        settings.unlink(missing_ok=True)
