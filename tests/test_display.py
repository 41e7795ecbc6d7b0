"""The terminal: extra requests of a turn are shown by their purpose, and the command prints the answer."""

from __future__ import annotations

import io

from rich.console import Console

from closeout.cli.display import Display
from closeout.journal import events as ev
from closeout.journal.events import Event
from closeout.journal.subscribers import Progress

USAGE = {"input_tokens": 1433, "output_tokens": 12}


def shown(*events: Event | Progress) -> list[str]:
    written = io.StringIO()
    display = Display(Console(file=written, width=100))
    for event in events:
        display(event)
    return written.getvalue().splitlines()


def test_an_extra_request_is_shown_by_its_purpose_and_its_reply_is_not_the_turns() -> None:
    lines = shown(
        ev.ModelRequested("main", 0),
        Progress("main", 0, "thought", "I look."),
        Progress("main", 0, "tool_name", "look"),
        ev.ModelReplied("main", 0, "I look.", ms=1.0, usage=USAGE),
        ev.ModelRequested("main", 1, purpose="weigh"),
        ev.ModelReplied("main", 1, "0.9", ms=586.0, usage=USAGE),
        ev.ToolStarted("main", "r1", "look", arguments='{"key": "a"}'),
        ev.ToolFinished("main", "r1", "look", ok=True, record='{"result": "found"}', ms=2.0),
    )
    assert lines == [
        "turn 1 · 1 ms · 1,433 tokens in, 12 out",
        "  I look.",
        "weigh · 586 ms · 1,433 tokens in, 12 out",
        '  → look(key="a") · 2 ms',
        "    found",
    ]


def test_an_answer_is_left_to_the_command_also_after_an_extra_request() -> None:
    lines = shown(
        ev.ModelRequested("main", 0),
        Progress("main", 0, "text", "Forty-two."),
        ev.ModelReplied("main", 0, "Forty-two.", ms=1.0, usage=USAGE),
        ev.ModelRequested("main", 1, purpose="weigh"),
        ev.ModelReplied("main", 1, "0.9", ms=586.0, usage=USAGE),
        ev.RunEnded("main", "answered", "answered", answer="Forty-two."),
    )
    assert [line.partition(" · ")[0] for line in lines] == ["turn 1 (answer)", "weigh"]
