"""The hooks of the original systems in the loop of a run: clients, stream handlers, task logs and orchestrators.

Each test does what a reader of their documents would do: write the class with their method names, pass it, run, and see
that it is the class that acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from closeout import Agent, Boxed, ErrorBox, tool
from closeout.errors import BadRequest, RateLimited, ServerFailed
from closeout.messages import ModelReply, ModelRequest, Usage
from closeout.models.base import BaseClient
from closeout.models.retry import RetryPolicy

DIALECTS = ["function_call", "cot_chat", "mcp_xml"]
AT_ONCE = RetryPolicy(first_wait=0.0)
FOUND = r"It is \boxed{42}."


@tool(read_only=True)
def look(key: str) -> str:
    """Look up a key.

    Args:
        key: the key
    """
    return f"{key} is 42"


# ------------------------------------------------------------------------------------------------ model clients


class Flaky(BaseClient):
    """A client of one's own. An exception in its list is raised."""

    name = "flaky:1"
    retry: RetryPolicy | None = AT_ONCE

    def __init__(self, replies: Sequence[str | Exception]) -> None:
        self.replies = list(replies)

    async def complete(self, request: ModelRequest, *, on_delta: Any = None, on_retry: Any = None) -> ModelReply:
        usage = Usage(10, 5, requests=1)
        self.charge(usage)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return ModelReply(reply, usage=usage)


class Vendor:
    """A client with the three methods of the original systems. An exception in its list is raised."""

    def __init__(self, *responses: Any) -> None:
        self.responses = list(responses)
        self.asked: list[dict[str, Any]] = []

    async def create_message(
        self,
        system_prompt: str,
        message_history: list[dict[str, Any]],
        tool_definitions: list[dict[str, Any]],
        keep_tool_result: int,
        step_id: int,
        task_log: Any,
        agent_type: str,
    ) -> tuple[Any, list[dict[str, Any]]]:
        self.asked.append(
            {"keep_tool_result": keep_tool_result, "step_id": step_id, "task_log": task_log, "agent_type": agent_type}
        )
        response = self.responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response, message_history

    def process_llm_response(
        self, response: Any, message_history: list[dict[str, Any]], agent_type: str
    ) -> tuple[str, bool, list[dict[str, Any]]]:
        return response["text"], response.get("break", False), message_history

    def extract_tool_calls_info(self, response: Any, text: str) -> list[dict[str, Any]]:
        return response.get("calls", [])


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let retries follow at once."""
    monkeypatch.setattr("closeout.models.retry.random.random", lambda: 0.0)


@pytest.mark.parametrize(
    "failure",
    [
        ServerFailed("The server is down.", status=503),
        RateLimited("Too many requests.", status=429),
        ConnectionError("reset by peer"),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_a_run_repeats_a_request_that_a_client_of_ones_own_failed(failure: Exception) -> None:
    seen: list[Any] = []
    result = await Agent(Flaky([failure, FOUND]), answer=Boxed(), home=False).run("What?", listeners=[seen.append])
    assert (result.answer, result.rollbacks) == ("42", 0)
    assert result.usage.requests == 2  # the failed one too
    assert [str(failure) in event.reason for event in seen if type(event).__name__ == "ModelRetried"] == [True]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("failure", [None, ErrorBox("overloaded"), TimeoutError("no reply")], ids=repr)
async def test_a_run_repeats_a_request_that_an_adapted_client_failed(failure: Any, dialect: str, no_wait: None) -> None:
    vendor = Vendor(failure, {"text": f"Final Answer: {FOUND}" if dialect == "cot_chat" else FOUND})
    result = await Agent(vendor, [look], dialect=dialect, answer=Boxed(), home=False).run("What?")
    assert (result.answer, len(vendor.asked)) == ("42", 2)


@pytest.mark.parametrize("error", [BadRequest("no such parameter"), ServerFailed("down")], ids=["permanent", "limit"])
async def test_retries_end_with_a_permanent_error_and_at_the_limit_of_the_client(error: Exception) -> None:
    client = Flaky([error] * 9)
    client.retry = RetryPolicy(retries=3, first_wait=0.0)
    result = await Agent(client, home=False).run("What?")
    assert result.failure is not None
    assert (result.stop_reason, result.failure.exception) == ("model_failed", error)
    assert len(client.replies) == (8 if isinstance(error, BadRequest) else 5)


async def test_the_settings_limit_the_retries_of_a_client_that_says_nothing(no_wait: None) -> None:
    vendor = Vendor(*[None] * 9)
    result = await Agent(vendor, home=False, config={"llm": {"max_retries": 2}}).run("What?")
    assert (result.stop_reason, len(vendor.asked)) == ("model_failed", 3)


async def test_a_client_that_wraps_another_does_not_repeat_its_retries() -> None:
    class Wrapper(Flaky):
        async def complete(self, request: ModelRequest, *, on_delta: Any = None, on_retry: Any = None) -> ModelReply:
            try:
                return await super().complete(request)
            except ServerFailed as error:
                error.retried = True  # as a client of ours does after its last attempt
                raise

    client = Wrapper([ServerFailed("down"), FOUND])
    assert (await Agent(client, home=False).run("What?")).stop_reason == "model_failed"
