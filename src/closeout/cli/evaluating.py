"""Run an evaluation at the terminal."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import typer

from closeout.agent import Agent
from closeout.assembly.parts import answer_of, without_parts
from closeout.cli.eval_display import EvalDisplay
from closeout.cli.eval_reports import print_report, watch
from closeout.cli.exits import OK, UNANSWERED, WAITING
from closeout.cli.options import RunOptions, make_agent
from closeout.cli.signals import Signals, Stopped, exit_now_if_blocked
from closeout.cli.terminal import print_json, say_error
from closeout.config import home_folder, load_config
from closeout.errors import UsageError
from closeout.evaluate.benchmarks import Benchmark
from closeout.evaluate.comparison import power_of_plan
from closeout.evaluate.evaluation import name_of_evaluation
from closeout.evaluate.merging import shard_home
from closeout.evaluate.report import EvalReport
from closeout.evaluate.scorers import JUDGE_INSTRUCTIONS, Judge
from closeout.evaluate.sweep import Sweep
from closeout.evaluate.tasks import EvalTask
from closeout.evaluate.trials import TrialStore
from closeout.run.subagents import closing_clients

__all__ = [
    "OnStart",
    "agents_of",
    "concurrency_of",
    "fields_of",
    "run_models",
    "run_work",
    "scorers_of",
    "share_of",
]

OnStart: TypeAlias = Callable[[Sweep, TrialStore], object]
"""Receives the sweep and the store of an evaluation that begins."""


def run_work(
    work: Callable[[OnStart], Awaitable[EvalReport]],
    agent: Agent[Any],
    *,
    quiet: bool,
    as_json: bool,
    shards: int = 1,
    at_least: float = 0.0,
    **report_options: Any,
) -> int:
    """Evaluate at the terminal, and print the report.

    Args:
        work: Evaluates.
        agent: The agent, whose clients are closed at the end.
        quiet: Hide the progress.
        as_json: Print JSON.
        shards: The number of shares into which the tasks are divided.
        at_least: The score below which the evaluation counts as failed.
        report_options: Further arguments of `print_report`.

    Returns:
        The exit code: 1 if the evaluation was stopped before its end or the score is too low, 4 if trials wait for a
        decision.
    """
    display = None if quiet else EvalDisplay()
    names: list[str] = []

    async def watched() -> EvalReport:
        watching: list[asyncio.Task[None]] = []

        def started(_: Sweep, store: TrialStore) -> None:
            names.append(store.path.stem)
            if display is not None:
                if store.progress("").finished == 0:
                    display.note(power_of_plan(len(store.tasks()) * shards))
                watching.append(asyncio.ensure_future(watch(store.path, display)))

        async with closing_clients(agent.plan()):
            try:
                return await work(started)
            finally:
                for task in watching:
                    task.cancel()
                await asyncio.gather(*watching, return_exceptions=True)

    logging.getLogger().addHandler(logging.NullHandler())  # libraries' logs are not for the person at the terminal
    with Signals() as signals:
        try:
            with display or nullcontext():
                report = signals.run(watched())
        except Stopped as stopped:
            name = names[0] if names else ""
            to_see = f" To see it: closeout eval show {name}" if name else ""
            say_error(f"stopped; the same command continues it.{to_see}")
            if as_json:
                print_json({"name": name, "status": "cancelled"})
            return exit_now_if_blocked(stopped.code)
    print_report(report, as_json=as_json, **report_options)
    totals = report.totals
    if totals.suspended and totals.finished + totals.suspended == totals.planned:
        return WAITING
    if too_low := report.score.mean < at_least:
        say_error(f"The score, {report.score.mean:.3f}, is below {at_least:g}.")
    return UNANSWERED if too_low or totals.finished < totals.planned else OK


def run_models(
    commands: typer.Typer, tasks: str, models: Sequence[str], name: str, arguments: Sequence[str]
) -> list[str] | int:
    """Run `closeout eval run` for each model, with its report on stderr.

    Returns:
        The names of the evaluations; or the exit code of the first one that did not end.

    Raises:
        UsageError: A model is named twice, or there is only one.
    """
    names = [name_of_evaluation(f"{name or Path(tasks).stem}-{model}") for model in models]
    if len(set(names)) < max(len(names), 2):
        raise UsageError(f"Give -m for each of several models, got {', '.join(models)}.")
    for model, each in zip(models, names, strict=True):
        try:
            with redirect_stdout(sys.stderr):
                commands(["run", tasks, "-m", model, "--name", each, *arguments], prog_name="closeout eval")
        except SystemExit as ended:
            if ended.code:
                return int(ended.code)
    return names


def agents_of(
    benchmark: Benchmark | None, agent: Agent[Any], options: RunOptions, *, on_ray: bool = False
) -> Agent[Any] | Callable[[EvalTask], Agent[Any]]:
    """Return the agent of an evaluation, or a function from a task to its agent.

    For a benchmark with tools of its own, each task has an agent with these tools, and with the agent's model and
    settings.
    """
    if benchmark is None:
        return partial(_agent_on_node, options) if on_ray else agent
    if on_ray:
        raise UsageError("--ray runs tasks of a file; the ready benchmarks run on one machine.")
    make_tools = benchmark.tools
    if make_tools is None:
        return agent
    config, client = load_config(agent.config, values=benchmark.settings), agent.plan().client
    config = config.model_copy(update={"agent": without_parts(config.agent)})
    answer = None if options.answer is None else answer_of(options.answer)

    def agent_for(task: EvalTask) -> Agent[Any]:
        return Agent(
            client,
            list(make_tools(task)),
            dialect=options.dialect,
            instructions=benchmark.instructions or None,
            answer=answer,
            config=config,
        )

    return agent_for


def _agent_on_node(options: RunOptions, task: EvalTask) -> Agent[Any]:
    return make_agent(options)


def scorers_of(benchmark: Benchmark | None, named: Sequence[str] | None, agent: Agent[Any]) -> Any:
    """Return the named scorers, or those of the benchmark. Judges follow the benchmark's rules.

    By default the judge is the agent's own model.
    """
    rules = "" if benchmark is None else benchmark.judge
    if not rules:
        return named or ("normalized" if benchmark is None else benchmark.scorer)
    instructions = f"{JUDGE_INSTRUCTIONS}\n\n{rules}"
    if not named:
        print("The agent's own model judges its answers. Name another: --scorer judge:MODEL.", file=sys.stderr)
        return Judge(agent.plan().client, instructions=instructions)
    return [
        Judge(each.removeprefix("judge:"), instructions=instructions) if each.startswith("judge:") else each
        for each in named
    ]


# ------------------------------------------------------------------------------------------------ options


def share_of(shard: str | None, name: str) -> tuple[int, int] | None:
    """Return the share that `--shard i/n` names, and give it a home of its own: SQLite does not share one over NFS."""
    if shard is None:
        return None
    first, _, second = shard.partition("/")
    if not (first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)):
        raise UsageError(f"--shard takes i/n with i from 1 to n, got {shard}.")
    if not name:
        raise UsageError("--shard needs --name: the shards of one evaluation have the same name.")
    share = int(first), int(second)
    os.environ["CLOSEOUT_HOME"] = str(shard_home(home_folder(), name, *share))
    return share


def fields_of(fields: Sequence[str]) -> Mapping[str, str]:
    """Return the names that `--field` sets."""
    found = {}
    for each in fields:
        name, equals, column = each.partition("=")
        if not equals or not column:
            raise UsageError(f"--field takes NAME=FIELD, such as question=problem; got {each}.")
        found[name] = column
    return found


def concurrency_of(text: str) -> int | str:
    """Return the number that `--concurrency` sets, or auto."""
    if text == "auto" or (text.isdecimal() and int(text)):
        return text if text == "auto" else int(text)
    raise UsageError(f"--concurrency takes a number from 1, or auto; got {text}.")
