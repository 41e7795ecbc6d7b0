"""The commands run, runs, resume, replay, tools, config and doctor without errors."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

from cli_process import closeout, here, on_terminal
from closeout import Agent
from closeout.cli.main import MOVED
from closeout.cli.options import RunOptions, make_agent
from closeout.messages import ToolCall
from closeout.testing import ScriptedClient, Turn, answer, say, serve_script
from closeout.testing.scripted_server import ScriptedServer

SUM = ToolCall("calculate", {"expression": "17*2340/100"})
AGAIN = ToolCall("calculate", {"expression": "2340*0.17"})
SCRIPT = [
    Turn("I compute it first.", (SUM,)),
    Turn(
        "两个一起，为了确定。", (ToolCall("calculate", {"expression": "2340*0.17"}), ToolCall("weigh", {"thing": "it"}))
    ),
    Turn("I know it now.", answer="397.8"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with serve_script(SCRIPT, by="question", record=False) as scripted:
        yield scripted


def asked(server: ScriptedServer, question: str, *options: str) -> list[str]:
    return ["run", question, "-m", "openai:scripted", "--base-url", server.base_url, *options]


def run_id_in(text: str) -> str:
    found = re.search(r"closeout runs (\S+)", text)
    assert found
    return found[1]


# ------------------------------------------------------------------------------------------------- run


def test_the_answer_goes_to_stdout_and_the_progress_to_stderr(server: ScriptedServer) -> None:
    done = closeout(*asked(server, "What is 17 % of 2,340?"))
    assert (done.code, done.out) == (0, "397.8\n"), done.err
    shown = re.sub(r"· (\d+ ms|[\d.]+ s)\b", "· T", done.err).splitlines()
    assert shown[0].startswith("turn 1 · T · ")
    assert shown[1:4] == ["  I compute it first.", '  → calculate(expression="17*2340/100") · T', "    397.8"]
    assert shown[5:8] == ["  两个一起，为了确定。", '  → calculate(expression="2340*0.17") · T', "    397.8"]
    assert shown[8] == '  ✗ weigh(thing="it") · not run'
    assert 'No tool is named "weigh"' in shown[9]
    assert shown[10].startswith("turn 3 (answer) · T · ")
    assert re.match(r"answered · 3 turns · 3 requests · [\d,]+ tokens in \([\d,]+ cached\), \d+ out · ", shown[-2])
    assert "\x1b" not in done.err


def test_quiet_leaves_only_the_answer_and_a_dash_reads_the_question(server: ScriptedServer) -> None:
    done = closeout(*asked(server, "-", "--quiet"), stdin="中国的首都是哪里？\n".encode())
    assert (done.code, done.out, done.err) == (0, "397.8\n", "")
    assert here("runs", "--json").json[0]["task"] == "中国的首都是哪里？"


def test_json_prints_one_object(server: ScriptedServer) -> None:
    done = here(*asked(server, "As JSON?", "--json", "-q"))
    assert done.code == 0
    assert done.json["answer"] == "397.8"
    assert done.json["usage"]["requests"] == 3


def test_a_greeting_costs_one_request_and_an_option_asks_for_a_form(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "required": ["city"]}', "utf-8")
    with serve_script([say("Hello! How can I help?")], by="question") as polite:
        done = here(*asked(polite, "Hello", "--json", "-q"))
        assert (done.code, done.json["answer"], done.json["stop_reason"]) == (0, "Hello! How can I help?", "answered")
        assert len(polite.requests) == 1
    with serve_script([say("It is in Ottawa."), say('{"city": "Ottawa"}')], by="question", record=False) as model:
        done = here(*asked(model, "Where?", "--json", "-q", "--answer", f"json:{schema}"))
        assert (done.code, done.json["value"], done.json["rollbacks"]) == (0, {"city": "Ottawa"}, 1)
        replayed = here("runs", "replay", done.json["run_id"])
        assert (replayed.code, replayed.out) == (0, '{"city":"Ottawa"}\n')
    done = here(*asked(model, "Where?", "--answer", "nubmer"))
    assert done.code == 2
    assert "Unknown answer 'nubmer'. Use text, boxed, number" in done.err


def test_no_answer_is_exit_code_1_and_says_where_to_look() -> None:
    never_ending = [Turn("More.", (ToolCall("calculate", {"expression": f"{n}+1"}),)) for n in range(20)]
    with serve_script(never_ending, by="question", record=False) as restless:
        done = here(*asked(restless, "Ever?", "-C", "agent.max_turns=2", "-q"))
    assert (done.code, done.out) == (1, "")
    assert re.match(r".* To see what it learned: closeout runs \S+$", done.sentence)
    shown = here("runs", run_id_in(done.err)).out
    assert "— no answer (max_turns); what it learned:" in shown
    assert "calculate(1+1): 2" in shown


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_on_a_terminal_there_is_a_status_line_and_nothing_is_wider_than_the_window() -> None:
    columns = 60
    thought = "I think about it at length, 慢慢地想一想, and then some more. " * 6
    sum_of_many = ToolCall("calculate", {"expression": "+".join(map(str, range(99)))})
    script = [Turn(thought, (sum_of_many,)), Turn("Done.", answer="4851")]
    with serve_script(script, record=False, pieces=(40,), pause=0.03) as slow:
        code, screen = on_terminal(*asked(slow, "Sum?"), columns=columns)
    assert code == 0
    plain = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", screen)
    lines = [part for line in plain.splitlines() for part in line.split("\r")]
    assert any(re.search(r"turn 1 · thinking · \d+ s", line) for line in lines)
    assert max(map(cell_len, lines)) <= columns
    assert any(re.search(r"… · (\d+ ms|[\d.]+ s)$", line) for line in lines)
    assert lines[-1] == "4851"
    assert "\x1b[?25h" in screen  # the cursor is back


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_an_answer_cannot_send_escape_sequences_to_a_terminal() -> None:
    script = [Turn("\x1b]0;owned\x07Red: \x1b[31m!", answer="4\x1b[31m2")]
    with serve_script(script, record=False) as sly:
        code, screen = on_terminal(*asked(sly, "Colour?"), columns=80, env={"NO_COLOR": "1"})
        piped = here(*asked(sly, "Colour?", "-q"))
    assert code == 0
    assert "\x1b[31m" not in screen
    assert "\x1b]0;" not in screen
    assert "4[31m2" in screen
    assert piped.out == "4\x1b[31m2\n"  # a program gets what the model said
    shown = here("runs", here("runs", "--json").json[0]["run_id"]).out
    assert "answer: 4[31m2" in shown
    assert "\x1b" not in shown


def test_a_servers_error_cannot_send_escape_sequences_to_a_terminal(tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text("import sys\nsys.exit('\\x1b]52;c;aGk=\\x07no \\x1b[2Jkey')\n")
    told = here("agent", "tools", "--mcp", f"{sys.executable} {server}")
    assert "no [2Jkey" in told.err
    assert "\x1b" not in told.err
    assert "\x07" not in told.err


# ------------------------------------------------------------------------------------------------- runs


def test_runs_are_listed_newest_first_and_whole_in_a_pipe(server: ScriptedServer) -> None:
    assert here("runs").out.startswith("No runs yet. Try: closeout run")
    for question in ("First, a question that is a good deal longer than most questions are, is it not?", "第二个？"):
        here(*asked(server, question, "-q"))
    header, newest, oldest = here("runs").out.splitlines()
    assert header.split() == ["run", "when", "status", "model", "task", "answer"]
    assert newest.split()[3:] == ["answered", "openai:scripted", "第二个？", "397.8"]
    assert "a good deal longer than most questions are, is it not?" in oldest
    latest = here("runs", "--limit", "1")
    assert (len(latest.out.splitlines()), latest.err) == (2, "The latest 1. More: closeout runs --limit 10\n")
    assert here("runs", "--limit", "2").err == ""
    as_json = here("runs", "--json", "--limit", "1")
    assert ([record["answer"] for record in as_json.json], as_json.err) == (["397.8"], "")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("columns", [50, 200])  # an id has 34
def test_the_list_of_runs_fits_the_terminal_and_keeps_ids_whole(server: ScriptedServer, columns: int) -> None:
    question = "这是一个很长的问题，它比大多数问题都长得多，" * 8
    run_id = here(*asked(server, question, "-q", "--json")).json["run_id"]
    _, screen = on_terminal("runs", columns=columns, env={"NO_COLOR": "1"})
    header, row = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", screen).splitlines()
    assert row.startswith(run_id)
    assert "answered" in row
    assert max(cell_len(header), cell_len(row)) <= columns  # id and status are never cut
    assert "这" in row
    assert ("model" in header) == (columns == 200)


def test_one_run_shows_turns_calls_and_how_much_of_each_request_was_the_same(server: ScriptedServer) -> None:
    run_id = run_id_in(here(*asked(server, "Look at me?")).err)
    shown = here("runs", run_id).out.splitlines()
    assert shown[0] == "Look at me?"
    requests = [line.split() for line in shown if line.startswith("main ")]
    assert [(line[1], line[2]) for line in requests] == [("1", "act"), ("2", "act"), ("3", "act")]
    assert [line[6].endswith("%") for line in requests] == [False, True, True]
    assert shown[-2].startswith("answered · 3 turns · 2 tool calls · 1 attempt · 0 rollbacks · 0 repairs · 3 requests")
    assert shown[-1] == "answer: 397.8"
    record = here("runs", run_id, "--json").json
    assert (record["turns"], record["tool_calls"], record["rollbacks"]) == (3, 2, 0)
    first, second, third = record["requests"]
    assert first["shared"] == 0
    assert second["shared"] == first["characters"]
    assert third["shared"] == second["characters"]
    assert record["events"][0]["type"] == "RunStarted"


def test_the_thought_of_a_turn_is_shown_before_its_calls(server: ScriptedServer) -> None:
    live = here(*asked(server, "In order?")).err
    later = here("runs", run_id_in(live)).out
    for text in (live, later):
        assert text.index("I compute it first.") < text.index("17*2340/100") < text.index("两个一起")


# ------------------------------------------------------------------------------------------------ the rest


def test_a_replay_needs_neither_the_server_nor_a_key() -> None:
    with serve_script(SCRIPT, record=False) as gone:
        run_id = run_id_in(here(*asked(gone, "Once more?")).err)
    done = closeout("runs", "replay", run_id, env={"OPENAI_API_KEY": ""})
    assert (done.code, done.out, done.err) == (0, "397.8\n", "The replay follows the record to its end.\n")
    assert here("runs", "replay", run_id, "--json").json["departure"] == ""


def test_tools_lists_what_an_agent_would_have(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A")
    done = here(
        "agent",
        "tools",
        "--docs",
        str(tmp_path),
        "--tool",
        "run_python",
        "--config",
        "tools.python.isolation=none",
        "--json",
    )
    assert done.code == 0
    names = [tool["name"] for tool in done.json["tools"]]
    assert names == ["calculate", "read_document", "read_result", "run_program", "run_python", "search_documents"]
    assert done.json["problems"] == []


@pytest.mark.parametrize(
    ("model", "plain"),
    [
        ("local", True),
        ("local:small", True),
        ("openai:gpt-5", False),
        ("openai:qwen2.5:1.5b", True),
        ("openai:qwen2.5:7b", False),
    ],
)
def test_a_small_model_gets_the_simple_search(tmp_path: Path, model: str, plain: bool) -> None:
    options = RunOptions(model=model, docs=str(tmp_path), base_url="http://localhost:9/v1")
    (search,) = (tool for tool in make_agent(options).plan().offered_tools() if tool.name == "search_documents")
    assert ("limit" not in search.parameters["properties"]) == plain


def test_a_server_that_does_not_start_is_reported_and_the_others_are_listed() -> None:
    done = here("agent", "tools", "--mcp", f"{sys.executable} -c pass")
    assert done.code == 2
    assert "calculate(expression)" in done.out
    assert "could not be started" in done.sentence


def test_config_shows_every_value_and_never_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ("-C", "agent.max_turns=7", "-C", "llm.api_key=very-secret")
    monkeypatch.setenv("CLOSEOUT_LLM__TEMPERATURE", "0.5")
    done = here("config", *settings)
    assert "agent.main_agent.max_turns = 7  # override agent.max_turns\n" in done.out
    assert "llm.temperature = 0.5  # CLOSEOUT_LLM__TEMPERATURE\n" in done.out
    assert "llm.api_key = (set)  # override llm.api_key\n" in done.out
    assert "llm.top_p = null\n" in done.out
    as_json = here("config", *settings, "--json")
    assert as_json.json["llm"]["api_key"] == "set"
    assert "very-secret" not in done.out + as_json.out


def test_config_shows_prices_and_explains_their_form() -> None:
    assert 'llm.prices = {"m-1.5": [0.5, 2.0]}' in here("config", "-C", "llm.prices.m-1.5=[0.5, 2]").out
    assert here("config", "-C", "llm.prices={m: [1, 2]}", "--json").json["llm"]["prices"] == {"m": [1.0, 2.0]}
    wrong = here("config", "-C", "llm.prices.m=3")
    assert wrong.code == 2
    assert "{my-model: [0.5, 2.0, 0.05]}" in wrong.sentence


def test_a_run_on_the_command_line_costs_what_the_settings_say(server: ScriptedServer) -> None:
    done = here(*asked(server, "What does it cost?", "-C", "llm.prices={scripted: [1000, 0]}", "--json", "-q"))
    usage = done.json["usage"]
    assert usage["cost_usd"] == pytest.approx(usage["input_tokens"] / 1000)


def test_config_shows_mcp_servers_without_their_secrets(tmp_path: Path) -> None:
    file = tmp_path / "servers.yaml"
    file.write_text(
        "tools:\n  mcp_servers:\n"
        "    shop: {command: node, args: [shop.js], env: {KEY: very-secret}}\n"
        "    web: {url: https://example.org/mcp, headers: {Authorization: very-secret}}\n"
        "    login: {url: 'https://me:very-secret@example.org/mcp'}\n"
        "    option: {command: node, args: [--token=very-secret]}\n"
    )
    plain, as_json = here("config", "-C", str(file)), here("config", "-C", str(file), "--json")
    shown = as_json.json["tools"]["mcp_servers"]
    assert shown["shop"] == {"command": "node", "args": ["shop.js"], "env": {"KEY": "***"}, "cwd": str(tmp_path)}
    assert shown["web"]["headers"] == {"Authorization": "***"}
    assert '"env": {"KEY": "***"}' in plain.out
    assert "very-secret" not in plain.out + as_json.out


def test_an_api_key_in_a_setting_is_not_stored_with_the_run(server: ScriptedServer, home: Path) -> None:
    here(*asked(server, "Secret?", "-C", "llm.api_key=very-secret", "-q"))
    here(*asked(server, "Secret?", "-C", "llm={api_key: very-secret, max_tokens: 99}", "-q"))
    assert all(b"very-secret" not in file.read_bytes() for file in home.iterdir())


@pytest.mark.parametrize("name", ["scripted", "scripted.gguf"])
def test_doctor_tries_the_model_and_reports_problems(server: ScriptedServer, name: str) -> None:
    well = here("doctor", "-m", f"openai:{name}", "--base-url", server.base_url)
    assert well.code == 0
    assert f"✓ model: openai:{name} answers" in well.out
    ill = here("doctor", "-m", "openai:scripted", "--base-url", "http://127.0.0.1:9/v1", "--json")
    assert ill.code == 2
    (problem,) = [check for check in ill.json if check["level"] == "problem"]
    assert problem["name"] == "model"


def test_help_and_version_load_nothing_heavy() -> None:
    assert closeout("--version").out.startswith("closeout ")
    code = "import sys, closeout.cli.main; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"aiohttp", "yaml", "jinja2", "sqlite3", "closeout.agent", "closeout.config"}.intersection(loaded)


def test_an_interrupt_during_startup_prints_no_traceback() -> None:
    code = """
import runpy, sys

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
runpy.run_module("closeout", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "closeout: stopped.\n")


def test_a_run_that_nobody_executes_is_cancelled_and_one_that_has_ended_stays() -> None:
    agent = Agent(ScriptedClient([answer("42")]))
    run_id = asyncio.run(agent.submit("Say 42."))
    assert "not begun" in here("runs").out
    done = here("runs", "cancel", run_id)
    assert (done.code, done.err) == (0, f"Cancelled. To continue the run after all: closeout resume {run_id}.\n")
    assert here("runs", "cancel", run_id, "--json").json == {"run_id": run_id, "status": "cancelled"}
    assert agent.resume_sync(run_id).answer == "42"
    assert "is answered and stays as it is" in here("runs", "cancel", run_id).err
    assert "No run nothing in" in here("runs", "cancel", "nothing").err


def test_nine_verbs_and_groups_are_at_the_top_and_earlier_names_say_the_new_ones() -> None:
    listed = re.findall(r"^  (\S+)  ", here("--help").out.partition("Commands:")[2], re.MULTILINE)
    verbs = ["run", "research", "chat", "resume", "approve", "view", "serve", "work", "doctor"]
    assert sorted(listed) == sorted([*verbs, "runs", "agent", "eval", "data", "approvals", "mcp", "models", "config"])
    for name, group in MOVED.items():
        done = here(name, "--help")
        assert done.code == 0, name
        assert done.err == f"closeout: `closeout {name}` is now `closeout {group} {name}`.\n"
        assert f"Usage: closeout {group} {name}" in done.out
    assert here("runs", "usage", "--json").json == []
    assert here("runs", "--json").json == here("runs", "list", "--json").json == []
    groups = [(), ("runs",), ("agent",), ("eval",), ("data",), ("approvals",), ("mcp",), ("models",)]
    shown = "".join(here(*group, "--help").out.partition("Commands:")[2] for group in groups)
    assert re.findall(r".*\.\.\.$", shown, re.MULTILINE) == [], "the summary of a command is shown whole"
