"""The commands that run an agent: run, resume, replay."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from typing import Any

from closeout.agent import Agent
from closeout.answers.report_page import report_html, report_markdown
from closeout.cli import exits
from closeout.cli.continuing import last_conversation, options_of_session, recorded_options
from closeout.cli.deciding import ask_at_terminal, can_ask, describe_pending, read_json
from closeout.cli.display import Display
from closeout.cli.options import RunOptions, make_agent, with_own_deps
from closeout.cli.signals import Signals, Stopped, exit_now_if_blocked
from closeout.cli.terminal import amount, duration, print_answer, print_json, say_error, usage_line
from closeout.cli.view import write_page
from closeout.config import home_folder
from closeout.errors import JournalError, UsageError
from closeout.journal.next_steps import next_step
from closeout.journal.readonly import open_to_read
from closeout.journal.run_names import new_run_id
from closeout.journal.store import open_store
from closeout.journal.subscribers import Listener
from closeout.run.conversation import Session
from closeout.run.lifecycle import replay_run
from closeout.run.plan import check_on_change
from closeout.run.result import RunResult
from closeout.run.subagents import clients_of, closing_clients
from closeout.run.waits.decisions import Decisions
from closeout.stray_output import stray_output_to_stderr

__all__ = ["read_result", "replay_command", "resume_run", "run_agent", "run_command"]

SHOWN_FILES = 5  # names of files below an answer

Start = Callable[[Agent, Sequence[Listener]], Awaitable[RunResult]]


def run_command(question: str, options: RunOptions, *, continue_last: bool, as_json: bool, quiet: bool) -> int:
    """Answer a question, with `continue_last` as the next message of the last conversation. Return the exit code."""
    task = _read_question(question)
    session: Session | None = None
    run_id = new_run_id()
    if continue_last:
        session_id = last_conversation()
        options = options.over(options_of_session(session_id))
        agent = make_agent(options)
        session = agent.session(session_id)
        run_id = session.next_run_id()
    else:
        agent = make_agent(options)
    origin = options.as_origin()

    async def start(agent: Agent, listeners: Sequence[Listener]) -> RunResult:
        if session is not None:
            same = agent.session(session.id)
            return await same.run(task, files=options.files, origin=origin, listeners=listeners)
        return await agent.run(task, files=options.files, run_id=run_id, origin=origin, listeners=listeners)

    return run_agent(agent, start, run_id, as_json=as_json, quiet=quiet)


def research_command(question: str, options: RunOptions, *, html: str | None, as_json: bool, quiet: bool) -> int:
    """Research a question and print the report; with `html`, write it as a page too. Return the exit code."""
    task, run_id = _read_question(question), new_run_id()

    async def start(agent: Agent, listeners: Sequence[Listener]) -> RunResult:
        result = await agent.run(task, run_id=run_id, origin=options.as_origin(), listeners=listeners)
        if html is not None and (page := report_html(result)):
            write_page(html, page)
        return result

    return run_agent(make_agent(options), start, run_id, as_json=as_json, quiet=quiet)


def resume_run(
    run_id: str,
    options: RunOptions,
    *,
    decisions: Decisions | None = None,
    on_change: str | None = None,
    force: bool = False,
    as_json: bool,
    quiet: bool,
) -> int:
    """Resume a run with the agent that the options describe. Return the exit code."""
    agent = make_agent(options)
    mode = None if on_change is None else check_on_change(on_change)

    async def start(agent: Agent, listeners: Sequence[Listener]) -> RunResult:
        return await agent.resume(
            run_id,
            decisions=decisions,
            on_change=mode,
            despite_changes=force,
            despite_damage=force,
            listeners=listeners,
        )

    return run_agent(agent, start, run_id, as_json=as_json, quiet=quiet)


def replay_command(run_id: str, *, agent: str | None = None, as_json: bool) -> int:
    """Replay a recorded run. Return 0 if it follows its record, 1 if it departs from it."""
    plan = replace(
        make_agent(recorded_options(run_id, agent=agent), api_key="not needed").plan(),
        remember_dialect=None,
        remember_rules=None,
    )
    with open_to_read(home_folder()) as store:
        rows = list(store.rows(run_id))
    with stray_output_to_stderr():
        result, departure = asyncio.run(replay_run(plan, run_id, rows))
    if as_json:
        print_json({**result.to_dict(), "departure": departure})
        return 1 if departure else 0
    if result.answer is not None:
        print_answer(result.answer)
    if departure:
        say_error(f"the replay departs from the record at {departure}.")
        return 1
    print("The replay follows the record to its end.", file=sys.stderr)
    return 0


def read_result(option: str) -> tuple[str, Any]:
    """Return the handle and the value that `--set-result` sets."""
    handle, equals, text = option.partition("=")
    if not equals:
        raise UsageError(f"--set-result must be HANDLE=JSON, such as r3='{{\"price\": 5}}', got '{option}'.")
    return handle.strip(), read_json(f"The result {text[:60]!r} of --set-result {handle}", text)


def _read_question(text: str) -> str:
    if text == "-":
        text = _read_stdin()
    if not text.strip():
        raise UsageError('The question is empty. Try: closeout run "How far is the Moon?"')
    return text.strip()


def _read_stdin() -> str:
    if sys.stdin is None:
        raise UsageError("Cannot read the question: stdin is closed.")
    if sys.stdin.isatty():
        print("Type the question, then Ctrl-D.", file=sys.stderr)
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError("The question on stdin is not UTF-8 text.") from None


# ------------------------------------------------------------------------------------------------ one run


def run_agent(agent: Agent, start: Start, run_id: str, *, as_json: bool, quiet: bool) -> int:
    """Execute a run at the terminal and report how it ended. Return the exit code.

    Args:
        agent: The agent.
        start: Starts, resumes or forks the run.
        run_id: The run.
        as_json: Print the result as a JSON object.
        quiet: Print only the answer.
    """
    display = None if quiet else Display()
    logging.getLogger().addHandler(logging.NullHandler())  # libraries' logs are not for the person at the terminal
    with Signals(display, lambda: _say_stopped(run_id)) as signals:
        try:
            with display or nullcontext():
                result = signals.run(_start(agent, start, display, run_id))
        except Stopped as stopped:
            begun = _say_stopped(run_id)
            if as_json:
                print_json({"answer": None, "status": "cancelled", "run_id": run_id if begun else None})
            return exit_now_if_blocked(stopped.code)
    if result.status == "waiting" and can_ask(as_json) and (decisions := ask_at_terminal(result.waiting)):

        async def resume(agent: Agent, listeners: Sequence[Listener]) -> RunResult:
            return await agent.resume(run_id, decisions=decisions, listeners=listeners)

        return run_agent(agent, resume, run_id, as_json=as_json, quiet=quiet)
    _report(result, display, as_json=as_json)
    return exits.OUTCOMES[result.status]


async def _start(agent: Agent, start: Start, display: Display | None, run_id: str) -> RunResult:
    for client in clients_of(agent.plan()):
        if display is not None and hasattr(client, "on_status"):
            client.on_status = display.working  # downloading and loading weights take a while
    async with closing_clients(agent.plan()), AsyncExitStack() as stack:
        agent = await with_own_deps(agent, stack, run_id)
        return await start(agent, (display,) if display is not None else ())


def _say_stopped(run_id: str) -> bool:
    """Say that the run was stopped. Return whether there is a run to resume."""
    try:
        open_store(home_folder()).run(run_id)
    except JournalError:
        say_error("stopped before the run began.")
        return False
    say_error(f"stopped. To see it: closeout runs {run_id}   To resume it: closeout resume {run_id}")
    return True


def _report(result: RunResult, display: Display | None, *, as_json: bool) -> None:
    if display is not None:
        display.say(_outcome(result), "dim")
        display.say(f"closeout runs {result.run_id}", "dim")
        if result.files:
            names = ", ".join(file.name for file in result.files[:SHOWN_FILES])
            more = f" and {len(result.files) - SHOWN_FILES} more" if len(result.files) > SHOWN_FILES else ""
            display.say(f"{names}{more}: closeout runs files {result.run_id} -o FOLDER", "dim")
    if as_json:
        print_json(result.to_dict())
    elif result.answer is not None:
        print_answer(report_markdown(result) or result.answer)
    if result.status == "failed":
        error = result.error or f"The run failed ({result.stop_reason})."
        say_error(f"{_sentence(error)} {next_step(result.status, result.error_kind, result.run_id)}")
    elif result.status == "waiting":
        if not as_json:
            print(describe_pending(result.run_id, result.waiting), file=sys.stderr)
    elif result.status == "cancelled":  # from elsewhere
        _say_stopped(result.run_id)
    elif result.answer is None:
        reason = result.error or f"no answer was found ({result.stop_reason})."
        say_error(f"{_sentence(reason)} To see what it learned: closeout runs {result.run_id}")


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "。", "…", ":")) else f"{text}."


def _outcome(result: RunResult) -> str:
    why = "" if result.stop_reason == result.status else f" ({result.stop_reason})"
    parts = [
        f"{result.status}{why}",
        amount(result.turns, "turn"),
        amount(result.usage.requests, "request"),
        usage_line(result.usage),
    ]
    parts += [amount(len(result.repairs), "repair")] if result.repairs else []
    parts += [amount(result.rollbacks, "rollback")] if result.rollbacks else []
    return " · ".join([*parts, duration(result.seconds * 1000)])
