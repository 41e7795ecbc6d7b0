"""A sandbox for one trial: a root folder of its own, with this machine's programs, without network, by bubblewrap."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from closeout.errors import ToolError
from closeout.homes import Home
from closeout.tools.builtin.python_isolation import program_of, system_mounts

__all__ = ["FOLDER", "CommandEnd", "TaskSandbox", "remove_folder", "remove_sandboxes"]

FOLDER = "sandboxes"  # A folder in the home.
MAX_OUTPUT = 1_000_000  # bytes of what a command writes; one that writes more is stopped
MAX_FILE_BLOCKS = 1_000_000  # blocks of 1,024 bytes of any file that a command writes
# A shell, so that the limit holds for what the command starts.
_LIMITED = ("/bin/bash", "-c", f'ulimit -f {MAX_FILE_BLOCKS}; exec "$@"', "bash")


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """A command that has ended: its exit code, and what it wrote to stdout and stderr together."""

    code: int
    output: str


_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class TaskSandbox:
    """A root folder in which commands run. They see it as `/`, with this machine's programs, and nothing else of it.

    Each command has a process space of its own: what it leaves in the background ends with it. The folder stays until
    it is removed, so that a trial that is resumed after a kill finds what its commands left.

    Args:
        root: The folder.
        workdir: Where commands begin, an absolute path in it.
        environment: Variables of its commands.
    """

    def __init__(self, root: Path, *, workdir: str = "/app", environment: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.workdir = workdir
        # The usual folders too: some of this machine's are not seen in the sandbox.
        path = os.pathsep.join(filter(None, (os.environ.get("PATH"), _USUAL_PATH)))
        self._environment = {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8"}
        self._environment |= environment or {}

    async def run(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        stdin: bytes = b"",
        mounts: Mapping[str, Path] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> CommandEnd:
        """Run a command.

        Args:
            command: The program and its arguments.
            seconds: How long it may take.
            stdin: What it reads.
            mounts: Further folders that it sees and may change, by their paths in the sandbox.
            environment: Further variables.

        Raises:
            ToolError: It took longer, wrote too much, or an earlier command has put a link where something is mounted.
        """
        system = list(system_mounts())
        mounted = [part for inside, folder in (mounts or {}).items() for part in ("--bind", str(folder), inside)]
        self._refuse_links([*system, *mounted])
        variables = {**self._environment, **(environment or {})}
        process = await asyncio.create_subprocess_exec(
            *(program_of("bubblewrap"), "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            *("--bind", str(self.root), "/", *system, *mounted, "--chdir", self.workdir),
            *(*_LIMITED, *command),
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        writing = asyncio.create_task(_write(process, stdin))
        try:
            async with asyncio.timeout(seconds):
                written = await _read_output(process)
                code = await process.wait()
        except TimeoutError:
            raise ToolError(f"The command ran longer than {seconds:g} s and was stopped.") from None
        finally:
            writing.cancel()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()  # all that it started ends with it
                await asyncio.shield(_ended(process))
        return CommandEnd(code, written.decode("utf-8", "replace"))

    def copied(self, to: Path) -> TaskSandbox:
        """Return a copy of the sandbox. It blocks."""
        subprocess.run(["/bin/cp", "-a", "--", str(self.root), str(to)], check=True, capture_output=True)  # noqa: S603
        return TaskSandbox(to, workdir=self.workdir, environment=self._environment)

    def _refuse_links(self, arguments: Sequence[str]) -> None:
        """Raise ToolError for a link on the way to a mount: bubblewrap would follow it out of the folder."""
        for path in {each for each in arguments if each.startswith("/")}:
            place = self.root
            for part in Path(path).parts[1:]:
                place /= part
                if place.is_symlink():
                    raise ToolError(f"The sandbox can no longer be used: {place.relative_to(self.root)} is a link.")


def remove_folder(folder: Path) -> None:
    """Remove a folder, whatever is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):  # its folders are deeper than Python can remove, or may not be listed
        subprocess.run(["/bin/rm", "-rf", "--", str(folder)], check=False, capture_output=True)  # noqa: S603


def remove_sandboxes(home: Home, run_ids: Iterable[str]) -> None:
    """Remove the sandboxes of trials that have one, by the names of their runs."""
    for run_id in run_ids if (home / FOLDER).is_dir() else ():
        remove_folder(home / FOLDER / run_id)


async def _read_output(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    written = bytearray()
    while part := await process.stdout.read(65_536):
        written += part
        if len(written) > MAX_OUTPUT:
            raise ToolError(f"The command wrote more than {MAX_OUTPUT / 1e6:.0f} MB and was stopped.")
    return bytes(written)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait until a process that was killed is gone, and its pipe is empty: then the transport closes."""
    assert process.stdout is not None
    while await process.stdout.read(65_536):
        pass
    await process.wait()


async def _write(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with suppress(ConnectionError):  # it does not read all of it
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()
