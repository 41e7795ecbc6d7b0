"""Journals that earlier versions wrote: they open, are migrated and listed, and their runs are replayed and resumed."""

from __future__ import annotations

import gzip
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.errors import JournalError, ResumeRefused
from closeout.journal.check import check_home
from closeout.journal.database import VERSION
from closeout.journal.readonly import _ReadOnlyJournal
from closeout.journal.store import Store, close_store, open_store
from closeout.run.lifecycle import replay_run
from closeout.testing import ScriptedClient, answer, call

JOURNALS = Path(__file__).parent / "data" / "journals"
NAMES = sorted(path.name.split(".")[0] for path in JOURNALS.glob("*.sqlite3.gz"))


def shop(home: Path, paid: list[int], **policy: Any) -> Agent:
    """The agent of make_journal.py."""

    @tool(read_only=True)
    def price(item: str) -> str:
        """Return a price."""
        return f"{item} costs 5"

    def pay(amount: int) -> str:
        """Pay an amount."""
        paid.append(amount)
        return "receipt 17"

    def script(view: Any) -> Any:
        if "costs 5" not in view.text:  # the process was killed before it wrote the price
            return call("price", item="茶")
        return answer("5 für 茶") if "receipt" in view.text else call("pay", amount=5)

    tools = [price, tool(**policy)(pay)]
    return Agent(
        ScriptedClient(script), tools, instructions="Be exact.", dialect="function_call", name="shop", home=home
    )


# What a resume needs: at first runs were recorded without instructions, and before that results were shown otherwise.
TAKE, FORCE = {"on_change": "take"}, {"despite_changes": True}
NEEDED: dict[str, Any] = {
    "format1-keys": FORCE,
    "format1-events": FORCE,
    **dict.fromkeys(("format1-commits", "format2", "format3", "format3-approvals"), TAKE),
}


@pytest.mark.parametrize("name", NAMES)
async def test_a_journal_of_every_format_is_migrated_and_its_runs_resumed(name: str, tmp_path: Path) -> None:
    file = tmp_path / "journal.sqlite3"
    file.write_bytes(gzip.decompress((JOURNALS / f"{name}.sqlite3.gz").read_bytes()))
    store = open_store(tmp_path)
    statuses = {run.run_id: run.status for run in store.each_run()}
    waits = {"waits": "waiting"} if name.startswith(("format3-", "format4")) else {}
    assert statuses == {"ended": "answered", "killed": "interrupted", **waits}
    paid: list[int] = []

    result, departure = await replay_run(shop(tmp_path, paid).plan(), "ended", list(store.rows("ended")))
    assert (result.answer, paid) == ("5 für 茶", [])
    assert re.search("^$|ModelRequested 0: (size|added) was", departure), "at most, the prompt of then was longer"

    agent, needed = shop(tmp_path, paid), NEEDED.get(name, {})
    if needed:
        with pytest.raises(ResumeRefused, match="differ"):
            await agent.resume("killed")
    if "despite_changes" in needed:
        with pytest.raises(ResumeRefused, match=r"TurnAccepted: returns was .*--force"):
            await agent.resume("killed", on_change="take")
    killed = await agent.resume("killed", **needed)
    assert (killed.answer, paid) == ("5 für 茶", [5])

    for run_id in waits:
        agent = shop(tmp_path, paid, approval="always")
        waiting = await agent.resume(run_id, **needed)
        assert ([each.arguments for each in waiting.waiting], paid) == ([{"amount": 5}], [5])
        decided = await agent.resume(run_id, decisions={each.id: True for each in waiting.waiting})
        assert (decided.answer, paid) == ("5 für 茶", [5, 5])

    assert check_home(tmp_path).run_problems == ()
    close_store(tmp_path)
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_a_journal_of_the_first_format_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    data = gzip.decompress((JOURNALS / "format1-keys.sqlite3.gz").read_bytes())
    (tmp_path / "journal.sqlite3").write_bytes(data)
    with pytest.raises(JournalError, match="is of an old format, and cannot be written here"):
        Store(tmp_path, _ReadOnlyJournal(tmp_path))
    assert (tmp_path / "journal.sqlite3").read_bytes() == data
