"""The scripted model: turns in every dialect, faults when asked for, conversations apart, all of it recorded."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeout.codec import shared_prefix
from closeout.errors import (
    BadRequest,
    ModelError,
    ModelTimeout,
    PermanentModelError,
    RateLimited,
    ServerFailed,
    StreamDropped,
    UsageError,
)
from closeout.messages import Capabilities, Constraint, Delta, Message, ModelReply, ModelRequest, ToolCall, ToolSpec
from closeout.models.anthropic import AnthropicClient
from closeout.models.base import BaseClient, assistant_message
from closeout.models.openai import OpenAIClient
from closeout.models.retry import RetryPolicy
from closeout.testing import (
    MISBEHAVIOURS,
    NON_ANSWERS,
    Misbehaviour,
    RequestView,
    ScriptedClient,
    Turn,
    always,
    answer,
    call,
    once,
    say,
    serve_script,
    sometimes,
)
from closeout.testing.misbehaviour import CONNECTION_FAULTS, REPLY_FAULTS, UNFINISHED
from closeout.testing.odd_forms import ODD_FORMS
from closeout.testing.rejections import REJECTIONS
from closeout.testing.serve import main as serve
from closeout.testing.serve import read_misbehaviour

TOOLS = (ToolSpec("lookup"), ToolSpec("other"))
USER = Message(role="user", content="What is k1?")
SCRIPT = [Turn("I look it up.", [call("lookup", key="k1", n=3)]), answer("42", "I know it now.")]
QUICK = RetryPolicy(first_wait=0.001)
HEADS = {
    "mcp_xml": "## Server name: web\n### Tool name: lookup\nUse <use_mcp_tool>.",
    "react_json": 'Write Action: {"action": …, "action_input": …}',
    "react_text": "Write Action: and Action Input: lines.",
    "plain": "Answer.",
}


def asked(head: str | None = None, *more: Message) -> ModelRequest:
    """A request that teaches a dialect in its system prompt, or offers native tools."""
    if head is None:
        return ModelRequest(messages=(USER, *more), tools=TOOLS)
    return ModelRequest(messages=(Message(role="system", content=HEADS[head]), USER, *more))


async def converse(client: BaseClient, turns: int, **options: Any) -> list[ModelReply]:
    """An agent's loop without a mind: each call is answered with a word."""
    replies, messages = [], [USER]
    for _ in range(turns):
        reply = await client.complete(ModelRequest(messages=tuple(messages), tools=TOOLS), **options)
        replies.append(reply)
        messages.append(assistant_message(reply))
        messages += [Message(role="tool", tool_call_id=made.id, content="known") for made in reply.tool_calls]
    return replies


# ------------------------------------------------------------------------------------------------ dialects


async def test_a_turn_in_native_calls():
    first, second = await converse(ScriptedClient(SCRIPT), 2)
    assert (first.text, first.finish_reason) == ("I look it up.", "tool_calls")
    assert first.tool_calls == (ToolCall("lookup", '{"key":"k1","n":3}', "call_1_0", text='{"key":"k1","n":3}'),)
    assert second.text == "I know it now.\n\nThe answer is \\boxed{42}."


XML_CALL = """I look it up.

<use_mcp_tool>
<server_name>web</server_name>
<tool_name>lookup</tool_name>
<arguments>
{"key":"k1","n":3}
</arguments>
</use_mcp_tool>"""
JSON_CALL = """Thought: I look it up.
Action:
```json
{"action": "lookup", "action_input": {"key":"k1","n":3}}
```"""
LINES_CALL = """Thought: I look it up.
Action: lookup
Action Input: {"key":"k1","n":3}"""
HERMES_CALL = """<tool_call>
{"name": "lookup", "arguments": {"key":"k1","n":3}}
</tool_call>"""
FINAL, PLAIN = "Thought: I know it now.\nFinal Answer: ", "I know it now.\n\n"


@pytest.mark.parametrize(
    ("head", "first", "closing"),
    [
        ("react_json", JSON_CALL, FINAL),
        ("react_text", LINES_CALL, FINAL),
        ("mcp_xml", XML_CALL, PLAIN),
        ("plain", f"I look it up.\n\n{HERMES_CALL}", PLAIN),
    ],
)
async def test_a_turn_in_the_dialect_that_the_prompt_explains(head: str, first: str, closing: str):
    client = ScriptedClient(SCRIPT)
    assert [(await client.complete(asked(head))).text for _ in range(2)] == [
        first, f"{closing}The answer is \\boxed{{42}}.",
    ]  # fmt: skip


async def test_a_reply_continues_a_prompt_that_ends_in_thought():
    prompt = f"{HEADS['react_json']}\nQuestion: k1?\nThought:"
    reply = await ScriptedClient(SCRIPT).complete(ModelRequest(prompt=prompt))
    assert reply.text.startswith(" I look it up.\nAction:")


async def test_a_dialect_with_one_call_a_reply_gets_a_turns_calls_one_by_one():
    client = ScriptedClient([Turn("Both.", [call("lookup", key="a"), call("other", key="b")]), answer("1")])
    texts = [(await client.complete(asked("react_text"))).text.splitlines()[1] for _ in range(3)]
    assert texts == ["Action: lookup", "Action: other", "Final Answer: The answer is \\boxed{1}."]
    native = ScriptedClient([Turn("Both.", [call("lookup", key="a"), call("other", key="b")]), answer("1")])
    assert [len(reply.tool_calls) for reply in await converse(native, 2)] == [2, 0]


async def test_stop_words_cut_a_reply_if_the_server_knows_them():
    request = ModelRequest(messages=(USER,), stop=("\nObservation:",))
    script = [say("Action: x\nObservation: made up")]
    assert (await ScriptedClient(script).complete(request)).text == "Action: x"
    deaf = ScriptedClient(script, capabilities=Capabilities(stop=False))
    assert (await deaf.complete(request)).text == "Action: x\nObservation: made up"


# ------------------------------------------------------------------------------------------------ scripts


async def test_every_kind_of_item():
    script = [
        "plain text", call("f", a=1), ModelReply("whole", "why", finish_reason="length"),
        lambda request: answer(f"{request.question}/{request.number}/{request.turn}/{request.last}"),
        BadRequest("Refused.", status=400),
    ]  # fmt: skip
    client = ScriptedClient(script)
    replies = [await client.complete(asked()) for _ in range(4)]
    assert [reply.text for reply in replies] == [
        "plain text", "", "whole", "The answer is \\boxed{What is k1?/4/4/What is k1?}.",
    ]  # fmt: skip
    assert (replies[2].reasoning, replies[2].finish_reason) == ("why", "length")
    with pytest.raises(BadRequest, match="Refused"):
        await client.complete(asked())


async def test_a_script_may_be_one_function():
    client = ScriptedClient(lambda request: say(f"turn {request.turn}"))
    assert [(await client.complete(asked())).text for _ in range(3)] == ["turn 1", "turn 2", "turn 3"]


async def test_after_the_end_an_answer_is_repeated_and_anything_else_is_an_error():
    assert [r.text for r in await converse(ScriptedClient([answer("1")]), 3)] == ["The answer is \\boxed{1}."] * 3
    with pytest.raises(PermanentModelError, match="ends after 1 turns"):
        await converse(ScriptedClient([call("f")]), 2)
    with pytest.raises(TypeError, match="got int"):
        await ScriptedClient([5]).complete(asked())


async def test_a_mapping_has_turns_for_each_question():
    client = ScriptedClient({"k1": [say("one"), answer("1")], "k2": [answer("2")]})
    other = ModelRequest(messages=(Message(role="user", content="And k2?"),))
    texts = [(await client.complete(request)).text for request in (asked(), other, asked())]
    assert texts == ["one", "The answer is \\boxed{2}.", "The answer is \\boxed{1}."]
    with pytest.raises(PermanentModelError, match="no turns for this question"):
        await client.complete(ModelRequest(prompt="k3?"))


async def test_conversations_are_separate():
    script = [say("first"), say("second")]
    requests = [ModelRequest(messages=(Message(role="user", content=text),)) for text in ("a", "b", "a")]
    by_key, by_question = ScriptedClient([*script, say("third")]), ScriptedClient(script, by="question")
    by_me = ScriptedClient(script, by=lambda request: str(request.question < "b"))
    assert [(await by_key.complete(r)).text for r in requests] == ["first", "second", "third"]
    assert [(await by_question.complete(r)).text for r in requests] == ["first", "first", "second"]
    assert [(await by_me.complete(r)).text for r in requests] == ["first", "first", "second"]


@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_deltas_add_up_to_the_reply_however_they_are_cut(chunks: list[int]):
    shown: list[Delta] = []
    turn = Turn("thought 元", [call("lookup", key="😀"), call("other")], reasoning="because")
    reply = asyncio.run(ScriptedClient([turn], chunks=chunks).complete(asked(), on_delta=shown.append))

    def joined(kind: str, index: int = 0) -> str:
        return "".join(delta.text for delta in shown if (delta.kind, delta.index) == (kind, index))

    assert (joined("text"), joined("reasoning")) == (reply.text, reply.reasoning)
    assert [(joined("tool_name", i), joined("tool_arguments", i)) for i in (0, 1)] == [
        (made.name, made.text) for made in reply.tool_calls
    ]


async def test_a_client_can_stop_a_stream_in_process_too():
    reply = await ScriptedClient([say("Action: x and more")], chunks=[9]).complete(asked(), on_delta=lambda _: True)
    assert (reply.text, reply.finish_reason) == ("Action: x", "cut")


# ------------------------------------------------------------------------------------------------ faults


def test_every_fault_has_a_name_and_a_description():
    assert set(MISBEHAVIOURS) == {*CONNECTION_FAULTS, *REPLY_FAULTS, *UNFINISHED, *REJECTIONS, *ODD_FORMS}
    assert Misbehaviour("429").kind == "rate_limited"
    with pytest.raises(UsageError, match="Unknown misbehaviour 'tired'"):
        once("tired")


@pytest.mark.parametrize(
    ("kind", "text", "arguments", "finish"),
    [
        ("empty", "", None, "stop"),
        ("non_answer", NON_ANSWERS[1], None, "stop"),
        ("malformed", "I look it up.", '{"key":"k1","n":3,}', "tool_calls"),
        ("truncated", "I look it up.", '{"key":"k1",', "length"),
        ("wrong_parameter", "I look it up.", '{"keys":"k1","n":3}', "tool_calls"),
        ("wrong_types", "I look it up.", '{"key":["k1"],"n":"3"}', "tool_calls"),
        ("misspelt_tool", "I look it up.", '{"key":"k1","n":3}', "tool_calls"),
        ("wrong_dialect", f"I look it up.\n{HERMES_CALL}", None, "stop"),
        ("hallucinated_observation",
         "I look it up.\nObservation: made up\nThe answer is \\boxed{made up}.", None, "stop"),
    ],
)  # fmt: skip
async def test_a_faulty_reply_is_followed_by_the_correct_one(kind: str, text: str, arguments: str | None, finish: str):
    client = ScriptedClient(SCRIPT, misbehave=kind)
    wrong, right = await client.complete(asked()), await client.complete(asked())
    assert (wrong.text, wrong.finish_reason) == (text, finish)
    assert [made.text for made in wrong.tool_calls] == ([] if arguments is None else [arguments])
    name = "loookup" if kind == "misspelt_tool" else "lookup"
    assert {made.name for made in wrong.tool_calls} <= {name}
    assert right.tool_calls[0].text == '{"key":"k1","n":3}'


async def test_a_reply_that_repeats_itself_hits_the_length_limit():
    reply = await ScriptedClient(SCRIPT, misbehave="repeated").complete(asked())
    assert reply.text.count("I will look at it once more.") > 50
    assert (reply.finish_reason, reply.tool_calls) == ("length", ())


async def test_a_missing_box_happens_to_an_answer():
    replies = await converse(ScriptedClient(SCRIPT, misbehave="missing_box"), 3)
    assert [reply.text for reply in replies[1:]] == [
        "I know it now.\n\nThe answer is 42.", "I know it now.\n\nThe answer is \\boxed{42}.",
    ]  # fmt: skip


@pytest.mark.parametrize("head", ["react_json", "react_text", "mcp_xml"])
async def test_an_invented_observation_comes_after_the_action_and_before_an_answer(head: str):
    text = (await ScriptedClient(SCRIPT, misbehave="hallucinated_observation").complete(asked(head))).text
    assert text.index("lookup") < text.index("\nObservation: made up\n") < text.index("\\boxed{made up}")


async def test_a_faulty_call_that_was_run_all_the_same_is_not_repeated():
    client = ScriptedClient(SCRIPT, misbehave="malformed")
    replies = await converse(client, 2)
    assert [len(reply.tool_calls) for reply in replies] == [1, 0]
    text = ScriptedClient(SCRIPT, misbehave="misspelt_tool")
    first = await text.complete(asked("react_text"))
    assert "loookup" in first.text
    observed = Message(role="user", content=f"{first.text}\nObservation: known")
    assert "Final Answer" in (await text.complete(asked("react_text", observed))).text


async def test_when_faults_happen():
    async def faults(plan: Any, requests: int = 8) -> str:
        client = ScriptedClient(lambda _: call("lookup"), misbehave=plan)
        replies = [await client.complete(asked()) for _ in range(requests)]
        return "".join("." if reply.tool_calls else "x" for reply in replies)

    assert await faults(once("empty")) == "x......."
    assert await faults(once("empty", 3)) == "..x....."
    assert await faults(once("empty", 2, times=3)) == ".xxx...."
    assert await faults(always("empty")) == "xxxxxxxx"
    assert await faults(always("empty", 4)) == "...xxxxx"
    assert await faults(["empty", once("non_answer", 3)]) == "x..x...."
    drawn = await faults(sometimes("empty", 0.5, seed=1), 40)
    assert (
        drawn == await faults(sometimes("empty", 0.5, seed=1), 40) != await faults(sometimes("empty", 0.5, seed=2), 40)
    )
    assert 8 < drawn.count("x") < 32


@pytest.mark.parametrize(
    ("kind", "error"),
    [("rate_limited", RateLimited), ("server_error", ServerFailed), ("dropped", StreamDropped), ("hang", ModelTimeout)],
)
async def test_connection_faults_in_process_are_the_errors_of_a_real_client(kind: str, error: type[ModelError]):
    client = ScriptedClient(SCRIPT, misbehave=kind)
    with pytest.raises(error):
        await client.complete(ModelRequest(messages=(USER,), timeout=0.01), on_delta=lambda _: None)
    assert client.usage.requests == 1
    assert (await client.complete(asked())).text == "I look it up."


# ------------------------------------------------------------------------------------------------ the server

CLIENTS = [OpenAIClient, AnthropicClient]


@pytest.mark.parametrize("chunks", [None, (1,), (2, 5, 64)])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client_type", CLIENTS)
async def test_the_same_turns_over_http(client_type: Any, stream: bool, chunks: Any):
    script = [Turn("I look 元.", [call("lookup", key="😀"), call("other")], reasoning="Why not?"), answer("42")]
    async with serve_script(script, chunks=chunks) as server:
        options = {"on_delta": lambda _: None} if stream else {}
        first, second = await converse(client_type("m", server.base_url, "k"), 2, **options)
    assert (first.text, first.reasoning, first.finish_reason) == ("I look 元.", "Why not?", "tool_calls")
    assert [(made.name, made.text) for made in first.tool_calls] == [("lookup", '{"key":"😀"}'), ("other", "{}")]
    assert second.text == "The answer is \\boxed{42}."
    assert second.usage.cache_read_tokens > 10


@pytest.mark.parametrize("client_type", CLIENTS)
async def test_a_received_request_offers_what_the_script_saw(client_type: Any):
    seen: list[Any] = []

    def turn(view: RequestView) -> Any:
        seen.append((view.text, view.messages, view.tools))
        return answer("42")

    async with serve_script(turn) as server:
        messages = [Message(role="user", content="What is k1? 什么")]
        await client_type("m", server.base_url, "k").complete(ModelRequest(messages=messages, tools=TOOLS[:1]))
    (received,) = server.requests
    assert [(received.text, received.messages, received.tools)] == seen
    assert (received.text, received.tools) == ("What is k1? 什么", ("lookup",))


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_over_http(stream: bool):
    async with serve_script(SCRIPT) as server:
        client = OpenAIClient("m", server.base_url)
        prompt = f"{HEADS['react_text']}\nQuestion: k1?\nThought:"
        reply = await client.complete(ModelRequest(prompt=prompt), on_delta=(lambda _: None) if stream else None)
    assert reply.text == ' I look it up.\nAction: lookup\nAction Input: {"key":"k1","n":3}'


@pytest.mark.parametrize("kind", [kind for kind in CONNECTION_FAULTS if kind != "hang"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client_type", CLIENTS)
async def test_every_connection_fault_is_survived(client_type: Any, stream: bool, kind: str):
    async with serve_script(SCRIPT, misbehave=once(kind, 2), chunks=(13,)) as server:
        options = {"on_delta": lambda _: None} if stream else {}
        client = client_type("m", server.base_url, "k", retry=QUICK)
        first, second = await converse(client, 2, **options)
    assert first.tool_calls[0].text == '{"key":"k1","n":3}'
    assert second.text == "I know it now.\n\nThe answer is \\boxed{42}."
    assert [request.fault for request in server.requests] == ([None, kind] if kind == "slow" else [None, kind, None])
    assert client.usage.requests == len(server.requests)


@pytest.mark.parametrize("kind", [*REPLY_FAULTS])
@pytest.mark.parametrize("head", [None, *HEADS])
async def test_every_reply_fault_looks_the_same_over_http_as_in_process(kind: str, head: str | None):
    inside = ScriptedClient([SCRIPT[0], SCRIPT[1]], misbehave=kind)
    async with serve_script(SCRIPT, misbehave=kind) as server:
        outside = OpenAIClient("m", server.base_url)
        for _ in range(3):
            ours, theirs = await inside.complete(asked(head)), await outside.complete(asked(head))
            assert (ours.text, [c.text for c in ours.tool_calls]) == (theirs.text, [c.text for c in theirs.tool_calls])


async def test_the_server_notices_that_a_client_gave_up(skip_time: Callable[[float], None]):
    async with serve_script(SCRIPT, misbehave="hang") as server:
        client = OpenAIClient("m", server.base_url, retry=RetryPolicy(retries=0))
        task = asyncio.ensure_future(client.complete(ModelRequest(messages=(USER,), timeout=300)))
        await _until(lambda: bool(server.requests))
        skip_time(301)
        with pytest.raises(ModelTimeout):
            await task
        await _until(lambda: server.requests[0].disconnected)


async def test_a_cut_stream_is_seen_by_the_server():
    async with serve_script([say("word " * 500)], pause=0.002) as server:
        reply = await OpenAIClient("m", server.base_url).complete(asked(), on_delta=lambda _: True)
        assert reply.finish_reason == "cut"
        await _until(lambda: server.requests[0].disconnected)


async def test_requests_are_kept_byte_for_byte_and_extend_each_other():
    async with serve_script([call("lookup"), call("other"), answer("1")]) as server:
        await converse(OpenAIClient("m", server.base_url, "key-1"), 3)
    assert [(request.path, request.turn) for request in server.requests] == [
        ("/v1/chat/completions", n) for n in (1, 2, 3)
    ]
    assert json.loads(server.bodies[0])["messages"] == [dict(USER)]
    for before, after in zip(server.bodies, server.bodies[1:], strict=False):
        assert shared_prefix(before, after) == len(before) - 2
    assert server.requests[0].headers["Authorization"] == "Bearer key-1"


async def test_five_hundred_concurrent_conversations_are_separate():
    async with serve_script([call("lookup"), answer("42")], record=False) as server:
        clients = [OpenAIClient("m", server.base_url, f"key-{n}") for n in range(500)]
        done = await asyncio.gather(*(converse(client, 2) for client in clients))
    assert {reply[1].text for reply in done} == {"The answer is \\boxed{42}."}
    assert server.requests == []


async def test_a_server_without_native_tools_writes_calls_as_text():
    async with serve_script(SCRIPT, native_tools=False) as server:
        reply = await OpenAIClient("m", server.base_url).complete(asked())
    assert reply.tool_calls == ()
    assert "<tool_call>" in reply.text


async def test_the_end_of_the_script_and_unknown_paths_are_clear_errors():
    async with serve_script([say("only")]) as server:
        client = OpenAIClient("m", server.base_url, retry=QUICK)
        await client.complete(asked())
        with pytest.raises(BadRequest, match="ends after 1 turns"):
            await client.complete(asked())
        with pytest.raises(ModelError, match="Unknown path /wrong/chat/completions"):
            await OpenAIClient("m", f"{server.url}/wrong").complete(asked())
    async with serve_script(lambda view: view.nothing) as server:
        with pytest.raises(
            BadRequest, match=r"The script raised AttributeError: .*nothing.* \(test_scripted\.py:\d+\)"
        ):
            await OpenAIClient("m", server.base_url, retry=QUICK).complete(asked())
        assert len(server.requests) == 1


async def test_the_servers_model_list():
    async with serve_script(SCRIPT, kind="vllm", max_context=4096) as server:
        client = OpenAIClient("m", server.base_url)
        await client.complete(ModelRequest(messages=(USER,), constraint=Constraint("regex", "a+")))
        assert (client.capabilities.grammar, client.capabilities.max_context) == (True, 4096)
        assert b'"structured_outputs":{"regex":"a+"}' in server.bodies[0]


def test_the_server_in_a_thread_serves_code_without_a_loop():
    with serve_script(SCRIPT) as server:
        for _ in range(2):
            assert asyncio.run(OpenAIClient("m", server.base_url, "k").complete(asked()))
    assert len(server.requests) == 2


def test_the_server_in_a_process_of_its_own(tmp_path: Any):
    script = tmp_path / "script.json"
    turns = [{"thought": "t", "calls": [{"name": "lookup", "arguments": {"key": "a"}}]}, {"answer": "元"}]
    script.write_text(json.dumps(turns), "utf-8")
    command = [sys.executable, "-m", "closeout.testing.serve", str(script), "--misbehave", "429@2x2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()
            client = OpenAIClient("m", url, retry=QUICK)
            replies = asyncio.run(converse(client, 2))
        finally:
            process.terminate()
    assert process.returncode == 0
    assert [reply.text for reply in replies] == ["t", "The answer is \\boxed{元}."]
    assert client.usage.requests == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("429", Misbehaviour("rate_limited")),
        ("empty@3", Misbehaviour("empty", at=3)),
        ("empty@3x2", Misbehaviour("empty", at=3, times=2)),
        ("slowx*", Misbehaviour("slow", times=None)),
        ("dropped%0.1", Misbehaviour("dropped", times=None, share=0.1)),
    ],
)
def test_misbehaviours_are_read_from_the_command_line(text: str, expected: Misbehaviour):
    assert read_misbehaviour(text) == expected


def test_a_misbehaviour_that_cannot_be_read_is_an_error():
    for text in ("", "em pty", "nothing"):
        with pytest.raises(UsageError):
            read_misbehaviour(text)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("{", "Expecting property name"),
        ('"say this"', "A script must be a list of turns"),
        ("[5]", "A turn must be a text or an object"),
        (
            '[{"calls": [{"nme": "look_up"}]}]',
            'The calls of a turn must be a list of objects such as {"name": "lookup", "arguments": {"key": "k1"}}.',
        ),
        ('[{"calls": "look_up"}]', "The calls of a turn must be a list of objects"),
    ],
)
def test_a_script_that_cannot_be_read_is_one_sentence(
    script: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "script.json").write_text(script)
    with pytest.raises(SystemExit) as ended:
        serve([str(tmp_path / "script.json")])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_port_in_use_is_one_sentence(capsys: pytest.CaptureFixture[str]):
    with serve_script(SCRIPT) as server, pytest.raises(SystemExit):
        serve(["--port", str(urlsplit(server.base_url).port)])
    assert "address already in use" in capsys.readouterr().err


async def test_garbage_requests_get_an_error_not_a_crash():
    from closeout.models.transport import Endpoint, post

    async with serve_script(SCRIPT) as server:
        for body in (b"", b"{", b"[]", b'"x"', b'{"messages": 5}', b'{"tools": [1]}'):
            response = await post(Endpoint(f"{server.base_url}/chat/completions"), body, timeout=60)
            assert response.status == 400
            await response.read()


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_shared_prefix(start: bytes, a: bytes, b: bytes):
    length = shared_prefix(start + a, start + b)
    assert length >= len(start)
    assert (start + a)[:length] == (start + b)[:length]
    assert (start + a)[length : length + 1] != (start + b)[length : length + 1] or length == len(start + a) == len(
        start + b
    )


async def _until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  the condition is another connection's state
            await asyncio.sleep(0.005)
