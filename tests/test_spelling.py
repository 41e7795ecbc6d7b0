"""Names that differ in ways that cannot carry meaning, and names that do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout.spelling import fold, same_name


@pytest.mark.parametrize(
    ("one", "other"),
    [("infoToExtract", "info-to-extract"), ("gpt-4", "GPT 4"), ("a.b/c", "a_b_c"), ("--limit", "limit"), ("Ü_x", "üx")],
)
def test_case_and_separators_do_not_count(one: str, other: str) -> None:
    assert fold(one) == fold(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A+", "A-"),
        ("A-", "A"),
        ("-1", "1"),
        ("1.5", "15"),
        ("1-5", "15"),
        ("1.5", "1-5"),
        ("12:30", "1230"),
        ("C", "C#"),
        ("C++", "C"),
        (">=", ">"),
        ("a!", "a"),
        ("x^2", "x2"),
        ("2024-01", "202401"),
    ],
)
def test_signs_symbols_and_separators_between_digits_count(one: str, other: str) -> None:
    assert fold(one) != fold(other)


def test_a_name_is_another_one_only_in_another_form() -> None:
    dialects = ["function_call", "cot_chat", "cot_completion", "mcp_xml"]
    assert same_name("Function-Call", dialects) == "function_call"
    assert same_name("cot_completoin", dialects) is None
    assert same_name("cot", dialects) is None
    assert same_name("AB", ["a_b", "ab"]) is None


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_two_names_are_compared(one: str, other: str) -> None:
    assert same_name(one, [other]) in (None, other)
    assert same_name(one, [one, other]) == one
