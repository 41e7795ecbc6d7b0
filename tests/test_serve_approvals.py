"""Approvals and questions in the Responses API: a response ends with what the run waits for, the next one decides."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from closeout import Agent, RunContext, tool
from closeout.errors import JournalError
from closeout.journal.events import DecisionMade
from closeout.journal.sent_signals import send_signal
from closeout.journal.store import Store
from closeout.run.waits.decisions import record_decisions
from closeout.server.serve.response_state import ResponseId
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, once, serve_script
from closeout.tools.builtin import ask_tool
from serving import Served, serving
from test_serve_crash import client_of, process, requested
from test_serve_openai import lookup

JSON = {"Content-Type": "application/json"}


class Bank:
    """An agent that must not pay without approval, and that asks which account to use."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    def agent(self, *calls: Any, done: str = "done", **question: Any) -> Agent[Any]:
        @tool(approval="always")
        def pay(to: str) -> str:
            """Pay somebody."""
            self.paid.append(to)
            return f"{to} was paid"

        def play(view: RequestView) -> Turn:
            over = view.messages[-1]["role"] == "tool" or "denied" in view.text
            return answer(done) if over else Turn(calls=calls)

        return Agent(ScriptedClient(play), [pay, lookup, ask_tool(**question)], name="bank")


@asynccontextmanager
async def a_bank(agent: Agent[Any]) -> AsyncIterator[tuple[openai.AsyncOpenAI, Served]]:
    async with serving(agent) as served, client_of(served.base_url) as client:
        yield client, served


def approvals(response: Any, approve: bool = True, **more: Any) -> list[Any]:
    """A response to each approval request."""
    return [
        {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": approve, **more}
        for item in response.output
        if item.type == "mcp_approval_request"
    ]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_approved_call_is_made(stream: bool) -> None:
    bank = Bank()

    async def respond(**options: Any) -> Any:
        if not stream:
            return await client.responses.create(model="bank", **options)
        async with client.responses.stream(model="bank", **options) as events:
            return await events.get_final_response()

    async with a_bank(bank.agent(call("pay", to="Ada"))) as (client, _):
        first = await respond(input="Pay Ada.")
        assert first.status == "completed"
        (asked,) = [item for item in first.output if item.type == "mcp_approval_request"]
        assert (asked.name, asked.arguments, bank.paid) == ("pay", '{"to":"Ada"}', [])
        decided = {
            "input": approvals(first),
            "previous_response_id": first.id,
            "extra_headers": {"Idempotency-Key": "7"},
        }
        second = await respond(**decided)
        assert (second.output_text, bank.paid) == ("done", ["Ada"])
        assert (await respond(**decided)).id == second.id, "the same request again"
        assert bank.paid == ["Ada"]
        assert second.previous_response_id == first.id
        assert second.id != first.id
        (made,) = [item for item in second.output if item.type == "mcp_call"]
        assert (made.name, made.output, made.approval_request_id) == ("pay", "Ada was paid", asked.id)
        # Both can be read again, and the conversation continues after the second.
        for response in (first, second):
            found = await client.responses.retrieve(response.id)
            assert [item.id for item in found.output] == [item.id for item in response.output]
            again = [event async for event in await client.responses.retrieve(response.id, stream=True)]
            assert [event.sequence_number for event in again] == list(range(len(again)))
            assert again[-1].response.output == found.output  # type: ignore[union-attr]
        with pytest.raises(openai.BadRequestError, match="was continued"):
            await client.responses.create(model="bank", input="And?", previous_response_id=first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(f"{first.id}.7")


async def test_a_denied_call_is_not_made_and_the_model_reads_why() -> None:
    bank = Bank()
    async with a_bank(bank.agent(call("pay", to="Ada"))) as (client, served):
        first = await client.responses.create(model="bank", input="Pay Ada.")
        # Without previous_response_id: the id of the request names the run.
        second = await client.responses.create(
            model="bank", input=approvals(first, approve=False, reason="Too expensive.")
        )
        assert bank.paid == []
        (refused,) = [item for item in second.output if item.type == "mcp_call"]
        assert refused.status == "failed"
        assert "Too expensive." in str(refused.error)
        assert len(served.host.store.runs()) == 1
        # A client that sends all that was said begins another run with its next message.
        said = [item.to_dict() for response in (first, second) for item in response.output]
        said[1:1] = approvals(first, approve=False)
        task = {"role": "user", "content": "Pay Ada."}
        third = await client.responses.create(model="bank", input=[task, *said, {"role": "user", "content": "denied?"}])  # type: ignore[list-item]
        assert third.output_text == "done"
        assert len(served.host.store.runs()) == 2


async def test_all_approvals_are_decided_at_once() -> None:
    bank = Bank()
    agent = bank.agent(call("pay", to="Ada"), call("lookup", key="k1"), call("pay", to="Bob"))
    async with a_bank(agent) as (client, _):
        first = await client.responses.create(model="bank", input="Pay both.")
        one, two = approvals(first)
        with pytest.raises(openai.BadRequestError, match="Left open: " + two["approval_request_id"]):
            await client.responses.create(model="bank", input=[one])
        with pytest.raises(openai.BadRequestError, match="Nothing waits"):
            await client.responses.create(model="bank", input=[one, {**two, "approval_request_id": "mcpr_9_x"}])
        with pytest.raises(openai.BadRequestError, match="true or false"):
            await client.responses.create(model="bank", input=[{**one, "approve": "yes"}])
        with pytest.raises(openai.BadRequestError, match="Left open"):
            await client.responses.create(model="bank", input="Yes.", previous_response_id=first.id)
        with pytest.raises(openai.BadRequestError, match="approvals alone"):
            await client.responses.create(model="bank", input=[one, two, {"role": "user", "content": "And Eve."}])
        assert bank.paid == []
        second = await client.responses.create(model="bank", input=[one, two], metadata={"for": "a test"})
        assert sorted(bank.paid) == ["Ada", "Bob"]
        assert sorted(item.name for item in second.output if item.type == "mcp_call") == ["lookup", "pay", "pay"]
        assert second.metadata is not None
        assert second.metadata["for"] == "a test"
        with pytest.raises(openai.BadRequestError, match="does not wait"):
            await client.responses.create(model="bank", input=[one, two])
        assert len(bank.paid) == 2


async def test_a_question_is_a_message_and_the_next_message_answers_it() -> None:
    agent = Bank().agent(call("ask_user", question="Which account?", options=["blue", "red"]), done="paid")
    async with a_bank(agent) as (client, served):
        first = await client.responses.create(model="bank", input="Pay Ada.")
        assert first.output_text == "Which account?\n- blue\n- red"
        second = await client.responses.create(model="bank", input="blue", previous_response_id=first.id)
        assert second.output_text == "paid"
        assert len(served.host.store.runs()) == 1


async def test_a_chat_completion_cannot_wait() -> None:
    async with a_bank(Bank().agent(call("pay", to="Ada"))) as (client, served):
        with pytest.raises(openai.ConflictError, match="waits for a decision") as refused:
            await client.chat.completions.create(model="bank", messages=[{"role": "user", "content": "Pay Ada."}])
        (run,) = served.host.store.runs()
        assert f"See /v1/runs/{run.run_id}." in str(refused.value)


async def test_a_run_that_was_decided_while_no_server_ran_continues_at_the_next_start() -> None:
    bank = Bank()
    agent = bank.agent(call("pay", to="Ada"))
    async with a_bank(agent) as (client, served):
        first = await client.responses.create(model="bank", input="Pay Ada.")
        store, run_id = served.host.store, first.metadata["run_id"] if first.metadata else ""
    record_decisions(store, run_id, {"r1": True})
    async with a_bank(agent) as (client, served):
        await served.host.wait(run_id)
        assert bank.paid == ["Ada"]
        second = await client.responses.retrieve(f"{first.id}.1")
        assert (second.output_text, second.previous_response_id) == ("done", first.id)


async def status_of(served: Served, run_id: str) -> str:
    async with served.http.get(f"{served.base_url}/runs/{run_id}") as response:
        return str((await response.json())["status"])


async def submitted(served: Served) -> str:
    async with served.http.post(f"{served.base_url}/runs", json={"task": "Pay Ada."}) as response:
        return str((await response.json())["run_id"])


async def answered(served: Served, run_id: str) -> list[tuple[str, str]]:
    """Wait for the answer of a run. Returns the decisions that it has needed, and by whom they were made."""
    while await status_of(served, run_id) != "answered":  # noqa: ASYNC110  # a waiting run has no task to wait for
        await asyncio.sleep(0.02)
    events = [row.event for row in await served.host.rows(run_id)]
    return [(each.text or each.verdict, each.by) for each in events if isinstance(each, DecisionMade)]


async def test_a_run_continues_with_the_default_answer_in_time() -> None:
    agent = Bank().agent(call("ask_user", question="Which account?"), max_wait=0.4, default="blue")
    async with serving(agent) as served:
        run_id = await submitted(served)
        assert await answered(served, run_id) == [("blue", "default")]


async def test_a_default_answer_that_took_effect_while_no_server_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Bank().agent(call("ask_user", question="Which account?"), max_wait=60, default="blue")
    async with a_bank(agent) as (client, served):
        first = await client.responses.create(model="bank", input="Pay Ada.")
        run_id = first.metadata["run_id"] if first.metadata else ""
        assert await status_of(served, run_id) == "waiting"
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 61)
    async with a_bank(agent) as (client, served):
        assert await answered(served, run_id) == [("blue", "default")]
        assert (await client.responses.retrieve(first.id)).output_text == "Which account?"
        assert (await client.responses.retrieve(f"{first.id}.1")).output_text == "done"


async def test_a_queued_run_that_another_process_executes_is_left_to_it() -> None:
    paid, released = [], {"Ada": asyncio.Event(), "Bob": asyncio.Event()}

    @tool
    async def pay(to: str) -> str:
        """Pay somebody."""
        paid.append(to)
        await released[to].wait()
        return f"{to} was paid"

    def play(view: RequestView) -> Turn:
        if "was paid" in view.text:
            return answer("done")
        to = "Bob" if "Bob" in view.text else "Ada" if "blue" in view.text else ""
        return call("pay", to=to) if to else call("ask_user", question="Which account?")

    def agent() -> Agent[Any]:
        return Agent(ScriptedClient(play), [pay, ask_tool()], name="bank")

    async def until(is_so: Callable[[], bool]) -> None:
        while not is_so():  # noqa: ASYNC110  # another process would do the same
            await asyncio.sleep(0.01)

    async with serving(agent(), max_runs=1) as served, client_of(served.base_url) as client:
        first = await client.responses.create(model="bank", input="Pay Ada.")
        await client.responses.create(model="bank", input="Pay Bob.", background=True)
        await until(lambda: "Bob" in paid)
        second = await client.responses.create(
            model="bank", input="blue", previous_response_id=first.id, background=True
        )
        run_id = ResponseId.read(first.id).run_id
        elsewhere = asyncio.create_task(agent().resume(run_id))
        await until(lambda: "Ada" in paid)
        released["Bob"].set()
        await until(lambda: not (served.host.active or served.host.queued))
        assert (await client.responses.retrieve(second.id)).status == "in_progress"
        released["Ada"].set()
        assert (await elsewhere).answer == "done"
        assert (await client.responses.retrieve(second.id)).output_text == "done"
        assert served.host.ended == {"waiting": 1, "answered": 1}
    assert paid == ["Bob", "Ada"]


async def test_a_default_answer_does_not_replace_an_approval(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = Bank()
    agent = bank.agent(call("pay", to="Ada"), call("ask_user", question="Which account?"), max_wait=60, default="blue")
    async with serving(agent) as served:
        run_id = await submitted(served)
        await served.host.wait(run_id)
        clock = time.time
        monkeypatch.setattr(time, "time", lambda: clock() + 61)
        assert (await status_of(served, run_id), bank.paid) == ("waiting", [])
        assert [each.id for each in await served.host.decide(run_id, {"r1": True})] == ["r2"]
        assert await answered(served, run_id) == [("approve", "api"), ("blue", "default")]
        assert bank.paid == ["Ada"]


async def test_a_waiting_run_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Bank().agent(call("ask_user", question="Which account?"), max_wait=60, default="blue")
    async with serving(agent) as served:
        run_id = await submitted(served)
        await served.host.wait(run_id)
        async with served.http.post(f"{served.base_url}/runs/{run_id}/cancel") as response:
            assert (await response.json())["status"] == "cancelled"
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 61)
    async with serving(agent) as served:
        assert await status_of(served, run_id) == "cancelled"
        assert (served.host.active, served.host.queued) == (0, 0)


async def test_a_response_that_waits_for_an_approval_is_cancelled_and_cannot_be_approved_after_that() -> None:
    bank = Bank()
    async with serving(bank.agent(call("pay", to="Ada"))) as served:
        body = {"model": "bank", "input": "Pay Ada.", "background": True}
        async with served.http.post(f"{served.base_url}/responses", json=body) as response:
            made = await response.json()
        run_id = made["metadata"]["run_id"]
        await served.host.wait(run_id)
        async with served.http.post(f"{served.base_url}/responses/{made['id']}/cancel") as response:
            assert response.status == 200
        assert await status_of(served, run_id) == "cancelled"
        decided = {"decisions": {"r1": True}}
        async with served.http.post(f"{served.base_url}/runs/{run_id}/decisions", json=decided) as response:
            assert response.status in (400, 409)
    assert bank.paid == []


async def test_a_decision_survives_kill_9(tmp_path: Path) -> None:
    (tmp_path / "bank_agent.py").write_text(
        "from closeout import Agent, tool\n"
        "@tool(approval='always')\n"
        "def pay(to: str) -> str:\n"
        "    'Pay somebody.'\n"
        "    return to + ' was paid'\n"
        "def make():\n"
        "    import os\n"
        "    llm = {'base_url': os.environ['MODEL_URL'], 'api_key': 'none', 'max_retries': 0}\n"
        "    return Agent('openai:scripted', [pay], name='bank', dialect='function_call', config={'llm': llm})\n"
    )

    def play(view: RequestView) -> Turn:
        return answer("done") if "was paid" in view.text else call("pay", to="Ada")

    async with serve_script(play, misbehave=once("hang", at=2)) as model:
        options: dict[str, Any] = {"cwd": tmp_path, "MODEL_URL": model.base_url}
        async with process("bank_agent:make", **options) as (serving_, url), client_of(url) as client:
            first = await client.responses.create(model="bank", input="Pay Ada.")
            second = await client.responses.create(
                model="bank", input=approvals(first), previous_response_id=first.id, background=True
            )
            assert second.status in ("queued", "in_progress")
            await requested(model, 2)
            serving_.send_signal(signal.SIGKILL)
            await asyncio.to_thread(serving_.wait)
        async with process("bank_agent:make", **options) as (_, url), client_of(url) as client:
            events = [event async for event in await client.responses.retrieve(second.id, stream=True)]
            last: Any = events[-1]
            assert last.response.output_text == "done"
            assert last.response.background is True
            assert (await client.responses.retrieve(first.id)).output == first.output


def waiter(seconds: float = 0.0) -> Agent[Any]:
    """An agent whose tool waits for a time, then for a payment."""

    @tool(read_only=True)
    async def await_payment(context: RunContext) -> str:
        """Wait for a payment."""
        await context.sleep(seconds)
        return f"paid {await context.wait_for('付款')}"

    def play(view: RequestView) -> Turn:
        return answer("done") if "paid" in view.text else call("await_payment")

    return Agent(ScriptedClient(play), [await_payment], name="bank")


async def test_a_signal_over_http_resumes_a_run_once() -> None:
    async with serving(waiter()) as served:
        run_id = await submitted(served)
        await served.host.wait(run_id)
        assert await status_of(served, run_id) == "waiting"
        path = f"{served.base_url}/runs/{run_id}/signals/%E4%BB%98%E6%AC%BE"
        found = []
        for _ in range(2):
            async with served.http.post(path, json={"amount": 5}, headers={"Idempotency-Key": "evt-1"}) as response:
                found.append((response.status, (await response.json())["sent"]))
        assert found == [(202, True), (202, False)]
        assert await answered(served, run_id) == [("time", "clock"), ('{"amount": 5}', "signal")]
        async with served.http.post(path, json=1) as response:
            assert response.status == 400
            assert "is over (answered)" in await response.text()
        for what, status in (({"data": b"amount=5"}, 415), ({"data": b"{", "headers": JSON}, 400)):
            async with served.http.post(path, **what) as response:
                assert response.status == status
        async with served.http.post(f"{served.base_url}/runs/nobody/signals/x", json=1) as response:
            assert response.status == 404


async def test_a_server_wakes_runs_by_the_clock_and_by_signals_of_other_processes() -> None:
    async with serving(waiter(0.3)) as served:
        run_id = await submitted(served)
        store = Store(served.host.store.home)  # another process's
        try:
            assert send_signal(store, run_id, "付款", 7)
        finally:
            store.close()
        assert await answered(served, run_id) == [("time", "clock"), ("7", "signal")]


async def test_a_server_looks_again_after_an_error_but_not_at_once_and_says_it_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("closeout.fleet.work_poller.LOOK_SECONDS", 0.1)
    async with serving(waiter()) as served:
        run_id = await submitted(served)
        await served.host.wait(run_id)
        store, looks = served.host.store, 0
        look = store.look

        def failing(*arguments: Any, **options: Any) -> Any:
            nonlocal looks
            looks += 1
            if looks < 3:
                raise JournalError("the disk is full")
            return look(*arguments, **options)

        await asyncio.sleep(0.2)  # the loop has seen all there is
        monkeypatch.setattr(store, "look", failing)
        send_signal(store, run_id, "付款", 7)
        assert await answered(served, run_id) == [("time", "clock"), ("7", "signal")]
    assert caplog.messages.count("No runs can be found: the disk is full") == 1


async def test_a_signal_that_came_while_no_server_ran_and_a_cancelled_wait() -> None:
    agent = waiter()
    async with serving(agent) as served:
        first, second = await submitted(served), await submitted(served)
        for run_id in (first, second):
            await served.host.wait(run_id)
        async with served.http.post(f"{served.base_url}/runs/{second}/cancel") as response:
            assert (await response.json())["status"] == "cancelled"
    await agent.signal(first, "付款", 1)
    await agent.signal(second, "付款", 2)
    async with serving(agent) as served:
        assert await answered(served, first) == [("time", "clock"), ("1", "signal")]
        assert await status_of(served, second) == "cancelled"


async def test_a_response_says_what_its_run_waits_for() -> None:
    agent = waiter()
    async with a_bank(agent) as (client, served):
        first = await client.responses.create(model="bank", input="Pay Ada.")
        assert first.output_text == "Waiting for the signal '付款'."
        run_id = first.metadata["run_id"] if first.metadata else ""
        await served.host.signal(run_id, "付款", 1)
        assert await answered(served, run_id) == [("time", "clock"), ("1", "signal")]
        assert (await client.responses.retrieve(f"{first.id}.1")).output_text == "done"


async def test_a_key_neither_sees_nor_changes_the_runs_of_another_one() -> None:
    bank = Bank()
    async with serving(
        bank.agent(call("pay", to="Ada")), keys=["key-ann", "key-bob"], operator_keys=["operator"]
    ) as served:
        keys = ("key-ann", "key-bob", "operator")
        ann, bob, operator = (openai.AsyncOpenAI(base_url=served.base_url, api_key=key, max_retries=0) for key in keys)
        first = await ann.responses.create(model="bank", input="Pay Ada.")
        yes = approvals(first)
        run_id = first.metadata["run_id"] if first.metadata else ""
        path = f"{served.base_url}/runs/{run_id}"
        attempts = [
            bob.responses.retrieve(first.id),
            bob.responses.cancel(first.id),
            bob.responses.delete(first.id),
            bob.responses.input_items.list(first.id),
            bob.responses.create(model="bank", input=yes),
            bob.responses.create(model="bank", previous_response_id=first.id, input=yes),
        ]
        for attempt in attempts:
            with pytest.raises(openai.NotFoundError):
                await attempt
        places = [("GET", ""), ("GET", "/events"), ("GET", "/files"), ("GET", "/files/x"), ("POST", "/cancel")]
        places += [("POST", "/decisions"), ("POST", "/signals/x"), ("POST", "/messages")]
        for method, place in places:
            body = {"decisions": {"r1": True}} if method == "POST" else None
            headers = {"Authorization": "Bearer key-bob"}
            async with served.http.request(method, path + place, json=body, headers=headers) as response:
                assert (response.status, place) == (404, place)
        assert bank.paid == []
        assert (await operator.responses.retrieve(first.id)).id == first.id
        done = await ann.responses.create(model="bank", previous_response_id=first.id, input=yes)
        assert (done.output_text, bank.paid) == ("done", ["Ada"])
        for client in (ann, bob, operator):
            await client.close()


async def test_a_signal_needs_a_key_of_the_server() -> None:
    async with serving(waiter(), keys=["right"]) as served:
        run_id = await served.host.submit("Pay Ada.")
        await served.host.wait(run_id)
        path = f"{served.base_url}/runs/{run_id}/signals/x"
        for key, status in (("", 401), ("Bearer wrong", 401), ("Bearer right", 202)):
            async with served.http.post(path, json=1, headers={"Authorization": key}) as response:
                assert response.status == status
