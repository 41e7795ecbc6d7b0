"""Which of several answers is given, and what a failed attempt leaves for the next."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeout.answers.experience import (
    CallFact,
    FailureExperience,
    estimate_tokens,
    experience_from,
    extract_failure_experience_summary,
    render_experiences,
)
from closeout.answers.normal_form import normalised
from closeout.answers.selection import AnswerCandidate, select_answer

ACCOUNT = """Failure type: blocked
What happened: the archive was down.
Useful findings: - Canal opened in 1832
- Panama in 1914"""

FACTS = [
    CallFact("search", {"q": "Rideau Canal"}, True, "opened 1832"),
    CallFact("search", {"q": "Rideau Canal"}, True, "opened 1832"),
    CallFact("fetch_url", {"url": "https://example.org/a"}, True, "A page about canals"),
    CallFact("fetch_url", {"url": "https://example.org/b"}, False, "HTTP 503"),
]


# ------------------------------------------------------------------------------------------------ selection


def test_of_no_answers_none_is_chosen() -> None:
    assert select_answer([]).answer is None
    assert select_answer(["", "  "]).answer is None


def test_last_takes_the_last() -> None:
    assert select_answer(["4", "4", "5"]).answer == "5"


def test_vote_takes_what_most_agree_on() -> None:
    chosen = select_answer(["4", "4.0", "5"], "vote")
    assert chosen.answer == "4.0", "as it was last written"
    assert [(each.text, each.count) for each in chosen.ranking] == [("4.0", 2), ("5", 1)]
    assert sum(each.share for each in chosen.ranking) == pytest.approx(1, abs=0.001)


def test_of_equals_the_later_wins() -> None:
    assert select_answer(["4", "5"], "vote").answer == "5"
    assert select_answer(["1.5 million", "1,500,000", "1.5"], "vote").answer == "1,500,000"
    assert select_answer(["4", "5", "5", "4"], "vote").answer == "4"


def test_an_answer_that_was_cut_off_counts_half() -> None:
    assert select_answer(["4", AnswerCandidate("5", complete=False)], "vote").ranking[0].text in {"4", "5"}
    cut = AnswerCandidate("4", complete=False)
    assert select_answer([cut, cut, AnswerCandidate("5")], "vote").answer == "5"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("4", "4.0"),
        ("1,000", "1000"),
        ("1/2", r"\frac{1}{2}"),
        ("Paris.", " paris"),
        (r"\text{Yes}", "yes"),
        ("5 km", "5.0 KM"),
    ],
)
def test_answers_that_mean_the_same_agree(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("4", "5"),
        ("5 km", "5 m"),
        ("a", "b"),
        ("+", "-"),
        ("x=1", "x=2"),
        ("x=1", "y=1"),
        ("C", "C++"),
        ("C++", "C#"),
        ("5 mW", "5 MW"),
        ("50%", "50"),
        ("50%", "0.5"),
        ("$5", "€5"),
        ("5!", "5"),
        ("x<3", "x>3"),
        ("(1,2)", "[1,2]"),
        ("1,5", "15"),
        ("x²", "x2"),
        ("f'", "f"),
        ("x-y", "xy"),
        (r"-\frac12", r"\frac12"),
        ("sqrt(5)", "5"),
        ("about 5", "5"),
        ("9007199254740993", "9007199254740992"),
    ],
)
def test_answers_that_differ_do_not(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


@settings(max_examples=60)
@given(st.lists(st.text(max_size=12), max_size=8))
def test_whatever_is_chosen_was_there(answers: list[str]) -> None:
    for method in ("last", "vote"):
        chosen = select_answer(answers, method).answer  # type: ignore[arg-type]
        assert chosen is None or chosen in answers


# ------------------------------------------------------------------------------------------------ experience


def test_the_account_is_read_by_its_headings() -> None:
    made = experience_from(ACCOUNT)
    assert made.type == "blocked"
    assert made.what_happened == "the archive was down."
    assert made.findings == "- Canal opened in 1832\n- Panama in 1914"


@pytest.mark.parametrize(
    "account",
    [
        "**Failure type:** format-missed\n**What happened:** forgot\n**Useful findings:** 42",
        "## Failure type: Format missed\n\n## What happened: forgot\n\n## Useful findings: 42",
        "1. failure_type： format_missed\n2. what happened： forgot\n3. useful findings： 42",
    ],
)
def test_headings_may_be_dressed(account: str) -> None:
    made = experience_from(account)
    assert (made.type, made.what_happened, made.findings) == ("format_missed", "forgot", "42")


def test_an_account_without_headings_is_what_happened() -> None:
    assert experience_from("It was all in vain.").what_happened == "It was all in vain."


def test_the_journal_knows_queries_pages_and_failures() -> None:
    made = experience_from(ACCOUNT, FACTS)
    assert made.queries == ("search: Rideau Canal",)
    assert made.pages == ("https://example.org/a",)
    assert made.failed_tools == ("fetch_url: HTTP 503",)


def test_there_is_an_experience_even_if_the_model_writes_none() -> None:
    made = experience_from(None, FACTS, reason="max_turns")
    assert made.type == "incomplete"
    assert "max_turns" in made.what_happened
    assert "4 tool calls made, 1 failed" in made.what_happened
    assert "opened 1832" in made.findings
    assert made.text()
    assert experience_from(None).text()


def test_the_type_is_read_off_what_happened_if_the_model_does_not_say() -> None:
    assert experience_from(None, [CallFact("fetch_url", {}, False, "503")] * 3).type == "blocked"
    assert experience_from(None, FACTS, reply="It must be 82 years.").type == "format_missed"
    assert "82 years" in experience_from(None, FACTS, reply="It must be 82 years.").findings


@pytest.mark.parametrize(
    ("reply", "account"),
    [
        (ACCOUNT, ACCOUNT),
        (f"<think>let me see</think>\n\n{ACCOUNT}", ACCOUNT),
        (f"{ACCOUNT}\n\n<use_mcp_tool>…", ACCOUNT),
        (f"<think>one</think><think>two</think>{ACCOUNT}\n<tool_call>{{}}", ACCOUNT),
        ("<think>only reasoning</think>", "only reasoning"),
        ("", ""),
    ],
)
def test_the_account_is_taken_out_of_the_reply(reply: str, account: str) -> None:
    assert extract_failure_experience_summary(reply) == account


def test_the_next_attempt_sees_all_earlier_ones() -> None:
    first, second = experience_from(ACCOUNT, FACTS), "Failure type: misdirected"
    text = render_experiences([first, second])
    assert "Attempt 1:" in text
    assert "Attempt 2:" in text
    for part in ("Canal opened in 1832", "search: Rideau Canal", "https://example.org/a", "HTTP 503", "misdirected"):
        assert part in text
    assert "Do not repeat" in text
    assert render_experiences([]) == ""
    assert "Attempt" not in render_experiences([first])


def test_within_a_budget_findings_are_kept_longest() -> None:
    many = tuple(f"search: number {number}" for number in range(500))
    made = FailureExperience(type="incomplete", what_happened="so", findings="the canal: 1832", queries=many)
    text = made.text(200)
    assert estimate_tokens(text) <= 200
    assert "the canal: 1832" in text
    assert "number 499" in text
    assert "number 0\n" not in text


@settings(max_examples=60)
@given(st.lists(st.text(max_size=400), min_size=1, max_size=4), st.integers(150, 600))
def test_the_budget_holds(accounts: list[str], budget: int) -> None:
    made = [experience_from(account, FACTS * 5) for account in accounts]
    assert estimate_tokens(render_experiences(made, budget)) <= budget


def test_odd_arguments_are_accepted() -> None:
    odd = [
        CallFact("t", "not json"),
        CallFact("t", {"q": None}),
        CallFact("t", {"q": ["a", 1]}),
        CallFact("t", {"Q": ""}),
    ]
    assert experience_from(None, odd).queries == ("t: null", "t: a", "t: 1")
    assert experience_from("\ud800\0", odd).text()


@pytest.mark.parametrize("text", ["\n" * 100_000, "- " * 50_000, "What happened:" * 10_000, "*" * 100_000])
def test_hostile_accounts_are_read_at_once(text: str) -> None:
    render_experiences([experience_from(text, FACTS, reply=text)] * 3)
