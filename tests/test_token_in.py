"""Runs over servers that take token ids: one sequence of tokens, of which every learned one was sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.errors import ConfigError, ModelError
from closeout.evaluate import evaluate
from closeout.evaluate.export import export_trials
from closeout.journal.store import open_store
from closeout.messages import Message, ModelRequest
from closeout.models.chat_template import ChatTemplate
from closeout.models.token_in import TokenClient
from token_server import TokenServer

# The texts that end a turn, and a call, in the form of six families of models. Their chat templates in
# `data/chat_templates` show what makes a chat server's prompt differ from what was sampled.
FAMILIES = {
    "thinking_dropped": (
        "<|im_end|>",
        '<think>\nI look.\n</think>\n<tool_call>\n{"name":"distance","arguments":{"start":"%s"}}\n</tool_call>',
    ),
    "calls_spaced": ("<|im_end|>", '<tool_call>{"arguments" :{"start":"%s"} ,"name":"distance"}</tool_call>'),
    "calls_xml": (
        "<|im_end|>",
        "<think>Hm.</think>\n<tool_call>\n<function=distance>\n<parameter=start>%s</parameter>\n</function>\n</tool_call>",
    ),
    "texts_trimmed": ("<|eot_id|>", '  {"name":"distance","parameters":{"start":"%s"}}  '),
    "results_json": ("</s>", '[TOOL_CALLS][{"name":"distance","arguments":{"start":"%s"}}]'),
    "replies_cut": (
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        (
            "Let me see.</think>\n<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>"
            'function<\uff5ctool\u2581sep\uff5c>distance\n```json\n{"start":"%s"}\n```<\uff5ctool\u2581call\u2581end\uff5c>'
            "<\uff5ctool\u2581calls\u2581end\uff5c>"
        ),
    ),
}
TEMPLATES = Path(__file__).parent / "data" / "chat_templates"
QUESTION = "How far is it? \u00dcber Ulm."


@tool(read_only=True, inline=True)
def distance(start: str) -> str:
    """Look up a distance."""
    return f"7 km from {start} \u00fc"


def rollout(
    home: Path, family: str, *, server: Any = "vllm", places: Sequence[int] = range(4), **options: Any
) -> tuple[TokenServer, list[dict[str, Any]]]:
    """Play a trial of some calls, and return the server and the trial's exported sequences."""
    end, call = FAMILIES[family]
    texts = [*(call % f"Ulm {n}" for n in places), "It is \\boxed{7}."]
    token_server = TokenServer(texts, end)

    async def work() -> list[dict[str, Any]]:
        async with token_server:
            client = TokenClient(
                "scripted", token_server.base_url, template=TEMPLATES / f"{family}.jinja", server=server
            )
            agent = Agent(client, [distance], home=home, dialect="function_call", **options)
            tasks = [{"id": "a", "question": QUESTION, "answer": "7"}]
            report = await evaluate(agent, tasks, scorer=["numeric", "exact"], name="x")
            assert report.totals.correct == 1, open_store(home).read("x.0-a.e1").rows
            return list(export_trials(report, open_store(home), form="tokens"))

    return token_server, asyncio.run(work())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_is_one_sequence_of_the_tokens_that_were_sampled(home: Path, family: str) -> None:
    server, samples = rollout(home, family)
    assert len(samples) == 1
    (sample,) = samples
    learned: list[list[int]] = []
    before = 0
    for token, loss in zip(sample["input_ids"], sample["loss_mask"], strict=True):
        if loss and not before:
            learned.append([])
        if loss:
            learned[-1].append(token)
        before = loss
    assert learned == server.sampled
    for prompt, reply, later in zip(server.prompts, server.sampled, server.prompts[1:], strict=False):
        assert later[: len(prompt) + len(reply)] == prompt + reply
    text = server.vocabulary.decode(sample["input_ids"])
    assert text.count(server.end) >= len(server.sampled)
    assert [text.count(f"7 km from Ulm {n} \u00fc") for n in range(4)] == [1] * 4
    assert len(sample["logprobs"]) == len(sample["input_ids"])


def test_a_rollback_begins_one_more_sequence_and_not_one_a_turn(home: Path) -> None:
    server, samples = rollout(home, "calls_spaced", places=[0, 1, 1, 2, 3, 4, 5])
    pairs = [pair for each in samples for pair in zip(each["input_ids"], each["loss_mask"], strict=True)]
    learned = [token for token, loss in pairs if loss]
    accepted = [reply for number, reply in enumerate(server.sampled) if number != 2]  # the call that was made before
    assert learned == [token for reply in accepted for token in reply]
    assert len(samples) == 2
    assert all(f"Ulm {n}" in server.vocabulary.decode(samples[1]["input_ids"]) for n in range(6))


@pytest.mark.parametrize("family", ["thinking_dropped", "replies_cut"])
def test_what_is_added_is_what_the_template_writes_between_two_replies(family: str) -> None:
    end, _ = FAMILIES[family]
    made = ChatTemplate(TEMPLATES / f"{family}.jinja")
    calls = [{"id": "c1", "type": "function", "function": {"name": "distance", "arguments": '{"start": "Ulm"}'}}]
    reply = {"role": "assistant", "content": "", "tool_calls": calls}
    result = {"role": "tool", "tool_call_id": "c1", "content": "7 km"}
    added = made.after_reply(reply, [result])
    assert added is not None
    assert added.startswith(end)
    whole = made.write([{"role": "user", "content": "?"}, reply, result])
    assert whole.endswith(added)


def test_sglang_states_the_version_of_the_weights(home: Path) -> None:
    server, (sample,) = rollout(home, "thinking_dropped", server="sglang")
    assert server.bodies[0].keys() == {"input_ids", "sampling_params", "return_logprob"}
    assert sample["versions"] == ["1", "2", "3", "4", "5"]
    assert sample["rewards"] == {"numeric": 1.0, "exact": 1.0}
    assert sample["truncated"] is False
    assert len(sample["logprobs"]) == len(sample["input_ids"])


def test_a_resumed_run_continues_its_sequence(home: Path) -> None:
    end, call = FAMILIES["thinking_dropped"]

    begun = asyncio.Event()

    @tool(read_only=True)
    async def distance(start: str) -> str:
        """Look up a distance."""
        if start == "Ulm 1" and not begun.is_set():
            begun.set()
            await asyncio.sleep(60)
        return f"7 km from {start}"

    server = TokenServer([call % "Ulm 0", call % "Ulm 1", "It is \\boxed{7}."], end)

    def agent() -> Agent[Any]:
        client = TokenClient("scripted", server.base_url, template=TEMPLATES / "thinking_dropped.jinja")
        return Agent(client, [distance], home=home, dialect="function_call")

    async def work() -> None:
        async with server:
            run = asyncio.ensure_future(agent().run(QUESTION, run_id="r"))
            await begun.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            result = await agent().resume("r")
            assert result.answer == "7"

    asyncio.run(work())
    first, _, last = server.prompts
    assert last[: len(first)] == first
    assert last[len(first) : len(first) + len(server.sampled[0])] == server.sampled[0]


def test_a_server_without_ids_and_a_text_that_is_no_template_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no chat template"):
        ChatTemplate(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ eos_token }}", "eos_token": "!"}))
    assert ChatTemplate(tmp_path).write([]) == "!"
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json is not an object"):
        ChatTemplate(tmp_path)
    with pytest.raises(ConfigError, match="not valid Jinja"):
        ChatTemplate("{% for")
    with pytest.raises(ConfigError, match="server must be"):
        TokenClient("m", "http://127.0.0.1:1/v1", template="{{ 1 }}", server="tgi")  # type: ignore[arg-type]

    async def ask() -> None:
        from closeout.testing import ScriptedServer, answer

        async with ScriptedServer([answer("1")]) as server:
            client = TokenClient("m", server.base_url, template="{{ messages[0].content }}")
            await client.complete(ModelRequest(messages=[Message(role="user", content="?")]))

    with pytest.raises(ModelError):
        asyncio.run(ask())
