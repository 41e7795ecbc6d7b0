"""Tests leave the user's own journal alone: scripted models have a temporary home, `isolated` gives any agent one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from closeout import Agent
from closeout.config import home_folder
from closeout.journal.store import open_store
from closeout.testing import ScriptedClient, answer, isolated, serve_script


def test_isolated_gives_a_home_without_settings_and_restores_both(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("CLOSEOUT_LLM__TEMPERATURE", "0.1")
    with isolated() as own:
        assert home_folder() == own
        assert "CLOSEOUT_LLM__TEMPERATURE" not in os.environ
        with serve_script([answer("42")], record=False) as server:
            result = Agent("openai:scripted", base_url=server.base_url, api_key="key").run_sync("What?")
        assert open_store(own).run(result.run_id).status == "answered"
        with isolated() as inner:
            assert home_folder() == inner != own
        assert home_folder() == own
    assert not own.exists()
    assert not home.exists()
    assert (home_folder(), os.environ["CLOSEOUT_LLM__TEMPERATURE"]) == (home, "0.1")


def test_isolated_ends_with_the_exception_of_its_block(home: Path) -> None:
    with pytest.raises(ZeroDivisionError), isolated() as own:
        raise ZeroDivisionError
    assert not own.exists()
    assert home_folder() == home


SCRIPTED = """
import sys
from pathlib import Path
from closeout import Agent
from closeout.testing import ScriptedClient, answer

agent = Agent(ScriptedClient([answer("1"), answer("2")]))
agent.session("talk").run_sync("One")
agent.session("talk").run_sync("Two")
print(agent.store().home)
print([record.run_id for record in agent.session("talk").runs])
Agent(ScriptedClient([answer("3")]), home=True).run_sync("Mine", run_id="mine")
"""


def test_a_scripted_agent_writes_to_the_users_journal_only_if_asked(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "CLOSEOUT_HOME"}
    env = {**kept, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data"), "USERPROFILE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SCRIPTED], env=env, capture_output=True, text=True)
    assert done.stderr == ""
    folder, runs = done.stdout.splitlines()
    assert runs == "['talk.1', 'talk.2']"
    assert not Path(folder).exists(), "it is removed when the process ends"
    (journal,) = tmp_path.rglob("journal.sqlite3")
    assert [record.run_id for record in open_store(journal.parent).runs()] == ["mine"]


async def test_requests_offer_their_last_text_and_their_question() -> None:
    client = ScriptedClient([answer("42")])
    await Agent(client).run("What?", history=[{"role": "user", "content": "Before"}])
    assert (client.requests[0].question, client.requests[0].last) == ("Before", "What?")
    async with serve_script([answer("42")]) as server:
        await Agent("openai:scripted", base_url=server.base_url, api_key="key").run("What?")
    assert {(request.question, request.last) for request in server.requests} == {("What?", "What?")}


async def test_a_list_script_serves_many_conversations() -> None:
    client = ScriptedClient([answer("42")], by="question")
    results = await Agent(client).run_many([f"Question {n}" for n in range(5)])
    assert [result.answer for result in results] == ["42"] * 5
