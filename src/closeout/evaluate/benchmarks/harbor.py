"""The benchmark `harbor:FOLDER`: task folders in Harbor's format, each trial in a sandbox without Docker.

A task is a folder with `task.toml`, `instruction.md`, `environment/`, `tests/` and perhaps `solution/`. Its Dockerfile
is followed as far as this machine can: WORKDIR, ENV and COPY, and RUN lines that need no network. Whatever its image
is, the programs are those of this machine.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from closeout.agent import Agent
from closeout.config import home_folder
from closeout.errors import ToolError, UsageError
from closeout.evaluate.benchmarks.benchmark import Benchmark
from closeout.evaluate.scores import Attempted, Score
from closeout.evaluate.task_sandbox import FOLDER, TaskSandbox, remove_folder
from closeout.evaluate.tasks import EvalTask
from closeout.messages import ToolPolicy
from closeout.testing import ScriptedClient, answer, call
from closeout.tools.builtin.python_isolation import find_isolation
from closeout.tools.builtin.work_folder import read_left_file
from closeout.tools.run_context import RunContext
from closeout.tools.tool import Tool

__all__ = ["harbor_reward", "make_harbor", "oracle_for", "sandbox_tools"]

INSTRUCTIONS = """\
You work in a Linux sandbox without network. Do the task with commands; nobody can answer questions. When it is done, \
check your work, then answer: done."""
COMMAND_SECONDS = 300.0
BUILD_SECONDS = 600.0
VERIFIER_SECONDS = 600.0
MAX_REWARD_BYTES = 100_000
# Lines of a Dockerfile that do not matter here.
_IGNORED = frozenset(
    {"FROM", "LABEL", "USER", "EXPOSE", "CMD", "ENTRYPOINT", "MAINTAINER", "HEALTHCHECK", "STOPSIGNAL"}
)


def make_harbor(place: str) -> Benchmark:
    """Return the benchmark of a folder of tasks, or of one task.

    Raises:
        UsageError: There are no tasks, or one cannot be read.
        ConfigError: Nothing isolates commands here: bubblewrap is missing.
    """
    find_isolation("bubblewrap")
    folder = Path(place).expanduser().absolute()
    found = [folder / "task.toml"] if (folder / "task.toml").is_file() else sorted(folder.glob("*/task.toml"))
    folders = [each.parent for each in found]
    if not folders:
        raise UsageError(f"{place} has no task: neither it nor a folder in it has a task.toml.")
    tasks = [_task(each) for each in folders]
    return Benchmark(
        about=f"Harbor tasks in {folder.name}",
        tasks=lambda: tasks,
        scorer=harbor_reward,
        tools=sandbox_tools,
        instructions=INSTRUCTIONS,
        settings={"agent.context_compress_limit": 0, "agent.max_parallel_calls": 1},
    )


def _task(folder: Path) -> EvalTask:
    try:
        config = tomllib.loads((folder / "task.toml").read_text("utf-8"))
        instruction = (folder / "instruction.md").read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"The task {folder} cannot be read: {error}.") from None
    if not (folder / "tests" / "test.sh").is_file():
        raise UsageError(f"The task {folder} has no tests/test.sh.")
    metadata = config.get("metadata")
    return EvalTask(
        id=folder.name,
        question=instruction,
        metadata={**(metadata if isinstance(metadata, dict) else {}), "folder": str(folder), "task.toml": config},
    )


# ------------------------------------------------------------------------------------------------ the sandbox


async def sandbox_of(task: EvalTask, run_id: str) -> TaskSandbox:
    """Return the sandbox of a trial, built when it is first asked for."""
    root = home_folder() / FOLDER / run_id
    lines = list(_dockerfile(Path(task.metadata["folder"]) / "environment"))
    workdir, environment = "/app", dict[str, str]()
    for _, name, text in lines:
        if name == "WORKDIR":
            workdir = str(PurePosixPath(workdir) / text)
        elif name in ("ENV", "ARG"):
            environment.update(_variables(text))
    sandbox = TaskSandbox(root, workdir=workdir, environment=environment)
    if not root.is_dir():
        building = root.with_name(f"{root.name}.new")  # a build that was killed begins again
        remove_folder(building)
        await _build(TaskSandbox(building, workdir="/", environment=environment), task, lines)
        building.rename(root)
    return sandbox


async def _build(sandbox: TaskSandbox, task: EvalTask, lines: Sequence[tuple[int, str, str]]) -> None:
    context = Path(task.metadata["folder"]) / "environment"
    for name in ("app", "root", "tmp", "etc"):
        (sandbox.root / name).mkdir(parents=True, mode=0o700)
    place = "/app"
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    for number, name, text in lines:
        if name == "WORKDIR":
            place = str(PurePosixPath(place) / text)
            await _sh(sandbox, f"mkdir -p {shlex.quote(place)}", number)
        elif name == "RUN":
            sandbox.workdir = place if place != "/app" or (sandbox.root / "app").is_dir() else "/"
            await _sh(sandbox, text, number, shell=shell)
        elif name == "SHELL":
            shell = _shell(text, number)
        elif name == "COPY":
            *sources, target = [part for part in shlex.split(text) if not part.startswith("--chown")]
            if any(part.startswith("--") for part in sources) or not sources:
                raise ToolError(f"Line {number} of the Dockerfile (COPY {text:.80}) needs an image.")
            into = str(PurePosixPath(place) / target) + ("/" if target.endswith("/") or len(sources) > 1 else "")
            for source in sources:
                await _copy(sandbox, context, source, into, number)
    await _sh(sandbox, f"mkdir -p {shlex.quote(place)}", 0)


async def _sh(
    sandbox: TaskSandbox,
    command: str,
    number: int,
    mounts: Mapping[str, Path] | None = None,
    *,
    shell: Sequence[str] = ("/bin/sh", "-c"),
) -> None:
    done = await sandbox.run([*shell, command], seconds=BUILD_SECONDS, mounts=mounts)
    if done.code:
        raise ToolError(
            f"Line {number} of the Dockerfile ({command:.80}) failed on this machine, so the task needs an image: "
            f"{done.output[-300:].strip()}"
        )


def _shell(text: str, number: int) -> tuple[str, ...]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise ToolError(f"Line {number} of the Dockerfile (SHELL {text:.80}) must be a list of strings.")
    return tuple(found)


async def _copy(sandbox: TaskSandbox, context: Path, source: str, into: str, number: int) -> None:
    inside = "/tmp/context"  # noqa: S108 - in the sandbox
    found = PurePosixPath(inside) / source.lstrip("/")
    quoted, target = shlex.quote(str(found)), shlex.quote(into)
    # As Docker does: what is in a folder is copied, and the folder of the target is made.
    command = f"if [ -d {quoted} ]; then mkdir -p {target} && cp -a {quoted}/. {target}; else "
    command += f'mkdir -p "$(dirname {target}x)" && cp -a {quoted} {target}; fi'
    await _sh(sandbox, command, number, {inside: context})


def _dockerfile(environment: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the lines of a Dockerfile that matter: number, name in capitals, text.

    Raises:
        ToolError: The task needs an image, or there is no Dockerfile.
    """
    if (environment / "docker-compose.yaml").exists():
        raise ToolError("The task needs Docker: its environment has a docker-compose.yaml.")
    file = environment / "Dockerfile"
    text = file.read_text("utf-8") if file.is_file() else ""
    number, whole = 0, ""
    for each in text.splitlines():
        number += 1
        line = each.strip()
        if line.startswith("#") or (not line and not whole):
            continue
        if line.endswith("\\"):
            whole += line[:-1] + " "
            continue
        name, _, rest = (whole + line).strip().partition(" ")
        whole, name = "", name.upper()
        if name in ("WORKDIR", "ENV", "ARG", "COPY", "RUN", "SHELL"):
            yield number, name, rest.strip()
        elif name not in _IGNORED:
            raise ToolError(
                f"Line {number} of the Dockerfile ({name} …) is not followed here: the task needs an image."
            )


def _variables(text: str) -> dict[str, str]:
    parts = shlex.split(text)
    if parts and "=" not in parts[0]:  # ENV NAME value
        return {parts[0]: " ".join(parts[1:])} if len(parts) > 1 else {}
    return dict(part.split("=", 1) for part in parts if "=" in part)


# ------------------------------------------------------------------------------------------------ tools


def sandbox_tools(task: EvalTask) -> Sequence[Any]:
    """Return the tools of a trial: commands, and files to read and write, all in its sandbox."""

    async def bash(command: str, context: RunContext, seconds: int = int(COMMAND_SECONDS)) -> str:
        """Run a command with bash.

        Args:
            command: The command. It begins in the work folder each time; what it leaves in the background is stopped.
            seconds: How long it may take.
        """
        sandbox = await sandbox_of(task, context.run_id)
        done = await sandbox.run(["/bin/bash", "-c", command], seconds=min(max(seconds, 1), 3600))
        return f"{done.output}\n[exit code {done.code}]" if done.code else done.output or "[no output]"

    async def read_file(path: str, context: RunContext) -> str:
        """Read a text file of the sandbox.

        Args:
            path: Its path.
        """
        sandbox = await sandbox_of(task, context.run_id)
        done = await sandbox.run(["cat", "--", path], seconds=COMMAND_SECONDS)
        if done.code:
            raise ToolError(done.output.strip())
        return done.output

    async def write_file(path: str, content: str, context: RunContext) -> str:
        """Write a text file in the sandbox. Its folder is made, and a file that is there is replaced.

        Args:
            path: Its path.
            content: The whole text.
        """
        sandbox = await sandbox_of(task, context.run_id)
        script = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
        data = content.encode("utf-8", "surrogatepass")
        done = await sandbox.run(["/bin/bash", "-c", script, "bash", path], seconds=COMMAND_SECONDS, stdin=data)
        if done.code:
            raise ToolError(done.output.strip())
        return f"Wrote {len(data):,} bytes."

    acting = ToolPolicy(repeatable=True, accept_empty=True, timeout=None)
    reading = ToolPolicy(repeatable=True, accept_empty=True, read_only=True)
    writing = ToolPolicy(repeatable=True, idempotent=True)
    return [Tool(bash, policy=acting), Tool(read_file, policy=reading), Tool(write_file, policy=writing)]


# ------------------------------------------------------------------------------------------------ the verdict


async def harbor_reward(attempt: Attempted) -> Score:
    """Run the tests of a task in a copy of the trial's sandbox, and return the reward that they write.

    The sandbox stays as the trial left it, to look at it and to score it again.
    """
    task = attempt.task
    try:
        sandbox = await sandbox_of(task, attempt.run_id)
        verifier, variables = _section(task, "verifier")
        seconds = float(verifier.get("timeout_sec", VERIFIER_SECONDS))
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=sandbox.root.parent, prefix=".verify-"))
        try:
            copy = await asyncio.to_thread(sandbox.copied, folder / "root")
            tests = Path(task.metadata["folder"]) / "tests"
            await asyncio.to_thread(shutil.copytree, tests, folder / "tests")
            (folder / "logs" / "verifier").mkdir(parents=True)
            mounts = {"/tests": folder / "tests", "/logs": folder / "logs"}
            command = ["/bin/bash", "/tests/test.sh"]
            done = await copy.run(command, seconds=seconds, mounts=mounts, environment=variables)
            return _reward(folder / "logs" / "verifier", done.output)
        finally:
            await asyncio.to_thread(remove_folder, folder)
    except ToolError as error:
        return Score(0.0, False, str(error), judged=False)


def _section(task: EvalTask, name: str) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Return a table of a `task.toml`, and the variables that it sets."""
    found = task.metadata["task.toml"].get(name)
    found = found if isinstance(found, dict) else {}
    variables = found.get("env")
    return found, {str(k): str(v) for k, v in variables.items()} if isinstance(variables, dict) else {}


def _reward(folder: Path, output: str) -> Score:
    said = output.strip()[-300:]
    if not folder.is_symlink():
        for name in ("reward.txt", "reward.json"):
            text = read_left_file(str(folder / name), MAX_REWARD_BYTES).decode("utf-8", "replace").strip()
            if not text:
                continue
            try:
                found = json.loads(text)
                value = float(found.get("reward", next(iter(found.values()), "")) if isinstance(found, dict) else found)
            except (ValueError, TypeError):
                value = float("nan")
            if 0 <= value <= 1:
                return Score(value, value >= 1, said)
            return Score(0.0, False, f"The tests wrote the reward {text:.80}, which is not from 0 to 1.", judged=False)
    return Score(0.0, False, f"The tests wrote no reward: {said}", judged=False)


def oracle_for(task: EvalTask) -> Agent[Any]:
    """Return an agent without a model that runs the task's own solution: with it, every task should be solved.

    Raises:
        UsageError: The task has none.
    """
    solution = Path(task.metadata["folder"]) / "solution"
    if not (solution / "solve.sh").is_file():
        raise UsageError(f"The task {task.id} has no solution/solve.sh.")

    async def run_solution(context: RunContext) -> str:
        """Run the solution of the task."""
        sandbox = await sandbox_of(task, context.run_id)
        _, variables = _section(task, "solution")
        done = await sandbox.run(
            ["/bin/bash", "/solution/solve.sh"],
            seconds=BUILD_SECONDS,
            mounts={"/solution": solution},
            environment=variables,
        )
        return f"{done.output}\n[exit code {done.code}]"

    return Agent(ScriptedClient([call("run_solution"), answer("done")]), [run_solution], home=True)
