"""Many tasks: some at a time, in order or as they come; under a key nothing is repeated, also after kill -9."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Number, tool
from closeout.errors import ResumeRefused, UsageError
from closeout.fleet.many import MapProgress
from closeout.journal.store import close_stores, open_store
from closeout.testing import RequestView, ScriptedClient, answer, call, serve_script

TASKS = [f"Double {n}." for n in range(6)]


def number_in(view: RequestView) -> int:
    return int(view.question.split()[-1].rstrip("."))


def doubled(view: RequestView) -> Any:
    """Answer "Double 3." with 6, after one tool call."""
    number = number_in(view)
    return answer(str(2 * number)) if f"[{number}] kept" in view.text else call("keep", number=number)


def agent_for(script: Any = doubled, *, kept: list[int] | None = None, **options: Any) -> Agent[Any]:
    @tool(on_crash="report")
    async def keep(number: int) -> str:
        """Keep a number."""
        if kept is not None:
            kept.append(number)
        await asyncio.sleep(0)
        return f"[{number}] kept"

    return Agent(ScriptedClient(script, by="question"), [keep], **options)


async def test_results_come_in_the_order_of_the_tasks() -> None:
    gate = asyncio.Event()

    @tool(read_only=True)
    async def keep(number: int) -> str:
        """The first task is the last to end."""
        if number == 0:
            await gate.wait()
        elif number == 5:
            gate.set()
        return f"[{number}] kept"

    agent = Agent(ScriptedClient(doubled, by="question"), [keep])
    results = [result async for result in agent.map(TASKS, limit=6)]
    assert [result.answer for result in results] == ["0", "2", "4", "6", "8", "10"]
    assert [result.task for result in results] == TASKS
    gate.clear()
    came = [result.task async for result in agent.map(TASKS, limit=6, ordered=False)]
    assert came[-1] == "Double 0."
    assert sorted(came) == TASKS


async def test_no_more_than_the_limit_run_at_a_time() -> None:
    now: list[int] = []
    most = 0
    full = asyncio.Event()

    @tool(read_only=True)
    async def keep(number: int) -> str:
        """Count those that are here."""
        nonlocal most
        now.append(number)
        most = max(most, len(now))
        if len(now) == 3:
            full.set()
        async with asyncio.timeout(30):
            await full.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        now.remove(number)
        return f"[{number}] kept"

    results = await Agent(ScriptedClient(doubled, by="question"), [keep]).run_many(TASKS * 2, limit=3)
    assert [result.answer for result in results] == [str(2 * n) for n in range(6)] * 2
    assert most == 3


async def test_what_a_key_has_ended_is_returned_from_the_record() -> None:
    kept: list[int] = []
    first = await agent_for(kept=kept, answer=Number()).run_many(TASKS, key="sweep")
    again = agent_for([], kept=kept, answer=Number())  # its model has nothing to say
    results = await again.run_many(TASKS[::-1], key="sweep")  # in another order: known all the same
    assert [result.value for result in results] == [10, 8, 6, 4, 2, 0]
    assert kept == [*range(6)]
    for loaded, original in zip(results, reversed(first), strict=True):
        assert replace(loaded, seconds=0) == replace(original, seconds=0)
        assert loaded.messages == original.messages
        assert loaded.telemetry.by_tool["keep"]["calls"] == original.telemetry.by_tool["keep"]["calls"] == 1


async def test_equal_tasks_are_runs_of_their_own() -> None:
    kept: list[int] = []
    three = ["Double 4."] * 3
    first = await agent_for(kept=kept).run_many(three, key="votes", limit=1)
    assert kept == [4, 4, 4]
    assert len({result.run_id for result in first}) == 3
    again = await agent_for(kept=kept).run_many([*three, "Double 4."], key="votes", limit=1)
    assert kept == [4, 4, 4, 4], "only the fourth is new"
    assert [result.run_id for result in again[:3]] == [result.run_id for result in first]


async def test_a_task_may_have_arguments_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("The number is 21.")
    tasks = [
        {"task": "Double 1.", "task_id": "t1", "ground_truth": "2"},
        {"task": "Double 2.", "task_id": "t2", "files": [str(tmp_path / "missing.txt")]},
        {"task": "Double 3.", "task_id": "t3", "history": [{"role": "user", "content": "Soon: 3."}]},
    ]
    results = await agent_for().run_many(tasks)
    assert [(r.task_id, r.ground_truth, r.answer) for r in results] == [
        ("t1", "2", "2"),
        ("t2", None, None),
        ("t3", None, "6"),
    ]
    assert results[1].status == "failed"
    assert "missing.txt" in results[1].error
    assert results[2].messages[0]["content"] == "Soon: 3."


async def test_a_failed_run_is_resumed_and_an_unanswered_one_is_not() -> None:
    def down(view: RequestView) -> Any:
        if "Double 1." in view.question:
            return ConnectionError("the server is down")
        return answer("not a number") if "Double 2." in view.question else doubled(view)

    def first(view: RequestView) -> Any:
        return answer("8") if "kept" in view.text else doubled(view)

    tasks = TASKS[:3]
    failed = await agent_for(down, answer=Number(), max_turns=2).run_many(tasks, key="sweep")
    assert [result.status for result in failed] == ["answered", "failed", "unanswered"]
    same = await agent_for(first, answer=Number()).run_many(tasks, key="sweep", retry_failed=False)
    assert [result.status for result in same] == ["answered", "failed", "unanswered"]
    assert same[1].error == failed[1].error
    assert same[2].failure_experience_summary == failed[2].failure_experience_summary
    again = await agent_for(first, answer=Number()).run_many(tasks, key="sweep")
    assert [result.value for result in again] == [0, 8, None]


async def test_another_agent_does_not_continue_a_key() -> None:
    await agent_for().run_many(TASKS[:2], key="sweep")
    other = agent_for(instructions="Be brief.")
    with pytest.raises(ResumeRefused, match="instructions differ"):
        await other.run_many(TASKS[:2], key="sweep")
    results = await other.run_many(TASKS[:3], key="sweep", despite_changes=True)
    assert [result.answer for result in results] == ["0", "2", "4"]


async def test_run_once_refuses_another_task_under_the_name() -> None:
    first = await agent_for().run_once("Double 2.", run_id="mine")
    again = await agent_for([]).run_once("Double 2.", run_id="mine")
    assert replace(again, seconds=0) == replace(first, seconds=0)
    with pytest.raises(ResumeRefused, match=r"has another task: 'Double 2\.'"):
        await agent_for().run_once("Double 3.", run_id="mine")
    with pytest.raises(UsageError, match="home=False"):
        await agent_for(home=False).run_once("Double 2.", run_id="mine")


async def test_tasks_are_taken_when_a_place_is_free() -> None:
    taken: list[int] = []

    async def endless() -> AsyncIterator[str]:
        number = 0
        while True:
            taken.append(number)
            yield f"Double {number}."
            number += 1

    answers = []
    runs = agent_for().map(endless(), limit=2, ordered=False)
    results = aiter(runs)
    async for result in results:
        answers.append(result.answer)
        if len(answers) == 3:
            break
    await results.aclose()  # type: ignore[attr-defined]
    assert len(taken) < 20
    assert runs.progress.total is None
    assert runs.progress.running == 0


async def test_leaving_the_iteration_cancels_the_runs_that_are_left(home: Path) -> None:
    begun = asyncio.Event()

    @tool(read_only=True)
    async def keep(number: int) -> str:
        """Keep a number."""
        if number:
            begun.set()
            await asyncio.sleep(600)
        await begun.wait()
        return f"[{number}] kept"

    agent = Agent(ScriptedClient(doubled, by="question"), [keep])
    results = aiter(agent.map(TASKS, limit=3, key="sweep"))
    assert (await anext(results)).answer == "0"
    await results.aclose()  # type: ignore[attr-defined]
    statuses = Counter(record.status for record in open_store(home).runs())
    assert statuses["answered"] == 1
    assert statuses["cancelled"] + statuses["interrupted"] == sum(statuses.values()) - 1 >= 1
    assert [result.answer for result in await agent_for().run_many(TASKS, key="sweep")][:3] == ["0", "2", "4"]


async def test_progress_is_reported_and_a_failing_callback_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[MapProgress] = []
    await agent_for().run_many(TASKS[:2], key="sweep")
    await agent_for().run_many(TASKS, key="sweep", limit=2, progress=seen.append)
    assert max(each.running for each in seen) == 2
    last = seen[-1]
    assert (last.total, last.done, last.running, last.loaded, last.by_status) == (6, 6, 0, 2, {"answered": 6})
    assert last.usage.requests == 8, "what was loaded costs nothing"

    def broken(progress: MapProgress) -> None:
        raise RuntimeError("no display")

    with caplog.at_level(logging.WARNING, "closeout"):
        assert len(await agent_for().run_many(TASKS, progress=broken)) == 6
    assert len(caplog.records) == 1


async def test_progress_true_writes_lines_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    for tasks in (TASKS, (each for each in TASKS)):  # the number of the second is known at its end
        await agent_for().run_many(tasks, progress=True)
        assert re.fullmatch(r"6/6 tasks · 6 answered · \d+ s\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("tasks", "options", "message"),
    [
        ("Double 1.", {}, "tasks must be a list"),
        ({"task": "Double 1."}, {}, "tasks must be a list"),
        ([5], {}, "Task 0 must be a string"),
        (["Double 1.", {"question": "Double 2."}], {}, "Task 1 must be a string"),
        ([{"task": "Double 1.", "taskid": "t"}], {}, "unknown key 'taskid'"),
        (TASKS, {"limit": 0}, "limit must be a whole number"),
        (TASKS, {"key": "a\nb"}, "key must be a short text"),
        (TASKS, {"key": "k", "home": False}, "home=False"),
    ],
)
async def test_wrong_arguments_are_refused(tasks: Any, options: Any, message: str) -> None:
    home = options.pop("home", None)
    with pytest.raises(UsageError, match=message):
        await agent_for(home=home).run_many(tasks, **options)


async def test_nothing_to_do_gives_no_results() -> None:
    assert await agent_for().run_many([]) == []
    assert await agent_for().run_many(iter(()), key="sweep") == []
    runs = agent_for().map([])
    assert [result async for result in runs] == []
    with pytest.raises(UsageError, match="only once"):
        await anext(aiter(runs))


async def test_an_empty_task_fails_alone() -> None:
    results = await agent_for().run_many(["Double 1.", " ", "Double 2."])
    assert [(result.status, result.answer) for result in results] == [
        ("answered", "2"),
        ("failed", None),
        ("answered", "4"),
    ]


async def test_two_that_share_a_key_share_the_work() -> None:
    kept: list[int] = []
    agent = agent_for(kept=kept)
    both = await asyncio.gather(
        agent.run_many(TASKS, key="sweep", limit=2), agent.run_many(TASKS, key="sweep", limit=2)
    )
    assert [[result.answer for result in results] for results in both] == [["0", "2", "4", "6", "8", "10"]] * 2
    assert sorted(kept) == [*range(6)]


# ------------------------------------------------------------------------------------------------ kill -9

SWEEP = """
import os, signal, sys, time
from pathlib import Path
from closeout import Agent, tool
import closeout.models.openai, closeout.fleet.many  # once, before the forks

kept, enough = Path(sys.argv[2]), 25

def are_kept():
    return len(kept.read_text().split()) >= enough

@tool(on_crash="report")
def keep(number: int) -> str:
    with kept.open("a") as file:
        file.write(f"{number}\\n")
    if are_kept():
        time.sleep(600)  # it is killed here
    return f"[{number}] kept"

def sweep():
    agent = Agent("openai:scripted", [keep], base_url=sys.argv[1], api_key="key")
    return agent.run_many_sync([f"Double {n}." for n in range(24)], key="sweep", limit=4)

for enough in (3, 9, 15):  # in a child each time, so that the process that is killed is really dead
    child = os.fork()
    if not child:
        sweep()
        os._exit(0)
    while not are_kept() and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("killed", flush=True)
    sys.stdin.readline()
enough = 25  # never
print(*[result.answer for result in sweep()])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the process that is killed is forked")
def test_a_sweep_killed_again_and_again_comes_to_its_end_and_repeats_nothing(home: Path, tmp_path: Path) -> None:
    kept, asked = tmp_path / "kept.txt", Counter[str]()
    kept.touch()

    def counted(view: RequestView) -> Any:
        asked[view.question] += 1
        interrupted = "Interrupted: the program stopped while this call was running" in view.text
        return answer(str(2 * number_in(view))) if interrupted else doubled(view)

    with serve_script(counted, by="question", record=False) as server:
        command = [sys.executable, "-c", SWEEP, server.base_url, str(kept)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for _ in range(3):
                assert process.stdout.readline() == "killed\n"
                ended = {record.task for record in open_store(home).runs() if record.status == "answered"}
                close_stores()
                before = Counter(asked)
                process.stdin.write("\n")
                process.stdin.flush()
            assert process.stdout.readline().split() == [str(2 * n) for n in range(24)]
    assert ended, "some had ended before the last kill"
    assert not [task for task in ended if asked[task] != before[task]], "what had ended is not asked again"
    assert max(Counter(kept.read_text().split()).values()) == 1, "no call with an effect is repeated"
    assert len(open_store(home).runs()) == 24
