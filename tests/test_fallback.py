"""Several models: the next one answers where one cannot, across vendors, and the record holds who answered."""

from __future__ import annotations

import time
from typing import Any

import pytest

from closeout import Agent, Fallback, tool
from closeout.errors import BadRequest, ConfigError, ContextOverflow, ModelError, RateLimited, ServerFailed, UsageError
from closeout.evaluate import evaluate
from closeout.journal.events import ModelReplied, ModelRetried
from closeout.journal.store import open_store
from closeout.messages import Capabilities, ModelReply, Usage
from closeout.models.connect import connect
from closeout.models.fallback import CircuitBreaker
from closeout.run.lifecycle import replay_run
from closeout.testing import Misbehaviour, RequestView, ScriptedClient, answer, call, serve_script
from closeout.testing.scripted_server import ScriptedServer


@tool(read_only=True)
def lookup(key: str) -> str:
    """Look a key up."""
    lookups.append(key)
    return f"value of {key}"


lookups: list[str] = []


@pytest.fixture(autouse=True)
def _no_lookups() -> None:
    lookups.clear()


def talk(view: RequestView) -> Any:
    return answer("42") if "value of k1" in view.text else call("lookup", key="k1")


def models(first: ScriptedServer, second: ScriptedServer) -> list[dict[str, str]]:
    return [
        {"model": "openai:a", "base_url": first.base_url, "api_key": "k"},
        {"model": "anthropic:b", "base_url": second.url, "api_key": "k"},
    ]


async def answered(run_id: str, home: Any) -> list[str]:
    return [row.event.model for row in open_store(home).read(run_id).rows if isinstance(row.event, ModelReplied)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("fault", "condition"),
    [
        ("server_error", "overload"),
        ("overloaded", "overload"),
        ("dropped", "overload"),
        ("rate_limited", "rate_limit"),
        ("filtered", "refusal"),
        ("hang", "time"),
        ("too_long", "context"),
    ],
)
async def test_another_vendor_continues_a_run(home: Any, fault: str, condition: str, stream: bool) -> None:
    def first(view: RequestView) -> Any:
        if fault == "too_long" and view.messages[-1]["role"] == "tool":
            return BadRequest("This model's maximum context length is 10 tokens.", status=400)
        return talk(view)

    faults = [] if fault == "too_long" else [Misbehaviour(fault, at=2, times=None, seconds=60.0)]
    async with serve_script(first, misbehave=faults) as one, serve_script(talk) as two:
        limit = 2 if fault == "hang" else 60  # seconds; a slow machine must not reach it by itself
        agent = Agent(Fallback(models(one, two), seconds=limit), [lookup], stream=stream)
        result = await agent.run("What is k1?", run_id="r")
        rows = open_store(home).read("r").rows
        assert (result.answer, result.rollbacks, lookups) == ("42", 0, ["k1"])
        assert await answered("r", home) == ["openai:a", "anthropic:b"]
        assert (len(one.requests), len(two.requests)) == (2, 1)
        assert f"anthropic:b was asked instead of openai:a ({condition})." in result.warnings
        assert [r.event.reason.endswith("Asking anthropic:b.") for r in rows if isinstance(r.event, ModelRetried)] == [
            True
        ]
        assert result.usage.requests == 3
        replayed, departure = await replay_run(agent.plan(), "r", rows)
        assert (replayed.answer, departure) == ("42", "")
    assert len(two.requests) == 1


async def test_what_one_vendor_attaches_is_not_sent_to_the_other() -> None:
    faults = [Misbehaviour("overloaded", at=2, times=None)]
    async with serve_script(talk, misbehave=faults, vendor="anthropic") as one, serve_script(talk) as two:
        chain = Fallback(list(reversed(models(two, one))))
        result = await Agent(chain, [lookup]).run("What is k1?")
    assert result.answer == "42"
    sent = two.requests[0].body.decode()
    assert '"tool_call_id"' in sent
    assert not any(word in sent for word in ("thinking", "signature", "attached"))


async def test_a_resumed_run_continues_with_the_model_that_can_answer(home: Any) -> None:
    down = Misbehaviour("overloaded", at=2, times=None)
    always_down = Misbehaviour("overloaded", times=None)
    async with serve_script(talk, misbehave=[down]) as one, serve_script(talk, misbehave=[always_down]) as two:
        chain = models(one, two)
        first = await Agent(chain, [lookup], config={"llm": {"max_retries": 0}}).run("What is k1?", run_id="r")
        assert (first.status, first.error_kind) == ("failed", "ServerFailed")
    async with serve_script(talk, misbehave=[always_down]) as one, serve_script(talk) as two:
        result = await Agent(models(one, two), [lookup]).resume("r")
    assert (result.answer, lookups) == ("42", ["k1"])
    assert await answered("r", home) == ["openai:a", "anthropic:b"]


async def test_evaluations_maps_and_sub_agents_fall_back_too(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("closeout.models.fallback.FIRST_WAIT", 60.0)

    def chief(view: RequestView) -> Any:
        done = view.messages[-1]["role"] == "tool"
        return answer("42" if "42" in view.text else "lost") if done else call("worker", task="What is k1?")

    fault = Misbehaviour("overloaded", at=2, times=None)
    questions = [f"{number}: What is k1?" for number in range(3)]
    tasks = [{"id": each, "question": each, "answer": "42"} for each in questions]
    for make in ("itself", "below"):
        async with serve_script(talk, misbehave=[fault]) as one, serve_script(talk) as two, serve_script(chief) as top:
            agent: Agent[Any, Any] = Agent(Fallback(models(one, two)), [lookup])
            if make == "below":
                agent = Agent("openai:c", [agent.as_tool("worker", "Works.")], base_url=top.base_url, api_key="k")
            report = await evaluate(agent, tasks, name=make, concurrency=3)
            assert (report.totals.correct, report.failures) == (3, {})
            results = await agent.run_many(questions, key=f"map {make}")
            assert [each.answer for each in results] == ["42"] * 3
            assert len(one.requests) <= 4  # the runs share what one of them met
            assert two.requests


async def test_a_server_that_failed_is_left_alone_by_all_runs_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("closeout.models.fallback.FIRST_WAIT", 60.0)
    async with serve_script(talk, misbehave=Misbehaviour("overloaded", times=None)) as one, serve_script(talk) as two:
        for _ in range(3):  # agents of their own
            assert (await Agent(models(one, two), [lookup]).run("What is k1?")).answer == "42"
    assert (len(one.requests), len(two.requests)) == (1, 6)


def test_a_breaker_waits_longer_after_each_failure_and_lets_one_request_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    breaker = CircuitBreaker()
    for wait in (1.0, 2.0, 4.0):
        began = breaker.begin()
        breaker.fail(ServerFailed("down"), began)
        breaker.fail(ServerFailed("down"), began - 1)  # of a request from before: it says nothing new
        assert breaker.until == 1000 + wait
    breaker.fail(RateLimited("slow down", retry_after=50.0), breaker.begin())
    assert breaker.until == 1050
    breaker.until = 0.0
    breaker.begin()
    assert breaker.until > 1000  # others wait for the one that tries
    breaker.succeed()
    assert (breaker.failures, breaker.until) == (0, 0.0)


class Named(ScriptedClient):
    """A scripted client of a name, whose replies cost a dollar."""

    def __init__(self, script: Any, name: str, **capabilities: Any) -> None:
        super().__init__(script, name=name)
        self.capabilities = Capabilities(**capabilities)

    async def complete(self, request: Any, **options: Any) -> ModelReply:
        reply = await super().complete(request, **options)
        reply.usage = Usage(1, 1, requests=1, cost_usd=1.0)  # type: ignore[misc]
        return reply


async def asked(chain: Fallback, **options: Any) -> tuple[Any, list[int]]:
    result = await Agent(chain, [lookup], **options).run("What is k1?")
    return result, [len(client.requests) for client in chain.models]  # type: ignore[union-attr]


async def test_a_run_that_has_spent_its_share_continues_with_the_next_model() -> None:
    keys = iter("abcdefgh")

    def first(view: RequestView) -> Any:
        return call("lookup", key=next(keys))

    chain = Fallback([Named(first, "dear"), Named([answer("42")], "cheap")], max_cost=3.0)
    result, requests = await asked(chain)
    assert (result.answer, requests) == ("42", [3, 1])
    assert result.warnings == ("cheap is asked instead of dear (max_cost).",)
    unpriced = [ScriptedClient([call("lookup", key="k1"), answer("42")], name=name) for name in ("a", "b")]
    result = await Agent(Fallback(unpriced, max_cost=3.0), [lookup]).run("What is k1?")
    assert result.warnings == ("max_cost of the Fallback cannot be kept: the price of a is unknown.",)


async def test_prices_of_the_settings_hold_for_clients_that_are_objects(home: Any) -> None:
    keys = iter("abcdefgh")
    dear = ScriptedClient(lambda view: call("lookup", key=next(keys)), name="openai:dear")
    chain = Fallback([dear, ScriptedClient([answer("42")], name="cheap")], max_cost=100.0)
    prices = {"dear": (1e6, 0.0), "cheap": (1.0, 1.0)}  # a token that "dear" reads costs a dollar
    result = await Agent(chain, [lookup], config={"llm": {"prices": prices}}, home=home).run("What is k1?")
    *before, last = [
        (row.event.model, row.event.usage["cost_usd"], row.event.usage["input_tokens"])
        for row in open_store(home).read(result.run_id).rows
        if isinstance(row.event, ModelReplied)
    ]
    assert before == [("openai:dear", tokens, tokens) for _, _, tokens in before]
    assert (last[0], last[1] < 0.01) == ("cheap", True), "its own price"
    assert 100.0 <= sum(cost for _, cost, _ in before) < 100.0 + before[-1][1]
    assert result.warnings == ("cheap is asked instead of openai:dear (max_cost).",)


async def test_a_model_that_refused_is_asked_again_only_if_no_other_can_answer() -> None:
    filtered = ModelReply("I will", finish_reason="content_filter")
    first = Named([filtered, answer("42")], "a")
    second = Named([call("lookup", key="k1"), ServerFailed("down")], "b")
    result, requests = await asked(Fallback([first, second]))
    assert (result.answer, requests) == ("42", [2, 2])


async def test_each_model_has_its_own_timeout() -> None:
    seen = []

    class Timed(Named):
        async def complete(self, request: Any, **options: Any) -> ModelReply:
            seen.append(request.timeout)
            return await super().complete(request, **options)

    first, second = ServerFailed("down"), answer("42")
    await asked(Fallback([Timed([first], "a"), Timed([second], "b")]))
    await asked(Fallback([Timed([first], "a"), Timed([second], "b")], seconds=5))
    assert seen == [None, None, 5, None]


@pytest.mark.parametrize(("malformed", "requests"), [(2, [2, 1]), (None, [4, 0])])
async def test_malformed_replies_lead_to_the_next_model_if_asked_to(malformed: int | None, requests: list[int]) -> None:
    broken = ModelReply("I will", finish_reason="length")
    first = Named([broken, broken, broken, answer("41")], "a")
    chain = Fallback([first, Named([answer("42")], "b")], malformed=malformed)
    result, asked_each = await asked(chain)
    assert asked_each == requests
    assert result.answer == ("42" if malformed else "41")
    assert ("b is asked instead of a (malformed)." in result.warnings) is bool(malformed)


async def test_conditions_that_are_not_chosen_and_mistakes_are_errors() -> None:
    for error in (ServerFailed("down"), ContextOverflow("long")):
        chain = Fallback([Named([error], "a"), Named([answer("42")], "b")], on=["refusal"])
        result, requests = await asked(chain, config={"llm": {"max_retries": 0}})
        assert (result.status, requests[1]) == ("failed", 0)
    dead = Fallback([Named([ServerFailed("no power")], "a"), Named([ServerFailed("no network")], "b")])
    result, _ = await asked(dead, config={"llm": {"max_retries": 0}})
    assert result.error == "No model answered. a: no power b: no network"
    wrong_key = Fallback([Named([ModelError("The key is wrong.", status=401)], "a"), Named([answer("42")], "b")])
    result, requests = await asked(wrong_key)
    assert (result.status, requests) == ("failed", [1, 0])


async def test_a_conversation_uses_what_all_models_can_do() -> None:
    client = connect(
        Fallback(
            [
                Named([], "a", images=True, max_context=1000, preferred_dialect="code"),
                Named([], "b", native_tools=False, max_context=5000),
            ]
        )
    )
    can = client.capabilities
    assert (can.images, can.native_tools, can.max_context, can.preferred_dialect) == (False, False, 5000, "code")
    assert await client.context_length() == 5000
    assert client.name == "a | b"


def test_names_with_commas_between_them_are_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert connect("openai:a, anthropic:b").name == "openai:a | anthropic:b"
    assert Agent(["openai:a", "anthropic:b"]).plan().client.name == "openai:a | anthropic:b"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Fallback(["openai:a"]), "needs a list of two or more models"),
        (lambda: Fallback("openai:a,openai:b"), "needs a list of two or more models"),  # type: ignore[arg-type]
        (lambda: Fallback(["openai:a", "local"], on=["refusals"]), "no condition 'refusals'. Choose from refusal,"),
        (lambda: Fallback(["openai:a", "local"], seconds=0), "must be greater than 0, got 0"),
        (lambda: connect(Fallback([{"model": "openai:a", "url": "x"}, "local"])), "has model, base_url and api_key"),
        (lambda: connect(["openai:a", "gpt-5"], api_key="k"), "Did you mean 'openai:gpt-5'?"),
    ],
)
def test_wrong_arguments_are_named(make: Any, said: str) -> None:
    with pytest.raises((UsageError, ConfigError)) as refused:
        make()
    assert said in str(refused.value)
