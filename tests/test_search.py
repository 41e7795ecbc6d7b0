"""Full-text search over the runs of a journal: what is found, and where the index is kept."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from cli_process import here
from closeout import Agent, tool
from closeout.journal import events as ev
from closeout.journal import text_search as search
from closeout.journal.readonly import open_to_read
from closeout.journal.run_journal import Journal
from closeout.journal.store import open_store
from closeout.journal.text_search import RunHit, SearchIndex, parse_query
from closeout.journal.totals import RunTotals
from closeout.testing import ScriptedClient, Turn, answer, call
from many_runs import short_run, write_runs


def find(home: Path, text: str, **options: str) -> list[RunHit]:
    with open_to_read(home) as store, SearchIndex(store) as index:
        index.update()
        return list(index.search(text, **options))


def run(home: Path, run_id: str, task: str, *events: ev.Event) -> None:
    write_runs(home, [(run_id, [ev.RunStarted("main", task), *events, ev.RunEnded("main", "answered", "answered")])])


def test_a_recorded_run_is_found_by_its_task_its_call_its_result_and_its_answer(home: Path) -> None:
    @tool
    def lookup(query: str) -> str:
        """Look something up."""
        return "The Rideau Canal opened in 1832."

    client = ScriptedClient([call("lookup", query="gates of Ottawa"), Turn(answer="1832")])
    result = Agent(client, tools=[lookup], home=home).run_sync("When did it open?")
    found = {
        text: [(hit.run.run_id, hit.kind) for hit in find(home, text)] for text in ("when did", "ottawa", "rideau")
    }
    assert found == {
        "when did": [(result.run_id, "task")],
        "ottawa": [(result.run_id, "reply")],
        "rideau": [(result.run_id, "result")],
    }
    (hit,) = find(home, "rideau")
    assert [hit.excerpt[start:end] for start, end in hit.marks] == ["Rideau"]
    with open_to_read(home) as store:
        assert isinstance(store.rows_from(result.run_id, hit.seq, 1)[0].event, ev.ToolFinished)


def test_all_words_must_be_in_the_run_though_not_in_one_event(home: Path) -> None:
    run(home, "one", "Compare the canals", ev.ModelReplied("main", 0, "Rideau"), ev.ModelReplied("main", 1, "Panama"))
    run(home, "two", "Compare the canals", ev.ModelReplied("main", 0, "Rideau"))
    assert [hit.run.run_id for hit in find(home, "panama rideau")] == ["one"]
    assert [hit.run.run_id for hit in find(home, "rideau compare")] == ["two", "one"]
    assert find(home, "panama suez") == []


def test_a_word_finds_longer_words_and_quotes_find_the_exact_phrase(home: Path) -> None:
    run(home, "one", "The opening of canals: café")
    for text in ("canal", "OPEN", "cafe", '"opening of canals"'):
        assert [hit.run.run_id for hit in find(home, text)] == ["one"], text
    for text in ('"canal"', '"canals of"', "pening"):
        assert find(home, text) == [], text


def test_chinese_is_found_by_any_part_of_it(home: Path) -> None:
    run(home, "one", "京杭大运河有多长？")
    (hit,) = find(home, "运河")
    assert hit.excerpt[hit.marks[0][0] : hit.marks[0][1]] == "运河"
    assert find(home, "河运") == []


@pytest.mark.parametrize(
    "text", ["", '"', "*", "AND", "a AND", "NEAR(", "col:x", "^", "-", "\0", "\ud83d", '""', "'; --"]
)
def test_no_query_is_an_error(home: Path, text: str) -> None:
    run(home, "one", "plain task")
    assert find(home, text) == []


def test_terms_without_a_letter_or_digit_are_dropped() -> None:
    assert [(term.text, term.is_phrase) for term in parse_query('a "b c" - "d')] == [
        ("a", False),
        ("b c", True),
        ("d", True),
    ]


def test_hits_are_newest_first_and_continue_before_a_run(home: Path) -> None:
    write_runs(home, ((f"run{n}", short_run(n)) for n in range(5)))
    assert [hit.run.run_id for hit in find(home, "task")] == ["run4", "run3", "run2", "run1", "run0"]
    assert [hit.run.run_id for hit in find(home, "task", before="run2")] == ["run1", "run0"]


def test_a_run_that_grows_is_indexed_as_far_as_it_is_recorded(home: Path) -> None:
    journal = Journal.start(open_store(home), ev.RunStarted("main", "first words"), run_id="one")
    with open_to_read(home) as store, SearchIndex(store) as index:
        index.update()
        assert list(index.search("later")) == []
        journal.append(ev.ModelReplied("main", 0, "later words", usage={"input_tokens": 7, "requests": 1}))
        journal.flush()
        index.update()
        assert [hit.seq for hit in index.search("later")] == [1]
        assert index.totals(["one"])["one"]["usage"]["input_tokens"] == 7
    journal.abandon()


def test_the_totals_are_those_of_the_whole_run_however_often_it_was_indexed(home: Path) -> None:
    events = short_run(3)
    totals = RunTotals()
    for event in events:
        totals = RunTotals.from_counts(totals.counts)
        totals(event)
    assert totals.counts == RunTotals(events).counts
    write_runs(home, [("one", events)])
    with open_to_read(home) as store, SearchIndex(store) as index:
        index.update()
        assert index.totals(["one", "unknown"]) == {"one": RunTotals(events).counts}


def test_an_update_may_stop_early_and_continues_later(home: Path) -> None:
    write_runs(home, ((f"run{n}", short_run(n)) for n in range(3)))
    with open_to_read(home) as store, SearchIndex(store) as index:
        assert index.update(seconds=0).indexed == 1  # the newest
        assert [hit.run.run_id for hit in index.search("task")] == ["run2"]
        assert index.update().indexed == index.update().runs == 3


def test_a_long_run_is_indexed_in_parts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("closeout.journal.text_search.BATCH_EVENTS", 7)
    events = short_run(1)
    write_runs(home, [("one", events)])
    with open_to_read(home) as store, SearchIndex(store) as index:
        assert index.update(seconds=0).indexed == 0
        assert list(index.search("answer")) == []
        assert index.update().indexed == 1
        assert [hit.seq for hit in index.search("answer")] == [23]
        assert index.totals(["one"]) == {"one": RunTotals(events).counts}


def test_two_that_index_at_once_index_each_event_once(home: Path) -> None:
    write_runs(home, ((f"run{n}", short_run(n)) for n in range(20)))
    together = threading.Barrier(2)

    def update() -> None:
        with open_to_read(home) as store, SearchIndex(store) as index:
            together.wait(timeout=60)
            index.update()

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(update), pool.submit(update)]:
            done.result()
    db = sqlite3.connect(home / "search.sqlite3")
    count = db.execute("SELECT count(*), count(DISTINCT rowid) FROM texts WHERE texts MATCH 'task'").fetchone()
    db.close()
    assert count == (20, 20)


def test_many_that_make_the_index_at_once_wait_for_each_other(tmp_path: Path) -> None:
    crowd = 4
    together = threading.Barrier(crowd)

    def connect(path: Path) -> None:
        together.wait(timeout=60)
        search._connect(path).close()

    with ThreadPoolExecutor(crowd) as pool:
        for n in range(30):  # without waiting, one in 25 failed
            list(pool.map(connect, [tmp_path / f"{n}.sqlite3"] * crowd))


def test_removed_runs_leave_no_text_behind(home: Path) -> None:
    run(home, "one", "private words")
    run(home, "two", "other words")
    assert find(home, "private")
    db = sqlite3.connect(home / "journal.sqlite3")
    db.execute("DELETE FROM runs WHERE run_id='one'")
    db.commit()
    db.close()
    assert [hit.run.run_id for hit in find(home, "words")] == ["two"]
    db = sqlite3.connect(home / "search.sqlite3")
    assert db.execute("SELECT count(*) FROM texts WHERE texts MATCH 'private'").fetchone() == (0,)
    db.close()


def test_a_deleted_run_leaves_no_words_in_the_files_of_the_index(home: Path) -> None:
    run(home, "one", "Geheimwort")
    run(home, "two", "other words")
    assert find(home, "geheimwort")
    here("runs", "delete", "one")
    files = list(home.glob("search.sqlite3*"))
    assert files
    assert not any(b"geheimwort" in file.read_bytes().lower() for file in files)


def test_a_damaged_index_is_made_again(home: Path) -> None:
    run(home, "one", "some words")
    (home / "search.sqlite3").write_bytes(b"not a database" * 100)
    assert [hit.run.run_id for hit in find(home, "words")] == ["one"]


def test_an_index_of_another_format_is_made_again(home: Path) -> None:
    run(home, "one", "some words")
    db = sqlite3.connect(home / "search.sqlite3")
    db.execute("CREATE TABLE runs (other)")
    db.execute("PRAGMA user_version=99")
    db.close()
    assert [hit.run.run_id for hit in find(home, "words")] == ["one"]


def test_a_home_without_a_journal_is_searched_without_creating_one(home: Path) -> None:
    home.mkdir()
    assert find(home, "words") == []
    assert not (home / "journal.sqlite3").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_the_index_of_a_home_that_may_not_be_written_is_in_the_users_cache(home: Path, tmp_path: Path) -> None:
    run(home, "one", "some words")
    cache = tmp_path / "cache"
    script = (
        "import ctypes, os, sys\n"
        "if os.getuid() == 0:\n"  # to root, permissions mean nothing while it has these two capabilities
        "    [ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) for capability in (1, 2)]\n"
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])\n"
    )
    search = (
        "from pathlib import Path\n"
        "from closeout.journal.readonly import open_to_read\n"
        "from closeout.journal.text_search import SearchIndex\n"
        f"with open_to_read(Path({str(home)!r})) as store, SearchIndex(store) as index:\n"
        "    index.update()\n"
        "    print([hit.run.run_id for hit in index.search('words')])\n"
    )
    home.chmod(0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, search],
            capture_output=True,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": str(cache), "HOME": str(tmp_path)},
            timeout=60,
        )
    finally:
        home.chmod(0o755)
    assert (done.stdout, done.stderr) == ("['one']\n", "")
    assert not (home / "search.sqlite3").exists()
    assert len(list(tmp_path.rglob("search/*.sqlite3"))) == 1


def test_events_are_read_from_a_number_on(home: Path) -> None:
    events = short_run(1)
    write_runs(home, [("one", events), ("two", short_run(2))])
    with open_to_read(home) as store:
        whole = list(store.rows("one"))
        assert [type(row.event) for row in whole] == [type(event) for event in events]
        for seq in (0, 1, 4, 5, 7, len(events) - 1):
            assert store.rows_from("one", seq) == whole[seq:]
        assert store.rows_from("one", 3, 4) == whole[3:7]
        assert (
            store.rows_from("one", len(events)) == store.rows_from("one", 10**9) == store.rows_from("one", 10**30) == []
        )
        assert list(islice(store.each_run(), 5)) == store.runs()
        assert [record.run_id for record in store.each_run(before="two")] == ["one"]


def test_a_run_of_this_process_is_found_before_its_events_are_committed(home: Path) -> None:
    result = Agent(ScriptedClient([answer("42")]), home=home).run_sync("6*7?")
    assert [hit.run.run_id for hit in find(home, "42")] == [result.run_id]
