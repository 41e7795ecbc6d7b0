"""Forks processes that run or resume one agent whose payments must not be repeated, to be killed or starved.

    python tests/harness/worker.py

Each line of input is a JSON object: the folder and environment variables. The run lives in the folder's home; each
payment appends a line to folder/paid.txt; what came of it is in folder/result.json. For each line it prints the process
id of the child, and when that has ended, its status. Everything is imported before the first child is forked.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from database_homes import home_of

from closeout import Agent, tool
from closeout.errors import JournalError, RunNotFound
from closeout.journal.store import close_stores
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call

RUN = "run"
ANSWER = "all done"
STEPS: tuple[tuple[str, str], ...] = (
    ("pay", "p1"),
    ("look", "a"),
    ("pay", "p2"),
    ("clerk", "p3"),
    ("look", "b"),
    ("pay", "p4"),
)
PAYMENTS = tuple(key for name, key in STEPS if name in ("pay", "clerk"))


def agent_for(folder: Path) -> Agent:
    paid = folder / "paid.txt"
    mark = getattr(ctypes.CDLL(None), "disk_mark", None)  # there if disk.c is preloaded

    @tool(inline=True)
    def pay(key: str) -> str:
        """Pay a bill."""
        with paid.open("a") as file:
            file.write(f"{key}\n")
        if mark is not None:
            mark(f"paid {key}".encode())
        return f"[{key}] done " + "x" * 1200

    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        return f"[{key}] done"

    @tool(read_only=True, repeatable=True)
    async def was_paid(key: str) -> str:
        """Say whether a bill is paid."""
        return f"[{key}] done" if paid.exists() and key in paid.read_text().split() else f"{key} is not paid"

    def step(name: str, key: str, text: str) -> Any:
        if name == "clerk":
            return call("clerk", task=f"pay {key}")
        unsure = text.rfind("Interrupted") > text.rfind(f"{key} is not paid")  # it may be interrupted again
        return call("was_paid" if name == "pay" and unsure else name, key=key)

    def clerks_turn(view: RequestView) -> Turn:
        key = view.question.split()[-1]
        if f"[{key}] done" in view.text:
            return answer(f"[{key}] done")
        return Turn(calls=[step("pay", key, view.text)])

    def turn(view: RequestView) -> Turn:
        left = [(name, key) for name, key in STEPS if f"[{key}] done" not in view.text]
        return Turn(calls=[step(*left[0], view.text)]) if left else answer(ANSWER)

    home = home_of(folder)
    clerk = Agent(ScriptedClient(clerks_turn, name="clerk"), [pay, was_paid], home=home)
    tools = [pay, was_paid, look, clerk.as_tool("clerk", "Pays a bill for you.")]
    return Agent(ScriptedClient(turn, name="main"), tools, home=home)


async def work(folder: Path) -> dict[str, Any]:
    agent = agent_for(folder)
    try:
        result = await agent.resume(RUN)
    except RunNotFound:
        result = await agent.run("Pay the bills.", run_id=RUN)
    return {"status": result.status, "answer": result.answer, "error": result.error, "requests": result.usage.requests}


def child(folder: Path) -> None:
    """Do the work in this process and end it."""
    try:
        found = asyncio.run(work(folder))
    except JournalError as error:
        found = {"status": "refused", "answer": None, "error": f"{type(error).__name__}: {error}"}
    except BaseException as error:
        found = {"status": "crashed", "answer": None, "error": f"{type(error).__name__}: {error}"}
    close_stores()
    (folder / "result.json").write_text(json.dumps(found))
    os._exit(0)


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(work(Path(made)))  # what is imported here need not be imported in each child
        close_stores()
    configure = getattr(ctypes.CDLL(None), "disk_configure", None)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.environ.update(asked["settings"])
            if configure is not None:
                configure()
            child(Path(asked["folder"]))
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    main()
