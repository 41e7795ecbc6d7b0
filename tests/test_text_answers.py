"""Text is an answer: what an agent without a contract takes as its answer, and which replies it asks again."""

from __future__ import annotations

from typing import Any

import pytest

from closeout import Agent, Boxed, OneOf, Text, tool
from closeout.journal import events as ev
from closeout.models.openai import OpenAIClient
from closeout.models.retry import RetryPolicy
from closeout.testing import MISBEHAVIOURS, Misbehaviour, ScriptedClient, Turn, answer, call, say, serve_script

LOOK = call("look_up", key="a")
DIALECTS = ("function_call", "cot_chat", "cot_completion", "mcp_xml")


@tool(read_only=True)
def look_up(key: str) -> str:
    """Look up a key.

    Args:
        key: the key
    """
    return f"{key} is 4711"


async def run(script: list[Any], *, tools: Any = (look_up,), **options: Any) -> tuple[Any, list[Any], list[Any]]:
    """The result, the requests and the events of a run with one tool."""
    client, seen = ScriptedClient(script), list[Any]()
    result = await Agent(client, tools, home=False, **options).run("What is a?", listeners=[seen.append])
    return result, client.requests, seen


@pytest.mark.parametrize("tools", [(), (look_up,)])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_greeting_costs_one_request(tools: Any, stream: bool) -> None:
    text = "Hello! How can I help you today? I can look up keys, for example. Let me know what you need."
    result, requests, _ = await run([say(text)], tools=tools, stream=stream)
    assert (result.answer, result.value, result.status, result.stop_reason) == (text, text, "answered", "answered")
    assert len(requests) == 1
    assert [message.role for message in requests[0].messages] == ["user"], "no form of an answer is asked for"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_last_reply_is_the_answer_in_every_dialect(dialect: str) -> None:
    script = [LOOK, say("Thought: I know it.\nFinal Answer: It is 4711." if "cot" in dialect else "It is 4711.")]
    result, requests, _ = await run(script, dialect=dialect)
    assert (result.answer, result.status, len(requests)) == ("It is 4711.", "answered", 2)


async def test_the_content_of_a_box_is_the_answer() -> None:
    result, _, _ = await run([LOOK, answer("4711", "I looked it up.")])
    assert result.answer == "4711"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (r"So it is \boxed{42}.", "42"),
        (r"First \boxed{1}, and so \(\boxed{\frac{1}{2}}\).", r"\frac{1}{2}"),
        (r"To draw a frame write \boxed{x^2}. The command needs amsmath.", None),
        ("Write it so:\n```latex\n\\boxed{42}\n```", None),
        (r"Put the answer into \boxed{...} at the end, then compile the document.", None),
        (r"<think>\boxed{1}?</think>It is 42.", "It is 42."),
        ("  It is 42.\n\n", "It is 42."),
    ],
)
def test_text_is_read_as_a_whole_or_by_its_box(text: str, read: str | None) -> None:
    found = Text().read(text)
    assert (found.ok, found.text) == (True, text if read is None else read)


@pytest.mark.parametrize("text", ["", "  \n", "<think>Perhaps 42.", "<think>It is 42.</think>", r"So: \boxed{?}."])
def test_what_says_nothing_is_no_text(text: str) -> None:
    assert not Text().read(text).ok


def test_text_is_the_last_resort_among_several_contracts() -> None:
    from closeout import Number

    contract = OneOf(Number(), Text())
    assert contract.read(r"\boxed{1,000}").value == 1000
    assert contract.read("Nobody knows.").value == "Nobody knows."
    assert contract.instruction() == Number().instruction()


# ------------------------------------------------------------------------------------------------ whatever it says

STEPS = [
    "I will now search for the population of X.",
    "Let me look that up for you.",
    "Let me look up the key. One moment, please.",
    "First, I need to find the value of a. Then I will compare both values.",
    "To answer this, I'll start by searching the documents.",
    "Searching for the key...",
    "I'm going to check the file:",
    "Here is what I found:",
    "好的，我来查一下这个值。",
    "接下来我将搜索相关资料。",
    "Je vais rechercher cette information.",
    "Ich werde das jetzt nachschlagen.",
    "Voy a buscar la información.",
    "Сейчас найду.",
    "確認します。",
]
ANSWERS = [
    "Hello! How can I help you today?",
    "I'm sorry to hear that! What happened?",
    "Let me know if you need anything else.",
    "I can search the documents if you like.",
    "Shall I look it up?",
    "I looked it up: it is 4711.",
    "I searched three pages. None of them mentions a.",
    "It is 4711. I will be happy to help with more.",
    "If you send me the file, I will check it.",
    "We need to leave at nine.",
    "你好！有什么可以帮你的吗？",
    "您需要我查一下吗？",
    "Le canal a été ouvert en 1832.",
]


@pytest.mark.parametrize("text", [*STEPS, *ANSWERS, "I'm sorry, I can't help with that."])
async def test_any_text_is_the_answer_whatever_it_says(text: str) -> None:
    # Phrases tell a plan from an answer in some languages only, and take some answers for plans.
    result, requests, seen = await run([say(text)])
    assert (result.answer, result.status, len(requests)) == (text, "answered", 1)
    assert not [event for event in seen if isinstance(event, ev.TurnRolledBack)]


@pytest.mark.parametrize("text", STEPS)
async def test_with_a_form_for_the_answer_a_step_without_a_call_is_not_the_end(text: str) -> None:
    result, requests, _ = await run([say(text), LOOK, answer("4711")], answer=Boxed())
    assert (result.answer, result.status, len(requests)) == ("4711", "answered", 3)
    assert requests[1].messages[-2].text == text


@pytest.mark.parametrize("text", [STEPS[0], "I'm sorry, I can't help with that."])
async def test_a_text_that_closing_is_answered_with_is_the_answer(text: str) -> None:
    result, requests, _ = await run([LOOK, say(text)], max_turns=1)
    assert (result.answer, len(requests)) == (text, 2)


async def test_closing_without_tools_takes_no_call_for_an_answer() -> None:
    # Tools are closed after the last turn. A call, a made-up result and silence are no answers there; a text is.
    late = Turn("I will look again.", calls=[LOOK])
    script = [LOOK, late, say("Observation: a is 3\nIt is 3."), say("It is 4711.")]
    result, requests, _ = await run(script, max_turns=1)
    assert (result.answer, result.stop_reason, len(requests)) == ("It is 4711.", "max_turns", 4)


async def test_text_beside_a_call_is_no_answer_to_fall_back_on() -> None:
    talk = Turn("It may be 3, but I will look.", calls=[LOOK])
    result, _, seen = await run([talk, *[say("")] * 4], max_turns=1)
    assert (result.answer, result.status) == (None, "unanswered")
    assert not any(isinstance(event, ev.AnswerSeen) for event in seen)


async def test_a_thought_of_react_is_no_answer() -> None:
    thought = say("Thought: I should look up the key first.")
    result, requests, _ = await run([thought, thought, say("Thought: Now.\nFinal Answer: 4711")], dialect="cot_chat")
    assert (result.answer, len(requests)) == ("4711", 3)


async def test_a_call_in_another_form_is_still_found() -> None:
    hermes = say('<tool_call>\n{"name": "look_up", "arguments": {"key": "a"}}\n</tool_call>')
    result, requests, _ = await run([hermes, say("It is 4711.")])
    assert (result.answer, len(requests)) == ("It is 4711.", 2)
    assert "a is 4711" in requests[1].messages[-1].text


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", sorted({*MISBEHAVIOURS} - {"non_answer", "slow", "hang", "rate_limited"}))
async def test_every_fault_is_survived(kind: str, dialect: str) -> None:
    said = "Final Answer: 4711" if "cot" in dialect else "4711"
    async with serve_script([LOOK, say(said)], misbehave=[Misbehaviour(kind)], record=False) as server:
        client = OpenAIClient("scripted", server.base_url, retry=RetryPolicy(first_wait=0.001))
        agent = Agent(client, [look_up], dialect=dialect, home=False)
        result = await agent.run("What is a?")
    assert (result.answer, result.status) == ("4711", "answered")


async def test_an_agent_without_tools_may_write_an_observation() -> None:
    report = "Lab report\n\nObservation: the liquid turned blue.\nConclusion: it is a base."
    client = ScriptedClient([say(report)])
    result = await Agent(client, dialect="function_call", home=False).run("Write a lab report.")
    assert (result.answer, result.usage.requests) == (report, 1)


CALL = '{"name": "look_up", "arguments": {"key": "a"}}'


@pytest.mark.parametrize(
    "written",
    [
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"<tools>\n{CALL}\n</tools>",
        f"```json\n{CALL}\n```",
    ],
)
@pytest.mark.parametrize("contract", [Text(), Boxed()])
async def test_an_answer_from_a_call_that_was_not_run_is_asked_for_again_once(written: str, contract: Any) -> None:
    made_up = f"I need to look a up.\n\n{written}\n\nThe result is 99, so the answer is \\boxed{{99}}."
    again = [LOOK, answer("4711")]
    result, requests, seen = await run([say(made_up), *again], answer=contract, dialect="function_call")
    assert result.answer == "4711"
    assert [each.reason for each in seen if isinstance(each, ev.TurnRolledBack)] == ["unrun_call"]
    assert "a call of look_up, but it was not run" in str(requests[1].messages)

    insisting, _, _ = await run([say(made_up), say(made_up)], answer=contract, dialect="function_call")
    assert (insisting.answer, insisting.usage.requests) == ("99", 2)


async def test_an_answer_that_shows_a_call_of_no_offered_tool_is_an_answer() -> None:
    shown = f"Send this:\n\n```json\n{CALL.replace('look_up', 'send')}\n```\n\nThat is all."
    result, requests, _ = await run([say(shown)], dialect="function_call")
    assert (result.answer, len(requests)) == (shown, 1)
