"""The hooks of the original systems in the loop of a run: clients, stream handlers, task logs and orchestrators.

Each test does what a reader of their documents would do: write the class with their method names, pass it, run, and see
that it is the class that acts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from closeout import (
    Agent,
    AnswerGenerator,
    Boxed,
    ErrorBox,
    OutputFormatter,
    StreamHandler,
    TaskLog,
    ToolExecutor,
    UsageError,
    tool,
)
from closeout.errors import BadRequest, ContextOverflow, RateLimited, ServerFailed
from closeout.messages import ModelReply, ModelRequest, Usage
from closeout.models.base import BaseClient
from closeout.models.retry import RetryPolicy
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, say

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
    client.retry = RetryPolicy(retries=3, failed_retries=3, first_wait=0.0)
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


# ------------------------------------------------------------------------------------------------ what hooks receive


LOOK = {"text": "", "calls": [{"server_name": "tools", "tool_name": "look", "arguments": {"key": "a"}, "id": "c1"}]}


async def test_an_adapted_client_receives_the_log_the_agent_and_the_settings_of_its_run() -> None:
    class Logging(Vendor):
        async def create_message(self, **options: Any) -> Any:  # type: ignore[override]
            options["task_log"].log_step("info", f"{options['agent_type']} | Vendor", f"step {options['step_id']}")
            return await super().create_message(**options)

    clerk = Agent(Logging({"text": r"\boxed{42}"}), answer=Boxed(), home=False).as_tool("clerk", "Finds things.")
    calls = [{"server_name": "tools", "tool_name": "clerk", "arguments": {"task": "find a"}, "id": "c1"}]
    boss = Logging(LOOK, {"text": "", "calls": calls}, {"text": FOUND})
    agent = Agent(boss, [look, clerk], answer=Boxed(), keep_tool_result=3, home=False)
    result = await agent.run("What is a?")
    assert result.answer == "42"
    assert {asked["keep_tool_result"] for asked in boss.asked} == {3}
    logged = [(step.name, step.message) for step in result.task_log.step_logs if "Vendor" in step.name]
    assert logged == [
        ("main | Vendor", "step 1"),
        ("main | Vendor", "step 2"),
        ("clerk | Vendor", "step 1"),
        ("main | Vendor", "step 3"),
    ]


async def test_an_overridden_create_message_receives_them_too_and_results_leave_by_the_runs_own_policy() -> None:
    class Noting(ScriptedClient):
        async def create_message(self, **options: Any) -> Any:
            seen.append((options["step_id"], options["agent_type"], options["keep_tool_result"]))
            options["task_log"].log_step("info", "Main Agent | Noting", "asked")
            return await super().create_message(**options)

    seen: list[Any] = []
    client = Noting([call("look", key="a"), call("look", key="b"), answer("42")])
    result = await Agent(client, [look], answer=Boxed(), keep_tool_result=1, home=False).run("What is a?")
    assert (result.answer, seen) == ("42", [(1, "main", 1), (2, "main", 1), (3, "main", 1)])
    assert [step.name for step in result.task_log.step_logs].count("Main Agent | Noting") == 3
    assert any(each.text == "a is 42" for each in client.requests[-1].messages), (
        "few results are too few to break the cached prompt for"
    )


@pytest.mark.parametrize("given", [True, False], ids=["with a stream", "without a stream"])
async def test_executors_and_generators_receive_the_stream_and_the_log_of_the_run(given: bool) -> None:
    class Showing(AnswerGenerator):
        async def handle_llm_call(self, *arguments: Any, **options: Any) -> Any:
            self.task_log.log_step("info", "Main Agent | Mine", "asks")
            await self.stream.show_error("asking")
            return await super().handle_llm_call(*arguments, **options)

    class Telling(ToolExecutor):
        def fix_tool_call_arguments(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            self.task_log.log_step("warning", "Main Agent | Mine", f"fixes {tool_name}")
            self.stream.send("fixed", {"tool": tool_name})
            return super().fix_tool_call_arguments(tool_name, arguments)

    events: list[Any] = []
    client = ScriptedClient([call("look", key="a"), answer("42")])
    agent = Agent(client, [look], answer=Boxed(), tool_executor=Telling, answer_generator=Showing, home=False)
    result = await agent.run("What is a?", listeners=[StreamHandler(events.append)] if given else [])
    assert result.answer == "42"
    assert [step.message for step in result.task_log.step_logs if step.name == "Main Agent | Mine"] == [
        "asks",
        "fixes look",
        "asks",
    ]
    sent = [(event["event"], event["data"]) for event in events]
    assert sent.count(("show_error", {"error": "asking"})) == 2 * given
    assert sent.count(("fixed", {"tool": "look"})) == given


# ------------------------------------------------------------------------------------------------ should_break


async def test_should_break_of_an_adapted_client_ends_the_turns_and_closing_asks_for_the_answer() -> None:
    vendor = Vendor({**LOOK, "text": "Enough.", "break": True}, {"text": FOUND})
    result = await Agent(vendor, [look], answer=Boxed(), home=False).run("What is a?")
    assert (result.answer, len(vendor.asked), result.tool_outputs) == ("42", 2, ())


async def test_should_break_with_an_answer_is_the_answer() -> None:
    vendor = Vendor({**LOOK, "text": FOUND, "break": True})
    result = await Agent(vendor, [look], answer=Boxed(), home=False).run("What is a?")
    assert (result.answer, result.stop_reason, result.tool_outputs) == ("42", "answered", ())


@pytest.mark.parametrize("hook", ["process_llm_response", "handle_llm_call"])
async def test_should_break_of_an_override_ends_the_turns(hook: str) -> None:
    class Hasty(ScriptedClient):
        def process_llm_response(self, response: Any, message_history: Any, agent_type: str = "main") -> Any:
            text, should_break, history = super().process_llm_response(response, message_history, agent_type)
            return text, should_break or hook == "process_llm_response", history

    class Breaking(AnswerGenerator):
        async def handle_llm_call(self, *arguments: Any, **options: Any) -> Any:
            text, should_break, calls, history = await super().handle_llm_call(*arguments, **options)
            return text, should_break or hook == "handle_llm_call", calls, history

    client = Hasty([call("look", key="a"), answer("42")])
    agent = Agent(client, [look], answer=Boxed(), answer_generator=Breaking, home=False)
    result = await agent.run("What is a?")
    assert (result.answer, len(client.requests), result.tool_outputs) == ("42", 2, ())
    assert "closing turn" in client.requests[-1].messages[-1].text


async def test_a_resumed_run_ends_its_turns_where_the_recorded_one_did(tmp_path: Path) -> None:
    failing = Vendor({**LOOK, "text": "Enough.", "break": True}, *[ErrorBox("no key", BadRequest("no key"))] * 3)
    options: dict[str, Any] = {"tools": [look], "answer": Boxed(), "home": tmp_path}
    assert (await Agent(failing, **options).run("What is a?", run_id="r")).answer is None
    vendor = Vendor({"text": FOUND})
    result = await Agent(vendor, **options).resume("r")
    assert (result.answer, len(vendor.asked), result.tool_outputs) == ("42", 1, ())


async def test_a_history_method_that_raises_is_a_warning() -> None:
    class Broken(ScriptedClient):
        def update_message_history(self, message_history: Any, tool_results: Any) -> Any:
            raise RuntimeError("a bug of mine")

    result = await Agent(Broken([call("look", key="a"), answer("42")]), [look], answer=Boxed(), home=False).run("?")
    assert result.answer == "42"
    assert sum("a bug of mine" in warning for warning in result.warnings) == 1


# ------------------------------------------------------------------------------------------------ context overflow


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_context_that_overflows_is_answered_with_another_attempt_that_knows_what_was_found(
    dialect: str,
) -> None:
    def script(view: RequestView) -> Any:
        if "Earlier attempts" in view.text:
            return answer("42")
        if len(view.text) > 9_000:
            return ContextOverflow("maximum context length is 2000 tokens", status=400)
        if "closing turn" in view.text or "Failure type" in view.text or "failure" in view.text[-900:].lower():
            return say("Failure type: incomplete\nWhat happened: the page of Mars was too long.")
        return Turn("I think. " * 300, calls=[call("look", key=f"k{view.number}")])

    client = ScriptedClient(script)
    agent = Agent(client, [look], dialect=dialect, answer=Boxed(), context_compress_limit=1, home=False)
    result = await agent.run("What is a?")
    assert (result.answer, result.stop_reason, result.attempts) == ("42", "answered", 2)


async def test_a_task_that_overflows_the_context_by_itself_is_not_tried_again() -> None:
    client = ScriptedClient([ContextOverflow("too long", status=400)] * 9)
    result = await Agent(client, answer=Boxed(), context_compress_limit=3, home=False).run("What is a?")
    assert (result.stop_reason, result.attempts) == ("context_overflow", 1)


# ------------------------------------------------------------------------------------------------ StreamHandler


class Front(StreamHandler):
    """Overrides every method with the parameters that it has; each waits, as one that writes to a socket does."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.called: list[Any] = []
        super().__init__(self.sent.append)

    async def _note(self, *call: Any) -> None:
        await asyncio.sleep(0)
        self.called.append(call)

    async def start_workflow(self, user_input: str) -> str:
        await self._note("start_workflow", user_input)
        await super().start_workflow(user_input)
        return "w1"

    async def end_workflow(self, workflow_id: str) -> None:
        await self._note("end_workflow", workflow_id)

    async def start_agent(self, agent_name: str, display_name: str | None = None) -> str:
        await self._note("start_agent", agent_name)
        return f"the {agent_name}"

    async def end_agent(self, agent_name: str, agent_id: str) -> None:
        await self._note("end_agent", agent_id)

    async def start_llm(self, agent_name: str, display_name: str | None = None) -> None:
        await self._note("start_llm", agent_name)

    async def end_llm(self, agent_name: str) -> None:
        await self._note("end_llm", agent_name)
        await super().end_llm(agent_name)

    async def message(self, message_id: str, delta_content: str) -> None:
        await self._note("message", delta_content)

    async def tool_call(
        self, tool_name: str, payload: Any, streaming: bool = False, tool_call_id: str | None = None
    ) -> str:
        await self._note("tool_call", tool_name, payload)
        return tool_call_id or ""

    async def show_error(self, error: str) -> None:
        await self._note("show_error", error)
        await super().show_error(f"Sorry: {error}")


async def test_a_run_calls_the_overridden_methods_of_a_stream_handler_in_order() -> None:
    @tool(read_only=True)
    def broken(key: str) -> str:
        """Look up a key."""
        raise RuntimeError("out of order")

    front = Front()
    client = ScriptedClient([call("broken", key="a"), answer("42")])
    result = await Agent(client, [broken], answer=Boxed(), home=False).run("What is a?", listeners=[front])
    assert result.answer == "42"
    names = [name for name, *_ in front.called if name != "message"]
    assert names == [
        "start_workflow", "start_agent", "start_llm", "end_llm", "tool_call", "tool_call",
        "start_llm", "end_llm", "end_agent", "end_workflow",
    ]  # fmt: skip
    assert front.called[0] == ("start_workflow", "What is a?")
    started, ended = (payload for name, *_, payload in front.called if name == "tool_call")
    assert started == {"key": "a"}
    assert "out of order" in ended["error"]
    assert front.called[-2:] == [("end_agent", "the main"), ("end_workflow", "w1")]
    assert "42" in "".join(text for name, text, *_ in front.called if name == "message")
    workflow, *others = (event["data"] for event in front.sent if event["event"] in ("start_of_workflow", "end_of_llm"))
    assert workflow["run_id"] == result.run_id, "what the method does not name is sent too"
    assert [data["usage"]["requests"] for data in others] == [1, 1]


async def test_an_override_of_show_error_is_called_and_one_that_raises_loses_no_event() -> None:
    class Broken(Front):
        async def start_llm(self, agent_name: str, display_name: str | None = None) -> None:
            raise RuntimeError("a bug of mine")

    front = Broken()
    result = await Agent(Flaky([BadRequest("no")]), home=False).run("What?", listeners=[front])
    assert result.status == "failed"
    assert [event["data"]["error"] for event in front.sent if event["event"] == "show_error"] == ["Sorry: no"]
    assert [event["event"] for event in front.sent].count("start_of_llm") == 1


async def test_a_run_does_not_wait_for_an_override_that_never_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(StreamHandler):
        async def end_llm(self, agent_name: str) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr("closeout.compat.stream_handler.LAST_SECONDS", 0.01)
    agent = Agent(ScriptedClient([answer("42")]), answer=Boxed(), home=False)
    assert (await agent.run("What is a?", listeners=[Stuck()])).answer == "42"


async def test_an_override_of_update_receives_the_events_that_have_no_method_of_their_own() -> None:
    class Upper(StreamHandler):
        async def update(self, event_type: str, data: Any) -> None:
            await super().update(event_type.upper(), data)

    sent: list[Any] = []
    client = ScriptedClient([call("look", key="a"), answer("42")])
    await Agent(client, [look], answer=Boxed(), home=False).run("What is a?", listeners=[Upper(sent.append)])
    assert {"START_OF_WORKFLOW", "TOOL_CALL", "END_OF_WORKFLOW"} <= {event["event"] for event in sent}
    assert all(event["event"].isupper() for event in sent)


async def test_one_handler_streams_the_runs_of_a_map_a_session_and_a_resumed_run(tmp_path: Path) -> None:
    class Names(StreamHandler):
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[str] = []

        async def start_workflow(self, user_input: str) -> str:
            self.asked.append(user_input)
            return await super().start_workflow(user_input)

    names = Names()
    client = ScriptedClient(lambda view: answer("42"))
    agent = Agent(client, answer=Boxed(), home=tmp_path)
    assert [each.answer async for each in agent.map(["one", "two"], limit=1, listeners=[names])] == ["42", "42"]
    await agent.session("s").run("three", listeners=[names])
    await Agent(Flaky([BadRequest("no")]), answer=Boxed(), home=tmp_path).run("four", run_id="r")
    await agent.resume("r", listeners=[names], despite_changes=True)
    assert names.asked == ["one", "two", "three", "four"]


# ------------------------------------------------------------------------------------------------ TaskLog


class Counting(TaskLog):
    """Adds a prefix to every step, and counts."""

    count = 0

    def log_step(self, level: str, step_name: str, message: str, metadata: Any = None) -> Any:
        Counting.count += 1
        return super().log_step(level, f"[mine] {step_name}", message, metadata)


async def test_a_task_log_of_ones_own_logs_a_run_and_is_the_log_of_its_hooks(tmp_path: Path) -> None:
    class Telling(ToolExecutor):
        def fix_tool_call_arguments(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            assert type(self.task_log) is Counting
            self.task_log.log_step("info", "Main Agent | Mine", f"fixes {tool_name}")
            return super().fix_tool_call_arguments(tool_name, arguments)

    written: list[Any] = []
    log, client = Counting(writer=written.append), ScriptedClient([call("look", key="a"), answer("42")])
    agent = Agent(client, [look], answer=Boxed(), tool_executor=Telling, home=False)
    result = await agent.run("What is a?", listeners=[log])
    names = [step.name for step in log.step_logs]
    assert names.count("[mine] Main Agent | Mine") == 1
    assert all(name.startswith("[mine] ") for name in names)
    assert len(names) == Counting.count == len(written)
    assert (log.status, log.final_boxed_answer, log.tool_calls[0]["result"]) == ("answered", "42", "a is 42")
    assert log.usage == result.task_log.usage
    assert [step.message for step in result.task_log.step_logs] == [step.message for step in log.step_logs]


async def test_a_task_log_logs_one_run_at_a_time() -> None:
    agent, log = Agent(ScriptedClient(lambda view: answer("42")), answer=Boxed(), home=False), TaskLog()
    first, second = await asyncio.gather(*(agent.run(task, listeners=[log]) for task in ("one", "two")))
    assert (log.input, first.warnings) == ("one", ())
    assert "Pass each run a TaskLog of its own." in second.warnings[0]
    await agent.run("three", listeners=[log])
    assert (log.input, log.writer) == ("three", None)


@pytest.mark.parametrize(
    ("name", "hint"), [("stream_handler", "listeners="), ("task_log", "listeners="), ("orchestrator", "tool_executor=")]
)
def test_an_agent_says_where_an_object_belongs_that_it_does_not_take(name: str, hint: str) -> None:
    arguments: Any = {name: object()}
    with pytest.raises(UsageError, match=hint):
        Agent(ScriptedClient([]), **arguments)


# ------------------------------------------------------------------------------------------------ the record


@pytest.mark.parametrize("hook", ["formatter", "generator", "client"])
@pytest.mark.parametrize("script", [[answer("42")], [say("no")] * 9], ids=["answered", "unanswered"])
async def test_the_line_of_usage_that_a_hook_returns_is_in_the_record(hook: str, script: list[Any]) -> None:
    class Formatter(OutputFormatter):
        def format_final_summary_and_log(self, final_answer_text: str, client: Any = None) -> Any:
            return (*super().format_final_summary_and_log(final_answer_text, client)[:2], "7 tokens")

    class Generator(AnswerGenerator):
        async def generate_and_finalize_answer(self, **options: Any) -> Any:
            summary, boxed, experience, _, history = await super().generate_and_finalize_answer(**options)
            return summary or "none", boxed, experience, "7 tokens", history

    class Client(ScriptedClient):
        def format_token_usage_summary(self) -> Any:
            return ["7 tokens"], "7 tokens"

    hooks: dict[str, Any] = {
        "formatter": {"output_formatter": Formatter()},
        "generator": {"answer_generator": Generator},
        "client": {},
    }[hook]
    client = Client(script) if hook == "client" else ScriptedClient(script)
    result = await Agent(client, answer=Boxed(), home=False, **hooks).run("What is a?")
    assert [step.message for step in result.task_log.step_logs if step.name == "Main Agent | Usage"] == ["7 tokens"]


@pytest.mark.parametrize("generator", [AnswerGenerator, type("Mine", (AnswerGenerator,), {})])
async def test_the_closing_steps_of_a_sub_agent_are_logged_under_its_name(generator: Any) -> None:
    closing = [call("look", key="a"), answer("42")]
    clerk = Agent(ScriptedClient(closing), [look], answer=Boxed(), max_turns=1, answer_generator=generator, home=False)
    client = ScriptedClient([call("clerk", task="find a"), answer("42")])
    result = await Agent(client, [clerk.as_tool("clerk", "Finds things.")], answer=Boxed(), home=False).run("What?")
    names = {step.name for step in result.task_log.step_logs}
    assert "clerk | Final Answer" in names
    assert not [name for name in names if name.startswith("Main Agent | Final Answer")]
