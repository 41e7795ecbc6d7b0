"""Kills a run that writes programs at its journal events, resumes it, and compares it with an undisturbed one.

python tests/harness/program_crash.py FOLDER [EVERY]
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import crash
import pydantic_monty  # noqa: F401  imported here, it need not be imported in each child

from closeout import Agent, RunResult, tool
from closeout.errors import RunNotFound
from closeout.journal.store import close_stores
from closeout.testing import RequestView, ScriptedClient

PROGRAMS = [
    "rows = [look(key=key) for key in 'abc']\ntotal = len(rows)\nprint(total)",
    """done = []
for key in ['p1', 'p2', 'p3']:
    try:
        done.append(pay(key=key))
    except RuntimeError:  # interrupted: it may have taken effect
        done.append(pay(key=key) if 'not' in was_paid(key=key) else key)
print(done)""",
    "look(key='d', nothing=1)",
    "import random\nfinal_answer(f'{total} {len(done)} {random.random()}')",
]


def agent_for(folder: Path) -> Agent[Any]:
    paid = folder / "paid.txt"

    @tool(inline=True)
    def pay(key: str) -> str:
        """Pay a bill."""
        with paid.open("a") as file:
            file.write(f"{key}\n")
        return f"{key} done"

    @tool(read_only=True, repeatable=True)
    async def was_paid(key: str) -> str:
        """Say whether a bill is paid."""
        return f"{key} is paid" if paid.exists() and key in paid.read_text().split() else f"{key} is not paid"

    @tool(read_only=True)
    def look(key: str) -> str:
        """Look up a key."""
        return f"about {key}"

    def reply(view: RequestView) -> str:
        done = sum(str(message.get("content", "")).startswith("Result:") for message in view.messages)
        return f"Next.\n```python\n{PROGRAMS[done]}\n```"

    return Agent(ScriptedClient(reply), [pay, was_paid, look], dialect="code", home=folder / "home")


def execute(folder: Path, resume: bool) -> str:
    async def ended() -> RunResult[Any]:
        agent = agent_for(folder)
        if resume:
            with suppress(RunNotFound):  # killed before it was recorded
                return await agent.resume("crash")
        return await agent.run("Pay the bills.", run_id="crash")

    result = asyncio.run(ended())
    return f"{result.status}: {result.answer}"


def kill_and_resume(root: Path, at: int, flushed: bool, wanted: str) -> dict[str, Any] | None:
    """What went wrong when the run is killed there and resumed; None if nothing did."""
    folder = root / f"{at}-{'after' if flushed else 'before'}"
    folder.mkdir()

    def doomed() -> str:
        crash.install(at, flushed)
        return execute(folder, resume=False)

    killed = crash.in_child(doomed, folder / "first.txt")
    crash.in_child(lambda: execute(folder, resume=True), folder / "second.txt")
    ended = (folder / "second.txt").read_text()
    paid = (folder / "paid.txt").read_text().split() if (folder / "paid.txt").exists() else []
    if killed == signal.SIGKILL and ended == wanted and paid == ["p1", "p2", "p3"]:
        return None
    return {"at": at, "flushed": flushed, "killed": killed, "ended": ended, "paid": paid}


def main() -> None:
    root, every = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for name in ("imports", "undisturbed"):
        (root / name).mkdir()
    crash.lead(
        root / "imports", resume=False, scenario="run"
    )  # what is imported here need not be imported in each child
    close_stores()
    undisturbed = root / "undisturbed"

    def counted() -> str:
        count = crash.install(-1, flushed=False)
        ended = execute(undisturbed, resume=False)
        return f"{count()} {ended}"

    crash.in_child(counted, undisturbed / "out.txt")
    number, _, ended = (undisturbed / "out.txt").read_text().partition(" ")
    places = [(at, flushed) for at in range(1, int(number) + 1) for flushed in (False, True)][::every]
    problems = [problem for at, flushed in places if (problem := kill_and_resume(root, at, flushed, ended)) is not None]
    print(json.dumps({"events": int(number), "kills": len(places), "ended": ended, "problems": problems}))


if __name__ == "__main__":
    main()
