"""While a reply streams, what turns into a tool call is not shown as an answer, and all else is shown in full."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from call_writers import WRITERS
from closeout.dialects.function_call import FunctionCall
from closeout.messages import Delta, ToolSpec
from closeout.parsing.forms import FormDetector

FORMS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "tool_parsers" / "forms.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
# Their marks are ordinary text ("Action:", a name on a line, a list in brackets) and cannot be told early.
PLAIN = ("react", "command-r", "pythonic", "glm4", "xlam", "functionary-v3.2")


def shown(text: str, cuts: list[int]) -> tuple[str, FormDetector]:
    detector = FormDetector()
    edges = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[a:b] for a, b in pairwise(edges)]
    return "".join(map(detector.feed, pieces)) + detector.close(), detector


@pytest.mark.parametrize("row", FORMS, ids=[f"{i}-{row['family']}" for i, row in enumerate(FORMS)])
def test_nothing_of_a_call_is_shown(row: dict[str, str]) -> None:
    text, detector = shown(row["text"], list(range(len(row["text"]))))

    if row["family"] in PLAIN:
        assert text + detector.held == row["text"]
    else:
        assert text.strip("\n ") == ""
        assert detector.family


@pytest.mark.parametrize("size", [1, 3, 16, 1000])
def test_only_the_text_before_a_call_is_shown_however_it_is_cut(size: int) -> None:
    for form in [f for f, w in WRITERS.items() if not w.bare and f not in ("react", "react, json")]:
        text = "Let me look.\n" + WRITERS[form].write([("search", {"query": "a < b [x] {y}"})])
        whole, detector = shown(text, list(range(0, len(text), size)))

        assert whole + detector.held == text, form
        if form != "functionary 3.2":  # whose mark is ordinary text
            assert whole.strip() == "Let me look.", form


def test_text_in_front_of_a_call_is_shown_at_once() -> None:
    detector = FormDetector()

    assert detector.feed("Let me look. ") == "Let me look. "
    assert detector.feed("<tool_") == ""
    assert detector.feed("call>{") == ""
    assert detector.family == "hermes"


def test_what_only_looked_like_a_mark_is_shown_as_soon_as_that_is_clear() -> None:
    detector = FormDetector()

    assert detector.feed("1 <tool") == "1 "
    assert detector.feed("box 2") == "<toolbox 2"
    assert detector.feed(" <") == " "
    assert detector.close() == "<"


def test_json_that_is_not_a_call_is_shown() -> None:
    assert shown('{"answer": 42}', [1, 3, 5])[0] == '{"answer": 42}'
    assert shown('{"name": "f", "arguments": {}}', [1, 3, 5])[0] == ""


PIECES = st.sampled_from(["<tool_call>", "<tool", "{", '"name"', "x ", "<|", "[TOOL_", "CALLS]", "\n", "查"])


@example(text='\n{"name"', cuts=[1])
@given(
    st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join),
    st.lists(st.integers(0, 60), max_size=10),
)
def test_the_cuts_between_pieces_change_nothing_and_nothing_is_lost(text: str, cuts: list[int]) -> None:
    whole, one = shown(text, [])
    parts, many = shown(text, cuts)

    assert (whole, one.family, one.held) == (parts, many.family, many.held)
    assert whole + one.held == text


@pytest.mark.parametrize("form", [f for f, w in WRITERS.items() if not w.bare and f not in ("react", "react, json")])
def test_the_name_of_a_call_is_known_before_its_arguments_end(form: str) -> None:
    written = WRITERS[form].write([("search", {"query": "word " * 400})])
    detector = FormDetector()

    at = next((at for at, piece in enumerate(written) if detector.feed(piece) is not None and detector.name), None)

    if form == "functionary 3.2":  # its mark is ordinary text
        return
    assert detector.name == "search"
    assert at is not None
    assert at < 400


def test_the_cost_of_blanks_is_linear() -> None:
    """Otherwise this takes longer than a test may."""
    detector = FormDetector()

    for _ in range(300_000):
        detector.feed(" " * 100)

    assert detector.close() == " " * 30_000_000


OFFERED = (ToolSpec("search", "", {"type": "object", "properties": {"query": {"type": "string"}}}),)


def announced(text: str) -> list[tuple[int, str]]:
    """Where a reply that streams in single characters announces calls of the offered tools, and their names."""
    reader = FunctionCall().reader(OFFERED)
    events = ((at, event) for at, piece in enumerate(text) for event in reader.feed(Delta("text", piece)))
    return [(at, event.text) for at, event in events if event.kind == "tool_name"]


@pytest.mark.parametrize("form", [f for f, w in WRITERS.items() if not w.bare and f not in ("react", "react, json")])
def test_a_call_in_text_is_announced_once_and_before_its_arguments_end(form: str) -> None:
    if form == "functionary 3.2":  # its mark is ordinary text
        return
    ((at, name),) = announced(WRITERS[form].write([("search", {"query": "word " * 100})]))

    assert name == "search"
    assert at < 120


@pytest.mark.parametrize(
    "text",
    [
        'The syntax is `<tool_call>{"name": "search"}</tool_call>`.',
        'For example:\n<tool_call>\n{"name": "search", "arguments": {}}</tool_call>',
        'Let me look.\n<tool_call>{"name": "remove", "arguments": {}}</tool_call>',
        '<think><tool_call>{"name": "search", "arguments": {}}</tool_call></think>Nothing.',
    ],
    ids=["quoted", "an example", "no offered tool", "reasoning"],
)
def test_a_call_that_is_not_made_is_not_announced(text: str) -> None:
    assert announced(text) == []
