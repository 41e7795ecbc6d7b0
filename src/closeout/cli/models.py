"""`closeout models list|pull|path`: the embedded models on this machine. Answers go to stdout, the rest to stderr.

The commands' options are declared in `main`; what weights are is `llm.weights`'s business.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from closeout.errors import ModelUnavailable
from closeout.llm.weights import KNOWN_WEIGHTS, PullProgress, find_weights, models_folder, pull_weights, weights_named

__all__ = ["FAILED", "MISUSED", "OK", "list_command", "path_command", "pull_command"]

OK, MISUSED, FAILED = 0, 2, 3  # exit codes, as everywhere in the command line

_PLAIN_PERIOD = 5.0  # seconds between two lines of progress where there is no terminal


def list_command(as_json: bool = False, *, out: TextIO | None = None) -> int:
    """Prints each embedded model, whether it is here, where, and how large it is. Returns the exit code."""
    out = out or sys.stdout
    rows = []
    for name, weights in KNOWN_WEIGHTS.items():
        path = find_weights(name)
        rows.append(
            {
                "name": name,
                "title": weights.title,
                "licence": weights.licence,
                "size": weights.size,
                "sha256": weights.sha256,
                "path": None if path is None else str(path),
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2), file=out)
        return OK
    width = max(len(name) for name in KNOWN_WEIGHTS)
    for row in rows:
        where = row["path"] or f"not here yet: closeout models pull {row['name']}"
        size = KNOWN_WEIGHTS[str(row["name"])].megabytes
        print(f"{row['name']:<{width}}  {row['title']}, {size:,} MB, {row['licence']}", file=out)
        print(f"{'':<{width}}  {where}", file=out)
    return OK


def path_command(model: str = "local", *, out: TextIO | None = None, err: TextIO | None = None) -> int:
    """Prints where a model's file is. Exit code 2 for a name that does not exist, 3 if the file is not here yet."""
    err = err or sys.stderr
    try:
        path = find_weights(model)
    except ModelUnavailable as error:
        print(error, file=err)
        return MISUSED
    if path is None:
        weights = weights_named(model)
        assert weights is not None
        print(
            f"{weights.title} is not here yet (it belongs in {models_folder()}). Run: closeout models pull {model}",
            file=err,
        )
        return FAILED
    print(path, file=out or sys.stdout)
    return OK


def pull_command(
    model: str = "local", *, quiet: bool = False, out: TextIO | None = None, err: TextIO | None = None
) -> int:
    """Fetches a model unless it is here, shows how far it is, and prints its path.

    Exit code 2 for a name that does not exist, 3 if it cannot be fetched. Ctrl-C raises KeyboardInterrupt after a word
    on how to go on; what was fetched is kept.
    """
    err = err or sys.stderr
    try:
        weights_named(model)
    except ModelUnavailable as error:
        print(error, file=err)
        return MISUSED
    try:
        with _progress(err, quiet=quiet) as show:
            path = pull_weights(model, on_progress=show)
    except ModelUnavailable as error:
        print(error, file=err)
        return FAILED
    except KeyboardInterrupt:
        print(f"Stopped. `closeout models pull {model}` goes on from here.", file=err)
        raise
    print(path, file=out or sys.stdout)
    return OK


@contextmanager
def _progress(err: TextIO, *, quiet: bool) -> Iterator[Callable[[PullProgress], None]]:
    """A bar on a terminal, a line now and then elsewhere, nothing if quiet."""
    if quiet:
        yield lambda _: None
    elif err.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(file=err), transient=True) as bar:
            yield _Bar(bar)
    else:
        yield _Lines(err)


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
    def __init__(self, err: TextIO) -> None:
        self._err = err
        self._stage = ""
        self._next = 0.0

    def __call__(self, progress: PullProgress) -> None:
        now = time.monotonic()
        if progress.stage == "done" or (progress.stage == self._stage and now < self._next):
            return
        self._stage, self._next = progress.stage, now + _PLAIN_PERIOD
        percent = 100 * progress.done_bytes // progress.weights.size
        print(f"{_words(progress)}: {percent} %", file=self._err, flush=True)


def _words(progress: PullProgress) -> str:
    title = progress.weights.title
    if progress.stage == "waiting":
        return f"Waiting for another process that fetches {title}"
    if progress.stage == "checking":
        return f"Checking {title}"
    part = f", part {progress.part} of {progress.parts}" if progress.parts else ""
    return f"Fetching {title}{part}"
