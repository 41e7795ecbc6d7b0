"""What a result is worth: errors in disguise, nothing found, pages that are walls. And what is none of these."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout.messages import ToolPolicy, ToolSpec
from closeout.tools.judge import GOOD, judge
from closeout.tools.shipped_policies import SHIPPED_POLICIES, governed

PAGES = ToolPolicy(check_content=True)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"error": "quota exceeded"}, "quota exceeded"),
        ({"error": {"code": 429, "message": "slow down"}}, "slow down"),
        ({"success": False, "message": "no such user"}, "no such user"),
        ({"status": "error", "detail": "bad date"}, "bad date"),
        ({"isError": True, "content": []}, "it reports a failure"),
        ("Error: file not found", "Error: file not found"),
        ("Traceback (most recent call last):\n  …", "Traceback (most recent call last):\n  …"),
    ],
)
def test_errors_in_disguise(value: Any, reason: str) -> None:
    judgement = judge(value, ToolPolicy())
    assert (judgement.quality, judgement.reason, judgement.ask_again) == ("error", reason, False)


@pytest.mark.parametrize(
    "value", [{"error": None, "rows": [1]}, {"error": "partly", "results": [1]}, "Errors are common."]
)
def test_what_only_mentions_an_error_is_none(value: Any) -> None:
    assert judge(value, ToolPolicy()) is GOOD


@pytest.mark.parametrize(
    "value", [{"organic": []}, {"results": [], "total": 0}, {"webPages": {"value": []}}, {"hits": None}]
)
def test_a_search_that_found_nothing(value: Any) -> None:
    judgement = judge(value, ToolPolicy(), "look_up")
    assert (judgement.quality, judgement.ask_again) == ("empty", True)
    assert judgement.reason == "look_up found nothing: ask with other words."


@pytest.mark.parametrize("value", [None, "", [], {}, "[]", "{}"])
def test_nothing_at_all_is_empty_but_no_reason_to_ask_again(value: Any) -> None:
    judgement = judge(value, ToolPolicy())
    assert (judgement.quality, judgement.ask_again) == ("empty", False)


def test_emptiness_is_declared_per_tool() -> None:
    declared = ToolPolicy(empty_at=("rows", "notes"))
    assert judge({"rows": [], "notes": "", "took_ms": 3}, declared).ask_again
    assert judge('{"rows": [], "notes": []}', declared).ask_again
    assert judge({"rows": [], "notes": ["x"]}, declared) is GOOD
    assert judge('{"rows": [1], "notes": []}', declared) is GOOD
    assert judge({"rows": []}, ToolPolicy(empty_at=("rows",), accept_empty=True)) is GOOD
    assert judge({"rows": []}, ToolPolicy()) is GOOD


@pytest.mark.parametrize(
    ("value", "is_empty"),
    [
        ({}, True),
        ({"searchParameters": {"q": "x"}, "credits": 1}, True),
        ('{"_type": "SearchResponse", "queryContext": {"originalQuery": "x"}}', True),
        ({"results": [], "total": 0}, True),
        ({"results": [{"title": "x"}]}, False),
        ('{"news": [{"title": "x"}]}', False),
        ({"searchParameters": {"q": "x"}, "answerBox": {"answer": "42"}}, False),
        ({"text": "1. x"}, False),
    ],
)
def test_where_the_declared_place_is_missing_other_places_count(value: Any, is_empty: bool) -> None:
    judgement = judge(value, SHIPPED_POLICIES["google_search"], "google_search")
    assert (judgement.quality == "empty") is is_empty


@pytest.mark.parametrize("value", [{"organic": [1]}, {"results": [], "items": [1]}, [0], 0, False, "x", {"count": 0}])
def test_results_with_something_in_them(value: Any) -> None:
    assert judge(value, ToolPolicy()) is GOOD


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Please complete the CAPTCHA to continue", "captcha"),
        ("请完成安全验证后继续访问", "captcha"),
        ("Just a moment... Checking your browser", "bot wall"),
        ("Access Denied\nReference #18.2", "bot wall"),
        ("You need to enable JavaScript to run this app.", "JavaScript"),
        ("请开启JavaScript后刷新页面", "JavaScript"),
        ("Sign in to continue reading", "login wall"),
        ("登录后查看更多内容", "login wall"),
        ("404 Not Found\nnginx", "HTTP error page"),
        ("Error 503 Service Unavailable", "HTTP error page"),
        ("   \n ", "no text"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda text: text, lambda text: {"url": "u", "text": text}])
def test_pages_without_content(text: str, reason: str, wrap: Any) -> None:
    judgement = judge(wrap(text), PAGES, "scrape")
    assert (judgement.quality, judgement.ask_again) == ("no_content", True)
    assert reason in judgement.reason


def test_an_article_that_speaks_of_captchas_is_content() -> None:
    article = "How a captcha works and why sites ask you to enable JavaScript. " * 60
    assert judge(article, PAGES) is GOOD
    assert judge({"text": article}, PAGES) is GOOD


def test_only_tools_that_read_pages_are_checked_for_walls() -> None:
    assert judge("Access denied", ToolPolicy()) is GOOD


def test_a_tools_own_policy_comes_before_the_shipped_one() -> None:
    plain = governed(ToolSpec("google_search"))
    assert plain.policy == SHIPPED_POLICIES["google_search"]
    own = governed(ToolSpec("google_search", policy=ToolPolicy(duplicate_key=("query",), accept_empty=True)))
    assert (own.policy.duplicate_key, own.policy.accept_empty, own.policy.empty_at) == (("query",), True, ("organic",))
    other = ToolSpec("something_else")
    assert governed(other) is other
    assert not governed(ToolSpec("scrape", policy=ToolPolicy(destructive=True))).policy.read_only


def test_a_shipped_policy_speaks_of_the_tools_own_parameters() -> None:
    def shipped_for(name: str, *parameters: str) -> ToolPolicy:
        schema = {"type": "object", "properties": {parameter: {"type": "string"} for parameter in parameters}}
        return governed(ToolSpec(name, "", schema)).policy

    search = shipped_for("google_search", "query", "page")
    assert (search.duplicate_key, search.aliases) == (
        ("query",),
        {"query": ("q", "keyword", "keywords", "search_query")},
    )
    assert shipped_for("google_search", "q", "query").duplicate_key == ("q",)
    assert shipped_for("google_search", "terms").duplicate_key is None
    assert shipped_for("scrape_and_extract_info", "link", "description").duplicate_key == ("link", "description")
    assert shipped_for("scrape_and_extract_info", "link").duplicate_key is None
    code = shipped_for("run_python_code", "code")
    assert (dict(code.aliases), dict(code.defaults)) == ({"code": ("code_block",)}, {})
    assert shipped_for("run_python_code", "code_block", "sandbox_id") == SHIPPED_POLICIES["run_python_code"]


@given(
    st.recursive(
        st.none() | st.text(max_size=30) | st.integers() | st.booleans(),
        lambda x: st.lists(x) | st.dictionaries(st.sampled_from(["error", "organic", "text", "success", "x"]), x),
    )
)
def test_any_value_can_be_judged(value: Any) -> None:
    for policy in (ToolPolicy(), PAGES, ToolPolicy(empty_at=("organic",))):
        judgement = judge(value, policy)
        assert (judgement.quality == "good") == (judgement.reason == "")
