"""The data of a person: found, written into files, and deleted so that no byte of it is left in the home."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli_process import here
from closeout import Agent, RunContext, ToolOutput, delete_data, export_data, find_data, tool
from closeout.errors import ConfigError, JournalLocked, UsageError
from closeout.evaluate import what_if
from closeout.homes import DatabaseHome, Home
from closeout.journal.ledger import close_ledgers
from closeout.journal.retention import delete_ended
from closeout.journal.store import Store, close_stores, open_store
from closeout.journal.text_search import SearchIndex
from closeout.server.serve.host import AgentHost
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from serving import serving

PRICES = {"llm": {"prices": {"*": [1, 1]}}}
SECRET = "藍莓Blaubeerkuchen"  # what only Ann says
SHARED = "The rules of the house. " * 200  # a text of both, which is stored once
LONG = f"{SECRET} " * 500  # a text of Ann's that is stored apart


@tool(read_only=True)
def look(key: str, context: RunContext) -> ToolOutput:
    """Look up a key."""
    return ToolOutput(result=f"[{key}] {SHARED}", state_update={"seen": context.user})


def house(home: Home, **options: Any) -> Agent:
    clerk = Agent(ScriptedClient(lambda view: answer("ok") if "[" in view.text else call("look", key="k")), [look])
    tools = [look, clerk.as_tool("clerk", "Looks something up.")]

    def script(view: RequestView) -> Turn:
        if "[k]" in view.text or "ok" in view.text:
            return answer(f"It is {view.question}.")
        return Turn(calls=[call("look", key="k"), call("clerk", task=view.question)])

    return Agent(ScriptedClient(script), tools, home=home, **options)


def places_of(home: Home, text: str) -> list[str]:
    """The files and tables of a home whose bytes hold a text, as it is, or as JSON writes it."""
    forms = {text.encode(), json.dumps(text)[1:-1].encode(), text.casefold().encode()}
    folder = home.folder if isinstance(home, DatabaseHome) else home
    found = [
        path.name for path in folder.rglob("*") if path.is_file() and any(form in path.read_bytes() for form in forms)
    ]
    if isinstance(home, DatabaseHome):
        store = open_store(home)
        schema = home.schema
        tables = store.query("SELECT table_name FROM information_schema.tables WHERE table_schema=?", (schema,))
        written = [each for form in forms for each in (form.hex(), form.decode().replace("\\", "\\\\"))]
        for (table,) in tables:
            has = " OR ".join(["position(? IN t::text) > 0"] * len(written))
            found += [table for _ in store.query(f'SELECT 1 FROM "{schema}".{table} AS t WHERE {has} LIMIT 1', written)]
    return sorted(found)


def holds(home: Home, *tables: str) -> bool:
    """Whether a home holds the secret, and if it is a database, in these tables."""
    found = places_of(home, SECRET)
    return bool(found) and (not isinstance(home, DatabaseHome) or set(tables) <= set(found))


async def test_all_of_a_person_is_found_exported_and_deleted(any_home: Home, tmp_path: Path) -> None:
    home = any_home
    agent = house(home)
    session = agent.session("ann-1", user="ann")
    await session.run(f"Where is the {LONG}?")
    await agent.session("ann-1").run("And now?")  # another program forgot to say who it is
    first = await agent.run(f"Find {SECRET}", user="ann", run_id=f"of-{SECRET}", task_id="7")
    await agent.fork(first.run_id, at=2, new_run_id="forked")
    async for _ in agent.stream(f"Stream {SECRET}", user="ann"):
        pass
    await agent.run_many([{"task": f"Map {SECRET}", "user": "ann"}, {"task": "Find the rules", "user": "bob"}], key="m")
    changed = house(home, instructions="Be quick.")  # the second one of the session names nobody
    await what_if(changed, [first.run_id, "ann-1.2"], allow_read_only=True)
    lanes = [run for run in open_store(home).runs() if run.run_id.endswith(".candidate")]
    assert len(lanes) == 2
    kept = await agent.run("Find the rules", user="bob", run_id="bobs")
    with SearchIndex(agent.store()) as index:  # type: ignore[arg-type]
        index.update()
    found = find_data("ann", home=home)
    assert len(found.runs) == 8
    named = {"ann-1.1", "ann-1.2", f"of-{SECRET}", "forked", *(run.run_id for run in lanes)}
    assert {run.run_id for run in found.runs} >= named
    assert found.sessions == ("ann-1",)
    assert first.state == {"seen": "ann"}

    export_data(tmp_path / "out", "ann", home=home)
    index_file = json.loads((tmp_path / "out" / "index.json").read_text())
    assert [run["run_id"] for run in index_file["runs"]] == [run.run_id for run in found.runs]
    folder = tmp_path / "out" / index_file["runs"][0]["folder"]
    assert LONG.strip() in (folder / "conversation.txt").read_text()
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert (events[0]["type"], events[-1]["type"]) == ("RunStarted", "RunEnded")
    with pytest.raises(UsageError, match="is not an empty folder"):
        export_data(tmp_path / "out", "ann", home=home)

    assert holds(home, "runs", "events", "bodies", "search.sqlite3")
    assert len(delete_data("ann", home=home, dry_run=True).runs) == len(find_data("ann", home=home).runs) == 8
    delete_data("ann", home=home)
    assert find_data("ann", home=home).runs == ()
    assert places_of(home, SECRET) == []
    rows = list(open_store(home).rows(kept.run_id))
    assert SHARED in str([row.event for row in rows])
    assert open_store(home).read(kept.run_id).problems == ()
    close_stores()
    assert places_of(home, SECRET) == []


async def test_the_files_of_a_run_are_exported_and_deleted(any_home: Home, tmp_path: Path) -> None:
    home = any_home
    (tmp_path / "蛋糕.csv").write_text(f"name\n{SECRET}\n" * 400)
    agent = Agent(ScriptedClient([answer("done")]), home=home)
    await agent.run("Read it.", files=[tmp_path / "蛋糕.csv"], user="ann", run_id="r")
    export_data(tmp_path / "out", "ann", home=home)
    (copy,) = (tmp_path / "out" / "0001-r" / "files").iterdir()
    assert (copy.name, copy.read_bytes()) == ("1-蛋糕.csv", (tmp_path / "蛋糕.csv").read_bytes())
    assert holds(home, "bodies")
    delete_data("ann", home=home)
    assert places_of(home, SECRET) == []


async def test_budgets_and_served_users_name_the_same_persons(home: Path) -> None:
    agent = Agent(ScriptedClient([answer("done")] * 9), home=home, max_tokens=100, config=PRICES)
    await agent.run("Spend.", budget={"user:安": "5 USD/day", "team": "9 USD/day"})
    close_ledgers()
    found = find_data("安", home=home)
    assert (len(found.runs), found.budget_keys) == (1, ("user:安",))
    assert "budgets.sqlite3" in places_of(home, "user:安")
    delete_data("安", home=home)
    assert places_of(home, "user:安") == []
    assert find_data("安", home=home).budget_keys == ()
    assert "budgets.sqlite3" in places_of(home, "team")


async def test_a_served_run_belongs_to_the_user_of_the_request() -> None:
    async with serving(Agent(ScriptedClient([answer("done")] * 2))) as served:
        for user in ("ann", "bob"):
            async with served.http.post(f"{served.base_url}/runs", json={"task": "Go.", "user": user}) as response:
                run_id = (await response.json())["run_id"]
        await served.host.wait(run_id)
        assert [run.run_id for run in find_data("bob", home=served.host.store.home).runs] == [run_id]


async def test_runs_that_are_executed_or_wait_are_not_deleted(any_home: Home) -> None:
    home = any_home

    @tool(read_only=True)
    async def nap(context: RunContext) -> str:
        """Wait."""
        await context.sleep_until(datetime(2999, 1, 1, tzinfo=UTC))
        return "over"

    agent = Agent(ScriptedClient([call("nap"), answer("done")]), [nap], home=home)
    await agent.run("Wait.", user="ann", run_id="r")
    await agent.signal("r", "note", SECRET)
    await agent.send("r", SECRET)
    assert holds(home, "signals", "messages")
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="--waiting"):
            delete_data("ann", home=home, dry_run=dry_run)
    assert len(delete_data("ann", home=home, waiting=True, dry_run=True).runs) == 1
    rehearsed = here("data", "delete", "--user", "ann", "--dry-run")
    assert (rehearsed.code, rehearsed.out) == (2, "r  waiting  Wait.\n")
    assert "--waiting" in rehearsed.sentence
    other = Store(home)
    try:
        number = other.reopen_run("r")
        with pytest.raises(JournalLocked, match="nothing was deleted"):
            delete_data("ann", home=home, waiting=True)
        other.release(number)
    finally:
        other.close()
    open_store(home).query("SELECT 1")
    await agent.resume("r")
    assert len(delete_data("ann", home=home, waiting=True).runs) == 1
    assert places_of(home, SECRET) == []


async def test_a_session_is_deleted_by_its_id_and_others_of_the_name_stay(any_home: Home) -> None:
    agent = Agent(ScriptedClient([answer("done")] * 9), home=any_home)
    for session_id in ("s", "s.1", "ss"):
        await agent.session(session_id).run("Hello.")
    assert [run.run_id for run in delete_data(session="s", home=any_home).runs] == ["s.1"]
    assert sorted(run.run_id for run in open_store(any_home).runs()) == ["s.1.1", "ss.1"]
    assert delete_data(session="nobody", home=any_home).runs == ()
    for names in ({}, {"user": "a", "session": "b"}):
        with pytest.raises(UsageError, match="either a user or a session"):
            find_data(**names, home=any_home)
    with pytest.raises(UsageError, match="user must be a text, got 5"):
        find_data(5, home=any_home)  # type: ignore[arg-type]


async def test_runs_of_others_that_repeat_what_a_person_said_are_named(any_home: Home, tmp_path: Path) -> None:
    agent = Agent(ScriptedClient([answer("done")] * 9), home=any_home)
    await agent.session("team").run("Before.", user="伊芙")
    await agent.session("team").run(f"My secret is {SECRET}.", user="ann")
    await agent.session("team").run("Who says so?")  # nobody is named
    await agent.session("team").run("Hello.", user="bob")
    await agent.session("else").run("Hello.", user="bob")
    found = find_data("ann", home=any_home)
    assert [run.run_id for run in found.runs] == ["team.2", "team.3"]
    named = {"run_id": "team.4", "session": "team", "users": ["bob"]}
    assert found.to_dict()["others"] == [named]
    assert [each.run_id for each in find_data("伊芙", home=any_home).others] == ["team.2", "team.4"]
    assert find_data("bob", home=any_home).others == ()
    note = "team.4 of bob repeats what ann said (session team).\n"
    assert here("data", "list", "--user", "ann").err.endswith(note)
    exported = here("data", "export", "--user", "ann", "-o", str(tmp_path / "out"))
    assert (exported.err.endswith(note), exported.code) == (True, 0)
    assert json.loads((tmp_path / "out" / "index.json").read_text())["others"] == [named]
    for options in (["--dry-run"], ["--yes"]):
        refused = here("data", "delete", "--user", "ann", *options)
        assert refused.code == 2
        assert "team.4 of bob repeats what ann said, so nothing was deleted." in refused.err
        assert "(--session team)" in refused.err
    assert here("data", "delete", "--user", "ann", "--leave-others", "--dry-run", "--json").json["others"] == [named]
    left = here("data", "delete", "--user", "ann", "--leave-others", "--yes")
    assert (left.code, left.err) == (0, f"2 runs deleted.\n{note}")
    assert places_of(any_home, SECRET)
    delete_data(session="team", home=any_home)
    assert places_of(any_home, SECRET) == []


def test_data_on_the_command_line(home: Path, tmp_path: Path) -> None:
    agent = Agent(ScriptedClient([answer("done")] * 9), home=home)
    agent.run_sync("你好", user="安", run_id="r1")
    agent.run_sync("Hello", user="bob", run_id="r2")
    assert here("data", "list", "--user", "安").out == "r1  answered  你好\n"
    assert [run["run_id"] for run in here("data", "list", "--user", "安", "--json").json["runs"]] == ["r1"]
    assert here("data", "list").code == 2
    out = tmp_path / "安"
    assert here("data", "export", "--user", "安", "-o", str(out), "--json").json == {
        "exported": 1,
        "folder": str(out),
        "others": [],
    }
    assert "你好" in (out / "0001-r1" / "conversation.txt").read_text()
    assert here("data", "delete", "--user", "安").sentence.startswith("data delete would delete 1 run. Add --yes")
    assert here("data", "delete", "--user", "安", "--dry-run").err == "1 run would be deleted.\n"
    assert here("data", "delete", "--user", "安", "--yes", "--json").json["deleted"] is True
    assert here("data", "list", "--user", "安").out == ""
    assert "nothing is kept of 'Ann'" in here("data", "delete", "--user", "Ann", "--yes").err
    assert [run.run_id for run in open_store(home).runs()] == ["r2"]


def test_a_person_must_be_a_printable_text(home: Path) -> None:
    agent = Agent(ScriptedClient([answer("done")]), home=home)
    for user in (5, "a\nb", "x" * 600):
        with pytest.raises(UsageError, match="user must be a printable text"):
            agent.run_sync("Hello", user=user)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ retention


async def test_old_runs_are_deleted_every_day_and_by_prune(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @tool(read_only=True)
    async def nap(context: RunContext) -> str:
        """Wait."""
        await context.sleep(1e6)
        return "over"

    agent = Agent(
        ScriptedClient(lambda view: call("nap") if view.question == "Wait." else answer("done")), [nap], home=home
    )
    for run_id in ("old", "older", "new", "long"):
        await agent.run("Hello.", run_id=run_id)
    await agent.run("Wait.", run_id="waits")
    store = open_store(home)
    for run_id, days in (("old", 40), ("older", 100), ("waits", 100)):
        row = (time.time() - days * 86_400, run_id)
        store.submit(store.database.db.execute, "UPDATE runs SET ended=? WHERE run_id=?", row).result()
    # It began long ago, and was interrupted just now.
    row = (time.time() - 100 * 86_400,)
    store.submit(
        store.database.db.execute, "UPDATE runs SET status='running', started=?, ended=NULL WHERE run_id='long'", row
    ).result()
    assert "the setting journal.keep_days" in (await asyncio.to_thread(here, "runs", "prune")).sentence
    monkeypatch.setenv("CLOSEOUT_JOURNAL__KEEP_DAYS", "90")
    assert "would delete 1 run" in (await asyncio.to_thread(here, "runs", "prune")).sentence
    assert (await asyncio.to_thread(here, "runs", "prune", "--yes")).out == "1 run deleted.\n"
    monkeypatch.delenv("CLOSEOUT_JOURNAL__KEEP_DAYS")
    kept = Agent(ScriptedClient([answer("done")]), home=home, config={"journal": {"keep_days": 30}})
    async with AgentHost(kept):
        while "old" in {run.run_id for run in store.runs()}:  # noqa: ASYNC110 - a thread deletes it
            await asyncio.sleep(0.02)
    assert sorted(run.run_id for run in store.runs()) == ["long", "new", "waits"]
    with pytest.raises(ConfigError):
        Agent(ScriptedClient([answer("done")]), config={"journal": {"keep_days": 0}})


def users_house(home: Home) -> None:
    """Runs of two agents: of Ann, of Bob, of a session of Ann's, and of nobody."""
    shop = Agent(ScriptedClient(lambda view: answer("ok")), home=home, name="shop")
    desk = Agent(ScriptedClient(lambda view: answer("ok")), home=home, name="Schalter 柜台")
    shop.run_sync("Apples", user="ann é", run_id="a")
    desk.run_sync("B", user="bob", run_id="b")
    shop.session("chat", user="ann é").run_sync("Cherries")
    shop.session("chat").run_sync("D")  # it repeats what Ann said
    desk.run_sync('Say "shop" and "ann é"', run_id="e")


def test_runs_are_filtered_by_agent_and_user_and_persons_are_listed(any_home: Home) -> None:
    users_house(any_home)

    def listed(*options: str) -> list[str]:
        return [run["run_id"] for run in here("runs", "--json", *options).json]

    assert listed("--agent", "shop") == ["chat.2", "chat.1", "a"]
    assert listed("--agent", "Schalter 柜台") == ["e", "b"]
    assert listed("--user", "ann é") == ["chat.1", "a"]
    assert listed("--user", "bob") == ["b"]
    assert listed("--user", "ann é", "--agent", "shop", "--text", "Cherries") == ["chat.1"]
    assert listed("--user", "bob", "--agent", "shop") == listed("--user", "nobody") == []
    first = here("runs", "--json", "--user", "bob").json[0]
    assert (first["agent"], first["users"]) == ("Schalter 柜台", ["bob"])
    assert "agent" in here("runs").out
    assert here("data", "users").out == "ann é  2 runs\nbob  1 run\n"
    assert here("data", "users", "--json").json == [{"user": "ann é", "runs": 2}, {"user": "bob", "runs": 1}]
    found = here("data", "list", "--user", "ann é", "--agent", "shop", "--json").json["runs"]
    assert [run["run_id"] for run in found] == ["a", "chat.1", "chat.2"]
    assert here("data", "list", "--user", "ann é", "--agent", "desk", "--json").json["runs"] == []
    assert here("runs", "prune", "--agent", "shop", "--user", "ann é", "--yes").out == "2 runs deleted.\n"
    assert listed() == ["e", "chat.2", "b"]


async def test_what_is_on_hold_is_not_deleted_until_it_is_released(any_home: Home) -> None:
    await asyncio.to_thread(users_house, any_home)
    assert here("data", "hold", "b", "nothing").code == 2
    assert here("data", "hold", "--json").json == {"holds": [], "runs": 0}, "all of them or none"
    done = here("data", "hold", "b", "--user", "ann é")
    assert (done.out, done.err) == ("run b\nuser ann é\n", "4 runs on hold.\n")
    store = open_store(any_home)
    assert delete_ended(store, -1) == 1, "the run that nothing holds"
    pruned = here("runs", "prune", "--older-than", "0s", "--yes", "--json").json
    assert pruned == {"deleted": 0, "held": 4}
    refused = here("runs", "delete", "b")
    assert (refused.code, "Run b is on hold, so nothing was deleted" in refused.sentence) == (2, True)
    assert "Release it: closeout data hold b --release" in refused.sentence
    for options in ({"dry_run": True}, {}):
        with pytest.raises(UsageError, match=r"is on hold with the data of 'ann é'.* --user 'ann é' --release"):
            delete_data("ann é", home=any_home, **options)
    with pytest.raises(UsageError, match="is on hold"):
        delete_data("bob", home=any_home)
    agent = Agent(ScriptedClient([answer("ok")]), home=any_home)
    async with serving(agent) as served:
        async with served.http.post(f"{served.base_url}/responses", json={"input": "Hi.", "store": True}) as response:
            made = (await response.json())["id"]
        (run_id,) = {run.run_id for run in store.runs()} - {"a", "b", "chat.1", "chat.2"}
        assert here("data", "hold", run_id).code == 0
        async with served.http.delete(f"{served.base_url}/responses/{made}") as response:
            assert (response.status, "is on hold" in await response.text()) == (409, True)
        assert here("data", "hold", run_id, "--release").code == 0
        async with served.http.delete(f"{served.base_url}/responses/{made}") as response:
            assert response.status == 200
    assert "is not on hold" in here("data", "hold", "--user", "ann", "--release").sentence
    assert here("data", "hold", "--release").code == 2
    assert here("data", "hold", "--user", "ann é", "--release").out == "run b\n"
    assert len(delete_data("ann é", home=any_home).runs) == 3
    assert here("data", "hold", "b", "--release").err == "0 runs on hold.\n"
    assert here("runs", "delete", "b").code == 0


async def test_a_fork_of_an_unnamed_message_and_texts_without_a_run_are_deleted(any_home: Home) -> None:
    @tool(read_only=True)
    def dossier() -> str:
        """Read the dossier."""
        return "Ann was born in BERNBORN. " * 4_000

    def script(view: RequestView) -> Turn:
        return answer("ok") if "BERNBORN" in view.text or "dossier" not in view.text else call("dossier")

    agent = Agent(ScriptedClient(script), [dossier], home=any_home)
    await agent.session("chat", user="ann").run("I am ANNWORD.")
    await agent.session("chat").run("And again.")
    fork = await agent.fork("chat.2", at=1)
    of_fork = await agent.fork(fork.run_id, at=1)
    assert {fork.run_id, of_fork.run_id} <= {run.run_id for run in find_data("ann", home=any_home).runs}
    assert {fork.run_id, of_fork.run_id} <= {run.run_id for run in find_data(session="chat", home=any_home).runs}
    async with AgentHost(agent) as host:
        run_id = await host.submit("Read the dossier.", notes={"user": "ann", "api": "runs"})
        await host.wait(run_id, 20)
        await host.delete(run_id)
    delete_data("ann", home=any_home)
    for text in ("ANNWORD", "BERNBORN"):
        assert places_of(any_home, text) == []
