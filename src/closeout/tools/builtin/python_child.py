"""The process that `run_python` starts: gives up what a script must not have, then runs it.

Started by its path in a bare interpreter, so it uses the standard library only. The script comes on standard input.
A guard against accidents and curious models, not a jail: docs/builtin-tools.md says what it does not keep out.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import sys
import traceback
from typing import Any

SCRIPT = "script.py"
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER and CLONE_NEWNET of <linux/sched.h>


def limit(memory_bytes: int, cpu_seconds: int, file_bytes: int) -> None:
    """Limits of the kernel, for this process and what it starts."""
    try:
        import resource
    except ImportError:  # Windows has none; the parent's clock and output limit still hold
        return
    wanted = {"RLIMIT_AS": memory_bytes, "RLIMIT_CPU": cpu_seconds, "RLIMIT_FSIZE": file_bytes, "RLIMIT_CORE": 0}
    for name, value in wanted.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        _, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (most, most))
        except (ValueError, OSError):  # macOS refuses some of them
            continue


def leave_network() -> None:
    """Move into an empty network if the kernel lets us, else refuse every connection that Python makes."""
    if not (sys.platform == "linux" and enter_empty_network()):
        sys.addaudithook(refuse_connection)  # cannot be taken away again by the script


def enter_empty_network() -> bool:
    import ctypes

    try:
        unshare = ctypes.CDLL(None, use_errno=True).unshare
    except (OSError, AttributeError):  # a libc without it
        return False
    return bool(unshare(NEW_NETWORK) == 0 or unshare(NEW_USER | NEW_NETWORK) == 0)


def refuse_connection(event: str, values: tuple[Any, ...]) -> None:
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        raise OSError("the network is switched off in run_python")
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"):
        address = values[1] if len(values) > 1 else None
        is_remote = isinstance(address, tuple)  # local sockets have a path in place of (host, port)
        own = sys.platform == "win32" and is_remote and address[0] in ("127.0.0.1", "::1")  # asyncio needs a pair there
        if is_remote and not own:
            raise OSError("the network is switched off in run_python")


def run(source: str) -> None:
    """Run the script; the value of a last line that is an expression is printed, as the interactive prompt does."""
    linecache.cache[SCRIPT] = (len(source), None, source.splitlines(keepends=True), SCRIPT)
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    try:
        tree = ast.parse(source, SCRIPT)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, SCRIPT, "exec"), names)  # noqa: S102  # running the script is what this process is for
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), SCRIPT, "eval"), names)  # noqa: S307
            if value is not None:
                print(repr(value))  # noqa: T201
    except SystemExit:
        raise
    except BaseException as error:
        told = traceback.TracebackException.from_exception(error)
        told.__context__ = None
        told.stack = traceback.StackSummary.from_list([frame for frame in told.stack if frame.filename == SCRIPT][-5:])
        print(*told.format(), sep="", file=sys.stderr)  # noqa: T201
        sys.exit(1)


def main() -> None:
    limits = json.loads(sys.argv[1])
    source = sys.stdin.buffer.read().decode("utf-8", "replace")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if not limits["network"]:
        leave_network()
    limit(limits["memory_bytes"], limits["cpu_seconds"], limits["file_bytes"])
    sys.argv = [SCRIPT]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # half an emoji is no reason to fail
    run(source)


if __name__ == "__main__":
    main()
