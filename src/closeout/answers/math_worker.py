"""Compare mathematics in a separate process: `equivalent` asks it, `main` is what it runs.

`math-verify` limits its time with signals, which only a main thread may set, and not all of sympy can be interrupted by
them. A process that can be killed works from any thread and always ends.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

__all__ = ["MathVerifyMissing", "MathWorkerFailed", "equivalent"]

_START_SECONDS = 60.0  # importing sympy on a busy machine
_MOST_CHARACTERS = 2_000  # the length of one answer


class MathWorkerFailed(Exception):
    """There is no verdict: the comparison took too long, or the process could not do it."""


class MathVerifyMissing(MathWorkerFailed):
    """math-verify is not installed."""


def equivalent(prediction: str, gold: str, *, timeout: float = 10.0) -> bool:
    """Tell whether two LaTeX or plain expressions mean the same. Thread-safe; one comparison at a time in a process.

    Raises:
        MathVerifyMissing: If math-verify is not installed.
        MathWorkerFailed: After `timeout` seconds, or if it cannot compare them.
    """
    if max(len(prediction), len(gold)) > _MOST_CHARACTERS:
        raise MathWorkerFailed(f"an answer is longer than {_MOST_CHARACTERS:,} characters")
    return _worker.ask(prediction, gold, timeout)


class _Worker:
    """The process. It starts when it is first needed and after it was killed; a forked child starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._owner = 0

    def ask(self, prediction: str, gold: str, timeout: float) -> bool:
        with self._lock:
            process = self._running()
            try:
                assert process.stdin is not None
                process.stdin.write(json.dumps({"prediction": prediction, "gold": gold, "seconds": timeout}) + "\n")
                process.stdin.flush()
                reply = self._line(timeout + 1)
            except OSError as error:
                self.stop()
                raise MathWorkerFailed(f"the math process ended: {error}") from None
        if "error" in reply:
            raise MathWorkerFailed(str(reply["error"]))
        return bool(reply["equal"])

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        self.stop()
        self._lines = queue.SimpleQueue()
        self._owner = os.getpid()
        self._process = subprocess.Popen(  # noqa: S603  our own module; the answers go in as data
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
        )
        reader = threading.Thread(target=_read_lines, args=(self._process, self._lines), daemon=True)
        reader.start()
        ready = self._line(_START_SECONDS)
        if "error" in ready:
            self.stop()
            raise MathVerifyMissing(str(ready["error"]))
        return self._process

    def _line(self, timeout: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            self.stop()
            raise MathWorkerFailed(f"no verdict within {timeout:.0f} s") from None
        if not line:
            self.stop()
            raise MathWorkerFailed("the math process ended")
        reply: dict[str, Any] = json.loads(line)
        return reply


def _read_lines(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Pass on the process's lines; "" when there are no more."""
    assert process.stdout is not None
    with suppress(OSError, ValueError):  # closed while reading
        for line in process.stdout:
            lines.put(line)
    lines.put("")


_worker = _Worker()
atexit.register(_worker.stop)


# ------------------------------------------------------------------------------------------------ in the process


def main() -> None:
    """Read questions, one JSON object a line, and write verdicts, until the input ends."""
    try:
        from math_verify import parse, verify
    except ImportError:
        _say({"error": "math-verify is not installed: pip install 'closeout[math]'"})
        return
    _limit_memory()
    _say({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        seconds = max(1, int(asked["seconds"]))
        try:
            gold = parse(_as_math(asked["gold"]), parsing_timeout=seconds)
            prediction = parse(_as_math(asked["prediction"]), parsing_timeout=seconds)
            equal = bool(gold and prediction and verify(gold, prediction, timeout_seconds=seconds))
            _say({"equal": equal})
        except Exception as error:  # whatever a computer algebra system raises at odd input
            _say({"error": f"{type(error).__name__}: {error}"[:300]})


def _as_math(text: str) -> str:
    text = text.replace("\\$", "")  # a dollar sign is a unit here; it would end the formula
    return text if "$" in text else f"${text}$"


def _say(reply: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def _limit_memory() -> None:
    """Limit memory to 2 GB where the system can: a power tower must not take the machine down."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (2 * 1024**3, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    main()
