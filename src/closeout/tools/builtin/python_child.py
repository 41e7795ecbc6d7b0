"""The process that `run_python` starts: it supervises a child that drops privileges and runs the script.

Started by its path in a bare interpreter, so it uses the standard library only. Standard input carries the script, and
stays open for as long as the program that wants the result lives. This is a guard against accidents and curious models,
not a jail: docs/builtin-tools.md says what it does not prevent.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import select
import signal
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

SCRIPT = "script.py"
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER and CLONE_NEWNET of <linux/sched.h>


def limit(memory_bytes: int, cpu_seconds: int, file_bytes: int) -> None:
    """Set the kernel's limits for this process and what it starts."""
    try:
        import resource
    except ImportError:  # Windows has none; the clocks and the output limit still apply
        return
    wanted = {"RLIMIT_AS": memory_bytes, "RLIMIT_CPU": cpu_seconds, "RLIMIT_FSIZE": file_bytes, "RLIMIT_CORE": 0}
    for name, value in wanted.items():
        kind = getattr(resource, name, None)
        if kind is None or value < 0:
            continue
        _, hard = resource.getrlimit(kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (most, most))
        except (ValueError, OSError):  # macOS refuses some of them
            continue


def leave_network() -> None:
    """Move into an empty network if the kernel allows it, else refuse every connection that Python makes."""
    if not (sys.platform == "linux" and enter_empty_network()):
        sys.addaudithook(refuse_connection)  # the script cannot remove it


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


def run(source: str, names: dict[str, Any]) -> None:
    """Run the script; the value of a last line that is an expression is printed, as the interactive prompt does."""
    linecache.cache[SCRIPT] = (len(source), None, source.splitlines(keepends=True), SCRIPT)
    names |= {"__name__": "__main__", "__builtins__": __builtins__}
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
        trace = traceback.TracebackException.from_exception(error)
        trace.__context__ = None
        trace.stack = traceback.StackSummary.from_list(
            [frame for frame in trace.stack if frame.filename == SCRIPT][-5:]
        )
        print(*trace.format(), sep="", file=sys.stderr)  # noqa: T201
        sys.exit(1)


def load_variables(path: str, names: dict[str, Any]) -> str:
    """Put the variables of the script before into `names`. Returns what is to be said of them, if they are lost."""
    import importlib
    import marshal
    import pickle
    import types
    from pathlib import Path

    if not Path(path).exists():
        return ""
    try:
        with Path(path).open("rb") as file:
            version, modules, functions, values = pickle.load(file)  # noqa: S301  # written by a script like this one
            if version != sys.version:
                return "The variables of earlier calls are lost: they were kept by another version of Python."
            for name, module in modules.items():
                names[name] = importlib.import_module(module)
            names.update(pickle.loads(values))  # noqa: S301
            for name, (code, *rest) in functions.items():
                made = types.FunctionType(marshal.loads(code), names, *rest[:2])  # noqa: S302
                made.__kwdefaults__, made.__doc__ = rest[2:]
                names[name] = made
    except Exception as error:
        return f"The variables of earlier calls are lost: {type(error).__name__}: {error}"[:500]
    return ""


def save_variables(path: str, names: dict[str, Any], most: int) -> str:
    """Write the variables for the next script. Returns what is to be said of those that are lost."""
    import io
    import marshal
    import pickle
    import types
    from pathlib import Path

    modules, functions, values, lost = {}, {}, {}, []
    for name, value in names.items():
        if name.startswith("__"):
            continue
        if isinstance(value, types.ModuleType):
            modules[name] = value.__name__
            continue
        try:
            if type(value) is types.FunctionType and value.__globals__ is names and value.__closure__ is None:
                settings = (value.__name__, value.__defaults__, value.__kwdefaults__, value.__doc__)
                pickle.dumps(settings)
                functions[name] = (marshal.dumps(value.__code__), *settings)
            else:
                pickle.dumps(value)
                values[name] = value
        except Exception:
            lost.append(f"{name} ({type(value).__name__})")
    written = io.BytesIO()
    # Together, so that what two variables share stays shared.
    pickle.dump((sys.version, modules, functions, pickle.dumps(values)), written)
    if written.tell() > most:
        Path(path).write_bytes(b"")
        return f"Variables not kept: they have {written.tell():,} bytes together, {most:,} are kept."
    Path(path).write_bytes(written.getvalue())
    return f"Variables not kept: {', '.join(lost)}"[:1000] if lost else ""


def run_keeping_variables(source: str, path: str, most: int) -> None:
    """Run the script with the variables of the one before, and keep its own if it does not fail."""
    from pathlib import Path

    names: dict[str, Any] = {}
    said = load_variables(path, names)
    try:
        run(source, names)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    try:
        said = "\n".join(filter(None, (said, save_variables(path, names, most))))
    except Exception as error:  # values of a class that misbehaves
        said = f"Variables not kept: {type(error).__name__}: {error}"[:500]
    Path(f"{path}.txt").write_text(said, "utf-8", "backslashreplace")


def supervise(seconds: float) -> None:
    """Fork the script's process and return in it; end it if the program dies or its time is over."""
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    script = os.fork()
    if script == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(woken)
        os.close(waker)
        return
    end = time.monotonic() + seconds
    while True:
        ready, _, _ = select.select([0, woken], [], [], max(end - time.monotonic(), 0.0))
        if woken in ready:
            os.read(woken, 64)
            ended, status = os.waitpid(script, os.WNOHANG)
            if ended:
                leave_like(status)
        if 0 in ready or not ready:  # the program closed its end of the pipe, or died; or the time is over
            os.killpg(0, signal.SIGKILL)


def leave_like(status: int) -> NoReturn:
    """Exit as the script did: with its code, or of its signal."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)


def watch(seconds: float) -> None:
    """End this process if the program dies or its time is over, where there is no `fork`."""

    def wait_for_end() -> None:
        sys.stdin.buffer.read(1)
        os._exit(1)

    clock = threading.Timer(seconds, os._exit, (1,))
    clock.daemon = True
    clock.start()
    threading.Thread(target=wait_for_end, daemon=True).start()


def main() -> None:
    limits = json.loads(sys.argv[1])
    source = b""
    size = limits["script_bytes"]
    while len(source) < size:  # unbuffered: what follows the script is left in the pipe
        piece = os.read(0, size - len(source))
        if not piece:
            sys.exit(1)
        source += piece
    if hasattr(os, "fork"):
        limit(-1, -1, -1)  # a script's signal is repeated here, without a core file
        supervise(limits["seconds"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
    else:
        watch(limits["seconds"])
    if not limits["network"]:
        leave_network()
    limit(limits["memory_bytes"], limits["cpu_seconds"], limits["file_bytes"])
    sys.argv = [SCRIPT]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # half an emoji must not fail it
    text = source.decode("utf-8", "replace")
    if limits["variables"]:
        run_keeping_variables(text, limits["variables"], limits["variables_bytes"])
    else:
        run(text, {})


if __name__ == "__main__":
    main()
