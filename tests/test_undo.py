"""Undo a call: once, on the record, with what the call was made with and what it returned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli_process import here
from closeout import Agent, tool
from closeout.errors import RunNotFound, UsageError
from closeout.journal.events import RunStarted
from closeout.journal.run_journal import Journal
from closeout.journal.store import open_store
from closeout.testing import ScriptedClient, answer, call

AGENT = """
from closeout import Agent, tool
from closeout.testing import ScriptedClient, answer, call

def unsend(arguments, result):
    return f"took back {result} from {arguments['to']}"

@tool(effects="reversible", undo=unsend)
def send(to: str) -> str:
    \"\"\"Send.\"\"\"
    return "mail 7"

agent = Agent(ScriptedClient([call("send", to="Ada"), answer("done")]), [send])
"""


class Mail:
    def __init__(self) -> None:
        self.undone: list[tuple[dict[str, Any], Any]] = []
        self.fails = False

    def agent(self, home: Path) -> Agent[Any]:
        async def unsend(arguments: dict[str, Any], result: Any) -> str:
            if self.fails:
                raise ConnectionError("no network")
            self.undone.append((arguments, result))
            return "took it back"

        @tool(effects="reversible", undo=unsend)
        def send(to: str) -> dict[str, int]:
            """Send."""
            return {"id": 7}

        @tool
        def shout(to: str) -> str:
            """Shout."""
            return "heard"

        turns = [call("send", to="李雷"), call("shout", to="Ada"), answer("done")]
        return Agent(ScriptedClient(turns), [send, shout], home=home, name="post")


async def test_a_call_is_undone_once_with_its_arguments_and_its_result(home: Path) -> None:
    mail = Mail()
    agent = mail.agent(home)
    run = await agent.run("Write.", user="ann")
    before = [*open_store(home).rows(run.run_id)]
    first, second = await agent.undo(run.run_id, "r1"), await agent.undo(run.run_id, "r1")
    assert (first.success, first.result, second.result) == (True, "took it back", "took it back")
    assert mail.undone == [({"to": "李雷"}, {"id": 7})]
    assert [*open_store(home).rows(run.run_id)] == before, "the run itself stays as it is"
    record = open_store(home).run(f"{run.run_id}.undo-r1")
    assert (record.status, record.task) == ("answered", f"Undo r1 of run {run.run_id}")
    (began,) = (row.event for row in open_store(home).rows(record.run_id) if isinstance(row.event, RunStarted))
    assert (began.user, began.name) == ("ann", "post"), "it belongs to the same person"


async def test_what_failed_can_be_tried_again(home: Path) -> None:
    mail = Mail()
    agent = mail.agent(home)
    run = await agent.run("Write.")
    mail.fails = True
    failed = await agent.undo(run.run_id, "r1")
    assert (failed.success, "no network" in failed.summary) == (False, True)
    mail.fails = False
    assert (await agent.undo(run.run_id, "r1")).success
    assert len(mail.undone) == 1


async def test_a_kill_while_a_call_is_undone_is_told_and_repeats_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = Mail()
    agent = mail.agent(home)
    run = await agent.run("Write.")

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            await agent.undo(run.run_id, "r1")
    assert len(mail.undone) == 1
    told = await agent.undo(run.run_id, "r1")
    assert (told.success, told.summary.startswith("Interrupted")) == (False, True)
    assert len(mail.undone) == 1


async def test_calls_of_sub_agents_and_of_programs_are_undone_too(home: Path) -> None:
    undone: list[str] = []

    @tool(undo=lambda arguments, result: undone.append(arguments["to"]))
    def send(to: str) -> str:
        """Send."""
        return "sent"

    below = Agent(ScriptedClient([call("send", to="Ada"), answer("sent")]), [send], name="programmer")
    turns = [call("programmer", task="Send."), call("run_program", code="send(to='李雷')"), answer("done")]
    tools = [below.as_tool("programmer", "Sends."), send]
    agent = Agent(ScriptedClient(turns), tools, home=home, code_mode=True)
    run = await agent.run("Write.")
    for call_id in ("r1:programmer/r1", "r2:program/r1"):
        assert (await agent.undo(run.run_id, call_id)).success
    assert undone == ["Ada", "李雷"]


async def test_what_cannot_be_undone_says_why(home: Path) -> None:
    agent = Mail().agent(home)
    run = await agent.run("Write.")
    for call_id, problem in (("r2", "shout has no undo"), ("r9", "has made no call r9"), ("../r1", "made no call")):
        with pytest.raises(UsageError, match=problem):
            await agent.undo(run.run_id, call_id)
    with pytest.raises(RunNotFound):
        await agent.undo("none", "r1")


def test_the_command_undoes_a_call(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "postbox.py").write_text(AGENT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ran = json.loads(here("run", "Write.", "-a", "postbox:agent", "--json").out)
    said = here("runs", "undo", ran["run_id"], "r1", "-a", "postbox:agent")
    assert (said.code, said.out) == (0, "took back mail 7 from Ada\n")
    as_json = json.loads(here("runs", "undo", ran["run_id"], "r1", "-a", "postbox:agent", "--json").out)
    assert as_json == {"run_id": ran["run_id"], "call": "r1", "undone": True, "result": "took back mail 7 from Ada"}
    refused = here("runs", "undo", ran["run_id"], "r5", "-a", "postbox:agent")
    assert (refused.code, "has made no call r5" in refused.err) == (2, True)
