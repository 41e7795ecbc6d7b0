"""The ready benchmarks: their data can be read, their tools work, their scorers judge."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Boxed, UsageError
from closeout.evaluate import evaluate
from closeout.evaluate.benchmarks import BENCHMARKS, find_benchmark
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call

PLAYS: dict[str, list[Any]] = {
    "return": [call("say", message="Hello?"), call("get_order", order="A1"), call("return_order", order="A1")],
    "too-late": [call("say", message="Hello?"), call("return_order", order="A2")],
    "shipped": [call("say", message="Hello?"), call("get_order", order="A4")],
}


def test_every_benchmark_has_tasks_and_is_described() -> None:
    for name in BENCHMARKS:
        benchmark = find_benchmark(name)
        assert benchmark is not None
        assert len(benchmark.tasks()) >= 6
        assert benchmark.about
    assert find_benchmark("nothing") is None


def test_the_desk_is_judged_by_its_orders() -> None:
    benchmark = find_benchmark("retail_desk:BENCHMARK")
    assert benchmark is not None
    tasks = [task for task in benchmark.tasks() if task.id in PLAYS]

    def agent_for(task: Any) -> Agent:
        return Agent(ScriptedClient([*PLAYS[task.id], answer("done")]), benchmark.tools(task), answer=Boxed())

    report = asyncio.run(evaluate(agent_for, tasks, scorer=benchmark.scorer, name="desk"))
    assert {trial.task_id: report.is_correct(trial) for trial in report.trials} == {
        "return": True,
        "too-late": False,  # the agent broke a rule
        "shipped": True,
    }
    assert dict(report.provenance())["agent"] == "dialect function_call, tools: each task's own"
    reasons = {trial.task_id: trial.scores["orders_are_right"].reason for trial in report.trials}
    assert reasons["too-late"] == "Changed: {'A2': 'returned'}; right: nothing."


def test_the_passages_hold_what_the_questions_need() -> None:
    benchmark = find_benchmark("multihop")
    assert benchmark is not None
    task = next(task for task in benchmark.tasks() if "Sadok Sassi" in task.question)
    seen: list[str] = []

    def turn(request: RequestView) -> Turn | Any:
        if request.turn == 1:
            return call("search_documents", query="Tunisia national football team World Cup")
        seen.append(request.last)
        return answer("1978")

    agent = Agent(ScriptedClient(turn), list(benchmark.tools(task)), answer=Boxed())
    report = asyncio.run(evaluate(agent, [task], scorer=benchmark.scorer, name="multihop"))
    assert report.totals.correct == 1
    assert "1978" in seen[0]


def test_a_problem_is_judged_as_mathematics() -> None:
    pytest.importorskip("math_verify")
    benchmark = find_benchmark("math")
    assert benchmark is not None
    (task,) = [task for task in benchmark.tasks() if "\\frac" in str(task.answer)][:1]
    agent = Agent(ScriptedClient([answer(str(task.answer))]), list(benchmark.tools(task)), answer=Boxed())
    assert asyncio.run(evaluate(agent, [task], scorer=benchmark.scorer)).totals.correct == 1


def test_the_data_says_where_it_is_from() -> None:
    folder = Path(str(__import__("closeout.evaluate.benchmarks.benchmark", fromlist=["DATA"]).DATA))
    about = (folder / "README.md").read_text("utf-8")
    for file in folder.glob("*.jsonl"):
        assert f"`{file.name}`" in about
        for line in file.read_text("utf-8").splitlines():
            json.loads(line)


def test_a_call_of_the_desk_that_was_interrupted_runs_again() -> None:
    benchmark = find_benchmark("retail_desk:BENCHMARK")
    assert benchmark is not None
    assert benchmark.tools is not None
    policies = [tool.policy for tool in benchmark.tools(benchmark.tasks()[0])]
    assert all(policy.read_only or policy.on_crash == "rerun" for policy in policies)


def encrypted(text: str, key: bytes) -> str:
    return base64.b64encode(bytes(a ^ b for a, b in zip(text.encode(), cycle(key), strict=False))).decode()


def test_a_published_benchmark_reads_the_fields_of_its_file_and_what_is_encrypted(tmp_path: Path) -> None:
    hashed, plain = hashlib.sha256(b"c1").digest(), b"c2"
    files: dict[str, list[dict[str, Any]]] = {
        "browsecomp": [{"problem": encrypted("Who?", hashed), "answer": encrypted("Ada", hashed), "canary": "c1"}],
        "browsecomp-zh": [{"Topic": "x", "Question": "Who?", "Answer": "Ada"}],
        "xbench": [{"id": "1", "prompt": encrypted("Who?", plain), "answer": encrypted("Ada", plain), "canary": "c2"}],
        "simpleqa": [{"problem": "Who?", "answer": "Ada"}],
        "frames": [{"Prompt": "Who?", "Answer": "Ada", "reasoning_types": "x"}],
        "hle": [{"id": "1", "question": "Who?", "answer": "Ada", "image": ""}],
        "webwalker": [{"question": "Who?", "answer": "Ada", "root_url": "https://a.example"}],
        "deepsearchqa": [{"task_id": 1, "task_question": "Who?", "ground_truth": "Ada"}],
        "gaia": [
            {"task_id": "a", "Question": "Who?", "Final answer": "Ada", "file_name": ""},
            {"task_id": "b", "Question": "What is in it?", "Final answer": "1", "file_name": "b.png"},
        ],
    }
    for name, records in files.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
        benchmark = find_benchmark(f"{name}:{path}")
        assert benchmark is not None
        (task,) = benchmark.tasks()
        assert (task.question, task.answer, bool(task.id), task.files) == ("Who?", "Ada", True, ()), name
        assert benchmark.judge or name == "gaia"
    with pytest.raises(UsageError, match=r"frames needs the file of its tasks: frames:data\.jsonl"):
        find_benchmark("frames:")
