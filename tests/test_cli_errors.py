"""Whatever goes wrong on the command line is one sentence with the next step and the right exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import typer

from cli_process import COMMAND, Done, closeout, environment, here, start, stopped, wait_for
from closeout import Agent
from closeout.cli.exits import guarded
from closeout.cli.terminal import print_json
from closeout.errors import AuthenticationFailed, BadRequest, ModelError, ServerFailed
from closeout.journal.store import close_stores
from closeout.messages import ToolCall
from closeout.testing import RequestView, Turn, serve_script
from closeout.testing.misbehaviour import Misbehaviour
from closeout.testing.scripted_server import ScriptedServer
from journal_file import store_events, stored_events

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")

SUM = Turn("I compute it.", (ToolCall("calculate", {"expression": "6*7"}),))
SCRIPT = [SUM, Turn("I know it now.", answer="42")]
# Its tool `silent` never answers.
BUSY = Path(__file__).parent / "mcp_servers" / "busy.py"


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with serve_script(SCRIPT, by="question", record=False) as scripted:
        yield scripted


def to(server: ScriptedServer) -> tuple[str, ...]:
    return "-m", "openai:scripted", "--base-url", server.base_url


# ------------------------------------------------------------------------------------------------- what was typed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", ""], r"The question is empty\. Try: closeout run"),
        (["run", "  \n"], r"The question is empty"),
        (
            ["run", "Q", "-m", "gpt-5"],
            r"'gpt-5' is not a model name\. Did you mean 'openai:gpt-5'\? Use one of: openai:NAME",
        ),
        (["run", "Q", "-m", "openai:x", "--base-url", "nowhere"], r"'nowhere\S*' is not the address of a server"),
        (["run", "Q", "-m", "local:huge"], r"'local:huge' is not an embedded model\. Use one of local"),
        (["run", "Q", "-m", "local:none.gguf"], r"No such model file: none\.gguf"),
        (
            ["run", "Q", "-C", "agent.max_rolbacks=3"],
            r"Unknown setting 'agent\.max_rolbacks'\. Did you mean",
        ),
        (["run", "Q", "-C", "none.yaml"], r"Cannot read the configuration file none\.yaml: No such file"),
        (["run", "Q", "--docs", "none"], r"--docs none: no such folder"),
        (["run", "Q", "--mcp", "no-such-command --x"], r"--mcp: command not found: 'no-such-command'\. Install it"),
        (["run", "Q", "--mcp", "'unclosed"], r"cannot be split: No closing quotation"),
        (["run", "Q", "--tool", "rm"], r"Unknown built-in tool 'rm'\. --tool takes fetch_url, run_python, ask_user"),
        (["run", "Q", "--file", "none.pdf"], r"No file none\.pdf"),
        (["run", "Q", "--dialect", "klingon"], r"No dialect is called 'klingon'\. Choose one of code, cot_chat"),
        (["run", "Q", "-m", "anthropic:x", "--dialect", "cot_completion"], r"cot_completion needs a text completion"),
        (["run", "Q", "-m", ""], r"-m is empty\. Give it a value, or leave it out"),
        (["run", "Q", "-m", "openai:x", "--base-url", ""], r"--base-url is empty"),
        (["run", "Q", "--docs", " "], r"--docs is empty"),
        (["run", "Q", "--file", ""], r"--file is empty"),
        (
            ["run", "Q", "-m", "openai:x", "--base-url", "http://me:pw@host/v1"],
            r"address of host contains a login\. Use",
        ),
        (
            ["run", "Q", "-C", "prompts.cot_caht=x"],
            r"No prompt template is called 'cot_caht'\. Use one of code, code_completion, cot_chat,",
        ),
        (["run", "Q", "-C", "llm.extra_body={"], r"'llm\.extra_body' must be a mapping such as"),
        (["resume", "nobody"], r"No run nobody in \S+\. `closeout runs` lists them"),
        (["runs", "nobody"], r"No run nobody"),
        (["runs", "\udcff"], r"No run \S+ in"),
        (["runs", "replay", "nobody"], r"No run nobody"),
        (["agent", "tools", "--mcp", "no-such-command"], r"command not found"),
        (["config", "-C", "x=1"], r"Unknown setting 'x'"),
    ],
)
def test_a_wrong_argument_is_explained_with_exit_code_2(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "run" and "-m" not in arguments:
        arguments = [*arguments, "-m", "openai:x", "--base-url", "http://127.0.0.1:9/v1"]
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    done = here(*arguments)
    assert (done.code, done.out) == (2, "")
    assert re.search(sentence, done.sentence)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["run", "", "--json"], "UsageError"),
        (["run", "Q", "-C", "x=1", "--json"], "ConfigError"),
        (["runs", "nobody", "--json"], "RunNotFound"),
        (["runs", "replay", "nobody", "--json"], "RunNotFound"),
        (["models", "encode", "none.json", "--json"], "UsageError"),
    ],
)
def test_with_json_a_failure_prints_an_object_too(arguments: list[str], kind: str) -> None:
    done = here(*arguments)
    assert done.code == 2
    assert done.json == {"answer": None, "status": "failed", "error": done.sentence, "error_kind": kind}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--json"], r"(?i)Missing argument .?question"),
        (["runs", "--limit", "0", "--json"], r"Invalid value for .?--limit"),
        (["run", "Q", "--nosuch", "--json"], r"--nosuch"),
        (["run", "--json", "Q", "-m"], r"-m.? requires an argument"),
        (["nosuch", "--json"], r"nosuch"),
        (["--json"], r"--json"),
        (["models", "list", "--json", "more"], r"more"),
        (["runs", "--json", "--\udcff"], r"option"),
    ],
)
def test_with_json_a_parser_error_prints_an_object_too(arguments: list[str], sentence: str) -> None:
    done = here(*arguments)
    assert done.code == 2
    assert {**done.json, "error": ""} == {"answer": None, "status": "failed", "error": "", "error_kind": "UsageError"}
    assert re.search(sentence, done.json["error"])
    assert "Error: " in done.err


def test_without_json_and_after_two_dashes_no_object_is_printed() -> None:
    assert here("runs", "--limit", "0").out == ""
    assert here("run", "--nosuch", "--", "--json").out == ""
    assert closeout("runs", "--limit", "0", "--json").json["error_kind"] == "UsageError"


def test_json_writes_nan_and_infinity_as_names(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"cost": float("nan"), "most": [float("-inf"), 1.5]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "cost": "NaN",
        "most": ["-Infinity", 1.5],
    }


def test_a_limit_beyond_the_number_of_runs_lists_all(server: ScriptedServer) -> None:
    here("run", "Q", *to(server), "-q")
    assert len(here("runs", "--limit", "9" * 30, "--json").json) == 1


def test_two_runs_cannot_be_shown_at_once() -> None:
    refused = here("runs", "show", "one")
    assert refused.code == 2
    assert "shows one run at a time, got 2 arguments. Pass a RUN_ID alone." in refused.sentence


def test_usage_errors_of_the_parser_exit_with_2_too() -> None:
    for arguments in (["run"], ["run", "Q", "--nosuch"], ["nosuch"], ["runs", "--limit", "0"], []):
        assert here(*arguments).code == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"agent: [", r"is not valid YAML at line"),
        (b"\xff\xfe", r"is not UTF-8 text"),
        (b"- a list", r"must contain keys and values"),
        (b"llm: {temperature: hot}", r"Invalid value for 'llm\.temperature'"),
    ],
)
def test_a_bad_configuration_file_is_named(text: bytes, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(text)
    done = here("config", "-C", str(file))
    assert done.code == 2
    assert re.search(sentence, done.sentence)


def test_a_configuration_file_may_have_an_equals_sign_in_its_path(tmp_path: Path) -> None:
    file = tmp_path / "lr=3" / "settings.yaml"
    file.parent.mkdir()
    file.write_text("agent: {max_rollbacks: 7}")
    assert f"agent.max_rollbacks = 7  # {file}:1\n" in here("config", "-C", str(file)).out


def test_a_file_in_place_of_a_folder_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("text")
    done = here("run", "Q", "--docs", str(tmp_path / "a.md"), "-m", "openai:x")
    assert done.sentence.endswith("is a file. Give its folder, or the file itself with --file.")


def test_documents_without_their_reader_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ScriptedServer
) -> None:
    monkeypatch.setitem(sys.modules, "pypdf", None)
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4")
    needed = r"the reader for \.pdf is not installed: pip install 'closeout\[documents\]'"
    assert re.search(needed, here("run", "Q", "--docs", str(tmp_path), *to(server)).sentence)
    (tmp_path / "a.md").write_text("text")
    done = here("run", "Q", "--docs", str(tmp_path), *to(server))
    assert re.search(f"{needed}.*1 document of 2 cannot be searched", done.err)


@pytest.mark.parametrize("question", [b"", b"\n", b"what \xff is"])
def test_a_bad_question_on_stdin_is_explained(question: bytes, server: ScriptedServer) -> None:
    done = here("run", "-", *to(server), stdin=question)
    assert done.code == 2
    assert "The question" in done.sentence


# ------------------------------------------------------------------------------------------------- the server


def test_an_unreachable_server_exits_with_3_and_the_run_can_be_resumed_elsewhere(server: ScriptedServer) -> None:
    done = here("run", "Q1", "-m", "openai:scripted", "--base-url", "http://127.0.0.1:9/v1", "-C", "llm.max_retries=0")
    assert done.code == 3
    *_, last = done.err.splitlines()
    found = re.fullmatch(
        r"closeout: No connection to http://127\.0\.0\.1:9: .* Resume it later: closeout resume (\S+)", last
    )
    assert found
    again = here("resume", found[1], "--base-url", server.base_url, "-q")
    assert (again.code, again.out, again.err) == (0, "42\n", "")


def test_a_wrong_key_is_reported_once_in_the_servers_words() -> None:
    class Unauthorized(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = b'{"error": {"message": "Incorrect API key provided"}}'
            self.send_response(401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Unauthorized) as strict:
        Thread(target=strict.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{strict.server_port}/v1"
        done = here("run", "Q", "-m", "openai:x", "--base-url", address)
        strict.shutdown()
    assert done.code == 3
    assert done.err.count("Incorrect API key provided. Check the API key") == 1


def failing(error: ModelError) -> Callable[[RequestView], Turn]:
    """A script that works out the sum and then, for once, fails."""
    left = [error]

    def play(view: RequestView) -> Turn:
        if view.turn == 2 and left:
            raise left.pop()
        return SCRIPT[view.turn - 1]

    return play


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (AuthenticationFailed("Incorrect API key", status=401), "With the right key: closeout resume {}"),
        (ServerFailed("The engine died", status=500), "Resume it later: closeout resume {}"),
    ],
)
def test_a_failed_run_that_can_be_resumed_says_when_and_how(error: ModelError, step: str) -> None:
    with serve_script(failing(error), by="question", record=False) as scripted:
        done = here("run", "Q", *to(scripted), "-C", "llm.max_retries=0")
        last = done.err.splitlines()[-1]
        run_id = last.rpartition(" ")[2]
        assert done.code == 3
        assert last.endswith(f" {step.format(run_id)}")
        assert here("runs", run_id).out.splitlines()[-1] == step.format(run_id)
        again = here("resume", run_id, "-q")
    assert (again.code, again.out, again.err) == (0, "42\n", "")


def test_after_a_refused_request_resuming_is_not_suggested() -> None:
    def refuse(view: RequestView) -> Turn:
        if view.turn == 2:
            raise BadRequest("No images here", status=400)
        return SCRIPT[view.turn - 1]

    with serve_script(refuse, by="question", record=False) as scripted:
        done = here("run", "Q", *to(scripted))
    last = done.err.splitlines()[-1]
    found = re.search(
        r"would fail again\. To change something from an earlier turn: closeout runs fork (\S+) --at", last
    )
    assert found
    shown = here("runs", found[1])
    assert "resume" not in done.err + shown.out
    assert shown.out.splitlines()[-1] in last


def test_a_wrong_address_can_be_corrected_when_the_run_is_resumed(server: ScriptedServer) -> None:
    done = here("run", "Q2", "-m", "openai:scripted", "--base-url", f"{server.url}/api/v1")
    found = re.search(r"With the right address: (closeout resume \S+ --base-url) URL", done.err)
    assert found
    again = here(*found[1].split()[1:], server.base_url, "-q")
    assert (again.code, again.out) == (0, "42\n")


# ------------------------------------------------------------------------------------------------- the journal


def test_a_home_folder_that_cannot_be_made_is_reported(
    tmp_path: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    for command in (["runs"], ["run", "Q", *to(server)]):
        monkeypatch.setenv("CLOSEOUT_HOME", str(tmp_path / "file"))
        done = here(*command)
        assert done.code == 2
        assert done.sentence.endswith("Set CLOSEOUT_HOME to a folder you own.")


def test_a_damaged_journal_is_reported_and_not_modified(home: Path, server: ScriptedServer) -> None:
    home.mkdir()
    file = home / "journal.sqlite3"
    file.write_bytes(b"this is no journal " * 300)
    for command in (["runs"], ["run", "Q", *to(server)]):
        done = here(*command)
        assert done.code == 3
        assert re.search(r"journal\.sqlite3 is damaged .* Move it away to start with an empty journal", done.sentence)
    assert file.read_bytes().startswith(b"this is no journal")


def test_the_readable_part_of_a_damaged_run_is_shown(home: Path, server: ScriptedServer) -> None:
    run_id = here("run", "Damaged", *to(server), "--json", "-q").out.partition('"run_id": "')[2].partition('"')[0]
    close_stores()
    events = stored_events(home)
    assert any(kind == "ToolFinished" for _, kind, *_ in events.values())
    store_events(home, {place: b"\xff\x00" if event[1] == "ToolFinished" else event for place, event in events.items()})
    done = here("runs", run_id)
    assert done.code == 0
    assert "! Unreadable: this row of the journal cannot be read" in done.out
    assert "answer: 42" in done.out


@posix_only
def test_a_journal_that_cannot_grow_is_reported(server: ScriptedServer, home: Path) -> None:
    here("run", "Before", *to(server), "-q")
    close_stores()
    size = max(file.stat().st_size for file in home.iterdir())

    def limit() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20_000, size + 20_000))

    long = " ".join(map(str, range(10_000)))  # text that repeats itself would be given up before it fills the file
    script = [Turn(long, (ToolCall("calculate", {"expression": f"{n}+1"}),)) for n in range(9)]
    with serve_script([*script, Turn("End", answer="9")], record=False) as talkative:
        process = start("run", "Too much", *to(talkative), "-q", preexec_fn=limit)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert out == ""
    (line,) = err.splitlines()
    assert re.search(r"reported an I/O error .* Resume it later: closeout resume \S+$", line)
    records = here("runs", "--json").json
    assert [(record["task"], record["answer"]) for record in records][-1] == ("Before", "42")


def test_a_run_of_another_program_or_of_another_agent_is_not_resumed(server: ScriptedServer) -> None:
    made = Agent("openai:scripted", base_url=server.base_url, api_key="key").run_sync("In Python")
    done = here("resume", made.run_id)
    assert done.code == 2
    assert f'agent.resume("{made.run_id}")' in done.sentence
    run_id = here("run", "Mine", *to(server), "--json", "-q").out.partition('"run_id": "')[2].partition('"')[0]
    other = here("resume", run_id, "-m", "openai:other")
    assert other.code == 2
    assert "model: openai:scripted then, openai:other now" in other.sentence
    assert here("resume", run_id, "-m", "openai:other", "--force", "-q").out == "42\n"


# ------------------------------------------------------------------------------------------------- being stopped


@pytest.fixture
def hanging() -> Iterator[ScriptedServer]:
    """A server that hangs at each conversation's second turn, once."""
    with serve_script(SCRIPT, by="question", misbehave=Misbehaviour("hang", at=2)) as scripted:
        yield scripted


def until_it_hangs(home: Path, hanging: ScriptedServer) -> str:
    """Wait until the server has the request that it does not answer. Returns the id of the run."""
    run_id = wait_for(home, "ModelRequested", 2)
    deadline = time.monotonic() + 100
    while len(hanging.requests) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return run_id


@posix_only
@pytest.mark.parametrize(("number", "as_json"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_a_run_stopped_while_the_model_writes_can_be_resumed(
    number: int, as_json: bool, hanging: ScriptedServer, home: Path
) -> None:
    process = start("run", "Stopped", *to(hanging), *(["--json"] if as_json else []))
    run_id = until_it_hangs(home, hanging)
    done = stopped(process, [number])
    assert done.code == 128 + number
    if as_json:
        assert done.json == {"answer": None, "status": "cancelled", "run_id": run_id}
    else:
        assert done.out == ""
    assert done.err.splitlines()[-1] == (
        f"closeout: stopped. To see it: closeout runs {run_id}   To resume it: closeout resume {run_id}"
    )
    assert "Traceback" not in done.err
    shown = here("runs", run_id).out
    assert "cancelled · 1 turn" in shown
    again = here("resume", run_id, "--json", "-q").json
    assert (again["answer"], again["turns"]) == ("42", 2)
    assert again["usage"]["requests"] == 3, "the server has had the one that was broken off, too"


@posix_only
@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGINT] * 2, [signal.SIGKILL]])
def test_a_run_stopped_while_a_tool_runs_can_be_resumed(signals: Sequence[int], home: Path) -> None:
    script = [Turn("I wait.", (ToolCall("silent", {}),)), Turn("Enough.", answer="42")]
    with serve_script(script, by="question", record=False) as scripted:
        process = start("run", "Wait", *to(scripted), "--mcp", f"{sys.executable} {BUSY}", start_new_session=True)
        run_id = wait_for(home, "ToolStarted")
        done = stopped(process, signals)
        if signals[0] == signal.SIGINT:
            assert done.code == 130
            assert done.err.splitlines()[-1].startswith("closeout: stopped. To see it: ")
        else:
            assert here("runs", "--json").json[0]["status"] == "interrupted"
        assert "… silent() · not finished" in here("runs", run_id).out
        again = here("resume", run_id)
    assert (again.code, again.out) == (0, "42\n")
    assert "Interrupted: the program stopped while this call was running" in again.err


@pytest.mark.parametrize("as_json", [True, False])
def test_with_json_a_command_stopped_before_its_run_prints_an_object(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*, json: bool) -> int:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as end:
        guarded(command)(json=as_json)
    out, err = capsys.readouterr()
    assert (end.value.exit_code, err) == (130, "closeout: stopped.\n")
    assert (json.loads(out) if out else None) == (
        {"answer": None, "status": "cancelled", "run_id": None} if as_json else None
    )


@posix_only
def test_a_run_stopped_before_it_began_offers_no_resume(tmp_path: Path) -> None:
    mark = tmp_path / "up"
    slow_to_start = f"import pathlib, time; pathlib.Path({str(mark)!r}).touch(); time.sleep(60)"
    command = f'{sys.executable} -c "{slow_to_start}"'
    process = start("run", "Q", "-m", "openai:x", "--base-url", "http://127.0.0.1:9/v1", "--mcp", command)
    while not mark.exists():
        assert process.poll() is None
        time.sleep(0.02)
    done = stopped(process)
    assert (done.code, done.out) == (130, "")
    assert done.sentence == "stopped before the run began."


@posix_only
def test_a_run_in_progress_cannot_be_resumed(hanging: ScriptedServer, home: Path) -> None:
    process = start("run", "Led", *to(hanging), "-q")
    run_id = until_it_hangs(home, hanging)
    second = here("resume", run_id)
    assert second.code == 3
    assert "is being executed right now" in second.sentence
    assert "running" in here("runs").out
    assert stopped(process).code == 130


# ------------------------------------------------------------------------------------------------- where it is written


@posix_only
def test_a_closed_pipe_ends_a_listing_silently_but_never_a_run(server: ScriptedServer) -> None:
    here("run", "Pipe", *to(server), "-q")
    close_stores()
    listing = f"'{sys.executable}' -c 'import time; time.sleep(1)'"
    done = subprocess.run(
        ["bash", "-c", f'"$@" | {listing}; echo "${{PIPESTATUS[0]}}"', "-", *COMMAND, "runs"],
        capture_output=True, text=True, env=environment(), timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0\n", "")
    read, write = os.pipe()
    os.close(read)
    gone = subprocess.run([*COMMAND, "runs", "--json"], stdout=write, stderr=subprocess.PIPE, env=environment())
    assert (gone.returncode, gone.stderr) == (141, b"")
    unwatched = subprocess.run(
        [*COMMAND, "run", "Unwatched", *to(server)], stderr=write, stdout=subprocess.PIPE, env=environment()
    )
    os.close(write)
    assert (unwatched.returncode, unwatched.stdout) == (0, b"42\n")


@posix_only
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_answer_that_cannot_be_written_is_reported(server: ScriptedServer) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [*COMMAND, "run", "Full", *to(server), "-q"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment())
    assert done.returncode == 3
    assert done.stderr == "closeout: the output could not be written: No space left on device. Nothing else was lost.\n"


def test_an_output_that_cannot_encode_chinese_gets_escapes(server: ScriptedServer) -> None:
    latin = {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    assert here("run", "拉丁", *to(server), "-q").code == 0
    listed = closeout("runs", "--json", env=latin)
    assert listed.json[0]["task"] == "拉丁"


# ------------------------------------------------------------------------------------------------- faults of our own


def _break(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    def broken(*_: object, **__: object) -> int:
        raise KeyError("the wheel came off")

    monkeypatch.setattr("closeout.cli.runs.list_runs", broken)
    return here


def test_a_bug_is_one_sentence_that_says_how_to_report_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done = _break(monkeypatch)("runs")
    assert done.code == 3
    assert done.sentence == (
        "this is a bug in Closeout, not in your command: KeyError: 'the wheel came off'. "
        "Please report it with the output of CLOSEOUT_DEBUG=1."
    )


def test_with_debug_the_traceback_is_shown_and_the_exit_code_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOSEOUT_DEBUG", "1")
    done = _break(monkeypatch)("runs")
    assert done.code == 3
    assert "Traceback (most recent call last)" in done.err
    assert "the wheel came off" in done.err


def test_without_a_model_nothing_large_is_downloaded_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOSEOUT_MODELS", str(tmp_path / "none"))
    done = here("run", "How far is the Moon?")
    assert (done.code, done.out) == (2, "")
    assert done.sentence.startswith("No model is named, and the weights of the embedded one are not here.")
    assert "closeout models pull local" in done.sentence
    assert not (tmp_path / "none").exists()
