"""Going in circles is found, over several turns and within one reply; work that only looks alike is left alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeout import Agent, Number, tool
from closeout.messages import ToolCall, ToolReturn
from closeout.parsing.repetition import RepetitionWatch, repeated_tail
from closeout.run.loops import POLLS, LoopWatch
from closeout.testing import ScriptedClient, call

Turn = list[tuple[str, dict[str, Any], str]]  # tool, arguments, result


def findings(turns: Iterable[Turn | tuple[str, dict[str, Any], str]], repeatable: Iterable[str] = ()) -> list[int]:
    """At which turns, counted from 1, the watch says something."""
    watch = LoopWatch(tuple(repeatable))
    found = []
    for number, turn in enumerate(turns, 1):
        entries = [turn] if isinstance(turn, tuple) else turn
        calls = tuple(ToolCall(name, arguments, f"c{number}") for name, arguments, _ in entries)
        returns = tuple(ToolReturn(call, text) for call, (_, _, text) in zip(calls, entries, strict=True))
        if watch.see(calls, returns):
            found.append(number)
    return found


def look(key: str, result: str = "") -> tuple[str, dict[str, Any], str]:
    return "look", {"key": key}, result or f"about {key}"


# ------------------------------------------------------------------------------------------------ the same calls


def test_the_same_call_three_times_is_a_circle() -> None:
    assert findings([look("a")] * 2) == []
    assert findings([look("a")] * 3) == [3]


@pytest.mark.parametrize("period", ["ab", "abc", "abcd"])
def test_a_round_of_calls_that_comes_again_is_a_circle(period: str) -> None:
    assert findings(look(key) for key in period * 2) == [2 * len(period)]


def test_a_loop_is_found_after_other_work_and_again_only_if_it_continues() -> None:
    assert findings(look(key) for key in "xyzabab") == [7]
    assert findings(look(key) for key in "ababxyabab") == [4, 10]
    assert findings(look(key) for key in "abababab") == [4, 8]


def test_a_round_of_parallel_calls_is_a_circle_too() -> None:
    both: Turn = [look("a"), look("b")]
    assert findings([both, [look("c")], both, [look("c")]]) == [4]


def test_the_order_of_arguments_makes_no_other_call() -> None:
    one: Turn = [("search", {"q": "x", "page": 1}, "r")]
    other: Turn = [("search", {"page": 1, "q": "x"}, "r")]
    assert findings([one, other, one]) == [3]


def test_turns_without_calls_say_nothing() -> None:
    assert LoopWatch().see((), ()) == ""


# ------------------------------------------------------------------------------------------------ the same page


PAGE = "The museum opens at nine and closes at five, every day but Monday. " * 4


def test_one_page_under_several_addresses_is_a_circle() -> None:
    turns = [("fetch", {"url": f"https://example.org/m?ref={ref}"}, PAGE) for ref in ("a", "bb", "cc")]
    assert findings(turns) == [3]


def test_short_results_that_are_alike_are_not() -> None:
    saved = [("save", {"name": f"file {n}", "text": f"text {n * 7}"}, "saved") for n in range(30)]
    missing = [("look", {"key": f"k{n}"}, "nothing found") for n in range(30)]
    assert findings(saved) == findings(missing) == []


# ------------------------------------------------------------------------------------------------ other words


CANALS = "1. The Grand Canal of China is the longest canal. 2. The Karakum Canal. 3. List of canals by length."


@pytest.mark.parametrize(
    "queries",
    [
        ["longest canal in the world", "the world's longest canal", "which canal is longest in the world",
         "longest canal of the world"],
        ["世界上最长的运河", "最长的运河是世界上哪条", "世界最长运河是哪条", "哪条运河是世界上最长的"],
        ["canal longest world length km", "longest canal world length", "world longest canal length km",
         "what is the longest canal length in the world"],
    ],
)  # fmt: skip
def test_one_question_in_other_words_is_a_circle(queries: list[str]) -> None:
    assert findings(("search", {"q": query}, CANALS) for query in queries) == [4]
    assert findings(("search", {"q": query}, CANALS) for query in queries[:3]) == []


def test_a_synonym_that_brings_the_same_is_a_circle() -> None:
    words = ["height", "elevation", "altitude", "tallness"]
    turns = [
        ("search", {"q": f"mount everest summit {word} metres"}, f"{CANALS} The summit is 8849 m.") for word in words
    ]
    assert findings(turns) == [4]


CITIES = [
    "Ulm", "Bonn", "Kiel", "Trier", "Essen", "Jena", "Gera", "Hof", "Köln", "Hamm", "Bremen", "Berlin", "Hamburg",
    "Lübeck", "Rostock", "Dresden", "Leipzig", "Halle", "Erfurt", "Weimar", "Kassel", "Fulda", "Mainz", "Worms",
    "Speyer", "Aachen", "Siegen", "Minden", "Celle", "Goslar",
]  # fmt: skip


def test_thirty_look_ups_of_one_pattern_are_thirty_questions() -> None:
    assert len(CITIES) == 30
    turns = [("search", {"q": f"what is the current population of the municipality of {city}"},
              f"{city} has {7919 * n % 100_000} inhabitants and lies in the {city} district.")
             for n, city in enumerate(CITIES, 1)]  # fmt: skip
    assert findings(turns) == []
    assert findings((name, query, "".join(filter(str.isdigit, result))) for name, query, result in turns) == []


def test_chinese_look_ups_of_one_pattern_are_different_questions() -> None:
    turns = [
        ("search", {"q": f"{land}的首都是哪座城市，人口有多少"}, f"{land}的首都资料")
        for land in ("法国", "德国", "英国", "泰国", "中国")
    ]
    assert findings(turns) == []


def test_paging_is_not_a_loop_however_the_page_is_passed() -> None:
    by_number = [
        ("search", {"q": "list of the canals of Europe", "page": n}, f"page {n}: {CANALS}") for n in range(1, 20)
    ]
    by_text = [("search", {"q": f"list of the canals of Europe page {n}"}, f"page {n}: {CANALS}") for n in range(1, 20)]
    by_year = [
        ("search", {"q": f"winner of the world chess championship {y}"}, f"{y}: {CANALS}") for y in range(1990, 2010)
    ]
    assert findings(by_number) == findings(by_text) == findings(by_year) == []


def test_a_growing_query_with_changing_results_is_not_a_loop() -> None:
    words = ["python asyncio", "timeout", "cancellation", "shield", "taskgroup", "uncancel"]
    turns = [("search", {"q": " ".join(words[: n + 1])}, f"{word} " * 5) for n, word in enumerate(words)]
    assert findings(turns) == []


# ------------------------------------------------------------------------------------------------ waiting


def test_a_tool_that_may_be_repeated_is_waited_for_a_while() -> None:
    waiting = [("poll", {"job": "j1"}, "still running, nothing new to tell yet, please ask again in a while. " * 4)]
    assert findings(waiting * (POLLS - 1), ["poll"]) == []
    assert findings(waiting * POLLS, ["poll"]) == [POLLS]


def test_two_jobs_may_be_waited_for_in_turns() -> None:
    rounds = [("poll", {"job": job}, "running") for job in "ab"] * POLLS
    assert findings(rounds, ["poll"])[0] == POLLS


def test_a_poll_that_brings_something_new_is_never_a_circle() -> None:
    assert findings([("poll", {"job": "j1"}, f"{n} % done") for n in range(100)], ["poll"]) == []


def test_paging_through_a_stored_result_is_not_a_loop() -> None:
    turns = [("read_result", {"handle": "r1", "offset": n * 4000}, f"part {n} " * 40) for n in range(30)]
    assert findings(turns, ["read_result"]) == []


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.text(max_size=40), st.text(max_size=40)), max_size=40))
def test_any_calls_and_results_are_taken_without_an_error(turns: list[tuple[str, str, str]]) -> None:
    findings(((name, {"q": query, "deep": {"x": [query]}}, result) for name, query, result in turns), ["b"])
    watch = LoopWatch()
    for _, query, result in turns:
        watch.see((ToolCall("t", query),), (ToolReturn(ToolCall("t", query), result),))


# ------------------------------------------------------------------------------------------------ within one reply


def test_a_tail_that_repeats_is_found_where_it_begins() -> None:
    text = "I have looked at three pages. "
    assert repeated_tail(text + "So I look once more. " * 30) in range(len(text) - 1, len(text) + 21)
    assert repeated_tail("我已经看过三页。" + "我再看一遍这个页面吧。" * 60) >= 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        "-" * 1500,
        "| a | b |\n|---|---|\n" * 3,
        "\n".join(f"{n}. the {n}th item of a list of things that were found" for n in range(80)),
        "So I look once more. " * 5,
    ],
)
def test_rules_lists_and_short_repetitions_are_let_pass(text: str) -> None:
    assert repeated_tail(text) == -1


def test_a_reply_that_repeats_itself_is_noticed_while_it_streams() -> None:
    watch, sent = RepetitionWatch(), 0
    for piece in ["Thinking. " * 3, *["I will look at it once more. "] * 200]:
        sent += len(piece)
        if watch.feed(piece):
            break
    assert sent < 1200


def test_ten_megabytes_are_watched_without_keeping_them() -> None:
    watch = RepetitionWatch()
    for number in range(2000):
        assert not watch.feed("".join(chr(0x4E00 + (number * 7919 + i * 104729) % 20000) for i in range(500)))
    assert len(watch._tail) <= 3000


async def test_what_a_looping_attempt_learned_is_the_result_and_no_refusal() -> None:
    @tool(read_only=True)
    def price(item: str) -> float:
        """Say a price."""
        return 40.0

    client = ScriptedClient(lambda view: call("price", item="台灯"))
    result = await Agent(client, [price], answer=Number(), home=False).run("What does it cost?")
    assert result.stop_reason == "loop"
    learned = str(result.failure_experience_summary).splitlines()
    assert learned[1:3] == ["Useful findings:", "- price(台灯): 40.0"]
    assert len(learned) == 4
