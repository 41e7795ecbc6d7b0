"""AnswerGenerator over real HTTP: the decision table and every failure kind, against a scripted server."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from closeout.answers.experience import FAILURE_SUMMARY_PROMPT
from closeout.answers.formatter import FORMAT_ERROR_MESSAGE, OutputFormatter
from closeout.compat.answer_generator import AnswerGenerator
from closeout.compat.stream_handler import StreamHandler
from closeout.compat.task_log import TaskLog
from closeout.config import AgentSettings
from closeout.models.openai import OpenAIClient
from closeout.models.retry import RetryPolicy
from closeout.testing import RequestView, answer, call, once, serve_script

HISTORY = [{"role": "user", "content": "How many moons has Mars?"}, {"role": "assistant", "content": "I looked."}]
TOOLS = [{"name": "web", "tools": [{"name": "search", "description": "", "schema": {"type": "object"}}]}]
ACCOUNT = "Failure type: incomplete\nWhat happened: it was late.\nUseful findings: two moons"


def script(*closing: Any) -> Any:
    """The closing replies in order; the account whenever it is asked for."""

    def reply(view: RequestView) -> Any:
        if FAILURE_SUMMARY_PROMPT in view.text:
            return ACCOUNT
        return closing[min(view.number, len(closing)) - 1]

    return reply


async def close(
    replies: Any,
    *,
    limit: int = 0,
    keep: int = -1,
    seen: Sequence[str] = (),
    faults: Any = (),
    **how: bool,
) -> Any:
    """(what was returned, the requests as the server got them, the generator)."""
    async with (
        serve_script(replies, misbehave=faults) as server,
        OpenAIClient("m", server.base_url, retry=RetryPolicy(first_wait=0.001)) as client,
    ):
        cfg = SimpleNamespace(agent=AgentSettings(context_compress_limit=limit, keep_tool_result=keep))
        made = AnswerGenerator(client, OutputFormatter(), TaskLog(), StreamHandler(), cfg, list(seen))
        closed = await made.generate_and_finalize_answer(
            system_prompt="You are careful.",
            message_history=list(HISTORY),
            tool_definitions=TOOLS,
            turn_count=2,
            task_description="How many moons has Mars?",
            **how,
        )
        return closed, [request.json["messages"] for request in server.requests], made


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("spent", [True, False])
@pytest.mark.parametrize("limit", [0, 2])
async def test_every_cell_of_the_decision_table(limit: int, spent: bool, last: bool, good: bool) -> None:
    closed, requests, _ = await close(
        script(r"\boxed{2}" if good else r"\boxed{?}"),
        limit=limit,
        seen=["3"],
        reached_max_turns=spent,
        is_final_retry=last,
    )
    follows = limit > 0 and not last
    if follows and spent:
        assert (closed.final_boxed_answer, closed.failure_experience_summary) == (FORMAT_ERROR_MESSAGE, ACCOUNT)
        assert len(requests) == 1, "no answer is asked for: it would be a guess"
    elif good:
        assert (closed.final_boxed_answer, closed.failure_experience_summary) == ("2", None)
    elif follows:
        assert (closed.final_boxed_answer, closed.failure_experience_summary) == (FORMAT_ERROR_MESSAGE, ACCOUNT)
        assert len(requests) == 4
    else:
        assert (closed.final_boxed_answer, closed.failure_experience_summary) == ("3", None)
        assert len(requests) == 3


async def test_each_request_extends_what_came_before() -> None:
    _, requests, _ = await close(script(r"\boxed{?}", "", r"\boxed{2}"))
    head = [{"role": "system", "content": "You are careful."}, *HISTORY]
    assert all(request[: len(head)] == head for request in requests)
    assert [len(request) for request in requests] == [4, 4, 4]


async def test_a_box_that_was_forgotten_is_asked_for_alone() -> None:
    closed, requests, _ = await close(script("Mars has two moons.", r"\boxed{2}"))
    assert closed.final_boxed_answer == "2"
    assert requests[1][-2]["content"] == "Mars has two moons."
    assert "only the final answer" in requests[1][-1]["content"]
    assert "Mars has two moons." in closed.final_summary
    assert (closed.text, closed.value) == ("Mars has two moons.\n\n\\boxed{2}", "2")


async def test_a_tool_call_in_the_closing_turn_is_not_run() -> None:
    closed, requests, _ = await close(script(call("search", q="moons"), r"\boxed{2}"))
    assert closed.final_boxed_answer == "2"
    assert "Tools are closed" in requests[1][-1]["content"]
    assert not any(message.get("tool_calls") for message in requests[1])


@pytest.mark.parametrize(
    "fault", ["rate_limited", "server_error", "html_error", "empty_body", "garbage_body", "dropped"]
)
async def test_a_transient_failure_costs_one_request(fault: str) -> None:
    closed, requests, _ = await close(script(r"\boxed{2}"), faults=[once(fault)])
    assert closed.final_boxed_answer == "2"
    assert len(requests) == 2


@pytest.mark.parametrize("fault", ["empty", "non_answer", "truncated", "missing_box"])
async def test_a_bad_reply_is_asked_for_again(fault: str) -> None:
    closed, requests, _ = await close(
        script(answer("2", "There are two moons of Mars, as far as is known.")), faults=[once(fault)]
    )
    assert closed.final_boxed_answer == "2"
    assert len(requests) == 2
    assert requests[0] != requests[1]


async def test_with_an_unreachable_model_the_answer_is_one_seen_earlier() -> None:
    client = OpenAIClient("m", "http://127.0.0.1:9/v1", retry=RetryPolicy(unreachable_retries=0))
    log = TaskLog()
    cfg = SimpleNamespace(agent=AgentSettings())
    made = AnswerGenerator(client, OutputFormatter(), log, StreamHandler(), cfg, ["3"])
    async with client:
        closed = await made.generate_and_finalize_answer("", list(HISTORY), [], 2, "How many moons has Mars?")
    assert closed.final_boxed_answer == "3"
    assert closed.final_summary == "No final answer generated."
    assert [step.level for step in log.step_logs].count("error") >= 1
