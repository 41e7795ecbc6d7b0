"""Quotes are found in what a run has read, wherever it was read and whatever happened since."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from cli_process import here
from closeout import Agent, Flow, Handoff, Report, RunResult, tool
from closeout.context.policy import EvictionPolicy
from closeout.journal.events import ToolFinished
from closeout.journal.store import open_store
from closeout.testing import RequestView, ScriptedClient, Turn, call, say
from journal_file import cuts

PAGES = {"canal": "The canal opened in 1832.", "bridge": "The bridge fell in 1907.", "lock": "The lock has 47 gates."}
QUOTES = [("r1", "The canal opened in 1832"), ("r2", "bridge fell in 1907")]


@tool(read_only=True)
def read(page: str) -> str:
    """Read a page."""
    return PAGES[page] + " ·" * 400


def report(*quotes: tuple[str, str]) -> Turn:
    claims = [{"text": "So.", "quotes": [{"text": text, "handle": handle}]} for handle, text in quotes or QUOTES]
    return say(json.dumps({"title": "Report", "claims": claims}))


READS = [call("read", page="canal"), call("read", page="bridge"), call("read", page="lock")]


def found(result: RunResult[Any]) -> list[str]:
    assert result.status == "answered", result
    return [citation.source.handle for citation in result.citations if citation.source]


def test_after_eviction_and_compaction(home: Path) -> None:
    summary = "The canal opened long ago, and the bridge fell. " * 5
    for policy, script in (
        (EvictionPolicy(keep=1, batch=1), [*READS, report()]),
        (EvictionPolicy(high_water=0.3, low_water=0.1), [*READS[:2], say(summary), READS[2], say(summary), report()]),
    ):
        config = {"llm": {"max_context_length": 4000}}
        model = ScriptedClient(script)
        agent = Agent(model, [read], answer=Report, context=policy, home=home, config=config)
        assert found(agent.run_sync("When?")) == ["r1", "r2"]
        assert "The canal opened in 1832" not in str(model.requests[-1].messages), "it has left the prompt"


def test_of_a_sub_agent_by_its_own_names_and_by_those_of_its_caller(home: Path) -> None:
    words = "[r1: “The canal opened in 1832”]"
    for handle in ("r1", "r1:reader/r1", "r1:reader"):
        reader = Agent(ScriptedClient([READS[1], READS[0], say(words)]), [read])
        again = call("read_result", handle="r1:reader/r2")
        answer = report((handle, "bridge fell in 1907"), ("r2", "The canal opened in 1832"))
        script = [call("reader", task="Read."), again, answer]
        model = ScriptedClient(script)
        agent = Agent(model, [reader.as_tool("reader", "Reads.")], answer=Report, home=home)
        assert found(agent.run_sync("When?")) == ["r1:reader/r1", "r1:reader/r2"], handle
        assert "The canal opened in 1832" in model.requests[-1].messages[-1].text, "its caller can open it"


def test_across_a_handoff(home: Path) -> None:
    answer = report(("r1", "The canal opened in 1832"), ("r3", "bridge fell in 1907"))
    writer = Agent(ScriptedClient([READS[1], answer]), [read], name="writer", answer=Report, home=home)
    front = Agent(
        ScriptedClient([READS[0], call("transfer_to_writer")]),
        [read],
        handoffs=[Handoff(writer)],
        home=home,
    )
    assert len(found(front.run_sync("When?"))) == 2


def test_of_a_program(home: Path) -> None:
    program = say('```python\nprint(read("canal")[:9])\nprint(read("bridge")[:9])\n```')
    answer = say(f"```python\nfinal_answer({report().text})\n```")
    agent = Agent(ScriptedClient([program, answer]), [read], dialect="code", answer=Report, home=home)
    assert found(agent.run_sync("When?")) == ["r1:program/r1", "r1:program/r2"]


def write(view: RequestView) -> Turn:
    read_so_far = sum(text in view.text for text in PAGES.values())
    return READS[read_so_far] if read_so_far < len(READS) else report()


def test_after_a_kill_at_any_event_and_in_a_fork(tmp_path: Path) -> None:
    def agent(home: Path) -> Agent[Any, Report]:
        return Agent(ScriptedClient(write), [read], answer=Report, home=home)

    whole = agent(tmp_path).run_sync("When?", run_id="run")
    assert found(whole) == ["r1", "r2"]
    for _ in cuts(tmp_path):
        resumed = agent(tmp_path).resume_sync("run")
        assert found(resumed) == ["r1", "r2"]
    forked = asyncio.run(agent(tmp_path).fork("run", at=2))
    assert found(forked) == ["r1", "r2"]


def test_of_readers_in_the_background_after_a_kill_at_any_event(tmp_path: Path) -> None:
    pages, fetched = [*PAGES, "mill"], list[str]()
    texts = {page: f"The {page} opened in {1801 + number}." for number, page in enumerate(pages)}
    quotes = [(f"r{number}:reader/r1", text) for number, text in enumerate(texts.values(), 1)]

    @tool(read_only=True)
    async def fetch(page: str) -> str:
        """Fetch a page."""
        fetched.append(page)
        return texts[page]

    def note(view: RequestView) -> Turn:
        page = view.question.split()[-1]
        return say(f"It says {texts[page]}") if texts[page] in view.text else call("fetch", page=page)

    def lead(view: RequestView) -> Turn:
        if all(text in view.text for text in texts.values()):
            return report(*quotes)
        if "Started as r4" in view.text:
            return call("wait", handles=["r1", "r2", "r3", "r4"])
        return Turn(calls=[call("reader", task=f"Read {page}") for page in pages])

    def agent() -> Agent[Any, Report]:
        reader = Agent(ScriptedClient(note), [fetch], home=False).as_tool("reader", "Reads.", background=True)
        return Agent(ScriptedClient(lead), [reader], answer=Report, home=tmp_path)

    whole = agent().run_sync("When?", run_id="run")
    assert (found(whole), sorted(fetched)) == ([handle for handle, _ in quotes], sorted(pages))
    for kept in cuts(tmp_path, 2):
        ended = [row.event for row in open_store(tmp_path).rows("run") if isinstance(row.event, ToolFinished)]
        before = {page for page in pages if any(texts[page] in str(each) for each in ended if each.name == "fetch")}
        fetched.clear()
        resumed = agent().resume_sync("run")
        assert resumed.answer == whole.answer, kept
        assert found(resumed) == [handle for handle, _ in quotes], kept
        assert sorted(fetched) == sorted({*pages} - before), kept


def test_under_flow_rules(home: Path) -> None:
    agent = Agent(ScriptedClient([*READS, report()]), [read], answer=Report, flow=Flow(guard="refuse"), home=home)
    result = agent.run_sync("When?")
    assert found(result) == ["r1", "r2"]
    assert result.labels == ("untrusted",)


def test_a_deleted_source_is_said_to_be_deleted() -> None:
    agent = Agent(ScriptedClient([*READS, report()]), [read], answer=Report, home=True)
    run_id = agent.run_sync("When?", user="ann").run_id
    assert here("runs", "cite", run_id).code == 0
    assert here("data", "delete", "--user", "ann", "--yes").code == 0
    shown = here("runs", "cite", run_id)
    assert shown.code == 2
    assert f"Run {run_id} was deleted on {time.strftime('%Y-%m-%d')}, and its sources with it." in shown.err


@pytest.mark.parametrize("answer", [Report])
def test_an_answer_that_stays_wrong_is_refused_without_naming_the_check(answer: type, home: Path) -> None:
    wrong = report(("r1", "The canal opened in 1833"))
    model = ScriptedClient([READS[0], *[wrong] * 9])
    result = Agent(model, [read], answer=answer, home=home).run_sync("When?")
    assert (result.status, result.stop_reason) == ("unanswered", "check_failed")
