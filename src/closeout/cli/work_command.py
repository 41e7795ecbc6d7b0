"""`closeout work`: a worker that executes the runs of an agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TypeVar

from aiohttp import web

from closeout.cli import exits, servers
from closeout.cli.options import RunOptions, make_agent
from closeout.cli.terminal import amount, print_json
from closeout.errors import JournalError, UsageError
from closeout.fleet.made_deps import DepsMaker
from closeout.fleet.working import AgentWorker
from closeout.homes import Home
from closeout.journal.postgres_link import is_cut
from closeout.observe.run_figures import RunFigures
from closeout.run.subagents import closing_clients
from closeout.server.app import create_app
from closeout.server.safety import is_loopback
from closeout.server.serving import listening, on_first_signal, run_metrics
from closeout.stray_output import stray_output_to_stderr
from closeout.visible import visible

__all__ = ["work_command"]

T = TypeVar("T")

BETWEEN = 1.0  # seconds between two tries to reach the database
SHOWN_FAILURES = 20  # the latest ones; --json has up to a thousand


def work_command(
    options: RunOptions,
    *,
    limit: int,
    drain: float,
    until_idle: bool,
    health: tuple[str, int] | None,
    deps: str | None,
    as_json: bool,
) -> int:
    """Execute the runs of an agent until SIGINT or SIGTERM. Return the exit code: 0 after a signal.

    Args:
        options: The agent.
        limit: The most runs at the same time.
        drain: Seconds that runs may continue after the signal.
        until_idle: Return when there is nothing to do.
        deps: What makes the dependencies of each run: `package.module:function`. None: what the settings name.
        health: The address and the port of `/healthz`; None: it is not offered.
        as_json: Print what was done as JSON.
    """
    agent = _patiently(lambda: make_agent(options))
    store = _patiently(agent.store)
    if store is None:
        raise UsageError("This agent keeps its runs in memory (home: false), so others cannot submit any.")
    make = DepsMaker(servers.deps_maker(deps, agent.config))
    plan = agent.plan() if make else agent.plan().with_deps(None)
    figures = RunFigures()
    worker = AgentWorker(
        plan, store, limit=limit, drain_seconds=drain, deps=make, listeners=[figures], chores=agent.chores()
    )

    async def work() -> bool:
        stop = asyncio.Event()

        def stopping() -> None:
            servers.say("Stopping. Runs that do not end in time are left to other workers.")
            stop.set()

        async with closing_clients(agent.plan()), AsyncExitStack() as stack:
            if health is not None:
                app = _health_app(store.home, worker, figures, health[0])
                url = await stack.enter_async_context(listening(app, *health))
                servers.say(f"Health: {url}/healthz")
            on_first_signal(stopping, drain=drain)
            servers.say(f"Working on the runs of {agent.plan().name} in {store.home} (Ctrl-C stops)")
            await worker.work(stop, until_idle=until_idle)
        return stop.is_set()

    servers.log_warnings()
    with stray_output_to_stderr():
        was_stopped = asyncio.run(work())
    _report(worker, as_json=as_json)
    return exits.FAILED if not was_stopped and (worker.failures or worker.problem) else exits.OK


def _patiently(act: Callable[[], T]) -> T:
    """Return what a function returns. Wait for a database that cannot be reached, as the worker does later."""
    said = ""
    while True:
        try:
            return act()
        except JournalError as error:
            if error.__cause__ is None or not is_cut(error.__cause__):
                raise
            if str(error) != said:
                servers.say(f"Waiting for the database. {error}")
            said = str(error)
            time.sleep(BETWEEN)


def _report(worker: AgentWorker, *, as_json: bool) -> None:
    """Say how the runs ended, and why the failed ones did."""
    outcomes, failures = +worker.outcomes, list(worker.failures.values())
    if as_json:
        failed = [asdict(each) for each in failures]
        print_json({"runs": outcomes.total(), "by_status": outcomes, "failed": failed, "problem": worker.problem})
        return
    by_status = ", ".join(f"{number:,} {status}" for status, number in sorted(outcomes.items()))
    servers.say(f"{amount(outcomes.total(), 'run')} executed{by_status and ': '}{by_status}.")
    for each in failures[-SHOWN_FAILURES:]:
        servers.say(visible(f"{each.run_id}  {each.status}: {each.error}", keep="\n"))
    if len(failures) > SHOWN_FAILURES:
        servers.say("To list them all: closeout runs --status failed")


def _health_app(home: Home, worker: AgentWorker, figures: RunFigures, address: str) -> web.Application:
    """Return an application that reports a worker's health. It names no runs, so it needs no key."""

    async def healthz(_: web.Request) -> web.Response:
        state = {
            "status": "problem" if worker.problem else "ok",
            "executing": worker.executing,
            "ended": dict(worker.ended),
        }
        return web.json_response(state, status=503 if worker.problem else 200)

    app = create_app(home) if is_loopback(address) else create_app(home, hosts=None)

    async def metrics(_: web.Request) -> web.Response:
        return run_metrics(active=worker.executing, queued=0, ended=worker.ended, figures=figures)

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", metrics)
    return app
