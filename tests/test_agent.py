"""The agent against a scripted model over real HTTP: it answers, closes, rolls back, keeps its budgets, and resumes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Boxed, Choice, Json, Number, RunResult, StreamHandler, Yaml, tool
from closeout.codec import shared_prefix
from closeout.errors import (
    ConfigError,
    ModelError,
    PermanentModelError,
    ResumeRefused,
    ToolDefinitionError,
    UsageError,
)
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.journal.subscribers import Progress
from closeout.messages import ModelReply, ModelRequest
from closeout.run.lifecycle import replay_run
from closeout.run.loops import POLLS
from closeout.testing import (
    MISBEHAVIOURS,
    RequestView,
    ScriptedClient,
    ScriptedServer,
    Turn,
    answer,
    call,
    once,
    say,
    serve_script,
)

DIALECTS = ("function_call", "cot_chat", "cot_completion", "mcp_xml")


@dataclass
class World:
    """A scripted server, an agent that speaks to it, and what its tools did."""

    server: ScriptedServer
    agent: Agent
    looked: list[str]
    paid: list[int]
    tools: Sequence[Callable[..., Any]]

    async def run(self, task: str = "What?", **options: Any) -> RunResult:
        return await self.agent.run(task, **options)


@asynccontextmanager
async def world(
    script: Any, *, server: dict[str, Any] | None = None, tools: Sequence[Callable[..., Any]] = (), **agent: Any
) -> AsyncIterator[World]:
    looked: list[str] = []
    paid: list[int] = []

    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key.

        Args:
            key: the key
        """
        looked.append(key)
        return f"the value of {key} is {len(key)}"

    @tool
    async def pay(amount: int) -> str:
        """Pay an amount."""
        paid.append(amount)
        return f"paid {amount}"

    async with serve_script(script, **(server or {})) as scripted:
        options = {"base_url": scripted.base_url, "api_key": "k", "dialect": "function_call", **agent}
        own = [look, pay, *tools]
        yield World(scripted, Agent("openai:scripted", own, **{"answer": Boxed(), **options}), looked, paid, own)


def events_of(result: RunResult, home: Path) -> list[ev.Event]:
    return [row.event for row in open_store(home).rows(result.run_id)]


def kinds(events: Sequence[ev.Event], kind: type[ev.Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


# ------------------------------------------------------------------------------------------------ answering


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_same_conversation_in_every_dialect(dialect: str, stream: bool) -> None:
    script = [call("look", key="a"), call("look", key="bb"), answer("42", "All is known.")]
    async with world(script, dialect=dialect, stream=stream) as w:
        result = await w.run()
    assert (result.answer, result.status, result.stop_reason) == ("42", "answered", "answered")
    assert (w.looked, result.turns, result.usage.requests, result.rollbacks) == (["a", "bb"], 3, 3, 0)
    assert result.usage.output_tokens > 0


async def test_a_task_that_needs_no_tool_costs_one_request() -> None:
    async with world([answer("4")]) as w:
        result = await w.run("What is 2 + 2?")
    assert (result.answer, result.usage.requests, result.turns) == ("4", 1, 1)


async def test_calls_of_one_reply_run_together_and_keep_their_order() -> None:
    async with world([Turn(calls=[call("look", key="one"), call("look", key="three")]), answer("x")]) as w:
        await w.run()
    messages = w.server.requests[1].json["messages"]
    assert [m["content"] for m in messages if m["role"] == "tool"] == [
        "the value of one is 3",
        "the value of three is 5",
    ]


async def test_the_record_of_a_result_claims_no_tokens_that_are_counted_only_when_it_is_shown(home: Path) -> None:
    async with world([call("look", key="a"), answer("x")]) as w:
        result = await w.run()
    events = events_of(result, home)
    (finished,), (accepted,) = kinds(events, ev.ToolFinished), kinds(events, ev.TurnAccepted)
    telemetry = json.loads(finished.record)["telemetry"]
    assert telemetry["tool_name"] == "look"
    assert not {name for name in telemetry if name.endswith("tokens")}
    assert accepted.returns[0]["tokens"] > 0


async def test_an_answer_that_only_lacks_its_box_is_finished_by_a_short_continuation() -> None:
    async with world([say("It is forty-two."), answer("42")]) as w:
        result = await w.run()
    assert (result.answer, result.usage.requests) == ("42", 2)
    last = w.server.requests[1].json["messages"][-2:]
    assert last[0]["content"] == "It is forty-two."
    assert len(last[1]["content"]) < 160


async def test_a_reply_that_only_announces_a_call_is_asked_to_make_it() -> None:
    async with world([say("Let me search for that."), call("look", key="a"), answer("1")]) as w:
        result = await w.run()
    assert (result.answer, result.rollbacks, w.looked) == ("1", 1, ["a"])


@pytest.mark.parametrize(
    ("contract", "said", "value"),
    [
        (Number(), r"\boxed{1,234}", 1234),
        (Choice(["yes", "no"]), r"\boxed{Yes}", "yes"),
        (Json({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}), '{"n": 3}', {"n": 3}),
    ],
)
async def test_an_answer_contract_is_asked_for_and_read(contract: Any, said: str, value: Any) -> None:
    async with world([say(said)], answer=contract) as w:
        result = await w.run()
    assert (result.status, result.value) == ("answered", value), result
    assert contract.instruction() in json.dumps(w.server.requests[0].json["messages"][0], ensure_ascii=False).replace(
        "\\\\", "\\"
    ).replace('\\"', '"')


# ------------------------------------------------------------------------------------------------ the prompt


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "mcp_xml"])
async def test_each_request_extends_the_one_before_byte_for_byte(dialect: str) -> None:
    script = [*[call("look", key="k" * n) for n in range(1, 9)], answer("x")]
    async with world(script, dialect=dialect) as w:
        await w.run()
    bodies = [request.body for request in w.server.requests]
    for before, after in pairwise(bodies):
        end = before.rfind(b"]")
        assert shared_prefix(before, after) >= before.rfind(b"}", 0, end), "only what closes the body may differ"


async def test_a_completion_prompt_extends_the_one_before() -> None:
    script = [*[call("look", key="k" * n) for n in range(1, 6)], answer("x")]
    async with world(script, dialect="cot_completion") as w:
        await w.run()
    prompts = [request.json["prompt"] for request in w.server.requests]
    assert len(prompts) == 6
    assert all(after.startswith(before) for before, after in pairwise(prompts))


async def test_an_endpoint_that_takes_text_only_is_never_asked_in_chat() -> None:
    script = [call("look", key="a"), say("It is seven."), answer("7")]
    async with world(script, dialect="cot_completion") as w:
        result = await w.run()
    assert result.answer == "7"
    assert {request.path for request in w.server.requests} == {"/v1/completions"}
    assert "It is seven." in w.server.requests[-1].json["prompt"]


async def test_the_prompt_holds_no_clock_no_counter_and_no_random_id(home: Path) -> None:
    script = [call("look", key="a"), answer("x")]
    bodies = []
    for _ in range(2):
        async with world(script) as w:
            await w.run()
            bodies.append([request.json["messages"] for request in w.server.requests])
    assert bodies[0] == bodies[1]


# ------------------------------------------------------------------------------------------------ rolling back


async def test_a_rollback_changes_the_request_and_leaves_no_trace_in_the_history(home: Path) -> None:
    async with world([say(""), say(""), call("look", key="a"), answer("x")], config={"llm": {"temperature": 0}}) as w:
        result = await w.run()
    first, second, third, fourth = (request.json for request in w.server.requests)
    assert first["temperature"] == second["temperature"] == 0
    assert third["temperature"] > 0
    assert "empty" in second["messages"][-1]["content"]
    assert fourth["messages"][: len(first["messages"])] == first["messages"]
    assert "empty" not in json.dumps(fourth["messages"])
    backs = kinds(events_of(result, home), ev.TurnRolledBack)
    assert [b.reason for b in backs] == ["empty", "empty"]
    assert backs[1].change == "hint, temperature 0.2"
    assert result.usage.requests == 4


async def test_a_repeated_call_is_rolled_back_and_allowed_once_the_budget_is_spent() -> None:
    script = [call("look", key="a")] * 4 + [answer("x")]
    async with world(script, config={"agent": {"max_consecutive_rollbacks": 2}}) as w:
        result = await w.run()
    assert result.answer == "x"
    assert result.rollbacks == 2
    assert w.looked == ["a"], "the earlier result was given again at no cost"


async def test_siblings_of_a_bad_call_are_kept_and_not_run_again() -> None:
    both = Turn(calls=[call("look", key="a"), call("no_such_thing", key="b"), call("pay", amount=3)])
    async with world([both, answer("x")]) as w:
        result = await w.run()
    assert (result.answer, w.looked, w.paid, result.rollbacks) == ("x", ["a"], [3], 0)
    results = [m["content"] for m in w.server.requests[1].json["messages"] if m["role"] == "tool"]
    assert "no_such_thing" in results[1]


async def test_too_many_rollbacks_close_the_attempt_with_an_answer_if_there_is_one() -> None:
    script = lambda view: answer("7") if "closing turn" in view.last else say("")  # noqa: E731
    async with world(script, config={"agent": {"max_consecutive_rollbacks": 3}}) as w:
        result = await w.run()
    assert (result.answer, result.stop_reason, result.rollbacks) == ("7", "rollbacks", 3)


async def test_going_in_circles_gets_a_hint_and_then_a_closing_turn() -> None:
    @tool(read_only=True, repeatable=True)
    async def poll(what: str) -> str:
        """Poll something."""
        return "nothing new"

    def script(view: RequestView) -> Turn:
        if "closing turn" in view.last:
            return answer("nothing")
        return Turn(calls=[call("poll", what=f"thing {view.number % 2}")])

    async with world(script, tools=[poll]) as w:
        result = await w.run()
    assert (result.answer, result.stop_reason) == ("nothing", "loop")
    assert result.turns == 2 * POLLS, "once a hint, then the end"
    hinted = [r for r in w.server.requests if "Do something else" in json.dumps(r.json["messages"][-1])]
    assert len(hinted) == 1


async def test_an_answer_after_an_invented_observation_is_not_accepted() -> None:
    made_up = "I looked.\nObservation: it is 13\nSo \\boxed{13}"
    async with world([say(made_up), call("look", key="a"), answer("1")]) as w:
        result = await w.run()
    assert (result.answer, result.rollbacks) == ("1", 1)


# ------------------------------------------------------------------------------------------------ attempts, limits


async def test_a_turn_limit_ends_with_one_closing_turn() -> None:
    script = [call("look", key="a"), call("look", key="b"), answer("late")]
    async with world(script, max_turns=2) as w:
        result = await w.run()
    assert (result.answer, result.stop_reason, result.status) == ("late", "max_turns", "answered")
    closing = w.server.requests[2].json
    assert closing["tool_choice"] == "none"
    assert w.looked == ["a", "b"]


async def test_further_attempts_start_from_what_the_ones_before_learned(home: Path) -> None:
    """Nine turns are needed and an attempt has four; with two more attempts the run ends answered."""
    needed = [f"key {n}" for n in range(8)]

    def script(view: RequestView) -> Turn | str:
        if "This attempt ends here" in view.text:
            known = [key for key in needed if f"the value of {key} is" in view.text or f"known: {key}." in view.text]
            return "Failure type: incomplete\nUseful findings:\n" + "\n".join(f"known: {key}." for key in known)
        left = [k for k in needed if f"the value of {k} is" not in view.text and f"known: {k}." not in view.text]
        return Turn(calls=[call("look", key=left[0])]) if left else answer("complete")

    async with world(script, max_turns=4, context_compress_limit=2) as w:
        result = await w.run("Look up all the keys.")
    assert (result.answer, result.status, result.attempts) == ("complete", "answered", 3)
    assert w.looked == needed, "no look-up was made twice"
    events = events_of(result, home)
    assert [e.reason for e in kinds(events, ev.AttemptEnded)] == ["max_turns", "max_turns", "answered"]
    learned = kinds(events, ev.AttemptStarted)[2].experiences[0]
    assert "known: key 0." in learned
    assert "known: key 7." in learned


async def test_without_an_answer_the_run_leaves_experience() -> None:
    script = lambda view: "Failure type: blocked\nWhat happened: nothing worked" if view.number > 1 else say("")  # noqa: E731
    async with world(script, context_compress_limit=0, config={"agent": {"max_consecutive_rollbacks": 0}}) as w:
        result = await w.run()
    assert (result.answer, result.status) == (None, "unanswered")
    assert result.failure_experience_summary


@pytest.mark.parametrize(
    ("limit", "reason"), [({"max_tokens": 2500}, "max_tokens"), ({"max_seconds": 1000}, "max_seconds")]
)
async def test_a_budget_ends_with_a_closing_turn_within_its_reserve(
    limit: dict[str, Any], reason: str, skip_time: Callable[[float], None]
) -> None:
    def script(view: RequestView) -> Turn:
        key = hashlib.sha256(str(view.number).encode()).hexdigest()
        return answer("so far") if "closing turn" in view.last else Turn(calls=[call("wait", key=key)])

    @tool(read_only=True)
    async def wait(key: str) -> str:
        """Wait a moment.

        Args:
            key: what for
        """
        skip_time(100)
        return f"waited for {key}"

    async with world(script, tools=[wait], config={"agent": limit}, max_turns=5000) as w:
        result = await w.run()
    assert result.answer == "so far"
    assert result.stop_reason == reason
    if reason == "max_tokens":
        assert result.usage.total_tokens <= 2500


async def test_an_answer_seen_on_the_way_is_better_than_none() -> None:
    thought = Turn(thought="It may be \\boxed{5}, let me make sure.", calls=[call("look", key="a")])
    script = lambda view: thought if view.number == 1 else say("")  # noqa: E731
    async with world(script, config={"agent": {"max_consecutive_rollbacks": 1}}) as w:
        result = await w.run()
    assert (result.answer, result.status) == ("5", "answered")


# ------------------------------------------------------------------------------------------------ bad days


async def test_an_unreachable_model_is_a_result_and_not_an_exception() -> None:
    agent = Agent("openai:x", base_url="http://127.0.0.1:9/v1", api_key="k", config={"llm": {"max_retries": 0}})
    result = await agent.run("What?")
    assert (result.status, result.answer, result.stop_reason) == ("failed", None, "model_failed")
    assert "127.0.0.1:9" in result.error


@pytest.mark.parametrize(
    ("status", "kind", "permanent"),
    [(401, "AuthenticationFailed", True), (404, "ModelNotFound", True), (400, "BadRequest", True),
     (503, "ServerFailed", False), (429, "RateLimited", False)],
)  # fmt: skip
async def test_a_failed_run_says_what_kind_of_failure_it_was(
    status: int, kind: str, permanent: bool, home: Path
) -> None:
    def refuse(view: RequestView) -> Turn:
        raise ModelError("No.", status=status)

    async with world(refuse, config={"llm": {"max_retries": 0}}) as w:
        result = await w.run()
    (ended,) = kinds(events_of(result, home), ev.RunEnded)
    assert (result.status, result.stop_reason) == ("failed", "model_failed")
    assert (result.error_kind, ended.error_kind, result.permanent) == (kind, kind, permanent)
    assert result.failure is not None
    assert (result.failure.status, ended.permanent) == (status, permanent)
    assert type(result.failure.exception).__name__ == kind


async def test_a_run_that_goes_well_has_no_failure() -> None:
    async with world([answer("4")]) as w:
        result = await w.run()
    assert (result.failure, result.error, result.error_kind, result.permanent) == (None, "", "", False)


async def test_an_exception_of_a_client_reaches_the_result_and_is_rebuilt_from_the_record(home: Path) -> None:
    """A client's own subclass is permanent because its base class is, in this process and in a replay."""

    class OutOfCredit(PermanentModelError):
        pass

    raised = OutOfCredit("No credit left.", status=402)

    def refuse(request: ModelRequest) -> ModelReply:
        raise raised

    agent = Agent(ScriptedClient(refuse), home=home)
    result = await agent.run("What?")
    assert result.failure is not None
    assert result.failure.exception is raised
    again = pickle.loads(pickle.dumps(result))
    assert (again.error, again.failure, again.usage) == (result.error, result.failure, result.usage)
    assert again.task_log.to_dict() == result.task_log.to_dict()
    (failed,) = kinds(events_of(result, home), ev.ModelFailed)
    rebuilt = failed.failure().to_exception()
    assert isinstance(rebuilt, PermanentModelError)
    assert (str(rebuilt), rebuilt.status) == ("No credit left.", 402)


@pytest.mark.parametrize("kind", [k for k in MISBEHAVIOURS if k not in ("hang", "slow", "rate_limited")])
async def test_every_fault_once_still_ends_with_the_answer(kind: str) -> None:
    script = [call("look", key="a"), call("look", key="b"), answer("42")]
    from closeout import OpenAIClient
    from closeout.models.retry import RetryPolicy

    async with serve_script(script, misbehave=once(kind)) as server:
        client = OpenAIClient("scripted", server.base_url, "k", retry=RetryPolicy(first_wait=0.001))

        @tool(read_only=True)
        async def look(key: str) -> str:
            """Look up a key."""
            return f"the value of {key}"

        result = await Agent(client, [look], dialect="function_call", answer=Boxed()).run("What?")
        await client.aclose()
    assert result.answer == "42"


async def test_a_server_that_takes_no_tools_is_spoken_to_in_text_and_remembered() -> None:
    script = [call("look", key="a"), answer("1")]
    async with world(script, dialect="auto", server={"native_tools": False}) as w:
        first = await w.run()
        requests = len(w.server.requests)
        again = Agent("openai:scripted", list(w.tools), base_url=w.server.base_url, api_key="k2")
        second = await again.run("What?")
        later = len(w.server.requests) - requests
    assert (first.answer, second.answer) == ("1", "1")
    assert later <= requests


async def test_a_context_that_overflows_is_shrunk_and_asked_again() -> None:
    @tool(read_only=True)
    async def page(number: int) -> str:
        """Read a page."""
        return f"page {number}: " + "word " * 800

    refused = []

    def script(view: RequestView) -> Any:
        if len(view.text) > 9000:
            refused.append(len(view.text))
            from closeout.errors import ContextOverflow

            return ContextOverflow("maximum context length is 2000 tokens", status=400)
        return answer("read") if "page 3:" in view.text else Turn(calls=[call("page", number=view.turn)])

    async with world(script, tools=[page]) as w:
        result = await w.run()
    assert refused
    assert result.answer == "read"


# ------------------------------------------------------------------------------------------------ watching


async def test_a_stream_tells_names_thoughts_and_answer_while_they_are_written() -> None:
    script = [Turn("First I look.", calls=[call("look", key="abc")]), answer("42", "Known.")]
    async with world(script) as w:
        stream = w.agent.stream("What?")
        seen = [event async for event in stream]
    progress = [e for e in seen if isinstance(e, Progress)]
    assert "".join(p.text for p in progress if p.kind == "tool_arguments") == '{"key":"abc"}'.replace(":", ": ") or (
        "abc" in "".join(p.text for p in progress if p.kind == "tool_arguments")
    )
    assert [p.text for p in progress if p.kind == "tool_name"] == ["look"]
    assert "First I look." in "".join(p.text for p in progress if p.kind in ("text", "thought"))
    assert isinstance(seen[0], ev.RunStarted)
    assert isinstance(seen[-1], ev.RunEnded)
    assert stream.result.answer == "42"


async def test_a_stream_has_listeners_too() -> None:
    heard: list[Any] = []
    async with world([answer("42")]) as w:
        streamed = [event async for event in w.agent.stream("What?", listeners=[heard.append])]
    assert heard == streamed
    assert any(isinstance(event, ev.RunEnded) for event in heard)


async def test_a_stream_is_one_run() -> None:
    async with world([answer("42")]) as w:
        stream = w.agent.stream("What?")
        _ = [event async for event in stream]
        with pytest.raises(UsageError, match="can be iterated only once"):
            _ = [event async for event in stream]
        assert len(w.server.requests) == 1
    assert stream.result.answer == "42"


async def test_breaking_off_a_stream_cancels_the_run(home: Path) -> None:
    async with world([call("look", key="a")] * 50, max_turns=50) as w:
        stream = w.agent.stream("What?")
        async for event in stream:
            if isinstance(event, ev.ToolFinished):
                break
        await asyncio.sleep(0.05)
    with pytest.raises(UsageError, match="has not ended"):
        _ = stream.result


async def test_a_stream_handler_hears_the_whole_run() -> None:
    heard: list[dict[str, Any]] = []
    async with world([call("look", key="a"), answer("42")]) as w:
        await w.run(listeners=[StreamHandler(heard.append)])
    names = [event["event"] for event in heard]
    assert names[0] == "start_of_workflow"
    assert names[-2:] == ["end_of_agent", "end_of_workflow"]
    assert {"start_of_agent", "start_of_llm", "end_of_llm", "tool_call", "message"} <= set(names)


async def test_a_stream_queue_that_is_full_never_disturbs_the_run() -> None:
    queue: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
    handler = StreamHandler(queue)
    async with world([call("look", key="a"), answer("42")]) as w:
        result = await w.run(listeners=[handler])
    assert result.answer == "42"
    assert handler.dropped > 3


# ------------------------------------------------------------------------------------------------ going on


async def test_a_cancelled_run_is_resumed_without_doing_anything_twice(home: Path) -> None:
    script = [call("pay", amount=1), call("look", key="a"), answer("42")]
    async with world(script, server={"by": "question"}) as w:
        reached = asyncio.Event()

        def listen(event: object) -> None:
            if isinstance(event, ev.ToolFinished):
                reached.set()

        task = asyncio.create_task(w.run(run_id="cut", listeners=[listen]))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert open_store(home).run("cut").status == "cancelled"
        result = await w.agent.resume("cut")
    assert result.answer == "42"
    assert w.paid == [1]
    assert open_store(home).run("cut").status == "answered"


async def test_a_finished_run_resumed_gives_the_same_result_without_a_request() -> None:
    async with world([call("look", key="a"), answer("42")]) as w:
        first = await w.run()
        requests = len(w.server.requests)
        again = await w.agent.resume(first.run_id)
    assert (again.answer, again.usage.total_tokens, again.turns) == ("42", first.usage.total_tokens, first.turns)
    assert len(w.server.requests) == requests
    assert w.looked == ["a"]


async def test_a_changed_agent_is_refused_with_the_differences_unless_forced() -> None:
    async with world([call("look", key="a"), answer("42")]) as w:
        first = await w.run()
        other = Agent("openai:another", base_url=w.server.base_url, api_key="k", instructions="Be brief.")
        with pytest.raises(ResumeRefused) as refused:
            await other.resume(first.run_id)
        assert set(refused.value.differences) >= {
            "model: openai:scripted then, openai:another now",
            "instructions differ",
            "tool look: gone",
        }
        assert (await other.resume(first.run_id, despite_changes=True)).answer == "42"


def test_a_run_with_an_mcp_server_is_replayed_without_the_server(home: Path) -> None:
    server_file = Path(__file__).parent / "mcp_servers" / "everything.py"
    with serve_script([call("add", a=2, b=3), answer("5")]) as server:
        agent = Agent(
            "openai:x", mcp_servers=[f"{sys.executable} {server_file}"], base_url=server.base_url, api_key="k",
            dialect="function_call",
        )  # fmt: skip
        first = agent.run_sync("What is 2 + 3?")
    assert first.answer == "5", first
    again = Agent(
        "openai:x", mcp_servers=["no-such-command-at-all"], base_url=server.base_url, api_key="k",
        dialect="function_call",
    )  # fmt: skip
    rows = list(open_store(home).rows(first.run_id))
    result, departure = asyncio.run(replay_run(again.plan(), first.run_id, rows))
    assert (result.answer, departure) == ("5", "")


@pytest.mark.parametrize("dialect", ["function_call", "mcp_xml"])
def test_tools_that_a_server_adds_during_a_run_are_offered_from_the_next_turn(dialect: Any, home: Path) -> None:
    server_file = Path(__file__).parent / "mcp_servers" / "busy.py"

    def agent(base_url: str) -> Agent:
        command = f"{sys.executable} {server_file}"
        return Agent(
            "openai:x", mcp_servers=[command], base_url=base_url, api_key="k", dialect=dialect, instructions="Be brief."
        )

    def offered(request: Any) -> bool:
        return '"grown"' in json.dumps(request.json.get("tools", "")) or "name: grown" in str(request.json["messages"])

    # `slow` runs until the new list has arrived, if it has not before.
    with serve_script([call("grow"), call("slow"), call("grown")]) as server:
        first = agent(server.base_url).run_sync("What is it?")
        requests = server.requests
    assert first.status == "failed"
    shown = [offered(each) for each in requests[:4]]  # the script is over then, and a refused form is sent in another
    assert shown in ([False, True, True, True], [False, False, True, True])
    last = requests[3].json["messages"]
    assert "grown" in last[-1]["content"], "the new tool was called"
    assert last[1:6] == requests[2].json["messages"][1:6], "only the list of tools has changed"
    (changed,) = kinds(events_of(first, home), ev.ToolsChanged)
    assert (changed.request, '"grown"' in changed.tools) == (shown.index(True), True)

    rows = list(open_store(home).rows(first.run_id))
    replayed, departure = asyncio.run(replay_run(agent("http://127.0.0.1:9").plan(), first.run_id, rows))
    assert departure == ""
    assert replayed.turns == first.turns == 3

    with serve_script([answer("it")]) as server:  # the server starts again, with the list that it began with
        result = asyncio.run(agent(server.base_url).resume(first.run_id))
        assert [offered(each) for each in server.requests] == [False]
        assert server.requests[0].json["messages"][1:] == last[1:], "the results of the first process are kept"
    assert result.answer == "it"
    assert [event.request for event in kinds(events_of(result, home), ev.ToolsChanged)] == [shown.index(True), 3]


# ------------------------------------------------------------------------------------------------ sub-agents


async def test_sub_agents_run_together_and_their_events_are_nested(home: Path) -> None:
    both = Turn(calls=[call("clerk", task="count apples"), call("clerk", task="count pears")])
    script = {
        "count apples": [call("look", key="apples"), answer("3 apples")],
        "count pears": [call("look", key="pears"), answer("4 pears")],
        "How many": [both, answer("7")],
    }
    async with world(script) as w:
        clerk = Agent("openai:clerk", list(w.tools)[:1], base_url=w.server.base_url, api_key="k",
                      dialect="function_call")  # fmt: skip
        chief = Agent("openai:chief", [clerk.as_tool("clerk", "Counts things.")], base_url=w.server.base_url,
                      api_key="k", dialect="function_call")  # fmt: skip
        result = await chief.run("How many fruits are there?")
    assert result.answer == "7"
    assert result.usage.requests == 6, "the usage includes the sub-agents' requests"
    events = events_of(result, home)
    assert {e.agent for e in kinds(events, ev.AgentStarted)} == {"main/r1:clerk", "main/r2:clerk"}
    again = await chief.resume(result.run_id)
    assert (again.answer, again.usage) == ("7", result.usage), "a resumed run counts sub-agents that ended"
    assert len(events_of(result, home)) == len(events) + 2, "resumed and ended, and nothing else is written"
    reports = [m["content"] for m in w.server.requests[-1].json["messages"] if m["role"] == "tool"]
    assert ["3 apples" in reports[0], "4 pears" in reports[1]] == [True, True]


async def test_agents_that_call_themselves_are_stopped() -> None:
    def script(view: RequestView) -> Turn:
        return answer("deep enough") if view.number > 1 else Turn(calls=[call("again", task="go deeper")])

    async with serve_script(script, by=lambda view: str(len(view.text))) as server:
        holder: list[Agent] = []
        agent = Agent("openai:x", base_url=server.base_url, api_key="k", dialect="function_call")
        agent._tools = (agent.as_tool("again", "Does it again."),)
        holder.append(agent)
        result = await asyncio.wait_for(agent.run("Go."), 60)
    assert result.status in ("answered", "unanswered")


# ------------------------------------------------------------------------------------------------ misuse


def test_misuse_is_named_before_anything_is_sent() -> None:
    with pytest.raises(UsageError, match="task is empty"):
        Agent("openai:x", api_key="k").run_sync("  ")
    with pytest.raises(ConfigError, match="Unknown setting"):
        Agent("openai:x", config={"agent": {"max_turn": 3}})
    with pytest.raises(ConfigError):
        Agent("openai:x", api_key="k", max_turns=0)
    with pytest.raises(ToolDefinitionError, match="must be a function"):
        Agent("openai:x", [3], api_key="k").run_sync("What?")  # type: ignore[list-item]


async def test_run_sync_inside_a_loop_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"await agent\.run"):
        Agent("openai:x", api_key="k").run_sync("What?")


def test_one_agent_serves_threads_and_loops() -> None:
    results: list[RunResult] = []
    with serve_script(lambda view: answer(view.question[-1]), by="question") as server:
        agent = Agent("openai:x", base_url=server.base_url, api_key="k")
        threads = [threading.Thread(target=lambda n=n: results.append(agent.run_sync(f"Say {n}"))) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(r.answer or "" for r in results) == ["0", "1", "2", "3"]


def test_memory_only_runs_touch_no_disk(home: Path) -> None:
    with serve_script([answer("1")]) as server:
        agent = Agent("openai:x", base_url=server.base_url, api_key="k", dialect="function_call", home=False)
        result = agent.run_sync("What?")
    assert result.answer == "1"
    assert result.task_log.status == "answered"
    with pytest.raises(UsageError, match="keeps its runs in memory"):
        asyncio.run(agent.resume(result.run_id))
    assert not home.exists()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"answer": Number}, "answer must be an instance of the contract Number, got the class."),
        ({"answer": 5}, "answer must be a type or an answer contract, got 5."),
        ({"tools": len}, "tools must be a list, got <built-in function len>. Pass tools=[look_up]."),
        ({"mcp_servers": "python server.py"}, "mcp_servers must be a list, got"),
        ({"mcp_servers": {"shop": {"comand": "a"}}}, "MCP server 'shop': 'comand' is not a known key. Did you mean"),
        ({"instructions": ["Be brief."]}, "instructions must be a string, got ['Be brief.']"),
        ({"home": 7}, "home must be a path, got 7"),
        ({"config": 7}, "config must be a mapping"),
        ({"model": 5}, "model must be a name or a client, got 5"),
    ],
)
def test_a_wrong_argument_is_refused_when_the_agent_is_made(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ConfigError, UsageError)) as raised:
        Agent(**{"model": "openai:x", "base_url": "http://127.0.0.1:9/v1", **given})
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("task", "given", "sentence"),
    [
        (["What?"], {}, "The task must be a string, got ['What?']"),
        (" ", {}, "The task is empty"),
        ("What?", {"history": "before"}, "history must be a list, got 'before'"),
        ("What?", {"history": ["before"]}, "history must hold messages, got 'before'"),
        (
            "What?",
            {"history": [{"role": "bot", "content": "before"}]},
            "history must hold messages, got {'role': 'bot'",
        ),
        ("What?", {"listeners": print}, "listeners must be a list"),
        ("What?", {"listeners": [5]}, "A listener must be callable, got 5."),
        ("What?", {"listeners": [asyncio.sleep]}, "A listener must be a plain function, got the async"),
        ("What?", {"listeners": [StreamHandler]}, "or an instance of a listener: JsonLogListener()."),
    ],
)
def test_invalid_arguments_of_a_run_are_refused_before_it_begins(
    task: Any, given: dict[str, Any], sentence: str, home: Path
) -> None:
    agent = Agent("openai:x", base_url="http://127.0.0.1:9/v1", api_key="k", dialect="function_call")
    with pytest.raises(UsageError) as raised:
        agent.run_sync(task, **given)
    assert sentence in str(raised.value)
    assert not home.exists()


@pytest.mark.parametrize("whole", [False, True])
def test_servers_can_be_passed_by_name_as_in_mcp_json(whole: bool) -> None:
    server_file = Path(__file__).parent / "mcp_servers" / "everything.py"
    named: dict[str, Any] = {"sums": {"command": sys.executable, "args": [str(server_file)]}}
    with serve_script([call("add", a=2, b=3), answer("5")]) as server:
        agent = Agent(
            "openai:x", mcp_servers={"mcpServers": named} if whole else named, base_url=server.base_url, api_key="k",
            dialect="function_call",
        )  # fmt: skip
        assert agent.run_sync("What is 2 + 3?").answer == "5"


def test_settings_and_arguments_name_servers_side_by_side() -> None:
    settings = {"tools": {"mcp_servers": {"one": {"command": "a"}}}}
    manager = Agent("openai:x", mcp_servers=["b", {"url": "https://c/mcp"}], base_url="http://x/v1", config=settings)
    assert [server.name for server in manager.plan().manager._servers] == ["one", "b", "c"]


async def test_an_attempt_whose_answer_was_not_accepted_is_not_reported_as_answered() -> None:
    model = ScriptedClient(lambda request: say("Hard to tell."))
    result = await Agent(model, answer=Choice(["yes", "no"]), home=False).run("Is it?")
    assert (result.status, result.stop_reason) == ("unanswered", "refused")
    assert "without an accepted answer (refused)" in (result.failure_experience_summary or "")


@pytest.mark.parametrize(
    ("contract", "error"),
    [
        (int, "The reply does not give a number as its answer. The model wrote: nonsense"),
        (Json(), "There is no JSON in the reply. The model wrote: nonsense"),
    ],
)
async def test_a_run_without_an_answer_says_what_is_missing(contract: Any, error: str) -> None:
    result = await Agent(ScriptedClient(lambda request: say("nonsense")), answer=contract, home=False).run("What?")
    assert (result.status, result.error) == ("unanswered", error)


async def test_a_run_that_reaches_a_limit_names_it() -> None:
    @tool(read_only=True)
    def count(number: int) -> int:
        """Count."""
        return number

    client = ScriptedClient(lambda view: call("count", number=view.number))
    result = await Agent(client, [count], home=False, max_turns=2).run("What?")
    assert (result.stop_reason, result.error) == ("max_turns", "There is no answer within the limit max_turns=2.")


@pytest.mark.parametrize("contract", [Json(), Yaml(), list[int]])
async def test_text_in_place_of_data_is_not_called_a_refusal(contract: Any) -> None:
    model = ScriptedClient(lambda request: say("The numbers are one and two."))
    result = await Agent(model, answer=contract, home=False).run("Which numbers?")
    assert (result.status, result.stop_reason) == ("unanswered", "no_answer")


BROKEN_VALIDATOR = """
class ValidationError(Exception): ...
class ReferencingError(Exception): ...
def validator_for(schema, *, mask=None):
    raise AssertionError("an old version does not know offline=")
"""
ONE_CALL = """
from closeout import Agent, tool
from closeout.testing import ScriptedClient, answer, call

@tool
def look(key: str) -> str:
    "Look up a key."
    raise SystemExit("it ran")

result = Agent(ScriptedClient([call("look", key=3), answer("42")]), [look]).run_sync("What?")
print(result.status, result.error_kind, result.answer, "jsonschema-rs does not work" in result.error)
"""


def test_a_run_whose_calls_cannot_be_validated_ends_as_failed(tmp_path: Path) -> None:
    """Not "answered" after a run in which every tool call was refused."""
    (tmp_path / "jsonschema_rs.py").write_text(BROKEN_VALIDATOR)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", ONE_CALL],
        env={**os.environ, "PYTHONPATH": path, "CLOSEOUT_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "failed BrokenDependency None True", done.stderr


async def test_a_constraint_that_the_server_cannot_enforce_is_noted_once(home: Path) -> None:
    script = [
        say('Thought: I look.\nAction: {"action": "look", "action_input": {"key": "a"}}'),
        say("Final Answer: \\boxed{4}"),
    ]
    async with world(script, dialect="cot_chat", config={"agent": {"constrain": "on"}}) as w:
        result = await w.run()
    notes = [e.message for e in kinds(events_of(result, home), ev.Noted) if "are not constrained" in e.message]
    assert (result.answer, len(notes), w.looked) == ("4", 1, ["a"])
