"""The story of a run: a reply belongs to its request, a call to its turn, a sub-agent to its call."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from closeout import Agent, tool
from closeout.journal import events as ev
from closeout.journal.events import Event
from closeout.journal.store import open_store
from closeout.journal.story import Story, TurnStory
from closeout.testing import ScriptedClient, Turn, answer, call, say

CALL = {"id": "c", "name": "f", "arguments": '{"x": 1}', "server_name": None}
MADE = {**CALL, "arguments": {"x": 1}, "text": ""}
SHOWN = {"call": 0, "text": "one", "handle": "r1", "ok": True, "tokens": 1}


def read(*events: Event) -> Story:
    story = Story(whole=True)
    for event in events:
        story.feed(event)
    return story


def turns(story: Story, path: str = "main") -> list[TurnStory]:
    return [item for item in story.agents[path].items if isinstance(item, TurnStory)]


def ask(number: int, purpose: str = "act", turn: int = 0) -> ev.ModelRequested:
    return ev.ModelRequested("main", number, turn=turn, purpose=purpose)


def reply(number: int, text: str = "", *calls: dict[str, object]) -> ev.ModelReplied:
    return ev.ModelReplied("main", number, text, tool_calls=calls)


def run(handle: str = "r1", index: int = 0, agent: str = "main") -> tuple[ev.ToolStarted, ev.ToolFinished]:
    started = ev.ToolStarted(agent, handle, "f", arguments='{"x": 1}', index=index)
    return started, ev.ToolFinished(agent, handle, "f", ok=True, record="{}")


async def test_a_run_is_a_tree_of_agents_turns_and_calls(home: Path) -> None:
    @tool(read_only=True)
    def look(key: str) -> str:
        """Look up a key."""
        return f"{key} is 1"

    clerk = Agent(ScriptedClient([call("look", key="inner"), answer("1")]), [look], home=False)
    script = [Turn("Both.", calls=[call("look", key="a"), call("clerk", task="find")]), say(""), answer("1")]
    agent = Agent(ScriptedClient(script), [look, clerk.as_tool("clerk", "Finds.")], home=home)
    result = await agent.run("What?")
    story = read(*(row.event for row in open_store(home).rows(result.run_id)))

    first, empty, last = turns(story)
    assert [(each.handle, each.name, each.shown is not None) for each in first.calls] == [
        ("r1", "look", True),
        ("r2", "clerk", True),
    ]
    (below,) = first.calls[1].agents
    assert (below.path, below.caller) == ("main/r2:clerk", first.calls[1])
    assert [[each.name for each in turn.calls] for turn in turns(story, below.path)] == [["look"], []]
    assert (empty.rolled_back is not None, empty.calls, last.is_open) == (True, [], True)
    assert story.ended is not None
    assert all(not agent.running for agent in story.agents.values())


def test_a_turn_keeps_its_reply_while_extra_requests_are_sent() -> None:
    started, finished = run()
    story = Story(whole=True)
    for event in (ask(0), reply(0, "the reply", CALL), ask(1, "weigh"), reply(1, "0.9", CALL)):
        story.feed(event)
    change = story.feed(started)
    (turn,) = turns(story)
    assert (change.turn, change.call) == (turn, turn.calls[0])
    assert turn.reply is not None
    assert turn.reply.text == "the reply"
    assert [(each.purpose, each.reply.text) for each in turn.extras if each.reply] == [("weigh", "0.9")]
    assert len(turn.calls) == 1
    assert story.feed(finished).call is change.call


def test_extra_requests_may_come_before_the_one_that_a_turn_is_read_from() -> None:
    story = read(ask(0, "plan"), reply(0), ask(1), reply(1, "the reply"), ev.TurnAccepted("main", 0, 0), ask(2, "plan"))
    first, second = turns(story)
    assert (len(first.extras), first.request is not None, len(second.extras), second.request) == (1, True, 1, None)


def test_a_turn_may_have_no_reply_of_its_own() -> None:
    story = read(
        ask(0, "think"), reply(0, "words"), *run(), ev.TurnAccepted("main", 0, 0, calls=(MADE,), returns=(SHOWN,))
    )
    (turn,) = turns(story)
    assert (turn.reply, turn.calls[0].shown, len(turn.extras)) == (None, SHOWN, 1)


def test_a_rollback_withdraws_the_turn_and_the_next_request_says_why() -> None:
    back = ev.TurnRolledBack("main", 0, 0, reason="no_action")
    story = read(ev.AttemptStarted("main", 0), ask(0), reply(0, "no"), back, ask(1), reply(1, "yes"))
    first, second = turns(story)
    assert (first.rolled_back, second.rolled_back) == (back, None)
    assert second.request is not None
    assert second.request.causes == [back]


def test_closing_and_summing_up_are_turns_of_their_own() -> None:
    story = read(ask(0), reply(0), ask(1, "compact"), reply(1), ask(2, "close"), reply(2))
    assert [turn.purpose for turn in turns(story)] == ["act", "compact", "close"]


def test_a_request_that_is_sent_again_is_one_request() -> None:
    failed = ev.ModelFailed("main", 0, "CancelledError", error="stopped")
    story = read(ask(0), failed, ev.RunResumed("main"), ask(0), reply(0, "now"))
    (turn,) = turns(story)
    assert turn.request is not None
    assert (turn.request.failure, turn.reply and turn.reply.text) == (failed, "now")


def test_streamed_text_is_replaced_from_its_beginning() -> None:
    pieces = [ev.ReplyStreamed("main", 0, *piece) for piece in ((0, "one"), (3, " two"), (0, "again"))]
    story = read(ask(0), *pieces[:2])
    (turn,) = turns(story)
    assert turn.request is not None
    assert turn.request.pieces == ["one", " two"]
    story.feed(pieces[2])
    assert turn.request.pieces == ["again"]


def test_a_refused_call_and_one_that_runs_keep_their_places() -> None:
    other = {**CALL, "name": "nosuch"}
    refused = {**SHOWN, "call": 1, "handle": "r2", "ok": False}
    accepted = ev.TurnAccepted("main", 0, 0, calls=(MADE, {**MADE, "name": "nosuch"}), returns=(SHOWN, refused))
    story = read(ask(0), reply(0, "", CALL, other), *run("r1"), accepted)
    (turn,) = turns(story)
    assert [(each.index, each.handle, each.name, each.started is None) for each in turn.calls] == [
        (0, "r1", "f", False),
        (1, "r2", "nosuch", True),
    ]


def test_a_resumed_run_has_not_ended() -> None:
    ended = ev.RunEnded("main", "cancelled", "cancelled")
    assert read(ended).ended is ended
    assert read(ended, ev.RunResumed("main")).ended is None


def test_events_without_their_beginnings_have_a_place() -> None:
    orphans = [
        ev.ToolFinished("main", "r9", "f", ok=False, record="", note="it broke"),
        ev.TurnAccepted("main", 0, 5, returns=({**SHOWN, "call": 3, "handle": ""},)),
        ev.ModelReplied("main/r2:clerk", 7, "a late reply"),
    ]
    story = read(*orphans)
    (turn,) = turns(story)
    assert [(each.handle, each.name, each.shown is not None) for each in turn.calls] == [
        ("r9", "f", False),
        ("", "", True),
    ]
    (late,) = turns(story, "main/r2:clerk")
    assert (late.reply, story.agents["main/r2:clerk"].caller) == (orphans[2], None)


def test_a_story_that_is_not_kept_whole_holds_only_what_is_current() -> None:
    story = Story()
    for number in range(50):
        accepted = ev.TurnAccepted("main", 0, number, calls=(MADE,), returns=({**SHOWN, "handle": f"r{number}"},))
        for event in (ask(number, turn=number), reply(number, "", CALL), *run(f"r{number}"), accepted):
            story.feed(event)
    main = story.agents["main"]
    assert (main.items, main.requests, main.running, main.turn and main.turn.number) == ([], {}, {}, 49)


def test_a_turn_with_many_calls_takes_linear_work() -> None:
    def work(calls: int) -> int:
        """Return how many functions are called to read a turn with so many tool calls."""
        events = [event for n in range(calls) for event in run(f"r{n}", agent="main/r1:program")]
        called = Counter[str]()
        sys.setprofile(lambda _, kind, __: called.update((kind,)))
        try:
            read(*events)
        finally:
            sys.setprofile(None)
        return called["call"] + called["c_call"]

    assert work(1_600) < 20 * work(100)
