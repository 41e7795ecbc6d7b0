"""`closeout` as a person has it: a process of its own, with pipes or on a terminal, that can be interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from closeout.cli.main import app
from closeout.journal.store import open_store

COMMAND = (sys.executable, "-m", "closeout")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The one line on stderr; fails where there is more, a traceback for instance."""
        (line,) = self.err.splitlines()
        assert line.startswith("closeout: ")
        return line.removeprefix("closeout: ")


def closeout(
    *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Done:
    done = subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, env=environment(env), cwd=cwd, timeout=100
    )
    return Done(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


# Typer makes the parser of all commands for each call: 60 ms, more than most commands take.
_parser = cache(get_command)


def invoke(*arguments: str, stdin: bytes = b"") -> Any:
    """The result of Typer's runner for the command in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "key")
        patch.setattr("typer.testing._get_command", _parser)
        return CliRunner().invoke(app, list(arguments), input=stdin)


def here(*arguments: str, stdin: bytes = b"") -> Done:
    """The command in this process: the same code from its options on, in a tenth of the time."""
    done = invoke(*arguments, stdin=stdin)
    return Done(done.exit_code, done.stdout, done.stderr)


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([*COMMAND, *arguments], stdout=pipe, stderr=pipe, text=True, env=environment(), **options)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """As a person has it, not as the tests have it."""
    quiet = {name: value for name, value in os.environ.items() if name not in ("PYTHONWARNINGS", "COLUMNS", "NO_COLOR")}
    return {**quiet, "OPENAI_API_KEY": "key", "PYTHONUTF8": "1", **(more or {})}


def wait_for(home: Path, kind: str, times: int = 1) -> str:
    """The id of the newest run, once so many of its events are of a kind."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        if (home / "journal.sqlite3").exists():
            store = open_store(home)
            for record in store.runs(1):
                if sum(type(row.event).__name__ == kind for row in store.rows(record.run_id)) >= times:
                    return record.run_id
        time.sleep(0.02)
    raise AssertionError(f"no {kind} came")


def stopped(process: subprocess.Popen[str], signals: Sequence[int] = (signal.SIGINT,)) -> Done:
    for number in signals:
        process.send_signal(number)
        time.sleep(0.05)
    out, err = process.communicate(timeout=100)
    return Done(process.returncode, out, err)


def on_terminal(
    *arguments: str, columns: int, env: Mapping[str, str] | None = None, keys: bytes = b""
) -> tuple[int, str]:
    """Exit code and everything that a terminal of so many columns was sent; `keys` are typed ahead."""
    import pty

    read, write = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(write, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    variables = environment({"TERM": "xterm-256color", **(env or {})})
    process = subprocess.Popen([*COMMAND, *arguments], stdin=write, stdout=write, stderr=write, env=variables)
    os.close(write)
    os.write(read, keys)
    pieces = []
    while True:
        try:
            piece = os.read(read, 65536)
        except OSError:  # the other side is gone
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(read)
    return process.wait(timeout=100), b"".join(pieces).decode(errors="replace").replace("\r\n", "\n")
