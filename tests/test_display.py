"""The terminal: extra requests of a turn are shown by their purpose, and the command prints the answer."""

from __future__ import annotations

import io
import json

from rich.console import Console

from closeout.cli.display import Display
from closeout.journal import events as ev
from closeout.journal.events import Event
from closeout.journal.subscribers import Progress

USAGE = {"input_tokens": 1433, "output_tokens": 12}


def shown(*events: Event | Progress) -> list[str]:
    written = io.StringIO()
    display = Display(Console(file=written, width=110))
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


def test_json_is_shown_as_words_and_the_report_of_an_agent_once() -> None:
    notes = (
        '{"claims": [{"text": "It opened in 1832.", "handle": "r1"}, {"text": "It is 202 km long.", "handle": "r2"}]}'
    )
    lines = shown(
        ev.ModelRequested("main", 0),
        ev.ToolStarted("main", "r1", "reader", arguments='{"task": "How old?"}'),
        ev.AgentStarted("main/r1:reader", name="reader", model="m", task="How old?"),
        ev.AgentEnded("main/r1:reader", status="answered", report=f"{notes}\nQueries made: 2"),
        ev.ToolFinished("main", "r1", "reader", ok=True, record=json.dumps({"result": notes}), ms=2.0),
    )
    assert lines == [
        "  ▸ reader: How old?",
        "  ◂ claims: text: It opened in 1832., handle: r1 · text: It is 202 km long., handle: r2 Queries made: 2",
        '  → reader(task="How old?") · 2 ms',
    ]
    (depths,) = shown(ev.AgentEnded("main/r1:reader", status="answered", report="[" * 900 + "]" * 900))
    assert depths == "  ◂ …"


def test_an_answer_in_json_is_left_to_the_command_however_it_was_spaced() -> None:
    lines = shown(
        ev.ModelRequested("main", 0),
        Progress("main", 0, "text", '{"a": 1}'),
        ev.ModelReplied("main", 0, '{"a": 1}', ms=1.0, usage=USAGE),
        ev.RunEnded("main", "answered", "answered", answer='{"a":1}'),
    )
    assert lines == ["turn 1 (answer) · 1 ms · 1,433 tokens in, 12 out"]
