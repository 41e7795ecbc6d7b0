"""Runs or resumes one agent whose payments must not be repeated, in a process that is about to be killed or starved.

    python tests/harness/worker.py FOLDER

The run lives in FOLDER/home; each payment appends a line to FOLDER/paid.txt, synced. The last line of output is JSON.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

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
        unsure = "Interrupted" in text and f"{key} is not paid" not in text
        return call("was_paid" if name == "pay" and unsure else name, key=key)

    def clerks_turn(view: RequestView) -> Turn:
        key = view.question.split()[-1]
        if f"[{key}] done" in view.text:
            return answer(f"[{key}] done")
        return Turn(calls=[step("pay", key, view.text)])

    def turn(view: RequestView) -> Turn:
        left = [(name, key) for name, key in STEPS if f"[{key}] done" not in view.text]
        return Turn(calls=[step(*left[0], view.text)]) if left else answer(ANSWER)

    home = folder / "home"
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


def main() -> None:
    try:
        found = asyncio.run(work(Path(sys.argv[1])))
    except JournalError as error:
        found = {"status": "refused", "answer": None, "error": f"{type(error).__name__}: {error}"}
    close_stores()
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
