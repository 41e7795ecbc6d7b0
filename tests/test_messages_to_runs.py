"""Messages to a running agent: they join before its next request, in order, once; none is lost without a word."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, HistoryView, tool
from closeout.errors import MessageRefused, UsageError
from closeout.homes import Home
from closeout.journal import events as ev
from closeout.journal.inbox import Inbox, Mailbox, mailbox_of
from closeout.journal.recorded import RecordedRun
from closeout.journal.store import open_store
from closeout.journal.subscribers import Progress
from closeout.messages import Capabilities, ModelRequest
from closeout.run import request_deadline
from closeout.run.lifecycle import replay_run
from closeout.run.result import conversation_of
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, once, serve_script

DIALECTS = ("function_call", "cot_chat", "cot_completion", "mcp_xml")
HARNESS = Path(__file__).parent / "harness" / "messages.py"
WORDS = ("alpha", "beta", "gamma", "delta")


def counting(turns: int = 3) -> Callable[[RequestView], Turn]:
    """A model that looks up as many keys, then answers with the messages that it was sent, in order."""

    def script(view: RequestView) -> Turn:
        left = [key for key in (f"k{n}" for n in range(turns)) if f"[{key}] known" not in view.text]
        if left:
            return Turn(f"Next is {left[0]}.", calls=[call("look", key=left[0])])
        heard = sorted(
            (view.text.find(word), word) for word in ("alpha", "beta", "gamma", "delta") if word in view.text
        )
        return answer(" ".join(word for _, word in heard) or "nothing")

    return script


def made_agent(home: Path | bool, script: Any = None, **options: Any) -> Agent:
    @tool(read_only=True, inline=True)
    def look(key: str) -> str:
        """Look up a key."""
        return f"[{key}] known"

    return Agent(ScriptedClient(script or counting()), [look], home=home, **options)


def events(home: Path, run_id: str) -> list[ev.Event]:
    return [row.event for row in open_store(home).rows(run_id)]


def received(home: Path, run_id: str) -> list[ev.MessageReceived]:
    return [event for event in events(home, run_id) if isinstance(event, ev.MessageReceived)]


def at(kind: type[ev.Event], number: int, act: Callable[[], object]) -> Callable[[Any], None]:
    """A listener that acts at the event of this kind with this number, from 1."""
    seen = 0

    def listen(event: Any) -> None:
        nonlocal seen
        seen += isinstance(event, kind)
        if isinstance(event, kind) and seen == number:
            act()

    return listen


def sends(home: Path, run_id: str, *words: str, **options: Any) -> Callable[[], None]:
    def send() -> None:
        for word in words:
            mailbox_of(open_store(home), run_id).send(word, **options)

    return send


async def test_a_message_joins_before_the_next_request_and_is_recorded(any_home: Home) -> None:
    sent = asyncio.Event()

    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        await sent.wait()
        return f"[{key}] known"

    run = Agent(ScriptedClient(counting()), [look], home=any_home).stream("Look three keys up.", run_id="r")
    with pytest.raises(UsageError, match="not begun"):
        await run.send("too early")
    async for event in run:
        if isinstance(event, ev.ToolStarted) and event.handle == "r1":
            await run.send("say alpha", by="ann")
            await run.send("say beta")
            sent.set()
    assert run.run_id == "r"
    assert run.result.answer == "alpha beta"
    first, second = received(any_home, "r")
    assert (first.text, first.by, first.request, first.agent) == ("say alpha", "ann", 1, "main")
    assert (second.text, second.request) == ("say beta", 1)
    assert first.sent <= second.sent
    users = [message.text for message in run.result.messages if message.role == "user"]
    assert users == ["Look three keys up.", "say alpha", "say beta"]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_in_every_dialect_requests_grow_at_their_end(home: Path, dialect: str) -> None:
    """Before the first request, between turns, and beside the answer: the model sees each, and no prefix changes."""
    with serve_script(counting(2)) as server:
        agent = Agent("openai:scripted", [look_of()], base_url=server.base_url, api_key="k", home=home, dialect=dialect)
        run_id = await agent.submit("Look two keys up.", run_id="r")
        await agent.send(run_id, "say alpha")
        listeners = [
            at(ev.TurnAccepted, 1, sends(home, "r", "say beta")),
            at(ev.ModelRequested, 3, sends(home, "r", "say gamma")),
        ]
        result = await agent.resume(run_id, listeners=listeners)
        assert result.answer == "alpha beta gamma", result.error
        bodies = [json.loads(body) for body in server.bodies]
    for before, after in pairwise(bodies):
        if "prompt" in before:
            assert after["prompt"].startswith(before["prompt"].removesuffix("Thought:"))
        else:
            assert after["messages"][: len(before["messages"])] == before["messages"]
            roles = [message["role"] for message in after["messages"] if message["role"] != "system"]
            assert dialect == "function_call" or all(a != b for a, b in pairwise(roles))
    assert "Final Answer: The answer is" in str(bodies[-1]) or not dialect.startswith("cot")


def look_of() -> Any:
    @tool(read_only=True)
    def look(key: str) -> str:
        """Look up a key."""
        return f"[{key}] known"

    return look


async def test_a_dialect_of_the_users_that_knows_no_messages_shows_them_in_its_note(home: Path) -> None:
    from closeout.dialects.function_call import FunctionCall

    class Own:
        name, parallel_calls = "own", True

        def __init__(self) -> None:
            self._inner = FunctionCall()
            self.notes: list[str] = []

        def render(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
            self.notes.append(view.note)
            return self._inner.render(view, capabilities)

        def reader(self, tools: Any) -> Any:
            return self._inner.reader(tools)

    own = Own()
    agent = made_agent(home, dialect=own)
    result = await agent.run("Go", run_id="r", listeners=[at(ev.TurnAccepted, 1, sends(home, "r", "say alpha"))])
    assert result.answer == "alpha"
    assert own.notes[-1] == "Message from the user: say alpha"


# ------------------------------------------------------------------------------------------------ the last moment


async def test_a_message_beside_the_final_answer_is_in_the_run(home: Path) -> None:
    listen = at(ev.ModelReplied, 4, sends(home, "r", "say delta"))  # the answer has come, and is not accepted yet
    result = await made_agent(home).run("Go", run_id="r", listeners=[listen])
    assert result.answer == "delta"
    assert [m.text for m in result.messages if m.role == "assistant" and not m.get("tool_calls")] == [
        "The answer is \\boxed{nothing}.",
        "The answer is \\boxed{delta}.",
    ]
    assert [event.request for event in received(home, "r")] == [4]


@pytest.mark.parametrize("kept", [True, False])
async def test_after_the_final_answer_a_message_is_refused_with_the_next_step(home: Path, kept: bool) -> None:
    refused: list[str] = []
    run = made_agent(home if kept else False).stream("Go")
    async for event in run:
        if isinstance(event, ev.AttemptEnded | ev.RunEnded):
            with pytest.raises(MessageRefused) as error:
                await run.send("say alpha")
            refused.append(str(error.value))
    assert run.result.answer == "nothing"
    assert len(refused) == 2
    assert all(f"agent.session('{run.run_id}')" in text for text in refused) if kept else "history" in refused[0]
    assert not run.result.warnings


async def test_an_ended_run_names_what_to_do_instead(home: Path) -> None:
    agent = made_agent(home)
    await agent.run("Go", run_id="job-7")
    with pytest.raises(MessageRefused, match=r"has ended \(answered\).*closeout runs fork job-7"):
        await agent.send("job-7", "more")
    await agent.session("ann").run("Go")
    with pytest.raises(MessageRefused, match=r"agent\.session\('ann'\)\.run"):
        await agent.send("ann.1", "more")
    broken = made_agent(home, lambda view: 1 / 0)
    failed = await broken.run("Go", run_id="broken")
    assert failed.status == "failed"
    with pytest.raises(MessageRefused, match="closeout resume broken"):
        await agent.send("broken", "more")
    for text in ("", " \n", "x" * 1_000_001):
        with pytest.raises(MessageRefused):
            await agent.send("job-7", text)
    with pytest.raises(UsageError, match="home=False"):
        await made_agent(False).send("r", "more")


async def test_of_messages_sent_all_the_time_each_is_in_the_run_or_refused(any_home: Home) -> None:
    """Two threads send while short runs end: what counts as sent is in the conversation, once and in order."""

    def send_all(run_id: str, name: str) -> list[str]:
        sent: list[str] = []
        with suppress(MessageRefused):
            for number in range(30):
                mailbox_of(open_store(any_home), run_id).send(f"{name}{number}")
                sent.append(f"{name}{number}")
        return sent

    agent = made_agent(any_home, counting(1))
    for run_id in ("r0", "r1", "r2", "r3"):
        await agent.submit("Go", run_id=run_id)
        senders = [asyncio.create_task(asyncio.to_thread(send_all, run_id, name)) for name in ("a", "b")]
        result = await agent.resume(run_id)
        sent = await asyncio.gather(*senders)
        heard = [event.text for event in received(any_home, run_id)]
        assert [[word for word in heard if word[0] == name] for name in ("a", "b")] == sent
        assert result.status in ("answered", "unanswered")
        assert not result.warnings


# ------------------------------------------------------------------------------------------------ interruptions


@pytest.mark.parametrize("dialect", ["function_call", "cot_completion"])
async def test_an_interrupting_message_cancels_the_reply_that_is_being_written(home: Path, dialect: str) -> None:
    with serve_script(counting(2), misbehave=once("slow", at=2, seconds=600)) as server:
        agent = Agent("openai:scripted", [look_of()], base_url=server.base_url, api_key="k", home=home, dialect=dialect)
        run = agent.stream("Look two keys up.", run_id="r")
        async with asyncio.timeout(60):
            async for event in run:
                if isinstance(event, ev.ModelRequested) and event.call == 1:
                    await run.send("say alpha", interrupt=True)
        assert run.result.answer == "alpha"
        bodies = [json.loads(body) for body in server.bodies]
    failed = [event for event in events(home, "r") if isinstance(event, ev.ModelFailed)]
    assert [event.kind for event in failed] == ["ReplyInterrupted"]
    assert failed[0].usage["input_tokens"] > 0
    assert run.result.usage.requests == 4  # the cancelled one is paid for
    (message,) = received(home, "r")
    assert (message.request, message.interrupts) == (2, True)
    if dialect == "function_call":
        assert bodies[2]["messages"][: len(bodies[1]["messages"])] == bodies[1]["messages"]
    replayed, departure = await replay_run(agent.plan(), "r", list(open_store(home).rows("r")))
    assert (replayed.answer, departure, replayed.usage) == ("alpha", "", run.result.usage)


async def test_a_tool_that_runs_is_not_interrupted(home: Path) -> None:
    sent = asyncio.Event()

    @tool
    async def look(key: str) -> str:
        """Look up a key."""
        await sent.wait()
        await asyncio.sleep(0.3)
        return f"[{key}] known"

    run = Agent(ScriptedClient(counting(1)), [look], home=home).stream("Go", run_id="r")
    async for event in run:
        if isinstance(event, ev.ToolStarted):
            await run.send("say alpha", interrupt=True)
            sent.set()
    assert run.result.answer == "alpha"
    assert not [event for event in events(home, "r") if isinstance(event, ev.ModelFailed)]


async def test_a_stream_withdraws_what_the_interrupted_reply_had_said(home: Path) -> None:
    def script(view: RequestView) -> Turn:
        return answer("alpha") if "alpha" in view.text else answer("never", "I think and think. " * 40)

    with serve_script(script, pause=0.05) as server:
        agent = Agent("openai:scripted", base_url=server.base_url, api_key="k", home=home)
        run, shown, sent = agent.stream("Go"), "", False
        async for event in run:
            if isinstance(event, Progress):
                shown = "" if event.kind == "discard" else shown + event.text
                if shown and not sent:
                    sent = True
                    await run.send("say alpha", interrupt=True)
    assert run.result.answer == "alpha"
    assert "think" not in shown


# ------------------------------------------------------------------------------------------------ crashes, waiting


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the harness forks a child for each kill point")
@pytest.mark.timeout(300)
def test_killed_at_every_event_a_run_has_each_message_once_and_in_order(tmp_path: Path) -> None:
    path = os.pathsep.join([str(HARNESS.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, str(HARNESS), str(tmp_path), "3"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["answer"], found["main"]) == ("m1 m2 m3 m4", ["m1", "m2", "m3", "m4"])
    assert len(found["sent"]) == 5
    assert found["writes"] >= 35
    assert found["problems"] == []


async def test_a_message_to_a_run_that_waits_is_kept_until_it_continues(any_home: Home) -> None:
    @tool(approval="always")
    def look(key: str) -> str:
        """Look up a key."""
        return f"[{key}] known"

    agent = Agent(ScriptedClient(counting(1)), [look], home=any_home)
    waiting = await agent.run("Go", run_id="r")
    assert waiting.status == "waiting"
    await agent.send("r", "say alpha")
    still = await agent.resume("r")
    assert still.status == "waiting"
    assert received(any_home, "r") == []
    result = await agent.resume("r", decisions={"r1": True})
    assert result.answer == "alpha"
    assert not result.warnings


async def test_a_fork_and_a_replay_have_the_messages_of_their_prefix(home: Path) -> None:
    agent = made_agent(home)
    listeners = [
        at(ev.TurnAccepted, 1, sends(home, "r", "say alpha")),
        at(ev.TurnAccepted, 2, sends(home, "r", "say beta")),
    ]
    result = await agent.run("Go", run_id="r", listeners=listeners)
    assert result.answer == "alpha beta"
    replayed, departure = await replay_run(agent.plan(), "r", list(open_store(home).rows("r")))
    assert (replayed.answer, departure) == ("alpha beta", "")
    assert replayed.messages == result.messages
    early, late = await agent.fork("r", at=2, new_run_id="early"), await agent.fork("r", at=4, new_run_id="late")
    assert (early.answer, late.answer) == ("alpha", "alpha beta")
    again = await agent.fork(
        "r", at=2, new_run_id="again", listeners=[at(ev.TurnAccepted, 2, sends(home, "again", "gamma"))]
    )
    assert again.answer == "alpha gamma"


async def test_a_later_attempt_and_a_compacted_history_keep_the_users_words(home: Path) -> None:
    def script(view: RequestView) -> Any:
        tried = view.text.count("known")
        if "alpha" in view.text and tried > 1:
            return answer("alpha")
        return call("look", key=f"k{tried}")

    agent = made_agent(home, script, max_turns=1, context_compress_limit=2)
    result = await agent.run("Go", run_id="r", listeners=[at(ev.TurnAccepted, 1, sends(home, "r", "say alpha"))])
    starts = [event for event in events(home, "r") if isinstance(event, ev.AttemptStarted)]
    assert len(starts) > 1
    users = [m.text for m in conversation_of(list(open_store(home).rows("r")), "") if m.role == "user"]
    assert users.count("say alpha") == 1
    assert result.attempts == len(starts)

    from closeout.context.history import History

    step = ev.TurnAccepted("main", 0, 0, text="t")
    message = ev.MessageReceived("main", "x", 1, text="say alpha")
    history = History("", "Go").after([step, message, ev.Compacted("main", 0, 1, summary="Done.")])
    assert (history.messages, len(history.steps)) == (("say alpha",), 0)


# ------------------------------------------------------------------------------------------------ agents, sessions


async def test_a_message_goes_to_the_main_agent_or_to_the_one_that_is_named(home: Path) -> None:
    def clerks_turn(view: RequestView) -> Turn:
        return answer("clerk heard beta") if "beta" in view.text else Turn(calls=[call("look", key="x")])

    @tool(read_only=True, inline=True, repeatable=True)
    def look(key: str) -> str:
        """Look."""
        return f"[{key}] known"

    def script(view: RequestView) -> Turn:
        if "clerk heard" not in view.text:
            return Turn(calls=[call("clerk", task="go")])
        return answer(" ".join(word for word in WORDS if word in view.text))

    clerk = Agent(ScriptedClient(clerks_turn, name="clerk"), [look], home=home)
    agent = Agent(ScriptedClient(script), [clerk.as_tool("clerk", "Does it.")], home=home)

    def begun() -> None:
        sends(home, "r", "alpha")()
        sends(home, "r", "beta", to="clerk")()
        with pytest.raises(MessageRefused, match=r"No agent 'tailor'.*main/r1:clerk"):
            sends(home, "r", "gamma", to="tailor")()

    ended = at(ev.AttemptEnded, 1, sends(home, "r", "delta", to="clerk"))
    result = await agent.run("Go", run_id="r", listeners=[at(ev.AgentStarted, 1, begun), ended])
    assert result.answer == "alpha beta delta"  # beta in the clerk's report; delta came too late for the clerk
    assert [(event.agent, event.text) for event in received(home, "r")] == [
        ("main/r1:clerk", "beta"),
        ("main", "alpha"),
        ("main", "delta"),
    ]


async def test_a_session_has_the_messages_and_its_next_message_follows_them(home: Path) -> None:
    session = made_agent(home).session("ann")
    with pytest.raises(MessageRefused, match=r"session\.run"):
        await session.send("alpha")
    listen = at(ev.TurnAccepted, 2, lambda: tasks.append(asyncio.ensure_future(session.send("say alpha"))))
    tasks: list[Any] = []

    @tool(read_only=True)
    async def look(key: str) -> str:
        """Look up a key."""
        await asyncio.gather(*tasks)
        return f"[{key}] known"

    session = Agent(ScriptedClient(counting()), [look], home=home).session("ann")
    first = await session.run("Look three keys up.", listeners=[listen])
    assert first.answer == "alpha"
    second = await session.run("And now?")
    said = [m.text for m in second.messages if m.role == "user"]
    assert said == ["Look three keys up.", "say alpha", "And now?"]
    assert [m.text for m in made_agent(home).session("ann").messages if m.role == "user"] == said


async def test_runs_that_nobody_writes_to_keep_no_table_and_their_events(home: Path) -> None:
    await made_agent(home).run("Go", run_id="r")
    store = open_store(home)
    assert not store.database.has_table("messages")
    with pytest.raises(MessageRefused):
        mailbox_of(store, "r").send("alpha")
    await made_agent(home).submit("Go", run_id="s")
    mailbox_of(store, "s").send("alpha")
    store.delete_runs(["s"])
    assert store.query("SELECT * FROM messages") == []
    await made_agent(home).submit("Go", run_id="t")  # it may get the number of the deleted run
    assert (await made_agent(home).resume("t")).answer == "nothing"


async def test_the_requests_of_a_run_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_deadline, "WATCH_SECONDS", 3600.0)
    inbox, loop, timers = Inbox(Mailbox(None, "r"), RecordedRun(())), asyncio.get_running_loop(), list[float]()
    call_later = loop.call_later
    monkeypatch.setattr(loop, "call_later", lambda delay, *call: (timers.append(delay), call_later(delay, *call))[1])
    for _ in range(3):
        async with request_deadline.RequestDeadline(
            None, inbox, "main", lambda: request_deadline.ReplyInterrupted("interrupted")
        ):
            await asyncio.sleep(0)
    assert timers == [3600.0]


async def test_a_message_while_a_late_request_is_ended_disturbs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_deadline, "WATCH_SECONDS", 0.02)
    inbox, problems = Inbox(Mailbox(None, "r"), RecordedRun(())), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))

    async def request() -> None:
        async with request_deadline.RequestDeadline(
            0.01, inbox, "main", lambda: request_deadline.ReplyInterrupted("interrupted")
        ):
            try:
                await asyncio.sleep(600)
            finally:
                assert inbox.mailbox is not None
                inbox.mailbox.send("Stop.", interrupt=True)
                await asyncio.sleep(0.1)  # closes the connection

    with pytest.raises(TimeoutError):
        await request()
    assert problems == []
