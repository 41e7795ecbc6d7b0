"""Let an agent edit the Python files of a folder until its tests pass, then show the difference.

    python examples/coder.py path/to/project "The rebate is wrong for orders of exactly 100."

The agent reads and writes only files inside the folder. The exit code is that of the tests, which the program runs
itself: it does not take the agent's word for it. Use a copy or a clean Git checkout; the tests run with your rights.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import subprocess
import sys
from pathlib import Path

from closeout import Agent, Tool, ToolError, tool

SECONDS = 120  # for one run of the tests


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)


def tools_for(folder: Path) -> list[Tool]:
    """The tools of the agent. They keep it inside the folder."""
    root = folder.resolve()

    def inside(name: str) -> Path:
        path = (root / name).resolve()
        if not path.is_relative_to(root) or path.suffix != ".py":
            raise ToolError(f"{name} is not a Python file of the project. list_files shows them.")
        return path

    @tool(read_only=True)
    def list_files() -> list[str]:
        """List the Python files of the project."""
        return sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))

    @tool(read_only=True)
    def read_file(name: str) -> str:
        """Read a file."""
        return inside(name).read_text("utf-8")

    @tool(idempotent=True)
    def replace_text(name: str, old: str, new: str) -> str:
        """Replace a piece of a file. It must occur exactly once.

        Args:
            name: The file.
            old: The piece, with enough lines around it to be unique.
            new: What to put there.
        """
        path = inside(name)
        text = path.read_text("utf-8")
        if text.count(old) != 1:
            raise ToolError(f"The piece occurs {text.count(old)} times in {name}. Give one that occurs once.")
        path.write_text(text.replace(old, new), "utf-8")
        return "Replaced. Run the tests."

    @tool(repeatable=True, timeout=SECONDS + 10)
    def run_tests() -> str:
        """Run the tests of the project. Shows the first failure."""
        done = run_pytest(root)
        return f"exit code {done.returncode}\n{done.stdout[-4000:]}"

    return [list_files, read_file, replace_text, run_tests]


def snapshot(folder: Path) -> dict[str, list[str]]:
    return {str(path): path.read_text("utf-8").splitlines(keepends=True) for path in sorted(folder.rglob("*.py"))}


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("problem")
    parser.add_argument("-m", "--model", default="openai:gpt-5")
    options = parser.parse_args()

    before = snapshot(options.folder)
    agent = Agent(
        options.model,
        tools=tools_for(options.folder),
        instructions="Find the cause, change as little as possible, and finish when run_tests passes. "
        "Never change a test to make it pass.",
        max_turns=30,
    )
    result = await agent.run(options.problem)
    print(result.answer or result.error or f"No answer ({result.stop_reason}).")
    for name, lines in snapshot(options.folder).items():
        sys.stdout.writelines(difflib.unified_diff(before.get(name, []), lines, f"a/{name}", f"b/{name}"))
    passed = run_pytest(options.folder).returncode
    print("The tests pass." if passed == 0 else "The tests still fail.", file=sys.stderr)
    return passed


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
