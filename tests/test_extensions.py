"""What is passed to an Agent is used by its run: each method that a subclass overrides changes what happens."""

from __future__ import annotations

from typing import Any

import pytest

from closeout import (
    Agent,
    AnswerGenerator,
    Boxed,
    ContextState,
    Eviction,
    Number,
    OutputFormatter,
    ToolExecutor,
    ToolManager,
    tool,
)
from closeout.dialects.function_call import FunctionCall
from closeout.errors import ConfigError, UsageError
from closeout.journal import events as ev
from closeout.messages import Message
from closeout.testing import ScriptedClient, Turn, answer, call, say


def tools() -> list[Any]:
    @tool(read_only=True)
    def look(key: str) -> str:
        """Look up a key.

        Args:
            key: the key
        """
        return f"{key} is 42"

    return [look]


async def run(script: list[Any], **options: Any) -> tuple[Any, list[Any], list[Any]]:
    """The result, the requests and the events of a run with one tool."""
    client = ScriptedClient(script)
    seen: list[Any] = []
    result = await Agent(client, tools(), home=False, **{"answer": Boxed(), **options}).run(
        "How much is a?", listeners=[seen.append]
    )
    return result, client.requests, seen


LOOK = call("look", key="a")


# ------------------------------------------------------------------------------------------------ formatter


class Formatter(OutputFormatter):
    def format_tool_result_for_user(self, tool_call_execution_result: Any) -> dict[str, str]:
        part = super().format_tool_result_for_user(tool_call_execution_result)
        return {**part, "text": f"[{tool_call_execution_result['tool_name']}] {part['text']}"}


class Summary(OutputFormatter):
    def format_final_summary_and_log(self, final_answer_text: str, client: Any = None) -> Any:
        summary, boxed, log = super().format_final_summary_and_log(final_answer_text, client)
        return f"My summary\n{summary}", boxed, log


async def test_a_formatter_writes_the_results_that_the_model_sees() -> None:
    result, requests, _ = await run([LOOK, answer("42")], output_formatter=Formatter())
    assert result.answer == "42"
    assert requests[1].messages[-1].text == "[look] a is 42"
    assert "read_result" in str(requests[0].tools)


@pytest.mark.parametrize("script", [[LOOK, answer("42")], [LOOK, say("Hm."), say("Hm!"), answer("42")]])
async def test_a_formatter_writes_the_summary_of_every_end(script: list[Any]) -> None:
    result, _, seen = await run(script, output_formatter=Summary())
    assert result.answer == "42"
    assert result.final_summary.startswith("My summary")
    assert "Token Usage" in result.final_summary
    assert [event.summary for event in seen if isinstance(event, ev.RunEnded)] == [result.final_summary]


async def test_a_formatter_writes_the_summary_of_an_end_without_an_answer() -> None:
    result, _, _ = await run([say("No.")] * 9, output_formatter=Summary())
    assert result.answer is None
    assert result.final_summary.startswith("My summary")


async def test_the_agents_contract_holds_for_a_formatter_and_a_formatters_own_if_there_is_none() -> None:
    result, _, _ = await run([answer("about 42")], answer=Number(), output_formatter=Summary())
    assert result.value == 42
    result, _, _ = await run([answer("about 42")], answer=None, output_formatter=OutputFormatter(Number()))
    assert result.value == 42
    result, _, _ = await run([say("About 42.")], answer=None, output_formatter=OutputFormatter())
    assert result.value == "About 42."
    shared = OutputFormatter()
    await run([answer("42")], answer=Number(), output_formatter=shared)
    assert shared.contract is None, "the instance that was passed stays as it is"


# ------------------------------------------------------------------------------------------------ executor


async def test_an_executor_repairs_arguments() -> None:
    class Executor(ToolExecutor):
        def fix_tool_call_arguments(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            fixed = super().fix_tool_call_arguments(tool_name, arguments)
            return {**fixed, "key": fixed["key"].removeprefix("the ")}

    result, requests, _ = await run([call("look", key="the a"), answer("42")], tool_executor=Executor)
    assert result.answer == "42"
    assert requests[1].messages[-1].text == "a is 42"


async def test_an_executor_says_which_calls_are_the_same() -> None:
    class Executor(ToolExecutor):
        def get_query_str_from_tool_call(self, tool_name: str, arguments: dict[str, Any]) -> str | None:
            query = super().get_query_str_from_tool_call(tool_name, arguments)
            return query.casefold() if query else query

    script = [LOOK, call("look", key="A"), answer("42")]
    _, _, plain = await run(list(script))
    _, _, own = await run(list(script), tool_executor=Executor)
    backs = [[e.reason for e in events if isinstance(e, ev.TurnRolledBack)] for events in (plain, own)]
    assert backs == [[], ["duplicate"]]


async def test_an_executor_decides_which_results_are_rolled_back() -> None:
    class Executor(ToolExecutor):
        def should_rollback_result(self, tool_name: str, result: Any, tool_result: dict[str, Any]) -> bool:
            return super().should_rollback_result(tool_name, result, tool_result) or "b is" in str(result)

    script = [call("look", key="b"), LOOK, answer("42")]
    result, _, _ = await run(script, tool_executor=Executor)
    assert (result.answer, result.rollbacks) == ("42", 1)


async def test_an_executor_processes_results() -> None:
    class Executor(ToolExecutor):
        def post_process_tool_call_result(self, tool_name: str, tool_call_result: dict[str, Any]) -> dict[str, Any]:
            processed = super().post_process_tool_call_result(tool_name, tool_call_result)
            return {**processed, "result": processed["result"].upper()}

    _, requests, _ = await run([LOOK, answer("42")], tool_executor=Executor)
    assert requests[1].messages[-1].text == "A IS 42"


async def test_an_executor_may_come_from_a_function() -> None:
    made: list[ToolExecutor] = []

    def make(**arguments: Any) -> ToolExecutor:
        made.append(ToolExecutor(**arguments))
        return made[0]

    result, _, _ = await run([LOOK, answer("42")], tool_executor=make)
    assert result.answer == "42"
    assert list(made[0].used_queries) == ["main_look"]


# ------------------------------------------------------------------------------------------------ generator


async def test_a_generator_asks_for_the_answer_in_its_own_way() -> None:
    class Generator(AnswerGenerator):
        async def generate_final_answer_with_retries(self, *arguments: Any, **options: Any) -> Any:
            options["task_description"] = "Say forty-two, please."
            return await super().generate_final_answer_with_retries(*arguments, **options)

    result, requests, _ = await run([LOOK, answer("42")], answer_generator=Generator, max_turns=1)
    assert result.answer == "42"
    assert "Say forty-two, please." in requests[-1].messages[-1].text


async def test_a_generator_falls_back_in_its_own_way() -> None:
    class Generator(AnswerGenerator):
        def handle_no_context_management_fallback(self, text: Any, summary: Any, boxed: Any) -> Any:
            found = super().handle_no_context_management_fallback(text, summary, boxed)
            return found if "No" not in found[2] else (found[0], found[1], "unknown, sorry")

    result, _, _ = await run([LOOK, *[say("I cannot.")] * 9], answer_generator=Generator, max_turns=1)
    assert result.answer == "unknown, sorry"


async def test_a_generator_sums_up_a_failed_attempt_in_its_own_way() -> None:
    class Generator(AnswerGenerator):
        async def generate_failure_summary(self, *arguments: Any, **options: Any) -> str | None:
            return "Failure type: incomplete\nUseful findings: a is 42"

    script = [LOOK, answer("42")]
    result, requests, _ = await run(script, answer_generator=Generator, max_turns=1, context_compress_limit=1)
    assert (result.answer, result.attempts) == ("42", 2)
    assert "a is 42" in requests[-1].messages[1].text


# ------------------------------------------------------------------------------------------------ dialect, context


async def test_a_dialect_of_ones_own_writes_the_conversation() -> None:
    class Polite(FunctionCall):
        def render(self, view: Any, capabilities: Any) -> Any:
            request = super().render(view, capabilities)
            request.messages = [*request.messages, Message(role="user", content="Please.")]
            return request

    result, requests, _ = await run([LOOK, answer("42")], dialect=Polite())
    assert result.answer == "42"
    assert {request.messages[-1].text for request in requests} == {"Please."}


async def test_a_context_policy_decides_what_leaves() -> None:
    class KeepOne:
        def decide(self, state: ContextState) -> Eviction | None:
            return state.evict(len(state.shown) - 1, reason="mine")

    script = [call("look", key=key) for key in "abc"] + [answer("42")]
    result, requests, seen = await run(script, context=KeepOne())
    assert result.answer == "42"
    shown = [message.text for message in requests[-1].messages if message.role == "tool"]
    assert ["is 42" in text for text in shown] == [False, False, True]
    assert {event.reason for event in seen if isinstance(event, ev.Evicted)} == {"mine"}


async def test_a_context_policy_may_have_turns_summed_up() -> None:
    class SumUp:
        def decide(self, state: ContextState) -> Eviction | None:
            return state.evict(2, reason="mine", summarise=True) if len(state.shown) == 3 else None

    findings = "Findings: a and b are both 42, says the table of keys."
    script = [*[call("look", key=key) for key in "abc"], say(findings), answer("42")]
    result, requests, _ = await run(script, context=SumUp())
    assert result.answer == "42"
    assert findings in requests[-1].messages[1].text


# ------------------------------------------------------------------------------------------------ tools


async def test_a_tool_manager_is_used_as_it_is_and_offers_read_result() -> None:
    calls: list[str] = []

    class Manager(ToolManager):
        async def call(self, spec: Any, arguments: Any, progress: Any = None) -> Any:
            calls.append(spec.name)
            return await super().call(spec, arguments, progress)

    client = ScriptedClient([LOOK, answer("42")])
    result = await Agent(client, Manager(tools()), home=False).run("How much is a?")
    assert (result.answer, calls) == ("42", ["look"])
    assert [spec.name for spec in client.requests[0].tools] == ["look", "read_result"]
    with pytest.raises(UsageError, match=r"ToolManager\(mcp_servers="):
        Agent(client, Manager(tools()), mcp_servers=["python server.py"], home=False)


# ------------------------------------------------------------------------------------------------ checks


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": "gpt-5"}, "openai:NAME"),
        ({"model": "openai:x", "base_url": "ftp://x"}, "ftp://x"),
        ({"dialect": "cot_chta"}, "Choose one of code, cot_chat"),
        ({"dialect": FunctionCall}, "A Dialect has name, parallel_calls, render()"),
        ({"mcp_servers": [5]}, "5"),
        ({"context": 5}, "decide(state)"),
        ({"context": type("Policy", (), {"decide": None})}, "Pass an instance"),
        ({"output_formatter": OutputFormatter}, "Pass an instance: MyFormatter()"),
        ({"tool_executor": 5}, "tool_executor=MyToolExecutor"),
        ({"answer_generator": 5}, "answer_generator=MyAnswerGenerator"),
    ],
)
def test_a_wrong_argument_is_refused_when_the_agent_is_made(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ConfigError, UsageError)) as raised:
        Agent(**{"model": ScriptedClient([]), "home": False, **options})
    assert sentence in str(raised.value)


# ------------------------------------------------------------------------------------------------ non-answers


async def test_a_model_that_refuses_is_reported_with_its_words() -> None:
    refusal = "Please consult a professional."
    result, requests, _ = await run([say(refusal)] * 20)
    assert (result.status, result.stop_reason) == ("unanswered", "refused")
    assert result.error == f"There is no \\boxed{{}} in the reply. The model wrote: {refusal}"
    assert len(requests) <= 7
    assert requests[1].tools == requests[0].tools
    assert requests[1].tool_choice != "none"
    assert requests[1].messages[-2].text == refusal


async def test_after_two_replies_without_an_action_closing_takes_over() -> None:
    result, requests, _ = await run([LOOK, say("Hm."), say("It is hard to say."), answer("42")])
    assert (result.answer, result.stop_reason) == ("42", "answered")
    assert len(requests) == 4


async def test_closing_goes_back_to_work_if_the_model_wants_to() -> None:
    script = [say("Hm."), say("Hm!"), say("Hm?"), LOOK, answer("42")]
    result, _, seen = await run(script)
    assert result.answer == "42"
    assert [event.name for event in seen if isinstance(event, ev.ToolStarted)] == ["look"]


async def test_an_answer_that_only_adds_the_form_completes_the_reply_before() -> None:
    essay = "Of all that is known, it is forty-two."
    result, requests, _ = await run([LOOK, say(essay), answer("42")])
    assert result.answer == "42"
    assert essay in result.final_summary
    assert len(requests) == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("unit", ["\n", " ", "-", "ab", "哈", "=-", "the same words again "])
async def test_a_reply_that_runs_away_is_cut_whatever_it_repeats(unit: str, stream: bool) -> None:
    runaway = Turn("I think. " + unit * (20_000 // len(unit)), finish_reason="length")
    result, requests, seen = await run([runaway, answer("42")], stream=stream)
    assert result.answer == "42"
    assert len(requests) == 2
    (back,) = [event for event in seen if isinstance(event, ev.TurnRolledBack)]
    assert back.reason == "repeating"
    replied = next(event for event in seen if isinstance(event, ev.ModelReplied))
    assert stream is False or len(replied.text) < 5_000
