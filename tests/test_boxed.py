"""Boxed answers: each sentence of the rules as a test, and the fast look-up against the plain definition."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout.answers.boxed import PLACEHOLDERS, Box, extract_boxed, find_boxes, reasoning_regions

SOLUTIONS = [json.loads(line) for line in (Path(__file__).parent / "data/math_boxed.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param(r"so \boxed{42}.", "42", id="the content"),
        pytest.param(r"\boxed{1}, no: \boxed{2}", "2", id="the last one wins"),
        pytest.param(r"\boxed{\frac{1}{2^{10}}}", r"\frac{1}{2^{10}}", id="nested braces"),
        pytest.param(r"\boxed{\{1, 2\}}", r"\{1, 2\}", id="escaped braces do not count"),
        pytest.param(r"\boxed{a\\}", "a\\\\", id="an escaped backslash before the closing brace"),
        pytest.param("\\boxed \n\t{7}", "7", id="white space before the brace"),
        pytest.param(r"\boxed{  7  }", "7", id="stripped"),
        pytest.param(r"\boxed{}", "", id="empty"),
        pytest.param(r"\fbox{7}", "7", id="fbox"),
        pytest.param(r"\boxed{1} \fbox{2}", "2", id="fbox after boxed"),
        pytest.param(r"$$\boxed{x^2}$$", "x^2", id="in a formula"),
        pytest.param("```latex\n\\boxed{9}\n```", "9", id="in a code fence"),
        pytest.param(r"\\boxed{4}", "4", id="escaped by a serialiser"),
        pytest.param(r"\boxed{北京{大}学}😀", "北京{大}学", id="any script"),
        pytest.param(r"\boxedness{7} \unboxed{8}", "", id="other commands"),
        pytest.param(r"boxed{7}", "", id="no command at all"),
    ],
)
def test_the_content_of_the_last_box(text: str, answer: str) -> None:
    assert extract_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param(r"\boxed{3 and then the reply was cut", "3 and then the reply was cut", id="runs to the end"),
        pytest.param(r"\boxed{1} but \boxed{2", "2", id="the last one, even if unclosed"),
        pytest.param(r"\boxed{3 oops. \boxed{4} it is", "4", id="unless a complete one follows"),
        pytest.param(r"\boxed{a \boxed{b", "b", id="an open box holds nothing back"),
        pytest.param(r"\boxed{\text{a} {", r"\text{a} {", id="with braces of its own"),
    ],
)
def test_a_box_that_is_not_closed(text: str, answer: str) -> None:
    assert extract_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param(r"\boxed{\boxed{42}}", "42", id="nothing but a box"),
        pytest.param(r"\boxed{ \fbox{ \boxed{5} } }", "5", id="at any depth"),
        pytest.param(r"\boxed{x = \boxed{42}}", r"x = \boxed{42}", id="a box and more"),
        pytest.param(r"\boxed{\boxed{1}\boxed{2}}", r"\boxed{1}\boxed{2}", id="two boxes"),
        pytest.param(r"\boxed{\boxed{1 \boxed{2}}}", r"1 \boxed{2}", id="only as deep as it holds nothing else"),
        pytest.param(r"{a \boxed{1} {\boxed{2}}}", "2", id="braces around are no box"),
        pytest.param(r"\boxed{ {\boxed{1}} \boxed{2} } \} }", r"{\boxed{1}} \boxed{2}", id="the outermost complete"),
    ],
)
def test_boxes_inside_boxes(text: str, answer: str) -> None:
    assert extract_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param(r"<think>\boxed{1}</think> It is \boxed{2}.", "2", id="outside before inside"),
        pytest.param(r"\boxed{2} <think>or \boxed{1}?</think>", "2", id="whatever the order"),
        pytest.param(r"<think>\boxed{1}</think> It is one.", "1", id="inside if none stands outside"),
        pytest.param(r"maybe \boxed{1}</think> It is \boxed{2", "2", id="opened by the server"),
        pytest.param(r"<think>so \boxed{1}", "1", id="never closed"),
        pytest.param(r"<think>so \boxed{1</think> It is one.", "1", id="an open box ends with the reasoning"),
        pytest.param(r"<thinking>\boxed{1}</thinking> \boxed{2}", "2", id="the longer tag"),
        pytest.param(r"<think>\boxed{1}</think> \boxed 2", "2", id="even without braces"),
        pytest.param("<mm:think>\\boxed{1}</mm:think> \\boxed 2", "2", id="every tag that a stream knows"),
        pytest.param(r"Not \boxed{1}: a `<think>` tag opens. \boxed{2}", "2", id="a tag quoted in a code span"),
        pytest.param(r"Not \boxed{1}: so it `begins <think> here`. \boxed{2}", "2", id="anywhere in the span"),
        pytest.param("Not \\boxed{1}:\n```\n<think>\n```\n\\boxed{2}", "2", id="a tag in a code fence"),
        pytest.param(r"It is \boxed{2}: they end with `<think>…</think>`.", "2", id="a closing tag in a code span"),
        pytest.param(r"don`t \boxed{1}</think> It is `\boxed{2}`", "2", id="a lone backtick quotes nothing"),
    ],
)
def test_a_box_in_reasoning_counts_only_if_there_is_none_outside(text: str, answer: str) -> None:
    assert extract_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param(r"$\boxed 42$", "42", id="a number"),
        pytest.param(r"\boxed -1,234.5.", "-1,234.5", id="a number at the end of a sentence"),
        pytest.param(r"so \boxed x, as claimed", "x", id="one character"),
        pytest.param(r"\boxed\frac{1}{2} follows", r"\frac{1}{2}", id="a command with its arguments"),
        pytest.param("\\boxed Paris.\n", "Paris", id="a word that ends its line"),
        pytest.param(r"as \boxed demands, here it is", "", id="prose about the command"),
        pytest.param(r"I used the \boxed format.", "", id="prose at the end of a line"),
        pytest.param(r"\boxed{7}. Why \boxed 3? No.", "7", id="never against braces"),
    ],
)
def test_a_box_without_braces_is_the_last_resort(text: str, answer: str) -> None:
    assert extract_boxed(text) == answer


@pytest.mark.parametrize("placeholder", ["?", "??", "...", "…", "unknown", "None", "your answer"])
def test_placeholders_are_not_answers(placeholder: str) -> None:
    assert extract_boxed(rf"\boxed{{ {placeholder} }}") == ""
    assert extract_boxed(rf"\boxed{{7}} \boxed{{{placeholder}}}") == "", "the last one wins, then it is judged"
    assert extract_boxed(rf"\boxed{{{placeholder}}}", blacklist=()) == placeholder, "the list is the caller's"


@pytest.mark.parametrize("text", [None, "", " ", "\\", "\\boxed", "\\boxed{", "\\boxed}", "{" * 9, "\ud800\0\\boxed"])
def test_no_box_and_no_text_give_the_empty_string(text: str | None) -> None:
    assert extract_boxed(text) == ""


@pytest.mark.parametrize("case", SOLUTIONS, ids=[case["id"] for case in SOLUTIONS])
def test_real_solutions_give_their_answer(case: dict[str, str]) -> None:
    assert extract_boxed(case["solution"]) == case["ref_answer"].strip()


def test_every_box_is_found_with_its_span_and_its_standing() -> None:
    text = "<think>\\boxed{1}</think>\n```\n\\boxed{a \\boxed{2}}\n```\n\\fbox 3\n\\boxed{4"
    boxes = find_boxes(text)
    assert [box.content for box in boxes] == ["1", r"a \boxed{2}", "2", "3", "4"]
    assert [text[box.start : box.end] for box in boxes] == [
        r"\boxed{1}",
        r"\boxed{a \boxed{2}}",
        r"\boxed{2}",
        r"\fbox 3",
        r"\boxed{4",
    ]
    assert [box.in_reasoning for box in boxes] == [True, False, False, False, False]
    assert [box.in_fence for box in boxes] == [False, True, True, False, False]
    assert [box.enclosed for box in boxes] == [False, False, True, False, False]
    assert [box.braced for box in boxes] == [True, True, True, False, True]
    assert [box.complete for box in boxes] == [True, True, True, True, False]


def test_reasoning_is_cut_at_its_tags() -> None:
    text = "a</think>b<think>c</think>d<think>e"
    assert [(text[r.start : r.end], r.in_reasoning) for r in reasoning_regions(text)] == [
        ("a", True),
        ("b", False),
        ("c", True),
        ("d", False),
        ("e", True),
    ]


TEX = ["\\boxed{", "\\boxed {", "\\fbox{", "\\boxed", "{", "}", "}}", "\\{", "\\}", "\\\\", "\\", "\\boxed{\\boxed{"]
PIECES = st.sampled_from([*TEX, " ", "\n", "`", "\n```\n", "a", "7", "é😀", "<think>", "</think>", "\\frac{1}{2}", "?"])


@given(st.lists(PIECES, max_size=40).map("".join))
def test_the_look_up_from_the_end_agrees_with_the_definition(text: str) -> None:
    assert extract_boxed(text) == defined(text)


def defined(text: str) -> str:
    """What `extract_boxed` must give, said with `find_boxes`."""
    boxes = find_boxes(text)
    for in_reasoning in (False, True):
        here = [box for box in boxes if box.in_reasoning is in_reasoning]
        for braced in (True, False):
            last = [box for box in here if box.braced is braced and not (braced and box.enclosed)][-1:]
            if last:
                content = unwrapped(last[0], here)
                return "" if content in PLACEHOLDERS else content
    return ""


def unwrapped(box: Box, boxes: list[Box]) -> str:
    sole = [b for b in boxes if b.braced and b.start > box.start and box.content == b._text[b.start : b.end].strip()]
    fits = [b for b in sole if box.content_start <= b.start and b.end <= box.content_end and b.complete]
    return unwrapped(fits[0], boxes) if box.complete and fits else box.content


@given(st.text())
def test_any_text_is_read_without_an_exception(text: str) -> None:
    assert extract_boxed(text) == "" or re.search(r"\\(boxed|fbox)", text)
    assert extract_boxed(rf"{text.replace(chr(92), '')}\boxed{{9}}") == "9"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param("\\" * 1_000_000 + "boxed{1}", "1", id="backslashes"),
        pytest.param("\\boxed{" + "{" * 1_000_000, "{" * 1_000_000, id="open braces"),
        pytest.param("\\boxed" * 1_000_000, "", id="boxed"),
        pytest.param("\\boxed{" * 1_000_000 + "1", "1", id="open boxes"),
        pytest.param("\\boxed{" * 1_000_000 + "\\boxed{1}", "1", id="open boxes around a complete one"),
        pytest.param("\\boxed{" * 1_000_000 + "1" + "}" * 1_000_000, "1", id="boxes in boxes"),
        pytest.param("\\boxed{a" * 300_000 + "}" * 299_999, "a" + "\\boxed{a" * 299_998 + "}" * 299_998, id="one open"),
        pytest.param("\\boxed{1}" + "}" * 1_000_000, "1", id="closing braces"),
        pytest.param("<think>" * 1_000_000 + "\\boxed{1}", "1", id="tags"),
        pytest.param("<think></think>" * 300_000 + "\\boxed{1}", "1", id="pairs of tags"),
        pytest.param("`<think>` " * 50_000 + "\\boxed{1}", "1", id="quoted tags"),
        pytest.param("```\n</think>\n" * 50_000 + "\\boxed{1}", "1", id="tags in fences"),
        pytest.param("\\boxed" + " " * 1_000_000 + "{1}", "1", id="white space"),
    ],
)
def test_a_million_of_anything_is_read_at_once(text: str, answer: str) -> None:
    # A quadratic scan of any of these would not end within the time limit of a test.
    assert extract_boxed(text) == answer


def test_a_million_open_boxes_share_one_text() -> None:
    boxes = find_boxes("\\boxed{" * 100_000)
    assert len(boxes) == 100_000
    assert boxes[-1].content == ""
    assert len(boxes[0].content) == 7 * 99_999
