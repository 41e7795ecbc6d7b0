"""Summing up in a run: the model writes the summary; where it does not or may not, results are left out instead.

And runs that are much longer than their context, with the defaults.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "harness"))

from closeout import Agent, RunResult, tool
from closeout.errors import ContextOverflow, ServerFailed
from closeout.journal import events as ev
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, recorded, say
from long_runs import Reader, agent_of, long_run

SUMMARY = "Findings: the river is 6,300 km long (r1). Open questions: its depth. Tried: nothing else."


@tool(read_only=True)
async def page(number: int) -> str:
    """Read a page."""
    return f"page {number}: " + "word " * 300


async def run_agent(summing_up: Any, turns: int = 20, **settings: Any) -> tuple[RunResult, ScriptedClient, list[Any]]:
    def script(view: RequestView) -> Any:
        if "about to be shortened" in view.text:
            return summing_up
        if "closing turn" in view.text or view.number > turns:
            return answer("42")
        return Turn(f"Reading on, {view.number}.", calls=[call("page", number=view.number)])

    config = {"agent": {"compaction": True, **settings}, "llm": {"max_context_length": 4000, "max_tokens": 200}}
    client, seen = ScriptedClient(script), []
    result = await Agent(client, [page], home=False, config=config).run("How long?", listeners=[seen.append])
    return result, client, seen


def made(seen: list[Any], kind: type[ev.Event]) -> list[Any]:
    return [event for event in seen if isinstance(event, kind)]


async def test_a_summary_replaces_the_oldest_turns() -> None:
    result, client, seen = await run_agent(say(SUMMARY))
    compacted = made(seen, ev.Compacted)
    assert result.answer == "42"
    assert compacted
    assert not made(seen, ev.Evicted)
    assert {event.summary for event in compacted} == {SUMMARY}
    assert SUMMARY in client.requests[-1].messages[0].text + client.requests[-1].messages[1].text
    assert max(len("".join(m.text for m in request.messages)) // 4 for request in client.requests) < 4000


async def test_the_request_for_a_summary_extends_the_conversation_and_may_call_no_tools() -> None:
    _, client, seen = await run_agent(say(SUMMARY))
    asked = [event for event in seen if isinstance(event, ev.ModelRequested)]
    first = next(number for number, event in enumerate(asked) if event.purpose == "compact")
    before, request = client.requests[first - 1], client.requests[first]
    assert list(request.messages[: len(before.messages)]) == list(before.messages)
    assert (request.tools, request.tool_choice) == (before.tools, "none")
    assert asked[first].shared >= asked[first - 1].size


@pytest.mark.parametrize(
    "instead",
    [
        say(""),
        say("ok"),
        call("page", number=99),
        ServerFailed("gone", status=500),
        ContextOverflow("too long", status=400),
    ],
)
async def test_without_a_summary_results_are_left_out(instead: Any) -> None:
    result, _, seen = await run_agent(instead)
    assert result.answer == "42"
    assert not made(seen, ev.Compacted)
    assert {event.reason for event in made(seen, ev.Evicted)} == {"budget"}


async def test_no_summary_is_asked_for_with_what_closing_needs() -> None:
    result, _, seen = await run_agent(say(SUMMARY), max_tokens=9000)
    assert (result.answer, result.stop_reason) == ("42", "max_tokens")
    assert result.usage.total_tokens <= 9000
    purposes = [event.purpose for event in made(seen, ev.ModelRequested)]
    assert purposes[-1] == "close"


# ------------------------------------------------------------------------------------------------ long runs


@pytest.mark.parametrize(
    ("reading", "dialect"),
    [({}, "function_call"), ({"sums_up": False}, "cot_chat"), ({"tells": False}, "function_call")],
    ids=["defaults", "no summary", "untold"],
)
async def test_a_run_much_longer_than_its_context_ends_with_all_facts(reading: dict[str, bool], dialect: str) -> None:
    reader = Reader(120, 8192, 100, 40, **reading)
    found = await long_run(reader, dialect)
    assert (found.turns, found.stop, found.facts) == (120, "answered", len(reader.asked))
    assert found.breaks <= found.requests / 20
    assert found.refused == (not reading.get("tells", True)), "one refusal tells the length"
    assert bool(found.summaries) == reading.get("sums_up", True)


async def test_turns_that_left_are_the_same_when_the_record_is_followed(home: Path) -> None:
    await agent_of(Reader(60, 8192, 100, 40, tells=False), home).run("What do the pages say?", run_id="long")
    again = Reader(60, 8192, 100, 40)
    again.client = recorded("long").client()
    assert (await recorded("long").follow(agent_of(again))).answer == "found"
