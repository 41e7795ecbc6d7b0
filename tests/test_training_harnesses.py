"""The harnesses in `examples/` with which verifiers and verl train: what they send is what was sampled."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.testing import ScriptedServer, answer
from harness.trainers_copy import write_trainers
from token_server import Vocabulary

ROOT = Path(__file__).resolve().parent
TEMPLATE = (ROOT / "data" / "chat_templates" / "thinking_dropped.jinja").read_text("utf-8")
END = "<|im_end|>"
CALL = '<think>\nI look.\n</think>\n<tool_call>\n{"name":"distance","arguments":{"start":"Ulm %d"}}\n</tool_call>'


@pytest.fixture(autouse=True)
def _trainers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[None]:
    write_trainers(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(ROOT.parent / "examples"))
    yield
    ours = ("verifiers", "verifiers_harness", "verl", "verl_agent_loop")
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]


@tool(read_only=True, inline=True)
def distance(start: str) -> str:
    """Look up a distance."""
    return f"7 km from {start} ü"


class Engine:
    """verl's tokenizer and engine: it samples single bytes where its tokenizer writes pairs."""

    def __init__(self, texts: list[str]) -> None:
        self.vocabulary = Vocabulary()
        self.chat_template = TEMPLATE
        (self.eos_token_id,) = self.vocabulary.encode(END)
        self.texts, self.prompts, self.sampled = iter(texts), [], []  # type: ignore[var-annotated]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return self.vocabulary.encode(text)

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return self.vocabulary.decode(ids)

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        assert sampling_params["temperature"] == 0.7
        self.prompts.append(prompt_ids)
        self.sampled.append(self.vocabulary.encode(next(self.texts), sampled=True)[: sampling_params["max_tokens"]])
        return SimpleNamespace(token_ids=self.sampled[-1], log_probs=[-0.5] * len(self.sampled[-1]))


def make_agent(client: Any) -> Agent:
    return Agent(client, [distance], dialect="function_call", context_compress_limit=0)


def rollout(engine: Engine, *, length: int = 5000) -> Any:
    module: Any = importlib.import_module("verl_agent_loop")
    limits = SimpleNamespace(prompt_length=2000, response_length=length)
    config = SimpleNamespace(config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=limits)))
    loop = module.CloseoutAgentLoop(
        config, engine, engine, None, None, None, make_agent=f"{Path(__file__).with_suffix('')}:make_agent"
    )
    prompt = [{"role": "system", "content": "-"}, {"role": "user", "content": "How far is Ulm?"}]
    return asyncio.run(loop.run({"temperature": 0.7}, raw_prompt=prompt, agent_name="closeout"))


def test_a_rollout_of_verl_has_the_tokens_that_were_sampled() -> None:
    engine = Engine([*(CALL % n + END for n in range(3)), "It is \\boxed{7}." + END])
    output = rollout(engine)
    assert output.extra_fields["answer"] == "7"
    assert output.prompt_ids == engine.prompts[0]
    assert [*output.prompt_ids, *output.response_ids] == [*engine.prompts[-1], *engine.sampled[-1]]
    learned = [i for i, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
    assert learned == [i for ids in engine.sampled for i in ids]
    assert [round(value * 2) for value in output.response_logprobs] == [-mask for mask in output.response_mask]


def test_a_rollout_of_verl_ends_at_its_length() -> None:
    engine = Engine([*(CALL % n + END for n in range(100))])
    output = rollout(engine, length=500)
    *whole, cut = engine.sampled
    assert len(engine.prompts[-1]) + len(cut) == 2500  # of prompt_length and response_length
    assert len(output.response_ids) == len(output.response_mask) <= 500
    learned = [i for i, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
    assert learned
    assert learned == [i for ids in whole for i in ids][: len(learned)]


def test_a_rollout_of_verl_without_a_turn_to_learn_is_one_without_loss() -> None:
    engine = Engine([CALL % 0 + "!" * 3000] * 9)  # which is cut off
    output = rollout(engine, length=400)
    assert output.prompt_ids == engine.prompts[0]
    assert output.response_ids == engine.sampled[0][:400]
    assert set(output.response_mask) == {0}


def test_a_task_of_verifiers_is_played_through_its_interception_server(home: Path) -> None:
    module: Any = importlib.import_module("verifiers_harness")

    async def work() -> None:
        async with ScriptedServer([answer("42")]) as server:
            harness = module.CloseoutHarness(module.CloseoutHarnessConfig(settings={"llm.temperature": 0.5}))
            data = SimpleNamespace(system_prompt="Be brief.", prompt="6 * 7?")
            context = SimpleNamespace(model="policy")
            trace = SimpleNamespace(id="t1")
            found = await harness.launch(context, trace, None, server.base_url, "secret", {}, data)
            assert found.exit_code == 0
            assert "42" in found.stdout
            (request,) = server.requests
            assert request.json["temperature"] == 0.5
            assert [message["content"] for message in request.json["messages"]] == ["Be brief.", "6 * 7?"]
            trace = SimpleNamespace(id="t2")
            found = await harness.launch(context, trace, None, "http://127.0.0.1:1/v1", "secret", {}, data)
            assert found.exit_code == 1

    asyncio.run(work())
