"""One agent, ten questions, in each dialect over HTTP: streamed or whole, with and without stop words, and faults."""

from __future__ import annotations

import asyncio

import pytest

from closeout import Agent, Boxed, tool
from closeout.errors import BadRequest
from closeout.messages import Capabilities
from closeout.models.openai import OpenAIClient
from closeout.models.retry import RetryPolicy
from closeout.testing import MISBEHAVIOURS, ScriptedClient, answer, call, once, serve_script
from closeout.testing.odd_forms import ODD_FORMS

STOCK = {"apples": 14, "pears": 9, "plums": 31, "figs": 5, "dates": 12}


@tool
def stock(item: str) -> int:
    """How many pieces of an item there are.

    Args:
        item: the item's name
    """
    return STOCK[item]


@tool
def times(number: int, factor: int) -> int:
    """Multiply two whole numbers."""
    return number * factor


DIALECTS = ("function_call", "cot_chat", "cot_completion", "mcp_xml")  # programs have tests of their own
SINGLE = {f"How many {item}?": [call("stock", item=item), answer(str(count))] for item, count in STOCK.items()}
DOUBLE = {
    f"What are the {item} worth at 3 each?": [
        call("stock", item=item),
        call("times", number=count, factor=3),
        answer(str(3 * count)),
    ]
    for item, count in STOCK.items()
}
QUESTIONS = {**SINGLE, **DOUBLE}
ANSWERS = {question: turns[-1].answer for question, turns in QUESTIONS.items()}
# "hang" is the transport's to survive and costs a deadline each time.
FAULTS = [kind for kind in MISBEHAVIOURS if kind != "hang" and kind not in ODD_FORMS]


def agent(server, dialect, *, stream=False, stop=True, timeout=60.0):
    capabilities = Capabilities(completions=True, native_tools=dialect == "function_call", stop=stop, known=True)
    retry = RetryPolicy(first_wait=0.001)
    client = OpenAIClient("m", server.base_url, capabilities=capabilities, retry=retry)
    config = {"llm": {"timeout": timeout}}
    return Agent(client, [stock, times], dialect=dialect, stream=stream, home=False, config=config, answer=Boxed())


@pytest.mark.parametrize("stop", [True, False], ids=["stop words", "no stop words"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_ten_questions_are_answered(dialect, stream, stop):
    async with serve_script(QUESTIONS, by="question", stop_words=stop) as server:
        one = agent(server, dialect, stream=stream, stop=stop)
        for question, right in ANSWERS.items():
            result = await one.run(question)
            assert (result.answer, result.rollbacks, result.repairs) == (right, 0, ())
        assert len(server.requests) == sum(map(len, QUESTIONS.values()))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_every_misbehaviour_is_survived(dialect, fault):
    question = next(iter(DOUBLE))
    for stream, stop in ((True, False), (False, True)):
        async with serve_script(DOUBLE, by="question", stop_words=stop, misbehave=once(fault)) as server:
            result = await agent(server, dialect, stream=stream, stop=stop).run(question)
            assert result.answer == ANSWERS[question], (stream, stop, result)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_hanging_server_is_asked_again(dialect, skip_time):
    question = next(iter(SINGLE))
    async with serve_script(SINGLE, by="question", misbehave=once("hang")) as server:
        task = asyncio.ensure_future(agent(server, dialect, timeout=300).run(question))
        while not server.requests:  # noqa: ASYNC110  # the server's state
            await asyncio.sleep(0.005)
        skip_time(301)
        result = await task
        assert result.answer == ANSWERS[question]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_requests_extend_each_other_byte_for_byte(dialect):
    question = next(iter(DOUBLE))
    async with serve_script(DOUBLE, by="question") as server:
        await agent(server, dialect).run(question)
        first, *rest = server.bodies
        for body in rest:
            shared = next(i for i, (a, b) in enumerate(zip(first, body, strict=False)) if a != b)
            assert first[shared:].strip(b'"]}') == b""
            first = body


# ------------------------------------------------------------------------------------------------ constraints

WEAK = Capabilities(completions=True, native_tools=False, grammar=True, weak=True, known=True)
STRONG = Capabilities(completions=True, native_tools=False, grammar=True, known=True)


@pytest.mark.parametrize(
    ("capabilities", "setting", "bound"),
    [(WEAK, "auto", True), (WEAK, "off", False), (STRONG, "auto", False), (STRONG, "on", True)],
)
async def test_small_models_are_held_to_the_form_and_others_where_settings_say_so(capabilities, setting, bound):
    question, script = next(iter(DOUBLE.items()))
    client = ScriptedClient(script, capabilities=capabilities)
    options = {"dialect": "cot_completion", "home": False, "config": {"agent": {"constrain": setting}}}
    result = await Agent(client, [stock, times], **{"answer": Boxed(), **options}).run(question)
    assert result.answer == ANSWERS[question]
    assert [request.constraint is not None for request in client.requests] == [bound] * 3
    if bound:
        grammar = client.requests[0].constraint.value
        assert "call0" in grammar
        assert "boxed{" in grammar


@tool
def report() -> str:
    """A long text."""
    return "The plums are ripe. " * 4000


async def test_a_small_model_may_not_begin_with_reading_on():
    """Offered from the start, it is what a small model begins with."""
    script = [call("times", number=2, factor=3), call("report"), answer("6")]
    client = ScriptedClient(script, capabilities=WEAK)
    await Agent(client, [report, times], dialect="cot_completion", home=False).run("How many?")
    allowed = ["read_result" in request.constraint.value for request in client.requests]
    assert allowed == [False, True, True]


async def test_a_small_model_may_not_answer_right_after_a_call_that_failed():
    """It would take the error for the answer. After a second failure it may."""
    script = [call("stock", item="figs"), *[call("times", number="no", factor="number")] * 2, answer("5")]
    client = ScriptedClient(script, capabilities=WEAK)
    config = {"agent": {"max_consecutive_rollbacks": 0}}
    result = await Agent(client, [stock, times], dialect="cot_completion", home=False, config=config).run("How many?")
    assert result.answer == "5"
    assert ["Final Answer" in request.constraint.value for request in client.requests] == [True, True, False, True]


async def test_a_tool_that_is_held_back_is_not_in_the_grammar_either():
    script = [*[call("stock", item="figs")] * 4, answer("5")]  # the same call again and again, rolled back each time
    client = ScriptedClient(script, capabilities=WEAK)
    result = await Agent(client, [stock, times], dialect="cot_completion", home=False).run("How many figs?")
    assert (result.answer, result.rollbacks) == ("5", 3)
    assert ["stock" in request.constraint.value for request in client.requests] == [True] * 4 + [False]


class Refusing(ScriptedClient):
    """A server that knows nothing of constraints, though it was said to."""

    async def complete(self, request, **listeners):
        if request.constraint is not None:
            raise BadRequest("What is a grammar?")
        return await super().complete(request, **listeners)


@pytest.mark.parametrize("dialect", ["cot_chat", "cot_completion"])
async def test_a_constraint_that_a_server_refuses_is_given_up(dialect):
    question, script = next(iter(DOUBLE.items()))
    client = Refusing(script, capabilities=WEAK)
    result = await Agent(client, [stock, times], dialect=dialect, home=False).run(question)
    assert (result.answer, result.rollbacks) == (ANSWERS[question], 0)
    assert len(client.requests) == 3
