"""The progress of an evaluation on stderr: one status line on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import math
import time
from typing import Self

from rich.status import Status

from closeout.cli.terminal import make_console, one_line, width_of
from closeout.evaluate.trials import SweepProgress

__all__ = ["EvalDisplay"]

LINE_PERIOD = 10.0  # seconds between two lines if stderr is not a terminal
RECENT_SECONDS = 60.0  # the rate is measured over this time


class EvalDisplay:
    """Shows `SweepProgress`. As a context manager it removes the status line at the end."""

    def __init__(self) -> None:
        self._console = make_console(stderr=True)
        self._past: list[tuple[float, int, int]] = []  # time, finished trials, tokens
        self._said_at = -math.inf
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if self._console.is_interactive and not self._console.is_dumb_terminal:
            self._status = self._console.status("", spinner="dots")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, progress: SweepProgress) -> None:
        """Show the progress of an evaluation."""
        now = time.monotonic()
        line = self._line(progress, now)
        if self._status is not None:
            self._status.update(one_line(line, width_of(self._console) - 3))
        elif now >= self._said_at + LINE_PERIOD or progress.finished + progress.control.suspended == progress.planned:
            self._said_at = now
            self._console.print(line, markup=False)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, markup=False)

    def _line(self, progress: SweepProgress, now: float) -> str:
        control = progress.control
        self._past = [each for each in self._past if each[0] > now - RECENT_SECONDS] + [
            (now, progress.finished, control.tokens)
        ]
        parts = [f"{progress.finished:,} of {progress.planned:,} trials"]
        score = progress.score
        if score.trials:
            parts.append(f"score {100 * score.mean:.1f} % ({100 * score.low:.0f}–{100 * score.high:.0f})")
        parts.append(f"{control.running:,} running")
        if progress.workers > 1:
            parts.append(f"{progress.workers} processes")
        if control.suspended:
            parts.append(f"{control.suspended:,} waiting for a decision")
        if control.cost:
            parts.append(f"${control.cost:.2f}")
        since, finished, tokens = self._past[0]
        if now > since:
            parts.append(f"{(control.tokens - tokens) / (now - since):,.0f} tokens/s")
            rate = (progress.finished - finished) / (now - since)
            if rate and progress.finished < progress.planned:
                parts.append(f"{_time_left((progress.planned - progress.finished) / rate)} left")
        parts += [f"{number:,} {kind}" for kind, number in list(progress.failures.items())[:3]]
        if control.state != "running":
            parts.append(control.state)
        return " · ".join(parts)


def _time_left(seconds: float) -> str:
    """Return `40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
