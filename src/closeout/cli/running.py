"""The commands that lead runs: run, resume, replay."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from closeout.cli import exits
from closeout.cli.console import amount, bill, duration, print_answer, print_json
from closeout.cli.display import Display
from closeout.cli.guard import say_error
from closeout.cli.interrupts import Interrupts, Stopped
from closeout.cli.next_step import next_step
from closeout.cli.options import RunOptions, make_agent, recorded_options
from closeout.errors import UsageError

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.journal.journal import Listener
    from closeout.orchestrator.result import RunResult

__all__ = ["replay_command", "resume_command", "run_command"]

Start = Callable[["Agent", Sequence["Listener"]], Awaitable["RunResult"]]


def run_command(question: str, options: RunOptions, *, as_json: bool, quiet: bool) -> int:
    """Answer a question; returns the exit code."""
    from closeout.journal.journal import new_run_id

    task = _question(question)
    run_id = new_run_id()
    agent = make_agent(options)

    async def start(agent: Agent, listeners: Sequence[Listener]) -> RunResult:
        origin = options.as_origin()
        return await agent.run(task, files=options.files, run_id=run_id, origin=origin, listeners=listeners)

    return _lead(agent, start, run_id, as_json=as_json, quiet=quiet)


def resume_command(
    run_id: str, model: str | None, base_url: str | None, *, force: bool, as_json: bool, quiet: bool
) -> int:
    """Lead a run on, its model at another address if need be; returns the exit code."""
    options = recorded_options(run_id)
    agent = make_agent(replace(options, model=model or options.model, base_url=base_url or options.base_url))

    async def go_on(agent: Agent, listeners: Sequence[Listener]) -> RunResult:
        return await agent.resume(run_id, despite_changes=force, listeners=listeners)

    return _lead(agent, go_on, run_id, as_json=as_json, quiet=quiet)


def replay_command(run_id: str, *, as_json: bool) -> int:
    """Run a record again; 0 if it comes out as it was, 1 if it departs."""
    from closeout.config import home_folder
    from closeout.journal.readonly import open_to_read
    from closeout.orchestrator.run import replay

    plan = replace(make_agent(recorded_options(run_id), api_key="not needed").plan(), remember_dialect=None)
    with open_to_read(home_folder()) as store:
        rows = list(store.rows(run_id))
    result, departure = asyncio.run(replay(plan, run_id, rows))
    if as_json:
        print_json({**result.to_dict(), "departure": departure})
        return 1 if departure else 0
    if result.answer is not None:
        print_answer(result.answer)
    if departure:
        say_error(f"it departs from its record at {departure}.")
        return 1
    print("It follows its record to the end.", file=sys.stderr)
    return 0


def _question(text: str) -> str:
    if text == "-":
        text = _from_stdin()
    if not text.strip():
        raise UsageError('The question is empty. Try: closeout run "How far is the Moon?"')
    return text.strip()


def _from_stdin() -> str:
    if sys.stdin is None:
        raise UsageError("The question was to come from stdin, but stdin is closed.")
    if sys.stdin.isatty():
        print("Type the question, then Ctrl-D.", file=sys.stderr)
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError("The question on stdin is not UTF-8 text.") from None


# ------------------------------------------------------------------------------------------------ leading


def _lead(agent: Agent, start: Start, run_id: str, *, as_json: bool, quiet: bool) -> int:
    display = None if quiet else Display()

    def first() -> None:
        if display is not None:
            display.stopping()

    def second() -> None:
        if display is not None:
            display.close()
        _say_stopped(run_id)

    _keep_libraries_quiet()
    with Interrupts(first, second) as interrupts:
        try:
            with display or nullcontext():
                result = interrupts.run(_started(agent, start, display))
        except Stopped as stopped:
            begun = _say_stopped(run_id)
            if as_json:
                print_json({"answer": None, "status": "cancelled", "run_id": run_id if begun else None})
            return interrupts.leave(stopped.code)
    _report(result, display, as_json=as_json)
    return exits.OUTCOMES[result.status]


async def _started(agent: Agent, start: Start, display: Display | None) -> RunResult:
    client = agent.plan().client
    try:
        if display is not None and hasattr(client, "on_status"):
            client.on_status = display.working  # loading and fetching weights take their time
        return await start(agent, (display,) if display is not None else ())
    finally:
        await client.aclose()


def _keep_libraries_quiet() -> None:
    """What libraries log is for programs; here every line is for a person."""
    import logging

    logging.getLogger().addHandler(logging.NullHandler())


def _say_stopped(run_id: str) -> bool:
    """Whether there is a run to go on with."""
    from closeout.config import home_folder
    from closeout.errors import JournalError
    from closeout.journal.store import open_store

    try:
        open_store(home_folder()).run(run_id)
    except JournalError:
        say_error("stopped before the run began.")
        return False
    say_error(f"stopped. See it: closeout runs {run_id}   Go on: closeout resume {run_id}")
    return True


def _report(result: RunResult, display: Display | None, *, as_json: bool) -> None:
    if display is not None:
        display.say(_outcome(result), "dim")
        display.say(f"closeout runs {result.run_id}", "dim")
    if as_json:
        print_json(result.to_dict())
    elif result.answer is not None:
        print_answer(result.answer)
    if result.status == "failed":
        error = result.error or f"The run failed ({result.stop_reason})."
        say_error(f"{_sentence(error)} {next_step(result.error_kind, result.run_id)}")
    elif result.answer is None:
        reason = result.error or f"no answer was found ({result.stop_reason})."
        say_error(f"{_sentence(reason)} What was learned: closeout runs {result.run_id}")


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "。", "…", ":")) else f"{text}."


def _outcome(result: RunResult) -> str:
    why = "" if result.stop_reason == result.status else f" ({result.stop_reason})"
    parts = [
        f"{result.status}{why}",
        amount(result.turns, "turn"),
        amount(result.usage.requests, "request"),
        bill(result.usage),
    ]
    parts += [amount(len(result.repairs), "repair")] if result.repairs else []
    parts += [amount(result.rollbacks, "rollback")] if result.rollbacks else []
    return " · ".join([*parts, duration(result.seconds * 1000)])
