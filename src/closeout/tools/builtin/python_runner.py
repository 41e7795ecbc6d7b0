"""The tool `run_python`: a script in a process of its own, isolated and with limits.

docs/builtin-tools.md says what isolates it, and what is not prevented.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from closeout.errors import ConfigError, ToolError
from closeout.file_values import MAX_FILE_SIZE, File, FileView
from closeout.results.tool_output import REMOVED_FILES, ToolOutput
from closeout.tools.builtin.python_isolation import Isolation, find_isolation, isolated
from closeout.tools.builtin.work_folder import WorkFolder, read_left_file
from closeout.tools.run_context import RunContext
from closeout.tools.threads import run_in_thread
from closeout.tools.tool import Tool, tool

__all__ = ["command_tool", "python_tool", "run_command", "run_python"]

SHOWN_CHARACTERS = 20_000  # Characters of the output that a model sees.
MAX_OUTPUT_BYTES = 1_000_000  # a script that writes more is stopped
# Seconds for the pipes of a process that ended; a program that it started may hold them.
CLOSING_SECONDS = 1.0
# Seconds after which the script's own clock ends it, should the program not have done so.
GRACE_SECONDS = 5.0
WATCH_SECONDS = 0.2  # seconds between two looks at the memory of a script and of what it started
LEFTOVER_SECONDS = 60.0  # Age from which a folder counts as left over.
_PREFIX = "closeout-python-"
_PSS = re.compile(r"^Pss:\s+(\d+)", re.MULTILINE)  # kB
MAX_FILE_BYTES = 100_000_000  # Bytes of any file that the script writes.
VARIABLES = "variables"  # the file of a script's variables, in its home
MAX_NOTE_BYTES = 4_000  # the longest report of the script's process on them
_CHILD = Path(__file__).with_name("python_child.py")
_KEPT_VARIABLES = (
    "PATH", "LANG", "LC_ALL", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "LD_LIBRARY_PATH",
)  # fmt: skip


def python_tool(
    *,
    seconds: float = 30.0,
    memory_mb: int = 1024,
    network: bool = False,
    isolation: Isolation = "auto",
    keep_variables: bool = False,
) -> Tool[..., Any]:
    """Make a `run_python` with its own limits.

    A script works in a folder that holds the files of the task, which it can read, and what earlier scripts of the run
    left. What it writes there becomes files of the run, unless it fails. The script's process ends with this program,
    however that ends. Folders that a killed program left are removed when the tool is first used.

    Args:
        seconds: Wall-clock time of a script.
        memory_mb: Memory of its process; on Linux of it and all that it starts.
        network: Whether it may use the network.
        isolation: What keeps the script from your files and processes: "bubblewrap", "sandbox-exec", or "auto": the one
            that works here. If none does, every call fails. "none" gives scripts your rights.
        keep_variables: Whether the variables of a script are there for the agent's next one in the run. They are kept
            as a pickle, which is written and read in the script's process only, by the same isolation. What cannot be
            pickled is lost, and the model is told.
    """
    remove_leftovers = functools.cache(_remove_leftovers)
    limits = {
        "seconds": seconds + GRACE_SECONDS,
        "memory_bytes": memory_mb * 1024 * 1024,
        "cpu_seconds": max(1, int(seconds) + 1),
        "file_bytes": MAX_FILE_BYTES,
        "network": network,
    }

    # A script without network, in a folder of its own, may run again: nothing remains of one that was killed.
    repeats = isolation != "none" and not network

    @tool(
        name="run_python",
        description=_described(network=network, keep_variables=keep_variables),
        timeout=seconds + 30.0,  # the script is stopped before; this is for starting and clearing up
        on_crash="rerun" if repeats else None,
        other_names=("run_python_code", "python"),
        ignored=("sandbox_id",),
        aliases={"code": ("code_block", "script", "source", "program", "python_code", "python", "input")},
    )
    async def run(code: str) -> str | ToolOutput:
        """Run a Python script.

        Args:
            code: A whole Python script that prints its result.
        """
        view = RunContext.current().files
        try:
            kind = await run_in_thread(lambda: find_isolation(isolation))
        except ConfigError as error:
            raise ToolError(str(error)) from None
        await run_in_thread(remove_leftovers)
        folder, lock = await run_in_thread(_own_folder)
        try:
            script = _Script(code, folder, kind, view, keep_variables=keep_variables)
            await run_in_thread(script.prepare)
            printed = await _run(script, limits, seconds)
            output: str | ToolOutput = await run_in_thread(lambda: script.output(printed))
            return output
        finally:
            await asyncio.shield(run_in_thread(lambda: _remove(folder, lock)))

    run.reads_files = True
    run.policy = replace(run.policy, returns="files")
    return run


def command_tool(**limits: Any) -> Tool[..., Any]:
    """Make a `run_command`: a shell command in the place of a script. Takes the arguments of `python_tool`."""
    python = python_tool(**limits)

    @tool(name="run_command", policy=replace(python.policy, aliases={}, other_names=()))
    async def run(command: str) -> Any:
        """Run a shell command and return what it prints. Files in the current folder are kept for later calls.

        Args:
            command: One command, or several lines. Nothing of it continues in the background.
        """
        asked = f"subprocess.run({command!r}, shell=True, stderr=subprocess.STDOUT).returncode"
        return await python.function(f"import subprocess\nended = {asked}\nif ended:\n    print('exit code', ended)")

    run.reads_files = True
    return run


def _described(*, network: bool, keep_variables: bool) -> str:
    lost = "Variables are kept between calls" if keep_variables else "Variables are not kept between calls"
    return (
        f"Run a Python script and return what it prints. {lost}{'' if network else '; there is no network'}. "
        "Files in the current folder are kept: write a file there to give it to the user or to a later call. "
        "A script that fails leaves nothing."
    )


class _Script:
    """A script with its empty folder: in it are `work`, where the script begins, and `home`, which is not kept."""

    def __init__(self, code: str, folder: str, kind: Isolation, view: FileView, *, keep_variables: bool) -> None:
        self.source = code.encode("utf-8", "replace")
        self.folder = folder
        self.kind = kind
        self.home = Path(folder, "home")
        self.work = WorkFolder(Path(folder, "work"), view)
        self.variables = str(self.home / VARIABLES) if keep_variables else ""
        self._kept = view.variables if keep_variables else None
        self._view = view

    def prepare(self) -> None:
        """Write what the script finds."""
        self.home.mkdir()
        self.work.path.mkdir()
        self.work.fill()
        # A pickle of a script that was isolated is not read by one that is not.
        if self._kept is not None and self._kept.size and self._kept.name == self._variables_name:
            Path(self.variables).write_bytes(self._kept.data)

    @property
    def _variables_name(self) -> str:
        return f"variables.{self.kind}"

    def _variables_left(self, files: Sequence[File]) -> File:
        """Return the script's variables, empty if the run cannot keep them: earlier ones must not come back."""
        data = read_left_file(self.variables, MAX_FILE_SIZE)
        added = sum(file.size for file in files)
        if self._view.refusal(self._variables_name, len(data), [file.name for file in files], added):
            data = b""
        kept = File(self._variables_name, data)
        kept.hidden = True
        return kept

    def output(self, printed: str) -> str | ToolOutput:
        """Return what the script printed, with the files that it left."""
        left = self.work.collect()
        files = list(left.files)
        notes = [left.text()]
        if self.variables:
            if self._kept is not None and self._kept.name != self._variables_name:
                notes.append("The variables of earlier calls are lost: they were kept by another isolation.")
            if said := read_left_file(f"{self.variables}.txt", MAX_NOTE_BYTES):
                notes.append(said.decode("utf-8", "replace"))
            kept = self._variables_left(files)
            if not kept.size:
                notes.append("No variables are kept for the next call.")
            files.append(kept)
        text = "\n\n".join(filter(None, (printed, "\n".join(filter(None, notes)))))
        text = text or "The script printed nothing. Use print() to see a result."
        if not files and not left.removed:
            return text
        metadata = {REMOVED_FILES: list(left.removed)} if left.removed else {}
        return ToolOutput(result=text, files=tuple(files), metadata=metadata)


def _own_folder() -> tuple[str, int | None]:
    """A new folder, and the lock that says it is in use; the system releases the lock when this program dies."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        if os.name != "posix":
            return folder, None
        lock = _locked(folder)
        if lock is not None:
            return folder, lock


def _locked(folder: str) -> int | None:
    """A file descriptor that holds the folder's lock; None if another program does."""
    import fcntl

    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(folder: str, lock: int | None) -> None:
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.name == "posix" and os.path.lexists(folder):  # its folders are deeper than Python can remove
        subprocess.run(["/bin/rm", "-rf", "--", folder], check=False, capture_output=True)  # noqa: S603 - our own folder
    if lock is not None:
        os.close(lock)


def _remove_leftovers() -> None:
    """Remove the folders of programs that were killed: those that no program locks, or on Windows are a day old."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            age = time.time() - folder.stat().st_mtime
            if folder.is_symlink() or age < LEFTOVER_SECONDS:
                continue
            if os.name != "posix":
                if age > 86_400:
                    shutil.rmtree(folder, ignore_errors=True)
            elif (lock := _locked(str(folder))) is not None:
                _remove(str(folder), lock)


async def _run(script: _Script, limits: dict[str, Any], seconds: float) -> str:
    """Run a script and return what it prints."""
    loop = asyncio.get_running_loop()
    network, kind, work = limits["network"], script.kind, script.work
    own = {
        "script_bytes": len(script.source),
        # An isolated script is in an empty network already, and may not make another one.
        "network": network or kind == "bubblewrap",
        "variables": script.variables,
        "variables_bytes": MAX_FILE_SIZE,
    }
    command = [sys.executable, "-I", "-B", "-X", "utf8", str(_CHILD), json.dumps({**limits, **own})]
    command = isolated(kind, command, script.folder, network=network, work=str(work.path), read_only=work.read_only)
    transport, watched = await loop.subprocess_exec(
        lambda: _Watched(loop), *command,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=work.path, env=_environment(str(script.home)), start_new_session=os.name == "posix",
    )  # fmt: skip
    try:
        pipe: Any = transport.get_pipe_transport(0)
        pipe.write(script.source)  # the pipe stays open: when it closes, the script ends
        async with asyncio.timeout(seconds):
            while not watched.done.done():
                await asyncio.wait((watched.done,), timeout=WATCH_SECONDS)
                if _memory_of(transport.get_pid(), limits["memory_bytes"]) > limits["memory_bytes"]:
                    most = limits["memory_bytes"] // 2**20
                    text = f"The script and what it started used more than {most:,} MB together and were stopped."
                    raise ToolError(f"{text}{watched.printed()}")
    except TimeoutError:
        raise ToolError(f"The script ran longer than {seconds:g} s and was stopped.{watched.printed()}") from None
    finally:
        if not watched.gone.done():
            _end_group(transport.get_pid())
            with suppress(ProcessLookupError):
                transport.kill()
            await asyncio.shield(asyncio.wait((watched.gone,), timeout=CLOSING_SECONDS))  # the process is then reaped
        transport.close()
    if watched.output.total + watched.errors.total > MAX_OUTPUT_BYTES:
        raise ToolError(f"The script printed more than 1 MB and was stopped.{watched.printed()}")
    code_of_exit = transport.get_returncode()
    if kind == "bubblewrap" and code_of_exit is not None and code_of_exit > 128:
        code_of_exit = 128 - code_of_exit  # how it reports a script that a signal ended
    if code_of_exit == 0:
        return watched.output.text().rstrip()
    message = ["The script failed.", _why(code_of_exit), watched.errors.text().strip("\n"), watched.printed().strip()]
    raise ToolError("\n".join(part for part in message if part))


def _memory_of(pid: int, enough: int) -> int:
    """Return the bytes of memory that a process and all below it use, about; 0 where Linux's /proc is not.

    Pages that large processes share are counted once. Large is an eighth of `enough`. The limit of the process itself
    does not count what it starts.
    """
    pids = [pid]
    for parent in pids:  # the list grows
        with suppress(OSError):
            for children in Path(f"/proc/{parent}/task").glob("*/children"):
                pids += map(int, children.read_text().split())
    return sum(_process_memory(each, enough) for each in pids)


def _process_memory(pid: int, enough: int) -> int:
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        # To tell shared pages apart takes time, so small processes count with all their pages.
        if resident * 8 < enough:
            return resident
        return int(_PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())[1]) * 1024  # type: ignore[index]
    except (OSError, ValueError, TypeError, IndexError):  # it has ended
        return 0


class _Watched(asyncio.SubprocessProtocol):
    """The output of a process, until it has ended and its pipes are closed, or it has written too much."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.output, self.errors = _Kept(), _Kept()
        self.done: asyncio.Future[None] = loop.create_future()  # nothing more to read
        self.gone: asyncio.Future[None] = loop.create_future()  # the process ended
        self._loop = loop
        self._open = {1, 2}
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        (self.output if fd == 1 else self.errors).add(data)
        if self.output.total + self.errors.total > MAX_OUTPUT_BYTES:
            self._finish()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if self.gone.done() and not self._open:
            self._finish()

    def process_exited(self) -> None:
        self.gone.set_result(None)
        _end_group(self._transport.get_pid())  # processes that it left running would keep the pipes open
        if self._open:
            self._loop.call_later(CLOSING_SECONDS, self._finish)
        else:
            self._finish()

    def printed(self) -> str:
        text = self.output.text().rstrip()
        return f"\nIt had printed:\n{text}" if text else ""

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _Kept:
    """The head of an output stream."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        self.data += chunk[: max(0, SHOWN_CHARACTERS * 4 - len(self.data))]

    def text(self) -> str:
        text = self.data.decode("utf-8", "replace")
        if len(text) <= SHOWN_CHARACTERS and self.total == len(self.data):
            return text
        return f"{text[:SHOWN_CHARACTERS]}\n… [cut: the whole output has {self.total:,} bytes]"


def _why(code: int | None) -> str:
    if code is None or code > 1:
        return f"It ended with code {code}."
    if -code == getattr(signal, "SIGXCPU", None):
        return "It used more processor time than allowed."
    return f"The system ended it with signal {-code}." if code < 0 else ""


def _end_group(pid: int) -> None:
    """Kill the process and what it started in its group."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _environment(folder: str) -> dict[str, str]:
    """Only what a program needs to start, with the folder as its home: no keys and tokens of the user's."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return {**kept, "HOME": folder, "TMPDIR": folder, "TEMP": folder, "TMP": folder, "OPENBLAS_NUM_THREADS": "1"}


run_python = python_tool()
run_command = command_tool()
