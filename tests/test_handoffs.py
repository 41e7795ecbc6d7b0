"""Handoffs: another agent continues the conversation with all of it in view, and answers the session from there on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Handoff, RunContext, tool
from closeout.errors import ConfigError, ToolDefinitionError, UsageError
from closeout.journal import events as ev
from closeout.journal.inbox import mailbox_of
from closeout.journal.store import open_store
from closeout.journal.totals import RunTotals
from closeout.run.lifecycle import replay_run
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from journal_file import cuts
from serving import serving, written_model
from test_serve_crash import client_of


@tool(read_only=True, inline=True)
def look(key: str) -> str:
    """Look up a key."""
    return f"[{key}] known"


def front(view: RequestView) -> Turn:
    """Looks one thing up, then hands over; it must never see a message after that."""
    assert "second" not in view.text
    if "[a] known" not in view.text:
        return Turn("First I look.", calls=[call("look", key="a")])
    return Turn("This is for billing.", calls=[call("transfer_to_billing")])


def clerk(view: RequestView) -> Turn:
    """Answers with what it sees of the conversation; looks something up itself first."""
    assert "transfer_to_billing" not in view.tools
    if "[b] known" not in view.text:
        return Turn(calls=[call("look", key="b")])
    seen = [word for word in ("first", "[a] known", "[b] known", "alpha", "second") if word in view.text]
    return answer(", ".join(seen))


def agents(home: Path | bool, **options: Any) -> Agent:
    billing = Agent(
        ScriptedClient(clerk), [look], name="billing", instructions="You are billing.", home=home, **options
    )
    return Agent(ScriptedClient(front), [look], handoffs=[billing], home=home, **options)


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "cot_completion", "mcp_xml"])
async def test_another_agent_continues_with_the_conversation_in_view(home: Path, dialect: str) -> None:
    agent = agents(home, dialect=dialect)
    result = await agent.run("The first message.", run_id="r")
    assert (result.status, result.answer) == ("answered", "first, [a] known, [b] known")
    assert result.handed_to == ("billing",)
    assert result.usage.requests == 4
    rows = list(open_store(home).rows("r"))
    (handed,) = [row.event for row in rows if isinstance(row.event, ev.HandedOver)]
    assert (handed.agent, handed.name, handed.to) == ("main", "billing", "main/handoff:billing")
    finished = [row.event.handle for row in rows if isinstance(row.event, ev.ToolFinished)]
    assert finished == ["r1", "r2", "r3"]
    calls = [c["function"]["name"] for m in result.messages for c in m.get("tool_calls") or ()]
    assert calls == ["look", "transfer_to_billing", "look"]
    replayed, departure = await replay_run(agent.plan(), "r", rows)
    assert (replayed.answer, replayed.handed_to, departure) == (result.answer, ("billing",), "")
    assert replayed.messages == result.messages


async def test_the_session_goes_on_with_the_other_agent_also_in_another_process(home: Path) -> None:
    first = await agents(home).session("ann").run("The first message.")
    assert first.handed_to == ("billing",)
    session = agents(home).session("ann")
    second = await session.run("The second message.")
    assert second.answer == "first, [a] known, [b] known, second"
    assert second.usage.requests == 1, "billing itself is asked"
    assert second.handed_to == ("billing",)
    third = await session.run("The second message again.")
    assert third.handed_to == ("billing",)
    resumed = await agents(home).resume("ann.2")
    assert resumed.answer == second.answer
    with pytest.raises(UsageError, match=r"handed over to 'billing'.*It has: none"):
        await Agent(ScriptedClient(front), [look], home=home).session("ann").run("The second message.")
    alone = await agents(home).run("The second message.", history=first.messages, handed_to=first.handed_to)
    assert alone.answer == second.answer


async def test_killed_after_any_event_the_run_is_resumed_to_the_same_end(home: Path) -> None:
    await agents(home).run("The first message.", run_id="r")
    for kept in cuts(home):
        result = await agents(home).resume("r")
        assert (result.answer, result.handed_to) == ("first, [a] known, [b] known", ("billing",)), kept
        handed = [row.event for row in open_store(home).rows("r") if isinstance(row.event, ev.HandedOver)]
        assert len(handed) == 1, kept
        assert result.usage.requests in (4, 5), kept
    assert kept > 20


async def test_a_message_reaches_the_agent_that_has_the_conversation(home: Path) -> None:
    def listen(event: Any) -> None:
        if isinstance(event, ev.HandedOver):
            mailbox_of(open_store(home), "r").send("say alpha")

    result = await agents(home).run("The first message.", run_id="r", listeners=[listen])
    assert result.answer == "first, [a] known, [b] known, alpha"
    (message,) = [row.event for row in open_store(home).rows("r") if isinstance(row.event, ev.MessageReceived)]
    assert message.agent == "main/handoff:billing"
    assert [m.text for m in result.messages if m.role == "user"] == ["The first message.", "say alpha"]


async def test_a_fork_after_the_handoff_continues_with_the_other_agent(home: Path) -> None:
    agent = agents(home)
    await agent.run("The first message.", run_id="r")
    at = next(n for n, row in enumerate(open_store(home).rows("r")) if isinstance(row.event, ev.HandedOver))
    result = await agent.fork("r", at=f"e{at}", new_run_id="forked")
    assert (result.answer, result.handed_to) == ("first, [a] known, [b] known", ("billing",))


async def test_two_agents_hand_over_to_each_other(home: Path) -> None:
    def desk(view: RequestView) -> Turn:
        return answer("done") if "back" in view.text else Turn(calls=[call("transfer_to_billing")])

    def office(view: RequestView) -> Turn:
        return Turn("Please go back.", calls=[call("transfer_to_desk")])

    billing = Agent(ScriptedClient(office), name="billing", home=home, handoffs=[Handoff(lambda: triage, name="desk")])
    triage = Agent(ScriptedClient(desk), name="desk", home=home, handoffs=[Handoff(billing, description="Bills.")])
    result = await triage.run("Go")
    assert (result.answer, result.handed_to) == ("done", ("billing", "desk"))
    described = [spec.description for spec in triage.plan().manager.specs() if spec.name == "transfer_to_billing"]
    assert described == ["Hand the conversation over to billing. Bills."]


async def test_agents_that_hand_over_for_ever_are_stopped(home: Path) -> None:
    def passes_on(view: RequestView) -> Turn:
        (transfer,) = [name for name in view.tools if name.startswith("transfer")]
        return answer("me then") if "Answer it yourself" in view.text else Turn(calls=[call(transfer)])

    first = Agent(ScriptedClient(passes_on), name="a", home=home, handoffs=[Handoff(lambda: second, name="b")])
    second = Agent(ScriptedClient(passes_on), name="b", home=home, handoffs=[Handoff(first)])
    result = await first.run("Go")
    assert result.answer == "me then"
    assert len(result.handed_to) == 8


async def test_a_response_continues_with_the_agent_that_answered_the_last_one(home: Path) -> None:
    async with serving(agents(home)) as served, client_of(served.base_url) as client:
        first = await client.responses.create(model="agent", input="The first message.")
        second = await client.responses.create(
            model="agent", input="The second message.", previous_response_id=first.id
        )
    assert first.output_text == "first, [a] known, [b] known"
    assert second.output_text == "first, [a] known, [b] known, second"


LONG = "This is long enough to be streamed. " * 12


async def test_the_text_of_the_other_agent_is_streamed_while_it_is_written(home: Path) -> None:
    async with written_model() as model:
        billing = Agent("openai:x", name="billing", base_url=model.base_url, api_key="k", home=home)
        front = Agent(ScriptedClient([call("transfer_to_billing")] * 2), handoffs=[billing], home=home)
        async with serving(front) as served, client_of(served.base_url) as client:
            stream = await client.responses.create(model="agent", input="Hello.", stream=True)
            reply = await model.asked()
            reply.text(LONG)
            seen: list[Any] = []
            async for event in stream:  # the reply has not ended
                seen.append(event)
                if event.type == "response.output_text.delta":
                    break
            reply.text("The end.")
            reply.end()
            seen += [event async for event in stream]
            chunks: Any = await client.chat.completions.create(
                model="agent", messages=[{"role": "user", "content": "Hello."}], stream=True
            )
            reply = await model.asked()
            reply.text(LONG)
            texts: list[str] = []
            async for chunk in chunks:
                texts.append(chunk.choices[0].delta.content or "")
                if texts[-1]:
                    break
            reply.text("The end.")
            reply.end()
            texts += [chunk.choices[0].delta.content or "" async for chunk in chunks]
    assert seen[-1].response.output_text == "".join(texts) == f"{LONG}The end."
    assert [item.name for item in seen[-1].response.output if item.type == "mcp_call"] == ["transfer_to_billing"]


def test_turns_are_counted_to_the_answer_of_the_other_agent(home: Path) -> None:
    assert agents(home).run_sync("The first message.", run_id="r").turns == 4
    totals = RunTotals(row.event for row in open_store(home).rows("r"))
    assert (totals.turns, totals.attempts) == (4, 1)


def test_a_settings_file_names_the_agents_that_take_over(home: Path, tmp_path: Path) -> None:
    (tmp_path / "offices.py").write_text(
        "from closeout import Agent\nfrom closeout.testing import ScriptedClient, answer\n"
        "legal = Agent(ScriptedClient([answer('No.')]), name='legal')\n"
    )
    clerk = {"description": "For invoices.", "instructions": "You are billing.", "max_turns": 3}
    parts = {"handoffs": ["billing", "offices:legal"], "sub_agents": {"billing": clerk}}
    (tmp_path / "desk.yaml").write_text(json.dumps({"agent": parts}))

    def both(view: RequestView) -> Turn:
        if "You are billing." in view.text:
            return answer("It was 5.")
        assert {"transfer_to_billing", "transfer_to_legal"} <= set(view.tools)
        return call("transfer_to_billing")

    agent = Agent(ScriptedClient(both), config=tmp_path / "desk.yaml", home=home)
    session = agent.session("ann")
    first = session.run_sync("The invoice?")
    assert (first.answer, first.handed_to, first.turns) == ("It was 5.", ("billing",), 2)
    assert session.run_sync("Again?").usage.requests == 1
    with pytest.raises(ConfigError, match=r"'agent.handoffs': No sub-agent bills is defined.*there: billing"):
        Agent(ScriptedClient([]), config={"agent": {**parts, "handoffs": ["bills"]}})


def test_what_cannot_be_handed_over_is_refused(home: Path) -> None:
    unnamed = Agent(ScriptedClient([answer("x")]), home=home)
    with pytest.raises(ToolDefinitionError, match="Handoff has no argument 'input_filter'"):
        Handoff(unnamed, name="billing", input_filter=print)  # type: ignore[arg-type]
    for wrong, error in (([unnamed], ToolDefinitionError), (["billing"], UsageError), (unnamed, UsageError)):
        with pytest.raises(error):
            Agent(ScriptedClient([answer("x")]), handoffs=wrong, home=home)
    named = Agent(ScriptedClient([answer("x")]), name="billing", home=home)
    with pytest.raises(ConfigError, match="dialect code has no handoffs"):
        Agent(ScriptedClient([answer("x")]), handoffs=[named], dialect="code", home=home)


async def test_a_run_after_a_handoff_that_waits_belongs_to_the_agent_of_the_session(home: Path) -> None:
    @tool(read_only=True)
    async def await_payment(context: RunContext) -> str:
        """Wait until it is paid."""
        return f"paid {await context.wait_for('payment')}"

    def waits(view: RequestView) -> Turn:
        return answer("It is paid.") if "paid 7" in view.text else Turn(calls=[call("await_payment")])

    billing = Agent(ScriptedClient(waits), [await_payment], name="billing", home=home)
    desk = Agent(ScriptedClient(front), [look], name="desk", handoffs=[billing], home=home)
    waiting = await desk.run("Pay.", run_id="r", handed_to=("billing",))
    await desk.signal("r", "payment", 7)
    assert (waiting.status, await billing.resume_due()) == ("waiting", [])  # another agent, with no such handoff
    assert [each.run_id for each in (await desk.check_runs()).runs] == ["r"]
    (result,) = await desk.resume_due()
    assert (result.run_id, result.answer) == ("r", "It is paid.")


def test_two_handoffs_with_one_name_are_refused_in_the_words_of_the_user() -> None:
    other = Agent(ScriptedClient([]), name="hardware", home=False)
    with pytest.raises(ToolDefinitionError, match=r"the agent 'Hand the .*Handoff\(agent, tool_name="):
        Agent(ScriptedClient([]), home=False, handoffs=[Handoff(other), Handoff(other, description="Broken ones.")])


def test_names_in_other_scripts_make_different_names_of_tools() -> None:
    names = [Handoff(Agent(ScriptedClient([]), name=name, home=False)).name for name in ("账单", "退款", "账单A")]
    assert len(set(names)) == 3
    assert all(name.isascii() and name.replace("_", "").isalnum() for name in names)
