"""Runs that wait for people: calls are approved, edited or denied, questions are answered, nothing runs twice."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cli_process import here, on_terminal
from closeout import Agent, Decision, RunContext, ToolExecutor, ToolManager, tool
from closeout.cli.deciding import describe_pending
from closeout.config import load_config
from closeout.errors import ConfigError, DecisionRefused, JournalLocked, ToolDefinitionError, UsageError
from closeout.homes import Home
from closeout.journal import events as ev
from closeout.journal.run_journal import Journal
from closeout.journal.store import Store, open_store
from closeout.messages import ToolCall
from closeout.run.lifecycle import replay_run
from closeout.run.waits.decisions import PendingDecision, call_digest, pending_decisions, record_decisions
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, serve_script
from closeout.testing.scripted_server import ScriptedServer
from closeout.tools.builtin import ask_tool, ask_user
from closeout.visible import visible


class Bank:
    """Tools that move money, and what they did."""

    def __init__(self, approval: Any = "always") -> None:
        self.paid: list[tuple[str, int]] = []
        self.looked: list[str] = []

        @tool(approval=approval)
        def pay(key: str, amount: int = 1) -> str:
            """Pay a bill."""
            self.paid.append((key, amount))
            return f"[{key}] paid {amount}"

        @tool(read_only=True)
        def look(key: str) -> str:
            """Look up a key."""
            self.looked.append(key)
            return f"[{key}] known"

        self.tools = [pay, look]


def pays(*keys: str) -> Any:
    """A model that pays these together with a look-up, and is done when it has seen the results."""

    def script(view: RequestView) -> Turn:
        if "paid" in view.text or "denied" in view.text:
            return answer("done")
        return Turn(calls=[call("pay", key=keys[0]), call("look", key="x"), *(call("pay", key=k) for k in keys[1:])])

    return script


def bank_agent(home: Path, bank: Bank, *keys: str, **options: Any) -> Agent:
    return Agent(ScriptedClient(pays(*keys)), bank.tools, home=home, **options)


def shown_to_model(result: Any) -> str:
    return "\n".join(str(message["content"]) for message in result.messages if message["role"] == "tool")


def store_of(home: Path) -> Store:
    return open_store(home)


# ------------------------------------------------------------------------------------------------- approval


async def test_a_call_that_needs_approval_suspends_the_run_after_its_siblings(home: Path) -> None:
    bank = Bank()
    result = await bank_agent(home, bank, "a").run("Pay a", run_id="r")
    assert (result.status, result.stop_reason, result.answer) == ("waiting", "waiting", None)
    assert (bank.paid, bank.looked) == ([], ["x"])
    (pending,) = result.waiting
    assert (pending.id, pending.kind, pending.tool) == ("r1", "approval", "pay")
    assert pending.arguments == {"key": "a"}
    assert pending.hash == call_digest(bank.tools[0].spec, {"key": "a"})
    assert pending.reason == "pay needs approval."
    assert store_of(home).run("r").status == "waiting"
    assert json.loads(json.dumps(result.to_dict()))["waiting"][0]["id"] == "r1"


async def test_an_approved_call_runs_once_in_another_agent_object(any_home: Home) -> None:
    bank = Bank()
    await bank_agent(any_home, bank, "a").run("Pay a", run_id="r")
    result = await bank_agent(any_home, bank, "a").resume("r", decisions={"r1": True})
    assert (result.status, result.answer) == ("answered", "done")
    assert (bank.paid, bank.looked) == ([("a", 1)], ["x"])
    assert result.usage.requests == 2
    assert (await bank_agent(any_home, bank, "a").resume("r")).answer == "done"
    assert bank.paid == [("a", 1)]


async def test_resuming_without_a_decision_waits_on_at_no_cost(home: Path) -> None:
    bank = Bank()
    agent = bank_agent(home, bank, "a", "b")
    first = await agent.run("Pay", run_id="r")
    again = await agent.resume("r")
    assert again.waiting == first.waiting
    assert again.usage == first.usage
    assert bank.looked == ["x"]
    half = await agent.resume("r", decisions={"r3": True})
    assert [pending.id for pending in half.waiting] == ["r1"]
    assert bank.paid == [("b", 1)]
    result = await agent.resume("r", decisions={"r1": True})
    assert result.answer == "done"
    assert bank.paid == [("b", 1), ("a", 1)]
    requested = [row.event.key for row in store_of(home).rows("r") if isinstance(row.event, ev.DecisionRequested)]
    assert requested == ["r1", "r3"]


async def test_the_arguments_that_a_person_writes_instead_are_used_as_written(home: Path) -> None:
    bank = Bank()
    agent = bank_agent(home, bank, "a")
    await agent.run("Pay a", run_id="r")
    edit = Decision(verdict="approve", arguments={"key": "b", "amount": 5})
    result = await agent.resume("r", decisions={"r1": edit})
    assert bank.paid == [("b", 5)]
    assert "The user changed the arguments of this call before it was made.\n[b] paid 5" in shown_to_model(result)
    assert [repair.kind for repair in result.repairs] == ["edited_by_user"]


@pytest.mark.parametrize("arguments", [{}, {"key": "b", "amount": "5"}, {"key": "b", "amuont": 5}])
async def test_an_edit_that_does_not_fit_is_neither_repaired_nor_run(home: Path, arguments: dict[str, Any]) -> None:
    bank = Bank()
    agent = bank_agent(home, bank, "a")
    await agent.run("Pay a", run_id="r")
    result = await agent.resume("r", decisions={"r1": {"verdict": "approve", "arguments": arguments}})
    assert bank.paid == []
    assert result.status == "waiting", "the model makes its call again, which needs a decision of its own"
    assert "that the user wrote instead do not fit" in str([row.event for row in store_of(home).rows("r")])


async def test_a_denied_call_does_not_run_and_the_model_reads_why(home: Path) -> None:
    bank = Bank()
    agent = bank_agent(home, bank, "a")
    await agent.run("Pay a", run_id="r")
    result = await agent.resume("r", decisions={"r1": Decision(verdict="deny", text="too much")})
    assert (result.answer, bank.paid) == ("done", [])
    assert "The user denied this call: too much" in shown_to_model(result)
    assert set(result.telemetry.by_tool) == {"look"}


async def test_a_decision_is_made_once_and_all_of_them_or_none(home: Path) -> None:
    bank = Bank()
    agent = bank_agent(home, bank, "a", "b")
    await agent.run("Pay", run_id="r")
    with pytest.raises(DecisionRefused, match=r"does not wait for a decision on 'r9'. It waits for: r1, r3"):
        await agent.resume("r", decisions={"r1": True, "r9": True})
    record_decisions(store_of(home), "r", {"r1": False})
    with pytest.raises(DecisionRefused, match="r1 of run r was decided before: deny"):
        await agent.resume("r", decisions={"r1": True})
    assert bank.paid == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("yes", "approve or deny"),
        (Decision(verdict="answer", text="yes"), "approve or deny"),
        ({"verdict": "maybe"}, "True, False, a text or a Decision"),
        ({"approve": True}, "must have a verdict"),
        (None, "True, False, a text or a Decision"),
        ({"verdict": "approve", "hash": "0" * 64}, "made on something else"),
        ({"verdict": "deny", "arguments": {}}, "go with 'approve'"),
        ({"verdict": "approve", "arguments": [1]}, "must be an object"),
        ({"verdict": "approve", "arguments": {"key": float("nan")}}, "not JSON"),
        ({"verdict": "approve", "arguments": {"key": object()}}, "not JSON"),
        ({"verdict": "deny", "text": 5}, "must be strings"),
    ],
)
async def test_a_decision_that_does_not_fit_is_refused_and_nothing_recorded(
    home: Path, value: Any, message: str
) -> None:
    bank = Bank()
    agent = bank_agent(home, bank, "a")
    (pending,) = (await agent.run("Pay a", run_id="r")).waiting
    with pytest.raises(DecisionRefused, match=message):
        record_decisions(store_of(home), "r", {"r1": value})
    assert pending_decisions(store_of(home).rows("r")) == (pending,)


async def test_a_rule_sees_the_arguments_and_says_why(home: Path) -> None:
    bank = Bank(approval=lambda arguments: f"{arguments['key']} is far away" if arguments["key"] == "b" else False)
    agent = bank_agent(home, bank, "a", "b")
    result = await agent.run("Pay", run_id="r")
    assert [(pending.id, pending.reason) for pending in result.waiting] == [("r3", "b is far away")]
    assert bank.paid == [("a", 1)]


async def test_a_rule_that_changes_its_mind_changes_nothing_that_began(home: Path) -> None:
    rule = {"a": False, "b": True}
    bank = Bank(approval=lambda arguments: rule[arguments["key"]])
    agent = bank_agent(home, bank, "a", "b")
    await agent.run("Pay", run_id="r")
    rule.update(a=True, b=False)
    result = await agent.resume("r")
    assert [pending.id for pending in result.waiting] == ["r3"]
    result = await agent.resume("r", decisions={"r3": False})
    assert (result.answer, bank.paid) == ("done", [("a", 1)])


async def test_a_rule_may_look_at_the_run_and_wait_for_what_it_needs(home: Path) -> None:
    async def above_limit(arguments: Any, context: RunContext[dict[str, int]]) -> str | None:
        await asyncio.sleep(0)
        limit = context.deps[context.user]
        return f"{context.user} may pay {limit}" if arguments["amount"] > limit else None

    bank = Bank(approval=above_limit)
    limits = {"ann": 5, "bob": 1}
    for user, waits in (("ann", []), ("bob", ["bob may pay 1"])):
        model = ScriptedClient([call("pay", key=user, amount=3), answer("done")])
        result = await Agent(model, bank.tools, home=home).run("Pay", user=user, deps=limits)
        assert [pending.reason for pending in result.waiting] == waits
    assert bank.paid == [("ann", 3)]
    resumed = await Agent(model, bank.tools, home=home).resume(result.run_id, deps=limits, decisions={"r1": True})
    assert (resumed.answer, bank.paid) == ("done", [("ann", 3), ("bob", 3)])


async def test_a_rule_keeps_what_its_defaults_bind(home: Path) -> None:
    rules = [lambda arguments, most=most: len(arguments) > most for most in (0, 1)]
    found = [await bank_agent(home, Bank(approval=rule), "a").run("Pay a") for rule in rules]
    assert [len(each.waiting) for each in found] == [1, 0]


async def test_a_rule_that_raises_asks(home: Path) -> None:
    bank = Bank(approval=lambda arguments: arguments["missing"])
    (pending,) = (await bank_agent(home, bank, "a").run("Pay a")).waiting
    assert pending.reason == "The approval rule of pay raised KeyError: 'missing'"


def test_an_approval_that_is_no_rule_is_refused(home: Path) -> None:
    with pytest.raises(ToolDefinitionError, match="approval must be 'always', 'never' or a function"):
        bank_agent(home, Bank(approval="sometimes"), "a")
    with pytest.raises(ToolDefinitionError, match=r"Write rule\(arguments\) or rule\(arguments, context\)"):
        bank_agent(home, Bank(approval=lambda arguments, context, more: True), "a")


async def test_outside_of_a_run_a_call_that_needs_approval_is_refused() -> None:
    bank = Bank()
    (outcome,) = await ToolExecutor(ToolManager(bank.tools)).execute_calls([ToolCall("pay", {"key": "a"})])
    assert (outcome.status, bank.paid) == ("refused", [])
    assert "needs the approval of a person" in outcome.text


async def test_a_run_that_is_executed_cannot_be_decided(home: Path) -> None:
    seen = []

    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        with pytest.raises(JournalLocked):
            record_decisions(store_of(home), "r", {"r1": True})
        seen.append(key)
        return "[x] known"

    bank = Bank()
    await Agent(ScriptedClient(pays("a")), [bank.tools[0], look], home=home).run("Pay a", run_id="r")
    assert seen == ["x"]


async def test_a_run_that_was_cancelled_while_it_waited_asks_again_before_the_call_is_made(home: Path) -> None:
    bank = Bank()
    agent = bank_agent(home, bank, "a", "b")
    await agent.run("Pay", run_id="r")

    def cancel(event: object) -> None:
        if isinstance(event, ev.DecisionMade):
            asyncio.get_running_loop().call_soon(resumed.cancel)

    resumed = asyncio.ensure_future(agent.resume("r", decisions={"r1": False}, listeners=[cancel]))
    await asyncio.gather(resumed, return_exceptions=True)
    store = store_of(home)
    assert store.run("r").status == "cancelled"
    assert pending_decisions(store.rows("r")) == ()
    with pytest.raises(DecisionRefused, match="it was cancelled"):
        record_decisions(store, "r", {"r3": True})
    again = await agent.resume("r")
    assert [pending.id for pending in again.waiting] == ["r3"]
    assert bank.paid == []
    await agent.resume("r", decisions={"r3": True})
    assert bank.paid == [("b", 1)]


@pytest.mark.parametrize("when", ["approved before the change", "approved after the change"])
async def test_an_approval_is_for_the_tool_as_it_was_shown(home: Path, when: str) -> None:
    paid: list[int] = []

    def agent_of(unit: str) -> Agent:
        @tool(approval="always", description=f"Pay an amount in {unit}.")
        def pay(amount: int) -> str:
            paid.append(amount)
            return "paid"

        script = lambda view: answer("done") if "paid" in view.text else call("pay", amount=100)  # noqa: E731
        return Agent(ScriptedClient(script), [pay], home=home)

    await agent_of("cents").run("Pay", run_id="r")
    if when == "approved before the change":
        record_decisions(store_of(home), "r", {"r1": True})
    changed = await agent_of("dollars").resume("r", despite_changes=True)
    assert (changed.status, paid) == ("waiting", [])
    assert "has changed" in changed.waiting[0].reason
    assert (await agent_of("dollars").resume("r", decisions={"r1": True}, despite_changes=True)).answer == "done"
    assert paid == [100]
    assert (await agent_of("pounds").resume("r", despite_changes=True)).answer == "done", "it was called before"
    assert paid == [100]


async def test_of_many_decisions_at_once_one_counts(any_home: Home) -> None:
    bank = Bank()
    agent = bank_agent(any_home, bank, "a")
    await agent.run("Pay a", run_id="r")

    def try_it(number: int) -> bool:
        try:
            record_decisions(store_of(any_home), "r", {"r1": Decision(verdict="deny", text=str(number))})
        except (DecisionRefused, JournalLocked):
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(try_it, range(24))) == 1
    assert sum(isinstance(row.event, ev.DecisionMade) for row in store_of(any_home).rows("r")) == 1
    assert store_of(any_home).read("r").problems == ()


async def test_a_run_in_memory_waits_but_cannot_be_resumed() -> None:
    bank = Bank()
    agent = Agent(ScriptedClient(pays("a")), bank.tools, home=False)
    result = await agent.run("Pay a")
    assert result.status == "waiting"
    with pytest.raises(UsageError, match="in memory"):
        await agent.resume(result.run_id, decisions={"r1": True})


async def test_waiting_does_not_count_as_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = Bank()
    agent = bank_agent(home, bank, "a", config={"agent.max_seconds": 1000})
    await agent.run("Pay a", run_id="r")
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 50_000)
    record_decisions(store_of(home), "r", {"r1": True})
    monkeypatch.setattr(time, "time", lambda: clock() + 100_000)
    result = await agent.resume("r")
    assert result.answer == "done"
    assert result.seconds < 1000


async def test_a_waiting_run_replays_as_waiting(home: Path) -> None:
    bank = Bank()
    agent = bank_agent(home, bank, "a")
    first = await agent.run("Pay a", run_id="r")
    result, departure = await replay_run(agent.plan(), "r", list(store_of(home).rows("r")))
    assert (result.status, result.waiting, departure) == ("waiting", first.waiting, "")
    await agent.resume("r", decisions={"r1": True})
    result, departure = await replay_run(agent.plan(), "r", list(store_of(home).rows("r")))
    assert (result.answer, departure, bank.paid) == ("done", "", [("a", 1)])


# ------------------------------------------------------------------------------------------------- sub-agents


async def test_sub_agents_suspend_with_their_caller(home: Path) -> None:
    bank = Bank()

    def clerk_script(view: RequestView) -> Turn:
        key = view.question.split()[-1]
        return answer(f"[{key}] settled") if "paid" in view.text else Turn(calls=[call("pay", key=key)])

    def script(view: RequestView) -> Turn:
        if "settled" in view.text:
            return answer("done")
        return Turn(calls=[call("clerk", task="pay a"), call("look", key="x"), call("clerk", task="pay b")])

    def agent() -> Agent:
        clerk = Agent(ScriptedClient(clerk_script), bank.tools, home=home).as_tool("clerk", "Pays a bill.")
        return Agent(ScriptedClient(script), [clerk, bank.tools[1]], home=home)

    result = await agent().run("Settle", run_id="r")
    assert [pending.id for pending in result.waiting] == ["r1:clerk/r1", "r3:clerk/r1"]
    assert (bank.paid, bank.looked) == ([], ["x"])
    requests = result.usage.requests
    result = await agent().resume("r", decisions={"r3:clerk/r1": True})
    assert [pending.id for pending in result.waiting] == ["r1:clerk/r1"]
    assert result.usage.requests == requests + 1, "the clerk that was approved has finished"
    result = await agent().resume("r", decisions={"r1:clerk/r1": True})
    assert (result.answer, bank.paid, bank.looked) == ("done", [("b", 1), ("a", 1)], ["x"])
    assert result.usage.requests == requests + 3


# ------------------------------------------------------------------------------------------------- questions


def asks(question: str = "Which account?", **arguments: Any) -> Any:
    def script(view: RequestView) -> Turn:
        results = [m["content"] for m in view.messages if m["role"] == "tool"]
        return answer(results[-1]) if results else Turn(calls=[call("ask_user", question=question, **arguments)])

    return script


async def test_a_question_waits_for_its_answer(home: Path) -> None:
    agent = Agent(ScriptedClient(asks(options=["blue", "red"])), [ask_user], home=home)
    (pending,) = (await agent.run("Pay", run_id="r")).waiting
    assert (pending.id, pending.kind, pending.tool, pending.expires) == ("r1", "question", "ask_user", None)
    assert pending.arguments == {"question": "Which account?", "options": ["blue", "red"]}
    with pytest.raises(DecisionRefused, match="answer it with a text"):
        await agent.resume("r", decisions={"r1": True})
    assert (await agent.resume("r", decisions={"r1": "red"})).answer == "red"


async def test_a_question_may_be_declined(home: Path) -> None:
    agent = Agent(ScriptedClient(asks()), [ask_user], home=home)
    await agent.run("Pay", run_id="r")
    result = await agent.resume("r", decisions={"r1": {"verdict": "deny", "text": "guess"}})
    assert "The user did not answer: guess" in shown_to_model(result)


async def test_a_default_answer_makes_a_run_unattended(home: Path) -> None:
    agent = Agent(ScriptedClient(asks()), [ask_tool(max_wait=0, default="blue")], home=home)
    assert (await agent.run("Pay")).answer == "blue"


async def test_a_default_answer_counts_after_its_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(ScriptedClient(asks()), [ask_tool(max_wait=60, default="blue")], home=home)
    (pending,) = (await agent.run("Pay", run_id="r")).waiting
    assert pending.default == "blue"
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 30)
    (again,) = (await agent.resume("r")).waiting
    assert again.expires == pending.expires
    monkeypatch.setattr(time, "time", lambda: clock() + 61)
    assert (await agent.resume("r")).answer == "blue"


async def test_any_tool_may_ask_several_questions(home: Path) -> None:
    begun = []

    @tool(on_crash="rerun", timeout=None)
    async def book(context: RunContext) -> str:
        """Book a room."""
        begun.append(1)
        day = await context.ask("Which day?")
        room = await context.ask("Which room?")
        return f"{day}, {room}"

    def script(view: RequestView) -> Turn:
        results = [m["content"] for m in view.messages if m["role"] == "tool"]
        return answer(results[-1]) if results else Turn(calls=[call("book")])

    agent = Agent(ScriptedClient(script), [book], home=home)
    await agent.run("Book", run_id="r")
    (pending,) = (await agent.resume("r", decisions={"r1": "Monday"})).waiting
    assert (pending.id, pending.arguments["question"]) == ("r1.2", "Which room?")
    assert (await agent.resume("r", decisions={"r1.2": "blue"})).answer == "Monday, blue"
    assert len(begun) == 3


async def test_a_tool_that_may_not_be_called_again_cannot_ask(home: Path) -> None:
    @tool
    async def book(context: RunContext) -> str:
        """Book a room."""
        return await context.ask("Which day?")

    def script(view: RequestView) -> Turn:
        return answer("no") if "must be read_only" in view.text else Turn(calls=[call("book")])

    assert (await Agent(ScriptedClient(script), [book], home=home).run("Book")).answer == "no"


# ------------------------------------------------------------------------------------------------- MCP servers


async def test_the_tools_of_servers_need_approval_by_their_hints_or_the_settings() -> None:
    server = Path(__file__).parent / "mcp_servers" / "notes.py"
    entry = {"command": sys.executable, "args": [str(server)]}
    rules = {"strict": "always", "strict/write_note": "never", "mixed/read_note": "always"}
    async with ToolManager((), {"strict": entry, "mixed": entry}, approval=rules) as manager:
        approved = {spec.name for spec in manager.specs() if spec.policy.approval == "always"}
    assert approved == {"strict-read_note", "strict-delete_note", "mixed-read_note", "mixed-delete_note"}


def test_an_unknown_approval_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tools\.approval"):
        load_config({"tools.approval": "sometimes"})


# ------------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A model that asks two questions in one reply, and answers with what it was told."""

    def script(view: RequestView) -> Turn:
        told = [str(m["content"]) for m in view.messages if m["role"] == "tool"]
        if told:
            return answer(" and ".join(told))
        asked = [call("ask_user", question="Which day?"), call("ask_user", question="Which room?", options=["blue"])]
        return Turn(calls=asked)

    with serve_script(script, record=False) as scripted:
        yield scripted


def run_waiting(server: ScriptedServer) -> str:
    """A run of the command line that waits for two answers."""
    model = ["-m", "openai:scripted", "--base-url", server.base_url, "--dialect", "function_call"]
    done = here("run", "Book a room", *model, "--tool", "ask_user", "--json")
    assert (done.code, done.json["status"]) == (4, "waiting")
    assert [each["id"] for each in done.json["waiting"]] == ["r1", "r2"]
    return str(done.json["run_id"])


def test_approve_decides_one_after_the_other_and_resumes_the_run(server: ScriptedServer) -> None:
    run_id = run_waiting(server)
    shown = here("runs", run_id)
    assert "r2 asks: Which room?\n  1. blue" in shown.out
    done = here("approve", run_id)
    assert (done.code, "waits for 2 decisions: r1, r2" in done.err) == (2, True)
    done = here("approve", run_id, "r2", "--answer", "blue")
    assert (done.code, done.out, "r1 asks: Which day?" in done.err) == (4, "", True)
    done = here("approve", run_id, "r2", "--answer", "red")
    assert (done.code, "r2 of run" in done.err, "decided before" in done.err) == (2, True, True)
    done = here("approve", run_id, "--answer", "Monday", "-q")
    assert (done.code, done.out) == (0, "Monday and blue\n")
    done = here("approve", run_id)
    assert (done.code, "does not wait for a decision" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["r1"], "answer it with a text"),
        (["r1", "--edit", "{"], "--edit is not JSON"),
        (["r1", "--edit", "5"], "must be a JSON object"),
        (["r1", "--edit", '{"amount": 12345678901234567.89}'], 'Write "12345678901234567.89", as a text'),
        (["r1", "--answer", "x", "--deny", "y"], "Give only one of"),
        (["r1", "--answer", "x", "--hash", "abc"], "made on something else"),
        (["r9", "--answer", "x"], "does not wait for a decision on 'r9'"),
    ],
)
def test_approve_says_what_is_wrong(server: ScriptedServer, options: list[str], message: str) -> None:
    run_id = run_waiting(server)
    done = here("approve", run_id, *options)
    assert (done.code, message in done.err) == (2, True)


async def test_a_run_of_a_program_is_decided_here_and_resumed_there(home: Path) -> None:
    bank = Bank()
    agent = bank_agent(home, bank, "a")
    await agent.run("Pay a", run_id="r")
    done = here("approve", "r")
    resume = "closeout resume r --agent PACKAGE.MODULE:AGENT"
    assert (done.code, f'{resume}   In Python: agent.resume("r")' in done.err) == (0, True)
    assert "decided, can be resumed" in here("runs").out
    assert f"All is decided. Resume it: {resume}" in here("runs", "r").out
    assert (await agent.resume("r")).answer == "done"
    assert bank.paid == [("a", 1)]


async def test_a_person_sees_every_character_of_what_is_approved(home: Path) -> None:
    result = await bank_agent(home, Bank(), "a\u202eb\x1b[2J").run("Pay", run_id="r")
    shown = describe_pending("r", result.waiting)
    assert 'pay(key="a\\u202eb\\u001b[2J")' in shown
    assert shown.replace("\n", "").isprintable()


@pytest.mark.parametrize("char", "\u3164\uffa0\ufe0f\U000e0101\u034f\u2800\u00ad\u180f\U0001d159")
def test_characters_that_look_like_nothing_are_shown_as_codes(char: str) -> None:
    pending = PendingDecision(
        id="r1", kind="question", tool="ask", arguments={"question": f"a{char}b"}, hash="", reason=""
    )
    shown = describe_pending("r", [pending])
    assert char not in shown
    assert f"a{json.dumps(char)[1:-1]}b" in shown


def test_text_that_is_plainly_visible_is_shown_as_it_is() -> None:
    text = "Grüße an 李, 5 € — ¿sí? ½ 😀 नमस्ते"
    assert visible(text) == text


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_person_at_the_terminal_is_asked(server: ScriptedServer) -> None:
    model = ["-m", "openai:scripted", "--base-url", server.base_url, "--dialect", "function_call"]
    env = {"OPENAI_API_KEY": "key"}
    options = ["--tool", "ask_user"]
    code, shown = on_terminal("run", "Book a room", *model, *options, columns=80, env=env, keys=b"Monday\n1\n")
    assert code == 0
    assert "Which day?" in shown
    assert "\nMonday and blue\n" in shown


async def test_a_run_that_waits_in_a_call_continues_with_other_instructions_and_its_time_goes_on(home: Path) -> None:
    @tool(read_only=True, timeout=None)
    async def ask(context: RunContext) -> str:
        """Ask a person."""
        return await context.ask("Which?")

    def agent(instructions: str) -> Agent[Any]:
        client = ScriptedClient(lambda view: call("ask") if len(view.messages) == 2 else answer("done"))
        return Agent(client, [ask], instructions=instructions, home=home)

    await agent("Be exact.").run("Go", run_id="r")
    assert (await agent("Be brief.").resume("r", decisions={"r1": "this"})).answer == "done"

    async def nothing() -> ev.Event:
        raise AssertionError("every outcome is recorded")

    rows = [row for row in open_store(home).rows("r") if not isinstance(row.event, (ev.AttemptEnded, ev.RunEnded))]
    journal = Journal.replay("r", rows)
    for row in rows:
        if isinstance(row.event, (ev.ModelRequested, ev.ToolStarted)):
            await journal.effect(row.event, nothing)
    assert not journal.replaying, "the answer belongs to the call, whose outcome was taken"
