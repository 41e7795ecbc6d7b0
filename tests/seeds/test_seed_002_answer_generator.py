"""Seed 002: the answer generator, and the client that it asks through."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import closeout
from closeout import (
    Agent,
    AnswerGenerator,
    BaseClient,
    Boxed,
    Capabilities,
    ErrorBox,
    Orchestrator,
    OutputFormatter,
    ResponseBox,
    StreamHandler,
    TaskLog,
    ToolManager,
    tool,
)
from closeout.messages import ModelReply, ModelRequest
from closeout.models.retry import RetryPolicy
from closeout.testing import ScriptedClient, answer, call


@tool(read_only=True)
def look(key: str) -> str:
    """Look up a key."""
    return f"{key} is unknown"


class Boxing(BaseClient):
    name = "boxing:1"
    capabilities = Capabilities(streaming=False)
    retry = RetryPolicy(retries=1, first_wait=0)

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)

    async def complete(self, request: ModelRequest, **_: Any) -> Any:
        return self.replies.pop(0)


async def test_a_client_may_return_its_reply_or_an_error_in_a_box() -> None:
    reply = ModelReply(text="\\boxed{5}")
    for replies, warned in (
        ((ErrorBox("busy"), reply), False),
        ((None, reply), False),
        ((ResponseBox(reply, {"warning_msg": "nearly full"}),), True),
    ):
        result = await Agent(Boxing(*replies), answer=Boxed(), home=False).run("?")
        assert (result.answer, "nearly full" in str(result.warnings)) == ("5", warned)
    shown: list[Any] = []
    client = Boxing(ErrorBox("busy"), reply)
    await Agent(client, answer=Boxed(), home=False).run("?", listeners=[StreamHandler(shown.append)])
    assert [each["data"]["error"] for each in shown if each["event"] == "show_error"] == ["busy"]
    result = await Agent(Boxing("text"), answer=Boxed(), home=False).run("?")
    assert "must return a ModelReply" in result.error


async def test_update_message_history_is_called_once_for_each_turn_and_keeps_what_it_returned() -> None:
    class Counting(ScriptedClient):
        lengths: list[int]

        def update_message_history(self, message_history: Any, tool_results: Any) -> Any:
            self.lengths = [*getattr(self, "lengths", []), len(message_history)]
            return super().update_message_history(message_history, tool_results)

    for dialect in ("function_call", "mcp_xml"):
        model = Counting([*(call("look", key=str(n)) for n in range(6)), answer("1")])
        assert (await Agent(model, [look], home=False, dialect=dialect).run("?")).answer == "1"
        first = 2 if dialect == "function_call" else 3
        assert model.lengths == [first + 2 * n for n in range(6)], dialect
        earlier, later = (list(model.requests[n].messages) for n in (-2, -1))
        assert all(old is new for old, new in zip(earlier, later, strict=False)), "what was sent is not written again"


async def test_a_hint_does_not_stay_in_the_history_of_a_client() -> None:
    class Own(ScriptedClient):
        def update_message_history(self, message_history: Any, tool_results: Any) -> Any:
            message_history.append({"role": "user", "content": "; ".join(part["text"] for _, part in tool_results)})
            return message_history

    model = Own([call("look", key="a"), call("look", key="a"), call("look", key="b"), answer("1")])
    result = await Agent(model, [look], home=False, dialect="mcp_xml").run("?")
    assert (result.answer, result.rollbacks) == ("1", 1)
    results = [message.text for message in model.requests[-1].messages if "is unknown" in message.text]
    assert [text.count("is unknown") for text in results] == [1, 1]
    assert len(results[0]) < len(model.requests[2].messages[-1].text), "the hint was part of one request"


def test_the_prompts_of_the_closing_have_their_names_at_the_top() -> None:
    assert closeout.FAILURE_SUMMARY_PROMPT.strip()
    account = f"{closeout.FAILURE_SUMMARY_ASSISTANT_PREFIX} incomplete"
    assert closeout.extract_failure_experience_summary(account)
    assert "What?" in closeout.generate_agent_summarize_prompt("What?")


async def test_an_orchestrator_builds_the_agent_of_its_parts_and_logs_its_runs(tmp_path: Path) -> None:
    model = ScriptedClient([call("look", key="a"), call("agent_browsing", task="Find b."), answer("B"), answer("1")])
    cfg = {"agent": {"main_agent": {"max_turns": 9}, "sub_agents": {"agent-browsing": {"max_turns": 3}}}}
    log, queue = TaskLog(log_dir=str(tmp_path)), asyncio.Queue[Any]()
    managers = {"agent-browsing": ToolManager([look])}
    made = Orchestrator(ToolManager([look]), managers, model, OutputFormatter(), cfg, log, queue, answer=Boxed())
    summary, boxed, experience = await made.run_main_agent("What is a?", task_id="t1")
    assert (boxed, experience, queue.empty()) == ("1", None, False)
    assert "Token Usage" in summary

    saved = log.save()
    assert (saved.parent, saved.name.startswith("task_t1_")) == (tmp_path, True)
    shown = json.loads(saved.read_text("utf-8"))
    assert (shown["status"], shown["final_boxed_answer"], shown["input"]["task_description"]) == (
        "success",
        "1",
        "What is a?",
    )
    main = shown["main_agent_message_history"]["message_history"]
    assert [message["role"] for message in main] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert list(shown["sub_agent_message_history_sessions"]) == ["agent_browsing_1"]
    assert shown["step_logs"][0].keys() == {"step_name", "message", "timestamp", "info_level", "metadata"}
    assert log.step_logs[0].step_name == "Main Agent | Start"


async def test_the_conversation_of_a_text_prompt_is_in_the_log_whole() -> None:
    model = ScriptedClient([call("look", key="a"), answer("1")])
    result = await Agent(model, [look], answer=Boxed(), dialect="cot_completion", home=False).run("?")
    history = result.task_log.to_dict("miroflow")["main_agent_message_history"]["message_history"]
    assert history[0]["content"] == model.requests[-1].prompt
    assert "Final Answer" in history[1]["content"]


async def test_a_handle_llm_call_that_failed_is_asked_again_until_the_rollbacks_are_spent() -> None:
    class Flaky(AnswerGenerator):
        failures = 1

        async def handle_llm_call(self, *arguments: Any, **options: Any) -> Any:
            if self.failures:
                self.failures -= 1
                return "", False, None, arguments[1]
            return await super().handle_llm_call(*arguments, **options)

    model = ScriptedClient([answer("42")])
    result = await Agent(model, answer_generator=Flaky, home=False).run("?")
    assert (result.answer, result.rollbacks, len(model.requests)) == ("42", 1, 1)
    Flaky.failures = 100
    result = await Agent(ScriptedClient([answer("42")]), answer_generator=Flaky, home=False).run("?")
    assert (result.status, result.stop_reason) == ("unanswered", "rollbacks")


async def test_create_message_takes_its_arguments_by_position_and_extractions_may_be_two_lists() -> None:
    class Upstream(ScriptedClient):
        async def create_message(
            self,
            system_prompt: str,
            message_history: Any,
            tool_definitions: Any,
            keep_tool_result: int = -1,
            step_id: int = 1,
            task_log: Any = None,
            agent_type: str = "main",
        ) -> Any:
            return await super().create_message(
                system_prompt, message_history, tool_definitions, keep_tool_result, step_id, task_log, agent_type
            )

        def extract_tool_calls_info(self, response: Any, text: str = "") -> Any:
            return super().extract_tool_calls_info(response, text), []

    class Sending(AnswerGenerator):
        async def handle_llm_call(
            self, system_prompt: str, message_history: Any, tool_definitions: Any, step_id: int, *more: Any
        ) -> Any:
            reply, history = await self.llm_client.create_message(
                system_prompt, message_history, tool_definitions, -1, step_id, self.task_log
            )
            text, should_break, history = self.llm_client.process_llm_response(reply, history)
            return text, should_break, self.llm_client.extract_tool_calls_info(reply, text), history

    for options in ({}, {"answer_generator": Sending}):
        model = Upstream([call("look", key="a"), answer("42")])
        result = await Agent(model, [look], home=False, **options).run("?")  # type: ignore[arg-type]
        assert (result.answer, len(model.requests), result.error) == ("42", 2, "")
