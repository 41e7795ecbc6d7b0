"""Kills a run at every one of its journal events, resumes it, and compares it with an undisturbed one.

Run as a script: it forks a child for each kill point, so that the dead process is really dead. Prints one JSON object.

    python tests/harness/crash.py FOLDER
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from closeout import Agent, tool
from closeout.journal import journal as journal_module
from closeout.journal.events import Event
from closeout.journal.store import close_stores
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call

QUESTION = "Pay the bills, look up the keys, ask the clerk, and report."
ANSWER = "all done"

# The turns: the calls of each run together. Ids say what must be found in the results.
PLAN: list[list[tuple[str, str]]] = [
    [("pay", "p1")],
    [("look", "a"), ("look", "b")],
    [("pay", "p2"), ("look", "c"), ("pay", "p3")],
    [("clerk", "p10")],
    [("look", "d")],
    [("pay", "p4"), ("pay", "p5")],
    [("look", "e"), ("look", "f"), ("look", "g")],
    [("pay", "p6")],
    [("clerk", "p11"), ("pay", "p7")],
    [("look", "h")],
    [("pay", "p8"), ("look", "i")],
]
PAYMENTS = [f"p{n}" for n in range(1, 9)] + ["p10", "p11"]


def act(plan: list[list[tuple[str, str]]], view: RequestView) -> Turn:
    """The first turn of the plan that is not done yet, judged by nothing but what the request holds."""
    text = view.text
    for step in plan:
        missing = [(name, key) for name, key in step if f"[{key}] done" not in text]
        if missing:
            return Turn(calls=[_next(name, key, text) for name, key in missing])
    return answer(ANSWER)


def _next(name: str, key: str, text: str) -> Any:
    if name != "pay":
        return call(name, **({"task": f"pay {key}"} if name == "clerk" else {"key": key}))
    unsure = text.count("Interrupted") and f"{key} is not paid" not in text
    return call("was_paid", key=key) if unsure else call("pay", key=key)


def agent_for(folder: Path) -> Agent:
    paid = folder / "paid.txt"

    @tool(inline=True)
    def pay(key: str) -> str:
        """Pay a bill."""
        with paid.open("a") as file:
            file.write(f"{key}\n")
        return f"[{key}] done"

    @tool(read_only=True, repeatable=True)
    async def was_paid(key: str) -> str:
        """Say whether a bill is paid."""
        done = paid.exists() and key in paid.read_text().split()
        return f"[{key}] done" if done else f"{key} is not paid"

    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        await asyncio.sleep(0)
        return f"[{key}] done"

    def clerks_turn(view: RequestView) -> Turn:
        key = view.question.split()[-1]
        done = f"[{key}] done" in view.text
        return answer(f"[{key}] done") if done else act([[("look", "x")], [("pay", key)]], view)

    clerk = Agent(ScriptedClient(clerks_turn, name="clerk"), [pay, was_paid, look], home=folder / "home")
    main = ScriptedClient(lambda view: act(PLAN, view), name="main")
    return Agent(main, [pay, was_paid, look, clerk.as_tool("clerk", "Pays a bill for you.")], home=folder / "home")


def install(at: int, flushed: bool) -> Callable[[], int]:
    original = journal_module.Journal._write
    count = 0

    def write(self: journal_module.Journal, event: Event, *, durable: bool = False) -> None:
        nonlocal count
        count += 1
        if count == at and not flushed:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, event, durable=durable)
        if count == at and flushed:
            self.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    journal_module.Journal._write = write  # type: ignore[method-assign]
    return lambda: count


def lead(folder: Path, resume: bool) -> str:
    agent = agent_for(folder)
    again = agent.resume("crash") if resume else agent.run(QUESTION, run_id="crash")
    result = asyncio.run(again)
    return f"{result.status}: {result.answer}"


def in_child(work: Callable[[], str], out: Path) -> int:
    """Do the work in a forked child; its words go into a file. Returns the signal that ended it, or 0."""
    pid = os.fork()
    if pid == 0:
        try:
            out.write_text(work())
        except BaseException as error:
            out.write_text(f"{type(error).__name__}: {error}")
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def kill_and_resume(root: Path, at: int, flushed: bool) -> dict[str, Any] | None:
    """What went wrong when the run is killed there and led on; None if nothing did."""
    folder = root / f"{at}-{'after' if flushed else 'before'}"
    folder.mkdir()

    def doomed() -> str:
        install(at, flushed)
        return lead(folder, resume=False)

    killed = in_child(doomed, folder / "first.txt")
    in_child(lambda: lead(folder, resume=True), folder / "second.txt")
    ended = (folder / "second.txt").read_text()
    paid = sorted((folder / "paid.txt").read_text().split()) if (folder / "paid.txt").exists() else []
    if killed == signal.SIGKILL and ended == f"answered: {ANSWER}" and paid == sorted(PAYMENTS):
        return None
    return {"at": at, "flushed": flushed, "killed": killed, "ended": ended, "paid": paid}


def main() -> None:
    root = Path(sys.argv[1])
    for name in ("imports", "undisturbed"):
        (root / name).mkdir()
    lead(root / "imports", resume=False)  # what is imported here need not be imported in each child
    close_stores()
    undisturbed = root / "undisturbed"

    def counted() -> str:
        count = install(-1, flushed=False)
        ended = lead(undisturbed, resume=False)
        return f"{count()} {ended}"

    in_child(counted, undisturbed / "out.txt")
    number, _, ended = (undisturbed / "out.txt").read_text().partition(" ")
    paid = (undisturbed / "paid.txt").read_text().split()
    problems = [
        problem
        for at in range(1, int(number) + 1)
        for flushed in (False, True)
        if (problem := kill_and_resume(root, at, flushed)) is not None
    ]
    print(json.dumps({"events": int(number), "ended": ended, "paid": paid, "problems": problems}))


if __name__ == "__main__":
    main()
