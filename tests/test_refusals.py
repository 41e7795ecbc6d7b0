"""What a server refuses is found by changing one thing at a time, and what it is known to refuse is not sent."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Boxed, ToolOutput, tool
from closeout.errors import AuthenticationFailed, BadRequest, RequestFailed, ServerFailed
from closeout.messages import Message, ModelReply, ModelRequest, ToolCall, ToolSpec, Usage
from closeout.models.anthropic import AnthropicClient
from closeout.models.base import assistant_message
from closeout.models.http import _key_of
from closeout.models.openai import OpenAIClient
from closeout.models.retry import RetryPolicy
from closeout.models.server_rules import ServerRules, known_rules
from closeout.testing import RequestView, Turn, answer, call, serve_script
from raw_server import Seen, chat, http, raw_server

USER = Message(role="user", content="What is k1?")
ONCE = RetryPolicy(retries=0)
QUICK = RetryPolicy(retries=2, first_wait=0.001)
VAGUE = "请求参数错误。"
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def refusing(refuses: Callable[[dict], Any], words: str = VAGUE, status: int = 400, **error: Any) -> Any:
    """A server that refuses some requests in these words."""

    def reply(number: int, seen: Seen) -> bytes:
        if refuses(seen.sent[number]):
            return http({"error": {"message": words, **error}}, status=status)
        return http(chat())

    return reply


def schemas(value: Any) -> Iterator[dict]:
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from schemas(each)


def keywords(value: Any) -> set[str]:
    return {key for schema in schemas(value) for key in schema}


# ------------------------------------------------------------------------------------------------ known rules


ODD_NAMES = ["", "get the price", "functions.price", "price<|channel|>x", "a" * 90, "price\n", "查价格", "\ud83d"]


def history_with(names: list[str]) -> list[Message]:
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n, name in enumerate(names)
    ]
    results = [Message(role="tool", tool_call_id=f"c{n}", content="No such tool.") for n in range(len(names))]
    return [USER, Message(role="assistant", content=None, tool_calls=calls), *results, USER]


async def test_names_that_a_model_made_up_are_sent_as_names_that_every_server_takes() -> None:
    request = ModelRequest(messages=history_with([*ODD_NAMES, "price"]), tools=(ToolSpec("price"), ToolSpec("look.up")))
    async with raw_server(http(chat())) as seen:
        await OpenAIClient("m", seen.url).complete(request)
    (body,) = seen.sent
    names = [each["function"]["name"] for each in body["messages"][1]["tool_calls"]]
    assert all(map(NAME.fullmatch, names))
    assert (names[-1], len(set(names))) == ("price", len(names))
    assert all(NAME.fullmatch(each["function"]["name"]) for each in body["tools"])
    done = http({"type": "message", "content": [{"type": "text", "text": "5"}], "stop_reason": "end_turn"})
    async with raw_server(done) as seen:
        await AnthropicClient("m", seen.url).complete(request)
    blocks = seen.sent[0]["messages"][1]["content"]
    assert [block["name"] for block in blocks] == names


async def test_a_long_id_of_another_server_is_sent_shorter_in_the_call_and_in_its_result() -> None:
    long = "call_" + "x" * 100
    calls = [{"id": long, "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    history = [USER, Message(role="assistant", tool_calls=calls), Message(role="tool", tool_call_id=long, content="5")]
    async with raw_server(http(chat())) as seen:
        await OpenAIClient("m", seen.url).complete(ModelRequest(messages=history))
    _, said, result = seen.sent[0]["messages"]
    assert said["tool_calls"][0]["id"] == result["tool_call_id"]
    assert 0 < len(result["tool_call_id"]) <= 64


QUERY = ToolSpec(
    "query",
    "Query.",
    {
        "type": "object",
        "properties": {"$filter": {"type": "string"}, "关键词": {"type": "array"}, "top": {"type": "integer"}},
        "required": ["$filter"],
        "anyOf": [{"required": ["top"]}, {"required": ["关键词"]}],
    },
)


async def test_parameters_have_names_that_the_server_takes_and_calls_have_the_tools_own() -> None:
    sent: dict[str, str] = {}

    def reply(number: int, seen: Seen) -> bytes:
        schema = seen.sent[number]["tools"][0]["input_schema"]
        sent.update({"$filter": schema["required"][0], "关键词": [*schema["properties"]][1]})
        given = {sent["$filter"]: f'a "{sent["$filter"]}": b', sent["关键词"]: [1.10], "top": 3}
        use = {"type": "tool_use", "id": "t1", "name": "query", "input": given}
        return http({"type": "message", "content": [use], "stop_reason": "tool_use"})

    async with raw_server(reply) as seen:
        got = await AnthropicClient("m", seen.url).complete(ModelRequest(messages=[USER], tools=(QUERY,)))
    schema = seen.sent[0]["tools"][0]["input_schema"]
    assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key) for key in schema["properties"])
    assert "关键词" in schema["properties"][sent["关键词"]]["description"]
    assert json.loads(got.tool_calls[0].text) == {"$filter": f'a "{sent["$filter"]}": b', "关键词": [1.10], "top": 3}


def refused_by(host: str, body: dict) -> str:
    """What a vendor says of a request that breaks one of its documented rules; empty if it breaks none."""
    openai, google = host in ("api.openai.com", "eu.openai.azure.com"), "googleapis" in host
    anthropic = "input_schema" in str(body["tools"])
    if openai and "max_tokens" in body:
        return "Unsupported parameter: 'max_tokens'"
    for message in body["messages"]:
        for called in message.get("tool_calls") or ():
            if not NAME.fullmatch(called["function"]["name"]):
                return "Invalid 'messages[1].tool_calls[0].function.name'"
            if openai and len(called["id"]) > 40:
                return "string too long. Expected maximum length 40"
            if host == "api.mistral.ai" and not re.fullmatch("[a-zA-Z0-9]{9}", called["id"]):
                return "Tool call id must be a-z, A-Z, 0-9, with a length of 9"
    for function in (each.get("function", each) for each in body["tools"]):
        schema = function.get("parameters") or function["input_schema"]
        if not NAME.fullmatch(function["name"]) or (google and not re.match("[a-zA-Z_]", function["name"])):
            return "Invalid function name"
        if "properties" not in schema or schema["type"] != "object":
            return "object schema missing properties"
        if any("array" in (each.get("type") or ()) and "items" not in each for each in schemas(schema)):
            return "array schema missing items"
        if host != "api.mistral.ai" and {"anyOf", "oneOf", "allOf", "enum", "not"} & schema.keys():
            return "input_schema does not support oneOf, allOf, or anyOf at the top level"
        if anthropic and not all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key) for key in schema["properties"]):
            return "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
        if openai and len(function["description"]) > 1024:
            return "tools[0].function.description: maximum length 1024"
    return ""


async def test_requests_keep_the_documented_rules_of_each_vendor() -> None:
    """A server that enforces them takes the first request by the table, and without the table refuses some."""
    long = ToolSpec("long", "Words. " * 400, {"type": "object", "properties": {"pair": {"type": ["array", "null"]}}})
    bare = [ToolSpec(name, "", {}) for name in ("21st_builder", "查价格", "x" * 90)]
    call_id = "call_" + "x" * 50
    calls = [{"id": call_id, "type": "function", "function": {"name": "get the price", "arguments": "{}"}}]
    history = [
        USER,
        Message(role="assistant", tool_calls=calls),
        Message(role="tool", tool_call_id=call_id, content=""),
    ]
    request = ModelRequest(messages=history, tools=(QUERY, long, *bare), max_tokens=5)
    message = {"type": "message", "content": [{"type": "text", "text": "5"}], "stop_reason": "end_turn"}
    for kind, protocol, hosts in (
        (OpenAIClient, "openai",
         ("api.openai.com", "eu.openai.azure.com", "generativelanguage.googleapis.com", "api.mistral.ai")),
        (AnthropicClient, "anthropic", ("api.anthropic.com", "bedrock.example")),
    ):  # fmt: skip
        for host in hosts:

            def vendor(number: int, seen: Seen) -> bytes:
                words = refused_by(host, seen.sent[number])  # noqa: B023  called in this round
                if words:
                    return http({"error": {"message": words}}, status=400)
                return http(message if kind is AnthropicClient else chat())  # noqa: B023

            for rules, refused in ((known_rules(protocol, host), False), (ServerRules(), True)):
                async with raw_server(vendor) as seen:
                    client: Any = kind("m", seen.url, retry=ONCE)
                    client._use_rules(rules)
                    client._documented = rules
                    with suppress(BadRequest) if refused else nullcontext():
                        await client.complete(request)
                assert bool(refused_by(host, seen.sent[0])) == refused, (host, refused_by(host, seen.sent[0]))


def test_more_tools_than_a_vendor_takes_are_refused_before_they_are_sent() -> None:
    many = ModelRequest(messages=[USER], tools=tuple(ToolSpec(f"t{n}") for n in range(129)))
    with pytest.raises(BadRequest, match=r"at most 128 tools, got 129\. Pass fewer tools, or set tools\.search=on"):
        OpenAIClient("gpt-5")._check(many)


# ------------------------------------------------------------------------------------------------ unknown rules


ODD = ToolSpec(
    "find",
    "Find.",
    {
        "type": "object",
        "properties": {"id": {"type": "string", "pattern": "^a"}, "n": {"anyOf": [{"type": "integer"}]}},
    },
)
PLAIN = ToolSpec("price", "Price.", {"type": "object", "properties": {"item": {"type": "string"}}})
FULL = ModelRequest(messages=[USER], tools=(ODD, PLAIN), temperature=0.2, max_tokens=9000, tool_choice="required")


@pytest.mark.parametrize(
    ("refuses", "words", "most", "kept"),
    [
        (lambda body: "temperature" in body, "Die temperature passt nicht.", 1, {"tool_choice", "max_tokens"}),
        (lambda body: "tool_choice" in body, "toolConfig.toolChoice.any", 1, {"temperature", "max_tokens"}),
        (lambda body: "tool_choice" in body, VAGUE, 1, set()),
        (lambda body: body.get("max_tokens", 0) > 4096, "max_tokens 9000 > 4096", 1, {"temperature", "tool_choice"}),
        (
            lambda body: body.get("max_tokens", 0) > 4096,
            "The maximum tokens you requested exceeds the model limit of 4096.",
            1,
            {"temperature", "tool_choice"},
        ),
        (
            lambda body: any("pattern" in each for each in schemas(body["tools"][0])),
            VAGUE,
            2,
            {"temperature", "max_tokens", "tool_choice"},
        ),
        (lambda body: "anyOf" in str(body["tools"]), "find", 1, {"temperature", "max_tokens", "tool_choice"}),
    ],
)
async def test_one_thing_is_changed_at_a_time_and_what_passes_is_kept(
    refuses: Any, words: str, most: int, kept: set[str]
) -> None:
    async with raw_server(refusing(refuses, words)) as seen:
        client = OpenAIClient("m", seen.url, retry=ONCE)
        reply = await client.complete(FULL)
        refused = len(seen.bodies) - 1
        again = await client.complete(FULL)
    assert refused <= most
    assert len(seen.bodies) == refused + 2  # what was met before costs nothing
    assert kept <= seen.sent[-1].keys()
    assert len(seen.sent[-1]["tools"]) == 2
    assert (len(reply.warnings), again.warnings) == (1, ())
    assert words in reply.warnings[0]


@pytest.mark.parametrize("reference", ["#", "#/$defs/node"])
async def test_a_schema_that_refers_to_itself_is_reduced_to_a_few_of_its_levels(reference: str) -> None:
    node = {"type": "object", "properties": {f"p{number}": {"$ref": reference} for number in range(12)}}
    tree = ToolSpec("tree", "Draw a tree.", {**node, "$defs": {"node": node}})
    async with raw_server(refusing(lambda body: "$ref" in str(body["tools"]), "$ref is not supported.")) as seen:
        await OpenAIClient("m", seen.url, retry=ONCE).complete(ModelRequest(messages=[USER], tools=(tree,)))
    sent = seen.sent[-1]["tools"][0]["function"]["parameters"]
    assert len(json.dumps(sent)) < 100_000
    assert [*sent["properties"]] == [f"p{number}" for number in range(12)]
    assert {each["type"] for each in sent["properties"].values()} == {"object"}
    assert sent["properties"]["p0"]["properties"]["p11"]["type"] == "object"


async def test_a_tool_is_left_out_alone_if_it_is_named_or_the_only_new_one() -> None:
    third = ToolSpec("weather", "Weather.", {"type": "object", "properties": {"place": {"type": "string"}}})

    def has_third(body: dict) -> bool:
        return any(each["function"]["name"] == "weather" for each in body["tools"])

    for words, before in (("weather", ()), ("tools[2] is not valid", ()), (VAGUE, (ODD, PLAIN))):
        async with raw_server(refusing(has_third, words)) as seen:
            client = OpenAIClient("m", seen.url, retry=ONCE)
            if before:
                await client.complete(replace(FULL, tools=before))
            first = len(seen.bodies)
            reply = await client.complete(replace(FULL, tools=(ODD, PLAIN, third)))
        assert len(seen.bodies) - first <= 3
        assert [each["function"]["name"] for each in seen.sent[-1]["tools"]] == ["find", "price"]
        assert "the tool weather is not offered (change or remove it)" in reply.warnings[0]


async def test_a_part_that_the_server_has_taken_before_is_not_changed() -> None:
    def long(body: dict) -> bool:
        return len(body["messages"]) > 1

    async with raw_server(refusing(long)) as seen:
        client = OpenAIClient("m", seen.url, retry=ONCE)
        await client.complete(FULL)
        longer = ModelRequest(**{name: getattr(FULL, name) for name in ("tools", "temperature", "tool_choice")},
                              messages=[USER, Message(role="assistant", content="x"), USER])  # fmt: skip
        with pytest.raises(BadRequest):
            await client.complete(longer)
    assert len(seen.bodies) == 2


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(401, "", AuthenticationFailed), (400, "content_filter", BadRequest), (400, "model_not_found", BadRequest)],
)
async def test_a_refusal_of_something_else_is_not_searched(status: int, code: str, kind: type[Exception]) -> None:
    async with raw_server(refusing(lambda _: True, "no", status, code=code)) as seen:
        with pytest.raises(kind):
            await OpenAIClient("m", seen.url, retry=ONCE).complete(FULL)
    assert len(seen.bodies) == 1


async def test_a_failure_that_may_pass_teaches_nothing_the_first_time() -> None:
    left = [True]
    async with raw_server(refusing(lambda _: bool(left) and left.pop(), "no", 500)) as seen:
        await OpenAIClient("m", seen.url, retry=QUICK).complete(FULL)
    first, second = seen.sent
    assert first == second


async def test_a_server_that_describes_its_failure_is_asked_as_often_as_any_that_fails() -> None:
    plain = ModelRequest(messages=[USER])  # nothing of it can be changed
    for request, failures in ((plain, QUICK.retries), (FULL, QUICK.retries), (plain, 99), (FULL, 99)):
        left = [True] * failures
        async with raw_server(
            refusing(lambda _, left=left: bool(left) and left.pop(), "The engine died.", 500)
        ) as seen:
            asked = OpenAIClient("m", seen.url, retry=QUICK).complete(request)
            if failures == 99:
                with pytest.raises(RequestFailed):
                    await asked
                assert len(seen.bodies) >= 1 + QUICK.retries
            else:
                await asked


async def test_a_limit_that_leaves_room_for_a_long_prompt_does_not_hold_for_a_short_one() -> None:
    def too_much(body: dict) -> bool:
        return len(str(body["messages"])) // 4 + body["max_tokens"] > 8192

    words = "The context has 8192 tokens. You requested 11000: 3000 in the messages, 8000 in the completion."
    long = Message(role="user", content="word " * 2_400)
    async with raw_server(refusing(too_much, words)) as seen:
        client = OpenAIClient("m", seen.url, retry=ONCE)
        for messages in ([long], [long, USER], [USER]):
            await client.complete(ModelRequest(messages=messages, max_tokens=8000))
    assert [body["max_tokens"] for body in seen.sent] == [8000, 2596, 2596, 8000]


async def test_a_change_after_a_failure_is_kept_if_the_server_fails_without_it_once_more() -> None:
    fails = [True, True, False, False]  # an outage that ends when the request is changed

    def outage(_: dict) -> bool:
        return bool(fails) and fails.pop(0)

    for refuses, sent in ((outage, [True, True, False, True, True]),
                          (lambda body: "temperature" in body, [True, True, False, True, False, False])):  # fmt: skip
        async with raw_server(refusing(refuses, "temperature", 500)) as seen:
            client = OpenAIClient("m", seen.url, retry=QUICK)
            for _ in range(3):
                await client.complete(FULL)
        assert ["temperature" in body for body in seen.sent] == sent


# ------------------------------------------------------------------------------------------------ forms of messages

CALLED: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is k1?"},
    assistant_message(ModelReply("", tool_calls=(ToolCall("read", '{"part": 1}', "a", text='{"part": 1}'),))),
    {"role": "tool", "tool_call_id": "a", "content": ""},
    {"role": "system", "content": "Hurry."},
    {"role": "user", "content": [{"type": "text", "text": "Well?"}]},
    {"role": "assistant", "content": "Hm.", "reasoning_content": "A thought."},
    {"role": "user", "content": "And now?"},
]
READ = ToolSpec("read", parameters={"type": "object", "properties": {"part": {"type": "integer"}}})


def turns(body: dict) -> list[str]:
    """The roles of a conversation without its calls."""
    return [each["role"] for each in body["messages"] if not each.get("tool_calls")]


def out_of_turn(body: dict) -> bool:
    said = turns(body)
    return any(
        after == before == "user" or (before, after) == ("tool", "user") or after == "system"
        for before, after in pairwise(said)
    )


def of_role(body: dict, role: str) -> list[dict]:
    return [each for each in body["messages"] if each["role"] == role]


def lacks_thought(body: dict) -> bool:
    return any("reasoning_content" not in each for each in of_role(body, "assistant"))


# What a server refuses, the words of some, and whether one change is enough: https://github.com/ggml-org/llama.cpp/
# issues/27367, SWE-agent/mini-swe-agent/issues/759, NousResearch/hermes-agent/issues/20154 and 55092,
# SAIL-Research-Lab/cheetahclaws/pull/71, leookun/cursor-byok/issues/268 and others.
FORMS: list[tuple[Callable[[dict], bool], str]] = [
    (out_of_turn, "conversation roles must alternate user and assistant roles except for tool calls and results"),
    (out_of_turn, VAGUE),
    (lambda body: any(each["content"] is None for each in body["messages"]), "invalid message content type: <nil>"),
    (lambda body: any(each["content"] == "" for each in body["messages"]), "text content blocks must be non-empty"),
    (lambda body: any(each["content"] == "" for each in body["messages"]), VAGUE),
    (lambda body: any("name" not in each for each in of_role(body, "tool")), "function_response.name: cannot be empty"),
    (lacks_thought, "The `reasoning_content` in the thinking mode must be passed back to the API."),
    (lacks_thought, "思考模式下 `reasoning_content` 必须返回给 API"),
]


async def test_a_conversation_gets_the_form_that_a_server_asks_for() -> None:
    for refuses, words in FORMS:
        async with raw_server(refusing(refuses, words)) as seen:
            client = OpenAIClient("m", seen.url, retry=QUICK)
            asked = ModelRequest(messages=tuple(map(Message, CALLED)), tools=(READ,))
            client._passed.update(dict.fromkeys([_key_of(asked, part) for part in ("options", "tools", "limit")]))
            for expected in (range(2, 5), range(1, 2)):  # requests: what was found is known to the next one
                before = len(seen.sent)
                assert (await client.complete(asked)).text == "hi", words
                assert len(seen.sent) - before in expected, words
            assert all("And now?" in str(body) and "Hurry." in str(body) for body in seen.sent), words


async def test_replies_are_streamed_for_a_server_that_sends_them_in_no_other_way() -> None:
    words = "This model only support stream mode, please enable the stream parameter."
    async with raw_server(refusing(lambda body: not body.get("stream"), words)) as seen:
        client = OpenAIClient("m", seen.url, retry=ONCE)
        for requests in (2, 3):
            assert (await client.complete(ModelRequest(messages=(USER,)))).text == "hi"
            assert len(seen.sent) == requests


def thinking_of(body: dict) -> list[Any]:
    blocks = [block for each in of_role(body, "assistant") for block in each["content"]]
    return [block for block in blocks if block["type"] == "thinking"]


THOUGHTS: list[tuple[Callable[[dict], bool], str]] = [
    (lambda body: bool(thinking_of(body)), "messages.1.content.0: Invalid `signature` in `thinking` block"),
    (lambda body: bool(thinking_of(body)), "messages.1.content.0.thinking.signature: Field required"),
    (lambda body: bool(thinking_of(body)), VAGUE),
    (lambda body: len(thinking_of(body)) < 2, "The `content[].thinking` in the thinking mode must be passed back."),
    (
        lambda body: "cache_control" in str(body),
        "messages.0.content.0.text.cache_control: Extra inputs",
    ),
]


async def test_thinking_and_cache_marks_are_sent_as_a_server_of_anthropics_protocol_takes_them() -> None:
    def answers(refuses: Callable[[dict], bool], words: str) -> Any:
        def reply(number: int, seen: Seen) -> bytes:
            if refuses(seen.sent[number]):
                return http({"type": "error", "error": {"type": "invalid_request_error", "message": words}}, status=400)
            block = {"type": "text", "text": "42"}
            usage = {"output_tokens": 1}
            return http({"type": "message", "content": [block], "stop_reason": "end_turn", "usage": usage})

        return reply

    for refuses, words in THOUGHTS:
        async with raw_server(answers(refuses, words)) as seen:
            client = AnthropicClient("m", seen.url, retry=QUICK)
            own = [{"type": "thinking", "thinking": "So.", "signature": "s"}, {"type": "text", "text": "Hm."}]
            said = {"role": "assistant", "content": "Hm.", "attached": {"server": client._server, "content": own}}
            messages = [USER, Message(said), USER, Message(role="assistant", content="Oh."), USER]
            for expected in (range(2, 5), range(1, 2)):
                before = len(seen.sent)
                assert (await client.complete(ModelRequest(messages=tuple(messages)))).text == "42", words
                assert len(seen.sent) - before in expected, words
            kept = "Invalid" in words or "Field" in words or words == VAGUE
            assert bool(thinking_of(seen.sent[-1])) != kept, words


async def test_the_budget_of_thinking_stays_below_the_limit_of_the_reply() -> None:
    async def sent(budget: int, most: int | None = None, **options: Any) -> tuple[int, int]:
        async with raw_server(refusing(lambda body: True)) as seen:
            thinking = {"type": "enabled", "budget_tokens": budget}
            client = AnthropicClient("m", seen.url, retry=ONCE, extra_body={"thinking": thinking}, **options)
            client.rules = replace(client.rules, most_tokens=most)
            with suppress(BadRequest):
                await client.complete(ModelRequest(messages=(USER,)))
            return seen.sent[0]["max_tokens"], seen.sent[0]["thinking"]["budget_tokens"]

    assert await sent(4000) == (16_384, 4000)
    assert await sent(20_000) == (36_384, 20_000)  # no limit was set
    assert await sent(20_000, most=8192) == (8192, 4096)
    assert await sent(4000, max_tokens=3000) == (3000, 1500)  # a limit that was set holds
    assert await sent(4000, max_tokens=1024) == (2048, 1024)  # the least that the API takes


# ------------------------------------------------------------------------------------------------ runs


@tool(read_only=True, inline=True)
def read(part: int) -> str:
    """Read a part."""
    return f"Part {part}: " + "the ledger says what was bought and sold. " * 60


def run_against(refuses: Callable[[RequestView], bool], refused: list[str], **settings: Any) -> Any:
    def play(view: RequestView) -> Turn | Any:
        if refuses(view):
            refused.append(VAGUE)
            raise BadRequest(VAGUE, status=400)
        return call("read", part=view.turn) if view.turn < 5 else answer("42")

    return serve_script(play, by="question")


def test_a_run_makes_room_after_a_refusal_in_words_that_nobody_knows() -> None:
    refused: list[str] = []
    with run_against(lambda view: view.size > 7_000, refused) as server:
        result = Agent("openai:m", [read], base_url=server.base_url, api_key="k", answer=Boxed(), home=False).run_sync(
            "Q"
        )
    assert (result.answer, len(refused) <= 4) == ("42", True)


def test_a_server_that_takes_tools_in_no_form_gets_them_as_text_and_is_remembered_once_that_passed(home: Path) -> None:
    refused: list[str] = []

    def ask(url: str) -> Any:
        return Agent("openai:m", [read], base_url=url, api_key="k", answer=Boxed()).run_sync("Q")

    with run_against(lambda view: "tools" in view.body, refused) as server:
        assert ask(server.base_url).answer == "42"
        first = len(refused)
        assert ask(server.base_url).answer == "42"
    assert first == len(refused) <= 4
    refused.clear()
    with run_against(lambda _: True, refused) as server:
        assert ask(server.base_url).status == "failed"
        refused.clear()
        assert ask(server.base_url).status == "failed"
        assert "tools" in server.requests[-len(refused)].json  # nothing wrong was remembered


def test_of_several_new_tools_none_is_left_out_if_the_server_refuses_one_without_naming_it() -> None:
    @tool(read_only=True)
    def log_in() -> ToolOutput:
        """Log in."""
        return ToolOutput(result="in", state_update={"account": "ann"})

    def look_up(part: int) -> str:
        """Look up a part."""
        return f"{part} in stock"

    names = ("ledger", "orders", "prices", "stock")
    later = [tool(look_up, name=name, read_only=True, needs_state="account") for name in names]
    refused: list[str] = []

    def play(view: RequestView) -> Turn | Any:
        if "stock" in str(view.body.get("tools")):
            refused.append(VAGUE)
            raise BadRequest(VAGUE, status=400)
        return (call("log_in"), call("stock", part=7), answer("42"))[min(view.turn, 3) - 1]

    with serve_script(play, by="question") as server:
        agent = Agent("openai:m", [log_in, *later], base_url=server.base_url, api_key="k", answer=Boxed(), home=False)
        result = agent.run_sync("Q")
    assert (result.answer, len(refused) <= 4) == ("42", True)
    assert "7 in stock" in server.requests[-1].text
    assert all(name in server.requests[-1].text for name in names)


def test_tools_are_written_as_text_for_a_server_that_fails_at_them_but_not_for_one_that_is_down() -> None:
    for down, takes_tools in ((99, False), (5, True), (8, True)):
        left = [True] * down

        def play(view: RequestView, left: list[bool] = left, takes_tools: bool = takes_tools) -> Turn:
            if ("tools" in view.body or takes_tools) and left and left.pop():
                raise ServerFailed("The engine died.", status=500)
            return call("read", part=1) if len(view.messages) < 4 else answer("42")

        with serve_script(play, by="question") as server:
            client = OpenAIClient("m", server.base_url, retry=RetryPolicy(first_wait=0.001))
            result = Agent(client, [read], answer=Boxed(), home=False).run_sync("Q")
        assert (result.answer, "tools" in server.requests[-1].json) == ("42", takes_tools)
        assert 99 - len(left) <= 4 or takes_tools


def test_what_a_server_refuses_is_known_to_the_next_process(home: Path) -> None:
    refused: list[str] = []
    config = {"llm": {"temperature": 0.3}}
    with run_against(lambda view: "temperature" in view.body, refused) as server:
        for _ in range(2):  # each agent has a client that has learned nothing itself
            agent = Agent("openai:m", [read], base_url=server.base_url, api_key="k", answer=Boxed(), config=config)
            assert agent.run_sync("Q").answer == "42"
    assert len(refused) == 1


async def test_runs_and_clients_of_the_proxy_end_with_the_answer_whatever_a_server_refuses_in_whatever_words(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "bench"))
    measure = importlib.import_module("refusals").measure
    for protocol, proxy in (("openai", None), ("anthropic", None), ("openai", home), ("anthropic", home)):
        tally = await measure(6, 100, protocol, proxy=proxy)
        assert (tally.answered, tally.repeated, tally.dropped) == (6, 0, 0), tally.failed


@pytest.mark.parametrize("context", [2048, 1_000_000])
def test_a_server_that_cuts_prompts_without_a_word_is_named_and_gets_shorter_ones(context: int) -> None:
    """Its count of tokens stays at the size of its context, whatever is sent."""
    sizes: list[int] = []

    def play(view: RequestView) -> Turn:
        sizes.append(len(view.text))
        usage = Usage(min(context, view.size // 4), 5, requests=1)
        return Turn(calls=[call("read_all", part=view.turn)], usage=usage) if view.turn < 9 else answer("42")

    @tool(read_only=True, inline=True)
    def read_all(part: int) -> str:
        """Read a part."""
        return f"Part {part}: " + "the ledger says what was bought and sold. " * 250

    with serve_script(play, by="question") as server:
        agent = Agent("openai:m", [read_all], base_url=server.base_url, api_key="k", home=False)
        result = agent.run_sync("Q")
    told = [text for text in result.warnings if "cut prompts" in text]
    if context > 2048:
        assert (told, sizes == sorted(sizes)) == ([], True)
        return
    (text,) = told
    assert re.search(r"has read 2,048 tokens, but about \d\d?,\d{3} were sent", text)
    assert max(sizes) < 3 * 10_500  # not nine parts of it
