"""Secrets never leave in an error, a record or a `repr`."""

from __future__ import annotations

from pathlib import Path

import pytest

from closeout import Agent, AnthropicClient, OpenAIClient
from closeout.config import load_config
from closeout.errors import AuthenticationFailed, Failure, ServerFailed
from closeout.journal.store import open_store
from closeout.messages import Message, ModelRequest
from closeout.models.retry import RetryPolicy
from closeout.redaction import mask, redact
from raw_server import http, raw_server, sse

KEY = "my-own-key-0123456789"
HELLO = ModelRequest(messages=[Message(role="user", content="Hello")])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Incorrect API key provided: sk-proj-abcdefghijklmnop1234.", "Incorrect API key provided: ***."),
        ("Authorization: Bearer abc.def-ghi_jkl", "Authorization: Bearer ***"),
        ("http://user:hunter22@host/v1", "http://***@host/v1"),
        ("https://host/mcp?a=1&access_token=abc#x, ?key=b", "https://host/mcp?a=1&access_token=***#x, ?key=***"),
        ("https://host/?keyword=tea&monkey=1", "https://host/?keyword=tea&monkey=1"),
        ("python server.py --api-key=abc --verbose", "python server.py --api-key=*** --verbose"),
        ("sk-ill, task-force and hf_model are words", "sk-ill, task-force and hf_model are words"),
        (f"a {KEY} b", "a *** b"),
    ],
)
def test_a_secret_in_a_text_is_replaced(text: str, expected: str):
    assert redact(text, [KEY]) == expected


@pytest.mark.parametrize(
    "secret",
    [
        *(f"{start}-0123456789abcdef" for start in ("sk", "PK", "rk", "xai", "glpat")),
        *(f"{start}_0123456789abcdef" for start in ("gsk", "hf", "ghp", "gho", "ghs", "github_pat", "XAI", "r8")),
        *(f"xox{kind}-0123456789" for kind in "abprs"),
        "AIza" + "0" * 35, "AKIA0123456789ABCDEF",
    ],
)  # fmt: skip
def test_a_key_of_a_known_service_is_replaced_and_masked_in_its_length(secret: str):
    assert redact(f"an {secret} here") == "an *** here"
    assert mask({"a": [f"an {secret} here", 5]}) == {"a": [f"an {'*' * len(secret)} here", 5]}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: bearer abc.def-ghi", "Authorization: bearer ***********"),
        ("Basic dXNlcjpwYXNz", "Basic ************"),
        ("http://user:hunter22@host/v1", "http://*************@host/v1"),
        ("run -token=abc --api_key=d --secret e --password f", "run -token=*** --api_key=* --secret * --password *"),
        ("Nothing to hide, me@example.org", "Nothing to hide, me@example.org"),
    ],
)
def test_a_mask_is_as_long_as_what_it_hides(text: str, masked: str):
    assert mask(text) == masked


def test_a_secret_in_a_mapping_is_replaced_by_its_name():
    given = {"api_key": "abc", "max_tokens": 5, "url": "https://h", "env": {"A": "b"}, "list": [{"X-Token": "t"}]}
    assert redact(given) == {
        "api_key": "***", "max_tokens": 5, "url": "https://h", "env": {"A": "***"}, "list": [{"X-Token": "***"}],
    }  # fmt: skip


@pytest.mark.parametrize("client_type", [OpenAIClient, AnthropicClient])
async def test_an_error_that_echoes_the_key_does_not_repeat_it(client_type: type):
    """In a refusal's body, also where its text is cut off; in the body of a reply; in a stream's error event."""
    refusal = {"error": {"message": f"Wrong key {KEY}.", "type": "authentication_error"}}
    long = {"error": {"message": "x" * 290 + KEY, "type": "authentication_error"}}
    failed = {"type": "error", "error": {"message": f"Lost {KEY}", "type": "api_error"}}
    for answer, kind in [
        (http(refusal, 401), AuthenticationFailed),
        (http(long, 401), AuthenticationFailed),
        (http(failed), ServerFailed),
        (sse(failed), ServerFailed),
        (http(f"no protocol {KEY}"), ServerFailed),
    ]:
        async with raw_server(answer) as seen:
            client = client_type("m", f"{seen.url}/v1", KEY, retry=RetryPolicy(retries=0))
            with pytest.raises(kind) as raised:
                await client.complete(HELLO, on_delta=lambda _: None)
            assert KEY in seen.heads[0]
        assert KEY[:8] not in str(raised.value), answer


async def test_a_key_that_a_server_echoes_is_neither_in_the_result_nor_in_the_journal(tmp_path: Path):
    refusal = {"error": {"message": f"Wrong key {KEY}."}}
    async with raw_server(http(refusal, 401)) as seen:
        result = await Agent("openai:m", base_url=f"{seen.url}/v1", api_key=KEY, home=tmp_path).run("What?")
    assert result.status == "failed"
    assert "Wrong key ***" in result.error
    rows = list(open_store(tmp_path).rows(result.run_id))
    assert rows
    assert KEY not in repr([row.event for row in rows])
    assert KEY not in repr(result) + str(result.to_dict()) + result.task_log.to_json()


def test_the_repr_of_a_configuration_shows_no_secret():
    servers = {
        "a": {"command": "python", "args": ["s.py"], "env": {"TOKEN": "hunter22"}},
        "b": {"url": "https://h/mcp", "headers": {"Authorization": "Bearer hunter22"}},
        "c": "python server.py --token hunter22",
        "d": {"url": "https://me:hunter22@h/mcp"},
    }
    given = {"llm": {"api_key": "hunter22", "extra_body": {"api_key": "hunter22"}}, "tools": {"mcp_servers": servers}}
    config = load_config(given)
    assert "hunter22" not in repr(config) + str(config) + repr(config.tools) + repr(config.llm)
    assert "https://h/mcp" in repr(config)
    assert config.tools.mcp_servers["a"]["env"] == {"TOKEN": "hunter22"}


def test_a_failure_shows_no_secret_of_any_client():
    assert Failure.of(RuntimeError("Bad key sk-abcdefghijklmnop1234")).message == "Bad key ***"
