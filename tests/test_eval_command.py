"""`closeout eval`: run, show, compare, score, retry, export, merge, control."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cli_process import invoke
from closeout.cli import eval_reports
from closeout.errors import UsageError
from closeout.evaluate.overview import delete_evaluation, list_evaluations
from closeout.evaluate.tasks import EvalTask
from closeout.evaluate.trials import TrialStore, evaluation_file
from closeout.journal.store import close_stores, open_store
from closeout.testing import RequestView, Turn, answer, serve_script

AGENT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from scripted_answers import Scripted, echo
from closeout import Agent, tool
from closeout.errors import ServerFailed
from closeout.testing import ScriptedClient, answer, call

def reply(question, times):
    if Path("down").exists() and question == "1?":
        raise ServerFailed("The server is down.", status=500)
    return echo(question, times)

agent = Agent(Scripted(reply))
warm = Agent(Scripted(reply), temperature=0.5)

async def hang():
    import asyncio
    Path("hangs").touch()
    await asyncio.sleep(3600)

@tool(approval=lambda arguments: arguments["number"] == "3")
def look(number: str) -> str:
    "Look."
    return number

def looking(request):
    number = request.question.removesuffix("?")
    return answer(number) if request.turn > 1 else call("look", number=number)

careful = Agent(ScriptedClient(looking, by="question"), [look])

hanging = Agent(Scripted(echo))
hanging.plan().client.before = hang
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evalagent.py").write_text(AGENT.format(tests=str(Path(__file__).parent)))
    rows = [{"n": n, "text": f"{n}?", "answer": str(n), "half": n % 2} for n in range(4)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "evalagent", raising=False)
    return tmp_path


def call(*arguments: str, code: int = 0) -> Any:
    found = invoke("eval", *arguments)
    assert found.exit_code == code, found.output
    return found


RUN = (
    *("tasks.jsonl", "--agent", "evalagent:agent", "--scorer", "exact"),
    *("--field", "id=n", "--field", "question=text", "--name", "first", "--retries", "0"),
)


def test_tasks_are_run_and_shown_in_every_form(folder: Path) -> None:
    found = call(*RUN, "--by", "half", "--html", "r.html", "--markdown", "r.md")
    assert "4 of 4 trials" in found.stdout
    assert "by half" in found.stdout
    assert "<svg" in (folder / "r.html").read_text()
    assert "# first" in (folder / "r.md").read_text()
    assert json.loads(call("show", "first", "--json").stdout)["score"]["mean"] == 1.0
    assert len(json.loads(call("show", "first", "--json", "--trials").stdout)["trials"]) == 4
    assert [each["name"] for each in json.loads(call("list", "--json").stdout)] == ["first"]
    assert "4 of 4" in call("list").stdout
    assert "4 of 4 trials" in call("show", "first", "--live").stdout
    listed = invoke("runs")
    assert (listed.stdout, listed.stderr) == ("", "Trials are listed in their evaluations: closeout eval list\n")
    assert invoke("runs", "--status", "answered").stdout.count("first.") == 4


def test_a_score_that_is_too_low_fails_a_job(folder: Path) -> None:
    call(*RUN, "--at-least", "1")
    (folder / "tasks.jsonl").write_text('{"n": 9, "text": "9?", "answer": "8"}\n')
    found = call(*RUN, "--name", "second", "--at-least", "0.5", code=1)
    assert "The score, 0.000, is below 0.5." in found.output


def test_the_trials_that_are_not_right_are_listed_first(folder: Path) -> None:
    with (folder / "tasks.jsonl").open("a") as file:
        file.write('{"n": 9, "text": "9?", "answer": "8"}\n')
    call(*RUN)
    head, first, *others = call("show", "first", "--trials").stdout.split("\n\n")[-1].splitlines()
    assert head.split() == ["task", "score", "answer", "expected", "run"]
    assert first.split() == ["9", "0.0", "%", "9", "8", "first.4-9.e1"]
    assert len(others) == 4


def test_failed_trials_are_repeated(folder: Path) -> None:
    (folder / "down").touch()
    assert json.loads(call(*RUN, "--json").stdout)["failures"] == {"ServerFailed": 1}
    (folder / "down").unlink()
    found = json.loads(call("retry", "first", "--json").stdout)
    assert (found["totals"]["correct"], found["failures"]) == (4, {})


def test_some_tasks_are_run_and_an_evaluation_is_deleted_with_its_runs(folder: Path, home: Path) -> None:
    assert "2 of 2 trials" in call(*RUN, "--id", "3", "--id", "1", "--shuffle", "5").stdout
    found = json.loads(call("show", "first", "--json", "--trials").stdout)
    assert sorted(trial["task_id"] for trial in found["trials"]) == ["1", "3"]
    assert "Add --yes" in call("delete", "first", code=2).output
    assert call("delete", "first", "--yes", "--json").exit_code == 0
    assert json.loads(call("list", "--json").stdout) == []
    assert len(open_store(home).runs(limit=10)) == 2  # only with --runs
    call(*RUN, "--id", "3", "--force")
    assert json.loads(call("delete", "first", "--yes", "--runs", "--json").stdout) == {"deleted": 1}
    assert not any("first" in path.name for path in (home / "evaluations").iterdir())
    call("delete", "first", "--yes", code=2)


def test_an_evaluation_on_which_a_process_works_is_not_deleted(folder: Path, home: Path) -> None:
    call(*RUN)
    store = TrialStore(evaluation_file(home, "first"))
    store.register("")
    with pytest.raises(UsageError, match="Stop them first"):
        delete_evaluation(home, "first")
    store.close()
    delete_evaluation(home, "first")
    assert list_evaluations(home) == []


def test_a_trial_that_waits_for_a_decision_ends_with_code_4(folder: Path) -> None:
    careful = [part.replace(":agent", ":careful") for part in RUN]
    assert "1 of 4 trials wait for a decision" in call(*careful, code=4).stdout
    assert "waiting for decisions" in call("list").stdout
    found = invoke("approve", "first.3-3.e1", "--no-resume")
    assert found.exit_code == 0, found.output
    assert json.loads(call(*careful, "--json").stdout)["totals"]["correct"] == 4


def test_a_budget_ends_with_code_1_and_the_same_command_continues(folder: Path) -> None:
    stopped = json.loads(call(*RUN, "--max-tokens", "200", "--concurrency", "1", "--json", code=1).stdout)
    assert (stopped["stopped"], stopped["totals"]["finished"]) == ("max_tokens", 2)
    assert json.loads(call(*RUN, "--json").stdout)["totals"]["finished"] == 4


def test_evaluations_are_compared_scored_again_and_exported(folder: Path) -> None:
    call(*RUN)
    call(*RUN[:-4], "--name", "second", "--epochs", "2")
    assert "+0.0 points" in call("compare", "first", "second", "--html", "c.html").stdout
    assert json.loads(call("compare", "first", "second", "--json").stdout)["difference"]["tasks"] == 4
    assert len(json.loads(call("compare", "first", "second", "first", "--json", "--html", "c.html").stdout)) == 2
    assert "Score and cost" in (folder / "c.html").read_text()
    assert json.loads(call("score", "first", "--scorer", "f1", "--json").stdout)["scorer"] == "f1"
    shown = " ".join(call("show", "first").stdout.split())
    assert "agreement with f1 Cohen's kappa 1.00" in shown
    assert "seeds bootstrap 0, model not set" in shown
    call("export", "first", "-o", "x.jsonl", "--which", "correct")
    lines = [json.loads(line) for line in (folder / "x.jsonl").read_text().splitlines()]
    assert [[message["loss"] for message in line["messages"]] for line in lines] == [[False, True]] * 4
    call("export", "first", "-o", "rows.jsonl", "--format", "rows")
    assert json.loads((folder / "rows.jsonl").read_text().splitlines()[1])["correct"] is True


def test_models_are_evaluated_on_the_same_tasks_and_shown_in_one_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(request: RequestView) -> Turn:
        good = request.body["model"] == "good" or request.question in ("1?", "2?")
        return answer(request.question.removesuffix("?") if good else "no")

    with serve_script(reply, by="question") as server:
        command = ("matrix", "tasks.jsonl", "-m", "openai:bad", "-m", "openai:good", *RUN[3:9], "--name", "m")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        found = json.loads(call(*command, "--json").stdout)
        assert [each["name"] for each in found["evaluations"]] == ["m-openai-bad", "m-openai-good"]
        assert found["differences"][0]["difference"] == 0.5
        assert list(found["tasks"].values()) == [[0.0, 1.0], [1.0, 1.0], [1.0, 1.0], [0.0, 1.0]]
        asked = len(server.requests)
        shown = call(*command, "--tasks", "--markdown", "m.md", "--html", "m.html")
    assert len(server.requests) == asked == 8  # the same command repeats nothing
    assert shown.stdout.splitlines()[0].split()[:3] == ["score", "95", "%"]
    assert "+50.0" in shown.stdout
    assert "| +50.0 |" in (folder / "m.md").read_text()
    assert "Score and cost" in (folder / "m.html").read_text()
    assert "Give -m for each of several models" in call(*command[:4], code=2).stderr
    assert "No such option: --bogus" in call(*command, "--bogus", code=2).stderr


def test_a_doubtful_comparison_warns_in_every_form(folder: Path) -> None:
    call(*RUN)
    call(*(part.replace(":agent", ":warm").replace("first", "second") for part in RUN))
    warning = "The settings differ: llm.temperature default and 0.5."
    compared = ("compare", "first", "second", "--cluster", "half")
    shown = call(*compared, "--html", "c.html", "--markdown", "c.md").stdout
    assert f"Warning: {warning}" in shown
    assert "+0.0 points, 95 % interval -84.2 to +84.2" in shown
    assert "p = 1 (2 clusters by half)" in shown
    assert f"- Warning: {warning}" in (folder / "c.md").read_text()
    assert f"<p>Warning: {warning}</p>" in (folder / "c.html").read_text()
    found = json.loads(call(*compared, "--json").stdout)
    assert found["warnings"] == [warning]
    assert (found["cluster"], found["difference"]["clusters"], found["power"]["detectable"]) == ("half", 2, None)
    assert "no metadata field 'page'" in call("compare", "first", "second", "--cluster", "page", code=2).stderr


def test_the_power_of_a_plan_is_said_before_its_first_trial(folder: Path) -> None:
    said = " ".join(call(*RUN).stderr.split())
    assert said.startswith(
        "A comparison of 4 tasks has 80 % power for 49.5 points; to see 3 points you need about 1,100 tasks "
        "if 1 task in 8 ends differently"
    )
    assert "A comparison" not in call(*RUN, "--epochs", "2").stderr
    assert "A comparison" not in call(*RUN[:-4], "--name", "quiet", "--quiet").stderr


def test_shards_are_merged(folder: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for shard in ("1/2", "2/2"):
        monkeypatch.setenv("CLOSEOUT_HOME", str(home))
        assert "2 of 2 trials" in call(*RUN, "--shard", shard).stdout
    monkeypatch.setenv("CLOSEOUT_HOME", str(home))
    assert "4 of 4 trials" in call("merge", "first").stdout
    close_stores()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("tasks.jsonl", "--agent", "evalagent:agent"), "the task has no id"),
        (("none.jsonl", "--agent", "evalagent:agent"), "no such file"),
        ((*RUN, "--scorer", "exactly"), "'exactly' is not a scorer"),
        ((*RUN, "--field", "question"), "--field takes NAME=FIELD"),
        ((*RUN, "--concurrency", "many"), "--concurrency takes a number"),
        ((*RUN, "--shard", "3/2"), "--shard takes i/n"),
        (("tasks.jsonl", "--shard", "1/2"), "--shard needs --name"),
        (("show", "nothing"), "No evaluation nothing"),
        (("control", "nothing"), "Give one of --pause"),
        (("export", "nothing", "-o", "x"), "No evaluation nothing"),
        (("merge", "nothing"), "There are no shards of nothing"),
    ],
)
def test_misuse_is_explained(folder: Path, arguments: tuple[str, ...], problem: str) -> None:
    found = call(*arguments, code=2)
    assert problem in found.stderr
    assert "Traceback" not in found.output


def test_a_signal_stops_it_and_the_same_command_continues(folder: Path, home: Path) -> None:
    command = [sys.executable, "-m", "closeout", "eval", *RUN]
    source = str(Path(__file__).parent.parent / "src")
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{folder}"}
    hanging = [part.replace(":agent", ":hanging") for part in command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(hanging, env=environment, text=True, **pipes) as worker:
        while not (folder / "hangs").exists():
            assert worker.poll() is None, worker.communicate()
        worker.send_signal(signal.SIGINT)
        _, errors = worker.communicate(timeout=60)
    assert worker.returncode == 130
    assert "stopped; the same command continues it. To see it: closeout eval show first" in errors
    assert json.loads(call(*RUN, "--json").stdout)["totals"]["correct"] == 4


def test_a_damaged_evaluation_does_not_hide_the_others(folder: Path, home: Path) -> None:
    call(*RUN)
    (home / "evaluations" / "broken.sqlite3").write_bytes(b"not a database" * 1000)
    found = call("list", "--json")
    assert [each["name"] for each in json.loads(found.stdout)] == ["first"]
    assert "broken.sqlite3" in found.stderr
    assert [each["name"] for each in list_evaluations(home)] == ["first"]
    assert "broken.sqlite3" in call("show", "broken", code=3).stderr


def test_showing_a_report_imports_nothing_that_runs_an_agent() -> None:
    source = str(Path(__file__).parent.parent / "src")
    code = (
        "import sys, closeout.cli.eval_reports; print([n for n in sys.modules if n in ('closeout.agent', 'aiohttp')])"
    )
    environment = {**os.environ, "PYTHONPATH": source}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("named", [(), ("--scorer", "judge:openai:judge")], ids=["its own model", "a named judge"])
def test_a_published_benchmark_is_run_by_the_users_agent_and_judged_by_its_rules(
    folder: Path, monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...]
) -> None:
    def reply(view: RequestView) -> Any:
        is_judge = "You grade answers." in view.text
        judged.append(is_judge and "commits to the same one" in view.text)
        return answer("right" if is_judge and '"right_answer": "Ada"' in view.text else "wrong" if is_judge else "Ada")

    judged: list[bool] = []
    rows = [{"problem": "Who?", "answer": "Ada"}, {"problem": "Where?", "answer": "Rome"}]
    (folder / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with serve_script(reply) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        model = ("-m", "openai:small", "--base-url", f"{server.url}/v1", "--answer", "boxed")
        found = call("browsecomp:data.jsonl", *model, *named, "--epochs", "2", "--name", "bc", "--json")
    report = json.loads(found.stdout)
    assert judged.count(True) >= 2
    assert (report["epochs"], report["score"]["trials"], report["score"]["mean"]) == (2, 4, 0.5)


async def test_a_watch_that_is_cancelled_closes_no_file_that_is_still_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on, is_closed = threading.Event(), threading.Event(), threading.Event()
    done: list[str] = []

    class Watched(TrialStore):
        def progress(self, scorer: str) -> Any:
            begun.set()
            may_go_on.wait(60)
            found = super().progress(scorer)
            done.append("read")
            return found

        def close(self) -> None:
            super().close()
            done.append("closed")
            is_closed.set()

    spec = {"agent": {"model": "m"}, "scorers": ["exact"]}
    path = evaluation_file(folder, "watched")
    with TrialStore(path, spec) as store:
        store.add_tasks([EvalTask(id="1", question="1?", answer="1")], 1, None)
    monkeypatch.setattr(eval_reports, "TrialStore", Watched)
    watching = asyncio.ensure_future(eval_reports.watch(path, lambda progress: None))
    await asyncio.to_thread(begun.wait, 60)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    may_go_on.set()
    await asyncio.to_thread(is_closed.wait, 60)
    assert done == ["read", "closed"]
