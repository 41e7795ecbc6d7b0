"""What the commands of `closeout eval` that run and score trials do."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from closeout.agent import Agent
from closeout.answers.typed import named_contract
from closeout.cli.agents import load_agent
from closeout.cli.eval_display import EvalDisplay
from closeout.cli.eval_reports import ReportOptions, opened, print_report, watch
from closeout.cli.exits import OK, UNANSWERED, WAITING
from closeout.cli.options import RunOptions
from closeout.cli.signals import Signals, Stopped, exit_now_if_blocked
from closeout.cli.terminal import print_json, say_error
from closeout.config import home_folder, load_config
from closeout.errors import UsageError
from closeout.evaluate.benchmarks import Benchmark, find_benchmark
from closeout.evaluate.evaluation import default_name, evaluate, rescore, retry
from closeout.evaluate.report import Report
from closeout.evaluate.sweep import Sweep, SweepSettings
from closeout.evaluate.tasks import EvalTask
from closeout.evaluate.trials import TrialStore

__all__ = ["EvalOptions", "retry_command", "run_command", "score_command"]

Work: TypeAlias = "Callable[[Callable[[Sweep, TrialStore], object]], Awaitable[Report]]"
"""Evaluates, and passes its sweep and store to the callback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """The options of `closeout eval run` that say how it works and what it prints. `quiet` hides the progress."""

    agent: str | None = None
    run: RunOptions = field(default_factory=RunOptions)
    scorers: tuple[str, ...] = ()
    concurrency: str = "10"
    max_cost: float | None = None
    max_tokens: int | None = None
    retries: int = 3
    force: bool = False
    ray: str | None = None
    report: ReportOptions = field(default_factory=ReportOptions)
    quiet: bool = False


def run_command(
    tasks: str,
    options: EvalOptions,
    *,
    name: str,
    epochs: int,
    limit: int | None,
    fields: Sequence[str],
    shard: str | None,
) -> int:
    """Run an evaluation. Return the exit code: 1 if it was stopped before its end, 4 if trials wait for a decision."""
    benchmark = None if Path(tasks).exists() else find_benchmark(tasks)
    source = {
        "agent": options.agent,
        "options": options.run.as_origin(),
        "scorers": list(options.scorers),
        "benchmark": "" if benchmark is None else tasks,
    }
    share = _shard(shard, name)
    agent = load_agent(options.agent, options.run)
    read: Any = tasks if benchmark is None else benchmark.tasks()
    common: dict[str, Any] = {
        "scorer": list(options.scorers) or ("normalized" if benchmark is None else benchmark.scorer),
        "name": name,
        "epochs": epochs,
        "limit": limit,
        "fields": _fields(fields),
        "concurrency": _concurrency(options.concurrency),
        "max_cost": options.max_cost,
        "max_tokens": options.max_tokens,
        "retries": options.retries,
        "force": options.force,
        "origin": {} if options.agent else options.run.as_origin(),
        "details": {"source": source, "tasks": tasks, "command": shlex.join(["closeout", *sys.argv[1:]])},
    }
    if benchmark is not None:
        common["name"] = name or default_name(tasks, agent)

    async def work(on_start: Callable[[Sweep, TrialStore], object]) -> Report:
        if options.ray is None:
            evaluated = agent if benchmark is None else _with_tools(benchmark, agent, options.run)
            return await evaluate(evaluated, read, shard=share, on_start=on_start, **common)
        if benchmark is not None:
            raise UsageError("--ray runs tasks of a file; the ready benchmarks run on one machine.")
        make_agent = partial(load_agent, options.agent, options.run)
        return await evaluate(make_agent, tasks, shard=share, on_start=on_start, ray=options.ray, **common)

    return _run(work, agent, options)


def retry_command(name: str, *, unanswered: bool, fresh: bool, concurrency: str, as_json: bool, quiet: bool) -> int:
    """Run failed trials again. Return the exit code."""
    with opened(name) as store:
        source = store.spec.get("source")
    if source is None:
        raise UsageError(
            f"{name} was not started on the command line. Repeat its trials in Python: retry(agent, {name!r})."
        )
    run = RunOptions(**_without_lists(source["options"]))
    agent = load_agent(source["agent"], run)
    benchmark = find_benchmark(source.get("benchmark", ""))
    scorer: Any = source["scorers"] or ("normalized" if benchmark is None else benchmark.scorer)
    statuses = ("failed", "unanswered") if unanswered else ("failed",)
    settings = SweepSettings(concurrency=_concurrency(concurrency), origin={} if source["agent"] else run.as_origin())

    async def work(on_start: Callable[[Sweep, TrialStore], object]) -> Report:
        return await retry(
            agent if benchmark is None else _with_tools(benchmark, agent, run),
            name,
            statuses=statuses,
            fresh=fresh,
            scorer=scorer,
            settings=settings,
            on_start=on_start,
        )

    return _run(work, agent, EvalOptions(report=ReportOptions(as_json=as_json), quiet=quiet))


def _run(
    work: Callable[[Callable[[Sweep, TrialStore], object]], Awaitable[Report]], agent: Any, options: EvalOptions
) -> int:
    display = None if options.quiet else EvalDisplay()
    names: list[str] = []

    async def watched() -> Report:
        from closeout.run.subagents import clients_of

        watching: list[asyncio.Task[None]] = []

        def started(_: Sweep, store: TrialStore) -> None:
            names.append(store.path.stem)
            if display is not None:
                watching.append(asyncio.ensure_future(watch(store.path, display)))

        try:
            return await work(started)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            for client in clients_of(agent.plan()):
                await client.aclose()

    logging.getLogger().addHandler(logging.NullHandler())  # libraries' logs are not for the person at the terminal
    with Signals(lambda: None, lambda: None) as signals:
        try:
            with display or nullcontext():
                report = signals.run(watched())
        except Stopped as stopped:
            name = names[0] if names else ""
            to_see = f" To see it: closeout eval show {name}" if name else ""
            say_error(f"stopped; the same command continues it.{to_see}")
            if options.report.as_json:
                print_json({"name": name, "status": "cancelled"})
            return exit_now_if_blocked(stopped.code)
    print_report(report, options.report)
    totals = report.totals
    if totals.suspended and totals.finished + totals.suspended == totals.planned:
        return WAITING
    return UNANSWERED if totals.finished < totals.planned else OK


def _with_tools(benchmark: Benchmark, agent: Agent[Any], options: RunOptions) -> Callable[[EvalTask], Agent[Any]]:
    """Return a function from a task of a benchmark to its agent: the model and the settings of another, its tools."""
    config, client = load_config(agent.config, values=benchmark.settings), agent.plan().client
    answer = None if options.answer is None else named_contract(options.answer)

    def agent_for(task: EvalTask) -> Agent[Any]:
        return Agent(
            client,
            list(benchmark.tools(task)),
            dialect=options.dialect,
            instructions=benchmark.instructions or None,
            answer=answer,
            config=config,
        )

    return agent_for


def score_command(name: str, scorer: str, *, as_json: bool) -> int:
    """Score an evaluation with another scorer."""
    report = asyncio.run(rescore(name, scorer))
    print_report(report, ReportOptions(as_json=as_json))
    return OK


# ------------------------------------------------------------------------------------------------ options


def _without_lists(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded options with the tuples that JSON made lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def _shard(shard: str | None, name: str) -> tuple[int, int] | None:
    """Return the share that `--shard i/n` names, and give it a home of its own: SQLite does not share one over NFS."""
    if shard is None:
        return None
    from closeout.evaluate.merging import shard_home

    first, _, second = shard.partition("/")
    if not (first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)):
        raise UsageError(f"--shard takes i/n with i from 1 to n, got {shard}.")
    if not name:
        raise UsageError("--shard needs --name: the shards of one evaluation have the same name.")
    share = int(first), int(second)
    os.environ["CLOSEOUT_HOME"] = str(shard_home(home_folder(), name, *share))
    return share


def _fields(fields: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for each in fields:
        name, equals, column = each.partition("=")
        if not equals or not column:
            raise UsageError(f"--field takes NAME=FIELD, such as question=problem; got {each}.")
        found[name] = column
    return found


def _concurrency(text: str) -> int | str:
    if text == "auto" or (text.isdecimal() and int(text)):
        return text if text == "auto" else int(text)
    raise UsageError(f"--concurrency takes a number from 1, or auto; got {text}.")
