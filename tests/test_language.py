"""Words of human languages: one splitting and one list of stop words for all searches."""

from __future__ import annotations

import pytest

from closeout.language.words import spaced, telling_words, words
from closeout.messages import ToolSpec
from closeout.tools.search_tools import ToolIndex


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The Rideau Canal's locks, 1832", ["the", "rideau", "canal", "s", "locks", "1832"]),
        ("京杭大运河 has 24 locks", ["京杭大运河", "has", "24", "locks"]),
        ("Ｆｕｌｌ width", ["full", "width"]),
        ("a\0b \ud83d", ["a", "b"]),
    ],
)
def test_text_is_split_into_words_of_one_form(text: str, found: list[str]) -> None:
    assert words(text) == found


def test_characters_of_scripts_without_spaces_are_words_of_an_index() -> None:
    assert spaced("运河 opened").split() == ["运", "河", "opened"]
    assert spaced("คลอง").split() == list("คลอง")


def test_stop_words_are_left_out_in_english_and_chinese() -> None:
    assert telling_words("When was the canal opened?") == ["canal", "opened"]
    assert telling_words("请问京杭大运河有多长") == ["京杭大运河", "长"]
    assert telling_words("When was the canal opened?", keep_asking=True) == ["when", "canal", "opened"]


def test_tools_are_found_in_chinese_and_by_the_words_of_names_in_camel_case() -> None:
    weather = ToolSpec("weather", "查询城市的天气预报", {})
    stocks = ToolSpec("getStockPrice", "查询股票价格", {})
    index = ToolIndex([weather, stocks])
    assert index.find("明天的天气")[0] is weather
    assert index.find("price of a stock")[0] is stocks
