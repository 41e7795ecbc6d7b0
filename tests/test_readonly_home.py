"""A home in which nothing may be written: its runs are shown without a warning, and it is left unchanged."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli_process import Done, environment
from closeout import Agent
from closeout.journal import events as ev
from closeout.journal.readonly import open_to_read
from closeout.journal.run_journal import Journal
from closeout.journal.store import close_stores, open_store
from closeout.messages import ModelReply, Usage
from closeout.testing import ScriptedClient, Turn

# To root permissions mean nothing while it has these two capabilities; a program that it starts can be left without.
BOUND = """
import asyncio
import ctypes, os, sys
if os.getuid() == 0 and sys.platform == "linux":
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        if ctypes.CDLL(None, use_errno=True).prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP
            sys.exit("root's rights could not be given up")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
# It executes the commands that it reads, one after the other.
COMMANDS = """
import json, os, sys
from cli_process import here
from closeout.journal.store import close_stores
for line in sys.stdin:
    os.environ["CLOSEOUT_HOME"], *arguments = json.loads(line)
    done = here(*arguments)
    close_stores()
    print(json.dumps([done.code, done.out, done.err]), flush=True)
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")


def bound(program: str) -> list[str]:
    """The command of a program that is bound by permissions."""
    return [sys.executable, "-c", BOUND, "-c", program]


@pytest.fixture(scope="module")
def closeout() -> Iterator[Callable[..., Done]]:
    """The command as somebody who is bound by permissions has it, with a home and arguments."""
    pipe, folder = subprocess.PIPE, Path(__file__).parent
    with subprocess.Popen(
        bound(COMMANDS), stdin=pipe, stdout=pipe, text=True, env=environment(), cwd=folder
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, told = process.stdin, process.stdout

        def execute(home: Path, *arguments: str) -> Done:
            print(json.dumps([str(home), *arguments]), file=asked, flush=True)
            return Done(*json.loads(told.readline()))

        yield execute
        asked.close()


@contextmanager
def sealed(home: Path) -> Iterator[Path]:
    """The folder and what is in it may only be read."""
    inside = list(home.iterdir())
    for path in inside:
        path.chmod(0o444)
    home.chmod(0o555)
    try:
        yield home
    finally:
        home.chmod(0o755)
        for path in inside:
            path.chmod(0o644)


def state(home: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in home.iterdir()}


def begun(home: Path, run_id: str = "one") -> Journal:
    """A run under way, with one reply on disk that only the log has."""
    journal = Journal.start(open_store(home), ev.RunStarted("main", "Wie hoch?"), "scripted:m", run_id=run_id)
    journal.append(ev.ModelReplied.of("main", 0, ModelReply("a" * 2000, usage=Usage(10, 2, requests=1)), 1.0))
    journal.flush()
    return journal


def test_runs_are_listed_shown_and_exported_as_anywhere_and_nothing_is_written(
    home: Path, closeout: Callable[..., Done]
) -> None:
    asyncio.run(begun(home).end(ev.RunEnded("main", "answered", "answered", answer="42")))
    close_stores()
    commands = (("runs",), ("runs", "--json"), ("runs", "one"), ("runs", "one", "--json"))
    usual = [closeout(home, *command) for command in commands]
    before = state(home)
    assert "42" in usual[0].out
    with sealed(home):
        assert [closeout(home, *command) for command in commands] == usual
    assert state(home) == before
    assert {done.err for done in usual} == {""}


def test_a_run_is_replayed_from_it(home: Path, closeout: Callable[..., Done]) -> None:
    agent = Agent(ScriptedClient([Turn(answer="42")]), home=home)
    run_id = agent.run_sync("6*7?").run_id
    close_stores()
    script = f"import closeout.testing as t; print(t.recorded({run_id!r}).answer)"
    before = state(home)
    with sealed(home):
        env = environment({"CLOSEOUT_HOME": str(home)})
        done = subprocess.run(bound(script), capture_output=True, env=env, timeout=100)
        refused = closeout(home, "runs", "replay", run_id)
    assert (done.stdout, done.stderr) == (b"42\n", b"")
    assert "was not started by `closeout run`" in refused.sentence
    assert state(home) == before


@pytest.mark.parametrize("locks", [True, False])
def test_a_run_that_a_crash_cut_off_is_read_from_the_log(
    locks: bool, home: Path, closeout: Callable[..., Done], tmp_path: Path
) -> None:
    begun(home)
    left = Path(shutil.copytree(home, tmp_path / "left"))  # what a killed process leaves
    assert (left / "journal.sqlite3-wal").stat().st_size > 0
    if not locks:
        (left / "journal.locks").unlink()
    before = state(left)
    with sealed(left):
        listed, shown = closeout(left, "runs"), closeout(left, "runs", "one", "--json")
    assert "interrupted" in listed.out
    assert [event["type"] for event in shown.json["events"]] == ["RunStarted", "ModelReplied"]
    assert shown.json["events"][1]["text"] == "a" * 2000
    assert state(left) == before


def test_a_run_that_is_led_at_this_moment_is_running(home: Path, closeout: Callable[..., Done]) -> None:
    begun(home)
    home.chmod(0o555)
    try:
        done = closeout(home, "runs", "--json")
    finally:
        home.chmod(0o755)
    assert [run["status"] for run in done.json] == ["running"]


def test_a_log_that_cannot_be_read_is_not_left_out_silently(
    home: Path, closeout: Callable[..., Done], tmp_path: Path
) -> None:
    begun(home)
    left = Path(shutil.copytree(home, tmp_path / "left", ignore=shutil.ignore_patterns("*-shm")))
    with sealed(left):
        done = closeout(left, "runs")
    assert done.code == 2
    assert done.sentence.endswith("Copy the folder to one you own and set CLOSEOUT_HOME to that.")
    (left / "journal.sqlite3-wal").write_bytes(b"")
    with sealed(left):
        assert closeout(left, "runs").out.startswith("No runs yet.")


@pytest.mark.parametrize("home_is", ["absent", "empty", "with an empty file"])
def test_an_empty_home_has_no_runs_and_nothing_is_created(
    home_is: str, home: Path, closeout: Callable[..., Done]
) -> None:
    home.mkdir()
    if home_is == "with an empty file":
        (home / "journal.sqlite3").touch()
    looked_at = home / "deeper" if home_is == "absent" else home
    before = state(home)
    with sealed(home):
        done = closeout(looked_at, "runs")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("No runs yet.")
    assert state(home) == before


def test_a_folder_that_may_not_be_looked_into_is_named(home: Path, closeout: Callable[..., Done]) -> None:
    asyncio.run(begun(home).end(ev.RunEnded("main", "answered", "answered", answer="42")))
    home.chmod(0o000)
    try:
        done = closeout(home, "runs")
    finally:
        home.chmod(0o755)
    assert "Permission denied" in done.sentence
    assert done.sentence.endswith("Set CLOSEOUT_HOME to a folder you own.")


@pytest.mark.parametrize("left_by", ["a run that ended", "a crash"])
def test_what_must_write_says_where_it_cannot(
    left_by: str, home: Path, closeout: Callable[..., Done], tmp_path: Path
) -> None:
    journal = begun(home)
    if left_by == "a crash":
        home = Path(shutil.copytree(home, tmp_path / "left"))
    else:
        asyncio.run(journal.end(ev.RunEnded("main", "answered", "answered", answer="42")))
        close_stores()
    with sealed(home):
        run = closeout(home, "run", "Q", "-m", "openai:m", "--base-url", "http://127.0.0.1:9/v1")
        doctor = closeout(home, "doctor", "-m", "local", "--json")
    for sentence in (run.sentence, next(check["message"] for check in doctor.json if check["name"] == "journal")):
        assert str(home / "journal.") in sentence
        assert sentence.endswith("Set CLOSEOUT_HOME to a folder you own.")


def test_a_store_that_this_process_has_open_is_the_one_that_is_looked_at(home: Path) -> None:
    store = open_store(home)
    home.chmod(0o555)
    try:
        with open_to_read(home) as seen:
            assert seen is store
    finally:
        home.chmod(0o755)
