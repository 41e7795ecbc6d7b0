"""Kills a run at every one of its journal events, resumes it, and compares it with an undisturbed one.

Run as a script: it forks a child for each kill point, so that the dead process is really dead. Prints one JSON object
for each scenario.
The scenario is "run"; "waiting", where every payment needs an approval and there are questions; "fork", where the run
that is killed is a fork of a finished one; "timers", where tools wait for signals and times; "asking_old" and
"asking_new", where an MCP server of an older or the newest protocol asks during its calls; "asking_task", where it
answers a call with a task; "research", where readers work in the background and the report quotes what they have read;
"program", where the model writes programs; "waiting_program", where the payments of a
program need approvals; or "map", "session" and "serve", where two tasks that wait, pay and leave files are a sweep, a
conversation, or requests to a server. With a stride only every so many events are tried. The homes are folders, or
schemas of the database whose address is in HARNESS_DATABASE.

    python tests/harness/crash.py FOLDER [SCENARIO[:STRIDE] …]
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from database_homes import end_leases, home_of, remove_home

from closeout import Agent, File, Report, RunContext, ToolOutput, tool
from closeout.errors import RunNotFound
from closeout.journal import run_journal as journal_module
from closeout.journal.copying import copy_runs
from closeout.journal.events import DecisionMade, DecisionRequested, Event
from closeout.journal.sent_signals import send_signal
from closeout.journal.store import Row, Store, close_stores, open_store
from closeout.run.result import RunResult
from closeout.run.waits.decisions import pending_decisions
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, say
from closeout.tools.builtin import ask_user

ASKING = Path(__file__).parents[1] / "mcp_servers" / "asking.py"
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
WAITING_PLAN: list[list[tuple[str, str]]] = [
    [("pay", "p1"), ("look", "a")],
    [("ask", "q1")],
    [("pay", "p2"), ("ask", "q2"), ("pay", "p3")],
    [("clerk", "p10"), ("look", "b"), ("clerk", "p11")],
    [("pay", "p4")],
]
PAYING_PROGRAM = """done = []
for key in ['p1', 'p2', 'p3', 'p4', 'p5', 'p6']:
    try:
        done.append(pay(key=key))
    except RuntimeError:  # interrupted: it may have taken effect
        done.append(pay(key=key) if 'not' in was_paid(key=key) else key)
print(done)"""
PROGRAMS = [
    "rows = [look(key=key) for key in 'abc']\ntotal = len(rows)\nprint(total)",
    PAYING_PROGRAM,
    "look(key='d', nothing=1)",
    "import random\nfinal_answer(f'{total} {len(done)} {random.random()}')",
]
TIMERS_PLAN: list[list[tuple[str, str]]] = [
    [("expect", "s1"), ("look", "a")],
    [("expect", "s2"), ("nap", "n1"), ("expect", "s3")],
    [("watch", "s4")],
    [("expect", "s5"), ("pay", "p1")],
]
ASKING_PLAN = [[("order", "p1"), ("look", "a")], [("order", "p2")]]
TASK_PLAN = [[("bake", "p1"), ("look", "a")]]
# Of each task of a sweep, a conversation or a server. The keys begin with the number of the task.
PART_PLAN: list[list[tuple[str, str]]] = [
    [("expect", "s1")],
    [("nap", "n1"), ("note", "f1")],
    [("watch", "s2")],
    [("expect", "s3"), ("pay", "p1")],
]
PARTS = ("map", "session", "serve")
FORK_AT = 6  # the turn that the fork begins with
PLANS = {
    "run": PLAN,
    "waiting": WAITING_PLAN,
    "fork": PLAN,
    "timers": TIMERS_PLAN,
    "asking_old": ASKING_PLAN,
    "asking_new": ASKING_PLAN,
    "asking_task": TASK_PLAN,
}
READERS = ("p1", "p2", "p3", "p4")  # pages
SCENARIOS = (*PLANS, "research", "program", "waiting_program", *PARTS)


def act(plan: list[list[tuple[str, str]]], view: RequestView) -> Turn:
    """The first turn of the plan that is not done yet, judged by nothing but what the request holds."""
    text = view.text
    for step in plan:
        missing = [(name, key) for name, key in step if f"[{key}] done" not in text]
        if missing:
            return Turn(calls=[_next(name, key, text) for name, key in missing])
    signals = sorted({word.rstrip("}.") for word in text.split() if word.startswith("signal:")})
    return answer(" ".join([ANSWER, *signals]))


def act_in_part(view: RequestView) -> Turn:
    """The next turn of the last task that the request holds."""
    part = re.findall(r"Part (\d)", view.text)[-1]
    return act([[(name, part + key) for name, key in step] for step in PART_PLAN], view)


def _next(name: str, key: str, text: str) -> Any:
    if name == "ask":
        return call("ask_user", question=key)
    if name not in ("pay", "order", "bake"):
        return call(name, **({"task": f"pay {key}"} if name in ("clerk", "watch") else {"key": key}))
    unsure = text.rfind("Interrupted") > text.rfind(f"{key} is not paid")
    return call("was_paid", key=key) if unsure else call(name, **{"key" if name == "pay" else "item": key})


def write_report(view: RequestView) -> Turn:
    """Send a reader for each page, wait for all, and quote each."""
    handles = [f"r{number}" for number in range(1, len(READERS) + 1)]
    if all(f"[{page}] done" in view.text for page in READERS):
        quotes = [[{"text": f"[{page}] done", "handle": at}] for page, at in zip(READERS, handles, strict=True)]
        claims = [{"text": "So.", "quotes": each} for each in quotes]
        return say(json.dumps({"title": ANSWER, "claims": claims}))
    if f"Started as {handles[-1]}" in view.text:
        return Turn(calls=[call("wait", handles=handles)])
    return Turn(calls=[call("clerk", task=f"read {page}") for page in READERS])


def next_program(view: RequestView) -> str:
    done = sum(str(message.get("content", "")).startswith("Result:") for message in view.messages)
    return f"Next.\n```python\n{PROGRAMS[done]}\n```"


def agent_for(folder: Path, scenario: str = "run") -> Agent:
    paid = folder / "paid.txt"

    @tool(inline=True, approval="always" if scenario.startswith("waiting") else "never")
    def pay(key: str) -> str:
        """Pay a bill."""
        with paid.open("a") as file:
            file.write(f"{key}\n")
        return f"[{key}] done"

    @tool(read_only=True, repeatable=True)
    async def was_paid(key: str) -> str:
        """Say whether a bill is paid."""
        done = key in payments(folder)
        return f"[{key}] done" if done else f"{key} is not paid"

    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        await asyncio.sleep(0)
        return f"[{key}] done"

    @tool(read_only=True)
    async def expect(key: str, context: RunContext) -> str:
        """Wait for a signal."""
        return f"[{key}] done signal:{key}={(await context.wait_for(['event', 'never']))[1]}"

    @tool(read_only=True)
    async def note(key: str) -> ToolOutput:
        """Leave a file, and remember it."""
        file = File(f"{key}.txt", key.encode())
        return ToolOutput(summary=f"[{key}] done", result=f"[{key}] done", files=(file,), state_update={key: 1})

    @tool(read_only=True)
    async def nap(key: str, context: RunContext) -> str:
        """Wait for an hour, then look for a signal in vain. A server's clock cannot be set: there it is no time."""
        await context.sleep(0.1 if scenario == "serve" else 3600)
        try:
            await context.wait_for("nothing", timeout=0)
        except TimeoutError:
            return f"[{key}] done"
        return "received"

    if scenario.endswith("program"):
        return Agent(ScriptedClient(next_program), [pay, was_paid, look], dialect="code", home=home_of(folder))

    def clerks_turn(view: RequestView) -> Turn:
        key = view.question.split()[-1]
        done = f"[{key}] done" in view.text
        return answer(f"[{key}] done") if done else act([[("look", "x")], [("pay", key)]], view)

    clerk = Agent(ScriptedClient(clerks_turn, name="clerk"), [pay, was_paid, look], home=home_of(folder))

    def watchers_turn(view: RequestView) -> Turn:
        key = view.question.split()[-1]
        return (
            answer(view.text[view.text.index(f"[{key}]") :])
            if f"[{key}] done" in view.text
            else act([[("expect", key)]], view)
        )

    if scenario == "research":
        reader = clerk.as_tool("clerk", "Reads a page.", background=True)
        return Agent(ScriptedClient(write_report, name="main"), [reader], answer=Report, home=home_of(folder))
    watcher = Agent(ScriptedClient(watchers_turn, name="watcher"), [expect], home=home_of(folder))
    turn = act_in_part if scenario in PARTS else lambda view: act(PLANS[scenario], view)
    main = ScriptedClient(turn, name="main")
    tools = [pay, was_paid, look, clerk.as_tool("clerk", "Pays a bill for you."), ask_user]
    if scenario in ("timers", *PARTS):
        tools += [expect, nap, note, watcher.as_tool("watch", "Waits for you.")]
    servers = []
    if scenario.startswith("asking"):
        protocol = "old" if scenario == "asking_old" else "new"
        command = [sys.executable, str(ASKING), protocol, str(folder / "asked.txt")]
        servers = [{"name": "shop", "command": command, "elicitation": "ask", "tasks": scenario == "asking_task"}]
    return Agent(main, tools, servers, home=home_of(folder))


def install(at: int, flushed: bool) -> Callable[[], int]:
    """Kill this process at a write: an event of a run, decisions, a signal or a fork. Returns their count."""
    original, original_add, original_create = journal_module.Journal._write, Store.add_events, Store.create_run
    original_transact = Store.transact
    count = 0

    def begin() -> int:
        nonlocal count
        count += 1
        if count == at and not flushed:
            os.kill(os.getpid(), signal.SIGKILL)
        return count

    def end(number: int) -> None:
        if number == at and flushed:  # meanwhile another thread may have begun to write
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self: journal_module.Journal, event: Event, **options: bool) -> None:
        number = begin()
        original(self, event, **options)
        if number == at and flushed:
            self.flush()
        end(number)

    def add_events(self: Store, *arguments: Any) -> Any:
        number = begin()
        added = original_add(self, *arguments)
        end(number)
        return added

    def transact(self: Store, act: Any, **options: Any) -> Any:
        number = begin()
        found = original_transact(self, act, **options)
        end(number)
        return found

    def create_run(self: Store, *arguments: Any, **options: Any) -> int:
        begun = begin()
        number = original_create(self, *arguments, **options)
        end(begun)
        return number

    journal_module.Journal._write = write  # type: ignore[method-assign]
    Store.add_events = add_events  # type: ignore[method-assign]
    Store.transact = transact  # type: ignore[method-assign, assignment]
    Store.create_run = create_run  # type: ignore[method-assign]
    return lambda: count


def lead(folder: Path, resume: bool, scenario: str) -> str:
    """Bring the run of a scenario to its end, from wherever it is."""

    async def start() -> RunResult:
        agent = agent_for(folder, scenario)
        if not resume:
            return await (agent.fork("origin", at=FORK_AT, new_run_id="crash") if scenario == "fork" else first(agent))
        try:
            rows = list(open_store(home_of(folder)).rows("crash"))
        except RunNotFound:  # killed before it was recorded
            return await (agent.fork("origin", at=FORK_AT, new_run_id="crash") if scenario == "fork" else first(agent))
        return await agent.resume("crash", decisions=decisions(pending_decisions(rows)))

    def first(agent: Agent) -> Any:
        return agent.run(QUESTION, run_id="crash")

    def decisions(pending: Any) -> dict[str, Any]:
        """A decision on the first thing that is waited for, so that the run is suspended as often as possible."""

        def decision(each: Any) -> Any:
            if "form" in each.arguments:
                return '{"size": 5}'
            return f"[{each.arguments['question']}] done" if each.kind == "question" else True

        return {each.id: decision(each) for each in [each for each in pending if each.by_person][:1]}

    async def all_of_it() -> RunResult:
        result = await start()
        while result.status == "waiting" and scenario == "timers":
            (result,) = await wake(folder, scenario, [result])
        while result.status == "waiting":
            result = await agent_for(folder, scenario).resume("crash", decisions=decisions(result.waiting))
        return result

    if scenario in PARTS:
        return asyncio.run(lead_parts(folder, scenario))
    result = asyncio.run(all_of_it())
    check_signals(result.read_rows())
    if scenario == "research":
        opened = [citation.source is not None and not citation.problem for citation in result.citations]
        assert opened == [True] * len(READERS), "a citation does not open"
        return f"{result.status}: {result.answer}"
    asked = [row.event for row in result.read_rows() if isinstance(row.event, DecisionRequested)]
    questions = [(each.request.partition(".q")[0], each.digest) for each in asked if ".q" in each.request]
    assert len(questions) == len(set(questions)), "a server's question was asked twice in one call"
    return f"{result.status}: {result.answer}"


async def wake(folder: Path, scenario: str, waiting: Iterable[RunResult]) -> list[RunResult]:
    """Send the signals that runs wait for, and resume them when the last of their times has come."""
    late = 0.0
    for result in waiting:
        for each in result.waiting:
            if "event" in each.signals:
                send_signal(open_store(home_of(folder)), result.run_id, "event", each.id, id=each.id)
            late = max(late, each.expires or 0.0)
    return await agent_for(folder, scenario).resume_due(now=datetime.fromtimestamp(late, UTC))


def check_signals(rows: Iterable[Row]) -> None:
    received = [row.event.signal for row in rows if isinstance(row.event, DecisionMade) and row.event.signal]
    assert len(received) == len(set(received)), received


async def lead_parts(folder: Path, scenario: str) -> str:
    """Bring two tasks to their ends, from wherever they are. Returns what is left of them."""
    tasks = [f"{QUESTION} Part {number}." for number in (1, 2)]
    left = await {"map": lead_map, "session": lead_session, "serve": lead_served}[scenario](folder, tasks)
    store = open_store(home_of(folder))
    runs = sorted(store.runs(), key=lambda record: record.task)
    for record in runs:
        check_signals(store.rows(record.run_id))
    return " | ".join([*(f"{record.status}: {record.answer}" for record in runs), *left])


async def lead_map(folder: Path, tasks: list[str]) -> list[str]:
    while True:
        results = await agent_for(folder, "map").run_many(tasks, key="crash")
        if all(result.status != "waiting" for result in results):
            return [file.name for result in results for file in result.files]
        await wake(folder, "map", results)


async def lead_session(folder: Path, tasks: list[str]) -> list[str]:
    session = agent_for(folder, "session").session("crash")
    while len(runs := session.runs) < len(tasks) or runs[-1].status != "answered":
        begins = not runs or runs[-1].status == "answered"
        result = await (session.run(tasks[len(runs)]) if begins else session.resume())
        while result.status == "waiting":
            (result,) = await wake(folder, "session", [result])
    return [*(file.name for file in session.files), json.dumps(dict(session.state))]


async def lead_served(folder: Path, tasks: list[str]) -> list[str]:
    sys.path.append(str(Path(__file__).parents[1]))
    from serving import serving

    store = open_store(home_of(folder))
    async with serving(agent_for(folder, "serve")) as served:
        begun = {record.task for record in store.runs()}
        for task in tasks:
            if task not in begun:
                await served.http.post(f"{served.base_url}/responses", json={"input": task, "background": True})
        while any(record.status != "answered" for record in store.runs()):
            for record in store.runs():
                for each in pending_decisions(list(store.rows(record.run_id))):
                    if "event" in each.signals:
                        url = f"{served.base_url}/runs/{record.run_id}/signals/event"
                        await served.http.post(url, json=each.id, headers={"Idempotency-Key": each.id})
            await asyncio.sleep(0.02)
        runs = sorted(store.runs(), key=lambda record: record.task)
        urls = [f"{served.base_url}/runs/{record.run_id}/files" for record in runs]
        listed = [(await (await served.http.get(url)).json())["files"] for url in urls]
    return [file["name"] for files in listed for file in files]


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


def kill_and_resume(
    root: Path, scenario: str, at: int, flushed: bool, wanted: tuple[str, list[str]]
) -> dict[str, Any] | None:
    """What went wrong when the run is killed there and resumed, None if nothing did. `wanted` is an undisturbed run."""
    folder = root / f"{at}-{'after' if flushed else 'before'}"
    prepare(root, folder, scenario)

    def doomed() -> str:
        install(at, flushed)
        return lead(folder, resume=False, scenario=scenario)

    killed = in_child(doomed, folder / "first.txt")
    end_leases(folder)
    in_child(lambda: lead(folder, resume=True, scenario=scenario), folder / "second.txt")
    ended = (folder / "second.txt").read_text()
    paid = payments(folder)
    in_time = killed == signal.SIGKILL or scenario == "serve"  # how often a server looks is not fixed
    if in_time and (ended, paid) == wanted:
        shutil.rmtree(folder)
        remove_home(folder)
        return None
    return {"at": at, "flushed": flushed, "killed": killed, "ended": ended, "paid": paid}


def payments(folder: Path) -> list[str]:
    if (folder / "asked.txt").exists():
        return sorted(line.split()[1] for line in (folder / "asked.txt").open() if line.startswith("ordered "))
    return sorted((folder / "paid.txt").read_text().split()) if (folder / "paid.txt").exists() else []


def prepare(root: Path, folder: Path, scenario: str) -> None:
    """Make the folder of one kill point; for forks with the finished run."""
    folder.mkdir()
    if scenario == "fork":
        copy_runs(home_of(root / "origin"), open_store(home_of(folder)))
        close_stores()


def try_scenario(root: Path, scenario: str, stride: int) -> dict[str, Any]:
    """Kill and resume the runs of a scenario in a new folder. Returns what came of it."""
    for name in (".", "imports", "origin"):
        (root / name).mkdir()
    if scenario.endswith("program"):
        import pydantic_monty  # noqa: F401  as below
    imports = scenario if scenario.startswith("asking") or scenario in PARTS else "run"
    lead(root / "imports", resume=False, scenario=imports)  # what is imported here need not be imported in each child
    if scenario == "fork":
        asyncio.run(agent_for(root / "origin").run(QUESTION, run_id="origin"))
    close_stores()
    undisturbed = root / "undisturbed"
    prepare(root, undisturbed, scenario)

    def counted() -> str:
        count = install(-1, flushed=False)
        ended = lead(undisturbed, resume=False, scenario=scenario)
        return f"{count()} {ended}"

    in_child(counted, undisturbed / "out.txt")
    number, _, ended = (undisturbed / "out.txt").read_text().partition(" ")
    wanted = ended, payments(undisturbed)
    places = [(at, flushed) for at in range(1, int(number) + 1, stride) for flushed in (False, True)]
    tried = (kill_and_resume(root, scenario, at, flushed, wanted) for at, flushed in places)
    problems = [problem for problem in tried if problem is not None]
    return {"events": int(number), "kills": len(places), "ended": ended, "paid": wanted[1], "problems": problems}


def main() -> None:
    root = Path(sys.argv[1])
    for option in sys.argv[2:] or ["run"]:
        scenario, _, stride = option.partition(":")
        print(json.dumps(try_scenario(root / scenario, scenario, int(stride or 1))), flush=True)


if __name__ == "__main__":
    main()
