"""A real llama.cpp HTTP server, which the extra `local` brings: discovery, slots, cut replies, grammars."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from closeout.dialects.constrain import PROGRAM_GRAMMAR
from closeout.messages import Constraint, Delta, Message, ModelRequest
from closeout.models.connect import connect
from closeout.models.openai import OpenAIClient
from closeout.models.token_in import TokenClient
from tiny_gguf import write_model

xllamacpp = pytest.importorskip("xllamacpp")
SLOTS = 2
CONTEXT = 1024  # tokens for each slot


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    params = xllamacpp.CommonParams()
    params.model.path = str(write_model(tmp_path_factory.mktemp("model") / "alphabet.gguf"))
    params.n_ctx, params.n_parallel = SLOTS * CONTEXT, SLOTS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.verbosity, params.warmup, params.ui, params.n_threads_http = -1, False, False, 4
    params.hostnames, params.port = ["127.0.0.1"], 0
    from closeout.models.local.local_engine import _signals_kept

    with _signals_kept():
        server = xllamacpp.Server(params)
    server.handle_completions(b'{"prompt": "a", "max_tokens": 1}', lambda _: False)
    yield f"{server.listening_address}/v1"
    del server


@pytest.fixture
async def client(address: str) -> AsyncIterator[Any]:
    client = connect("openai:alphabet", address)
    yield client
    await client.aclose()


def chat(text: str, **fields: Any) -> ModelRequest:
    return ModelRequest(messages=[Message(role="user", content=text)], **{"max_tokens": 8, **fields})


async def test_what_the_server_can_do_is_found_out(client: OpenAIClient) -> None:
    able = await client.discover()
    assert able.max_context == CONTEXT  # of one slot, not of the server
    assert able.grammar
    assert able.completions


async def test_more_requests_than_slots_are_all_answered_without_a_retry(client: OpenAIClient) -> None:
    retries: list[Any] = []
    requests = [chat(letter) for letter in "abcdefgh"]
    replies = await asyncio.gather(*(client.complete(each, on_retry=retries.append) for each in requests))
    assert [reply.text[0] for reply in replies] == list("bcdefghi")
    assert retries == []


async def test_a_reply_that_is_cut_leaves_a_server_that_answers_at_once(client: OpenAIClient) -> None:
    retries: list[Any] = []

    def until_d(delta: Delta) -> bool:
        return "d" in delta.text

    for _ in range(2 * SLOTS):
        cut = await client.complete(chat("a", max_tokens=400), on_delta=until_d, on_retry=retries.append)
        assert (cut.text, cut.finish_reason) == ("bcd", "cut")
        assert (await client.complete(chat("m"), on_retry=retries.append)).text == "nopqrstu"
    assert retries == []


async def test_its_grammar_binds_the_reply(client: OpenAIClient) -> None:
    constraint = Constraint("grammar", 'root ::= "yes" | "no"')
    assert (await client.complete(chat("a", constraint=constraint))).text in ("yes", "no")


async def test_the_size_that_it_states_makes_a_small_model(client: OpenAIClient) -> None:
    able = await client.discover()
    assert (able.weak, able.preferred_dialect) == (True, "code")


async def test_it_takes_the_grammar_of_programs_for_a_text(client: OpenAIClient) -> None:
    constraint = Constraint("grammar", PROGRAM_GRAMMAR)
    reply = await client.complete(ModelRequest(prompt="abc", constraint=constraint, max_tokens=24))
    assert reply.text.startswith("```python\n")


async def test_a_conversation_by_token_ids_is_one_sequence(address: str) -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>"
    )
    template += "{% endif %}"
    client = TokenClient("alphabet", address, template=template, server="llama.cpp", max_tokens=5)
    first = chat("a", max_tokens=5)
    reply = await client.complete(first)
    assert (len(reply.text), reply.finish_reason) == (5, "length")
    said = Message(role="assistant", content=reply.text, attached=reply.attached)
    later = await client.complete(replace(first, messages=[*first.messages, said, Message(role="user", content="b")]))
    await client.aclose()
    one, two = reply.tokens, later.tokens
    assert one is not None
    assert two is not None
    assert len(one.ids) == len(one.logprobs) == 5
    assert two.prompt[: len(one.prompt) + 5] == (*one.prompt, *one.ids)
    assert later.usage.input_tokens == len(two.prompt)
