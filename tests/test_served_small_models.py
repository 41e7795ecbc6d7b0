"""Small models behind servers are asked as the embedded ones are; other models, and what is set, stay as they are."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, Boxed, tool
from closeout.messages import Capabilities
from closeout.models.openai import OpenAIClient
from closeout.testing import answer, call, serve_script
from raw_server import chat, http, raw_server

pytest.importorskip("pydantic_monty")

SMALL = "qwen2.5-coder:1.5b"
QUESTION = "What do 6 lamps cost?"
LOOK_UP = '```python\n# answer = 6 * lamp\nprint(search("lamp"))\n```\n'
COMPUTE = "```python\nlamp = 40\nfinal_answer(6 * lamp)\n```\n"


@tool(read_only=True)
def search(query: str) -> str:
    """Search the catalogue.

    Args:
        query: what to find
    """
    return f"A {query} costs 40."


def agent(model: str, url: str, **options: Any) -> Agent[Any]:
    options = {"answer": Boxed(), "home": False, **options}
    return Agent(f"openai:{model}", [search], base_url=url, **options)


def program(view: Any) -> str:
    return COMPUTE if "costs 40" in view.text else LOOK_UP


# ------------------------------------------------------------------------------------------------ one text


@pytest.mark.parametrize(
    ("kind", "constraint"),
    [("llamacpp", "grammar"), ("vllm", "structured_outputs"), ("sglang", "ebnf"), ("somebody", None)],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_small_model_gets_one_text_with_examples(kind: str, constraint: str | None, stream: bool) -> None:
    async with serve_script(program, kind=kind) as server:
        result = await agent(SMALL, server.base_url, stream=stream).run(QUESTION)
    assert (result.answer, result.warnings) == ("240", ())
    assert [request.path for request in server.requests] == ["/v1/completions"] * 2
    first, second = (request.json for request in server.requests)
    assert first["prompt"].endswith(f"Question: {QUESTION}\n")
    assert "Lindt Circus" in first["prompt"]  # of a worked example
    assert second["prompt"] == f"{first['prompt']}{LOOK_UP}Result:\nA lamp costs 40.\n"
    assert (first["temperature"], first["max_tokens"]) == (0, 1024)
    forms = {"grammar", "structured_outputs", "ebnf"}
    assert forms & first.keys() == ({constraint} if constraint else set())


async def test_ollama_is_asked_at_the_address_that_inserts_no_chat_template() -> None:
    listed = http({"data": [{"id": SMALL, "owned_by": "library"}]})
    counts = {"done": True, "eval_count": 9, "prompt_eval_count": 90}
    replies = [{"model": SMALL, "response": text, **counts} for text in (LOOK_UP, COMPUTE)]
    async with raw_server(listed, *map(http, replies)) as seen:
        result = await agent(SMALL, f"{seen.url}/ollama/v1", stream=True, temperature=0.5).run(QUESTION)
    assert (result.answer, result.warnings) == ("240", ())
    assert (result.usage.input_tokens, result.usage.output_tokens) == (180, 18)
    assert [head.split()[1] for head in seen.heads] == ["/ollama/v1/models", *["/ollama/api/generate"] * 2]
    sent = seen.sent[1]
    options = {"temperature": 0.5, "num_predict": 1024, "stop": ["\nResult:", "\nQuestion:"]}
    assert sent.keys() == {"model", "prompt", "raw", "stream", "options"}
    assert (sent["model"], sent["raw"], sent["stream"], sent["options"]) == (SMALL, True, False, options)


async def test_ollama_without_the_model_is_an_error_that_says_so() -> None:
    listed = http({"data": [{"id": "other", "owned_by": "library"}]})
    missing = http({"error": f"model '{SMALL}' not found"}, 404)
    async with raw_server(listed, missing) as seen:
        result = await agent(SMALL, f"{seen.url}/v1").run(QUESTION)
    assert f"model '{SMALL}' not found" in str(result.failure)
    assert [head.split()[1] for head in seen.heads] == ["/v1/models", "/api/generate", "/v1/chat/completions"]


# ------------------------------------------------------------------------------------------------ what a server refuses

REFUSALS = {
    "no such address": http({"error": {"message": "Not Found"}}, 404),
    "another method": http("Method Not Allowed", 405, "text/plain"),
    "not implemented": http({"error": "not implemented"}, 501),
    "not for this model": http({"error": {"message": "This is a chat model."}}, 400),
    "an error": http({"error": {"message": "Boom"}}, 500),
    "a page": http("<html><title>Welcome</title></html>", content_type="text/html"),
    "nothing": http(""),
}
NOT_LISTED = [http("no", 404, "text/plain"), http({"error": "no key"}, 401), http("Boom", 500, "text/plain")]


class Refusing:
    """A server that completes no texts. Its chat replies with the first text, or the second if it has the price."""

    def __init__(self, refusal: bytes, texts: tuple[str, str] = (LOOK_UP, COMPUTE), *, failing: int = 0) -> None:
        self.refusal, self.texts, self.failing = refusal, texts, failing
        self.chats = 0

    def __call__(self, number: int, seen: Any) -> bytes:
        path = seen.heads[-1].split()[1]
        if path == "/v1/models":
            return NOT_LISTED[0]
        if path != "/v1/chat/completions":
            return self.refusal
        self.chats += 1
        if self.chats == self.failing:
            return http({"error": {"message": "Out of memory"}}, 500)
        text = "".join(message["content"] for message in seen.sent[-1]["messages"])
        return http(chat(self.texts["costs 40" in text]))


def paths(seen: Any) -> list[str]:
    return [head.split()[1].removeprefix("/v1/") for head in seen.heads]


ONE_TRY = {"llm": {"max_retries": 0}}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=list(REFUSALS))
async def test_a_server_that_completes_no_texts_gets_a_chat(refusal: bytes) -> None:
    async with raw_server(Refusing(refusal)) as seen:
        result = await agent(SMALL, f"{seen.url}/v1", config=ONE_TRY).run(QUESTION)
    assert result.answer == "240"
    assert "The server does not complete texts; the run continues as a chat." in result.warnings
    # A 400 may be about the options or the grammar: they are left out first.
    assert paths(seen).count("completions") == (3 if refusal == REFUSALS["not for this model"] else 1)
    assert paths(seen)[-2:] == ["chat/completions"] * 2
    assert "Lindt Circus" in seen.sent[-1]["messages"][0]["content"]


@pytest.mark.parametrize("listed", NOT_LISTED)
async def test_a_server_without_a_list_of_models_is_asked_all_the_same(listed: bytes) -> None:
    replies = [http({"choices": [{"text": text, "finish_reason": "stop"}]}) for text in (LOOK_UP, COMPUTE)]
    async with raw_server(listed, *replies) as seen:
        result = await agent(SMALL, f"{seen.url}/v1", config=ONE_TRY).run(QUESTION)
    assert (result.answer, result.warnings) == ("240", ())
    assert paths(seen) == ["models", "completions", "completions"]


async def test_a_run_that_fell_back_is_resumed_where_it_stopped(tmp_path: Path) -> None:
    server = Refusing(REFUSALS["no such address"], failing=2)
    async with raw_server(server) as seen:
        options = {"home": tmp_path, "config": ONE_TRY}
        failed = await agent(SMALL, f"{seen.url}/v1", **options).run(QUESTION, run_id="run")
        before = len(seen.heads)
        resumed = await agent(SMALL, f"{seen.url}/v1", **options).resume("run")
    assert (failed.status, resumed.answer) == ("failed", "240")
    assert paths(seen)[before:] == ["chat/completions"]


async def test_an_error_after_a_completed_text_is_an_error(tmp_path: Path) -> None:
    first = http({"choices": [{"text": LOOK_UP, "finish_reason": "stop"}]})
    async with raw_server(NOT_LISTED[0], first, REFUSALS["no such address"]) as seen:
        result = await agent(SMALL, f"{seen.url}/v1", config=ONE_TRY).run(QUESTION)
    assert (result.status, paths(seen)) == ("failed", ["models", "completions", "completions"])


@pytest.fixture
def no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("closeout.tools.builtin.program_sandbox.sandbox_installed", lambda: False)


@pytest.mark.usefixtures("no_sandbox")
async def test_without_the_sandbox_calls_are_made_in_one_text() -> None:
    async with serve_script([call("search", query="lamp"), answer("240")], kind="llamacpp") as server:
        result = await agent(SMALL, server.base_url).run(QUESTION)
    assert result.answer == "240"
    assert [request.path for request in server.requests] == ["/v1/completions"] * 2
    assert "grammar" in server.requests[0].json


@pytest.mark.usefixtures("no_sandbox")
async def test_without_the_sandbox_and_without_completions_calls_are_made_in_a_chat() -> None:
    action = 'Thought: Missing: the price.\nAction: {"action": "search", "action_input": {"query": "lamp"}}'
    server = Refusing(REFUSALS["no such address"], (action, "Thought: Known.\nFinal Answer: \\boxed{240}"))
    async with raw_server(server) as seen:
        result = await agent(SMALL, f"{seen.url}/v1", config=ONE_TRY).run(QUESTION)
    assert result.answer == "240"
    assert paths(seen) == ["models", "completions", "chat/completions", "chat/completions"]


# ------------------------------------------------------------------------------------------------ who is small


@pytest.mark.parametrize("model", ["my-model", "qwen2.5:7b", "qwen3-30b-a3b", "gpt-4.1-nano"])
async def test_nothing_changes_for_other_models(model: str) -> None:
    async with raw_server(http(chat(r"\boxed{240}"))) as seen:
        assert (await agent(model, f"{seen.url}/v1").run(QUESTION)).answer == "240"
    assert paths(seen) == ["chat/completions"]
    assert seen.sent[0].keys() == {"model", "messages", "tools"}
    assert OpenAIClient(model, "http://localhost:9/v1").capabilities == Capabilities()


@tool
def pay(to: str, amount: float) -> str:
    """Pay somebody."""
    return f"paid {to}"


@pytest.mark.parametrize("tools", [[], [pay]], ids=["none", "none that looks up or computes"])
async def test_without_tools_for_the_worked_examples_a_small_model_is_asked_as_others_are(tools: list[Any]) -> None:
    async with raw_server(http(chat("hi"))) as seen:
        url = f"{seen.url}/v1"
        assert (await Agent(f"openai:{SMALL}", tools, base_url=url, home=False).run("Greet me.")).answer == "hi"
    assert paths(seen) == ["chat/completions"]
    assert not seen.sent[0].keys() & {"temperature", "max_tokens"}


@pytest.mark.parametrize("options", [{"dialect": "function_call"}, {"config": {"llm": {"images": True}}}])
async def test_a_dialect_that_is_set_is_used_and_pictures_need_a_chat(options: dict[str, Any]) -> None:
    async with raw_server(http(chat(r"\boxed{240}"))) as seen:
        await agent(SMALL, f"{seen.url}/v1", **options).run(QUESTION)
    assert paths(seen) == ["chat/completions"]
    assert "tools" in seen.sent[0]


@pytest.mark.parametrize(("model", "small"), [("my-model", True), (SMALL, False)])
async def test_a_setting_says_whether_a_model_is_small(model: str, small: bool) -> None:
    async with serve_script(program if small else [answer("240")]) as server:
        result = await agent(model, server.base_url, config={"llm": {"small": small}}).run(QUESTION)
    assert result.answer == "240"
    assert {request.path for request in server.requests} == {"/v1/completions" if small else "/v1/chat/completions"}


def test_openais_own_models_and_stated_capabilities_are_not_guessed() -> None:
    assert not OpenAIClient("gpt-1b", api_key="k").capabilities.weak
    assert not OpenAIClient("gpt-1b", "https://acme.openai.azure.com/openai/v1").capabilities.weak
    stated = Capabilities(images=True)
    assert OpenAIClient(SMALL, "http://localhost:9/v1", capabilities=stated).capabilities == stated


# ------------------------------------------------------------------------------------------------ what a server says


def listed(parameters: Any) -> bytes:
    return http({"data": [{"id": "x.gguf", "owned_by": "llamacpp", "meta": {"n_ctx": 4096, "n_params": parameters}}]})


@pytest.mark.parametrize(
    ("model", "parameters", "small"),
    [
        ("my-model", 1_543_714_304, True),
        ("my-model", 3_085_938_688, False),
        ("my-model", "many", False),
        ("my-model", None, False),
        ("qwen2.5:7b", 1_543_714_304, False),
    ],
)
async def test_a_client_that_asks_learns_the_size(model: str, parameters: Any, small: bool) -> None:
    async with raw_server(listed(parameters)) as seen:
        able = await OpenAIClient(model, f"{seen.url}/v1").discover()
    assert (able.weak, able.preferred_dialect) == ((True, "code") if small else (False, None))
    assert (able.completions, able.grammar, able.max_context) == (True, True, 4096)


@pytest.mark.parametrize("parameters", [1_543_714_304, 7_000_000_000])
async def test_the_log_advises_to_say_that_a_model_is_small(parameters: int, caplog: pytest.LogCaptureFixture) -> None:
    async with raw_server(listed(parameters)) as seen:
        client = OpenAIClient("my-model", f"{seen.url}/v1")
        with caplog.at_level(logging.WARNING):
            assert [await client.context_length() for _ in range(2)] == [4096] * 2
    assert caplog.text.count("set llm.small=true") == (parameters < 3e9)
    assert client.capabilities == Capabilities()
