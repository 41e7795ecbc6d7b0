"""The tasks of tau2-bench in `examples/tau2_solo.py`: its oracle is right, and a resumed trial continues its calls."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent
from closeout.errors import ServerFailed, UsageError
from closeout.evaluate import evaluate, retry
from closeout.evaluate.benchmarks import find_benchmark
from closeout.testing import ScriptedClient, Turn, answer, call
from harness.tau2_copy import write_tau2

NAME = f"{Path(__file__).resolve().parent.parent}/examples/tau2_solo:BENCHMARK"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if importlib.util.find_spec("tau2") is None:
        write_tau2(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.setattr(sys, "path", list(sys.path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the real package
        find_benchmark(NAME)
    yield sys.modules["tau2_solo"]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tau2", "tau2_solo")]:
        del sys.modules[name]


def test_the_oracle_is_right_and_an_idle_agent_is_not(recipe: Any, home: Path) -> None:
    chosen = recipe.benchmark("small")
    report = asyncio.run(evaluate(recipe.oracle_for, chosen.tasks(), scorer=chosen.scorer, name="oracle"))
    assert report.totals.correct == report.totals.planned == len(chosen.tasks())
    assert {each.value for each in report.slices("issue")} >= {"mobile_data_issue", "mms_issue"}

    def idle(task: Any) -> Agent:
        return Agent(ScriptedClient([answer("done")]), recipe.tools(task))

    assert asyncio.run(evaluate(idle, chosen.tasks(), scorer=chosen.scorer, name="idle")).totals.correct == 0


def test_a_resumed_trial_repeats_its_calls_in_a_new_environment(recipe: Any, home: Path) -> None:
    def fail(_: Any) -> Turn:
        raise ServerFailed("The server is down.", status=500)

    def agent(*script: Any) -> Any:
        return lambda task: Agent(ScriptedClient(script), recipe.tools(task))

    task = next(
        each for each in recipe.tasks("small") if each.id.startswith("[mobile_data_issue]") and "off" in each.id
    )
    toggle = call("toggle_roaming")
    report = asyncio.run(evaluate(agent(toggle, fail), [task], scorer=recipe.tau2, name="x", retries=0))
    assert report.failures == {"ServerFailed": 1}
    report = asyncio.run(retry(agent(toggle, toggle, answer("done")), "x", scorer=recipe.tau2))
    (trial,) = report.trials
    assert report.is_correct(trial), trial.scores  # on, then off and on again
    assert trial.scores["tau2"].reason == "ENV_ASSERTION 1"


def test_a_benchmark_is_named_by_its_module(tmp_path: Path, home: Path) -> None:
    (tmp_path / "mine.py").write_text("from retail_desk import BENCHMARK\nOTHER = 3\n")
    found = find_benchmark(f"{tmp_path}/mine:BENCHMARK")
    assert found is not None
    assert len(found.tasks()) == 6
    with pytest.raises(UsageError, match="mine:OTHER must be a Benchmark, got int"):
        find_benchmark(f"{tmp_path}/mine:OTHER")
    with pytest.raises(UsageError, match="There is no module none"):
        find_benchmark(f"{tmp_path}/none:BENCHMARK")
