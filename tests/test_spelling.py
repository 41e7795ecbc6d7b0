"""Names that differ in ways that cannot carry meaning, and names that do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout.spelling import fold, is_slip, is_typing_slip, nearest_safe_name


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


@pytest.mark.parametrize(
    ("written", "word"),
    [
        ("serach", "search"),
        ("seach", "search"),
        ("searrch", "search"),
        ("searvh", "search"),
        ("calcluate", "calculate"),
        ("caluclaet", "calculate"),
        ("wetaher", "weather"),
        ("documnet", "document"),
    ],
)
def test_swapped_missing_added_and_mistaken_letters_are_slips(written: str, word: str) -> None:
    assert is_slip(written, word)


@pytest.mark.parametrize(
    ("written", "word"),
    [
        ("lcok", "lock"),  # too short
        ("hsaecr", "search"),  # two slips in six letters
        ("close", "clone"),
        ("attach", "detach"),
        ("inflate", "deflate"),
        ("increment", "decrement"),
        ("interstate", "intrastate"),
        ("hypotension", "hypertension"),
        ("employer", "employee"),
        ("orders", "order"),
        ("ethane", "ethene"),
        ("v1234", "v1243"),
        ("frobnicates", "frobnicate"),
        ("macrobatch", "microbatch"),
        ("payee", "payer"),
    ],
)
def test_what_may_be_a_word_of_its_own_is_not_a_slip(written: str, word: str) -> None:
    assert not is_slip(written, word)
    assert not is_slip(word, written)


def test_a_word_in_use_is_not_a_slip() -> None:
    assert is_typing_slip("get_frobs_reprot", "get_frobs_report")
    assert not is_typing_slip("get_frobs_reprot", "get_frobs_report", {"reprot"})


def test_the_nearest_safe_name_is_the_only_one_that_can_be_meant() -> None:
    dialects = ["function_call", "cot_chat", "cot_completion", "mcp_xml"]
    assert nearest_safe_name("Function-Call", dialects) == "function_call"
    assert nearest_safe_name("cot_completoin", dialects) == "cot_completion"
    assert nearest_safe_name("cot_completoin", dialects, slips=False) is None
    assert nearest_safe_name("cot", dialects) is None
    assert nearest_safe_name("AB", ["a_b", "ab"]) is None


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_two_names_are_compared(one: str, other: str) -> None:
    assert nearest_safe_name(one, [other]) in (None, other)
    assert nearest_safe_name(one, [one, other]) == one
