"""Runs are copied between journals whole: with their large texts, their checksums and their outcome."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from closeout import Agent, tool
from closeout.errors import JournalError
from closeout.homes import Home
from closeout.journal.copying import copy_runs
from closeout.journal.sent_signals import open_signals, send_signal
from closeout.journal.store import open_store
from closeout.testing import ScriptedClient, answer, call

LONG = "x" * 5_000


def run(home: Home, run_id: str, *, key: str = "k", fail: bool = False) -> None:
    @tool(read_only=True)
    def look(key: str) -> str:
        """Look up a key."""
        return f"{key} {LONG}"

    script = [call("look", key=key), *([] if fail else [answer("done")])]
    asyncio.run(Agent(ScriptedClient(script), [look], home=home).run("Find it.", run_id=run_id))


def test_a_copy_is_whole_and_can_be_repeated(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    run(one, "a")
    run(two, "b", key="other")
    target, source = open_store(one), open_store(two)
    assert copy_runs(two, target) == 1
    assert copy_runs(two, target) == 0
    assert target.read("b") == source.read("b")
    assert target.read("b").problems == ()
    assert target.run("b") == source.run("b")
    assert [record.run_id for record in target.runs()] == ["b", "a"]
    assert target.read("a").problems == ()


def test_only_the_named_runs_are_copied(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        run(tmp_path / "source", name)
    target = open_store(tmp_path / "target")
    assert copy_runs(tmp_path / "source", target, {"a", "c", "zzz"}) == 2
    assert {record.run_id for record in target.runs()} == {"a", "c"}


def test_an_answered_run_replaces_a_failed_one_and_not_the_reverse(tmp_path: Path, any_home: Home) -> None:
    one, two = any_home, tmp_path / "two"
    run(one, "a", fail=True)
    run(two, "a", key="another")
    failed, answered = open_store(one), open_store(two)
    assert send_signal(failed, "a", "payment", 5)
    assert failed.run("a").status == "failed"
    assert copy_runs(one, answered) == 0
    assert copy_runs(two, failed) == 1
    assert failed.read("a") == answered.read("a")
    assert len(failed.runs()) == 1
    assert open_signals(failed, "a", "payment") == []
    failed.delete_runs(["a"])
    assert failed.query("SELECT count(*) FROM bodies") == [(0,)], "the run that was replaced uses none"


def test_no_journal_another_format_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    target = open_store(tmp_path / "target")
    with pytest.raises(JournalError, match="There is no journal in"):
        copy_runs(tmp_path, target)
    old = tmp_path / "old"
    run(old, "a")
    open_store(old).flush()
    with closing(sqlite3.connect(old / "journal.sqlite3")) as db, db:
        db.execute("PRAGMA user_version=99")
    with pytest.raises(JournalError, match="newer Closeout"):
        copy_runs(old, target)
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "journal.sqlite3").write_bytes(b"no database" * 1000)
    with pytest.raises(JournalError, match="damaged"):
        copy_runs(bad, target)
    assert target.runs() == []
