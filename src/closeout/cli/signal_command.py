"""`closeout runs signal` and `closeout resume --due`: what wakes runs that wait for a signal or a time."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from closeout.agent import Agent
from closeout.cli import exits
from closeout.cli.continuing import recorded_options
from closeout.cli.deciding import describe_pending, read_json
from closeout.cli.options import RunOptions, make_agent, with_own_deps
from closeout.cli.terminal import amount, print_json, say_error
from closeout.config import home_folder
from closeout.errors import CloseoutError, JournalLocked, UsageError
from closeout.fleet.due_runs import due_runs
from closeout.journal.next_steps import agent_option
from closeout.journal.readonly import open_to_read
from closeout.journal.sent_signals import send_signal
from closeout.journal.store import open_store
from closeout.run.result import RunResult
from closeout.run.subagents import closing_clients
from closeout.run.waits.decisions import end_wait, pending_decisions
from closeout.stray_output import stray_output_to_stderr
from closeout.visible import visible

__all__ = ["end_waits", "resume_due_runs", "signal_command"]


def signal_command(run_id: str, name: str, payload: str, *, id: str, as_json: bool) -> int:  # noqa: A002
    """Send a signal to a run. Return the exit code."""
    value = read_json(f"The payload {payload[:60]!r}", sys.stdin.read() if payload == "-" else payload)
    store = open_store(home_folder())
    sent = send_signal(store, run_id, name, value, id=id)
    waiting = store.run(run_id).status == "waiting"
    awaited = waiting and any(name in each.signals for each in pending_decisions(store.rows(run_id)))
    if as_json:
        print_json({"run_id": run_id, "signal": name, "sent": sent, "awaited": awaited})
    elif not sent:
        print(f"A signal with the id {id} was sent to this run before.", file=sys.stderr)
    else:
        then = (
            f"To continue the run: closeout resume {run_id}{agent_option(store.rows_from(run_id, 0, 1))}"
            "   A server and agent.resume_due() do that too."
            if awaited
            else "It is kept until the run waits for it."
        )
        print(f"Sent. {then}", file=sys.stderr)
    return exits.OK


def end_waits(run_id: str) -> None:
    """End the waits of a run for a model's server, or for its own start. Raises UsageError if there are none."""
    store = open_store(home_folder())
    waits = [each.id for each in pending_decisions(store.rows(run_id)) if each.may_end_early]
    if not waits:
        raise UsageError(f"Run {run_id} has no wait that --now could end: a tool's own wait keeps its time.")
    for name in waits:
        end_wait(store, run_id, name, by="terminal")


def resume_due_runs(source: str | None, model: str | None, base_url: str | None, *, as_json: bool) -> int:
    """Resume the waiting runs that can continue, and say how each ended. Return the exit code.

    Args:
        source: The agent whose runs to resume; None for runs of `closeout run`, each with its own options.
        model: Another model for the runs.
        base_url: Another address of the model.
        as_json: Print the results as a JSON list.
    """
    results: list[RunResult[Any]] = []
    failed, option = False, "" if source is None else f" --agent {shlex.quote(source)}"
    if source is not None:
        agent = make_agent(RunOptions(agent=source).with_model(model, base_url))
        with stray_output_to_stderr():
            results = asyncio.run(_closing(agent, agent.resume_due()))
    else:
        for run_id in _due_runs():
            try:
                agent = make_agent(recorded_options(run_id).with_model(model, base_url))
                with stray_output_to_stderr():
                    results.append(asyncio.run(_closing(agent, _resumed(agent, run_id))))
            except JournalLocked:
                continue  # another process was faster
            except CloseoutError as error:
                failed = True
                say_error(f"{run_id}: {error}")
    if as_json:
        print_json([result.to_dict() for result in results])
    else:
        for result in results:
            _say(result, option)
        if source is not None and not results and (others := len(_due_runs())):
            print(f"{amount(others, 'run')} of agents with another name can continue.", file=sys.stderr)
        print(f"{amount(len(results), 'run')} resumed.", file=sys.stderr)
    return exits.FAILED if failed or any(result.status == "failed" for result in results) else exits.OK


def _due_runs() -> Sequence[str]:
    with open_to_read(home_folder()) as store:
        return due_runs(store)


async def _resumed(agent: Agent[Any], run_id: str) -> RunResult[Any]:
    async with AsyncExitStack() as stack:
        return await (await with_own_deps(agent, stack, run_id)).resume(run_id)


async def _closing(agent: Agent[Any], work: Any) -> Any:
    """Return what the work returns, and close the agent's connections to models."""
    async with closing_clients(agent.plan()):
        return await work


def _say(result: RunResult[Any], agent: str) -> None:
    text = result.answer if result.answer is not None else result.error
    print(visible(f"{result.run_id}  {result.status}{': ' if text else ''}{text}", keep="\n"))
    if result.status == "waiting":
        print(describe_pending(result.run_id, result.waiting, agent), file=sys.stderr)
