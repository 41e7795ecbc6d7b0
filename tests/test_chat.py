"""`closeout chat`, `run -c` and `-s`: a conversation on the command line, streamed, stopped and continued."""

from __future__ import annotations

import asyncio
import os
import re
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from cli_process import COMMAND, Done, environment, here
from closeout import Agent
from closeout.cli.chat_templates import ChatTemplates
from closeout.journal.store import open_store
from closeout.testing import Misbehaviour, RequestView, ScriptedClient, Turn, call, say, serve_script
from closeout.testing.scripted_server import ScriptedServer
from serving import written_model

SUM = call("calculate", expression="17*2340/100")


def talk(view: RequestView) -> Any:
    """Repeat what the user said so far."""
    said = [message["content"] for message in view.messages if message.get("role") == "user"]
    if "compute" in said[-1] and "397.8" not in view.last:
        return Turn("I compute it first.", (SUM,))
    if "Fail" in said[-1]:
        return ConnectionError("no server")
    return say(f"{' / '.join(said)} \\boxed{{{len(said)}}}")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serve_script(talk, by=lambda view: "") as scripted:
        yield scripted


def chat(server: ScriptedServer, *lines: str, options: tuple[str, ...] = ()) -> Done:
    model = ("-m", "openai:scripted", "--base-url", server.base_url)
    return here("chat", *model, "-C", "llm.max_retries=0", *options, stdin="\n".join(lines).encode())


def test_each_line_of_a_pipe_is_a_message(server: ScriptedServer) -> None:
    done = chat(server, "Hello", "", "It will\\", "rain", "你好")
    assert done.code == 0
    assert done.out.splitlines() == [
        "Hello \\boxed{1}",
        "Hello / It will",
        "rain \\boxed{2}",
        "Hello / It will",
        "rain / 你好 \\boxed{3}",
    ]


def test_calls_are_shown_and_a_failed_message_is_left_out(server: ScriptedServer) -> None:
    done = chat(server, "please compute", "Fail", "Again")
    assert done.out.splitlines()[-1] == "please compute / Again \\boxed{2}"
    assert '  → calculate(expression="17*2340/100")' in done.err
    assert "turn 1" not in done.err
    assert re.search(r"closeout: .* /retry tries again\.", done.err)
    assert chat(server, "Fail").code == 3, "of a pipe, the last reply decides"
    assert chat(server, "Hello", options=("-q",)).err == ""


def test_input_that_is_no_text_is_read_all_the_same(server: ScriptedServer) -> None:
    model = ("-m", "openai:scripted", "--base-url", server.base_url, "-q")
    assert here("chat", *model, stdin=b"caf\xe9").out == "caf\ufffd \\boxed{1}\n"
    assert here("chat", *model, stdin=b"") == Done(0, "", "")


def test_commands(server: ScriptedServer) -> None:
    done = chat(server, "/help", "Hello", "/history", "/new", "Alone", "/retry", "/exit", "never read")
    assert "/history   show the conversation" in done.err
    assert "> Hello\nHello \\boxed{1}\n" in done.err
    assert done.out.splitlines() == ["Hello \\boxed{1}", "Alone \\boxed{1}"]
    assert "there is nothing to resume" in done.err
    assert chat(server, "/usr/bin is a folder").out == "/usr/bin is a folder \\boxed{1}\n"


def test_the_last_conversation_continues_with_its_options(server: ScriptedServer) -> None:
    chat(server, "Hello", options=("-s", "Speak like a pirate.", "-q"))
    assert here("chat", "-c", "-q", stdin=b"Again").out == "Hello / Again \\boxed{2}\n"
    assert here("run", "More", "-c", "-q").out == "3\n"
    last = server.requests[-1].json["messages"]
    assert "Speak like a pirate." in last[0]["content"]
    assert here("run", "More", "-c", "-q", "-s", "Speak like a judge.").out == "4\n"
    assert "Speak like a judge." in server.requests[-1].json["messages"][0]["content"]


def test_a_single_run_is_continued_too(server: ScriptedServer, home: Path) -> None:
    to = ("-m", "openai:scripted", "--base-url", server.base_url)
    run_id = here("run", "First", *to, "--json", "-q").json["run_id"]
    assert here("run", "Second", "-c", "-q").out == "2\n"
    assert here("run", "Third", "-c", "-q").out == "3\n"
    assert [record.run_id for record in open_store(home).runs()] == [f"{run_id}.2", f"{run_id}.1", run_id]
    assert (
        chat(server, "Fourth", options=("--session", run_id, "-q")).out
        == "First / Second / Third / Fourth \\boxed{4}\n"
    )


def test_a_conversation_that_is_continued_takes_new_files(server: ScriptedServer, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("The canal opened in 1832.", "utf-8")
    here("run", "First", "-m", "openai:scripted", "--base-url", server.base_url, "-q")
    assert here("run", "Second", "-c", "-q", "-f", str(notes)).out == "2\n"
    assert "opened in 1832" in str(server.requests[-1].json["messages"])


def test_a_session_has_the_name_that_it_is_given(server: ScriptedServer, home: Path) -> None:
    chat(server, "Hello", options=("--session", "mine", "-q"))
    assert chat(server, "Again", options=("--session", "mine", "-q")).out == "Hello / Again \\boxed{2}\n"
    assert {record.run_id for record in open_store(home).runs()} == {"mine.1", "mine.2"}


def test_without_a_conversation_there_is_nothing_to_continue() -> None:
    for command in (("run", "Q", "-c"), ("chat", "-c")):
        done = here(*command)
        assert done.code == 2
        assert "There is no conversation to continue." in done.sentence


def test_a_call_that_waits_for_a_person_says_how_to_decide(home: Path) -> None:
    ask = call("ask_user", question="Which colour?")
    with serve_script([ask, say("Red it is.")], by="question", record=False) as server:
        done = chat(server, "Paint it.", options=("--tool", "ask_user"))
    (run_id,) = [record.run_id for record in open_store(home).runs()]
    assert done.code == 4
    assert f'closeout approve {run_id} r1 --answer "…"' in done.err.replace("\n", " ")


# ------------------------------------------------------------------------------------------------ on a terminal


class Terminal:
    """`closeout` on a terminal of so many columns."""

    def __init__(self, *arguments: str, columns: int = 80) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self._side, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        env = environment({"TERM": "xterm-256color", "NO_COLOR": "1", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"})
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=other, stdout=other, stderr=other, env=env, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(other)
        self.shown = ""
        self._bytes = b""

    def send(self, keys: str) -> None:
        os.write(self._side, keys.encode())

    def send_until(self, keys: str, text: str) -> None:
        """Send keys until the screen was sent the text. Ctrl-C just as `input()` begins to wait is lost."""
        deadline = time.monotonic() + 100
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.shown}"
            self.send(keys)
            while text not in self.shown and select.select([self._side], [], [], 1)[0]:
                assert self._read(), f"{text!r} did not come: {self.shown}"

    def wait_for(self, text: str, times: int = 1, *, after: str = "") -> None:
        """Read until the screen was sent the text so many times, after the first occurrence of another text."""
        deadline = time.monotonic() + 100
        while (self.shown.partition(after)[2] if after else self.shown).count(text) < times:
            ready, _, _ = select.select([self._side], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{text!r} did not come: {self.shown}"
            assert self._read(), f"{text!r} did not come: {self.shown}"

    def _read(self) -> bool:
        try:
            piece = os.read(self._side, 65536)
        except OSError:  # the other side is gone
            return False
        self._bytes += piece
        self.shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._bytes.decode(errors="replace")).replace("\r", "\n")
        return bool(piece)

    def finish(self) -> int:
        """Read to the end and return the exit code."""
        while self._read():
            pass
        return self.process.wait(timeout=100)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._side)
        self.process.kill()
        self.process.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_ctrl_c_stops_the_reply_and_not_the_program(home: Path) -> None:
    hang = Misbehaviour("hang", at=2)
    with (
        serve_script(talk, by=lambda view: "", misbehave=hang) as server,
        Terminal("chat", "-m", "openai:scripted", "--base-url", server.base_url, columns=40) as screen,
    ):
        screen.wait_for("> ")
        screen.send("你好\n")
        screen.wait_for("tokens in")
        screen.send("Wait\n")
        screen.wait_for("thinking", screen.shown.count("thinking") + 2)
        while len(server.requests) < 2:
            time.sleep(0.01)
        screen.send("\x03")
        screen.wait_for("Stopped. /retry continues.")
        screen.send("/retry\n")
        screen.wait_for("> ", after="你好 / Wait \\boxed{2}")
        screen.send_until("\x03", "Ctrl-D or /exit leaves.\n\n> ")
        screen.send("\x04")
        screen.wait_for("To continue:")
        assert screen.finish() == 0
    assert [record.status for record in open_store(home).runs()] == ["answered", "answered"]
    assert max(cell_len(line) for line in screen.shown.splitlines()) <= 40


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
async def test_an_answer_is_shown_while_it_is_written() -> None:
    async with written_model() as model:
        with Terminal("run", "Why?", "-m", "openai:scripted", "--base-url", model.base_url, columns=40) as screen:
            reply = await model.asked()
            reply.text("这是一个很长的回答。" * 8)
            await asyncio.to_thread(screen.wait_for, "这是一个很长的回答。这是一个")
            reply.text("\n\nThe second paragraph. \\boxed{42}")
            reply.end()
            assert await asyncio.to_thread(screen.finish) == 0
    assert screen.shown.split()[-1] == "42"


def test_task_templates_and_prompts_of_servers_are_filled_in(server: ScriptedServer, tmp_path: Path) -> None:
    settings = tmp_path / "agent.yaml"
    settings.write_text("agent: {task_templates: {hail: 'Hail {{ who }}{{ mark | default(\"!\") }}'}}", "utf-8")
    everything = shlex.join([sys.executable, str(Path(__file__).parent / "mcp_servers" / "everything.py")])
    options = ("--config", str(settings), "--mcp", everything)
    lines = ("/prompts", "/hail who='Ada L'", "/hail", "/everything:plan city=罗马", "/else is a message")
    done = chat(server, *lines, options=options)
    assert "/hail who=… [mark=…]\n/everything:plan city=… [day=…]  Plan a day\n" in done.err
    assert "hail needs who=… as well." in done.err
    assert done.out.splitlines()[-1] == "Hail Ada L! / Plan Monday in 罗马. / /else is a message \\boxed{3}"


def test_completion_of_commands_and_arguments_asks_servers(tmp_path: Path) -> None:
    config = {
        "agent": {"task_templates": {"go": {"text": "Go to {{ city }}.", "arguments": {"city": ["Rome", "New York"]}}}}
    }
    everything = [sys.executable, str(Path(__file__).parent / "mcp_servers" / "everything.py")]
    agent = Agent(ScriptedClient([]), config=config, mcp_servers=[shlex.join(everything)], home=tmp_path)
    with asyncio.Runner() as runner:
        runner.run(agent.__aenter__())
        try:
            templates = ChatTemplates(agent, runner.run)
            assert templates.completions("/g", ["/go-on"]) == ["/go-on", "/go"]
            assert templates.completions("/go ", ()) == ["city="]
            assert templates.completions("/go city=N", ()) == ["city='New York'"]
            assert templates.completions("/go city=R", ()) == ["city=Rome"]
            assert templates.completions("/every", ()) == ["/everything:plan"]
            assert templates.completions("/everything:plan d", ()) == ["day="]
            assert templates.completions("/everything:plan day=Tu", ()) == ["day=Tuesday"]
            assert templates.completions("/no x", ()) == templates.completions("Hello", ()) == []
        finally:
            runner.run(agent.__aexit__())
