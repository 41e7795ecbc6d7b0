"""The proxy repairs the calls and results in a client's history, and leaves a valid history as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout.errors import ServerFailed
from closeout.journal.events import Repaired
from closeout.server.formats.client_history import MALFORMED, NO_RESULT, repair_blocks, repair_chat
from closeout.testing import RequestView, answer
from test_proxy import CHAT_TOOLS, MESSAGE_TOOLS, proxied

ASKED = {"role": "user", "content": "What is k1?"}


def calls(*made: tuple[Any, Any]) -> dict[str, Any]:
    """A message with calls of these ids and arguments."""
    found = [{"id": i, "type": "function", "function": {"name": "lookup", "arguments": a}} for i, a in made]
    return {"role": "assistant", "content": None, "tool_calls": found}


def result(call_id: Any, text: str = "5") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def problems(messages: Sequence[Any]) -> list[str]:
    """What a strict server finds wrong with a conversation, written from the vendors' documentation."""
    found, seen, waiting = [], set(), list[str]()
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                found.append(f"a result of no call: {message}")
            else:
                waiting.remove(message["tool_call_id"])
            continue
        found += [f"a call without a result: {each}" for each in waiting]
        waiting = []
        for call in message.get("tool_calls") or ():
            if not isinstance(call["id"], str) or not call["id"] or call["id"] in seen:
                found.append(f"the id {call['id']!r}")
            seen.add(call["id"])
            waiting.append(call["id"])
            try:
                fine = isinstance(json.loads(call["function"]["arguments"]), dict)
            except (ValueError, TypeError):
                fine = False
            if not fine:
                found.append(f"the arguments {call['function']['arguments']!r}")
    return [*found, *(f"a call without a result: {each}" for each in waiting)]


POISON = {
    "broken arguments": ([ASKED, calls(("a", "{'search_term': 'k1',")), result("a")], {"history_arguments"}),
    "arguments that are no JSON": ([ASKED, calls(("a", "k1 please")), result("a")], {"history_arguments"}),
    "arguments as an object": ([ASKED, calls(("a", {"search_term": "k1"})), result("a")], {"history_arguments"}),
    "no arguments": ([ASKED, calls(("a", "")), result("a")], {"history_arguments"}),
    "a call without a result": ([ASKED, calls(("a", "{}"), ("b", "{}")), result("b"), ASKED], {"history_result"}),
    "a call at the end": ([ASKED, calls(("a", "{}"))], {"history_result"}),
    "a result of no call": ([result("z"), ASKED, calls(("a", "{}")), result("a"), result("x")], {"history_orphan"}),
    "an id twice in a turn": ([ASKED, calls(("a", "{}"), ("a", "{}")), result("a"), result("a", "6")], {"history_id"}),
    "an earlier id": ([ASKED, calls(("a", "{}")), result("a"), calls(("a", "{}")), result("a")], {"history_id"}),
    "no ids": ([ASKED, calls((None, "{}"), ("", "{}")), result(None), result("", "6")], {"history_id"}),
    "a late result": ([ASKED, calls(("a", "{}")), ASKED, result("a")], {"history_order"}),
}  # fmt: skip


@pytest.mark.parametrize("poison", POISON)
def test_a_poisoned_history_becomes_valid_and_the_repair_has_a_name(poison: str) -> None:
    messages, kinds = POISON[poison]
    assert problems(messages)
    found, repairs = repair_chat(messages)
    assert problems(found) == []
    assert {repair.kind for repair in repairs} == kinds
    assert [each["content"] for each in found if each["role"] == "user"] == [
        each["content"] for each in messages if each["role"] == "user"
    ]


def test_what_the_model_wrote_is_kept_where_it_can_be_read_and_quoted_where_not() -> None:
    def arguments(given: Any) -> Any:
        (_, call, _), _ = repair_chat([ASKED, calls(("a", given)), result("a")])
        return json.loads(call["tool_calls"][0]["function"]["arguments"])

    assert arguments("{'search_term': '温度',") == {"search_term": "温度"}
    assert arguments("k1 please") == {MALFORMED: "k1 please"}
    assert arguments("[1, 2]") == {MALFORMED: "[1, 2]"}


def test_results_of_calls_with_one_id_keep_their_order() -> None:
    found, _ = repair_chat([ASKED, calls(("a", '{"n": 1}'), ("a", '{"n": 2}')), result("a", "1"), result("a", "2")])
    said = {each["tool_call_id"]: each["content"] for each in found[2:]}
    assert [said[call["id"]] for call in found[1]["tool_calls"]] == ["1", "2"]


ARGUMENTS = st.sampled_from(["{}", '{"a": 1}', "{'a': 1", "", None, {"a": 1}, "nothing", "[]", '{"a": "\ud83d"}'])
IDS = st.sampled_from(["a", "b", "c", "", None, 5])
MESSAGES = st.one_of(
    st.just(ASKED),
    st.builds(lambda made: calls(*made), st.lists(st.tuples(IDS, ARGUMENTS), max_size=3)),
    st.builds(result, IDS),
    st.just({"role": "assistant", "content": "Well."}),
)


@given(st.lists(MESSAGES, max_size=8))
def test_every_history_becomes_valid_and_a_valid_one_stays_as_it_is(messages: list[Any]) -> None:
    found, repairs = repair_chat(messages)
    assert problems(found) == []
    assert (found == messages) == (not repairs) == (not problems(messages))
    assert repair_chat(found) == (found, [])


@given(st.lists(MESSAGES, max_size=6), MESSAGES)
def test_a_longer_history_begins_with_the_same_bytes(messages: list[Any], more: Any) -> None:
    closed = [*messages, {"role": "assistant", "content": "Well."}]
    found, _ = repair_chat(closed)
    longer, _ = repair_chat([*closed, ASKED, more])
    assert longer[: len(found)] == found


# ------------------------------------------------------------------------------------------------ Anthropic's Messages


def uses(*made: tuple[Any, Any]) -> dict[str, Any]:
    content = [{"type": "tool_use", "id": i, "name": "lookup", "input": a} for i, a in made]
    return {"role": "assistant", "content": [{"type": "text", "text": "I look."}, *content]}


def results(*ids: Any, text: str = "") -> dict[str, Any]:
    blocks: list[Any] = [{"type": "tool_result", "tool_use_id": each, "content": "5"} for each in ids]
    return {"role": "user", "content": [*([{"type": "text", "text": text}] if text else []), *blocks]}


BLOCKS = {
    "input as a text": ([ASKED, uses(("a", '{"x": 1}')), results("a")], {"history_arguments"}),
    "a call without a result": (
        [ASKED, uses(("a", {}), ("b", {})), results("b", text="And?")],
        {"history_result", "history_order"},
    ),
    "a text instead of a result": ([ASKED, uses(("a", {})), {"role": "user", "content": "And?"}], {"history_result"}),
    "a call at the end": ([ASKED, uses(("a", {}))], {"history_result"}),
    "a result of no call": ([ASKED, uses(("a", {})), results("a", "z")], {"history_orphan"}),
    "nothing but a result of no call": ([results("z"), uses(("a", {})), results("a")], {"history_orphan"}),
    "an id twice": ([ASKED, uses(("a", {})), results("a"), uses(("a", {})), results("a")], {"history_id"}),
    "text before the result": ([ASKED, uses(("a", {})), results("a", text="Here.")], {"history_order"}),
}


@pytest.mark.parametrize("poison", BLOCKS)
def test_blocks_of_calls_and_results_are_repaired(poison: str) -> None:
    messages, kinds = BLOCKS[poison]
    found, repairs = repair_blocks(messages)
    assert {repair.kind for repair in repairs} == kinds
    for number, message in enumerate(found):
        if message["role"] == "assistant":
            made = [block for block in message["content"] if block["type"] == "tool_use"]
            assert all(isinstance(block["input"], dict) for block in made)
            answered = [block.get("tool_use_id") for block in found[number + 1]["content"][: len(made)]]
            assert sorted(answered) == sorted(block["id"] for block in made)
    every = [block["id"] for message in found if message["role"] == "assistant" for block in message["content"][1:]]
    assert len(every) == len(set(every))
    assert repair_blocks(found) == (found, [])


# ------------------------------------------------------------------------------------------------ the proxy


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_the_upstream_server_gets_a_valid_history_and_the_record_says_so(home: Path, kind: Any) -> None:
    path = "chat/completions" if kind == "openai" else "messages"
    poisoned = POISON["broken arguments"][0] if kind == "openai" else BLOCKS["a call without a result"][0]
    tools = CHAT_TOOLS if kind == "openai" else MESSAGE_TOOLS
    body = {"model": "m", "max_tokens": 50, "messages": poisoned, "tools": tools}
    async with proxied(home, lambda view: answer("5"), kind=kind) as server:
        headers = {"Authorization": "Bearer k"}
        async with server.http.post(f"{server.url}/v1/{path}", json=body, headers=headers) as response:
            assert response.status == 200
        repair = repair_chat if kind == "openai" else repair_blocks
        assert server.model.requests[0].json["messages"] == repair(poisoned)[0]
        ((*_, events),) = [await server.records()]
        assert any(isinstance(event, Repaired) and event.kind.startswith("history_") for event in events)
    async with proxied(home, lambda view: answer("5"), kind=kind, record_only=True) as server:
        await (await server.http.post(f"{server.url}/v1/{path}", json=body, headers=headers)).read()
        assert server.model.requests[0].json["messages"] == poisoned


async def test_a_translated_history_is_repaired_too(home: Path) -> None:
    items = [
        {"role": "user", "content": "What is k1?"},
        {"type": "function_call", "call_id": "a", "name": "lookup", "arguments": "{'search_term':"},
        {"type": "function_call_output", "call_id": "z", "output": "5"},
        {"role": "user", "content": "And?"},
    ]
    async with proxied(home, lambda view: answer("5")) as server:
        body = {"model": "m", "input": items}
        async with server.http.post(f"{server.url}/v1/responses", json=body) as response:
            assert response.status == 200
        sent = server.model.requests[0].json["messages"]
        assert problems(sent) == []
        assert NO_RESULT in str(sent)


# --------------------------------------------------------------------------------------- fields of other vendors


THOUGHT = {
    "role": "assistant",
    "content": "Hello",
    "reasoning_content": "They greet.",
    "annotations": [],
    "refusal": None,
}
FOREIGN = [{"role": "user", "content": "Hi"}, THOUGHT, ASKED]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("vendor", ["cerebras", "groq"])
async def test_fields_that_a_server_refuses_are_left_out_for_that_conversation(
    home: Path, vendor: str, stream: bool
) -> None:
    async with proxied(home, lambda view: answer("5"), vendor=vendor) as server:

        async def status(model: str, key: str) -> int:
            body = {"model": model, "messages": FOREIGN, "stream": stream}
            headers = {"Authorization": f"Bearer {key}"}
            async with server.http.post(f"{server.url}/v1/chat/completions", json=body, headers=headers) as response:
                await response.read()
                return response.status

        def asked() -> int:
            before, server.model.requests[:] = len(server.model.requests), []
            return before

        assert (await status("m", "a"), sent_names(server.model.requests[-1].json)) == (200, set())
        assert asked() == (2 if vendor == "cerebras" else 4)
        assert (await status("m", "a"), asked()) == (200, 1)
        assert (await status("m", "b"), asked() > 1) == (200, True)
        assert (await status("other", "a"), asked() > 1) == (200, True)


@pytest.mark.parametrize("key", ["", "k"])
async def test_an_error_that_repeats_the_words_of_a_client_changes_nothing_for_others(home: Path, key: str) -> None:
    def answers(thought: str, **more: Any) -> list[Any]:
        return [FOREIGN[0], {"role": "assistant", "content": "Hello", "reasoning": thought, **more}, ASKED]

    forged = "x: 'reasoning' is unsupported, also"  # Cerebras takes `reasoning`, and repeats the name that it does not
    async with proxied(home, lambda view: answer("5"), vendor="cerebras") as server:

        async def status(messages: list[Any]) -> int:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            body = {"model": "m", "messages": messages}
            async with server.http.post(f"{server.url}/v1/chat/completions", json=body, headers=headers) as response:
                await response.read()
                return response.status

        assert await status(answers("mine", **{forged: 1})) == 200
        assert sent_names(server.model.requests[-1].json) == set()
        server.model.requests.clear()
        assert await status(answers("theirs")) == 200
        assert [sent_names(each.json) for each in server.model.requests] == [{"reasoning"}]


async def test_refused_fields_are_left_out_of_the_next_turns_of_their_conversation(home: Path) -> None:
    async with proxied(home, lambda view: answer("5"), vendor="cerebras") as server:
        messages = list(FOREIGN)
        for _ in range(3):
            async with server.http.post(
                f"{server.url}/v1/chat/completions", json={"model": "m", "messages": messages}
            ) as response:
                said = (await response.json())["choices"][0]["message"]
            messages += [{**said, "annotations": []}, ASKED]
    assert len(server.model.requests) == 1 + 3  # one was refused


def sent_names(body: Any) -> set[str]:
    """The fields of the assistant's first message beyond the protocol's."""
    return next(set(each) for each in body["messages"] if each["role"] == "assistant") - {"role", "content"}


async def test_an_own_field_goes_back_to_its_vendor_as_it_came(home: Path) -> None:
    own = {"role": "assistant", "content": "Hello", "reasoning": "They greet."}
    async with proxied(home, lambda view: answer("5"), vendor="cerebras") as server:
        for _ in range(2):
            body = {"model": "m", "messages": [own, *FOREIGN]}
            async with server.http.post(f"{server.url}/v1/chat/completions", json=body) as response:
                assert response.status == 200
        assert [sent_names(each.json) for each in server.model.requests] == [{"reasoning"}] * 3


async def test_a_proxy_that_only_records_passes_the_refusal_on(home: Path) -> None:
    async with proxied(home, lambda view: answer("5"), vendor="cerebras", record_only=True) as server:
        body = {"model": "m", "messages": FOREIGN}
        async with server.http.post(f"{server.url}/v1/chat/completions", json=body) as response:
            said = await response.json()
    assert (response.status, said["code"]) == (400, "wrong_api_format")


async def test_an_id_that_a_server_refuses_is_replaced_and_all_else_stays(home: Path) -> None:
    async with proxied(home, lambda view: answer("5"), vendor="mistral") as server:
        messages = [ASKED, {**calls(("a", "{}")), "reasoning_content": "So."}, result("a")]
        body = {"model": "m", "messages": messages, "seed": 7}
        async with server.http.post(f"{server.url}/v1/chat/completions", json=body) as response:
            assert response.status == 200
    first, second = (received.json for received in server.model.requests)
    (call,) = second["messages"][1]["tool_calls"]
    assert re.fullmatch("[a-z0-9]{9}", call["id"])
    call["id"] = second["messages"][2]["tool_call_id"] = "a"
    assert second == first


ODD_NAMES = ("", "get the price", "browser.tab.new", "a" * 90)


async def test_names_that_no_server_takes_are_replaced_in_the_history(home: Path) -> None:
    async with proxied(home, lambda view: answer("5")) as server:
        for name in ODD_NAMES:
            said = calls(("a", "{}"), ("b", "{}"))
            said["tool_calls"][1]["function"]["name"] = name
            body = {"model": "m", "messages": [ASKED, said, result("a"), result("b"), ASKED]}
            async with server.http.post(f"{server.url}/v1/chat/completions", json=body) as response:
                assert response.status == 200
    for received in server.model.requests:
        _, said, *_ = received.json["messages"]
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"]) for call in said["tool_calls"])
    assert server.proxy.repairs["history_name"] == len(ODD_NAMES)


@pytest.mark.parametrize("vendor", ["cerebras", "groq"])
async def test_a_translated_history_leaves_them_out_too(home: Path, vendor: str) -> None:
    thought = {"type": "thinking", "thinking": "They greet.", "signature": "c2ln"}
    said = {"role": "assistant", "content": [thought, {"type": "text", "text": "Hello"}]}
    body = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}, said, ASKED]}
    async with proxied(home, lambda view: answer("5"), vendor=vendor) as server:
        for _ in range(2):
            async with server.http.post(f"{server.url}/v1/messages", json=body) as response:
                assert response.status == 200
    assert len(server.model.requests) <= 3


def test_very_many_late_results_are_put_in_place_in_linear_time() -> None:
    count = 60_000  # comparing each result with all calls took minutes, in which nobody else was served
    ids = [f"c{n}" for n in range(count)]
    calls = [{"id": each, "type": "function", "function": {"name": "t", "arguments": "{}"}} for each in ids]
    results = [{"role": "tool", "tool_call_id": each, "content": "r"} for each in reversed(ids)]
    said = {"role": "user", "content": "?"}
    chat, repairs = repair_chat([said, {"role": "assistant", "content": None, "tool_calls": calls}, said, *results])
    assert (chat[2:-1], chat[-1]) == (results, said)
    assert [repair.kind for repair in repairs] == ["history_order"]
    uses = [{"type": "tool_use", "id": each, "name": "t", "input": {}} for each in ids]
    answers = [{"type": "tool_result", "tool_use_id": each, "content": "r"} for each in reversed(ids)]
    blocks = [{"role": "assistant", "content": uses}, {"role": "user", "content": [{"type": "text"}, *answers]}]
    assert repair_blocks(blocks)[0][1]["content"] == [*answers, {"type": "text"}]


async def test_a_history_that_a_chat_template_refuses_is_sent_in_a_stricter_form(home: Path) -> None:
    """A system message that is not the first one: https://github.com/ggml-org/llama.cpp/issues/27367."""
    late = [ASKED, {"role": "assistant", "content": "Hi"}, {"role": "system", "content": "Be kind."}, ASKED]

    def play(view: RequestView) -> Any:
        if any(each["role"] == "system" for each in view.messages[1:]):
            raise ServerFailed("Jinja Exception: System message must be at the beginning.", status=500)
        return answer("5")

    async with proxied(home, play) as server:
        for stream in (False, True):
            body = {"model": "m", "messages": late, "stream": stream}
            async with server.http.post(f"{server.url}/v1/chat/completions", json=body) as response:
                assert (response.status, "5" in await response.text()) == (200, True)
    assert len(server.model.requests) == 4
    assert "Be kind." in str(server.model.requests[-1].json)
