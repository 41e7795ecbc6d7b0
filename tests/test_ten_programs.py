"""The ten programs of docs/ten-programs.md run, are on the page as they are, and need no more lines than the others."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from closeout.testing import serve_script
from closeout.testing.scripted_server import ScriptedServer

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench" / "peers"
RUNNER = runpy.run_path(str(PEERS / "run.py"))
PAGE = (ROOT / "docs" / "ten-programs.md").read_text("utf-8")
PROGRAMS = sorted((PEERS / "closeout").glob("*.py"))
FRAMEWORKS = ("closeout", "openai_agents", "pydantic_ai", "langgraph", "smolagents")  # the columns of the table


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with serve_script(RUNNER["model"], record=False) as scripted:
        yield scripted


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_does_its_work(
    program: Path,
    server: ScriptedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(PEERS / "shop_server.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    for name, value in RUNNER["PRICES"].items():
        monkeypatch.setenv(name, value)
    typed = iter(["My name is Anna.", "", "Who am I?", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))

    if program.stem == "08_tracing":  # its exporter keeps the standard output of the process that imports it
        done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
        assert RUNNER["EXPECTED"][program.stem] in done.stdout
        return
    for _ in range(2 if program.stem == "03_chat" else 1):  # the conversation continues in another process
        names = runpy.run_path(str(program), run_name="__main__")
    if program.stem == "09_test":
        names["test_the_agent_looks_the_price_up"]()
    else:
        assert RUNNER["EXPECTED"][program.stem] in capsys.readouterr().out


def test_the_page_shows_the_programs_as_they_are() -> None:
    shown = re.findall(r"^<!-- no-run -->\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert shown == [program.read_text("utf-8") for program in PROGRAMS]


def test_the_table_counts_the_lines_and_no_other_framework_needs_fewer() -> None:
    rows = [[int(cell) for cell in re.findall(r"\| +(\d+)(?= )", line)] for line in PAGE.splitlines() if "| [" in line]
    counted = [[RUNNER["lines_of"](PEERS / name / program.name) for name in FRAMEWORKS] for program in PROGRAMS]
    assert rows == counted
    assert all(ours <= min(others) for ours, *others in counted)


def test_the_programs_of_others_on_the_page_for_newcomers_are_the_ones_that_were_run() -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text("utf-8")
    shown = re.findall(r"^<!-- no-run -->\n```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    known = {path.read_text("utf-8") for path in PEERS.glob("*/*.py")}
    assert [program for program in shown if program not in known and "api.dify.ai" not in program] == []
