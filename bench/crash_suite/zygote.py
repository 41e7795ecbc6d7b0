"""Imports a shim once, and forks a process for each command: imports would take most of the time of a measurement.

Reads lines of JSON, `{"call": "start", "env": {…}}`, and writes the id of each new process. What that process shows is
written to the file $CRASH_SHOWN, its output to $CRASH_LOG. `{"modules": […]}` imports what an undisturbed process has
imported while it ran.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path


def child(shim: object, call: str, env: dict[str, str]) -> None:
    os.environ.update(env)
    log = os.open(env["CRASH_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(log, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(env["CRASH_HOME"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    function = getattr(shim, call)
    shown = asyncio.run(function()) if inspect.iscoroutinefunction(function) else function()
    part = Path(env["CRASH_SHOWN"] + ".part")
    part.write_text(json.dumps({**asdict(shown), "modules": list(sys.modules)}))
    part.rename(env["CRASH_SHOWN"])


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    sys.path.insert(0, str(Path(__file__).parent / "shims"))
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no reply
    shim = importlib.import_module(sys.argv[1])
    offers = sorted(getattr(shim, "NOT_OFFERED", {}).items())
    out.write(json.dumps({"cpu": time.process_time(), "not_offered": dict(offers)}) + "\n")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while line := sys.stdin.readline():
        order = json.loads(line)
        if "modules" in order:
            for name in order["modules"]:
                if name not in sys.modules:
                    with suppress(Exception):
                        importlib.import_module(name)
            gc.collect()
            gc.freeze()  # what is imported is not collected again in every process
            out.write("0\n")
            continue
        pid = os.fork()
        if pid == 0:
            code = 0
            try:
                child(shim, order["call"], order["env"])
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stderr.flush()
            os._exit(code)
        out.write(f"{pid}\n")


if __name__ == "__main__":
    main()
