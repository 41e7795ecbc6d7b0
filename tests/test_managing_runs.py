"""Runs are filtered, exported, imported, deleted and pruned; what other runs need is never lost."""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path
from typing import Any

import pytest

from cli_process import here, on_terminal
from closeout import Agent, Fallback, tool
from closeout.cli.deciding import ask_at_terminal
from closeout.cli.run_ids import complete_run_id
from closeout.errors import JournalLocked, RunNotFound
from closeout.journal.check import check_home
from closeout.journal.store import Store, close_stores, open_store
from closeout.run.waits.decisions import pending_decisions
from closeout.testing import ScriptedClient, Turn, answer, call, serve_script

LONG = "a shared text that is stored apart because it is long. " * 40


@tool(read_only=True)
def look(key: str) -> str:
    """Look something up."""
    return f"{LONG} {key if key == 'own' else ''}"


def make_runs(**options: Any) -> None:
    """Three runs: of two models, one of them failed; the results of two are the same text."""
    script = [call("look", key="a"), answer("red")]
    agent = Agent(ScriptedClient(script, by="question", name="openai:big"), [look], **options)
    agent.run_sync("The first question", run_id="first")
    agent.run_sync("Die zweite Frage: 颜色", run_id="second")
    other = Agent(ScriptedClient([ConnectionError("down")], name="openai:small"), [look], **options)
    other.run_sync("The third question", run_id="third")


def listed(*options: str) -> list[str]:
    return [run["run_id"] for run in here("runs", "--json", *options).json]


def test_runs_are_filtered() -> None:
    make_runs()
    assert listed() == ["third", "second", "first"]
    assert listed("--status", "failed") == ["third"]
    assert listed("--model", "BIG") == ["second", "first"]
    assert listed("--text", "question") == ["third", "first"]
    assert listed("--text", "颜色") == ["second"]
    assert listed("--text", "stored apart", "--status", "answered", "--limit", "1") == ["second"]
    assert listed("--newer-than", "1h") == ["third", "second", "first"]
    assert listed("--older-than", "1h") == []
    assert "No run matches." in here("runs", "--older-than", "1h").out
    assert "Unknown status 'done'" in here("runs", "--status", "done").sentence
    assert "--older-than 30d" in here("runs", "--older-than", "a month").sentence


def test_the_beginning_of_an_id_is_enough_if_it_is_unique(home: Path) -> None:
    agent = Agent(ScriptedClient([answer("red")] * 3, name="openai:m"))
    for run_id in ("red-1", "red-10", "blue-1"):
        agent.run_sync("What colour?", run_id=run_id)
    assert here("runs", "blue", "--json").json["run_id"] == "blue-1"
    assert here("runs", "red-1", "--json").json["run_id"] == "red-1"
    ambiguous = here("runs", "red").sentence
    assert ambiguous.endswith("Several runs begin with red: red-10, red-1. Write more of the id.")
    assert "No run green" in here("runs", "green").sentence
    assert complete_run_id("re") == ["red-10", "red-1"]


def test_approve_without_a_run_lists_what_waits() -> None:
    @tool(approval="always")
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    assert here("approve").out == "No run waits for a decision.\n"
    Agent(ScriptedClient([call("pay", amount=5)]), [pay]).run_sync("Pay 5", run_id="pay-1")
    listed = here("approve").out
    assert "pay(amount=5)" in listed
    assert "closeout approve pay-1 r1" in listed
    waiting = here("approve", "--json").json
    assert [(run["run_id"], run["waiting"][0]["id"]) for run in waiting] == [("pay-1", "r1")]


def test_a_terminal_of_80_columns_shows_what_a_run_waits_for() -> None:
    @tool(approval="always")
    def transfer(amount: int) -> str:
        """Pay."""
        return "paid"

    Agent(ScriptedClient([call("transfer", amount=5)]), [transfer]).run_sync("Pay Ada what we owe her for this year.")
    code, shown = on_terminal("runs", columns=80)
    assert (code, "approve trans…" in shown) == (0, True)
    assert "waits for the approval of a call of transfer" in here("runs").out


def test_the_agent_is_named_with_a_in_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text("llm: {provider: openai, model_name: m}\nagent: {tools: [calculate]}\n")
    monkeypatch.chdir(tmp_path)
    for command in (("agent", "show"), ("agent", "tools"), ("agent", "upgrade", "--check")):
        done = [here(*command, *agent) for agent in (("-a", "a.yaml"), ("--agent=a.yaml",))]
        assert [each.code for each in done] == [0, 0], done[0].err
        assert done[0].out == done[1].out
    assert here("agent", "show", "a.yaml").out == here("agent", "show", "-a", "a.yaml").out
    for command in (("serve",), ("work",), ("eval", "what-if"), ("approvals", "suggest"), ("run", "Go.")):
        assert "No such option" not in here(*command, "-a", "missing.yaml").err


def test_a_model_has_one_name_in_the_list_and_in_the_usage() -> None:
    async def work() -> None:
        async with serve_script([answer("red"), answer("blue")]) as server:
            config = {"llm": {"base_url": server.base_url, "api_key": "k"}}
            await Agent("openai:m", config=config).run("What colour?")
            await Agent(Fallback(["openai:m", "openai:n"]), config=config).run("What colour?")

    asyncio.run(work())
    listed = {run["model"] for run in here("runs", "--json").json}
    used = {each["model"] for each in here("runs", "usage", "--by", "model", "--json").json}
    assert (listed, used) == ({"openai:m", "openai:m | openai:n"}, {"openai:m"})


def test_calls_that_wait_together_are_one_question(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @tool(approval="always")
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    def waits(name: str) -> Agent:
        agent = Agent(
            ScriptedClient([Turn(calls=[call("pay", amount=5), call("pay", amount=6)]), answer("done")]), [pay]
        )
        agent.run_sync("Pay.", run_id=name)
        return agent

    agent = waits("two-1")
    assert "All 2 calls together\n  closeout approve two-1 --all" in here("approve").out
    assert "--all decides on every call" in here("approve", "two-1", "r1", "--all").sentence
    assert "Recorded." in here("approve", "two-1", "--all").err
    assert agent.resume_sync("two-1").answer == "done"
    assert "waits for no approval" in here("approve", "two-1", "--all").sentence
    waits("two-2")
    pending = pending_decisions(open_store(home).rows("two-2"))
    for typed, verdicts in (
        ("y\n", ["approve", "approve"]),
        ("n\nToo much.\n", ["deny", "deny"]),
        ("e\ny\nn\nNo.\n", ["approve", "deny"]),
        ("", []),
    ):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert [each.verdict for each in ask_at_terminal(pending).values()] == verdicts


def test_exported_runs_are_imported_elsewhere(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_runs()
    file = tmp_path / "some" / "runs.closeout"
    assert here("runs", "export", "first", "third", "-o", str(file)).out == f"2 runs in {file}.\n"
    assert [path.name for path in file.parent.iterdir()] == ["runs.closeout"]
    assert "exists already" in here("runs", "export", "-o", str(file)).sentence
    before = list(open_store(home).rows("first"))
    close_stores()
    monkeypatch.setenv("CLOSEOUT_HOME", str(tmp_path / "other"))
    assert here("runs", "import", str(file)).out == "2 runs imported.\n"
    assert here("runs", "import", str(file)).out == "Nothing new: the journal has runs of these names already.\n"
    assert listed() == ["third", "first"]
    assert list(open_store(tmp_path / "other").rows("first")) == before
    assert here("runs", "first").out.endswith("answer: red\n")
    assert not check_home(tmp_path / "other").run_problems


def test_no_import_replaces_a_run_whatever_became_of_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(approval="always")
    def pay(key: str) -> str:
        """Pay."""
        return "paid"

    Agent(ScriptedClient([call("pay", key="ada")]), [pay]).run_sync("Pay Ada.", run_id="case")
    Agent(ScriptedClient([])).run_sync("It fails.", run_id="failed")
    theirs = tmp_path / "theirs"
    monkeypatch.setenv("CLOSEOUT_HOME", str(theirs))
    for run_id in ("case", "failed", "new"):
        Agent(ScriptedClient([answer("nothing")])).run_sync("A stranger's.", run_id=run_id)
    monkeypatch.setenv("CLOSEOUT_HOME", str(home))
    assert here("runs", "import", str(theirs / "journal.sqlite3")).out == "1 run imported.\n"
    store = open_store(home)
    assert [store.run(run_id).task for run_id in ("case", "failed", "new")] == [
        "Pay Ada.",
        "It fails.",
        "A stranger's.",
    ]
    assert store.run("case").status == "waiting"


def test_an_imported_run_starts_nothing_before_a_person_trusts_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid: list[int] = []

    @tool(approval="always")
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    marker = tmp_path / "imported"
    (tmp_path / "stranger.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    agent = Agent(ScriptedClient([call("pay", amount=5), answer("done")]), [pay])
    agent.run_sync("Pay 5", run_id="pay-1", origin={"model": None, "config": [], "agent": "stranger:agent"})
    server = {"model": "openai:m", "config": [], "mcp": [f"touch {marker}"], "base_url": "http://127.0.0.1:9"}
    Agent(ScriptedClient([answer("5")])).run_sync("Pay 5", run_id="server-1", origin=server)
    assert here("runs", "export", "-o", str(tmp_path / "runs.closeout")).code == 0
    close_stores()
    monkeypatch.setenv("CLOSEOUT_HOME", str(tmp_path / "other"))
    assert here("runs", "import", str(tmp_path / "runs.closeout")).code == 0

    for command in ("resume", "fork", "replay"):
        done = here(command, "pay-1")
        assert done.code == 2
        assert (
            "names what to start or to use: agent stranger:agent. If you trust it: closeout runs trust pay-1"
            in done.err
        )
    assert f"base_url http://127.0.0.1:9; mcp touch {marker}" in here("resume", "server-1").sentence
    assert "There is no conversation to continue" in here("run", "-c", "And now?").sentence
    assert "Recorded." in here("approve", "pay-1", "r1").err  # which makes the run due
    assert here("resume", "--due").err == "0 runs resumed.\n"
    assert asyncio.run(agent.resume_due()) == []
    assert not marker.exists()
    assert paid == []

    assert here("runs", "trust", "pay-1").out == "1 run trusted.\n"
    assert here("resume", "pay-1").code == 2  # the module has no agent
    assert marker.exists()
    (result,) = asyncio.run(agent.resume_due())
    assert (result.answer, paid) == ("done", [5])


def test_export_and_import_explain_what_is_missing(tmp_path: Path) -> None:
    assert "Add -o" in here("runs", "export", "first").sentence
    assert "No run first" in here("runs", "export", "first", "-o", str(tmp_path / "x")).sentence
    assert "no such run" in here("runs", "export", "-o", str(tmp_path / "x")).sentence
    assert "import needs a file" in here("runs", "import").sentence
    assert "No such file" in here("runs", "import", str(tmp_path / "none")).sentence
    (tmp_path / "text").write_text("not a journal " * 100)
    done = here("runs", "import", str(tmp_path / "text"))
    assert done.code in (2, 3)
    assert "is no journal, such as `closeout runs export` writes" in done.sentence
    assert list(tmp_path.glob(".closeout-export-*")) == []


def test_deleted_runs_leave_what_others_need(home: Path) -> None:
    make_runs()
    (bodies,) = open_store(home).query("SELECT count(*) FROM bodies")
    assert here("runs", "delete", "first").out == "1 run deleted.\n"
    assert listed() == ["third", "second"]
    assert LONG in str(list(open_store(home).rows("second")))
    assert not check_home(home).run_problems
    assert here("runs", "delete", "second", "third").out == "2 runs deleted.\n"
    assert open_store(home).query("SELECT count(*) FROM bodies") == [(0,)] != [bodies]
    assert open_store(home).query("SELECT count(*) FROM events") == [(0,)]
    assert "No run nothing" in here("runs", "delete", "nothing").sentence
    assert "delete needs the ids" in here("runs", "delete").sentence


def test_a_text_that_was_deleted_is_stored_again(home: Path) -> None:
    make_runs()  # this process remembers that it has stored the text
    other = Store(home)  # as another process does
    other.delete_runs(["first", "second", "third"])
    other.close()
    make_runs()
    assert not check_home(home).run_problems
    assert LONG in str(list(open_store(home).rows("second")))


async def test_a_run_that_is_executed_is_not_deleted(home: Path) -> None:
    begun = asyncio.Event()

    @tool(read_only=True)
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.sleep(600)
        return ""

    running = asyncio.ensure_future(Agent(ScriptedClient([call("wait")]), [wait]).run("Wait", run_id="busy"))
    await begun.wait()
    done = await asyncio.to_thread(here, "runs", "prune", "--newer-than", "1h", "--yes")
    assert done.out == "0 runs deleted.\n"
    with pytest.raises(JournalLocked, match="is being executed"):
        await asyncio.to_thread(open_store(home).delete_runs, ["busy"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert open_store(home).delete_runs(["busy"]) == 1
    with pytest.raises(RunNotFound):
        open_store(home).run("busy")


def test_runs_are_filtered_by_their_calls() -> None:
    def refund(amount: int) -> str:
        """Refund."""
        if amount > 9:
            raise ValueError("too much")
        return "done"

    def agent(amount: int, *, asks: bool = False) -> Agent:
        script = [call("refund", amount=amount), answer("well")]
        return Agent(ScriptedClient(script), [tool(refund, approval="always" if asks else "never"), look])

    make_runs()
    agent(5).run_sync("Refund.", run_id="paid")
    agent(50).run_sync("Refund.", run_id="failed")
    agent(5, asks=True).run_sync("Refund.", run_id="denied")
    assert listed("--tool", "refund") == ["failed", "paid"]
    assert here("approve", "denied", "--deny", "no", "--no-resume").code == 0
    agent(5, asks=True).resume_sync("denied")
    assert listed("--tool", "refund") == ["denied", "failed", "paid"]
    assert listed("--tool", "refund", "--failed-call") == listed("--failed-call") == ["denied", "failed"]
    assert listed("--tool", "look", "--status", "answered", "--text", "zweite") == ["second"]
    assert listed("--tool", "look", "--failed-call") == listed("--tool", "LOOK") == []
    assert here("runs", "--tool", "absent").out == "No run matches.\n"
    assert here("runs", "prune", "--tool", "look", "--dry-run", "--json").json["would_delete"] == ["second", "first"]


def test_prune_goes_by_filters_and_asks(home: Path) -> None:
    make_runs()
    assert "prune needs a filter" in here("runs", "prune").sentence
    assert "would delete 1 run. Add --yes" in here("runs", "prune", "--status", "failed").sentence
    assert here("runs", "prune", "--status", "failed", "--dry-run").out == "third\n1 run would be deleted.\n"
    dry = here("runs", "prune", "--status", "failed", "--dry-run", "--yes", "--json")
    assert dry.json == {"would_delete": ["third"], "held": 0}
    assert "--dry-run goes with prune" in here("runs", "delete", "third", "--dry-run").sentence
    assert len(listed()) == 3
    assert here("runs", "prune", "--status", "failed", "--yes", "--json").json == {"deleted": 1, "held": 0}
    assert here("runs", "prune", "--older-than", "1d", "--yes").out == "0 runs deleted.\n"
    assert listed() == ["second", "first"]
    store = open_store(home)
    store.submit(
        store.database.db.execute, "UPDATE runs SET started=? WHERE run_id='first'", (time.time() - 1e6,)
    ).result()
    assert here("runs", "prune", "--older-than", "1w", "--yes").out == "1 run deleted.\n"
    assert listed() == ["second"]
    assert listed("--text", "question") == []
