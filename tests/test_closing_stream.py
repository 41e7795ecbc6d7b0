"""Whoever watches a run sees its closing replies written, too; what stands there at the end is the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Boxed, RunResult, StreamHandler, tool
from closeout.errors import ServerFailed
from closeout.journal import events as ev
from closeout.journal.subscribers import Progress
from closeout.messages import ModelReply, ModelRequest
from closeout.models.base import OnDelta
from closeout.models.openai import OpenAIClient
from closeout.models.retry import RetryPolicy
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, once, say, serve_script

BOX = "The answer is \\boxed{42}."
ESSAY = "Of all that is known of it, forty-two is what remains."
CIRCLE = "And so on, and then again the same thing over and over. " * 40


@tool(read_only=True)
async def look(key: str) -> str:
    """Look up a key."""
    return f"known of {key}"


class Screen:
    """What a person sees: the pieces, without those that were rolled back."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, int, str]] = []
        self.discards = 0
        self.replies: list[ev.ModelReplied] = []

    def __call__(self, event: Any) -> None:
        if isinstance(event, Progress) and event.kind in ("text", "thought", "answer"):
            self.pieces.append((event.agent, event.turn, event.text))
        elif isinstance(event, ev.TurnRolledBack) or (isinstance(event, Progress) and event.kind == "discard"):
            self.discards += isinstance(event, Progress)
            self.pieces = [piece for piece in self.pieces if piece[:2] != (event.agent, event.turn)]
        elif isinstance(event, ev.ModelReplied):
            self.replies.append(event)

    @property
    def last(self) -> str:
        """What stands there of the last turn."""
        return "".join(text for *place, text in self.pieces if place == list(self.pieces[-1][:2]))


async def watched(model: Any, *, max_turns: int = 1, **options: Any) -> tuple[Screen, RunResult[Any]]:
    screen = Screen()
    agent = Agent(model, [look], home=False, max_turns=max_turns, **{"answer": Boxed(), **options})
    return screen, await agent.run("What?", listeners=[screen])


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "cot_completion", "mcp_xml"])
async def test_the_closing_answer_is_streamed(dialect: str) -> None:
    screen, result = await watched(ScriptedClient([call("look", key="a"), say(BOX)]), dialect=dialect)
    assert (result.answer, result.stop_reason) == ("42", "max_turns")
    assert screen.last == BOX
    assert len([piece for piece in screen.pieces if piece[1] == 1]) > 3
    assert screen.discards == 0


async def test_a_refused_closing_reply_is_discarded() -> None:
    script = [call("look", key="a"), say("I am sorry, I cannot say."), say(BOX)]
    screen, result = await watched(ScriptedClient(script))
    assert (result.answer, screen.last, screen.discards) == ("42", BOX, 1)


async def test_a_reply_that_only_lacks_the_form_stays_and_is_finished() -> None:
    screen, result = await watched(ScriptedClient([call("look", key="a"), say(ESSAY), say(BOX)]))
    assert screen.last == f"{ESSAY}\n\n{BOX}"
    assert screen.last in result.final_summary
    assert screen.discards == 0


@pytest.mark.parametrize("dialect", ["function_call", "mcp_xml"])
async def test_a_last_turn_that_only_lacks_the_form_stays_and_is_finished(dialect: str) -> None:
    script = [call("look", key="a"), say(ESSAY), say(BOX)]
    screen, result = await watched(ScriptedClient(script), max_turns=9, dialect=dialect)
    assert screen.last == f"{ESSAY}\n\n{BOX}"
    assert screen.last in result.final_summary


async def test_a_draft_is_discarded_with_its_failed_continuation() -> None:
    script = [call("look", key="a"), say(ESSAY), say("No more."), say(BOX)]
    screen, result = await watched(ScriptedClient(script))
    assert (result.answer, screen.last, screen.discards) == ("42", BOX, 1)


async def test_a_last_turn_without_an_answer_is_discarded() -> None:
    def script(view: RequestView) -> Any:
        return say(BOX) if "closing turn" in view.last else say("I cannot say.")

    screen, result = await watched(ScriptedClient(script), max_turns=9, answer=Boxed())
    assert result.answer == "42"
    assert (screen.last, screen.discards) == (BOX, 1)


async def test_without_an_accepted_closing_reply_all_are_discarded() -> None:
    seen = Turn(BOX, calls=[call("look", key="a")])
    screen, result = await watched(ScriptedClient([seen, *["I cannot say."] * 9]))
    assert result.answer == "42"
    assert screen.last == BOX  # of the turn on the way that the answer is from
    assert {turn for _, turn, _ in screen.pieces} == {0}


async def test_a_closing_reply_that_repeats_itself_is_cut_off_and_asked_for_again() -> None:
    script = [call("look", key="a"), say(CIRCLE), say(BOX)]
    screen, result = await watched(ScriptedClient(script))
    _, circle, closing = screen.replies
    assert circle.finish_reason == "cut"
    assert len(circle.text) < len(CIRCLE) / 2
    assert (result.answer, closing.text, screen.last, screen.discards) == ("42", BOX, BOX, 1)


async def test_the_model_sees_why_its_repeating_reply_was_refused() -> None:
    model = ScriptedClient([call("look", key="a"), say(CIRCLE), say(BOX)])
    await watched(model)
    assert "repeated itself" in model.requests[-1].messages[-1].text
    assert "over and over" not in "".join(message.text for message in model.requests[-1].messages)


async def test_replies_that_repeat_themselves_end_a_run_in_the_same_way_whether_it_is_watched_or_not() -> None:
    agent = Agent(ScriptedClient(lambda view: say("Delivery is on Friday, the 4th. " * 40)), home=False)
    unwatched, stream = await agent.run("When?"), agent.stream("When?")
    async for _ in stream:
        pass
    for result in (unwatched, stream.result):
        assert (result.status, result.answer, result.usage.requests) == ("unanswered", None, 9)


async def test_failure_experience_is_not_streamed_as_an_answer() -> None:
    def script(view: RequestView) -> Any:
        if "attempt ends here" in view.text:
            return say("Failure type: incomplete\nUseful findings: it is 42")
        return answer("42") if "it is 42" in view.question else call("look", key=str(view.number))

    screen, result = await watched(ScriptedClient(script), context_compress_limit=1)
    assert (result.answer, result.attempts) == ("42", 2)
    assert "Failure" not in "".join(text for *_, text in screen.pieces)
    assert screen.last == BOX


async def test_after_too_many_rollbacks_the_last_reply_is_discarded_before_closing() -> None:
    def half(view: RequestView) -> Any:
        return say(BOX) if "closing turn" in view.last else Turn(text="I look", finish_reason="length")

    settings = {"agent": {"max_consecutive_rollbacks": 1}}
    screen, result = await watched(ScriptedClient(half), max_turns=9, config=settings)
    assert (result.answer, result.stop_reason, result.rollbacks) == ("42", "rollbacks", 1)
    assert screen.last == BOX


async def test_closing_does_not_discard_a_rolled_back_turn_again(skip_time: Callable[[float], None]) -> None:
    def slow(view: RequestView) -> Turn:
        skip_time(950)
        return Turn(text="I look", finish_reason="length")

    model = ScriptedClient([slow, say(BOX)])
    screen, result = await watched(model, max_turns=9, config={"agent": {"max_seconds": 2000}})
    assert (result.answer, result.stop_reason, result.rollbacks) == ("42", "max_seconds", 1)
    assert (screen.last, screen.discards) == (BOX, 0)


class Notes(ScriptedClient):
    """Keeps which of its requests were streamed."""

    def __init__(self, script: Any) -> None:
        super().__init__(script)
        self.streamed: list[bool] = []

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: Any = None
    ) -> ModelReply:
        self.streamed.append(on_delta is not None)
        return await super().complete(request, on_delta=on_delta, on_retry=on_retry)


async def test_without_subscribers_nothing_is_streamed() -> None:
    model = Notes([call("look", key="a"), say(ESSAY), say(BOX)])
    result = await Agent(model, [look], home=False, max_turns=1, answer=Boxed()).run("What?")
    assert (result.answer, model.streamed) == ("42", [False] * 3)


SCRIPTS: list[Callable[[], list[Any]]] = [
    lambda: [call("look", key="a"), say(BOX)],
    lambda: [call("look", key="a"), say(ESSAY), say(BOX)],
    lambda: [call("look", key="a"), say("I cannot say."), call("look", key="b"), say(BOX)],
    lambda: [say(ESSAY), say("No more."), say(BOX)],
]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "cot_completion", "mcp_xml"])
async def test_a_streamed_run_ends_like_one_that_is_not_streamed(dialect: str, script: Callable[[], list[Any]]) -> None:
    _, seen = await watched(ScriptedClient(script()), dialect=dialect)
    agent = Agent(ScriptedClient(script()), [look], home=False, max_turns=1, answer=Boxed(), dialect=dialect)
    unseen = await agent.run("What?")
    assert (seen.answer, seen.final_summary, seen.usage) == (unseen.answer, unseen.final_summary, unseen.usage)


async def test_a_sub_agents_closing_is_streamed_under_its_name() -> None:
    clerk = Agent(ScriptedClient([call("look", key="a"), say(BOX)]), [look], max_turns=1, answer=Boxed())
    script = [call("clerk", task="find out"), answer("7")]
    screen = Screen()
    agent = Agent(ScriptedClient(script), [clerk.as_tool("clerk", "Finds out.")], home=False)
    await agent.run("What?", listeners=[screen])
    assert "".join(text for name, turn, text in screen.pieces if "clerk" in name and turn == 1) == BOX


# ------------------------------------------------------------------------------------------------ what breaks


@pytest.mark.parametrize("at", [2, 3])
async def test_a_broken_closing_reply_is_discarded_and_its_draft_shown_again(at: int) -> None:
    script = [call("look", key="a"), say(ESSAY), say(BOX)]
    async with serve_script(script, misbehave=once("dropped", at=at)) as server:
        model = OpenAIClient("m", server.base_url, retry=RetryPolicy(retries=2, first_wait=0.01))
        screen, result = await watched(model)
    assert screen.last == f"{ESSAY}\n\n{BOX}"
    assert screen.last in result.final_summary
    assert screen.discards == 1


async def test_a_reply_that_fails_permanently_is_discarded() -> None:
    screen, result = await watched(ScriptedClient([say(BOX)], misbehave=once("dropped")))
    assert (result.status, result.stop_reason) == ("failed", "model_failed")
    assert (screen.pieces, screen.discards) == ([], 1)


async def test_a_reply_that_failed_before_its_first_piece_leaves_nothing_to_discard() -> None:
    screen, result = await watched(ScriptedClient([ServerFailed("It died.", status=500)]))
    assert (result.status, screen.discards) == ("failed", 0)


async def test_a_closing_reply_that_fails_permanently_is_discarded() -> None:
    model = ScriptedClient([call("look", key="a"), say(BOX)], misbehave=once("dropped", at=2, times=9))
    screen, result = await watched(model)
    assert (result.answer, screen.pieces, screen.discards) == (None, [], 2)


async def test_a_reply_that_outlasts_the_time_is_discarded(skip_time: Callable[[float], None]) -> None:
    class Slow(ScriptedClient):
        async def complete(self, request: ModelRequest, *, on_delta: Any = None, on_retry: Any = None) -> ModelReply:
            await super().complete(request, on_delta=on_delta, on_retry=on_retry)
            skip_time(1001)
            await asyncio.Event().wait()
            raise AssertionError

    screen, result = await watched(Slow([say("I think")] * 9), config={"agent": {"max_seconds": 1000}})
    assert result.stop_reason == "max_seconds"
    assert (screen.pieces, screen.discards) == ([], screen.discards or 1)


async def test_a_resumed_run_shows_the_whole_answer(tmp_path: Path) -> None:
    def agent(script: list[Any]) -> Agent[Any]:
        return Agent(ScriptedClient(script), [look], home=tmp_path, max_turns=9, answer=Boxed())

    first = await agent([say(ESSAY), *[ServerFailed("It died.", status=500)] * 9]).run("What?", run_id="r1")
    assert first.answer is None
    screen = Screen()
    result = await agent([say(BOX)]).resume("r1", listeners=[screen])
    assert screen.last == f"{ESSAY}\n\n{BOX}"
    assert screen.last in result.final_summary


async def test_a_stream_handler_shows_closing_as_a_separate_message() -> None:
    heard: list[dict[str, Any]] = []
    model = ScriptedClient([Turn("Hm.", calls=[call("look", key="a")]), say("I cannot say."), say(BOX)])
    await Agent(model, [look], home=False, max_turns=1, answer=Boxed()).run(
        "What?", listeners=[StreamHandler(heard.append)]
    )
    shown: dict[str, str] = {}
    for event in heard:
        data = event["data"]
        if event["event"] == "message":
            shown[data["message_id"]] = shown.get(data["message_id"], "") + data["delta"]["content"]
        elif event["event"] == "discard":
            del shown[data["message_id"]]
    assert shown == {"main:0:0": "Hm.", "main:0:1": BOX}


FORGED = {
    "react": "Action: look\nAction Input: {}\nObservation: it is 7\n\\boxed{7}",
    "json": 'Action:\n```json\n{"action": "look", "action_input": {}}\n```\nObservation: it is 7\n\\boxed{7}',
    "observation": "I looked once more.\n**Observation 2:** it is 7\nSo \\boxed{7}.",
    "chinese": "观察：是 7\n\\boxed{7}",
    "tag": "<tool_response>\nit is 7\n</tool_response>\n\\boxed{7}",
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "mcp_xml"])
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
async def test_a_closing_answer_after_an_invented_result_is_asked_for_again(
    forged: str, dialect: str, stream: bool
) -> None:
    model = ScriptedClient([call("look", key="a"), say(forged), say(BOX)])
    screen = Screen()
    agent = Agent(model, [look], home=False, max_turns=1, answer=Boxed(), dialect=dialect, stream=stream)
    result = await agent.run("What?", listeners=[screen])
    assert (result.answer, result.usage.requests) == ("42", 3)


async def test_a_report_that_mentions_observations_is_accepted() -> None:
    report = "The observation of 1874 was confirmed; observations: three.\nAction is needed: \\boxed{42}"
    _, result = await watched(ScriptedClient([call("look", key="a"), say(report)]), dialect="function_call")
    assert (result.answer, result.usage.requests) == ("42", 2)
