"""Hooks of OutputFormatter, AnswerGenerator and the LLM clients: subclass a method, and a run does what it returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, AnswerGenerator, Boxed, OutputFormatter, RunResult, tool
from closeout.errors import AuthenticationFailed
from closeout.testing import ScriptedClient, Turn, answer, call, say

LOOK = call("look", key="a")
BAD = [say(r"\boxed{?}")] * 9


@tool(read_only=True)
def look(key: str) -> str:
    """Look something up."""
    return f"{key} is unknown"


def agent_of(*script: Any, **options: Any) -> tuple[Agent[Any], ScriptedClient]:
    client = ScriptedClient(list(script))
    return Agent(client, [look], **{"home": False, "answer": Boxed(), **options}), client


async def run(*script: Any, **options: Any) -> RunResult[Any]:
    return await agent_of(*script, **options)[0].run("What is a?")


# ------------------------------------------------------------------------------------------------ OutputFormatter


class FirstBox(OutputFormatter):
    """Takes the first box instead of the last, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.extracted = self.formatted = 0

    def _extract_boxed_content(self, text: str) -> str:
        self.extracted += 1
        return text.partition("\\boxed{")[2].partition("}")[0]

    def format_final_summary_and_log(self, final_answer_text: str, client: Any = None) -> Any:
        self.formatted += 1
        return super().format_final_summary_and_log(final_answer_text, client)


TWO_BOXES = say(r"\boxed{1}, I thought; now \boxed{2}.")


@pytest.mark.parametrize(("form", "value"), [(Boxed(), "1"), (None, "1"), (int, 1)])
async def test_a_formatters_own_extraction_gives_the_answer(form: Any, value: Any) -> None:
    formatter = FirstBox()
    result = await run(TWO_BOXES, answer=form, output_formatter=formatter)
    assert (result.answer, result.value) == ("1", value)
    assert "Extracted Result" in result.final_summary
    assert "\n1\n" in result.final_summary
    assert formatter.extracted > 0
    assert formatter.formatted == 1, "the instance that was passed does the work"


async def test_a_formatters_own_extraction_gives_the_answers_on_the_way() -> None:
    on_the_way = Turn(TWO_BOXES.text, (LOOK,))
    result = await run(on_the_way, *[say("No.")] * 4, max_turns=1, output_formatter=FirstBox())
    assert result.answer == "1"


async def test_a_formatter_may_refuse_a_box_and_take_a_placeholder() -> None:
    class Careful(OutputFormatter):
        def _extract_boxed_content(self, text: str) -> str:
            found = text.partition("\\boxed{")[2].partition("}")[0]
            return "" if found == "maybe" else found

    agent, client = agent_of(say(r"\boxed{maybe}"), say(r"\boxed{unknown}"), output_formatter=Careful())
    result = await agent.run("What is a?")
    assert (result.answer, result.value, len(client.requests)) == ("unknown", "unknown", 2)


def test_a_formatters_own_extraction_counts_in_its_own_summary() -> None:
    summary, boxed, _ = FirstBox().format_final_summary_and_log(TWO_BOXES.text)
    assert boxed == "1"
    assert "\n1\n" in summary


async def test_a_formatter_that_fails_does_not_cost_an_answer_already_given() -> None:
    class Broken(OutputFormatter):
        def format_final_summary_and_log(self, final_answer_text: str, client: Any = None) -> Any:
            raise RuntimeError("no paper")

    for script, options in (([answer("42")], {}), ([LOOK, answer("42")], {"max_turns": 1})):
        result = await run(*script, output_formatter=Broken(), **options)
        assert (result.answer, result.value) == ("42", "42")
        assert "Extracted Result" in result.final_summary
        assert any("no paper" in warning for warning in result.warnings)


@pytest.mark.parametrize("returned", ["a text", None, {}, {"type": "text"}, {"text": 5}, RuntimeError("no ink")])
async def test_a_formatter_that_fails_on_a_result_is_named_in_the_record(returned: Any) -> None:
    class Broken(OutputFormatter):
        def format_tool_result_for_user(self, tool_call_execution_result: Any) -> Any:
            if isinstance(returned, Exception):
                raise returned
            return returned

    agent, client = agent_of(LOOK, answer("42"), output_formatter=Broken())
    result = await agent.run("What is a?")
    assert client.requests[-1].messages[-1].text == "a is unknown"
    assert any("shown as it is by default" in warning for warning in result.warnings)


@pytest.mark.parametrize(("keep", "requests"), [(-1, 4), (5, 2)])
async def test_closing_asks_for_a_missing_form_and_then_for_the_answer(keep: int, requests: int) -> None:
    settings = {"agent": {"keep_tool_result": keep}}
    agent, client = agent_of(*[say("It is hard to say.")] * 9, config=settings)
    assert (await agent.run("What is a?")).answer is None
    tools_closed = [request for request in client.requests if request.tool_choice == "none"]
    assert len(tools_closed) == requests


class Tolerant(OutputFormatter):
    """Also takes what follows "Answer:"."""

    def format_final_summary_and_log(self, final_answer_text: str, client: Any = None) -> Any:
        summary, boxed, log = super().format_final_summary_and_log(final_answer_text, client)
        _, mark, rest = final_answer_text.partition("Answer: ")
        return summary, rest if mark else boxed, log


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "mcp_xml"])
async def test_an_answer_that_only_the_formatter_accepts_costs_no_turn(dialect: str) -> None:
    agent, client = agent_of(
        LOOK, say("So it is. Answer: 42"), answer=int, output_formatter=Tolerant(), dialect=dialect
    )
    result = await agent.run("What is a?")
    assert (result.answer, result.value, result.rollbacks) == ("42", 42, 0)
    assert len(client.requests) == 2


async def test_an_answer_that_a_formatter_or_a_generator_sets_has_the_contracts_type() -> None:
    class Plus(OutputFormatter):
        def format_final_summary_and_log(self, final_answer_text: str, client: Any = None) -> Any:
            summary, boxed, log = super().format_final_summary_and_log(final_answer_text, client)
            return summary, boxed.replace("42", "43"), log

    class Guess(AnswerGenerator):
        def handle_no_context_management_fallback(self, *arguments: Any) -> Any:
            return "a guess", "a guess", "7"

    class Wild(AnswerGenerator):
        def handle_no_context_management_fallback(self, *arguments: Any) -> Any:
            return "a guess", "a guess", "several"

    assert (await run(answer("42"), answer=int, output_formatter=Plus())).value == 43
    assert (await run(LOOK, *BAD, answer=int, max_turns=1, answer_generator=Guess)).value == 7
    wild = await run(LOOK, *BAD, answer=int, max_turns=1, answer_generator=Wild)
    assert (wild.answer, wild.value) == ("several", None)


# ------------------------------------------------------------------------------------------------ AnswerGenerator


class SeedGenerator(AnswerGenerator):
    """A subclass with exactly the six parameters."""

    def __init__(
        self,
        llm_client: Any,
        output_formatter: Any,
        task_log: Any,
        stream_handler: Any,
        cfg: Any,
        intermediate_boxed_answers: list[str],
    ) -> None:
        super().__init__(llm_client, output_formatter, task_log, stream_handler, cfg, intermediate_boxed_answers)
        self.max_final_answer_retries = 2


async def test_a_generator_needs_only_the_six_parameters() -> None:
    agent, client = agent_of(LOOK, BAD[0], answer("42"), max_turns=1, answer_generator=SeedGenerator)
    assert (await agent.run("What is a?")).answer == "42"
    assert len(client.requests) == 3


async def test_handle_llm_call_needs_no_parameter_for_the_form_that_the_server_enforces(tmp_path: Path) -> None:
    class Counting(AnswerGenerator):
        calls = 0

        async def handle_llm_call(
            self,
            system_prompt: str,
            message_history: list[dict[str, Any]],
            tool_definitions: Any,
            step_id: int,
            purpose: str = "",
            agent_type: str = "main",
        ) -> Any:
            Counting.calls += 1
            return await super().handle_llm_call(
                system_prompt, message_history, tool_definitions, step_id, purpose, agent_type
            )

    agent, client = agent_of(LOOK, say("It is."), say("no"), say('{"a": 1}'), answer={"type": "object"},
                             max_turns=1, answer_generator=Counting)  # fmt: skip
    assert (await agent.run("What is a?")).value == {"a": 1}
    assert Counting.calls == len(client.requests)
    assert client.requests[-1].constraint is not None, "the last request is held to the form"


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "cot_completion", "mcp_xml"])
async def test_handle_llm_call_sends_every_request_of_a_run(dialect: str, tmp_path: Path) -> None:
    seen: list[tuple[str, int, str]] = []

    class Telemetry(AnswerGenerator):
        async def handle_llm_call(self, system_prompt: Any, message_history: Any, tool_definitions: Any, step_id: Any,
                                  purpose: str = "", agent_type: str = "main") -> Any:  # fmt: skip
            message_history.append({"role": "user", "content": "Think of Mars."})
            found = await super().handle_llm_call(
                system_prompt, message_history, tool_definitions, step_id, purpose, agent_type
            )
            seen.append((purpose, step_id, found[0]))
            return tuple(found)

    script = [LOOK, say(r"It is \boxed{41}.")]
    agent, client = agent_of(*script, dialect=dialect, answer_generator=Telemetry, home=tmp_path)
    result = await agent.run("What is a?", run_id="r1")
    assert result.answer == "41"
    assert [purpose for purpose, _, _ in seen] == ["Main agent | Turn: 1", "Main agent | Turn: 2"]
    assert all("Think of Mars." in request.last for request in client.requests)
    assert result.turns == 2


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "mcp_xml"])
async def test_what_handle_llm_call_returns_is_the_reply(dialect: str) -> None:
    class Rewriting(AnswerGenerator):
        async def handle_llm_call(self, *arguments: Any, **options: Any) -> Any:
            text, should_break, calls, history = await super().handle_llm_call(*arguments, **options)
            for each in calls or ():
                each["arguments"]["key"] = "b"
            return (text or "").replace("42", "43"), should_break, calls, history

    agent, client = agent_of(LOOK, answer("42"), dialect=dialect, answer_generator=Rewriting)
    result = await agent.run("What is a?")
    assert result.answer == "43"
    assert "b is unknown" in client.requests[-1].messages[-1].text


async def test_a_handle_llm_call_that_raises_costs_nothing() -> None:
    class Broken(AnswerGenerator):
        async def handle_llm_call(self, *arguments: Any, **options: Any) -> Any:
            await super().handle_llm_call(*arguments, **options)
            raise RuntimeError("no telemetry")

    agent, client = agent_of(LOOK, answer("42"), answer_generator=Broken)
    result = await agent.run("What is a?")
    assert (result.answer, len(client.requests)) == ("42", 2)
    assert any("no telemetry" in warning for warning in result.warnings)


@pytest.mark.parametrize("method", ["generate_and_finalize_answer", "generate_final_answer_with_retries"])
async def test_a_generator_decides_on_an_answer_that_the_model_gave_in_the_loop(method: str) -> None:
    class Plain(AnswerGenerator):
        pass

    async def through(self: Any, **options: Any) -> Any:
        found = await getattr(AnswerGenerator, method)(self, **options)
        calls.append(options["task_description"])
        return found

    calls: list[str] = []
    setattr(Plain, method, through)
    agent, client = agent_of(LOOK, answer("42"), answer_generator=Plain)
    result = await agent.run("What is a?")
    assert (result.answer, result.value, result.stop_reason) == ("42", "42", "answered")
    assert "Extracted Result" in result.final_summary
    assert (calls, len(client.requests)) == (["What is a?"], 2), "the answer is not asked for again"


async def test_a_generators_own_end_replaces_the_answer_of_the_loop() -> None:
    class Fixed(AnswerGenerator):
        async def generate_and_finalize_answer(self, **options: Any) -> Any:
            return "my summary", "7", None, "", options["message_history"]

    result = await run(LOOK, answer("42"), answer=int, answer_generator=Fixed)
    assert (result.answer, result.value, result.final_summary) == ("7", 7, "my summary")
    failed = await run(LOOK, AuthenticationFailed("wrong key"), answer=int, answer_generator=Fixed)
    assert (failed.answer, failed.stop_reason) == ("7", "model_failed")


async def test_the_fallback_answers_when_the_model_fails() -> None:
    class Guess(AnswerGenerator):
        def handle_no_context_management_fallback(self, *arguments: Any) -> Any:
            text, summary, boxed = super().handle_no_context_management_fallback(*arguments)
            return text, summary, f"best guess, {boxed[:2]}"

    result = await run(LOOK, AuthenticationFailed("wrong key"), answer_generator=Guess)
    assert (result.answer, result.stop_reason) == ("best guess, No", "model_failed")
    assert result.failure is not None


async def test_a_sub_agents_generator_is_its_own() -> None:
    class Fixed(AnswerGenerator):
        async def generate_and_finalize_answer(self, **options: Any) -> Any:
            return "", f"from {self.agent_type}", None, "", []

    clerk = agent_of(LOOK, answer("42"), answer_generator=Fixed)[0]
    client = ScriptedClient([call("clerk", task="find a"), answer("42")])
    await Agent(client, [clerk.as_tool("clerk", "Finds things.")], home=False).run("What is a?")
    assert "from clerk" in client.requests[-1].messages[-1].text


async def test_a_session_and_a_stream_and_a_resumed_run_use_the_generator(tmp_path: Path) -> None:
    class Louder(AnswerGenerator):
        async def handle_llm_call(self, *arguments: Any, **options: Any) -> Any:
            text, *rest = await super().handle_llm_call(*arguments, **options)
            return ((text or "").upper(), *rest)

    def agent(*script: Any) -> Agent[Any]:
        return agent_of(*script, answer=str, answer_generator=Louder, home=tmp_path)[0]

    session = agent(say("one"), say("two")).session("s")
    assert [(await session.run("?")).answer for _ in range(2)] == ["ONE", "TWO"]
    stream = agent(say("one")).stream("?")
    shown = "".join([event.text async for event in stream if getattr(event, "kind", "") == "text"])
    assert shown.endswith("ONE")
    assert (await agent(LOOK, AuthenticationFailed("wrong key")).run("?", run_id="r")).answer is None
    assert (await agent(say("three")).resume("r")).answer == "THREE"


# ------------------------------------------------------------------------------------------------ LLM clients


class SeedClient(ScriptedClient):
    """Overrides each message-history method, with the parameters that they have."""

    def __init__(self, script: list[Any]) -> None:
        super().__init__(script)
        self.called: list[str] = []

    async def create_message(self, system_prompt: Any, message_history: Any, tool_definitions: Any,  # type: ignore[override]
                             keep_tool_result: int = -1, step_id: int = 1, task_log: Any = None,
                             agent_type: str = "main") -> Any:  # fmt: skip
        self.called.append("create")
        return await super().create_message(
            system_prompt=f"{system_prompt} Be kind.", message_history=message_history,
            tool_definitions=tool_definitions, keep_tool_result=keep_tool_result, step_id=step_id,
            task_log=task_log, agent_type=agent_type,
        )  # fmt: skip

    def process_llm_response(self, response: Any, message_history: Any, agent_type: str = "main") -> Any:
        self.called.append("process")
        text, should_break, history = super().process_llm_response(response, message_history, agent_type)
        return text.replace("42", "43"), should_break, history

    def extract_tool_calls_info(self, response: Any, text: str = "") -> Any:
        self.called.append("extract")
        infos = super().extract_tool_calls_info(response, text)
        return [{**info, "arguments": {"key": "b"}} for info in infos]

    def update_message_history(self, message_history: Any, tool_results: Any) -> Any:
        results = [(id_, {**part, "text": f"{part['text']}!"}) for id_, part in tool_results]
        return super().update_message_history(message_history, results)

    def format_token_usage_summary(self) -> Any:
        return ["my usage"], "my usage"


@pytest.mark.parametrize("stream", [False, True])
async def test_each_message_history_method_of_a_client_changes_a_run(stream: bool) -> None:
    client = SeedClient([LOOK, answer("42")])
    agent = Agent(client, [look], home=False, answer=Boxed(), stream=stream, config={"llm": {"temperature": 0.5}})
    result = await agent.run("What is a?")
    assert (result.answer, result.turns) == ("43", 2)
    assert client.called == ["create", "process", "extract"] * 2
    assert client.requests[-1].messages[-1].text == "b is unknown!"
    assert client.requests[0].messages[0].text.endswith("Be kind.")
    assert {request.temperature for request in client.requests} == {0.5}, "what the method cannot say is kept"
    assert "my usage" in result.final_summary
    assert result.usage.requests == 2


async def test_results_in_a_dialect_of_text_are_added_by_the_client_too() -> None:
    class Reminding(ScriptedClient):
        def update_message_history(self, message_history: Any, tool_results: Any) -> Any:
            history = super().update_message_history(message_history, tool_results)
            return [*history, {"role": "user", "content": "Remember the task."}]

    client = Reminding([LOOK, call("look", key="b"), answer("42")])
    assert (await Agent(client, [look], home=False, dialect="mcp_xml").run("?")).answer == "42"
    assert [message.text for message in client.requests[-1].messages].count("Remember the task.") == 2


async def test_a_resumed_run_takes_the_recorded_replies_of_overridden_methods(tmp_path: Path) -> None:
    def agent(*script: Any) -> tuple[Agent[Any], SeedClient]:
        client = SeedClient(list(script))
        return Agent(client, [look], home=tmp_path, answer=Boxed()), client

    await agent(LOOK, AuthenticationFailed("wrong key"))[0].run("?", run_id="r")
    resumed, client = agent(answer("42"))
    assert (await resumed.resume("r")).answer == "43"
    assert client.called == ["create", "process", "extract"]


async def test_an_adapted_client_adds_results_and_states_usage_in_its_own_way() -> None:
    class Plain:
        """Not a BaseClient: only the five methods."""

        def __init__(self) -> None:
            self.script = ["", "It is \\boxed{42}."]
            self.histories: list[list[dict[str, Any]]] = []

        async def create_message(self, **request: Any) -> Any:
            self.histories.append(list(request["message_history"]))
            return self.script.pop(0), request["message_history"]

        def process_llm_response(self, response: str, history: list[Any], agent_type: str) -> Any:
            return response, False, history

        def extract_tool_calls_info(self, response: str, text: str) -> list[Any]:
            return [] if response else [{"server_name": "tools", "tool_name": "look", "arguments": {"key": "a"}}]

        def update_message_history(self, history: list[Any], results: list[Any]) -> list[Any]:
            return [*history, {"role": "user", "content": " & ".join(f"<{part['text']}>" for _, part in results)}]

        def format_token_usage_summary(self) -> Any:
            return ["my usage"], "my usage"

    client = Plain()
    result = await Agent(client, [look], home=False, answer=Boxed()).run("?")
    assert result.answer == "42"
    assert client.histories[-1][-1]["content"] == "<a is unknown>"
    assert "my usage" in result.final_summary


async def test_a_failure_type_of_ones_own_reaches_the_next_attempt() -> None:
    class Finer(AnswerGenerator):
        async def generate_failure_summary(self, *arguments: Any, **options: Any) -> str:
            return "Failure type: the unit is missing\nUseful findings: it is 42"

    model = ScriptedClient([call("look", key="a"), answer("42 m")])
    options: dict[str, Any] = {"max_turns": 1, "context_compress_limit": 1, "answer_generator": Finer, "home": False}
    assert (await Agent(model, [look], answer=Boxed(), **options).run("?")).answer == "42 m"
    assert "the unit is missing" in model.requests[1].messages[-1].text
    assert "it is 42" in model.requests[1].messages[-1].text
