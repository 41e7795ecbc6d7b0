"""`closeout models list|pull|path`: the embedded models on this machine. Answers go to stdout, the rest to stderr.

The commands' options are declared in `main`; what weights are is `llm.weights`'s business.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from closeout.cli import exits
from closeout.cli.console import print_json
from closeout.cli.guard import say_error
from closeout.errors import ModelUnavailable
from closeout.llm.weights import KNOWN_WEIGHTS, PullProgress, find_weights, models_folder, pull_weights, weights_named

__all__ = ["list_command", "path_command", "pull_command"]

_PLAIN_PERIOD = 5.0  # seconds between two lines of progress where there is no terminal


def list_command(as_json: bool = False) -> int:
    """Prints each embedded model, whether it is here, where, and how large it is. Returns the exit code."""
    found = [(weights, find_weights(name)) for name, weights in KNOWN_WEIGHTS.items()]
    if as_json:
        print_json([
            {"name": w.name, "title": w.title, "licence": w.licence, "size": w.size, "sha256": w.sha256,
             "path": None if path is None else str(path)}
            for w, path in found
        ])  # fmt: skip
        return exits.OK
    width = max(len(name) for name in KNOWN_WEIGHTS)
    for weights, path in found:
        print(f"{weights.name:<{width}}  {weights.title}, {weights.megabytes:,} MB, {weights.licence}")
        print(f"{'':<{width}}  {path or f'not here yet: closeout models pull {weights.name}'}")
    return exits.OK


def path_command(model: str = "local") -> int:
    """Prints where a model's file is; FAILED if it is not here yet. Raises ModelUnavailable for an unknown name."""
    path = find_weights(model)
    if path is None:
        weights = weights_named(model)
        assert weights is not None
        where = f"{weights.title} is not here yet (it belongs in {models_folder()})."
        say_error(f"{where} Fetch it: closeout models pull {model}")
        return exits.FAILED
    print(path)
    return exits.OK


def pull_command(model: str = "local") -> int:
    """Fetches a model unless it is here, shows how far it is, and prints its path. Returns the exit code.

    Raises ModelUnavailable for an unknown name. What was fetched when it fails or is stopped is kept.
    """
    weights_named(model)
    try:
        with _progress() as show:
            path = pull_weights(model, on_progress=show)
    except ModelUnavailable as error:
        say_error(str(error))
        return exits.FAILED
    except KeyboardInterrupt:
        say_error(f"stopped. Go on from here: closeout models pull {model}")
        return exits.STOPPED
    print(path)
    return exits.OK


@contextmanager
def _progress() -> Iterator[Callable[[PullProgress], None]]:
    """A bar on a terminal, a line now and then elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar)


class _Bar:
    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)

    def __call__(self, progress: PullProgress) -> None:
        self._bar.update(
            self._task,
            description=_words(progress),
            completed=progress.done_bytes,
            total=None if progress.stage == "waiting" else progress.weights.size,
        )


class _Lines:
    def __init__(self) -> None:
        self._stage = ""
        self._next = 0.0

    def __call__(self, progress: PullProgress) -> None:
        now = time.monotonic()
        if progress.stage == "done" or (progress.stage == self._stage and now < self._next):
            return
        self._stage, self._next = progress.stage, now + _PLAIN_PERIOD
        percent = 100 * progress.done_bytes // progress.weights.size
        print(f"{_words(progress)}: {percent} %", file=sys.stderr, flush=True)


def _words(progress: PullProgress) -> str:
    title = progress.weights.title
    if progress.stage == "waiting":
        return f"Waiting for another process that fetches {title}"
    if progress.stage == "checking":
        return f"Checking {title}"
    part = f", part {progress.part} of {progress.parts}" if progress.parts else ""
    return f"Fetching {title}{part}"
