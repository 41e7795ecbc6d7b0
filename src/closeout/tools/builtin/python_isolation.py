"""Isolate the scripts of `run_python`: bubblewrap on Linux, sandbox-exec on macOS, or by choice nothing."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from closeout.errors import ConfigError

__all__ = ["Isolation", "find_isolation", "isolated"]

Isolation: TypeAlias = Literal["auto", "bubblewrap", "sandbox-exec", "none"]
"""The isolation of scripts. "auto" takes what the machine has; if it has nothing, scripts are refused."""

_PROGRAMS = {"bubblewrap": "bwrap", "sandbox-exec": "sandbox-exec"}
_TRY_SECONDS = 10.0
_MISSING = (
    "run_python is off: nothing on this machine isolates its scripts. Install bubblewrap (Linux), or allow scripts to "
    'use all your rights: python_tool(isolation="none"), or tools.python.isolation=none in the settings.'
)


def find_isolation(wanted: Isolation = "auto") -> Isolation:
    """Return what isolates scripts here.

    Raises:
        ConfigError: It is not there, or does not work; the message says what to do.
    """
    if wanted == "none":
        return "none"
    if wanted not in ("auto", *_PROGRAMS):
        raise ConfigError(f"isolation must be auto, bubblewrap, sandbox-exec or none, got {wanted!r}.")
    kinds: tuple[Isolation, ...] = ("bubblewrap", "sandbox-exec") if wanted == "auto" else (wanted,)
    for kind in kinds:
        if _works(kind):
            return kind
    if wanted == "auto":
        raise ConfigError(_MISSING)
    raise ConfigError(
        f"{wanted} does not work here: `{_PROGRAMS[wanted]}` is missing, or the system does not allow it."
    )


@functools.cache
def _works(kind: Isolation) -> bool:
    """Return True if a program starts in this isolation. A container or a kernel may forbid it."""
    if shutil.which(_PROGRAMS[kind]) is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = isolated(kind, [sys.executable, "-I", "-S", "-c", ""], folder, network=False)
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_TRY_SECONDS)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            return False
    return done.returncode == 0


def isolated(kind: Isolation, command: Sequence[str], folder: str, *, network: bool) -> list[str]:
    """Return the command that runs a command in an isolation.

    It sees the system's files read-only, nothing of the user's home and of other temporary folders but what Python
    needs, may write to `folder` only, and sees no other process.

    Args:
        kind: What `find_isolation` returned.
        command: A Python interpreter with its arguments.
        folder: Its private folder.
        network: Whether it may use the network.
    """
    if kind == "bubblewrap":
        return [*_bubblewrap(folder, network=network), *command]
    if kind == "sandbox-exec":
        return ["sandbox-exec", "-p", _profile(folder, network=network), *command]
    return list(command)


def _bubblewrap(folder: str, *, network: bool) -> Iterator[str]:
    hidden = [str(path) for path in _hidden()]
    yield from ("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
    if network:
        yield "--share-net"
    yield from ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")
    for path in hidden:
        yield from ("--tmpfs", path)
    for path in _needed():
        yield from ("--ro-bind", path, path)
    yield from ("--bind", folder, folder)
    for path in hidden:
        yield from ("--remount-ro", path)
    yield from ("--chdir", folder)


def _profile(folder: str, *, network: bool) -> str:
    """The profile for sandbox-exec: later rules win."""

    def paths(found: Sequence[str | Path]) -> str:
        return " ".join(f'(subpath "{str(Path(path).resolve()).translate(_QUOTED)}")' for path in found)

    rules = ["(version 1)", "(allow default)", "(deny process-info* (target others))", "(deny signal (target others))"]
    rules += [] if network else ["(deny network*)"]
    rules += [
        f"(deny file-read* {paths(_hidden())})",
        f"(allow file-read* {paths([*_needed(), folder])})",
        "(deny file-write*)",
        f'(allow file-write* {paths([folder])} (literal "/dev/null"))',
    ]
    return "".join(rules)


_QUOTED = str.maketrans({'"': '\\"', "\\": "\\\\"})


def _hidden() -> list[Path]:
    """Folders whose contents a script does not see: homes, and where programs keep sockets and scratch files."""
    found = [Path.home(), Path(tempfile.gettempdir()), *map(Path, ("/tmp", "/var/tmp", "/run", "/home", "/root"))]  # noqa: S108
    resolved = dict.fromkeys(path.resolve() for path in found if path.is_dir())
    resolved.pop(Path("/"), None)
    return [path for path in resolved if not any(other in path.parents for other in resolved)]


def _needed() -> list[str]:
    """Folders that Python and the script's own code are read from, if they are in a hidden one."""
    found = dict.fromkeys(os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, Path(__file__).parent))
    hidden = _hidden()
    return [path for path in found if any(folder in Path(path).parents for folder in hidden)]
