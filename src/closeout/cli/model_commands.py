"""`closeout models list|pull|path|bench`: the weights of the embedded models, and how fast they are here."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from closeout.cli import exits
from closeout.cli.terminal import amount, print_json, say_error
from closeout.errors import ModelUnavailable
from closeout.models.local.local_machine import Speed
from closeout.models.local.weights import (
    KNOWN_WEIGHTS,
    PullProgress,
    find_weights,
    models_folder,
    pull_weights,
    weights_named,
)

__all__ = ["bench_command", "list_command", "path_command", "pull_command", "speed_advice"]

_BENCH_WORDS = 200
_BENCH_REPLY = 40  # tokens
_LINE_PERIOD = 5.0  # seconds between two lines of progress if stderr is not a terminal


def list_command(as_json: bool) -> int:
    """Print each embedded model, its size, and where its weights are. Return the exit code."""
    found = [(weights, find_weights(name)) for name, weights in KNOWN_WEIGHTS.items()]
    if as_json:
        print_json([
            {"name": w.name, "title": w.title, "licence": w.licence, "size": w.size, "sha256": w.sha256,
             "path": None if path is None else str(path)}
            for w, path in found
        ])  # fmt: skip
        return exits.OK
    width = max(len(weights.name) for weights, _ in found)
    for weights, path in found:
        print(f"{weights.name:<{width}}  {weights.title}, {weights.megabytes:,} MB, {weights.licence}")
        print(f"{'':<{width}}  {path or f'not downloaded yet: closeout models pull {weights.name}'}")
    return exits.OK


def path_command(model: str) -> int:
    """Print the path of a model's weights. Return FAILED if they are not downloaded yet.

    Raises:
        ModelUnavailable: No model has this name.
    """
    path = find_weights(model)
    if path is None:
        weights = weights_named(model)
        assert weights is not None
        where = f"{weights.title} is not downloaded yet (its folder is {models_folder()})."
        say_error(f"{where} Download it: closeout models pull {model}")
        return exits.FAILED
    print(path)
    return exits.OK


def pull_command(model: str) -> int:
    """Download a model's weights if they are missing, and print their path. Return the exit code.

    An interrupted download continues where it stopped.

    Raises:
        ModelUnavailable: No model has this name.
    """
    weights_named(model)
    try:
        with _progress() as show:
            path = pull_weights(model, on_progress=show)
    except ModelUnavailable as error:
        say_error(str(error))
        return exits.FAILED
    except KeyboardInterrupt:
        say_error(f"stopped. To continue: closeout models pull {model}")
        return exits.STOPPED
    print(path)
    return exits.OK


def bench_command(model: str, as_json: bool) -> int:
    """Measure an embedded model with one thread and with more, and print the speeds. Return the exit code.

    The best speeds are kept, and later runs choose their number of threads by them.

    Raises:
        ModelUnavailable: No model has this name, or its weights are not downloaded.
    """
    from closeout.models.local.local_machine import idle_cores, usable_cores

    cores = usable_cores()
    idle = idle_cores(cores)
    counts = sorted({1, max(1, cores // 2), cores})
    speeds = []
    for threads in counts:
        if not as_json:
            print(f"Measuring {model} with {amount(threads, 'thread')} …", file=sys.stderr, flush=True)
        speeds.append(asyncio.run(_measure(model, threads)))
    advice = list(speed_advice(model, cores, idle))
    if as_json:
        measured = [{"threads": s.threads, "prompt": round(s.prompt, 1), "reply": round(s.reply, 1)} for s in speeds]
        print_json({"model": model, "cores": cores, "idle_cores": idle, "speeds": measured, "advice": advice})
        return exits.OK
    print(f"{'threads':>8}  {'prompt':>12}  {'reply':>12}")
    for speed in speeds:
        print(f"{speed.threads:>8}  {speed.prompt:>8.1f} t/s  {speed.reply:>8.1f} t/s")
    for line in advice:
        print(line)
    return exits.OK


async def _measure(model: str, threads: int) -> Speed:
    from closeout.messages import Constraint, ModelRequest
    from closeout.models.local.embedded import LocalClient

    async with LocalClient(model, threads=threads, max_context=2048, pull=False) as client:
        words = " ".join(f"{number} times {number % 7}" for number in range(_BENCH_WORDS // 3))
        letters = Constraint("grammar", "root ::= [a-z ]{400}")  # the model must not end its reply
        await client.complete(ModelRequest(prompt=words, max_tokens=_BENCH_REPLY, constraint=letters))
        return client.speed


def speed_advice(model: str, cores: int, idle: int) -> Iterator[str]:
    """Yield advice that makes an embedded model faster on this machine, one sentence each."""
    from closeout.models.local.local_engine import unused_instructions

    if idle < cores:
        busy = cores - idle
        yield f"Other programs keep {busy} of {cores} cores busy. A run would use {amount(idle, 'thread')} now."
    if unused := unused_instructions():
        names = ", ".join(name.replace("_", "-") for name in unused)
        yield f"The processor has {names}. The installed xllamacpp is built without them; a build with them is faster."
    if cores == 1:
        yield "There is one core. With more cores, prompts are read that many times faster."
    if model == "local":
        yield "local:small is about three times as fast, and right less often."


@contextmanager
def _progress() -> Iterator[Callable[[PullProgress], None]]:
    """Show a progress bar on a terminal, otherwise a line now and then."""
    if not sys.stderr.isatty():
        yield _print_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(progress: PullProgress) -> None:
            if progress.stage == "done":
                bar.console.print(_words(progress), markup=False, soft_wrap=True)
                return
            total = None if progress.stage == "waiting" else progress.weights.size or None
            bar.update(task, description=_words(progress), completed=progress.done_bytes, total=total)

        yield show


def _print_lines() -> Callable[[PullProgress], None]:
    """Return a callback that prints a line for each stage, and now and then during a long one."""
    stage, due = "", 0.0

    def show(progress: PullProgress) -> None:
        nonlocal stage, due
        now = time.monotonic()
        if progress.stage == "done":
            print(_words(progress), file=sys.stderr, flush=True)
            return
        if progress.stage == stage and now < due:
            return
        stage, due = progress.stage, now + _LINE_PERIOD
        size = progress.weights.size
        done = f"{100 * progress.done_bytes // size} %" if size else f"{progress.done_bytes / 1e6:,.0f} MB"
        print(f"{_words(progress)}: {done}", file=sys.stderr, flush=True)

    return show


def _words(progress: PullProgress) -> str:
    title = progress.weights.title
    if progress.stage == "waiting":
        return f"Waiting for another process that downloads {title}"
    if progress.stage == "checking":
        return f"Checking {title}"
    if progress.stage == "done":
        return f"{title} was downloaded from {progress.source}." if progress.source else f"{title} is downloaded."
    part = f", part {progress.part} of {progress.parts}" if progress.parts else ""
    return f"Downloading {title}{part}"
