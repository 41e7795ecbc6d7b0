"""How runs end: the final summary, the closing text, and subclasses of OutputFormatter and AnswerGenerator."""

from __future__ import annotations

from typing import Any

import pytest

from closeout import Agent, AnswerGenerator, Boxed, FunctionCallAgentRunner, Number, OutputFormatter, RunResult, tool
from closeout.answers.experience import FAILURE_SUMMARY_PROMPT
from closeout.errors import AuthenticationFailed
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, say

TITLES = ("Final Answer", "Extracted Result", "Token Usage & Cost")
LOOK = Turn("I look.", (call("look", key="a"),))
LOOK_AGAIN = Turn("I look again.", (call("look", key="b"),))
GUESS = Turn(r"It may be \boxed{7}.", (call("look", key="b"),))
ACCOUNT = "Failure type: incomplete\nWhat happened: it was late.\nUseful findings: it is a number"


@tool(read_only=True)
def look(key: str) -> str:
    """Look something up."""
    return f"{key} is unknown"


def sections(result: RunResult[Any]) -> list[str]:
    """The three sections of the final summary, without their titles."""
    text = result.final_summary
    places = [text.index(title) for title in TITLES]
    assert places == sorted(places)
    rest = [text[place:].partition("\n")[2] for place in places]
    return [part.partition("=")[0].partition("-----")[0].strip() for part in rest]


def agent_of(*script: Any, **options: Any) -> tuple[Agent[Any], ScriptedClient]:
    client = ScriptedClient(script[0] if len(script) == 1 and callable(script[0]) else list(script))
    return Agent(client, [look], home=False, dialect="function_call", **{"answer": Boxed(), **options}), client


async def run(agent: Agent[Any], *, streamed: bool = False) -> RunResult[Any]:
    events: list[Any] = []
    return await agent.run("What is a?", listeners=(events.append,) if streamed else ())


# ------------------------------------------------------------------------------------------------ every end

ENDS: dict[str, tuple[list[Any], dict[str, Any], str, str | None]] = {
    "answered": ([LOOK, answer("42")], {}, "answered", "42"),
    "answered in the closing turn": ([LOOK, answer("42")], {"max_turns": 1}, "max_turns", "42"),
    "an earlier answer": ([GUESS, *[say(r"\boxed{?}")] * 3], {"max_turns": 1}, "max_turns", "7"),
    "no answer": ([LOOK, *[say(r"\boxed{?}")] * 3], {"max_turns": 1}, "max_turns", None),
    "experience only": ([LOOK, ACCOUNT, LOOK_AGAIN, *[say("")] * 3], {"max_turns": 1, "context_compress_limit": 1},
                        "max_turns", None),
    "model failed": ([AuthenticationFailed("wrong key")], {}, "model_failed", None),
    "out of tokens": ([LOOK, answer("42")], {"config": {"agent": {"max_tokens": 30}}}, "max_tokens", None),
}  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("end", ENDS)
async def test_the_summary_has_three_sections_however_a_run_ends(end: str, streamed: bool) -> None:
    script, options, reason, expected = ENDS[end]
    result = await run(agent_of(*script, **options)[0], streamed=streamed)
    assert (result.stop_reason, result.answer) == (reason, expected)
    final, extracted, usage = sections(result)
    assert final == (result.closing_text.strip() or "No final answer generated.")
    if expected is not None:
        assert extracted == expected
        assert rf"\boxed{{{expected}}}" in result.closing_text
    else:
        assert extracted in (r"There is no \boxed{} in the reply.", "The box holds only a placeholder (?).")
    assert f"Requests: {result.usage.requests}\n" in usage
    assert f"Output tokens: {result.usage.output_tokens}\n" in usage


async def test_the_closing_text_of_a_vote_is_the_text_that_gave_the_answer() -> None:
    first, second = (
        Turn(r"Surely \boxed{7}.", (call("look", key="a"),)),
        Turn(r"Yes, \boxed{7}.", (call("look", key="b"),)),
    )
    agent, _ = agent_of(first, second, answer("8"), config={"agent": {"answer_selection": "vote"}})
    result = await run(agent)
    assert (result.answer, result.closing_text) == ("7", r"Yes, \boxed{7}.")
    assert sections(result)[:2] == [r"Yes, \boxed{7}.", "7"]


async def test_the_summary_counts_the_usage_of_sub_agents() -> None:
    clerk, _ = agent_of(LOOK, answer("42"))
    client = ScriptedClient([call("clerk", task="find a"), answer("42")])
    result = await Agent(client, [clerk.as_tool("clerk", "Finds things.")], home=False).run("What is a?")
    assert result.usage.requests == 4
    assert "Requests: 4\n" in sections(result)[2]


# ------------------------------------------------------------------------------------------------ prompts


def without_usage(client: ScriptedClient) -> bool:
    texts = [message.text for request in client.requests for message in request.messages]
    return not any(word in text for text in texts for word in ("Token Usage", "Requests:", "Extracted Result"))


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_runner_keeps_the_closing_text_in_its_history_and_never_the_usage(streamed: bool) -> None:
    client = ScriptedClient([LOOK, answer("42"), answer("43"), answer("44")])
    runner = FunctionCallAgentRunner(client, [look], home=False, stream=streamed)
    for query in ("What is a?", "And b?", "And c?"):
        async for _ in runner.run(query):
            pass
    assert runner.result.closing_text == r"The answer is \boxed{44}."
    assert [message.text for message in client.requests[2].messages[-2:]] == [r"The answer is \boxed{42}.", "And b?"]
    assert without_usage(client)


async def test_a_sub_agent_reports_its_closing_text_and_never_the_usage() -> None:
    clerk, own = agent_of(LOOK, answer("42"), max_turns=1)
    client = ScriptedClient([call("clerk", task="find a"), answer("42")])
    await Agent(client, [clerk.as_tool("clerk", "Finds things.")], home=False).run("What is a?")
    assert r"The answer is \boxed{42}." in client.requests[-1].messages[-1].text
    assert without_usage(client)
    assert without_usage(own)


async def test_the_usage_of_an_attempt_is_not_in_the_experience_of_the_next() -> None:
    agent, client = agent_of(LOOK, ACCOUNT, LOOK_AGAIN, answer("42"), max_turns=1, context_compress_limit=1)
    assert (await run(agent)).answer == "42"
    assert without_usage(client)


# ------------------------------------------------------------------------------------------------ formatters


class Letter(OutputFormatter):
    def format_final_summary_and_log(self, final_answer_text: str, client: Any = None) -> Any:
        summary, boxed, usage = super().format_final_summary_and_log(final_answer_text, client)
        return f"Dear reader,\n{summary}", boxed, usage


@pytest.mark.parametrize("end", ENDS)
async def test_a_formatter_writes_the_summary_of_every_end(end: str) -> None:
    script, options, reason, expected = ENDS[end]
    result = await run(agent_of(*script, output_formatter=Letter(), **options)[0])
    assert (result.stop_reason, result.answer) == (reason, expected)
    assert result.final_summary.startswith("Dear reader,\n")
    assert sections(result)


async def test_a_formatter_with_the_default_contract_takes_the_agents() -> None:
    letter = Letter()
    result = await run(agent_of(answer("1,200"), answer=Number(), output_formatter=letter)[0])
    assert (result.answer, result.value) == ("1200", 1200)
    assert letter.contract is None, "the formatter that was passed is not modified"


async def test_a_formatter_may_rewrite_the_answer() -> None:
    class Loud(OutputFormatter):
        def format_final_summary_and_log(self, final_answer_text: str, client: Any = None) -> Any:
            summary, boxed, usage = super().format_final_summary_and_log(final_answer_text, client)
            return summary, boxed.upper(), usage

    assert (await run(agent_of(answer("mars"), output_formatter=Loud())[0])).answer == "MARS"
    closing = [LOOK, answer("mars")]
    assert (await run(agent_of(*closing, max_turns=1, output_formatter=Loud())[0])).answer == "MARS"


async def test_an_answer_that_the_formatter_refuses_is_asked_for_again() -> None:
    class Strict(OutputFormatter):
        def format_final_summary_and_log(self, final_answer_text: str, client: Any = None) -> Any:
            text = "" if "maybe" in final_answer_text else final_answer_text
            return super().format_final_summary_and_log(text, client)

    agent, client = agent_of(say(r"maybe \boxed{1}"), answer("2"), output_formatter=Strict())
    assert (await run(agent)).answer == "2"
    assert len(client.requests) == 2


async def test_a_formatter_that_raises_does_not_cost_the_result() -> None:
    class Broken(OutputFormatter):
        def format_final_summary_and_log(self, final_answer_text: str, client: Any = None) -> Any:
            raise RuntimeError("no paper")

    result = await run(agent_of(AuthenticationFailed("wrong key"), output_formatter=Broken())[0])
    assert (result.status, result.stop_reason) == ("failed", "model_failed")
    assert sections(result)[0] == "No final answer generated."
    assert any("no paper" in step.message for step in result.task_log.step_logs)


# ------------------------------------------------------------------------------------------------ generators

BAD = [say(r"\boxed{?}")] * 3


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_overridden_handle_llm_call_changes_a_run(streamed: bool) -> None:
    class Louder(AnswerGenerator):
        async def handle_llm_call(self, *arguments: Any, **options: Any) -> Any:
            text, *rest = await super().handle_llm_call(*arguments, **options)
            return ((text or "").replace("42", "43"), *rest)

    agent, _ = agent_of(LOOK, answer("42"), max_turns=1, answer_generator=Louder)
    assert (await run(agent, streamed=streamed)).answer == "43"


async def test_an_overridden_final_answer_changes_a_run() -> None:
    class Hinting(AnswerGenerator):
        async def generate_final_answer_with_retries(self, **options: Any) -> Any:
            options["task_description"] += " Think of Mars."
            return tuple(await super().generate_final_answer_with_retries(**options))

    agent, client = agent_of(LOOK, answer("42"), max_turns=1, answer_generator=Hinting)
    result = await run(agent)
    assert (result.answer, result.closing_text) == ("42", r"The answer is \boxed{42}.")
    assert "Think of Mars." in client.requests[-1].messages[-1].text


async def test_an_overridden_fallback_changes_a_run() -> None:
    class Guessing(AnswerGenerator):
        def handle_no_context_management_fallback(self, *arguments: Any) -> Any:
            text, summary, _ = super().handle_no_context_management_fallback(*arguments)
            return text, summary, "a guess"

    assert (await run(agent_of(LOOK, *BAD, max_turns=1, answer_generator=Guessing)[0])).answer == "a guess"


async def test_an_overridden_strategy_for_further_attempts_changes_a_run() -> None:
    class Guessing(AnswerGenerator):
        def handle_context_management_no_fallback(self, *arguments: Any) -> Any:
            text, summary, _ = super().handle_context_management_no_fallback(*arguments)
            return text, summary, "a guess"

    def script(view: RequestView) -> Any:
        return say(r"\boxed{?}")

    agent, _ = agent_of(script, context_compress_limit=1, answer_generator=Guessing)
    assert (await run(agent)).answer == "a guess"


async def test_an_overridden_failure_summary_is_the_experience_of_the_next_attempt() -> None:
    class Brief(AnswerGenerator):
        async def generate_failure_summary(self, *arguments: Any, **options: Any) -> str | None:
            account = await super().generate_failure_summary(*arguments, **options)
            return f"{account}\n- and it lives in Bern"

    agent, client = agent_of(
        LOOK, ACCOUNT, LOOK_AGAIN, answer("42"), max_turns=1, context_compress_limit=1, answer_generator=Brief
    )
    assert (await run(agent)).answer == "42"
    assert FAILURE_SUMMARY_PROMPT in client.requests[1].messages[-2].text
    assert "and it lives in Bern" in client.requests[2].messages[-1].text


async def test_an_overridden_entry_point_may_return_a_plain_tuple() -> None:
    class Fixed(AnswerGenerator):
        async def generate_and_finalize_answer(self, *arguments: Any, **options: Any) -> Any:
            return "my summary", "my answer", None, "", []

    agent, client = agent_of(LOOK, max_turns=1, answer_generator=Fixed)
    result = await run(agent)
    assert (result.answer, result.final_summary) == ("my answer", "my summary")
    assert len(client.requests) == 1


async def test_a_factory_may_make_the_generator() -> None:
    made: list[AnswerGenerator] = []

    def make(**arguments: Any) -> AnswerGenerator:
        made.append(AnswerGenerator(**arguments))
        made[-1].max_final_answer_retries = 1
        return made[-1]

    agent, client = agent_of(LOOK, *BAD, max_turns=1, answer_generator=make)
    assert (await run(agent)).answer is None
    assert (len(made), len(client.requests)) == (1, 2)
