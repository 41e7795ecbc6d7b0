"""What all clients share: the message-history face, connecting by name, prices, the encoding."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout import Agent, Boxed, ResponseBox, tool
from closeout.cli.options import model_in
from closeout.codec import decode_json, encode_json
from closeout.config import Config, LLMSettings
from closeout.errors import BadRequest, ConfigError, UsageError
from closeout.messages import Message, ModelReply, ToolCall, ToolSpec, Usage
from closeout.models.anthropic import AnthropicClient
from closeout.models.base import OMITTED_RESULT, BaseClient, ErrorBox, assistant_message
from closeout.models.catalog import PRICES, Price, find_price, price
from closeout.models.connect import connect
from closeout.models.openai import OpenAIClient
from closeout.testing import ScriptedClient, Turn, answer, call, say

SERVERS = [{"name": "web", "tools": [{"name": "search", "description": "d", "schema": {"type": "object"}}]},
           {"name": "files", "tools": [{"name": "search"}, {"name": "read"}]}]  # fmt: skip
HISTORY = [{"role": "user", "content": "q"}]


# ------------------------------------------------------------------------------------------------ the history face


async def test_create_message_returns_the_reply_and_the_history_and_unpacks():
    client = ScriptedClient([answer("42")])
    response, history = await client.create_message(system_prompt="Be short.", message_history=HISTORY)
    assert response.text == "The answer is \\boxed{42}."
    assert history == HISTORY
    assert [dict(message) for message in client.requests[0].messages] == [
        {"role": "system", "content": "Be short."}, {"role": "user", "content": "q"},
    ]  # fmt: skip


async def test_a_model_error_comes_back_as_an_error_box():
    client = ScriptedClient([BadRequest("No such thing.", status=400)])
    result = await client.create_message(message_history=HISTORY)
    assert isinstance(result.response, ErrorBox)
    assert str(result.response) == "No such thing."
    assert isinstance(result.response.error, BadRequest)


async def test_tools_of_servers_are_offered_and_calls_find_their_server_again():
    client = ScriptedClient([Turn(calls=[call("web__search", q="a"), call("read", path="b"), call("invented")])])
    response, _ = await client.create_message(message_history=HISTORY, tool_definitions=SERVERS)
    assert [tool.name for tool in client.requests[0].tools] == ["web__search", "files__search", "read"]
    assert client.extract_tool_calls_info(response, response.text) == [
        {"server_name": "web", "tool_name": "search", "arguments": {"q": "a"}, "id": "call_1_0"},
        {"server_name": "files", "tool_name": "read", "arguments": {"path": "b"}, "id": "call_1_1"},
        {"server_name": None, "tool_name": "invented", "arguments": {}, "id": "call_1_2"},
    ]


async def test_tool_specs_are_offered_as_they_are():
    client = ScriptedClient([call("f")])
    tools = (ToolSpec("f", server_name="local"),)
    response, _ = await client.create_message(message_history=HISTORY, tool_definitions=tools)
    assert client.requests[0].tools == tools
    assert client.extract_tool_calls_info(response)[0]["server_name"] == "local"


async def test_a_definition_without_a_name_says_what_it_should_be():
    with pytest.raises(UsageError, match='"name": server'):
        await ScriptedClient([say("x")]).create_message(message_history=HISTORY, tool_definitions=[{"tools": []}])


def test_arguments_that_are_not_an_object_stay_text():
    calls = (ToolCall("f", "{broken"), ToolCall("f", "[1]"), ToolCall("f", ""), ToolCall("f", {"a": 1}))
    infos = ScriptedClient([]).extract_tool_calls_info(ModelReply(tool_calls=calls))
    assert [info["arguments"] for info in infos] == ["{broken", "[1]", {}, {"a": 1}]
    assert ScriptedClient([]).extract_tool_calls_info(None) == []


def test_processing_a_reply_adds_it_to_a_new_history():
    before = list(HISTORY)
    reply = ModelReply("I look.", "hm", (ToolCall("f", '{"a":1}', "c1", text='{"a":1}'),))
    text, should_break, history = ScriptedClient([]).process_llm_response(reply, before)
    assert (text, should_break, before) == ("I look.", False, HISTORY)
    assert dict(history[-1]) == {
        "role": "assistant", "content": "I look.", "reasoning_content": "hm",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
    }  # fmt: skip


def test_no_reply_at_all_ends_the_loop():
    assert ScriptedClient([]).process_llm_response(None, HISTORY) == ("", True, HISTORY)


def test_results_of_native_calls_are_tool_messages_others_one_user_message():
    client = ScriptedClient([])
    calls = (ToolCall("f", "{}", "c1"), ToolCall("f", "{}", "c2"))
    history = [*HISTORY, assistant_message(ModelReply(tool_calls=calls))]
    results = [("c1", {"type": "text", "text": "one"}), ("c2", {"type": "text", "text": "two"})]
    native = client.update_message_history(history, results)
    assert [(m["role"], m["tool_call_id"], m["content"]) for m in native[2:]] == [
        ("tool", "c1", "one"),
        ("tool", "c2", "two"),
    ]
    plain = client.update_message_history([*HISTORY, {"role": "assistant", "content": "x"}], results)
    assert dict(plain[-1]) == {"role": "user", "content": "one\ntwo"}
    assert len(history) == 2


@pytest.mark.parametrize(
    ("keep", "shown"),
    [
        (-1, ["one", "two", "three"]),
        (0, [OMITTED_RESULT] * 3),
        (1, [OMITTED_RESULT, OMITTED_RESULT, "three"]),
        (9, ["one", "two", "three"]),
    ],
)
async def test_keep_tool_result_keeps_the_last_ones_in_view(keep: int, shown: list[str]):
    client = ScriptedClient([say("x")])
    results = [Message(role="tool", tool_call_id=text, content=text) for text in ("one", "two", "three")]
    history = [*HISTORY, *results, {"role": "user", "content": "Sum up."}]
    _, returned = await client.create_message(message_history=history, keep_tool_result=keep)
    assert [m["content"] for m in client.requests[0].messages] == ["q", *shown, "Sum up."]
    assert [m["content"] for m in returned] == ["q", "one", "two", "three", "Sum up."]


async def test_without_tool_messages_the_users_later_messages_are_the_results():
    client = ScriptedClient([say("x")])
    history = [{"role": "user", "content": text} for text in ("q", "result 1", "result 2", "Sum up.")]
    await client.create_message(message_history=history, keep_tool_result=1)
    assert [m["content"] for m in client.requests[0].messages] == ["q", OMITTED_RESULT, "result 2", "Sum up."]


async def test_the_usage_summary_says_what_was_charged():
    client = ScriptedClient([Turn(text="x", usage=Usage(1200, 30, cache_read_tokens=1000, requests=1, cost_usd=0.5))])
    await client.create_message(message_history=HISTORY)
    lines, log = client.format_token_usage_summary()
    assert lines == ["Requests: 1", "Input tokens: 1,200 (from cache: 1,000)", "Output tokens: 30", "Cost: $0.5000"]
    assert log == "[scripted] requests 1, input 1200, cache read 1000, cache write 0, output 30, cost $0.5000"


async def test_retries_reach_the_task_log():
    class Retrying(ScriptedClient):
        async def complete(self, request: Any, *, on_delta: Any = None, on_retry: Any = None) -> ModelReply:
            from closeout.models.base import RetryNote

            on_retry(RetryNote(1, 6, 0.5, BadRequest("Busy.")))
            return await super().complete(request, on_delta=on_delta)

    class Log:
        steps: list[tuple[str, str, str]] = []  # noqa: RUF012  one test

        def log_step(self, level: str, step_name: str, message: str) -> None:
            self.steps.append((level, step_name, message))

    await Retrying([say("x")]).create_message(message_history=HISTORY, task_log=Log(), step_id=3)
    assert Log.steps == [("warning", "main | LLM retry | step 3", "Busy. Retrying in 0.5 s.")]


async def test_a_wrapper_needs_only_complete_and_usage():
    class Wrapper(BaseClient):
        usage = Usage(7, 1, requests=1)  # type: ignore[assignment]

        async def complete(self, request: Any, *, on_delta: Any = None, on_retry: Any = None) -> ModelReply:
            return ModelReply("wrapped")

    async with Wrapper() as wrapper:
        response, _ = await wrapper.create_message(message_history=HISTORY)
        assert response.text == "wrapped"
        assert wrapper.format_token_usage_summary().lines[1] == "Input tokens: 7 (from cache: 0)"


# ------------------------------------------------------------------------------------------------ connecting


def test_each_form_gives_its_client():
    openai = connect("openai:gpt-5", api_key="k", environment={})
    anthropic = connect("anthropic:claude-opus-5", environment={"ANTHROPIC_API_KEY": "k"})
    assert isinstance(openai, OpenAIClient)
    assert isinstance(anthropic, AnthropicClient)
    assert (openai.name, anthropic.name) == ("openai:gpt-5", "anthropic:claude-opus-5")
    assert connect(openai) is openai


def test_a_name_may_hold_colons_and_slashes():
    client = connect("openai:org/model:free", "http://localhost:8000/v1", environment={})
    assert (client.name, client.base_url) == ("openai:org/model:free", "http://localhost:8000/v1")


def test_settings_then_the_environment_fill_missing_arguments():
    environment = {"OPENAI_BASE_URL": "http://env:1/v1", "OPENAI_API_KEY": "env"}
    assert connect("openai:m", environment=environment).base_url == "http://env:1/v1"
    settings = LLMSettings(provider="openai", model_name="m", base_url="http://set:2/v1", max_context_length=4096)
    client = connect(settings=settings, environment=environment)
    assert (client.base_url, client.capabilities.max_context) == ("http://set:2/v1", 4096)
    assert (
        connect("openai:m", "http://given:3/v1", settings=settings, environment=environment).base_url
        == "http://given:3/v1"
    )


@pytest.mark.parametrize(
    ("provider", "name", "client", "on_the_command_line"),
    [
        ("local", None, "local", "local"),
        ("local", "local", "local", "local"),
        ("local", "small", "local:small", "local:small"),
        ("local", "local:small", "local:small", "local:small"),
        (None, "local", "local", "local"),
        (None, "local:small", "local:small", "local:small"),
        (None, "openai:m:free", "openai:m:free", "openai:m:free"),
        ("openai", "m:free", "openai:m:free", "openai:m:free"),
        (None, "m:free", "openai:m:free", "openai:m:free"),
        (None, None, None, "local"),
    ],
)
def test_settings_name_the_same_model_in_python_and_on_the_command_line(
    provider: str | None, name: str | None, client: str | None, on_the_command_line: str
) -> None:
    settings = LLMSettings(provider=provider, model_name=name, base_url="http://set:2/v1")
    assert model_in(Config(llm=settings)) == on_the_command_line
    if client is None:
        with pytest.raises(ConfigError):
            connect(settings=settings, environment={})
    else:
        assert connect(settings=settings, environment={}).name == client


def test_a_setting_says_what_is_not_known_of_a_server_or_not_true_of_its_model():
    assert connect("openai:m", "http://s:1/v1", settings=LLMSettings(images=True), environment={}).capabilities.images
    assert not connect("anthropic:m", api_key="k", settings=LLMSettings(images=False)).capabilities.images


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt-5", r"'gpt-5' is not a model name\. Did you mean 'openai:gpt-5'\? Use one of: openai:NAME"),
        ("openai:", "is not a model name"),
        ("mistral:x", "is not a model name"),
        (None, r"No model is named\. Available here: .*local.* Name one"),
        ("openai:gpt-5", r"No API key for openai:gpt-5\. Set OPENAI_API_KEY.*base_url.*'local'"),
        ("anthropic:x", "Set ANTHROPIC_API_KEY"),
    ],
)
def test_what_cannot_be_connected_is_one_clear_sentence(model: str | None, words: str):
    with pytest.raises(ConfigError, match=words):
        connect(model, environment={})


def test_a_bad_address_is_named():
    with pytest.raises(ConfigError, match="'localhost:8000/v1' is not the address of a server"):
        connect("openai:m", "localhost:8000/v1", environment={})


def test_the_embedded_model_by_its_names():
    pytest.importorskip("closeout.models.local.embedded")
    client = connect("local", settings=LLMSettings(max_context_length=2048), environment={})
    assert (client.name, client.capabilities.weak, client.capabilities.max_context) == ("local", True, 2048)
    asyncio.run(client.aclose())


@pytest.mark.parametrize("prefix", ["", "local:"])
@pytest.mark.parametrize("name", ["own.gguf", "of:mine/own.GGUF"])
def test_a_model_file_by_its_path(tmp_path: Path, prefix: str, name: str):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"GGUF")
    assert connect(f"{prefix}{path}", environment={}).name == f"{prefix}{path}"


def test_a_servers_model_may_be_named_like_a_file():
    assert isinstance(connect("openai:own.gguf", "http://s:1/v1", environment={}), OpenAIClient)


# ------------------------------------------------------------------------------------------------ prices


def test_fresh_cached_and_written_tokens_are_priced_separately():
    usage = Usage(1_000_000, 100_000, cache_read_tokens=600_000, cache_write_tokens=200_000, requests=1)
    assert Price(2.0, 10.0, 0.2, 2.5).of(usage).cost_usd == pytest.approx(0.2 * 2 + 0.6 * 0.2 + 0.2 * 2.5 + 1.0)
    assert Price(2.0, 10.0).of(usage).cost_usd == pytest.approx(3.0)


@pytest.mark.parametrize(
    "name", ["gpt-5", "gpt-5-2025-08-07", "claude-haiku-4-5", "claude-haiku-4-5-20251001", "gpt-5-latest"]
)
def test_a_dated_name_has_the_price_of_the_model(name: str):
    assert find_price(name) in PRICES.values()


def test_an_unknown_model_has_no_price_and_ones_own_prices_go_first():
    assert price("my-model", Usage(10, 10, requests=1)).cost_usd is None
    assert price("my-model", Usage(1_000_000, 0, requests=1), {"my-model": (3.0, 4.0)}).cost_usd == 3.0
    assert find_price("gpt-5", {"gpt-5": Price(9.0, 9.0)}) == Price(9.0, 9.0)


def test_known_prices_count_only_for_the_vendors_own_host():
    assert OpenAIClient("gpt-5", api_key="k").price == PRICES["gpt-5"]
    assert OpenAIClient("gpt-5", "http://localhost:1/v1").price is None
    for name in ("x", "x-2026-01-31", "x-latest"):
        assert OpenAIClient(name, "http://localhost:1/v1", prices={"x": (1.0, 2.0)}).price == Price(1.0, 2.0)
    assert OpenAIClient("gpt-5", "http://localhost:1/v1", prices={"x": (1.0, 2.0)}).price is None


@pytest.mark.parametrize("name", ["openai:m", "anthropic:m"])
def test_prices_in_the_settings_are_those_of_the_client(name: str):
    settings = LLMSettings(prices={"m": [1, 2]})
    assert connect(name, "http://localhost:1/v1", settings=settings).price == Price(1.0, 2.0)


# ------------------------------------------------------------------------------------------------ encoding

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_what_is_encoded_is_decoded(value: Any):
    assert decode_json(encode_json(value)) == value


@given(st.text(st.characters(codec=None), max_size=20))
def test_any_text_is_encoded_as_utf_8(text: str):
    assert decode_json(encode_json({"t": text}).decode())["t"] == text.encode("utf-16", "surrogatepass").decode(
        "utf-16", "replace"
    )


def test_invalid_json_is_a_value_error():
    for data in (b"", b"{", b"\xff", b"[" * 100_000, '{"a": nul}'):
        with pytest.raises(ValueError):
            decode_json(data)
    assert decode_json(b'{"a": ["\\ud83d\\ude00 \\ud800"], "\\ude00": 1}') == {"a": ["😀 \ufffd"], "\ufffd": 1}
    assert decode_json(b'{"a": "\\ud800"}', keep_surrogates=True) == {"a": "\ud800"}
    assert decode_json(b'{"a": "\xff"}') == {"a": "\ufffd"}


# ------------------------------------------------------------------------------------------------ create_message


class Vendor:
    """A client of one's own with the message-history interface."""

    def __init__(self, *responses: Any) -> None:
        self.responses = list(responses)
        self.seen: list[dict[str, Any]] = []

    async def create_message(self, **arguments: Any) -> tuple[Any, list[Any]]:
        self.seen.append(arguments)
        return self.responses.pop(0), arguments["message_history"]

    def process_llm_response(self, response: Any, history: list[Any], agent_type: str) -> tuple[str, bool, list[Any]]:
        return response["text"], False, [*history, {"role": "assistant", "content": response["text"]}]

    def extract_tool_calls_info(self, response: Any, text: str) -> list[dict[str, Any]]:
        return response.get("calls", [])


async def test_a_client_with_create_message_runs_an_agent() -> None:
    @tool
    def look(key: str) -> str:
        """Look up a key."""
        return f"The value of {key} is 42."

    call = {"server_name": None, "tool_name": "look", "arguments": {"key": "a"}, "id": "c1"}
    vendor = Vendor(
        ResponseBox({"text": "I look.", "calls": [call]}, {"warning_msg": "low on credit"}),
        {"text": r"It is \boxed{42}."},
    )
    result = await Agent(vendor, [look], home=False, answer=Boxed()).run("What is a?")
    assert (result.answer, result.usage.requests) == ("42", 2)
    first, second = vendor.seen
    assert first["tool_definitions"][0]["tools"][0]["name"] == "look"
    assert "boxed" in first["system_prompt"]
    assert "The value of a is 42." in second["message_history"][-1]["content"]


@pytest.mark.parametrize(
    ("response", "kind"),
    [(ErrorBox("down"), "ServerFailed"), (None, "ServerFailed"), (ErrorBox("no", BadRequest("no")), "BadRequest")],
)
async def test_an_error_box_of_such_a_client_fails_the_run(response: Any, kind: str) -> None:
    result = await Agent(Vendor(response), home=False, config={"llm": {"max_retries": 0}}).run("What?")
    assert (result.status, result.error_kind) == ("failed", kind)


def test_an_incomplete_client_is_refused_with_the_adapters_name() -> None:
    class Half:
        def create_message(self) -> None: ...

    with pytest.raises(ConfigError, match=r"Half .* no process_llm_response and no extract_.*CreateMessageClient"):
        Agent(Half())
    with pytest.raises(ConfigError, match=r"model must be a name or a client, got <object.*create_message"):
        Agent(object())


@pytest.mark.parametrize("name", ["gpt-5", "openai:", "local:huge", "mistral:x"])
def test_a_bad_model_name_fails_when_the_agent_is_made(name: str) -> None:
    with pytest.raises(ConfigError, match=r"not a model name|not an embedded model"):
        Agent(name)
