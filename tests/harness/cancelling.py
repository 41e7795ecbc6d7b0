"""Cancels a run at a chosen iteration of the event loop, resumes it, and judges what is left.

The run has tools that wait, tools in threads, a sub-agent and, if asked for, an MCP server process. The oracle: the
cancellation is raised; no task, warning or server process is left; the record is undamaged; the resumed run ends as an
undisturbed one does, with every payment made exactly once.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import time
import warnings
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from database_homes import home_of

from closeout import Agent, tool
from closeout.journal import events as ev
from closeout.journal.check import check_home
from closeout.journal.store import close_stores, open_store
from closeout.journal.totals import RunTotals
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call

RUN, ANSWER = "run", "all done"
SERVER = Path(__file__).parent.parent / "mcp_servers" / "ledger.py"
STEPS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("pay", "p1"),),
    (("look", "a"), ("stamp", "b"), ("pay", "p2")),
    (("clerk", "p3"), ("clerk", "p4")),
    (("pay", "p5"), ("look", "c")),
)
SERVER_STEPS = ((("book", "p6"),), (("book", "p7"), ("look", "d")))
PAYING: dict[str, Any] = {}  # how `pay` is declared
CHECKS = {"pay": "was_paid", "book": "was_booked"}
GRACE = 60.0  # seconds in which a server process must be gone


def agent_for(folder: Path, *, server: bool) -> Agent[Any]:
    paid = folder / "paid.txt"

    @tool(**PAYING)
    async def pay(key: str) -> str:
        """Pay a bill."""
        await asyncio.sleep(0)
        with paid.open("a") as file:
            file.write(f"{key}\n")
        await asyncio.sleep(0)
        return f"[{key}] done"

    @tool(read_only=True, repeatable=True)
    async def was_paid(key: str) -> str:
        """Say whether a bill is paid."""
        return f"[{key}] done" if paid.exists() and key in paid.read_text().split() else f"{key} is not paid"

    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        await asyncio.sleep(0.001)
        return f"[{key}] done"

    @tool(read_only=True)
    def stamp(key: str) -> str:
        """Stamp a key, in a thread."""
        time.sleep(0.001)
        return f"[{key}] done"

    def made(name: str, key: str, text: str) -> Any:
        if name == "clerk":
            return call("clerk", task=f"pay {key}")
        unsure = name in CHECKS and text.rfind("Interrupted") > text.rfind(f"{key} is not")
        return call(CHECKS[name] if unsure else name, key=key)

    def clerks_turn(view: RequestView) -> Turn:
        key = view.question.split()[-1]
        done = f"[{key}] done" in view.text
        return answer(f"[{key}] done") if done else Turn(calls=[made("pay", key, view.text)])

    def turn(view: RequestView) -> Turn:
        for step in (*STEPS, *(SERVER_STEPS if server else ())):
            left = [made(name, key, view.text) for name, key in step if f"[{key}] done" not in view.text]
            if left:
                return Turn(calls=left)
        return answer(ANSWER)

    home = home_of(folder)
    clerk = Agent(ScriptedClient(clerks_turn, name="clerk"), [pay, was_paid], home=home)
    servers = [f"{sys.executable} {SERVER} {paid}"] if server else ()
    tools = [pay, was_paid, look, stamp, clerk.as_tool("clerk", "Pays a bill for you.")]
    return Agent(ScriptedClient(turn, name="main"), tools, mcp_servers=servers, home=home, stream=True)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that cancels a task at the beginning of chosen iterations."""

    def __init__(self) -> None:
        super().__init__()
        self.iterations = 0
        self.at: tuple[int, ...] = ()
        self.task: asyncio.Task[Any] | None = None
        self.complaints: list[str] = []
        self.set_exception_handler(lambda loop, context: self.complaints.append(str(context)))

    def _run_once(self) -> None:
        if self.task is not None:
            self.iterations += 1
            if self.iterations in self.at:
                self.task.cancel()
        super()._run_once()  # type: ignore[misc]


def execute(work: Coroutine[Any, Any, Any], at: tuple[int, ...] = ()) -> tuple[Any, int, list[str]]:
    """Run a coroutine and cancel it at these iterations.

    Returns:
        Its result (None if it was cancelled), the number of iterations, and what is wrong: warnings, errors that nobody
        retrieved, tasks that are left.
    """
    loop = _Loop()
    wrong = loop.complaints

    async def watched() -> Any:
        loop.at, loop.task = at, asyncio.create_task(work)
        try:
            return await loop.task
        except asyncio.CancelledError:
            return None
        finally:
            loop.task = None
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if left:
                await asyncio.wait(left, timeout=60)
            wrong.extend(f"left over: {task!r}" for task in left if not task.done())

    gc.freeze()  # what exists already need not be searched
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            result = runner.run(watched())
            iterations = loop.iterations
            gc.collect()
    gc.unfreeze()
    wrong.extend(str(warning.message) for warning in caught)
    return result, iterations, wrong


def iterations(folder: Path, *, server: bool) -> int:
    """Return how many iterations an undisturbed run takes.

    Raises:
        AssertionError: The undisturbed run is not as it should be.
    """
    folder.mkdir()
    result, count, wrong = execute(agent_for(folder, server=server).run("Pay the bills.", run_id=RUN))
    close_stores()
    assert not wrong + _problems(folder, result, server), (wrong, result)
    return count


def cancel_at(folder: Path, at: tuple[int, ...], *, server: bool) -> list[str]:
    """Cancel a run at these iterations, resume it without disturbance, and return what is wrong."""
    folder.mkdir()
    work = agent_for(folder, server=server).run("Pay the bills.", run_id=RUN)
    result, _, wrong = execute(work, at)
    wrong = [f"cancelled: {each}" for each in wrong]
    wrong += _servers_left(folder)
    close_stores()  # a run cancelled while it is created is still created, by the store's own thread
    begun = any(record.run_id == RUN for record in open_store(home_of(folder)).runs(1))
    close_stores()
    if result is None:
        agent = agent_for(folder, server=server)
        result, _, found = execute(agent.resume(RUN) if begun else agent.run("Pay the bills.", run_id=RUN))
        wrong += [f"resumed: {each}" for each in found]
    return wrong + _problems(folder, result, server)


def cancelled(folder: Path, count: int, seed: int, *, server: bool, until: float) -> tuple[int, dict[Any, list[str]]]:
    """Cancel runs at so many iterations, every third one twice.

    Args:
        folder: An existing folder.
        count: How many runs to cancel; with as many as there are iterations, each is used once.
        seed: Chooses the iterations.
        server: Whether the runs use an MCP server process.
        until: No run starts after this time of the monotonic clock.

    Returns:
        The number of runs, and what is wrong by the iterations at which they were cancelled.
    """
    whole = iterations(folder / "whole", server=server)
    chance, tried, found = random.Random(seed), 0, {}
    for number, at in enumerate(chance.sample(range(1, whole + 1), min(count, whole))):
        if time.monotonic() > until:
            break
        chosen = (at, at + chance.choice((1, 2, 3))) if number % 3 == 2 else (at,)
        tried += 1
        if wrong := cancel_at(folder / f"at{at}", chosen, server=server):
            found[chosen] = wrong
    return tried, found


def _servers_left(folder: Path) -> list[str]:
    """Return the server processes that are still alive after a moment."""
    pids = folder / "paid.pids"
    alive = [int(line) for line in pids.read_text().split()] if pids.exists() else []
    until = time.monotonic() + GRACE
    while alive and time.monotonic() < until:
        alive = [pid for pid in alive if _lives(pid)]
        time.sleep(0.02)
    return [f"server process {pid} is left" for pid in alive]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _problems(folder: Path, result: Any, server: bool) -> list[str]:
    """What is wrong with a run that has come to its end."""
    if result is None:
        return ["it was cancelled, or did not end"]
    wrong = []
    if (result.status, result.answer) != ("answered", ANSWER):
        wrong.append(f"it ended {result.status}: {result.answer!r} {result.error}")
    steps = (*STEPS, *(SERVER_STEPS if server else ()))
    due = sorted(key for step in steps for name, key in step if name in ("pay", "clerk", "book"))
    paid = sorted((folder / "paid.txt").read_text().split())
    if paid != due:
        wrong.append(f"paid {paid}, not {due}")
    report = check_home(home_of(folder))
    wrong += [*report.file_problems, *map(str, report.run_problems)]
    rows = list(open_store(home_of(folder)).rows(RUN))
    close_stores()
    started = [(row.event.agent, row.event.handle) for row in rows if isinstance(row.event, ev.ToolStarted)]
    outcomes = [(row.event.agent, row.event.handle) for row in rows if isinstance(row.event, ev.ToolFinished)]
    if len(outcomes) != len(set(outcomes)) or set(started) != set(outcomes):
        wrong.append(f"calls {sorted(started)} and outcomes {sorted(outcomes)}")
    totals = RunTotals(row.event for row in rows)
    if totals.usage.requests != result.usage.requests:
        wrong.append(f"{totals.usage.requests} requests in the record, {result.usage.requests} in the result")
    return wrong
