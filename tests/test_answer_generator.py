"""AnswerGenerator against collaborators of the documented shape: calls, failures, retries, the decision table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest

from closeout.answers.contracts import Choice, Json
from closeout.answers.experience import FAILURE_SUMMARY_ASSISTANT_PREFIX, FAILURE_SUMMARY_PROMPT
from closeout.answers.formatter import FORMAT_ERROR_MESSAGE, OutputFormatter
from closeout.compat.answer_generator import AnswerGenerator
from closeout.errors import (
    AuthenticationFailed,
    BadRequest,
    ContextOverflow,
    JournalFull,
    LimitReached,
    ModelTimeout,
    RateLimited,
)
from closeout.messages import Message, ModelReply
from closeout.models.base import ErrorBox, ResponseBox

CALL = [{"server_name": "web", "tool_name": "search", "arguments": {"q": "x"}, "id": "1"}]
HISTORY = [
    {"role": "user", "content": "How many moons has Mars?"},
    {"role": "assistant", "content": "Let me look."},
    {"role": "user", "content": "Phobos and Deimos."},
]
EXPERIENCE = " incomplete\nWhat happened: it was late.\nUseful findings: two moons"


class Client:
    """Answers with what it is given, in order: a text, a reply with calls, a box, None, or an exception."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.requests: list[dict[str, Any]] = []

    async def create_message(self, **request: Any) -> tuple[Any, list[Any]]:
        self.requests.append(deepcopy({key: value for key, value in request.items() if key != "task_log"}))
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        return reply, request["message_history"]

    def process_llm_response(self, response: Any, history: list[Any], agent_type: str) -> tuple[str, bool, list[Any]]:
        text = getattr(response, "text", response)
        # As clients do that work in place: the list they were given is the list they return.
        history.append({"role": "assistant", "content": text})
        return text, False, history

    def extract_tool_calls_info(self, response: Any, text: str) -> list[Any]:
        return getattr(response, "calls", [])

    def format_token_usage_summary(self) -> tuple[list[str], str]:
        return [f"Requests: {len(self.requests)}"], f"requests {len(self.requests)}"

    def sent(self, request: int = -1) -> list[dict[str, Any]]:
        history: list[dict[str, Any]] = self.requests[request]["message_history"]
        return history


class Stream:
    def __init__(self) -> None:
        self.errors: list[str] = []

    async def show_error(self, text: str) -> None:
        self.errors.append(text)


class Log:
    def __init__(self) -> None:
        self.steps: list[tuple[str, str, str]] = []

    def log_step(self, level: str, step_name: str, message: str) -> None:
        self.steps.append((level, step_name, message))

    def names(self, level: str) -> list[str]:
        return [name for known, name, _ in self.steps if known == level]


class Settings(dict[str, Any]):
    """Keys by name and by `.get`, as configuration objects have them."""

    def __getattr__(self, key: str) -> Any:
        return self[key]


def generator(
    *replies: Any,
    limit: int = 0,
    keep: int = -1,
    seen: Sequence[str] = (),
    selection: str = "last",
    formatter: OutputFormatter | None = None,
    shrink: Callable[[Any], Any] | None = None,
) -> AnswerGenerator:
    agent = Settings(context_compress_limit=limit, keep_tool_result=keep, answer_selection=selection)
    cfg = SimpleNamespace(agent=agent)
    made = AnswerGenerator(Client(*replies), formatter or OutputFormatter(), Log(), Stream(), cfg, list(seen))
    made.shrink_history = shrink
    return made


async def call(made: AnswerGenerator, history: list[Any]) -> Any:
    return await made.handle_llm_call("system", history, [], 7, "Test")


async def ask(made: AnswerGenerator, history: Sequence[Any] = HISTORY) -> Any:
    return await made.generate_final_answer_with_retries(
        system_prompt="system",
        message_history=list(history),
        tool_definitions=[],
        turn_count=4,
        task_description="How many moons has Mars?",
    )


async def close(made: AnswerGenerator, **how: Any) -> Any:
    return await made.generate_and_finalize_answer(
        system_prompt="system",
        message_history=list(HISTORY),
        tool_definitions=[],
        turn_count=4,
        task_description="How many moons has Mars?",
        **how,
    )


# ------------------------------------------------------------------------------------------------ one call


async def test_a_call_returns_text_should_break_calls_and_the_new_history() -> None:
    made = generator(SimpleNamespace(text="hello", calls=CALL))
    text, should_break, calls, history = await call(made, HISTORY)
    assert (text, should_break, calls) == ("hello", False, CALL)
    assert history == [*HISTORY, {"role": "assistant", "content": "hello"}]
    assert made.llm_client.requests[0] == {
        "system_prompt": "system",
        "message_history": HISTORY,
        "tool_definitions": [],
        "keep_tool_result": -1,
        "step_id": 7,
        "agent_type": "main",
    }


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(None, id="no reply"),
        pytest.param(ErrorBox("down"), id="error box"),
        pytest.param(ResponseBox(None), id="a box around nothing"),
        pytest.param(RuntimeError("boom"), id="exception"),
        pytest.param(ModelTimeout("late"), id="model error"),
    ],
)
async def test_a_failed_call_returns_the_empty_text_and_the_original_history(failure: Any) -> None:
    made = generator(failure)
    history = list(HISTORY)
    text, should_break, calls, returned = await call(made, history)
    assert (text, should_break, calls) == ("", False, None)
    assert returned is history
    assert made.task_log.names("error")


async def test_an_error_box_is_shown() -> None:
    made = generator(ErrorBox("the server is down"))
    await call(made, [])
    assert made.stream.errors == ["the server is down"]


async def test_a_response_box_is_unpacked_and_its_warning_shown() -> None:
    made = generator(ResponseBox("hello", {"warning_msg": "nearly out of credit"}), ResponseBox("again"))
    assert (await call(made, []))[0] == "hello"
    assert (await call(made, []))[0] == "again"
    assert made.stream.errors == ["nearly out of credit"]


@pytest.mark.parametrize("failing", [lambda text: 1 / 0, None])
async def test_a_failing_stream_changes_neither_replies_nor_failures(failing: Any) -> None:
    made = generator(ResponseBox("hello", {"warning_msg": "low"}), ErrorBox("down"), ModelTimeout("late"))
    made.stream = SimpleNamespace(show_error=failing)
    assert (await call(made, HISTORY)).response_text == "hello"
    for _ in range(2):
        assert (await call(made, HISTORY))[:3] == ("", False, None)
    assert made.task_log.names("warning") == ["Stream Error"] * 3


async def test_a_client_that_loses_the_history_has_failed() -> None:
    made = generator("hello")
    made.llm_client.process_llm_response = lambda response, history, agent_type: (response, False, None)
    failed = await call(made, HISTORY)
    assert (failed.response_text, failed.message_history) == ("", HISTORY)


async def test_cancellation_and_journal_errors_are_raised() -> None:
    for failure in (asyncio.CancelledError(), JournalFull("no space left")):
        with pytest.raises(type(failure)):
            await call(generator(failure), [])


async def test_boxes_identify_themselves() -> None:
    error, response = ErrorBox("down"), ResponseBox("hello", {"warning_msg": "w"})
    assert (str(error), ErrorBox.is_error_box(error), ErrorBox.is_error_box(response)) == ("down", True, False)
    assert (ResponseBox.is_response_box(response), ResponseBox.is_response_box("hello")) == (True, False)
    assert (response.get_response(), response.has_extra_info()) == ("hello", True)
    assert response.get_extra_info() == {"warning_msg": "w"}
    assert (ResponseBox("x").has_extra_info(), ResponseBox("x").get_extra_info()) == (False, {})


# ------------------------------------------------------------------------------------------------ retries


async def test_an_answer_in_its_form_is_accepted_at_once() -> None:
    made = generator(r"Two: \boxed{2}")
    final = await ask(made)
    assert (final.final_answer_text, final.final_boxed_answer) == (r"Two: \boxed{2}", "2")
    assert "requests 1" in final.usage_log
    assert r"Two: \boxed{2}" in final.final_summary
    assert [message["role"] for message in final.message_history] == ["user", "assistant", "user", "user", "assistant"]
    assert final.reading.value == "2"
    assert ("info", "Main Agent | Final Answer", "Boxed answer found on attempt 1") in made.task_log.steps


async def test_the_closing_instruction_carries_the_task_and_the_form() -> None:
    made = generator(r"\boxed{2}")
    await ask(made)
    said = made.llm_client.sent()[-1]
    assert said["role"] == "user"
    assert "How many moons has Mars?" in said["content"]
    assert r"\boxed{...}" in said["content"]
    assert made.llm_client.sent()[:-1] == HISTORY, "what came before is sent as it was"


@pytest.mark.parametrize(("keep", "requests"), [(-1, 3), (5, 1), (0, 1)])
async def test_three_tries_with_all_tool_results_kept_else_one(keep: int, requests: int) -> None:
    made = generator(*["no form at all, sorry to say, but words"] * 3, keep=keep)
    final = await ask(made)
    assert len(made.llm_client.requests) == requests
    assert final.final_boxed_answer == FORMAT_ERROR_MESSAGE
    assert [request["step_id"] for request in made.llm_client.requests] == [5, 6, 7][:requests]


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        pytest.param("", "was empty", id="empty"),
        pytest.param("I'm sorry, but I can't help with that.", "declined", id="refusal"),
        pytest.param("抱歉，我无法回答。", "declined", id="refusal in Chinese"),
        pytest.param(r"It is \boxed{}", "box is empty", id="empty box"),
        pytest.param(r"It is \boxed{?}", "placeholder", id="placeholder"),
        pytest.param(SimpleNamespace(text="Searching.", calls=CALL), "Tools are closed", id="tool call"),
        pytest.param("<tool_call>{}</tool_call>", "Tools are closed", id="tool call as text"),
        pytest.param(ModelReply("So, first of", finish_reason="length"), "cut off", id="cut"),
    ],
)
async def test_the_next_try_says_what_was_wrong_and_does_not_show_the_bad_reply(reply: Any, told: str) -> None:
    made = generator(reply, r"\boxed{2}")
    final = await ask(made)
    assert final.final_boxed_answer == "2"
    again = made.llm_client.sent()
    assert told in again[-1]["content"]
    assert "How many moons has Mars?" in again[-1]["content"]
    assert again[:-1] == HISTORY
    assert len(final.message_history) == len(HISTORY) + 2
    assert final.message_history[-1] == {"role": "assistant", "content": r"\boxed{2}"}


async def test_a_reply_that_only_lacks_the_form_is_finished_not_written_again() -> None:
    made = generator("Mars has two moons, Phobos and Deimos.", r"\boxed{2}")
    final = await ask(made)
    *before, reply, note = made.llm_client.sent()
    assert reply == {"role": "assistant", "content": "Mars has two moons, Phobos and Deimos."}
    assert r"no \boxed{}" in note["content"]
    assert "only the final answer" in note["content"]
    assert "How many moons" not in note["content"], "a short continuation, not the task again"
    assert len(before) == len(HISTORY) + 1
    assert final.final_answer_text == "Mars has two moons, Phobos and Deimos.\n\n\\boxed{2}"
    assert final.message_history[-1]["content"] == r"\boxed{2}"
    assert "Phobos and Deimos." not in str(final.message_history[len(HISTORY) :])


async def test_if_the_continuation_fails_too_the_whole_is_asked_for_again() -> None:
    made = generator("Two moons.", "As I said, two.", r"\boxed{2}")
    assert (await ask(made)).final_boxed_answer == "2"
    assert "Two moons." not in str(made.llm_client.sent())
    assert "not in the form" in made.llm_client.sent()[-1]["content"]


async def test_after_an_answer_that_breaks_its_contract_the_model_is_asked_again_with_the_reason() -> None:
    made = generator(r"\boxed{Pluto}", r"\boxed{Mars}", formatter=OutputFormatter(Choice(["Mars", "Venus"])))
    final = await ask(made)
    assert final.final_boxed_answer == "Mars"
    assert "'Pluto' is not one of: Mars, Venus" in made.llm_client.sent()[-1]["content"]


async def test_the_typed_answer_is_returned_beside_its_text() -> None:
    made = generator('{"moons": 2}', formatter=OutputFormatter(Json({"type": "object"})))
    final = await ask(made)
    assert final.final_boxed_answer == '{"moons":2}'
    assert final.reading.value == {"moons": 2}


async def test_a_tool_call_beside_a_valid_answer_is_ignored() -> None:
    made = generator(SimpleNamespace(text=r"\boxed{2}", calls=CALL))
    assert (await ask(made)).final_boxed_answer == "2"


async def test_the_lists_passed_in_are_not_modified() -> None:
    history = [Message(message) for message in HISTORY]
    before = list(history)
    made = generator("nothing", "", r"\boxed{2}", EXPERIENCE, limit=1)
    await ask(made, history)
    await made.generate_failure_summary("system", history, [], 4)
    assert history == before


async def test_a_custom_formatter_decides_what_an_answer_is() -> None:
    class Shout(OutputFormatter):
        def format_final_summary_and_log(self, final_answer_text: str, client: Any = None) -> Any:
            return "summary", final_answer_text.upper(), "usage"

    final = await ask(generator("two", formatter=Shout()))
    assert (final.final_summary, final.final_boxed_answer, final.usage_log) == ("summary", "TWO", "usage")


# ------------------------------------------------------------------------------------------------ failing requests


@pytest.mark.parametrize("failure", [None, RuntimeError("boom"), ErrorBox("down"), RateLimited("slow down")])
async def test_a_request_that_may_work_the_next_time_is_made_again(failure: Any) -> None:
    made = generator(failure, r"\boxed{2}")
    assert (await ask(made)).final_boxed_answer == "2"
    assert made.llm_client.sent(0) == made.llm_client.sent(1)


@pytest.mark.parametrize(
    "failure",
    [
        AuthenticationFailed("wrong key"),
        BadRequest("no such field"),
        ContextOverflow("too long"),
        LimitReached("max_cost", "the budget is spent"),
        ErrorBox("wrong key", AuthenticationFailed("wrong key")),
    ],
)
async def test_a_request_that_can_never_work_is_not_made_again(failure: Any) -> None:
    made = generator(failure)
    final = await ask(made)
    assert (final.final_answer_text, final.final_boxed_answer) == (None, FORMAT_ERROR_MESSAGE)
    assert len(made.llm_client.requests) == 1
    assert made.stream.errors


async def test_a_transient_failure_is_tried_once_more_after_the_transport_gave_up() -> None:
    made = generator(ModelTimeout("late"), ModelTimeout("late again"))
    assert (await ask(made)).final_boxed_answer == FORMAT_ERROR_MESSAGE
    assert len(made.llm_client.requests) == 2


async def test_a_prompt_that_is_too_long_is_shortened_once() -> None:
    made = generator(ContextOverflow("too long"), r"\boxed{2}", shrink=lambda history: history[:1])
    final = await ask(made)
    assert final.final_boxed_answer == "2"
    assert made.llm_client.sent()[:-1] == HISTORY[:1]
    made = generator(ContextOverflow("too long"), ContextOverflow("still"), shrink=lambda history: history[:1])
    assert (await ask(made)).final_boxed_answer == FORMAT_ERROR_MESSAGE
    assert len(made.llm_client.requests) == 2


async def test_without_any_reply_the_answer_is_the_format_error() -> None:
    final = await ask(generator(None, None, None))
    assert final == (None, "", FORMAT_ERROR_MESSAGE, "", final.message_history)


# ------------------------------------------------------------------------------------------------ experience


async def test_a_failure_summary_is_asked_for_with_its_prompt_and_its_prefix() -> None:
    made = generator(EXPERIENCE)
    summary = await made.generate_failure_summary("system", HISTORY, [], 4)
    assert summary == f"Failure type:{EXPERIENCE}"
    assert made.llm_client.sent() == [
        *HISTORY[:-1],  # the user's message at the end is left out
        {"role": "user", "content": FAILURE_SUMMARY_PROMPT},
        {"role": "assistant", "content": FAILURE_SUMMARY_ASSISTANT_PREFIX},
    ]
    assert made.llm_client.requests[0]["step_id"] == 14
    assert "Main Agent | Failure Summary" in made.task_log.names("info")


async def test_a_history_that_is_only_the_task_keeps_it() -> None:
    made = generator(EXPERIENCE)
    await made.generate_failure_summary("system", HISTORY[:1], [], 4)
    assert made.llm_client.sent()[0] == HISTORY[0]


async def test_a_failure_summary_is_cleaned_of_reasoning_and_calls() -> None:
    made = generator(f"<think>hm</think>Failure type:{EXPERIENCE}\n<use_mcp_tool>…")
    summary = await made.generate_failure_summary("system", HISTORY, [], 4)
    assert summary == f"Failure type:{EXPERIENCE}"


@pytest.mark.parametrize("failure", ["", None, RuntimeError("boom"), "<tool_call>{}</tool_call>"])
async def test_without_a_failure_summary_the_result_is_none(failure: Any) -> None:
    made = generator(failure)
    assert await made.generate_failure_summary("system", HISTORY, [], 4) is None
    assert "Main Agent | Failure Summary" in made.task_log.names("warning")


async def test_a_model_that_refuses_a_prefix_is_asked_without_it() -> None:
    made = generator(BadRequest("prefill is not supported"), f"Failure type:{EXPERIENCE}")
    assert await made.generate_failure_summary("system", HISTORY, [], 4) == f"Failure type:{EXPERIENCE}"
    assert made.llm_client.sent()[-1]["role"] == "user"


# ------------------------------------------------------------------------------------------------ the decision table

GOOD, BAD = r"\boxed{2}", r"\boxed{?}"


@pytest.mark.parametrize("spent", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("limit", "is_last_for_sure"), [(0, True), (2, False)])
@pytest.mark.parametrize("good", [True, False])
async def test_every_cell_of_the_decision_table(
    limit: int, is_last_for_sure: bool, spent: bool, last: bool, good: bool
) -> None:
    skips = limit > 0 and spent and not last
    falls_back = is_last_for_sure or last
    replies = [EXPERIENCE] if skips else [GOOD] if good else [BAD, BAD, BAD, EXPERIENCE]
    made = generator(*replies, limit=limit, seen=["3"])
    saved: list[Any] = []

    closed = await close(
        made,
        reached_max_turns=spent,
        is_final_retry=last,
        save_callback=lambda system, history: saved.append((system, list(history))),
    )

    answer_was_asked_for = "closing turn" in str(made.llm_client.sent(0))
    experience_was_asked_for = FAILURE_SUMMARY_PROMPT in str(made.llm_client.sent()[-2]["content"])
    assert len(saved) == 1
    if skips:
        assert not answer_was_asked_for
        assert closed.final_boxed_answer == FORMAT_ERROR_MESSAGE
        assert closed.final_summary.startswith("Task incomplete - reached maximum turns.")
        assert "it was late" in closed.failure_experience_summary
        assert closed.message_history == HISTORY
        return
    assert answer_was_asked_for
    if good:
        assert (closed.final_boxed_answer, closed.failure_experience_summary) == ("2", None)
        assert len(made.llm_client.requests) == 1
    elif falls_back:
        assert (closed.final_boxed_answer, closed.failure_experience_summary) == ("3", None)
        assert not experience_was_asked_for
    else:
        assert closed.final_boxed_answer == FORMAT_ERROR_MESSAGE, "no guess: another attempt follows"
        assert experience_was_asked_for
        assert "it was late" in closed.failure_experience_summary


async def test_it_unpacks_as_documented() -> None:
    final_summary, boxed, experience, usage_log, history = await close(generator(GOOD))
    assert (boxed, experience, usage_log) == ("2", None, "requests 1")
    assert GOOD in final_summary
    assert history[-1]["role"] == "assistant"


async def test_without_context_management_and_answers_the_error_stays() -> None:
    closed = await close(generator(BAD, BAD, BAD))
    assert (closed.final_boxed_answer, closed.failure_experience_summary) == (FORMAT_ERROR_MESSAGE, None)


async def test_without_any_text_the_summary_says_that_there_is_no_answer() -> None:
    closed = await close(generator(None, None, None))
    assert (closed.final_summary, closed.final_boxed_answer) == ("No final answer generated.", FORMAT_ERROR_MESSAGE)


async def test_a_model_that_fails_permanently_is_not_asked_for_experience() -> None:
    made = generator(AuthenticationFailed("wrong key"), limit=2)
    closed = await close(made)
    assert (closed.final_boxed_answer, closed.failure_experience_summary) == (FORMAT_ERROR_MESSAGE, None)
    assert len(made.llm_client.requests) == 1


async def test_a_save_callback_may_be_async() -> None:
    saved: list[str] = []

    async def save(system_prompt: str, message_history: list[Any]) -> None:
        saved.append(system_prompt)

    await close(generator(GOOD), save_callback=save)
    assert saved == ["system"]


def test_the_fallback_takes_the_last_answer_seen() -> None:
    made = generator(seen=["2", "2", "3"])
    assert made.handle_no_context_management_fallback("text", "summary", FORMAT_ERROR_MESSAGE) == (
        "text",
        "summary",
        "3",
    )
    assert made.handle_no_context_management_fallback("text", "summary", "4") == ("text", "summary", "4")
    for missing in (None, ""):
        assert made.handle_no_context_management_fallback("text", "summary", missing).final_boxed_answer == "3"


def test_the_fallback_may_take_a_vote() -> None:
    made = generator(seen=["2", "2.0", "3"], selection="vote")
    assert made.handle_no_context_management_fallback("text", "summary", None).final_boxed_answer == "2.0"


def test_the_fallback_sees_answers_that_came_after_it_was_made() -> None:
    seen: list[str] = []
    made = generator()
    made.intermediate_boxed_answers = seen
    seen.append("5")
    assert made.handle_no_context_management_fallback("", "", None).final_boxed_answer == "5"


def test_with_context_management_nothing_is_guessed() -> None:
    made = generator(limit=2, seen=["3"])
    assert made.handle_context_management_no_fallback("text", "summary", None) == (
        "text",
        "summary",
        FORMAT_ERROR_MESSAGE,
    )
    assert made.handle_context_management_no_fallback(None, "", None).final_summary == "No final answer generated."
    assert made.handle_context_management_no_fallback("text", "summary", "4").final_boxed_answer == "4"


def test_retries_and_limit_are_read_from_the_configuration() -> None:
    made = generator(limit=3, keep=-1)
    assert (made.context_compress_limit, made.max_final_answer_retries) == (3, 3)
    assert generator(keep=4).max_final_answer_retries == 1
