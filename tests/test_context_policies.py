"""Policies beside eviction by size: archive after some turns, rebuild from a report, and a majority over runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.context.archive import ArchivePolicy
from closeout.context.rebuild import RebuildPolicy
from closeout.errors import UsageError
from closeout.recipes import majority
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, say


@tool(read_only=True)
def read(page: int) -> str:
    """Read a page."""
    return f"Page {page} says {page * 111}."


def agent(policy: Any, script: Any, **options: Any) -> tuple[Agent[Any], ScriptedClient]:
    model = ScriptedClient(script)
    return Agent(model, [read], context=policy, **{"home": False, **options}), model


def pages(request: Any) -> list[int]:
    """The pages that a request shows."""
    return [int(page) for page in re.findall(r"Page (\d+) says", str([m.text for m in request.messages]))]


def test_each_result_leaves_some_turns_after_it_was_read_and_stays_readable() -> None:
    script = [*(call("read", page=n) for n in range(1, 7)), call("read_result", handle="r1"), answer("111")]
    reader, model = agent(ArchivePolicy(turns=2), script)
    assert reader.run_sync("What does page 1 say?").answer == "111"
    shown = [pages(request) for request in model.requests]
    assert shown[:7] == [[], [1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6]]
    assert shown[7] == [6, 1]
    assert 'read_result("r1") shows it' in str([message.text for message in model.requests[4].messages])

    batched, model = agent(ArchivePolicy(turns=2, batch=3), script)
    batched.run_sync("What does page 1 say?")
    assert [pages(request) for request in model.requests][:7] == [
        [], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [4, 5], [4, 5, 6],
    ]  # fmt: skip


def test_each_round_begins_with_a_report(home: Path) -> None:
    def script(view: RequestView) -> Turn:
        if "about to be shortened" in view.text:
            found = sorted(set(re.findall(r"Page (\d+)", view.text)))
            return say(f"Findings so far, each with its source: {', '.join(f'Page {n} was read' for n in found)}.")
        read_so_far = [int(n) for n in re.findall(r"Page (\d+)", view.text)]
        return call("read", page=max(read_so_far, default=0) + 1) if max(read_so_far, default=0) < 6 else answer("666")

    reader, model = agent(RebuildPolicy(results=3), script, home=home)
    assert reader.run_sync("What does page 6 say?", run_id="run").answer == "666"
    acting = [request for request in model.requests if "about to be shortened" not in str(request.messages[-1].text)]
    assert max(len(pages(request)) for request in acting) <= 3
    assert "Page 1 was read" in str([message.text for message in acting[-1].messages])


async def test_the_answer_of_most_runs_counts_and_a_tie_is_settled_from_their_reports() -> None:
    votes = iter(["5", "7", "5"])
    most = await majority(Agent(ScriptedClient(lambda view: answer(next(votes))), answer=int, home=False), "How many?")
    assert most.value == 5

    def differ(view: RequestView) -> Turn:
        return answer("9") if "answered differently" in view.text else answer(next(votes))

    votes, model = iter(["5", "6", "7"]), ScriptedClient(differ)
    assert (await majority(Agent(model, answer=int, home=False), "How many?")).value == 9
    assert all(each in model.requests[-1].messages[-1].text for each in ("How many?", "5", "6", "7"))


@pytest.mark.parametrize(("make", "options"), [(ArchivePolicy, {"turns": 0}), (RebuildPolicy, {"results": 1})])
def test_sizes_are_checked(make: Any, options: Any) -> None:
    with pytest.raises(UsageError, match="or more, got"):
        make(**options)
