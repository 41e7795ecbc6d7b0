"""`run_python`: a script in a process of its own, with limits, without the user's keys and without network."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from closeout import Agent, File
from closeout.errors import ToolError
from closeout.testing import ScriptedClient, answer, call
from closeout.tools.builtin import command_tool, python_child, python_tool

# Without isolation, which not every machine has: test_python_isolation.py tests it.
run_python = python_tool(isolation="none")
limited = python_tool(memory_mb=512, isolation="none")


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("print(1914 - 1832)", "82"),
        ("x = 7\nx ** 2", "49"),  # the value of a last expression, as at the interactive prompt
        ("print('a'); None", "a"),
        ("import sys\nprint(sys.argv)\nsys.exit()", "['script.py']"),
        ("print('中文 😀 \\ud800')", "中文 😀 \\ud800"),
        ("import asyncio\nasyncio.run(asyncio.sleep(0))\nprint('slept')", "slept"),
        ("if __name__ == '__main__':\n    print('main')", "main"),
        ("pass", "The script printed nothing. Use print() to see a result."),
    ],
)
async def test_what_a_script_prints_is_the_result(code: str, printed: str) -> None:
    assert await run_python.call({"code": code}) == printed


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "print('so far')\n1/0",
            r"line 2, in <module>\n    1/0\n(.*\n)?ZeroDivisionError: division by zero\nIt had printed:\nso far",
        ),
        ("import json\njson.loads('{')", "JSONDecodeError"),
        ("def f(:", "SyntaxError"),
        ("import sys\nsys.exit(3)", "ended with code 3"),
        ("import os\nos.kill(os.getpid(), 11)", "signal 11"),
        ("input()", "EOFError"),
    ],
)
async def test_a_failing_script_tells_why_in_its_own_lines(code: str, says: str) -> None:
    with pytest.raises(ToolError, match=says) as caught:
        await run_python.call({"code": code})
    assert "python_child" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("while True: print('x' * 1000)", "more than 1 MB"),
        ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "more than 1 MB"),
        ("x = bytearray(10**9)", "MemoryError"),
        ("open('big', 'wb').write(bytes(200_000_000))", "File too large"),
    ],
)
async def test_memory_and_output_are_limited(code: str, says: str) -> None:
    with pytest.raises(ToolError, match=says):
        await limited.call({"code": code})


async def test_time_is_limited(tmp_path: Path, skip_time: Callable[[float], None]) -> None:
    ready = tmp_path / "ready"
    code = f"print('begun', flush=True)\nopen({str(ready)!r}, 'w')\nwhile True: pass"
    call = asyncio.create_task(python_tool(seconds=300, isolation="none").call({"code": code}))
    while not ready.exists():  # noqa: ASYNC110  # the sign comes from another process
        await asyncio.sleep(0.02)
    skip_time(301)
    with pytest.raises(ToolError, match=r"longer than 300 s.*\nIt had printed:\nbegun"):
        await call


async def test_long_output_is_cut_and_says_so() -> None:
    output = await run_python.call({"code": "print('x' * 50_000)"})
    assert output.startswith("x" * 20_000 + "\n… [cut: the whole output has 50,001 bytes]")


async def test_what_a_script_leaves_running_is_ended_with_it() -> None:
    code = "import os, time\nif not (child := os.fork()):\n    time.sleep(600)\nprint(child)"
    child = await run_python.call({"code": code})
    assert wait_until(lambda: not is_alive(int(child)))


async def test_a_cancelled_call_ends_the_script_and_clears_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ready = tmp_path / "ready"
    call = asyncio.create_task(run_python.call({"code": f"open({str(ready)!r}, 'w')\nimport time\ntime.sleep(60)"}))
    while not ready.exists():  # noqa: ASYNC110  # the sign comes from another process
        await asyncio.sleep(0.02)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert os.listdir(tmp_path) == ["ready"]  # noqa: PTH208  # nothing else waits for this loop


async def test_a_script_works_in_an_empty_folder_without_the_users_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    home = "os.path.relpath(os.environ['HOME'])"  # beside it: caches and scratch files are not left in the folder
    code = f"import os\nprint(os.listdir(), 'OPENAI_API_KEY' in os.environ, {home} == os.path.join('..', 'home'))"
    assert await run_python.call({"code": code}) == "[] False True"


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_there_is_no_network_unless_asked_for(listening: int) -> None:
    code = f"import socket\nsocket.create_connection(('127.0.0.1', {listening}), 2)\nprint('connected')"
    with pytest.raises(ToolError, match=r"unreachable|switched off|refused"):
        await run_python.call({"code": code})
    assert await python_tool(network=True, isolation="none").call({"code": code}) == "connected"


@pytest.mark.parametrize("use", ["connect", "sendto", "getaddrinfo"])
def test_where_the_kernel_gives_no_empty_network_python_refuses(listening: int, use: str) -> None:
    uses = {
        "connect": f"socket.create_connection(('127.0.0.1', {listening}))",
        "sendto": f"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {listening}))",
        "getaddrinfo": "socket.getaddrinfo('localhost', 80)",
    }
    code = (
        f"import sys, socket\nsys.path.insert(0, {str(Path(python_child.__file__).parent)!r})\nimport python_child\n"
        "python_child.enter_empty_network = lambda: False\npython_child.leave_network()\n"
        "import asyncio; asyncio.run(asyncio.sleep(0))\n"  # local pairs of sockets still work
        f"{uses[use]}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "the network is switched off in run_python" in done.stderr


PROGRAM = '''
import asyncio, sys
from closeout.tools.builtin import python_runner
python_runner.GRACE_SECONDS = float(sys.argv[1])
tool = python_runner.python_tool(seconds=60, isolation="none")
script = """
import os, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
Path(NOTE).write_text(f"{os.getpid()} {child.pid} {os.getcwd()}")
time.sleep(60)
""".replace("NOTE", repr(sys.argv[2]))
asyncio.run(tool.call({"code": script}))
'''
NEXT_PROGRAM = """
import asyncio
from closeout.tools.builtin.python_runner import python_tool
asyncio.run(python_tool(isolation="none").call({"code": "1"}))
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 100.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks processes up in /proc")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGSTOP])
def test_a_script_and_what_it_started_end_with_the_program(tmp_path: Path, ending: signal.Signals) -> None:
    """Stopped instead of ended, the program cannot end the script: its own clock does."""
    note, temporary = tmp_path / "note", tmp_path / "temporary"
    temporary.mkdir()
    grace = "-55" if ending == signal.SIGSTOP else "5"  # so that the script's own clock ends it after 5 s
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, grace, str(note)], env={**os.environ, "TMPDIR": str(temporary)}
    )
    try:
        assert wait_until(lambda: note.is_file() and len(note.read_text().split()) == 3)
        script, child, folder = note.read_text().split()
        program.send_signal(ending)
        assert wait_until(lambda: not is_alive(int(script)) and not is_alive(int(child)))
    finally:
        program.kill()
        program.wait()
    left = Path(folder).parent
    if ending != signal.SIGKILL or not left.is_dir():
        return
    old = time.time() - 3600
    in_use, lock = temporary / "closeout-python-in-use", os.open(temporary, os.O_RDONLY)
    in_use.mkdir()
    os.close(lock)
    lock = os.open(in_use, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    for each in (left, in_use):
        os.utime(each, (old, old))
    subprocess.run([sys.executable, "-c", NEXT_PROGRAM], env={**os.environ, "TMPDIR": str(temporary)}, check=True)
    assert not left.exists()
    assert in_use.is_dir()
    os.close(lock)


async def test_commands_and_scripts_of_a_run_share_its_files() -> None:
    model = ScriptedClient(
        [
            call("run_command", command="sort names.txt > sorted.txt\nls"),
            call("run_python", code="print(open('sorted.txt').readline(), end='')"),
            call("run_command", command="cat sorted.txt; cat none"),
            answer("done"),
        ]
    )
    tools = [command_tool(isolation="none"), python_tool(isolation="none")]
    result = await Agent(model, tools, home=False).run("Sort.", files=[File("names.txt", b"Bern\nAarau\n")])
    assert result.answer == "done", result.error
    listed, first, failed = (request.messages[-1].text for request in model.requests[1:])
    assert listed.startswith("names.txt\nsorted.txt\n\nFiles written: sorted.txt")
    assert first == "Aarau"
    assert failed.startswith("Aarau\nBern\n")
    assert "none" in failed, "what a command writes to stderr is shown"
    assert failed.endswith("exit code 1")


async def test_a_command_is_stopped_as_a_script_is() -> None:
    with pytest.raises(ToolError, match=r"ran longer than 0\.2 s and was stopped"):
        await command_tool(seconds=0.2, isolation="none").call({"command": "sleep 60"})
