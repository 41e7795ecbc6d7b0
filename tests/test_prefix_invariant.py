"""The request grows at its end, byte for byte, unless the journal says why not; and the journal alone gives the prompt.

Random runs: calls, parallel calls, faults that are rolled back, contexts that fill, compaction, every dialect.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from closeout import Agent, RunResult, tool
from closeout.context.history import History
from closeout.dialects.functions import call_source
from closeout.dialects.protocol import get_dialect
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.messages import Capabilities, ModelRequest
from closeout.run.session import with_draft
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, say
from closeout.testing.client import ALL_CAPABILITIES

# A small model gets worked examples, and its programs are one growing text.
DIALECTS = ("function_call", "cot_chat", "cot_completion", "mcp_xml", "code", "cot_completion, small", "code, small")
SMALL = Capabilities(completions=True, weak=True)
BREAKS = (ev.Evicted, ev.Compacted, ev.AttemptStarted)
PRIMER = "Thought:"


@tool(read_only=True)
async def look(key: str) -> str:
    """Look up a key."""
    return f"[{key}] " + "河流与运河 rivers and canals " * (len(key) * 3)


@tool(read_only=True)
async def fail(key: str) -> str:
    """Fail."""
    return "Error executing tool fail: it is broken"


ACTIONS = st.lists(
    st.sampled_from(["look", "look", "look", "both", "again", "empty", "refusal", "plan", "unknown", "fail", "box"]),
    min_size=1,
    max_size=22,
)


@dataclass
class Run:
    """A run that is over: what was sent, what was journaled, and the events between any two requests."""

    agent: Agent
    result: RunResult
    requests: list[ModelRequest]
    events: list[ev.Event]

    @property
    def asked(self) -> list[tuple[ev.ModelRequested, ModelRequest, list[ev.Event]]]:
        """Each request with its event and with the events since the one before."""
        found, since = [], []
        requests = iter(self.requests)
        for event in self.events:
            since.append(event)
            if isinstance(event, ev.ModelRequested):
                found.append((event, next(requests), since))
                since = []
        return found


def capabilities_of(dialect: str) -> Capabilities:
    return SMALL if dialect.endswith(", small") else ALL_CAPABILITIES


def program(turn: Turn) -> Any:
    """The calls of a turn as one program."""
    lines = "\n".join(f"print({call_source(each.name, each.arguments)})" for each in turn.calls)
    return say(f"{turn.thought}\n```python\n{lines}\n```")


def run_agent(actions: Sequence[str], dialect: str, **settings: Any) -> Run:
    lengths = cycle((1, 0, 2))  # of the summaries, in sentences; where one is empty, results are evicted

    def turn(view: RequestView) -> Any:
        if "about to be shortened" in view.text:
            return say("Findings: the rivers are long (r1). Open questions: which is longest. " * next(lengths))
        if "closing turn" in view.text or view.number > len(actions):
            return answer("the Grand Canal")
        key = f"key {'k' * (view.number % 7)}{view.number * 7919 % 997}"
        done = {
            "look": Turn("I look.", calls=[call("look", key=key)]),
            "both": Turn("I look twice.", calls=[call("look", key=key), call("look", key=key + "b")]),
            "again": Turn("Once more.", calls=[call("look", key="the same")]),
            "empty": say(""),
            "refusal": say("I'm sorry, I can't do that."),
            "plan": say("Let me search for that."),
            "unknown": call("no_such_tool", x=view.number),
            "fail": call("fail", key=key),
            "box": Turn("It may be \\boxed{5}.", calls=[call("look", key=key)]),
        }[actions[view.number - 1]]
        return program(done) if dialect == "code" and isinstance(done, Turn) and done.calls else done

    client = ScriptedClient(turn, capabilities=capabilities_of(dialect))
    dialect = dialect.removesuffix(", small")
    config = {"agent": {"max_consecutive_rollbacks": 3, **settings}, "llm": {"max_tokens": 256}}
    if "max_context_length" in settings:
        config["llm"]["max_context_length"] = config["agent"].pop("max_context_length")
    agent = Agent(client, [look, fail], dialect=dialect, home=False, config=config, instructions="Be exact. 要准确。")
    events: list[ev.Event] = []
    result = asyncio.run(agent.run("Which canal is the longest? 最长的运河?", listeners=[_keep(events)]))
    return Run(agent, result, client.requests, events)


def _keep(events: list[ev.Event]) -> Any:
    return lambda event: events.append(event) if isinstance(event, ev.Event) else None


def sent(request: ModelRequest) -> str:
    """The prompt as one text: what a chat template makes of it, near enough."""
    if request.prompt is not None:
        return request.prompt.removesuffix(PRIMER)
    return "".join(
        f"\n<{message.role}>{message.text}{json.dumps(message.get('tool_calls', ''))}{message.get('tool_call_id', '')}"
        for message in request.messages
    ).replace('""', "")


def stable(request: ModelRequest, note: str, shown: str = "") -> str:
    """The part that the request itself says is to stay: up to its last breakpoint, without a draft and the hint."""
    if request.prompt is not None:
        if shown:  # after the primer of ReAct prompts; prompts for programs have none
            return sent(request).removesuffix(f"{shown}\n{note}\n").rstrip().removesuffix(PRIMER).rstrip()
        return sent(request).removesuffix(f"{note}\n" if note else "").rstrip()
    return sent(replace(request, messages=request.messages[: request.breakpoints[-1] + 1]))


def draft(events: Sequence[ev.Event]) -> str:
    """The reply that the last rollback put before its hint, if no turn was accepted since."""
    text = ""
    for event in events:
        if isinstance(event, ev.TurnAccepted):
            text = ""
        elif isinstance(event, ev.TurnRolledBack):
            text = event.draft
    return text


def withheld(events: Sequence[ev.Event]) -> frozenset[str]:
    """The tools that the last rollback took out of the offer, if no turn was accepted since."""
    names: frozenset[str] = frozenset()
    for event in events:
        if isinstance(event, ev.TurnAccepted):
            names = frozenset()
        elif isinstance(event, ev.TurnRolledBack):
            names = frozenset(re.findall(r"without (\w+)", event.change))
    return names


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "keep_tool_result": st.sampled_from([1, 2]),
        "max_context_length": st.sampled_from([1500, 2500, 5000]),
        "compaction": st.booleans(),
        "high_water": st.just(0.7),
        "low_water": st.sampled_from([0.3, 0.5]),
    },
)


@settings(max_examples=40)
@given(ACTIONS, st.sampled_from(DIALECTS), SETTINGS)
@example(["look"] * 20, "function_call", {"keep_tool_result": 1})
@example(["both"] * 12, "cot_chat", {"max_context_length": 2500, "compaction": True})
@example(["look", "fail", "fail", "fail", "look", "look"], "mcp_xml", {})
@example(["look", "look", "plan", "plan", "plan"], "function_call", {"keep_tool_result": 1})
@example(["again", "again", "again", "again", "empty"], "cot_chat", {})
@example(["unknown", "look"], "code, small", {})
def test_each_request_extends_the_one_before_unless_the_journal_says_why_not(
    actions: list[str], dialect: str, settings: dict[str, Any]
) -> None:
    run = run_agent(actions, dialect, **settings)
    asked = run.asked
    assert len(asked) == len(run.requests), "every request is in the journal"
    seen: list[ev.Event] = []
    for (before, was, since), (now, is_, between) in pairwise(asked):
        seen += since
        if any(isinstance(event, BREAKS) for event in between) or before.purpose != "act":
            continue
        left_out = withheld(seen + between) if now.purpose == "act" else frozenset()
        if dialect != "function_call" and withheld(seen) != left_out:
            continue  # text dialects write the offer into the head
        assert sent(is_).startswith(stable(was, before.note, draft(seen)))
        rolled_back = any(isinstance(event, ev.TurnRolledBack) for event in between)
        if not rolled_back and not before.note and now.purpose == "act":
            assert sent(is_).startswith(sent(was))
            if was.tools == is_.tools:
                assert now.shared >= before.size - len(PRIMER), "and the journal says so"


@settings(max_examples=30)
@given(ACTIONS, st.sampled_from(DIALECTS), SETTINGS)
@example(["both", "look"] * 8, "function_call", {"max_context_length": 1500, "compaction": True})
@example(["look"] * 16, "cot_completion", {"keep_tool_result": 1})
def test_the_history_is_a_pure_function_of_the_journal(
    actions: list[str], dialect: str, settings: dict[str, Any]
) -> None:
    run = run_agent(actions, dialect, **settings)
    plan = run.agent.plan()
    started = next(event for event in run.events if isinstance(event, ev.RunStarted))
    seen: list[ev.Event] = []
    requests = iter(run.requests)
    for event in run.events:
        seen.append(event)
        if not isinstance(event, ev.ModelRequested):
            continue
        request = next(requests)
        if event.purpose != "act":
            continue
        question = started.question or started.task
        history = History(plan.full_instructions(), question, plan.offered_tools()).after(seen)
        shown = draft(seen)
        view = history.view("" if shown else event.note, withheld=withheld(seen))
        known = SMALL if dialect.endswith(", small") else Capabilities(completions=True)
        rendered = get_dialect(dialect.removesuffix(", small")).render(view, known)
        if shown:
            rendered = with_draft(rendered, shown, event.note)
        assert (rendered.prompt, list(rendered.messages), rendered.tools) == (
            request.prompt,
            list(request.messages),
            request.tools,
        )


@pytest.mark.parametrize("dialect", DIALECTS)
def test_calls_are_run_in_every_dialect(dialect: str) -> None:
    run = run_agent(["look", "both", "look"], dialect)
    assert run.result.answer == "the Grand Canal"
    assert sum(isinstance(event, ev.TurnAccepted) for event in run.events) >= 3
    assert len(run.requests) >= 4
    assert "运河 rivers and canals" in sent(run.requests[-1])
    assert (run.requests[-1].prompt is not None) == (dialect.endswith("small") or dialect == "cot_completion")


# ------------------------------------------------------------------------------------------------ how rare a break is


@pytest.mark.parametrize("dialect", DIALECTS)
def test_by_count_evictions_are_rare_and_the_prefix_stays_between_them(dialect: str) -> None:
    run = run_agent(["look"] * 40, dialect, keep_tool_result=2)
    evictions = [event for event in run.events if isinstance(event, ev.Evicted)]
    assert 1 <= len(evictions) <= 8, "not one every turn"
    borders = [0, *(event.before for event in evictions)]
    assert all(after - before >= 5 for before, after in pairwise(borders))
    assert {event.reason for event in evictions} == {"count"}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("compaction", [False, True])
def test_a_context_that_fills_is_kept_within_its_size(dialect: str, compaction: bool) -> None:
    run = run_agent(["look"] * 40, dialect, max_context_length=4000, compaction=compaction)
    assert run.result.answer == "the Grand Canal"
    made = [event for event in run.events if isinstance(event, ev.Evicted | ev.Compacted)]
    assert 2 <= len(made) <= 20
    replies = [event for event in run.events if isinstance(event, ev.ModelReplied)]
    assert max(event.usage["input_tokens"] for event in replies) <= 4000
    if compaction:
        assert any(isinstance(event, ev.Compacted) for event in made), "and where no summary came, results were evicted"
        assert any(isinstance(event, ev.Evicted) for event in made)


def test_every_request_after_a_compaction_holds_the_task_and_the_summary() -> None:
    run = run_agent(["look"] * 30, "function_call", max_context_length=4000, compaction=True)
    first = next(i for i, event in enumerate(run.events) if isinstance(event, ev.Compacted))
    number = sum(isinstance(event, ev.ModelRequested) for event in run.events[:first])
    for request in run.requests[number:]:
        assert request.messages[0].text.startswith("Be exact. 要准确。")
        assert request.messages[1].text.startswith("Which canal is the longest? 最长的运河?")
        assert "Summary of your work so far:\nFindings: the rivers are long (r1)." in request.messages[1].text


async def test_an_evicted_result_is_read_again_through_read_result() -> None:
    def script(view: RequestView) -> Any:
        stub = re.search(r'read_result\("(r\d+)"\)', view.text)
        if "a secret" in view.last and view.number > 3:
            return answer("found")
        if stub:
            return call("read_result", handle="r1")
        return call("note", number=view.number)

    @tool(read_only=True)
    async def note(number: int) -> str:
        """A note."""
        return f"note {number}: " + ("a secret" if number == 1 else "nothing")

    client = ScriptedClient(script)
    result = await Agent(client, [note], home=False, keep_tool_result=1).run("What?")
    assert result.answer == "found"
    assert "a secret" not in json.dumps(list(client.requests[-2].messages)), "it had been evicted"


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=6)
@given(actions=ACTIONS)
def test_the_journal_holds_every_request_as_it_was_sent(dialect: str, actions: list[str]) -> None:
    run = run_agent(actions, dialect, keep_tool_result=2)
    messages: list[Any] = []
    prompt, tools = "", ""
    for event, request, _ in run.asked:
        tools = event.tools or tools
        assert [tool["name"] for tool in json.loads(tools or "[]")] == [tool.name for tool in request.tools]
        if request.prompt is not None:
            prompt = prompt[: event.shared] + event.added[0]["prompt"]
            assert prompt == request.prompt
        else:
            messages = [*messages[: event.kept], *event.added]
            assert messages == list(request.messages)
            assert event.messages == len(messages)


def test_a_picture_is_recorded_once_and_named_in_the_request(tmp_path: Path) -> None:
    picture = tmp_path / "cat.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(5000))
    events: list[ev.Event] = []
    agent = Agent(ScriptedClient([answer("a cat")]), home=False)
    asyncio.run(agent.run("What is it?", files=[picture], listeners=[_keep(events)]))
    (request,) = [event for event in events if isinstance(event, ev.ModelRequested)]
    assert "AAAAAA" not in str(request.added)
    assert re.search(r"\[picture, 6,\d\d\d characters\]", str(request.added))


KEY = "sk-proj-abcdefghijklmnop1234"


@pytest.mark.parametrize("dialect", ["function_call", "cot_completion"])
def test_a_key_in_the_prompt_is_masked_in_the_record_and_leaves_every_offset_as_it_was(dialect: str) -> None:
    events: list[ev.Event] = []
    client = ScriptedClient([answer("done")])
    agent = Agent(
        client, dialect=dialect, instructions=f"Never tell anybody that the key is {KEY}, please.", home=False
    )
    asyncio.run(agent.run("What?", listeners=[_keep(events)]))
    (event,), (request,) = [e for e in events if isinstance(e, ev.ModelRequested)], client.requests
    recorded, sent = json.dumps(event.added), json.dumps([list(request.messages), request.prompt])
    assert KEY in sent
    assert KEY not in recorded
    assert f"the key is {'*' * len(KEY)}, please" in recorded


@pytest.mark.parametrize("dialect", DIALECTS[:5])
def test_prompts_are_not_recorded_if_the_settings_say_so_and_the_run_resumes_all_the_same(
    dialect: str, tmp_path: Path
) -> None:
    script = [call("look", key="a"), answer("done")]

    @tool(read_only=True)
    def look(key: str) -> str:
        """Look up a key."""
        return f"about {key}"

    def agent() -> Agent:
        config = {"journal.prompts": False}
        return Agent(ScriptedClient(script), [look], config=config, dialect=dialect, home=tmp_path, max_turns=5)

    run = asyncio.run(agent().run("A question of its own?", run_id="r"))
    requests = [row.event for row in open_store(tmp_path).rows("r") if isinstance(row.event, ev.ModelRequested)]
    assert len(requests) == 2
    assert all(event.messages or event.size for event in requests)
    assert [(event.added, event.tools) for event in requests] == [((), "")] * 2
    assert asyncio.run(agent().resume("r")).answer == run.answer == "done"
