"""Nobody hears of an end before it is recorded, and what comes after the record changes nothing."""

import asyncio
from contextlib import nullcontext
from itertools import count

import pytest

from closeout import Agent, StreamHandler, tool
from closeout.errors import JournalError, UsageError
from closeout.journal.events import RunEnded
from closeout.journal.on_sqlite import SqliteJournal
from closeout.journal.store import Store
from closeout.testing import ScriptedClient, answer, call
from serving import serving


@tool(read_only=True)
def lookup(key: str) -> str:
    """Look up a key."""
    return f"value of {key}"


def agent_in(home, **options):
    return Agent(ScriptedClient([call("lookup", key="a"), answer("42")], by="question"), [lookup], home=home, **options)


async def leave_stream(session, at):
    """Leave a stream at its event number `at`. Returns the end that it told, and whether it ended by itself."""
    stream = session.stream(f"Question {at}")
    events = aiter(stream)
    for _ in range(at + 1):
        event = await anext(events, None)
        if event is None or isinstance(event, RunEnded):
            break
    told = event if isinstance(event, RunEnded) else None
    await events.aclose()
    if told is not None:
        assert stream.result.answer == "42"
    return told, event is None or told is not None


async def cancel_from_a_queue(session, at):
    """Cancel a run's task once the queue of its handler has `at` events more."""
    queue, told, ended = asyncio.Queue(), None, False
    run = asyncio.ensure_future(session.run(f"Question {at}", listeners=[StreamHandler(queue)]))
    for _ in range(at + 1):
        event = await queue.get()
        if event["event"] == "end_of_workflow":
            told, ended = event["data"], True
            break
    run.cancel()
    await asyncio.wait([run])
    return told, ended


async def cancel_in_a_listener(session, at):
    """Cancel a run's task from inside the callback of its event number `at`."""
    seen = []

    def listener(event):
        seen.append(event)
        if len(seen) == at + 1:
            run.cancel()

    run = asyncio.ensure_future(session.run(f"Question {at}", listeners=[listener]))
    await asyncio.wait([run])
    told = next((event for event in seen if isinstance(event, RunEnded) and event.status == "answered"), None)
    return told, len(seen) <= at or told is not None


async def cancel_in_a_slow_handler(session, at):
    """Cancel a run's task while an overridden method of its handler works on an event."""
    told, seen = [], []

    class Handler(StreamHandler):
        async def update(self, event_type, data):
            seen.append(event_type)
            if event_type == "end_of_workflow":
                told.append(data)
            if len(seen) == at + 1:
                run.cancel()
            await asyncio.sleep(0)

    run = asyncio.ensure_future(session.run(f"Question {at}", listeners=[Handler()]))
    await asyncio.wait([run])
    ends = [data for data in told if data["status"] == "answered"]
    return (ends or [None])[0], len(seen) <= at or bool(ends)


@pytest.mark.parametrize("leave", [leave_stream, cancel_from_a_queue, cancel_in_a_listener, cancel_in_a_slow_handler])
@pytest.mark.parametrize("kept", [True, False])
async def test_the_record_and_what_was_told_agree_wherever_a_run_is_left(leave, kept, tmp_path):
    agent = agent_in(tmp_path if kept else False)
    for at in count():
        session = agent.session(f"chat{at}")
        told, over = await leave(session, at)
        remembered = [message.text for message in session.messages]
        if told is not None:
            assert remembered[-1] == "The answer is \\boxed{42}.", at
        if kept and (records := session.runs):
            assert (records[0].status == "answered") == (told is not None or bool(remembered)), at
            if told is not None:
                assert records[0].status == "answered"
        if over:
            break
    assert at > 3


async def test_an_end_that_cannot_be_recorded_is_told_as_a_failure(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    told = []
    monkeypatch.setattr(Store, "_commit", fail)
    monkeypatch.setattr(Store, "flush", lambda self: None)
    agent = Agent(ScriptedClient([answer("42")]), home=tmp_path)
    result = await agent.run("Question", listeners=[told.append])
    ends = [event for event in told if isinstance(event, RunEnded)]
    assert [(end.status, end.stop_reason) for end in ends] == [("failed", "journal_failed")]
    assert result.status == "failed"
    assert "No space left" in result.error


async def test_a_listener_that_fails_at_the_end_leaves_the_record_as_it_is(tmp_path):
    def listener(event):
        if isinstance(event, RunEnded):
            raise ValueError("broken")

    agent = Agent(ScriptedClient([answer("42")]), home=tmp_path)
    result = await agent.run("Question", listeners=[listener])
    assert result.answer == "42"
    assert isinstance(agent.store().read(result.run_id).rows[-1].event, RunEnded)


async def test_a_stream_has_no_result_before_its_end():
    stream = agent_in(False).stream("Question")
    async for _ in stream:
        break
    with pytest.raises(UsageError, match="has not ended"):
        _ = stream.result


async def test_whatever_a_commit_raises_inside_a_sub_agent_ends_the_run(tmp_path, monkeypatch):
    """The caller does not call again what has been done and cannot be recorded."""
    paid = []

    @tool
    def pay(invoice: str) -> str:
        """Pay an invoice."""
        paid.append(invoice)
        monkeypatch.setattr(SqliteJournal, "append", broken)
        return "receipt"

    def broken(*_, **__):
        raise ValueError("no number")

    clerk = Agent(ScriptedClient([call("pay", invoice="1"), answer("paid")] * 2), [pay], name="clerk")
    boss = [call("clerk", task="Pay 1"), call("clerk", task="Pay 1"), answer("done")]
    result = await Agent(ScriptedClient(boss), [clerk.as_tool("clerk", "Pays.")], home=tmp_path).run("Pay 1")
    monkeypatch.undo()
    assert paid == ["1"]
    assert (result.status, result.stop_reason) == ("failed", "journal_failed")
    assert isinstance(result.failure.exception, JournalError)
    assert "ValueError" in result.error


ASKED = [{"role": "user", "content": "Question"}]
SERVED = {  # a request, and how the stream of its run tells an answer
    "/v1/chat/completions": ({"messages": ASKED}, b'"finish_reason": "stop"', b'"finish_reason":"stop"'),
    "/v1/messages": ({"messages": ASKED, "max_tokens": 99}, b"event: message_stop"),
    "/v1/responses": ({"input": "Question"}, b"event: response.completed"),
    "/v1/runs": ({"task": "Question"}, b"event: RunEnded", b'"RunEnded"'),
}


@pytest.mark.parametrize("path", SERVED)
async def test_the_record_and_what_a_server_told_agree_wherever_its_client_leaves(path, tmp_path):
    request, *ends = SERVED[path]
    async with serving(agent_in(tmp_path, name="helper")) as served:
        for at in count():
            told, lines = b"", 0
            before = {record.run_id for record in served.host.store.runs()}
            body = request if path == "/v1/runs" else {"model": "helper", "stream": True, **request}
            async with served.http.post(served.url + path, json=body) as response:
                if path == "/v1/runs":
                    run_id = (await response.json())["run_id"]
                    events = served.http.get(f"{served.url}/v1/runs/{run_id}/events")
                else:
                    events = None
                async with events or nullcontext(response) as stream:
                    assert stream.status == 200, await stream.text()
                    async for line in stream.content:
                        told, lines = told + line, lines + 1
                        if lines > at:
                            break
                    else:
                        at = None
                    stream.close()
            (record,) = [each for each in served.host.store.runs() if each.run_id not in before]
            await served.host.wait(record.run_id, 30)
            status = served.host.store.run(record.run_id).status
            assert status == "answered" or not any(end in told for end in ends), at
            assert status in ("answered", "cancelled")
            if at is None:
                break
    assert status == "answered"
    assert any(end in told for end in ends), told
