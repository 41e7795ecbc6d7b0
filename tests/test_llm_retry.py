"""Asking again: which failures, how long, how the server's word counts, and what is never asked again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeout.errors import (
    AuthenticationFailed,
    BadRequest,
    ContextOverflow,
    ModelError,
    ModelNotFound,
    ModelTimeout,
    ModelUnreachable,
    PermanentModelError,
    RateLimited,
    ServerFailed,
    StreamDropped,
)
from closeout.messages import Message, ModelReply, ModelRequest, ToolSpec, Usage
from closeout.models.base import RetryNote
from closeout.models.http_errors import error_from_body, error_from_response, explain
from closeout.models.openai import OpenAIClient
from closeout.models.retry import RetryPolicy, complete_with_retries
from closeout.models.stated_waits import stated_wait
from raw_server import chat, http, raw_server

ORIGIN = "http://host:8000"
REQUEST = ModelRequest(messages=(Message(role="user", content="q"),))
QUICK = RetryPolicy(first_wait=0.001)


# ------------------------------------------------------------------------------------------------ which


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequest), (413, ContextOverflow), (422, BadRequest), (501, BadRequest), (302, BadRequest),
        (401, AuthenticationFailed), (403, AuthenticationFailed), (404, ModelNotFound), (429, RateLimited),
        (408, ModelTimeout), (504, ModelTimeout), (524, ModelTimeout),
        (409, ServerFailed), (499, ServerFailed), (500, ServerFailed), (502, ServerFailed), (503, ServerFailed),
        (529, ServerFailed),
    ],
)  # fmt: skip
def test_a_status_is_one_kind_of_failure(status: int, kind: type[ModelError]):
    error = error_from_response(status, {}, b'{"error": {"message": "because"}}', ORIGIN)
    assert type(error) is kind
    assert error.status == status
    assert "because" in str(error)
    assert ORIGIN in str(error)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_what_would_fail_again_is_asked_once(status: int):
    async with raw_server(http({"error": {"message": "no"}}, status=status)) as seen:
        with pytest.raises(PermanentModelError) as raised:
            await OpenAIClient("m", seen.url, retry=QUICK).complete(REQUEST)
    assert len(seen.bodies) == 1
    assert raised.value.usage == Usage(requests=1)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_what_may_pass_is_asked_again(status: int):
    notes: list[RetryNote] = []
    async with raw_server(http("busy", status=status, content_type="text/plain"), http(chat())) as seen:
        reply = await OpenAIClient("m", seen.url, retry=QUICK).complete(REQUEST, on_retry=notes.append)
    assert (reply.text, len(seen.bodies)) == ("hi", 2)
    assert [(note.attempt, note.attempts, note.error.status) for note in notes] == [(1, 6, status)]


async def test_every_attempt_counts_in_the_usage_of_the_reply_and_of_the_client():
    async with raw_server(http("", status=503), http("", status=503), http(chat())) as seen:
        client = OpenAIClient("m", seen.url, retry=QUICK)
        reply = await client.complete(REQUEST)
    assert reply.usage == client.usage == Usage(10, 2, requests=3)


async def test_after_the_last_attempt_the_error_carries_the_whole_usage():
    async with raw_server(http("", status=503)) as seen:
        client = OpenAIClient("m", seen.url, retry=RetryPolicy(retries=2, first_wait=0.001))
        with pytest.raises(ServerFailed) as raised:
            await client.complete(REQUEST)
    assert raised.value.usage == client.usage == Usage(requests=3)


async def test_an_unreachable_server_gets_fewer_attempts_and_no_usage():
    notes: list[RetryNote] = []
    client = OpenAIClient("m", "http://127.0.0.1:9/v1", retry=QUICK)
    with pytest.raises(ModelUnreachable):
        await client.complete(REQUEST, on_retry=notes.append)
    assert len(notes) == QUICK.unreachable_retries
    assert client.usage == Usage()


# ------------------------------------------------------------------------------------------------ how long


def test_the_wait_doubles_up_to_its_bound_and_jitter_is_full():
    policy = RetryPolicy(retries=9, first_wait=1.0, longest_wait=10.0)
    busy = ServerFailed("x", status=503)
    assert [policy.wait(attempt, busy, 1.0) for attempt in range(1, 10)] == [1, 2, 4, 8, 10, 10, 10, 10, 10]
    assert policy.wait(10, busy, 1.0) is None
    assert policy.wait(3, busy, 0.0) == 0.0


DIED = {"error": {"message": "The engine died.", "code": 500}}
OVERLOADED = {"error": {"message": "No slot is free.", "code": 503}}


@pytest.mark.parametrize(
    ("response", "attempts"),
    [
        (http(DIED, status=500), 6),
        (http({"detail": "Internal error"}, status=500), 6),
        (http(DIED), 6),
        (http(OVERLOADED), 6),
        (http({"models": []}), 3),
        (http("Internal Server Error", status=500, content_type="text/plain"), 6),
        (http("", status=500), 6),
        (http({}, status=500), 6),
        (http('{"error": {"message": "The eng', status=500), 6),
        (http(DIED, status=503), 6),
        (http("", content_type="text/plain"), 6),
        (http("\x00 no JSON {"), 6),
        ([b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{"], 6),
        ([b""], 6),
    ],
    ids=range(14),
)
async def test_an_outage_is_waited_for_and_a_body_that_is_not_a_reply_is_read_three_times(
    response: bytes | list[bytes], attempts: int
):
    async with raw_server(response) as seen:
        with pytest.raises(ModelError):
            await OpenAIClient("m", seen.url, retry=QUICK).complete(REQUEST)
    assert len(seen.bodies) == attempts


async def test_a_server_that_has_answered_is_waited_for_while_it_restarts():
    notes: list[RetryNote] = []
    async with raw_server(http(chat())) as seen:
        client = OpenAIClient("m", seen.url, retry=QUICK)
        await client.complete(REQUEST)
    with pytest.raises(ModelUnreachable):
        await client.complete(REQUEST, on_retry=notes.append)
    assert len(notes) == QUICK.retries


def test_without_retries_nothing_is_sent_again():
    assert RetryPolicy(retries=0).attempts(StreamDropped("x")) == 1
    assert RetryPolicy(retries=0).attempts(ServerFailed("x", about_request=True)) == 1


def test_the_servers_word_counts():
    policy = RetryPolicy()
    assert policy.wait(1, RateLimited("x", retry_after=20.0), 0.0) == 20.0
    assert 20.0 < policy.wait(1, RateLimited("x", retry_after=20.0), 0.9) <= 21.0
    assert policy.wait(1, ServerFailed("x", retry_after=0.0), 0.0) == 0.0


def test_a_server_that_asks_for_too_long_is_not_waited_for():
    assert RetryPolicy(longest_server_wait=60).wait(1, RateLimited("x", retry_after=61.0), 0.0) is None


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.none() | st.floats(0, 1e9))
def test_no_wait_is_negative_or_beyond_its_bounds(attempt: int, draw: float, asked: float | None):
    policy = RetryPolicy(retries=20_000)
    wait = policy.wait(attempt, RateLimited("x", retry_after=asked), draw)
    assert wait is None or 0 <= wait <= max(policy.longest_wait, policy.longest_server_wait + policy.first_wait)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": formatdate(1030, usegmt=True)}, 30.0),
        ({"Retry-After": formatdate(900, usegmt=True)}, 0.0),
        ({"Retry-After": formatdate(1030, usegmt=True), "Date": formatdate(1010, usegmt=True)}, 30.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"retry-after-ms": "1500", "Retry-After": "9"}, 1.5),
        ({"x-ms-retry-after-ms": "250"}, 0.25),
        ({"Retry-After": "1m2.5s"}, 62.5),
        ({"Retry-After": "1700000030", "Date": formatdate(1700000000, usegmt=True)}, 1700000030.0 - 1000),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-requests": "9", "x-ratelimit-reset-requests": "6m0s"}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}, 0.02),
        ({"X-RateLimit-Reset": "1700000030000"}, 1700000030.0 - 1000),
        ({"Retry-After": '"30"'}, 30.0),
        ({"X-Retry-After": "P1DT2H"}, 93_600.0),
        ({"x-ratelimit-remaining-tokens": "-5", "x-ratelimit-reset-tokens": "20s"}, 20.0),
        ({"x-ratelimit-remaining-requests-day": "0", "x-ratelimit-reset-requests-day": "33011.38"}, 33_011.38),
        ({"RateLimit": '"default";r=0;t=30'}, 30.0),
        ({"RateLimit": "limit=9, remaining=4, reset=30"}, None),
        ({"anthropic-ratelimit-tokens-reset": "1970-01-01T00:17:10Z"}, 30.0),
    ],
)
def test_retry_after_in_every_form(headers: dict[str, str], seconds: float | None):
    assert stated_wait(headers, now=1000.0) == seconds


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ({"error": {"message": "Please try again in 2.1s. Limit 30000 tokens per 1 minute."}}, 2.1),
        ({"error": {"message": "Rate limit reached. Try again in 1h2m3s."}}, 3723.0),
        ({"error": {"message": "Retry after 2 minutes and 5 seconds"}}, 125.0),
        ({"error": {"message": "请求过多，请在 20 秒后重试。"}}, 20.0),
        ({"error": {"message": "Réessayez dans 3 jours."}}, 259_200.0),
        ({"error": {"message": "Повторите через 45 секунд."}}, 45.0),
        ({"error": {"message": "45초 후에 다시 시도하세요."}}, 45.0),
        ({"error": {"message": "Rate limit. Retry after 45."}}, 45.0),
        ({"error": {"message": "At most 60 requests per 1 minute."}}, None),
        ([{"error": {"details": [{"@type": "…RetryInfo", "retryDelay": "2s"}]}}], 2.0),
        ({"error": {"metadata": {"headers": {"X-RateLimit-Reset": "30000"}}}}, 30_000.0),
        ({"retry_after_ms": 1500}, 1.5),
        ({"resets_in_seconds": 90}, 90.0),
        ({"error": "limit", "wait": 15}, 15.0),
        ({"error": {"details": [{"metadata": {"quotaResetDelay": "1000.5s"}}]}}, 1000.5),
        ({"error": {"message": "Try again 20 seconds later."}}, 20.0),
        ({"error": {"message": f"Limit reached|{int(NOW) + 5000}"}}, 5000.0),
        (
            {"error": {"message": f"Request 1234567890 of 2024-11-20T00:00Z. Retry after {int(NOW) + 77}."}},
            77.0,
        ),
        ({"error": {"message": "Limit of 50 requests/day reached."}}, 3600.0),
        ({"error": {"message": "Quota GenerateRequestsPerDayPerProject is used up. Retry in 2s."}}, 3600.0),
        ({"error": {"message": "Reached requests per day (RPD). Try again in 7m12s."}}, 432.0),
    ],
)
def test_a_wait_that_is_stated_in_the_body(body: Any, seconds: float | None):
    text = json.dumps(body).encode()
    assert stated_wait({}, text, NOW) == seconds
    assert stated_wait({"Retry-After": "9"}, text, NOW) == 9.0


def test_a_date_counts_from_the_servers_own_clock():
    headers = {"Retry-After": formatdate(1030, usegmt=True), "Date": formatdate(1010, usegmt=True)}
    assert stated_wait(headers) == 20.0


# ------------------------------------------------------------------------------------------------ deadlines


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


async def test_all_attempts_together_have_a_deadline():
    clock, timeouts = Clock(), []

    async def attempt(timeout: float | None) -> ModelReply:
        timeouts.append(timeout)
        clock.now += 40
        raise ServerFailed("busy", retry_after=10.0)

    with pytest.raises(ServerFailed) as raised:
        await complete_with_retries(
            attempt, policy=RetryPolicy(total=100.0, first_wait=0.0), timeout=60.0, sleep=clock.sleep, clock=clock
        )
    # The second attempt has 50 of its 60 seconds left; a third would begin after the end.
    assert timeouts == [60.0, 50.0]
    assert raised.value.usage == Usage(requests=2)


async def test_cancelling_while_waiting_stops_at_once():
    async with raw_server(http("", status=429, Retry_After="60")) as seen:
        waiting = asyncio.Event()
        client = OpenAIClient("m", seen.url)
        task = asyncio.ensure_future(client.complete(REQUEST, on_retry=lambda _: waiting.set()))
        await asyncio.wait_for(waiting.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert client.usage.requests == 1


async def test_a_request_has_its_own_deadline(skip_time: Callable[[float], None]):
    async with raw_server(None) as seen:
        client = OpenAIClient("m", seen.url, retry=RetryPolicy(retries=0))
        task = asyncio.ensure_future(client.complete(ModelRequest(messages=REQUEST.messages, timeout=300)))
        while not seen.bodies:  # noqa: ASYNC110  # the server's state
            await asyncio.sleep(0.005)
        skip_time(301)
        with pytest.raises(ModelTimeout):
            await task


# ------------------------------------------------------------------------------------------------ what they say

OVERFLOWS = [
    "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens",
    "This model's maximum context length is 2048 tokens. However, your request has 8 input tokens plus 2045 more.",
    "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
    "max_tokens must be at least 1, got -186.",
    "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    "Requested token count exceeds the model's maximum context length of 8192 tokens.",
    "the request exceeds the available context size. try increasing the context size or enable context shift",
    "Context size has been exceeded.",
    "prompt is too long: 210000 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 1000 `max_new_tokens`",
    "Please reduce the length of the messages or completion.",
    "Input is too long for requested model.",
    "Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)",
    "Range of input length should be [1, 98304]",
    "The number of tokens to keep from the initial prompt is greater than the context length.",
    "Input validation error: `inputs` must have less than 1024 tokens. Given: 1200",
    "The input token count is 1200000 but model only supports up to 1048576",
    "You passed 9001 input tokens. However, the model's context length is only 8192 tokens.",
    "输入长度超过限制",
    "Die Eingabe ist zu lang",
    "The sum of prompt length (9000.0) should be less than or equal to max_num_tokens (8192)",
]


@pytest.mark.parametrize("words", OVERFLOWS)
def test_every_server_s_way_of_saying_that_the_prompt_is_too_long(words: str):
    error = error_from_response(400, {}, f'{{"error": {{"message": "{words}"}}}}'.encode(), ORIGIN)
    assert type(error) is ContextOverflow


def test_codes_for_a_prompt_that_is_too_long():
    for body in (b'{"error": {"message": "x", "code": "context_length_exceeded"}}',
                 b'{"error": {"code": 400, "message": "x", "type": "exceed_context_size_error"}}'):  # fmt: skip
        assert type(error_from_response(400, {}, body, ORIGIN)) is ContextOverflow


@pytest.mark.parametrize(
    "words",
    [
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.",
        "Invalid value for 'content': expected a string, got null.",
        "context_window is not a parameter",
        "Invalid 'tools[0].function.description': string too long. Expected maximum length 1024.",
        "Invalid 'messages[1].tool_calls[0].id': string too long. Expected maximum length 64.",
        "top_p: Input should be greater than 0",
        "tools: at most 128 are allowed",
    ],
)
def test_other_refusals_are_not_taken_for_it(words: str):
    assert type(error_from_response(400, {}, f'{{"error": {{"message": "{words}"}}}}'.encode(), ORIGIN)) is BadRequest


@pytest.mark.parametrize(
    "words",
    [
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "tools param requires --jinja flag",
        "registry.ollama.ai/library/gemma:latest does not support tools",
    ],
)
@pytest.mark.parametrize("status", [400, 500])
async def test_a_server_without_native_tools_is_remembered_and_the_error_names_the_fix(words: str, status: int):
    async with raw_server(http({"error": {"message": words}}, status=status)) as seen:
        client = OpenAIClient("m", seen.url, retry=QUICK)
        assert client.capabilities.native_tools
        with pytest.raises(BadRequest, match="dialect='cot_chat'"):
            await client.complete(ModelRequest(messages=REQUEST.messages, tools=(ToolSpec("f"),)))
    assert not client.capabilities.native_tools
    assert len(seen.bodies) == 1


def test_an_account_without_credit_is_not_asked_again():
    body = b'{"error": {"message": "You exceeded your current quota.", "code": "insufficient_quota"}}'
    assert type(error_from_response(429, {}, body, ORIGIN)) is PermanentModelError


def test_a_server_that_says_not_to_retry_is_believed():
    assert type(error_from_response(503, {"x-should-retry": "false"}, b"", ORIGIN)) is PermanentModelError


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", ""),
        (b'{"error": {"message": "a\\nb", "code": "c"}}', "a b"),
        (b'{"error": "plain"}', "plain"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"errors": [{"code": "x", "message": "Not found"}], "trace": "1"}', "Not found"),
        (b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', "field required"),
        (b'{"message": "m", "object": "error"}', "m"),
        (b'[{"error": {"message": "listed"}}]', "listed"),
        (b"<!doctype html><title>502 Bad\nGateway</title>", "an HTML page, '502 Bad Gateway'"),
        (b"<html><body>x", "an HTML page"),
        (b"upstream connect error", "upstream connect error"),
        (b"\x00\x01\xff\xfe", "4 bytes that are not text"),
        (b'{"error": {"message": "cut', '{"error": {"message": "cut'),
        (b"null", "null"),
    ],
)
def test_an_error_body_becomes_one_short_line(body: bytes, reason: str):
    assert explain(body)[1] == reason


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_body_becomes_a_short_printable_line(body: bytes):
    for given_body in (body, body * 300):
        error = error_from_response(500, {}, given_body, ORIGIN)
        assert len(str(error)) < 600
        assert "\n" not in str(error)


def test_an_error_in_a_good_status_keeps_its_kind():
    assert type(error_from_body({"error": {"message": "x", "code": 429}}, ORIGIN)) is RateLimited
    assert type(error_from_body({"type": "error", "error": {"type": "overloaded_error"}}, ORIGIN)) is ServerFailed
    assert type(error_from_body({"error": {"message": "prompt is too long"}}, ORIGIN)) is ContextOverflow
    assert type(error_from_body({"object": "error", "message": "no such model", "code": 404}, ORIGIN)) is ModelNotFound
    assert error_from_body({"error": None, "choices": []}, ORIGIN) is None
    assert error_from_body("text", ORIGIN) is None


def test_stream_drops_and_timeouts_are_transient():
    for error in (StreamDropped("x"), ModelTimeout("x"), RateLimited("x"), ServerFailed("x")):
        assert RetryPolicy().wait(1, error, 0.0) == 0.0


def test_a_limited_rate_says_when_the_server_answers_again():
    error = error_from_response(429, {"Retry-After": "99999"}, b'{"error":{"message":"slow down"}}', "http://here")
    assert str(error).endswith("slow down. It answers again in 99,999 seconds. Ask less often, or raise the limit.")
