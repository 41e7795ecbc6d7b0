"""The programs in examples/ run as a user runs them: in a process of their own, with a model behind HTTP."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from closeout.testing import Turn, answer, call, say, serve_script
from closeout.testing.script import RequestView, Script

pytestmark = pytest.mark.timeout(600)  # several processes a test, on a machine of any speed

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
DOCUMENTS = EXAMPLES / "documents"


def run(script: Script, program: str, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    with serve_script(script, by="question", record=False) as server:
        return process(server.base_url, program, *arguments, cwd=cwd)


def environment(base_url: str) -> dict[str, str]:
    faster = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # for coder.py, which runs the tests of its project
    return {**os.environ, **faster, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "key", "PYTHONUTF8": "1"}


def process(base_url: str, program: str, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command, variables = [sys.executable, EXAMPLES / program, *arguments], environment(base_url)
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=300, check=False)


@contextmanager
def chat_service(base_url: str, cwd: Path) -> Iterator[str]:
    """The address of a running examples/chat.py."""
    command = [sys.executable, "-u", EXAMPLES / "chat.py", "--port", "0"]
    with subprocess.Popen(command, cwd=cwd, env=environment(base_url), stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        try:
            line = next(line for line in service.stdout if "http://" in line)
            yield line[line.index("http://") :].split()[0]
        finally:
            service.send_signal(signal.SIGINT)
            service.communicate(timeout=300)


def fetch(address: str, data: str | None = None) -> str:
    with urllib.request.urlopen(address, data.encode() if data else None, timeout=300) as response:
        return response.read().decode()


def test_research_sends_researchers_and_reports_claims_with_sources(tmp_path: Path) -> None:
    report = {
        "summary": "Both canals shorten a way.",
        "claims": [
            {"text": "The Rideau Canal was opened in 1832.", "source": "rideau-canal.md:14-16"},
            {"text": "The Panama Canal was opened in 1914.", "source": "panama-canal.md"},
        ],
    }
    script = {
        "When was each canal opened?": [
            Turn(
                calls=[
                    call("researcher", task="Opening of the Rideau Canal"),
                    call("researcher", task="The Panama Canal"),
                ]
            ),
            say(json.dumps(report)),
        ],
        "Opening of the Rideau Canal": [
            call("search_documents", query="Rideau Canal opened"),
            say("1832, rideau-canal.md:14"),
        ],
        "The Panama Canal": [call("search_documents", query="Panama Canal opened"), say("1914, panama-canal.md:9")],
    }
    done = run(script, "research.py", "When was each canal opened?", "--docs", DOCUMENTS, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0,
        "- The Panama Canal was opened in 1914. [panama-canal.md]",
    ), done.stderr
    assert done.stderr.startswith("6 requests, closeout runs ")


def test_research_names_a_source_that_does_not_exist(tmp_path: Path) -> None:
    report = {"summary": "Well.", "claims": [{"text": "It is so.", "source": "invented.md:3"}]}
    done = run([say(json.dumps(report))], "research.py", "Is it so?", "--docs", DOCUMENTS, cwd=tmp_path)
    assert done.returncode == 1
    assert "Not in the documents: invented.md:3\n" in done.stderr


def test_the_pipeline_writes_typed_records_and_sends_no_message_twice(tmp_path: Path) -> None:
    def ticket(request: RequestView) -> Turn:
        return say('{"kind": "question", "urgency": 2, "product": null, "summary": "A customer asks something."}')

    messages = EXAMPLES / "data" / "messages.csv"
    with serve_script(ticket, by="question") as server:
        first = process(server.base_url, "pipeline.py", messages, "tickets.jsonl", cwd=tmp_path)
        asked = len(server.requests)
        again = process(server.base_url, "pipeline.py", messages, "tickets.jsonl", cwd=tmp_path)
        assert (asked, len(server.requests)) == (5, 5)
    assert (first.returncode, again.returncode) == (0, 0), first.stderr
    records = [json.loads(line) for line in (tmp_path / "tickets.jsonl").read_text("utf-8").splitlines()]
    assert [record["id"] for record in records] == ["m1", "m2", "m3", "m4", "m5"]
    assert records[0]["kind"] == "question"
    assert "5 tickets, 0 failed" in again.stderr


def test_the_chat_service_streams_replies_and_remembers_after_a_restart(tmp_path: Path) -> None:
    def model(request: RequestView) -> Turn:
        if request.messages[-1]["role"] == "tool":
            return say(f"Your order is {request.last}.")
        if "Where" in request.last:
            return Turn(calls=[call("order_status", number="4711")])
        return say("You asked about 4711." if "4711" in request.question else "I do not know.")

    with serve_script(model, record=False) as server:
        with chat_service(server.base_url, tmp_path) as address:
            events = fetch(f"{address}/chats/anna", "Where is my order 4711?")
        with chat_service(server.base_url, tmp_path) as address:
            later = fetch(f"{address}/chats/anna", "Which order did I ask about?")
            said = json.loads(fetch(f"{address}/chats/anna"))
    assert 'event: tool\ndata: "order_status"' in events
    assert events.endswith('event: done\ndata: "Your order is on its way, with you on Friday."\n\n')
    assert "You asked about 4711." in later
    assert [message["role"] for message in said] == ["user", "assistant"] * 2


def test_the_coding_helper_edits_until_the_tests_pass(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "data" / "shop", tmp_path / "shop")
    script = [
        call("run_tests"),
        call("read_file", name="shop.py"),
        call("replace_text", name="shop.py", old="amount > 100", new="amount >= 100"),
        call("replace_text", name="../outside.py", old="a", new="b"),
        call("run_tests"),
        say("The rebate now begins at exactly 100."),
    ]
    done = run(script, "coder.py", "shop", "An order of exactly 100 has no rebate.", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "The rebate now begins at exactly 100."), done.stderr
    assert "+    return amount * 0.9 if amount >= 100 else amount" in done.stdout
    assert done.stderr.endswith("The tests pass.\n")


def test_the_coding_helper_does_not_take_the_word_of_the_agent_for_it(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "data" / "shop", tmp_path / "shop")
    done = run([call("list_files"), say("All tests pass.")], "coder.py", "shop", "Fix it.", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("The tests still fail.\n")


def test_the_sweep_measures_each_question_several_times(tmp_path: Path) -> None:
    script = {
        "How many years": [answer("82")],
        "How many kilometres": [answer("125")],
        "How many metres": [answer("521")],
    }
    questions = EXAMPLES / "data" / "questions.jsonl"
    done = run(script, "sweep.py", questions, "--docs", DOCUMENTS, "-m", "openai:a", "--trials", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4/6" in done.stdout
    assert "67%" in done.stdout


def test_the_graph_revises_a_draft_and_continues_from_the_record(tmp_path: Path) -> None:
    def model(request: RequestView) -> Turn:
        question = request.messages[-1]["content"]
        if "Review:" in question:
            fine = "a lock lifts ships" in question
            return say(json.dumps({"good_enough": fine, "advice": "" if fine else "Say what it does."}))
        return say("With water, a lock lifts ships." if "The reviewer says" in question else "Locks are nice.")

    with serve_script(model) as server:
        arguments = ("graph.py", "What a canal lock does", "--docs", DOCUMENTS)
        first = process(server.base_url, *arguments, cwd=tmp_path)
        asked = len(server.requests)
        again = process(server.base_url, *arguments, cwd=tmp_path)
        assert (asked, len(server.requests)) == (4, 4)
    assert (first.returncode, first.stdout, first.stderr) == (0, "With water, a lock lifts ships.\n", "2 drafts\n")
    assert again.stdout == first.stdout


def test_an_agent_of_miroflow_runs_with_its_settings_and_classes(tmp_path: Path) -> None:
    def script(view: RequestView) -> Turn:
        if view.question == "Find the year.":
            return answer("1914") if "[end of the result]" in view.text else call("read_page", name="panama-canal.md")
        if "1914" in view.text:
            return answer("1914")
        return call("agent-browsing", task="Find the year.") if "panama" in view.text else call("list_pages")

    done = run(script, "ported/miroflow.py", "When was it opened?", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1914" in done.stdout.partition("Extracted Result")[2]
    assert "agent-browsing | Closing" in done.stdout
    assert "main | Closing" in done.stdout


def test_a_runner_of_dify_reads_translated_markers(tmp_path: Path) -> None:
    def script(view: RequestView) -> Turn:
        if "1914" in view.text.partition("巴拿马运河是哪一年")[2]:
            return say("思考：找到了。\n最终答案：1914 年")
        return say('思考：先查找。\n行动：{"action": "search", "action_input": {"query": "Ancon"}}')

    done = run(script, "ported/dify.py", "巴拿马运河是哪一年开通的？", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, *_, answered = done.stdout.splitlines()
    assert first.startswith("1. 先查找。 search {'query': 'Ancon'}")
    assert answered == "1914 年"


def test_tools_of_ba_agent_are_called_and_counted(tmp_path: Path) -> None:
    turns = iter([call("query_sales"), call("total", product="bookshelf"), call("forecast", product="x"), say("90")])
    done = run(lambda view: next(turns), "ported/ba_agent.py", "Which sold best?", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("90\n")
    assert "总调用次数: 3" in done.stdout


def test_a_deployment_checks_the_runs_that_wait_since_the_version_before(home: Path, tmp_path: Path) -> None:
    def refunds(view: RequestView) -> Turn:
        name = next(name for name in view.tools if name in ("refund", "pay_back"))
        return answer(view.last) if view.turn > 1 else Turn(calls=[call(name, order=17, amount=30.0)])

    folder = tmp_path / "deployment"
    shutil.copytree(EXAMPLES / "deployment", folder)
    with serve_script(refunds, by="question", record=False) as server:
        variables = {**environment(server.base_url), "CLOSEOUT_HOME": str(home)}

        def python(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, *arguments]
            return subprocess.run(
                command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False
            )

        waiting = python("refunds_october.py", "Refund 30 EUR for order 17")
        run_id = waiting.stdout.split()[-1]
        assert waiting.stdout.startswith("waiting: closeout approve "), waiting.stderr

        check = (folder / "deploy.yml").read_text().partition("- run: closeout agent upgrade ")[2].splitlines()[0]
        asked = python("-m", "closeout", "agent", "upgrade", *check.split())
        assert asked.returncode == 0, asked.stdout + asked.stderr
        assert "1  continue with a difference" in asked.stdout

        careless = (folder / "refunds.py").read_text().replace(', replaces="refund"', "")
        (folder / "careless.py").write_text(careless)
        refused = python("-m", "closeout", "agent", "upgrade", "--check", "careless:agent")
        assert (refused.returncode, "@tool(replaces='refund')" in refused.stdout) == (1, True), refused.stderr

        assert "Paid back 30.0 EUR for order 17." in python("refunds.py", run_id).stdout
