"""Show the progress of many runs on stderr: one line that is rewritten on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import shutil
import sys
import time

from closeout.fleet.many import MapProgress

__all__ = ["ProgressLine"]

LINE_PERIOD = 10.0  # seconds between two lines if stderr is not a terminal


class ProgressLine:
    """A callback for `Agent.map(progress=…)`."""

    def __init__(self) -> None:
        self._line_at = time.monotonic()

    def __call__(self, progress: MapProgress) -> None:
        over = progress.done == progress.total
        if sys.stderr is None:
            return
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r\x1b[K" + _line(progress)[:width] + ("\n" if over else ""))
            sys.stderr.flush()
        elif over or time.monotonic() >= self._line_at + LINE_PERIOD:
            self._line_at = time.monotonic()
            sys.stderr.write(_line(progress) + "\n")
            sys.stderr.flush()


def _line(progress: MapProgress) -> str:
    total = "" if progress.total is None else f"/{progress.total:,}"
    parts = [f"{progress.done:,}{total} tasks"]
    parts += [f"{count:,} {status}" for status, count in sorted(progress.by_status.items())]
    parts += [f"{progress.loaded:,} from the record"] if progress.loaded else []
    parts += [f"{progress.running:,} running"] if progress.running else []
    parts.append(f"{progress.seconds:.0f} s")
    if progress.usage.cost_usd:
        parts.append(f"${progress.usage.cost_usd:.2f}")
    return " · ".join(parts)
