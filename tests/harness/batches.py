"""Random batches of `run_many` under one key: processes die, tasks come in any order or not at all, two at once.

A service outside counts what is charged for whom. In the end everybody must have been charged once, and have their own
answer.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from closeout import Agent, File, Message, RunContext, tool
from closeout.fleet import many
from closeout.testing import RequestView, ScriptedClient, answer, call

TEXTS = ("Charge the monthly fee.", "Charge the fee for the year.")
STEPS = 4  # parts of a batch that is interrupted, at most


class Person(dict[str, Any]):
    """A task, with what only its own answer says."""

    @property
    def own(self) -> str:
        named = [self["task"][-9:], self.get("user"), self.get("deps"), self.get("task_id")]
        files = [file.data.decode() for file in self.get("files", ())]
        return "|".join(map(str, [*named, *files, *(message["content"] for message in self.get("history", ()))]))


def people(chance: random.Random) -> list[Person]:
    """Return tasks of which no two are the same, though their texts, users or dependencies may be."""
    found: dict[str, Person] = {}
    for _ in range(chance.randrange(1, 7)):
        person = Person(task=chance.choice(TEXTS))
        if chance.random() < 0.7:
            person["user"] = f"user{chance.randrange(3)}"
        if chance.random() < 0.4:
            name = f"shop{chance.randrange(3)}"
            person["deps"] = person["task_id"] = name
        if chance.random() < 0.2:
            person["files"] = [File("note.txt", f"note {chance.randrange(2)}")]
        if chance.random() < 0.2:
            person["history"] = [Message(role="user", content=f"before {chance.randrange(2)}")]
        found[person.own] = person
    return list(found.values())


def _agent(home: Path, die: Callable[[], None]) -> Agent[Any, Any]:
    ledger = home / "ledger"

    @tool(on_crash="rerun")  # the service knows a payment that is repeated by its run
    def charge(context: RunContext[str | None]) -> str:
        """Charge the fee."""
        die()
        line = json.dumps([context.run_id, context.user or "", context.deps]) + "\n"
        with os.fdopen(os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as file:
            file.write(line)
        die()
        return f"charged {context.user or ''} {context.deps}"

    def script(view: RequestView) -> Any:
        die()
        return answer(view.last) if "charged" in view.text else call("charge")

    return Agent(ScriptedClient(script), [charge], home=home)


def _work(home: Path, tasks: list[Person], limit: int, dies_at: int, out: Path) -> None:
    """Execute tasks in this process, which dies at some moment of it. Writes what each is told."""
    moment = 0

    def die(*_: Any) -> None:
        nonlocal moment
        moment += 1
        if moment == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    many.LOCKED_SECONDS = 0.01
    results = asyncio.run(_agent(home, die).run_many(tasks, key="fees", limit=limit, listeners=[die]))
    out.write_text(json.dumps([[each.status, each.answer, each.run_id, each.error] for each in results]))


def _fork(*arguments: Any) -> int:
    child = os.fork()
    if child:
        return child
    try:
        gc.disable()
        _work(*arguments)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def execute(seed: int, folder: Path) -> list[str]:
    """Execute one batch in several processes, and return what is wrong with it."""
    chance = random.Random(seed)
    home, everybody = folder / str(seed), people(chance)
    home.mkdir()
    told: list[tuple[list[Person], Path]] = []

    def begin(dies: bool, tasks: list[Person]) -> int:
        out = home / f"out{len(told)}"
        told.append((tasks, out))
        return _fork(home, tasks, chance.randrange(1, 4), chance.randrange(1, 12 * len(tasks)) if dies else 0, out)

    faults = []
    for step in range(chance.randrange(1, STEPS + 1)):
        together = 2 if chance.random() < 0.4 else 1
        parts = [chance.sample(everybody, chance.randrange(1, len(everybody) + 1)) for _ in range(together)]
        for child in [begin(chance.random() < 0.7, part) for part in parts]:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status not in (0, -signal.SIGKILL):
                faults.append(f"step {step} ended with {status}")
    os.waitpid(begin(False, chance.sample(everybody, len(everybody))), 0)
    runs: dict[str, str] = {}
    for tasks, out in told:
        results = json.loads(out.read_text()) if out.exists() else []
        for person, (status, text, run_id, error) in zip(tasks, results, strict=False):
            if text != f"charged {person.get('user', '')} {person.get('deps')}":
                faults.append(f"{person.own} is told {status} {text!r} {error}")
            if runs.setdefault(person.own, run_id) != run_id:
                faults.append(f"{person.own} has two runs")
    charged = Counter(map(tuple, map(json.loads, set((home / "ledger").read_text().splitlines()))))
    if len(set(runs.values())) != len(everybody) or {line[0] for line in charged} != set(runs.values()):
        faults.append(f"{len(everybody)} people, {len(set(runs.values()))} runs, charged {sorted(charged)}")
    shutil.rmtree(home)
    return faults


def import_all(folder: Path) -> None:
    """Import what a process of a batch imports, which would take it longer than its work."""
    (folder / "first").mkdir()
    out = folder / "first" / "modules"
    child = os.fork()
    if not child:
        _work(folder / "first", [Person(task=TEXTS[0])], 1, 0, out)
        out.write_text("\n".join(sys.modules))
        os._exit(0)
    os.waitpid(child, 0)
    for name in out.read_text().split("\n"):
        if name not in sys.modules and not name.startswith("_"):
            with suppress(ImportError):
                import_module(name)
    gc.freeze()  # what nobody collects is not copied for each process
