"""Runs with payments, approvals, timers and signals, and the programs that execute them under another engine.

    python engine_runs.py dbos NAME DATABASE    # an executor
    python engine_runs.py temporal NAME ADDRESS # a worker

The home of the runs is CLOSEOUT_HOME, and the payments are the lines of the file PAID.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from closeout import Agent, RunContext, tool
from closeout.errors import JournalLocked
from closeout.journal.sent_signals import send_signal
from closeout.run.waits.decisions import pending_decisions, record_decisions
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call

KINDS = ("approval", "timer", "signal", "plain")


def _payments() -> list[str]:
    place = Path(os.environ["PAID"])
    return place.read_text().split() if place.exists() else []


@tool
async def pay(key: str) -> str:
    """Pay a bill."""
    with Path(os.environ["PAID"]).open("a") as file:
        file.write(f"{key}\n")
    await asyncio.sleep(0.05)  # a kill here leaves the doubt whether it was paid
    return f"[{key}] done"


@tool(approval="always")
async def pay_much(key: str) -> str:
    """Pay a large bill."""
    return str(await pay(key))


@tool(read_only=True)
async def was_paid(key: str) -> str:
    """Check whether a bill is paid."""
    return f"[{key}] done" if key in _payments() else f"[{key}] was not paid"


@tool(read_only=True)
async def nap(key: str, context: RunContext) -> str:
    """Wait for a second."""
    await context.sleep(1)
    return f"[{key}] done"


@tool(read_only=True)
async def expect(key: str, context: RunContext) -> str:
    """Wait for a signal."""
    return f"[{key}] done: {await context.wait_for('money', timeout=3600)}"


def _turn(view: RequestView) -> Turn:
    run, kind = re.findall(r"Run (\S+) with (\w+)", view.question)[0]
    steps = [("pay", "a"), ("pay", "b"), ("pay", "d")]
    more = {"approval": ("pay_much", "c"), "timer": ("nap", "c"), "signal": ("expect", "c")}
    if kind in more:
        steps.insert(2, more[kind])
    for name, letter in steps:
        key = f"{run}.{letter}"
        if f"[{key}] done" in view.text:
            continue
        if "nterrupted" in view.last and name.startswith("pay"):
            return call("was_paid", key=key)
        return call(name, key=key)
    return answer("all done")


class Slow(ScriptedClient):
    """A model that takes a moment, so that a kill finds runs at work."""

    async def complete(self, *arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0.1)
        return await super().complete(*arguments, **options)


def make_agent() -> Agent[Any, Any]:
    """Return the agent whose runs are executed."""
    tools = [pay, pay_much, was_paid, nap, expect]
    return Agent(Slow(_turn), tools, name="payer", dialect="function_call", max_turns=60)


def answer_waits(agent: Agent[Any, Any], asked: set[tuple[str, str]]) -> None:
    """Approve and send, once each, whatever the runs wait for."""
    store = agent.store()
    for (run_id,) in store.query("SELECT run_id FROM runs WHERE status='waiting'"):
        for each in pending_decisions(store.rows(run_id)):
            if (run_id, each.id) not in asked:
                with suppress(JournalLocked):  # an executor looks at it: the next round answers
                    if each.kind == "approval":
                        record_decisions(store, run_id, {each.id: True}, by="test")
                    elif each.kind == "signal":
                        send_signal(store, run_id, "money", 5, id="payment")
                    asked.add((run_id, each.id))


def outcome(agent: Agent[Any, Any], ids: Sequence[str]) -> dict[str, Any]:
    """Return how the runs ended, and the payments that are missing, unknown, or were made twice."""
    paid, due = Counter(_payments()), set[str]()
    for number, run_id in enumerate(ids):
        due |= {f"{run_id}.{letter}" for letter in ("abcd" if KINDS[number % len(KINDS)] == "approval" else "abd")}
    return {
        "ended": dict(Counter(agent.store().run(run_id).status for run_id in ids)),
        "payments": paid.total(),
        "twice": sorted(key for key, times in paid.items() if times > 1),
        "missing": sorted(due - paid.keys()),
        "unknown": sorted(paid.keys() - due),
    }


async def drive(engine: str, address: str, folder: Path, *, count: int, kills: int, seconds: float) -> dict[str, Any]:
    """Let three executors of an engine execute runs. One is killed and never returns, two are killed and started again.

    Args:
        engine: "dbos" or "temporal".
        address: The database of DBOS, or the address of Temporal.
        folder: Where the executors write what they say.
        count: The number of runs.
        kills: How often one of the two is killed.
        seconds: When to give up.

    Returns:
        The outcome.
    """
    agent = make_agent()
    ids = [f"r{number}" for number in range(count)]
    for number, run_id in enumerate(ids):
        await agent.submit(f"Run {run_id} with {KINDS[number % len(KINDS)]}", run_id=run_id)
    began, killed, chance = time.monotonic(), 0, random.Random(1)
    asked = set[tuple[str, str]]()
    with ExitStack() as stack:
        said = stack.enter_context((folder / "said.txt").open("ab"))

        def executor(name: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen([sys.executable, __file__, engine, name, address], stdout=said, stderr=said)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        def at_work() -> int:
            return agent.store().query("SELECT count(*) FROM leases WHERE until > clock_timestamp()")[0][0]

        async def kill_at_work(process: subprocess.Popen[bytes]) -> None:
            while not at_work():
                await asyncio.sleep(0.02)
            process.kill()
            process.wait()

        await kill_at_work(executor("lost"))
        executors = {name: executor(name) for name in ("first", "second")}
        next_kill = time.monotonic() + 5
        while time.monotonic() < began + seconds:
            await asyncio.sleep(0.2)
            answer_waits(agent, asked)
            if not agent.store().query("SELECT 1 FROM runs WHERE status IN ('running', 'waiting') LIMIT 1"):
                break
            if killed < kills and time.monotonic() > next_kill and at_work():
                name = chance.choice(list(executors))
                await kill_at_work(executors[name])
                executors[name] = executor(name)
                killed, next_kill = killed + 1, time.monotonic() + 5
    interrupted = (folder / "said.txt").read_text().count(", interrupted ")
    return {
        **outcome(agent, ids),
        "kills": killed + 1,
        "interrupted": interrupted,
        "seconds": round(time.monotonic() - began, 1),
    }


async def _dbos(name: str, database: str) -> None:
    from dbos import DBOS

    from closeout.integrations.dbos import DBOSRuns

    DBOS(
        config={
            "name": "closeout",
            "system_database_url": database,
            "executor_id": name,
            "application_version": "1",
            "log_level": "WARNING",
        }
    )
    runs = DBOSRuns(make_agent())
    DBOS.launch()
    print("ready", flush=True)
    await runs.work(limit=4, sweep_seconds=1)


async def _temporal(name: str, address: str) -> None:
    from temporalio.client import Client

    from closeout.integrations.temporal import TemporalRuns

    client = await Client.connect(address, identity=name)
    print("ready", flush=True)
    await TemporalRuns(make_agent(), client, heartbeat_seconds=3).work(limit=4, sweep_seconds=1)


if __name__ == "__main__":
    _, _engine, *_arguments = sys.argv
    asyncio.run({"dbos": _dbos, "temporal": _temporal}[_engine](*_arguments))
