"""What of a run the model sees: the history as a fold of the journal, and when old results leave it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeout import Agent, tool
from closeout.codec import Snapshot, shared_items
from closeout.context.history import History, stub_text
from closeout.context.policy import (
    MIN_KEPT,
    STUB_TOKENS,
    ContextState,
    Eviction,
    EvictionPolicy,
    best_batch,
    evict_all_but_last,
    summary_in,
)
from closeout.dialects.protocol import get_dialect
from closeout.journal.events import (
    AttemptStarted,
    Compacted,
    Event,
    Evicted,
    ServerAsked,
    ServerTold,
    TurnAccepted,
    TurnRolledBack,
)
from closeout.journal.store import open_store
from closeout.messages import Capabilities, Message, Step, ToolCall, ToolReturn, ToolSpec, Usage
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, recorded, serve_script


def step(turn: int, *tokens: int) -> Step:
    call = ToolCall("look", {"n": turn})
    return Step(
        turn, "", (call,) * len(tokens), returns=tuple(ToolReturn(call, "text", f"r{turn}", tokens=t) for t in tokens)
    )


def steps(count: int, tokens: int = 100) -> list[Step]:
    return [step(turn, tokens) for turn in range(count)]


def decide(
    policy: EvictionPolicy,
    taken: Sequence[Step],
    evicted_before: int,
    prompt_tokens: int,
    *,
    max_context: int | None = None,
    reserve: int = 0,
) -> Eviction | None:
    return policy.decide(
        ContextState(
            steps=taken,
            evicted_before=evicted_before,
            prompt_tokens=prompt_tokens,
            max_context=max_context,
            reserve=reserve,
        )
    )


def accepted(turn: int, text: str = "", results: int = 1, agent: str = "main") -> TurnAccepted:
    calls = tuple(
        {"id": f"c{turn}.{i}", "name": "look", "arguments": {"n": turn}, "server_name": None, "text": ""}
        for i in range(results)
    )
    returns = tuple(
        {"call": i, "text": f"result of turn {turn}", "handle": f"r{turn * results + i + 1}", "ok": True, "tokens": 50}
        for i in range(results)
    )
    return TurnAccepted(agent, 0, turn, text=text or f"thought {turn}", calls=calls, returns=returns)


def history(*events: Event, tools: Sequence[ToolSpec] = ()) -> History:
    return History("Be exact.", "Which canal?", tools).after((AttemptStarted("main", 0), *events))


def messages(view_of: History, dialect: str = "function_call", **view: Any) -> list[Message]:
    return list(get_dialect(dialect).render(view_of.view(**view), Capabilities()).messages)


# ------------------------------------------------------------------------------------------------ when: by count


def test_with_minus_one_and_enough_context_everything_stays() -> None:
    assert decide(EvictionPolicy(keep=-1), steps(500), 0, 10**9) is None
    assert decide(EvictionPolicy(keep=-1), steps(500), 0, 700, max_context=1000) is None


@pytest.mark.parametrize("keep", [0, 1, 3, 5])
@pytest.mark.parametrize("batch", [1, 4, 9])
def test_results_gather_until_a_batch_is_due_and_then_go_down_to_k(keep: int, batch: int) -> None:
    policy = EvictionPolicy(keep=keep, batch=batch)
    due = max(keep, 1) + batch
    assert decide(policy, steps(due - 1), 0, 0) is None
    found = decide(policy, steps(due), 0, 0)
    assert found == Eviction(
        before=due - keep, results=due - keep, tokens=(due - keep) * (100 - STUB_TOKENS), reason="count"
    )
    assert decide(policy, steps(due), due - keep, 0) is None, "then nothing, until the next batch has gathered"


def test_a_turn_goes_whole_so_at_least_k_results_stay() -> None:
    found = decide(EvictionPolicy(keep=3, batch=2), [step(0, 9, 9), step(1, 9, 9), step(2, 9, 9)], 0, 0)
    assert found is not None
    assert (found.before, found.results) == (1, 2), "the second turn would leave two"


@given(st.integers(0, 6), st.integers(1, 12), st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_by_count_k_results_stay_and_the_prefix_is_left_alone_between_batches(
    keep: int, batch: int, results: list[int]
) -> None:
    policy, taken, border, evictions = EvictionPolicy(keep=keep, batch=batch), [], 0, 0
    for turn, count in enumerate(results):
        taken.append(step(turn, *[100] * count))
        found = decide(policy, taken, border, 0)
        if found is not None:
            evictions += 1
            assert found.before > border
            border = found.before
        shown = sum(len(s.returns) for s in taken if s.turn >= border)
        assert shown >= min(keep, sum(results[: turn + 1]))
    # Each eviction takes all that was gathered but K and less than one turn's results.
    assert evictions <= sum(results) / max(batch + max(keep, 1) - keep - 3, 1) + 1


@pytest.mark.parametrize("ratio", [0.025, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("keep", [1, 3, 5, 10])
def test_the_best_batch_costs_least(keep: int, ratio: float) -> None:
    def cost(batch: int) -> float:
        """Of a turn, in results: what is read from the cache, and K results again once in B turns."""
        return ratio * (keep + batch / 2) + (1 - ratio) * keep / batch

    best = best_batch(keep, ratio)
    assert abs(best - math.sqrt(2 * keep * (1 - ratio) / ratio)) <= 0.5
    assert cost(best) <= min(cost(b) for b in range(1, 100)) * 1.02


def test_where_no_ratio_makes_sense_there_is_still_a_batch() -> None:
    assert [best_batch(k, r) for k, r in ((5, 0.0), (5, 1.0), (0, 2.0), (-1, 0.1))] == [5, 5, 1, 4]


# ------------------------------------------------------------------------------------------------ when: by budget


def test_past_high_water_results_go_until_low_water_is_reached() -> None:
    policy = EvictionPolicy(high_water=0.8, low_water=0.5)
    assert decide(policy, steps(20, 400), 0, 8000, max_context=10_000) is None
    found = decide(policy, steps(20, 400), 0, 8100, max_context=10_000)
    assert found is not None
    assert found.reason == "budget"
    assert 8100 - found.tokens <= 5000 < 8100 - found.tokens + 400 - STUB_TOKENS


def test_the_replys_tokens_are_not_available_to_the_prompt() -> None:
    roomy, tight = (
        decide(EvictionPolicy(), steps(20, 400), 0, 5000, max_context=10_000, reserve=reserve) for reserve in (0, 4000)
    )
    assert roomy is None
    assert tight is not None


def test_however_full_the_last_results_stay() -> None:
    found = decide(EvictionPolicy(), steps(6, 5000), 0, 30_000, max_context=1000)
    assert found is not None
    assert found.results == 6 - MIN_KEPT
    assert decide(EvictionPolicy(), steps(MIN_KEPT, 5000), 0, 10_000, max_context=1000) is None


def test_a_context_full_of_thoughts_is_not_broken_for_a_little_every_turn() -> None:
    policy = EvictionPolicy()
    few = steps(5, 80)
    assert decide(policy, few, 0, 8500, max_context=10_000) is None, "freeing 150 tokens is not worth a broken prefix"
    assert decide(policy, few, 0, 9600, max_context=10_000) is not None, "unless there is no other room left"


def test_if_what_is_not_results_is_above_low_water_all_turns_but_the_last_leave_and_are_summed_up() -> None:
    policy, taken = EvictionPolicy(high_water=0.8, low_water=0.5), steps(40, 100)
    results = decide(policy, taken, 0, 8900, max_context=10_000)
    assert results is not None
    assert (results.whole, results.summarise) == (False, False), "without the results less than 5,000 tokens are left"
    found = decide(policy, taken, 30, 8900, max_context=10_000)
    assert found is not None
    assert (found.before, found.results, found.whole, found.summarise) == (40 - MIN_KEPT, 10 - MIN_KEPT, True, True)
    kept = decide(EvictionPolicy(keep=7), taken, 30, 8900, max_context=10_000)
    assert kept is not None
    assert kept.before == 40 - 7


def test_a_context_full_of_what_cannot_leave_is_not_summed_up_every_turn() -> None:
    policy = EvictionPolicy()
    assert decide(policy, steps(3, 100), 0, 9000, max_context=10_000) is None
    found = decide(policy, steps(3, 100), 0, 9900, max_context=10_000)
    assert found is not None
    assert (found.whole, found.summarise) == (True, False)


def test_a_context_too_small_for_its_reply_does_not_divide_by_zero() -> None:
    assert decide(EvictionPolicy(), steps(5), 0, 900, max_context=1000, reserve=4000) is not None


def test_after_an_overflow_all_but_the_last_result_go() -> None:
    found = evict_all_but_last(steps(4), 0)
    assert found is not None
    assert (found.before, found.results, found.reason) == (3, 3, "overflow")
    assert evict_all_but_last(steps(4), 3) is None
    assert evict_all_but_last([], 0) is None


# ------------------------------------------------------------------------------------------------ the history view


def test_rolled_back_turns_and_other_agents_turns_are_not_in_it() -> None:
    seen = history(
        accepted(0), TurnRolledBack("main", 0, 1, reason="empty"), accepted(0, agent="main/r1:clerk"), accepted(1)
    ).steps
    assert [s.text for s in seen] == ["thought 0", "thought 1"]


def test_a_turn_rewritten_after_a_departure_replaces_the_old_one() -> None:
    assert [s.text for s in history(accepted(0), accepted(1), accepted(1, "other")).steps] == ["thought 0", "other"]


def test_an_attempt_starts_from_the_task_and_what_was_learned() -> None:
    again = history(accepted(0), Evicted("main", 0, 1), AttemptStarted("main", 1, ("Known: it is long.",)))
    assert [m.text for m in messages(again)] == ["Be exact.", "Which canal?\n\nKnown: it is long."]
    assert again.view().borders == ()


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "mcp_xml"])
def test_an_eviction_changes_nothing_after_its_border_and_leaves_handles(dialect: str) -> None:
    before = history(*map(accepted, range(6)))
    was = messages(before, dialect)
    before.apply(Evicted("main", 0, 4))
    now = messages(before, dialect)
    assert len(now) == len(was)
    assert now[:2] == was[:2], "the head"
    assert now[-3:] == was[-3:], "the turns that stay"
    text = "\n".join(m.text for m in now)
    assert [f"result of turn {n}" in text for n in range(6)] == [False] * 4 + [True] * 2
    assert all(f'read_result("r{n + 1}")' in text for n in range(4))


def test_a_second_eviction_leaves_the_first_ones_stubs_as_they_are() -> None:
    seen = history(*map(accepted, range(6)), Evicted("main", 0, 2))
    was = messages(seen)
    seen.apply(Evicted("main", 0, 5))
    now = messages(seen)
    assert [a is b for a, b in zip(was, now, strict=True)][2:6] == [True] * 4, "written once for ever"
    assert was[:2] == now[:2]


@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "mcp_xml"])
def test_the_cache_marks_are_at_the_borders_of_the_last_two_evictions(dialect: str) -> None:
    def marked(*events: Event) -> list[str]:
        request = get_dialect(dialect).render(history(*events).view(), Capabilities())
        return [request.messages[index].text for index in request.breakpoints]

    turns = [accepted(n) for n in range(9)]
    assert len(marked(*turns)) == 2, "the head and the end"
    first = marked(*turns, Evicted("main", 0, 3))
    assert len(first) == 3
    assert stub_text(ToolReturn(ToolCall("look"), "", "r3")) in first[1]
    second = marked(*turns, Evicted("main", 0, 3), Evicted("main", 0, 6))
    assert len(second) == 4, "what Anthropic takes at most"
    assert second[1] == first[1], "the old border is still there to be read from"
    assert '"r6"' in second[2]
    third = marked(*turns, Evicted("main", 0, 2), Evicted("main", 0, 3), Evicted("main", 0, 6))
    assert third == second


def test_anthropics_request_carries_a_cache_mark_at_the_border() -> None:
    from closeout.models.anthropic import conversation
    from closeout.models.openai_messages import MessageEncoder

    request = get_dialect("function_call").render(
        history(*map(accepted, range(6)), Evicted("main", 0, 4)).view(), Capabilities()
    )
    _, turns = conversation(request.messages, request.breakpoints, MessageEncoder())
    blocks = turns.split(b'"cache_control"')
    assert len(blocks) - 1 == 3
    assert blocks[1].count(b"left out to save room") == 4, "the second mark ends the last stub"
    assert b"result of turn 4" in blocks[2]


@pytest.mark.parametrize("density", [0.12, 0.4])  # tokens of a character; such words are estimated at 0.2
async def test_a_run_learns_from_the_server_what_its_results_really_weigh(density: float) -> None:
    @tool(read_only=True)
    async def page(number: int) -> str:
        """Read a page."""
        return f"page {number} " + "word " * 800

    def read(view: RequestView) -> Turn:
        size = sum(len(str(message.get("content") or "")) for message in view.messages)
        usage = Usage(round(size * density), 10, requests=1)
        if any(message.get("content", "").startswith("[result r1 left out") for message in view.messages):
            return Turn("", answer="done", usage=usage)
        return Turn("I read on.", [ToolCall("page", {"number": view.number})], usage=usage)

    seen: list[Any] = []
    client = ScriptedClient(read, capabilities=Capabilities(max_context=30_000))
    result = await Agent(client, [page], dialect="function_call").run("Read.", listeners=[seen.append])
    (evicted,) = (event for event in seen if isinstance(event, Evicted))
    freed = evicted.tokens / evicted.results + STUB_TOKENS
    assert result.answer == "done"
    assert freed == pytest.approx(4_000 * density, rel=0.1), "not what they were estimated at"


# ------------------------------------------------------------------------------------------------ compaction


def test_a_summary_replaces_the_oldest_turns_and_the_task_stays() -> None:
    seen = history(*map(accepted, range(5)), Compacted("main", 0, 3, summary="Findings: the canal is long."))
    shown = messages(seen)
    assert shown[1].text.startswith("Which canal?\n\nSummary of your work so far:\nFindings: the canal is long.")
    assert "Results r1 to r3: read_result shows them." in shown[1].text
    assert [s.turn for s in seen.steps] == [3, 4]


def test_a_second_summary_takes_the_place_of_the_first() -> None:
    seen = history(
        *map(accepted, range(3)),
        Compacted("main", 0, 2, summary="first"),
        *map(accepted, (3, 4)),
        Compacted("main", 0, 4, summary="second"),
    )
    text = messages(seen)[1].text
    assert "second" in text
    assert "first" not in text
    assert "Results r1 to r4" in text


def test_turns_leave_without_a_summary_and_the_last_summary_stays() -> None:
    seen = history(*map(accepted, range(5)), Compacted("main", 0, 2, summary=""))
    assert (
        messages(seen)[1].text == "Which canal?\n\nOld turns are left out.\n(Results r1 to r2: read_result shows them.)"
    )
    for event in (Compacted("main", 0, 3, summary="Found: it is long."), Compacted("main", 0, 4, summary="")):
        seen.apply(event)
    assert messages(seen)[1].text.endswith("far:\nFound: it is long.\n(Results r1 to r4: read_result shows them.)")


def test_summing_up_is_for_a_full_context_and_needs_a_summary() -> None:
    wanted, unwanted = EvictionPolicy(compaction=True), EvictionPolicy()
    by_size = [decide(policy, steps(20, 400), 0, 9000, max_context=10_000) for policy in (wanted, unwanted)]
    by_count = decide(EvictionPolicy(keep=1, batch=2, compaction=True), steps(9), 0, 0)
    assert [found.summarise for found in (*by_size, by_count) if found is not None] == [True, False, False]
    assert summary_in("  ") == summary_in("ok") == ""
    assert summary_in(" Findings: the canal is 1,794 kilometres long (r3). ").startswith("Findings")


# ------------------------------------------------------------------------------------------------ any history


EVENTS = st.lists(st.sampled_from(["turn", "turn", "turn", "evict", "compact", "rollback"]), max_size=30)


@settings(max_examples=80)
@given(EVENTS, st.sampled_from(["function_call", "cot_chat", "mcp_xml", "cot_completion"]))
def test_the_view_grows_at_its_end_but_for_evictions_and_summaries(kinds: list[str], name: str) -> None:
    dialect, live = get_dialect(name), History("Be exact.", "Which canal?")
    events: list[Event] = [AttemptStarted("main", 0)]
    live.apply(events[0])
    turn, last = 0, None
    for kind in kinds:
        first = live.steps[0].turn if live.steps else turn
        border = first + max(turn - first - 1, 0)
        made: dict[str, Event] = {
            "turn": accepted(turn, results=turn % 3),
            "evict": Evicted("main", 0, border),
            "compact": Compacted("main", 0, border, summary=f"summary at {turn}"),
            "rollback": TurnRolledBack("main", 0, turn, reason="empty"),
        }
        events.append(made[kind])
        live.apply(made[kind])
        turn += kind == "turn"
        request = dialect.render(live.view(), Capabilities())
        now = [request.prompt] if request.prompt else [dict(m) for m in request.messages]
        if last is not None and kind in ("turn", "rollback"):
            if request.prompt:
                assert str(now[0]).startswith(str(last[0]).removesuffix("Thought:"))
            else:
                assert now[: len(last)] == last
        last = now
    folded = get_dialect(name).render(History("Be exact.", "Which canal?").after(events).view(), Capabilities())
    assert last is None or last == ([folded.prompt] if folded.prompt else [dict(m) for m in folded.messages])


# ------------------------------------------------------------------------------------------------ how long it is


async def test_a_server_that_reports_its_context_needs_no_setting_and_the_record_keeps_it(home: Path) -> None:
    @tool(read_only=True)
    async def page(number: int) -> str:
        """Read a page."""
        return f"[page {number}] " + "what stands on it " * 60

    def reader(view: RequestView) -> Any:
        return answer("read") if view.number > 14 else call("page", number=view.number)

    async with serve_script(reader, max_context=6000) as server:
        agent = Agent("openai:m", [page], base_url=server.base_url, api_key="k", home=home)
        result = await agent.run("Read on.", run_id="told")
    events = [row.event for row in open_store(home).rows("told")]
    assert result.answer == "read"
    told = [event for event in events if isinstance(event, ServerTold)]
    assert [(event.what, event.value) for event in told] == [("context", 6000)]
    evicted = [event.reason for event in events if isinstance(event, Evicted)]
    assert evicted
    assert set(evicted) == {"budget"}

    again = await agent.resume("told")  # its server is gone
    assert (again.answer, again.usage) == ("read", result.usage)
    assert (await recorded("told").follow(Agent(recorded("told").client(), [page], home=False))).answer == "read"


async def test_a_short_run_asks_for_nothing_but_replies() -> None:
    heard: list[Any] = []
    async with serve_script([answer("4")], max_context=6000) as server:
        agent = Agent("openai:m", base_url=server.base_url, api_key="k", home=False)
        await agent.run("How many?", listeners=[heard.append])
    assert not [event for event in heard if isinstance(event, (ServerAsked, ServerTold))]


async def test_files_are_shared_out_over_the_context_that_the_server_tells(tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("a line of a long file\n" * 5000)
    async with serve_script([answer("4")], max_context=4000) as server:
        agent = Agent("openai:m", base_url=server.base_url, api_key="k", home=False)
        result = await agent.run("How many lines?", files=[file])
    assert result.usage.input_tokens < 1500, "a quarter of the context, and the task"


# ------------------------------------------------------------------------------------------------ snapshots


def test_a_snapshot_keeps_its_items_while_its_list_grows() -> None:
    items = [1, 2, 3]
    before = Snapshot(items)
    items.append(4)
    now = Snapshot(items)
    assert (list(before), before[-1], before[1:], before[::-1], len(before)) == ([1, 2, 3], 3, [2, 3], [3, 2, 1], 3)
    assert before == [1, 2, 3] == before
    assert before != now == (1, 2, 3, 4)
    assert (hash(before), repr(before)) == (hash(Snapshot([1, 2, 3])), "[1, 2, 3]")
    with pytest.raises(IndexError):
        before[3]
    assert [shared_items(before, now), shared_items(now, [1, 2, 9]), shared_items((1, 5), now)] == [3, 2, 1]


@pytest.mark.parametrize("rest", [[], [3], [9], [3, 4, 9], [3, 4, 5, 6]])
@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_snapshots_of_lists_made_from_each_other_share_what_is_equal(rest: list[int], length: int) -> None:
    old = [1, 2, 3, 4, 5]
    before, made = Snapshot(old[:length]), [*old[:2], *rest]
    known = Snapshot(old), Snapshot(made, (old, 2))
    assert shared_items(*known) == shared_items(old, made) == shared_items(old, Snapshot(made))
    assert shared_items(before, known[1]) == shared_items(old[:length], made)
    assert [known[1].kept_from(each) for each in (known[0], before, old)] == [2, 0, 0]


def test_what_requests_share_is_the_same_with_evictions_and_new_attempts() -> None:
    dialect, seen, messages = get_dialect("function_call"), history(), []
    for event in (
        *(accepted(turn) for turn in range(6)),
        Evicted("main", 1, 3),
        accepted(6),
        Evicted("main", 1, 5),
        AttemptStarted("main", 2),
        *(accepted(turn) for turn in range(6)),
        accepted(5),
        Evicted("main", 2, 4),
        Compacted("main", 2, 3, summary="s"),
        accepted(7),
    ):
        seen.apply(event)
        messages.append(dialect.render(seen.view(), Capabilities()).messages)
    for before, now in pairwise(messages):
        assert shared_items(before, now) == shared_items(list(before), list(now))


@pytest.mark.parametrize("name", ["function_call", "cot_chat", "mcp_xml"])
def test_a_request_for_a_longer_history_copies_no_messages(name: str) -> None:
    dialect, seen = get_dialect(name), history()
    requests = []
    for turn in range(4):
        seen.apply(accepted(turn))
        requests.append(dialect.render(seen.view(), Capabilities()).messages)
    first, *others = requests
    assert isinstance(first, Snapshot)
    assert all(first.shares_list(each) for each in others)
    assert list(requests[1]) == list(requests[3])[: len(requests[1])]
    seen.apply(Evicted("main", 0, 2, results=2))
    assert not first.shares_list(dialect.render(seen.view(), Capabilities()).messages)
    hinted = dialect.render(seen.view("Act."), Capabilities()).messages
    assert "Act." in hinted[-1].text
    assert "Act." not in dialect.render(seen.view(), Capabilities()).messages[-1].text


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_call_whose_result_was_left_out_gets_it_again_without_running(read_only: bool) -> None:
    """Refusing it ("use its result") would leave a model that has lost a receipt to pay again."""
    ran: list[str] = []

    @tool(read_only=read_only)
    def pay(key: str) -> str:
        """Pay an invoice."""
        ran.append(key)
        return f"the receipt of {key}"

    @tool(read_only=True)
    def read(key: str) -> str:
        """Read a document."""
        return f"the text of {key}"

    keys = [f"k{number}" for number in range(12)]
    reads = [call("read", key=key) for key in keys]
    model = ScriptedClient([call("pay", key="k0"), *reads, call("pay", key="k0"), answer("done")])
    result = await Agent(model, [pay, read], keep_tool_result=1, home=False).run("Pay k0.")
    assert (result.answer, result.rollbacks, ran) == ("done", 0, ["k0"])
    assert "the receipt of k0" not in model.requests[-2].text
    assert "the receipt of k0" in model.requests[-1].text
