"""`bench/weak_models.py` asks, counts, judges and continues. The programs of others need environments of their own."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from closeout.testing import Turn, answer, call, serve_script
from closeout.testing.script import RequestView, ScriptItem

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "bench" / "weak_models.py"
BENCH = runpy.run_path(str(SCRIPT))
PROGRAMS = sorted((ROOT / "bench" / "weak_models").glob("with_*.py"))
FERRY = "How many crowns do 7 adult tickets for the ferry Marit cost?"


def model(request: RequestView) -> ScriptItem:
    """Looks the price up, calculates, answers."""
    seen = "".join(str(message.get("content")) for message in request.messages)
    if "12 crowns" not in seen:
        return Turn(calls=[call("search_documents", query="ferry Marit adult ticket")])
    if "84" not in seen:
        return Turn(calls=[call("calculate", expression="7 * 12")])
    return answer("84 crowns")


def measure(address: str, results: Path) -> str:
    command = [sys.executable, SCRIPT, "--only", "closeout", "--first", "1"]
    done = subprocess.run(
        [*command, "--base-url", address, "--results", results],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_question_is_asked_counted_judged_and_not_asked_again(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    with serve_script(model) as server:
        table = measure(server.base_url, results).splitlines()[-1]
        assert measure(server.base_url, results).splitlines()[-1] == table
        assert len(server.requests) == 3
    (line,) = results.read_text("utf-8").splitlines()
    outcome = json.loads(line)
    assert (outcome["question"], outcome["verdict"]) == (FERRY, "right")
    counts = outcome["counts"]
    assert (counts["requests"], counts["tool_calls"], counts["tool_errors"], counts["refused"]) == (3, 2, 0, 0)
    assert counts["input"] > counts["cached"] > 0
    assert table.startswith(f"| Closeout | {outcome['version']} | 1 of 1 |")


def test_a_program_that_takes_too_long_is_ended_and_started_again(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys, time\n"
        'print(json.dumps({"version": "1"}), flush=True)\n'
        "for line in sys.stdin:\n"
        '    time.sleep(600) if "slow" in line else None\n'
        '    print(json.dumps({"answer": line.strip()}), flush=True)\n',
        "utf-8",
    )

    async def replies() -> list[Any]:
        asked = BENCH["Program"]([sys.executable, str(program)], os.environ, None)
        found = []
        for question, limit in (("one", 60), ("slow", 0.2), ("two", 60)):
            await asked.start()
            found.append(await asked.ask(question, limit))
        await asked.close()
        return found

    assert asyncio.run(replies()) == [{"answer": '"one"'}, {"answer": None, "error": "timeout"}, {"answer": '"two"'}]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_compiles_and_pins_the_versions_of_its_environment(program: Path) -> None:
    text = program.read_text("utf-8")
    compile(text, program, "exec")
    system = program.stem.removeprefix("with_")
    assert system in BENCH["TITLES"]
    pinned = BENCH["pins_of"](system)
    assert bool(pinned) != (system in BENCH["OWN"])
    assert all("==" in each for each in pinned)


def test_every_system_has_a_program() -> None:
    assert {program.stem.removeprefix("with_") for program in PROGRAMS} == set(BENCH["TITLES"])


@pytest.mark.parametrize(
    ("question", "gold", "answer", "right"),
    [
        ("How many credits do they cost?", "56", "They cost 56 credits.", True),
        ("How many credits do they cost?", "56", "560", False),
        ("How many metres?", "10500", "10,500 metres", True),
        ("How many metres?", "10500", "10500.0", True),
        ("On which ship?", "Fulmar | research ship Fulmar", "the Fulmar", True),
        ("On which ship?", "Fulmar | research ship Fulmar", "the Petrel", False),
        ("Which is higher, Mount Ember or Mount Vesper?", "Mount Ember", "Mount Ember", True),
        ("Which is higher, Mount Ember or Mount Vesper?", "Mount Ember", "Mount Ember, not Mount Vesper", True),
        ("Which is higher, Mount Ember or Mount Vesper?", "Mount Ember", "Mount Vesper, not Mount Ember", False),
        ("Which takes longer, the Swift or the Heron?", "Heron | cable car Heron", "The cable car Heron.", True),
        ("Which takes longer, the Swift or the Heron?", "Heron | cable car Heron", "Swift is before Heron", False),
    ],
)
def test_an_answer_is_right_if_it_contains_the_right_one(question: str, gold: str, answer: str, right: bool) -> None:
    assert BENCH["is_right"](answer, BENCH["Question"](question, gold)) is right


@pytest.mark.parametrize(
    ("answer", "counts", "error", "verdict"),
    [
        ("56", {}, "", "right"),
        ("56", {"requests": 11}, "", "out of requests"),
        ("57", {}, "", "wrong answer"),
        ('<tool_call>{"name": "calculate"}', {}, "", "call as text"),
        ("", {}, "", "no answer"),
        (None, {}, "", "no answer"),
        (None, {"requests": 10}, "MaxTurnsExceeded: 10", "out of requests"),
        (None, {"requests": 2}, "ValueError: no", "exception"),
        (None, {"requests": 2}, "timeout", "out of time"),
    ],
)
def test_failures_are_told_apart(answer: str | None, counts: dict[str, Any], error: str, verdict: str) -> None:
    question = BENCH["Question"]("How many?", "56")
    assert BENCH["verdict"](question, answer, BENCH["Counts"](**counts), error) == verdict
