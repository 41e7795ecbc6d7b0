"""OutputFormatter: tool results as message parts, closing texts as summary, answer and bill."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from closeout.answers import formatter as formatter_module
from closeout.answers.contracts import Json, Number
from closeout.answers.formatter import FORMAT_ERROR_MESSAGE, TOOL_RESULT_MAX_LENGTH, OutputFormatter


class Client:
    def format_token_usage_summary(self) -> tuple[list[str], str]:
        return ["Input tokens: 12", "Cost: $0.01"], "input 12, cost 0.01"


def result(**outcome: Any) -> str:
    part = OutputFormatter().format_tool_result_for_user({"server_name": "web", "tool_name": "search", **outcome})
    assert part["type"] == "text"
    return part["text"]


def test_the_constants_are_the_documented_ones() -> None:
    assert FORMAT_ERROR_MESSAGE == "No \\boxed{} content found in the final answer."
    assert TOOL_RESULT_MAX_LENGTH == 100_000


def test_a_result_is_passed_through() -> None:
    assert result(result="Top results …") == "Top results …"
    assert result(result="") == ""


def test_an_error_names_the_tool_and_the_server() -> None:
    text = result(error="timed out", result="half of it")
    assert text == "Tool call to search on web failed. Error: timed out"


def test_a_call_without_result_and_error_says_so() -> None:
    assert result() == "Tool call to search on web completed, but produced no specific output or result."
    assert result(error=None, result=None) == result()
    assert result(error=None, result="fine") == "fine"


def test_a_long_result_is_cut_and_says_so() -> None:
    text = result(result="x" * (TOOL_RESULT_MAX_LENGTH + 1))
    assert text == "x" * TOOL_RESULT_MAX_LENGTH + "\n... [Result truncated]"
    assert result(result="x" * TOOL_RESULT_MAX_LENGTH) == "x" * TOOL_RESULT_MAX_LENGTH


def test_the_limit_may_be_set_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formatter_module, "TOOL_RESULT_MAX_LENGTH", 3)
    assert result(result="abcd") == "abc\n... [Result truncated]"


def test_missing_names_get_a_fallback_text() -> None:
    made = OutputFormatter()
    assert made.format_tool_result_for_user({"error": "x"})["text"] == "Tool call to an unnamed tool failed. Error: x"
    assert made.format_tool_result_for_user({})["text"].startswith("Tool call to an unnamed tool completed")
    assert made.format_tool_result_for_user({"result": "r"})["text"] == "r"


@pytest.mark.parametrize(("outcome", "text"), [("found", "found"), (["a"], '["a"]'), (None, "Tool call to an unnamed")])
def test_a_value_that_is_not_a_mapping_is_the_result(outcome: Any, text: str) -> None:
    assert OutputFormatter().format_tool_result_for_user(outcome)["text"].startswith(text)


def test_a_result_that_is_not_a_string_is_written_as_json() -> None:
    assert json.loads(result(result={"a": [1, "北京"]})) == {"a": [1, "北京"]}
    assert "北京" in result(result=["北京"])


def test_the_final_summary_has_three_sections() -> None:
    summary, boxed, usage = OutputFormatter().format_final_summary_and_log("The answer is \\boxed{42}", Client())
    titles = ["Final Answer", "Extracted Result", "Token Usage"]
    assert [summary.index(title) for title in titles] == sorted(summary.index(title) for title in titles)
    assert "The answer is \\boxed{42}" in summary
    assert summary.split("Extracted Result")[1].split("\n")[1] == "42"
    assert "Cost: $0.01" in summary
    assert (boxed, usage) == ("42", "input 12, cost 0.01")


@pytest.mark.parametrize("client", [None, object()])
def test_without_a_client_the_usage_is_not_known(client: Any) -> None:
    summary, boxed, usage = OutputFormatter().format_final_summary_and_log("\\boxed{42}", client)
    assert usage == "Token usage information not available."
    assert usage in summary
    assert boxed == "42"


@pytest.mark.parametrize("summarise", [lambda: "no pair", lambda: None, lambda: 1 / 0])
def test_a_usage_summary_that_fails_does_not_cost_the_answer(summarise: Any) -> None:
    client = SimpleNamespace(format_token_usage_summary=summarise)
    formatted = OutputFormatter().format_final_summary_and_log("\\boxed{42}", client)
    assert formatted.boxed_result == "42"
    assert formatted.log_string.startswith("Token usage information not available. (")
    assert formatted.log_string in formatted.summary_text


def test_a_text_without_an_answer_gives_the_format_error() -> None:
    formatted = OutputFormatter().format_final_summary_and_log("It is 42.")
    assert formatted.boxed_result == FORMAT_ERROR_MESSAGE
    assert "no \\boxed{}" in formatted.summary_text
    assert OutputFormatter().format_final_summary_and_log("\\boxed{?}").boxed_result == FORMAT_ERROR_MESSAGE


def test_no_text_gives_no_answer_and_no_error() -> None:
    assert OutputFormatter().format_final_summary_and_log("").boxed_result == ""


def test_the_contract_says_what_an_answer_is() -> None:
    made = OutputFormatter(Number(unit="km"))
    assert made.format_final_summary_and_log("\\boxed{1,200 km}").boxed_result == "1200"
    assert made.format_final_summary_and_log("\\boxed{far}").boxed_result == FORMAT_ERROR_MESSAGE


def test_the_summary_is_there_as_a_record() -> None:
    record = OutputFormatter(Json({"type": "object"})).final_summary('So {"moons": 2}', Client())
    assert (record.answer, record.value) == ('{"moons":2}', {"moons": 2})
    assert json.loads(json.dumps(record.to_dict())) == {
        "final_answer": 'So {"moons": 2}',
        "answer": '{"moons":2}',
        "value": {"moons": 2},
        "problem": "",
        "candidates": [{"text": '{"moons": 2}', "start": 3, "end": 15, "complete": True}],
        "usage_log": "input 12, cost 0.01",
    }


def test_extract_boxed_content_returns_the_last_box() -> None:
    assert OutputFormatter()._extract_boxed_content("\\boxed{1} \\boxed{2}") == "2"
    assert OutputFormatter(Number())._extract_boxed_content("\\boxed{x}") == "x"
    assert OutputFormatter()._extract_boxed_content("") == ""


def test_it_can_be_extended_by_a_subclass() -> None:
    class Quiet(OutputFormatter):
        def format_tool_result_for_user(self, tool_call_execution_result: Any) -> dict[str, str]:
            part = super().format_tool_result_for_user(tool_call_execution_result)
            return {**part, "text": part["text"].lower()}

    assert Quiet().format_tool_result_for_user({"result": "LOUD"})["text"] == "loud"
