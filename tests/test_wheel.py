"""The wheel installs and runs outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from closeout.testing import answer, call, serve_script

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import closeout
from closeout import Agent, tool
from closeout.testing import ScriptedClient, answer, call

@tool
def double(number: int) -> int:
    "Double a number."
    return 2 * number

for dialect in ("function_call", "cot_chat", "cot_completion", "mcp_xml"):
    agent = Agent(ScriptedClient([call("double", number="21"), answer("42")]), [double], dialect=dialect)
    print(agent.run_sync("Twice 21?").answer)
print(closeout.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=60)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of a virtual environment with the wheel. Its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "venv", with_pip=False)
    scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(scripts / "python"), "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "install", "-q", "--no-deps", "--no-index", wheel], check=True, capture_output=True, timeout=60
    )
    packages = next((folder / "venv").rglob("site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), "utf-8")  # does not run its .pth files
    return scripts


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**clean, "PYTHONUTF8": "1", "OPENAI_API_KEY": "key"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.startswith("closeout-")}
    source = ROOT / "src"
    files = (path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert packed == {path.relative_to(source).as_posix() for path in files}


def test_a_program_runs_from_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    done = run(installed / "python", "-c", PROGRAM, cwd=tmp_path)
    assert done.stderr == ""
    *answers, place = done.stdout.split()
    assert answers == ["42"] * 4
    assert Path(place).is_relative_to(installed.parent)


def test_the_command_runs_from_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    with serve_script([call("calculate", expression="6*7"), answer("42")]) as server:
        options = ["-m", "openai:scripted", "--base-url", server.base_url]
        done = run(installed / "closeout", "run", "6 times 7?", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
