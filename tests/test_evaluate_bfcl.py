"""The benchmark `bfcl`: its tools, its conversations, and the verdicts of its checkers."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent
from closeout.errors import ServerFailed, UsageError
from closeout.evaluate import EvalReport, EvalTask, evaluate, retry
from closeout.evaluate.benchmarks import find_benchmark
from closeout.evaluate.benchmarks.benchmark import Benchmark
from closeout.evaluate.benchmarks.bfcl import GOODBYE
from closeout.evaluate.benchmarks.bfcl_package import _ast_checker
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from harness.bfcl_copy import write_package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with the layout of bfcl-eval; the real one, if it is installed, is tested below."""
    write_package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    _forget()
    yield
    _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "bfcl_eval"]:
        del sys.modules[name]
    _ast_checker.cache_clear()
    importlib.invalidate_caches()


def benchmark(names: str) -> Benchmark:
    found = find_benchmark(f"bfcl:{names}")
    assert found is not None
    return found


def play(names: str, script: Sequence[Any], **options: Any) -> EvalReport:
    """Let a scripted model do the first task of a category."""
    chosen = benchmark(names)

    def agent_for(task: EvalTask) -> Agent:
        config = dict(chosen.settings)
        return Agent(ScriptedClient(list(script)), chosen.tools(task), instructions=chosen.instructions, config=config)

    return asyncio.run(evaluate(agent_for, chosen.tasks()[:1], scorer=chosen.scorer, **{"name": names, **options}))


def verdict(report: EvalReport) -> tuple[bool, str]:
    (trial,) = report.trials
    return report.is_correct(trial), trial.scores["bfcl"].reason


DONE = answer("done")
TRIANGLE = call("shapes_area", base=10, height=5)
OTHER = call("shapes_area", base=3, height=4)


@pytest.mark.parametrize(
    ("category", "script", "right", "reason"),
    [
        ("simple_python", [TRIANGLE, DONE], True, "As BFCL's checker expects."),
        ("simple_python", [OTHER, DONE], False, "No match for shapes.area."),
        ("simple_python", [DONE], False, "Wrong number of functions."),
        ("parallel", [Turn(calls=[OTHER, TRIANGLE]), DONE], True, "As BFCL's checker expects."),
        ("parallel", [TRIANGLE, DONE], False, "Wrong number of functions."),
        ("simple_java", [call("Geometry_create", sizes="[1, 2]", parent="area"), DONE], True, "As BFCL's"),
        ("irrelevance", [DONE], True, "Called: nothing."),
        ("irrelevance", [TRIANGLE, DONE], False, "Called: shapes_area."),
        ("live_relevance", [TRIANGLE, DONE], True, "Called: shapes_area."),
        ("live_relevance", [DONE], False, "Called: nothing."),
    ],
)
@pytest.mark.usefixtures("package")
def test_calls_are_judged_by_the_checker(category: str, script: list[Any], right: bool, reason: str) -> None:
    correct, why = verdict(play(category, script))
    assert correct is right
    assert why.startswith(reason)


@pytest.mark.usefixtures("package")
def test_functions_become_tools_with_json_schemas() -> None:
    chosen = benchmark("simple_python,simple_java")
    python, java = (next(iter(chosen.tools(task))).spec for task in chosen.tasks())
    assert python.name == "shapes_area"
    properties = python.parameters["properties"]
    assert [properties[name]["type"] for name in ("base", "height", "sides", "about")] == [
        "integer",
        "number",
        "array",
        "object",
    ]
    assert properties["unit"]["enum"] == ["m", "cm"]
    assert java.parameters["properties"]["sizes"] == {
        "type": "string",
        "description": "Its sizes. The Java code of a value of type ArrayList, as a string. "
        "Its items are of type integer.",
    }


COUNTING = [
    call("add", number=3),
    call("answer_user", message="Added."),
    Turn(calls=[call("add", number=4), call("read")]),
    call("answer_user", message="It is 8."),
    call("halve", number=8),
    call("answer_user", message="4."),
    DONE,
]


@pytest.mark.parametrize("category", ["multi_turn_base", "multi_turn_long_context"])
@pytest.mark.usefixtures("package")
def test_a_conversation_is_judged_by_the_states_and_results_of_its_turns(category: str) -> None:
    seen: list[str] = []

    def noting(item: Any) -> Any:
        def turn(request: RequestView) -> Any:
            seen.append(request.last)
            return item

        return turn

    assert verdict(play(category, [noting(item) for item in COUNTING])) == (True, "As BFCL's checker expects.")
    assert seen[0] == "Add 3."
    assert "Add 4, and read." in seen[2]
    assert GOODBYE in seen[-1]


@pytest.mark.usefixtures("package")
def test_functions_that_a_conversation_lacks_appear_with_their_turn() -> None:
    offered: list[bool] = []

    def noting(item: Any) -> Any:
        def turn(request: RequestView) -> Any:
            offered.append("halve" in request.tools)
            return item

        return turn

    told = call("answer_user", message="Done, or not.")
    script = [call("add", number=3), told, told, call("halve", number=4), told, DONE]
    assert verdict(play("multi_turn_miss_func", list(map(noting, script)))) == (True, "As BFCL's checker expects.")
    assert offered == [False] * 3 + [True] * 3


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([call("add", number=3), DONE], "The conversation ended in turn 1 of 3."),
        ([*COUNTING[:2], call("add", number=5), *COUNTING[3:]], "Another state after turn 1."),
        ([*COUNTING[:4], call("read"), *COUNTING[5:]], "A result is missing in turn 2."),
    ],
)
@pytest.mark.usefixtures("package")
def test_a_conversation_that_differs_is_wrong(script: list[Any], reason: str) -> None:
    assert verdict(play("multi_turn_base", script)) == (False, reason)


@pytest.mark.usefixtures("package")
def test_every_trial_has_backends_of_its_own() -> None:
    report = play("multi_turn_base", COUNTING, epochs=3)
    assert report.totals.correct == 3
    utils = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
    assert not [name for name in vars(utils) if name.startswith("closeout")]


@pytest.mark.usefixtures("package")
def test_a_resumed_run_repeats_its_calls_in_new_backends() -> None:
    def fail(_: RequestView) -> Any:
        raise ServerFailed("The server is down.", status=500)

    assert play("multi_turn_base", [*COUNTING[:2], fail], retries=0).failures == {"ServerFailed": 1}
    seen: list[str] = []

    def look(request: RequestView) -> Any:
        seen.append(request.last)
        return COUNTING[3]

    chosen = benchmark("multi_turn_base")
    script = [*COUNTING[2:3], look, *COUNTING[4:]]

    def agent_for(task: EvalTask) -> Agent:
        config = dict(chosen.settings)
        return Agent(ScriptedClient(script), chosen.tools(task), instructions=chosen.instructions, config=config)

    report = asyncio.run(retry(agent_for, "multi_turn_base", scorer=chosen.scorer))
    assert verdict(report) == (True, "As BFCL's checker expects.")
    assert seen == ["8"]


def test_wrong_categories_and_a_missing_package_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in ("", "simple", "simple_python,multi_turn_base", "memory_kv"):
        with pytest.raises(UsageError, match="bfcl takes categories of one kind, such as bfcl:simple_python"):
            benchmark(names)
    assert benchmark("multi_turn").instructions != benchmark("single_turn").instructions
    monkeypatch.setattr("closeout.evaluate.benchmarks.bfcl_package.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="pip install --no-deps bfcl-eval"):
        benchmark("multi_turn").tasks()


def test_the_real_package_has_what_is_read_of_it() -> None:
    pytest.importorskip("bfcl_eval", reason="its dependencies are too many for an extra")
    area = call("calculate_triangle_area", base=10, height=5)
    assert verdict(play("simple_python", [area, DONE])) == (True, "As BFCL's checker expects.")
    assert verdict(play("irrelevance", [DONE])) == (True, "Called: nothing.")
    turns = [
        [call("cd", folder="document"), call("mkdir", dir_name="temp")],
        [call("mv", source="final_report.pdf", destination="temp")],
        [call("answer_user", message="Done.")],
        [call("cd", folder="temp"), call("grep", file_name="final_report.pdf", pattern="budget analysis")],
        [call("answer_user", message="Done.")],
        [call("sort", file_name="final_report.pdf")],
        [call("answer_user", message="Done.")],
        [
            call("cd", folder=".."),
            call("mv", source="previous_report.pdf", destination="temp"),
            call("cd", folder="temp"),
        ],
        [call("diff", file_name1="final_report.pdf", file_name2="previous_report.pdf")],
    ]
    script = [*(Turn(calls=calls) for calls in turns), DONE]
    assert verdict(play("multi_turn_base", script)) == (True, "As BFCL's checker expects.")
    name = "Model instance for GorillaFileSystem does not match the state with ground truth instance."
    assert verdict(play("multi_turn_base", [Turn(calls=turns[0][:1]), *script[1:]], name="wrong")) == (False, name)
