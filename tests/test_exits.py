"""Every exit of a run is a RunResult with the best answer and the usage, whatever tools, model or disk do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Boxed, Json, ModelReply, Number, RunResult, Yaml, tool
from closeout.errors import ContextOverflow, JournalFull, ServerFailed, ToolError
from closeout.journal import events as ev
from closeout.journal.store import Store, open_store
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, say
from closeout.tools.tool import Tool


@tool(read_only=True)
async def look(key: str) -> str:
    """Look up a key."""
    return f"the value of {key}"


SEEN = Turn("Let me make sure. It may be \\boxed{5}.", calls=[call("look", key="a")])


async def run(script: Any, tools: Sequence[Any] = (look,), question: str = "What?", **options: Any) -> RunResult:
    listeners = options.pop("listeners", ())
    agent = Agent(ScriptedClient(script), list(tools), **{"home": False, **options})
    return await agent.run(question, listeners=listeners)


# ------------------------------------------------------------------------------------------------ the model


async def test_a_model_that_dies_leaves_what_was_seen_and_what_it_cost() -> None:
    result = await run([SEEN, ServerFailed("gone", status=500)])
    assert (result.answer, result.status, result.stop_reason) == ("5", "answered", "model_failed")
    assert "gone" in result.error
    assert result.usage.total_tokens > 0


async def test_a_model_that_dies_without_an_answer_is_a_failed_run_with_its_experience() -> None:
    result = await run([call("look", key="a"), ServerFailed("gone", status=500)])
    assert (result.answer, result.status, result.stop_reason) == (None, "failed", "model_failed")
    assert result.failure_experience_summary is not None
    assert result.turns == 1


@pytest.mark.parametrize(("seen", "ended"), [(SEEN, "5"), (call("look", key="a"), None)])
async def test_a_model_that_dies_while_closing(seen: Any, ended: str | None) -> None:
    def script(view: RequestView) -> Any:
        return ServerFailed("gone", status=500) if "closing turn" in view.text else seen

    result = await run(script, max_turns=1)
    assert result.answer == ended
    assert (result.status, result.stop_reason) == (("answered", "max_turns") if ended else ("failed", "model_failed"))
    assert ended or "gone" in result.error


async def test_a_model_whose_replies_are_all_cut_off_is_named_as_the_cause_also_after_rollbacks() -> None:
    reply = ModelReply("", finish_reason="malformed_call")
    result = await run(lambda view: reply)
    assert (result.status, result.stop_reason, result.error_kind) == ("failed", "model_failed", "ServerFailed")
    assert "malformed_call" in result.error


@pytest.mark.parametrize(("lines", "reason"), [(1, "max_turns"), (3000, "context_overflow")])
async def test_turns_leave_a_full_context_and_a_result_that_fills_it_alone_is_closed(lines: int, reason: str) -> None:
    @tool(read_only=True)
    def page(key: str) -> str:
        """Read a page."""
        return f"A line of {key}.\n" * lines

    def script(view: RequestView) -> Any:
        if len(view.text) > 12_000:
            return ContextOverflow("maximum context length is 3000 tokens", status=400)
        if "closing turn" in view.text:
            return answer("short")
        return Turn("I think. " * 200, calls=[call("page", key=f"k{view.number}")])

    result = await run(script, [page])
    assert (result.answer, result.stop_reason) == ("short", reason)


async def test_a_question_longer_than_the_context_is_a_failed_run_that_says_so() -> None:
    def script(view: RequestView) -> Any:
        return ContextOverflow("The prompt is longer than the model's context.", status=400)

    result = await run(script, question="长" * 1_000_000)
    assert (result.answer, result.status, result.stop_reason) == (None, "failed", "context_overflow")
    assert "longer than" in result.error


async def test_a_question_of_a_megabyte_is_a_question() -> None:
    result = await run([call("look", key="a"), answer("42")], question="哪条运河最长？" * 50_000)
    assert result.answer == "42"


async def test_fifty_calls_in_one_reply_are_all_answered() -> None:
    calls = [call("look", key=f"k{n}") for n in range(50)]
    client = ScriptedClient([Turn(calls=calls), answer("42")])
    result = await Agent(client, [look], home=False).run("What?")
    assert result.answer == "42"
    assert [m.text for m in client.requests[1].messages if m.role == "tool"] == [
        f"the value of k{n}" for n in range(50)
    ]


@pytest.mark.parametrize(
    "name", ["", " ", "look\n\x00", "../look", "看", "lo\ud800ok", "x" * 100_000, "look}; DROP TABLE", "<look>"]
)
async def test_a_call_by_an_unknown_name_gets_the_list_of_tools(name: str) -> None:
    result = await run([call(name, key="a"), answer("42")])
    assert result.answer == "42"


async def test_an_agent_without_tools_answers_or_is_asked_to() -> None:
    assert (await run([answer("4")], [])).answer == "4"
    assert (await run([say("It is four."), answer("4")], [], answer=Boxed())).answer == "4"
    assert (await run([call("look", key="a"), answer("4")], [])).answer == "4"


async def test_surrogates_nul_and_chinese_pass_everywhere(home: Path) -> None:
    odd = "长江\ud800\x00🚀 \\u0000"

    @tool(read_only=True)
    async def echo(text: str) -> dict[str, Any]:
        """回声。"""
        return {"文本": text, "x": odd, "y": [odd] * 3}

    script = [Turn(f"想一想 {odd}", calls=[call("echo", text=odd)], reasoning=odd), answer("长江")]
    result = await run(script, [echo], question=f"最长的河？{odd}", home=home)
    assert result.answer == "长江"
    again = await Agent(ScriptedClient([]), [echo], home=home).resume(result.run_id)
    assert (again.answer, again.turns) == ("长江", 2)
    json.dumps(result.to_dict())
    assert result.task_log.to_json()


@pytest.mark.parametrize(
    ("reply", "options"),
    [
        ("caf\ud83d", {}),
        ("\\boxed{caf\ud83d}", {"answer": Boxed()}),
        ('{"name": "caf\\ud83d"}', {"answer": Json()}),
        ('name: "caf\\ud83d"', {"answer": Yaml()}),
        ('Action: {"action": "Final Answer", "action_input": "caf\\ud83d"}', {"dialect": "cot_chat"}),
    ],
)
async def test_half_of_an_emoji_in_an_answer_is_replaced(reply: str, options: dict[str, Any], tmp_path: Path) -> None:
    result = await Agent(ScriptedClient([say(reply)]), **options).run("Which word?")
    (tmp_path / "answer").write_text(f"{result.answer} {result.value} {result.final_summary}", "utf-8")
    assert "caf\ufffd" in str(result.value)


# ------------------------------------------------------------------------------------------------ the tools


class Unfriendly(BaseException):
    pass


@pytest.mark.parametrize(
    "raised",
    [
        ValueError("bad"),
        Unfriendly("bad"),
        SystemExit(3),
        ToolError("bad"),
        MemoryError(),
        StopAsyncIteration(),
    ],
)
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("threaded", [False, True])
async def test_a_tool_that_raises_anything_is_a_result(raised: BaseException, parallel: bool, threaded: bool) -> None:
    if threaded:

        @tool
        def burst(key: str) -> str:
            """Burst."""
            raise raised
    else:

        @tool
        async def burst(key: str) -> str:
            """Burst."""
            raise raised

    calls = [call("burst", key="a"), *([call("look", key="b")] if parallel else [])]
    result = await run([Turn(calls=calls), answer("42")], [burst, look])
    assert (result.answer, result.turns) == ("42", 2)


async def test_a_tool_that_cancels_itself_is_a_result_and_no_cancellation_of_the_run() -> None:
    @tool
    async def stop(key: str) -> str:
        """Stop."""
        raise asyncio.CancelledError

    assert (await run([call("stop", key="a"), answer("42")], [stop])).answer == "42"


def cyclic() -> Any:
    value: dict[Any, Any] = {}
    value["self"] = value
    return value


def deep() -> Any:
    value: Any = "bottom"
    for _ in range(20_000):
        value = [value]
    return value


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


@pytest.mark.parametrize(
    "make",
    [
        lambda: object(), lambda: {(1, 2): {3: b"\xff"}}, lambda: {1, "a"}, cyclic, deep, lambda: float("nan"), Odd,
        lambda: {"x": Odd()}, lambda: lambda: None, lambda: (n for n in range(3)), lambda: 10**5000, lambda: None,
        lambda: "长" * 10_000_000, lambda: b"\x00\xff" * 1000, lambda: [Odd()] * 3, lambda: Exception("as a value"),
    ],
)  # fmt: skip
async def test_a_tool_that_returns_anything_gives_a_result_of_bounded_size(make: Any, home: Path) -> None:
    @tool(read_only=True)
    async def give(key: str):  # type: ignore[no-untyped-def]  # what is returned is the point
        """Give something."""
        return make()

    client = ScriptedClient([call("give", key="a"), answer("42")])
    result = await Agent(client, [give], home=home).run("What?")
    assert (result.answer, result.status) == ("42", "answered")
    assert all(len(message.text) < 60_000 for message in client.requests[-1].messages)
    again = await Agent(ScriptedClient([]), [give], home=home).resume(result.run_id)
    assert again.answer == "42"


async def test_a_value_that_is_missing_is_shown_as_null_and_not_as_a_tool_without_a_result() -> None:
    for value, shown in ((float("nan"), "null"), (Decimal("NaN"), "null"), (None, "no result")):

        @tool(read_only=True)
        def give() -> Any:
            """Give something."""
            return value  # noqa: B023  called in this round

        client = ScriptedClient([call("give"), answer("42")])
        await Agent(client, [give], home=False).run("What?")
        assert client.requests[-1].messages[-1].text == shown


async def test_a_tool_that_changes_its_arguments_changes_nothing_but_its_own(home: Path) -> None:
    def scribble(**arguments: Any) -> str:
        arguments["items"].append("scribbled")
        arguments["more"]["x"] = "scribbled"
        arguments.clear()
        return "done"

    schema = {"type": "object", "properties": {"items": {"type": "array"}, "more": {"type": "object"}}}
    raw = Tool(scribble, name="scribble", description="Scribbles.", parameters=schema, inline=True)

    @tool(inline=True)
    def typed(items: list[str], more: dict[str, str]) -> str:
        """Scribbles too."""
        items.append("scribbled")
        more["x"] = "scribbled"
        return "done"

    given = {"items": ["a"], "more": {"y": "b"}}
    client = ScriptedClient([call("scribble", **given), call("typed", **given), answer("42")])
    seen: list[Any] = []
    result = await Agent(client, [raw, typed], home=home).run("What?", listeners=[seen.append])
    assert result.answer == "42"
    accepted = [event for event in seen if isinstance(event, ev.TurnAccepted)]
    assert [dict(event.calls[0]["arguments"]) for event in accepted] == [given, given]
    assert "scribbled" not in json.dumps(list(client.requests[-1].messages))
    assert (await Agent(ScriptedClient([]), [raw, typed], home=home).resume(result.run_id)).answer == "42"


# ---------------------------------------------------------------------------------------- listeners and contracts


async def test_a_listener_that_fails_is_noted_and_the_run_continues() -> None:
    heard: list[Any] = []

    def fails(event: object) -> None:
        if isinstance(event, ev.ToolFinished):
            raise RuntimeError("my own bug")
        heard.append(event)

    others: list[Any] = []
    result = await run([call("look", key="a"), answer("42")], listeners=[fails, others.append])
    assert result.answer == "42"
    assert not any(isinstance(event, ev.RunEnded) for event in heard), "it receives no more events"
    assert isinstance(others[-1], ev.RunEnded)
    notes = [event for event in others if isinstance(event, ev.Noted)]
    assert ["my own bug" in note.message for note in notes] == [True]


async def test_a_listener_that_fails_at_once_is_no_different() -> None:
    def fails(event: object) -> None:
        raise RuntimeError("at once")

    assert (await run([answer("42")], listeners=[fails])).answer == "42"


async def test_an_async_callback_is_reported_once() -> None:
    class Waits:
        async def __call__(self, event: object) -> None:
            raise AssertionError("never called")

        def close(self) -> None: ...

    class PerRun:
        def for_run(self, run: object) -> Waits:
            return Waits()

    others: list[Any] = []
    assert (await run([call("look", key="a"), answer("42")], listeners=[others.append, PerRun()])).answer == "42"
    (note,) = [event.message for event in others if isinstance(event, ev.Noted)]
    assert "a callback must be a plain function, and this one is async" in note


async def test_an_error_in_a_custom_contract_is_a_failed_run_with_its_trace() -> None:
    class Broken(Number):
        def read(self, text: str) -> Any:
            raise ZeroDivisionError("in the contract")

    seen: list[Any] = []
    result = await run([answer("42")], answer=Broken(), listeners=[seen.append])
    assert (result.status, result.stop_reason) == ("failed", "failed")
    assert "ZeroDivisionError: in the contract" in result.error
    trace = next(event for event in seen if isinstance(event, ev.Noted) and event.level == "error")
    assert "def read" in trace.metadata["traceback"] or "in read" in trace.metadata["traceback"]
    assert result.usage.requests == 1


# ------------------------------------------------------------------------------------------------ the journal


class Filling(Store):
    """A disk that is full once a run has written so many events."""

    room = 10**9
    victim = -1

    def _write(self, batch: Any, *more: Any, **options: Any) -> bool:
        if any(seq >= self.room for seq, *_ in batch.events.get(self.victim, ())):
            raise JournalFull("The disk that holds the journal is full.")
        return super()._write(batch, *more, **options)


@pytest.mark.parametrize("room", [3, 6, 9, 11])
async def test_a_disk_that_fills_in_the_middle_fails_that_run_and_keeps_its_best_answer(home: Path, room: int) -> None:
    store = open_store(home, make=Filling)
    assert isinstance(store, Filling)
    before = await run([answer("1")], home=home)
    store.room, store.victim = room, 2
    result = await run([SEEN, call("look", key="b"), answer("42")], home=home)
    assert (result.status, result.stop_reason) == ("failed", "journal_failed")
    assert "full" in result.error
    assert result.answer in {None, "5", "42"}
    assert result.answer is not None or room < 9
    assert result.usage.requests >= 1, "what happened is counted although it could not be recorded"
    store.room = 10**9
    assert (await run([answer("1")], home=home)).status == "answered"
    assert store.run(before.run_id).status == "answered"


async def test_a_run_that_lost_its_disk_can_be_resumed_later(home: Path) -> None:
    store = open_store(home, make=Filling)
    assert isinstance(store, Filling)
    store.room, store.victim = 8, 1
    script = [call("look", key="a"), call("look", key="b"), answer("42")]
    cut = await run(script, home=home)
    assert cut.stop_reason == "journal_failed"
    store.room = 10**9
    turn = {0: script[0], 1: script[1], 2: script[2]}

    def by_results(view: RequestView) -> Any:
        return turn[sum(message["role"] == "tool" for message in view.messages)]

    result = await Agent(ScriptedClient(by_results), [look], home=home).resume(cut.run_id)
    assert (result.answer, result.turns) == ("42", 3)


# ------------------------------------------------------------------------------------------------ which answer


async def test_the_answer_is_the_last_one_or_by_vote_the_most_frequent() -> None:
    def thought(value: str, key: str) -> Turn:
        return Turn(f"It may be \\boxed{{{value}}}.", calls=[call("look", key=key)])

    script = [thought("7", "a"), thought("7", "b"), thought("7.0", "c"), answer("8")]
    last = await run(script, answer=Number())
    assert (last.answer, last.value) == ("8", 8)
    vote = await run(script, answer=Number(), config={"agent": {"answer_selection": "vote"}})
    assert (vote.answer, vote.value) == ("7", 7), "its value is of the contract's type"
    assert vote.candidates[0][0] == "7"
    assert sum(share for _, share in vote.candidates) == pytest.approx(1, abs=0.01)


async def test_an_answer_seen_on_the_way_keeps_its_contracts_type() -> None:
    script = [Turn("\\boxed{1,234} perhaps", calls=[call("look", key="a")]), ServerFailed("gone", status=500)]
    result = await run(script, answer=Number())
    assert (result.status, result.value) == ("answered", 1234)


# ------------------------------------------------------------------------------------------------ cancelling


@pytest.mark.parametrize("kind", [ev.ModelRequested, ev.ToolStarted, ev.TurnAccepted])
async def test_cancelling_at_any_moment_ends_the_run_and_frees_it(home: Path, kind: type[ev.Event]) -> None:
    reached = asyncio.Event()

    @tool(read_only=True)
    async def slow(key: str) -> str:
        """Slow."""
        await asyncio.sleep(0.01)
        return key

    def listen(event: object) -> None:
        if isinstance(event, kind):
            reached.set()

    turns = {0: call("slow", key="a"), 1: call("slow", key="b"), 2: answer("42")}
    client = ScriptedClient(lambda view: turns[sum(m["role"] == "tool" for m in view.messages)])
    agent = Agent(client, [slow], home=home)
    task = asyncio.create_task(agent.run("What?", run_id="cut", listeners=[listen]))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert open_store(home).run("cut").status == "cancelled"
    assert (await agent.resume("cut")).answer == "42"
