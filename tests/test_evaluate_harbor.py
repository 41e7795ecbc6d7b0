"""Task folders in Harbor's format: their commands run in a sandbox of the trial, their own tests judge it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent
from closeout.errors import UsageError
from closeout.evaluate import EvalReport, evaluate, rescore
from closeout.evaluate.benchmarks import find_benchmark
from closeout.evaluate.benchmarks.harbor import harbor_reward, oracle_for, sandbox_tools
from closeout.testing import ScriptedClient, answer, call

TOML = """
version = "1.0"
[metadata]
difficulty = "easy"
[verifier]
timeout_sec = 60.0
env = { WANTED = "ada,36" }
[agent]
timeout_sec = 120.0
[environment]
cpus = 1
"""
DOCKERFILE = """
FROM python:3.13-slim
WORKDIR /srv/work
ENV GREETING="good day"
COPY data/ /srv/work/data/
COPY notes.txt .
RUN mkdir -p /data && \\
    echo "$GREETING" > /data/greeting
RUN echo "$0" > /data/shells
SHELL ["/bin/bash", "-c"]
RUN echo "$0" >> /data/shells
CMD ["bash"]
"""
TEST = """
cd /srv/work
reward=0
if [ "$(cat out/oldest.csv)" = "$WANTED" ] && [ -f /data/greeting ]; then reward=1; fi
echo $reward > /logs/verifier/reward.txt
echo "tested in $PWD" && echo changed > out/oldest.csv
"""


pytestmark = pytest.mark.bubblewrap


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "task.toml": TOML,
        "instruction.md": "Write the oldest of data/crew.csv to out/oldest.csv.",
        "environment/Dockerfile": DOCKERFILE,
        "environment/data/crew.csv": "ada,36\nblaise,31\n",
        "environment/notes.txt": "笔记",
        "tests/test.sh": TEST,
        "solution/solve.sh": "mkdir -p out && bash /solution/pick.sh > out/oldest.csv",
        "solution/pick.sh": "sort -t, -k2 -nr data/crew.csv | head -1",
    }
    for name, text in files.items():
        file = tmp_path / "tasks" / "oldest" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    return tmp_path / "tasks"


def judged(folder: Path, agent_for: Any, name: str = "x") -> EvalReport:
    benchmark = find_benchmark(f"harbor:{folder}")
    assert benchmark is not None
    return asyncio.run(evaluate(agent_for, benchmark.tasks(), scorer=benchmark.scorer, name=name))


def scripted(*turns: Any) -> Any:
    return lambda task: Agent(ScriptedClient([*turns, answer("done")]), sandbox_tools(task), home=True)


def test_the_oracle_solves_its_task_and_nobody_else_changed_it(folder: Path, home: Path) -> None:
    assert judged(folder, oracle_for).totals.correct == 1
    assert judged(folder, scripted(), name="idle").totals.correct == 0
    again = asyncio.run(rescore("x", harbor_reward))
    assert again.totals.correct == 1  # the tests changed a copy
    assert sorted(each.name for each in (folder / "oldest" / "tests").iterdir()) == ["test.sh"]
    assert [each.name for each in (home / "sandboxes").glob(".verify-*")] == []


def test_commands_and_files_stay_in_the_sandbox(folder: Path, home: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("SECRET")
    listening = socket.create_server(("127.0.0.1", 0))  # that of the host is not in reach
    turns = [
        call("bash", command="cat notes.txt /data/greeting; pwd; echo $GREETING; cat /data/shells"),
        call("bash", command=f"cat {secret}; ls {home}; false"),
        call("bash", command=f"exec 3<>/dev/tcp/127.0.0.1/{listening.getsockname()[1]}"),
        call("write_file", path="out/oldest.csv", content="ada,36\n"),
        call("read_file", path="/srv/work/out/oldest.csv"),
        call("bash", command="sleep 60", seconds=1),
        call("bash", command="yes | head -c 3000000"),
    ]
    client = ScriptedClient([*turns, answer("done")])
    with listening:
        report = judged(folder, lambda task: Agent(client, sandbox_tools(task), home=True))
    assert report.totals.correct == 1
    shown = [str(message["content"]) for message in client.requests[-1].messages if message["role"] == "tool"]
    assert shown[0].splitlines() == ["笔记good day", "/srv/work", "good day", "/bin/sh", "/bin/bash"]
    assert "SECRET" not in shown[1]
    assert shown[1].count("No such file") == 2
    assert "[exit code 1]" in shown[1]
    assert "refused" in shown[2]
    assert shown[4] == "ada,36\n"
    assert "longer than 1 s" in shown[5]
    assert "more than 1 MB" in shown[6]


def test_a_trial_cannot_lead_its_tests_out_of_the_sandbox(folder: Path, home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    attack = f"rm -rf /logs; ln -s ../../{outside} /logs; ln -sfn ../../../..{outside} /srv/work/out"
    report = judged(folder, scripted(call("bash", command=attack)))
    (trial,) = report.trials
    assert not trial.scores["harbor_reward"].correct
    assert "logs is a link" in trial.scores["harbor_reward"].reason
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("RUN apt-get update && exit 100", "needs an image"),
        ("ADD https://example.org/x /x", "ADD"),
        ("COPY --from=build /a /b", "needs an image"),
        ("SHELL /bin/bash", "must be a list"),
    ],
)
def test_a_task_that_needs_an_image_says_which_line(folder: Path, home: Path, line: str, said: str) -> None:
    (folder / "oldest" / "environment" / "Dockerfile").write_text(f"FROM x\n{line}\n")
    (trial,) = judged(folder, oracle_for).trials
    assert not trial.scores["harbor_reward"].judged
    assert "Line 2 of the Dockerfile" in trial.scores["harbor_reward"].reason
    assert said in trial.scores["harbor_reward"].reason


def test_a_reward_may_be_partial_and_must_be_a_share(folder: Path, home: Path) -> None:
    test = folder / "oldest" / "tests" / "test.sh"
    for number, (written, value, is_judged) in enumerate(
        (('{"reward": 0.25, "speed": 9}', 0.25, True), ("7", 0.0, False), ("", 0.0, False))
    ):
        name = "reward.json" if written.startswith("{") else "reward.txt"
        test.write_text(f"printf '{written}' > /logs/verifier/{name}; echo seen")
        (trial,) = judged(folder, scripted(), name=f"x{number}").trials
        assert (trial.scores["harbor_reward"].value, trial.scores["harbor_reward"].judged) == (value, is_judged)


def test_folders_without_tasks_are_named(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"has no task: .*task\.toml"):
        find_benchmark(f"harbor:{folder}/oldest/tests")
    (folder / "oldest" / "tests" / "test.sh").unlink()
    with pytest.raises(UsageError, match=r"has no tests/test\.sh"):
        find_benchmark(f"harbor:{folder}")
