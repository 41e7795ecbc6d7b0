"""Token ids and log-probabilities: read from the server, kept in the journal, exported with a loss mask."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from closeout import Agent, tool
from closeout.errors import UsageError
from closeout.evaluate import evaluate
from closeout.evaluate.export import ExportFormat, conversation, export_trials
from closeout.evaluate.token_samples import token_samples
from closeout.journal.events import (
    ModelReplied,
    ModelRequested,
    Repaired,
    RunEnded,
    RunStarted,
    TurnAccepted,
    TurnRolledBack,
)
from closeout.journal.store import Row, open_store
from closeout.journal.token_record import dump_tokens, load_tokens
from closeout.messages import ReplyTokens
from closeout.models.openai import read_completion
from closeout.testing import ScriptedServer, Turn, answer, call, say
from closeout.testing.byte_tokens import token_text

BOTH = {"return_token_ids": True, "logprobs": True}
QUESTION = "How far is it?"


@tool(read_only=True, inline=True)
def distance(start: str) -> str:
    """Look up a distance."""
    return f"7 km from {start}"


STEP, DONE = call("distance", start="Ulm"), answer("7")


def trial(script: list[Any], home: Path, *, asked: dict[str, Any] = BOTH, **options: Any) -> Any:
    """Run one trial against a scripted server and return its report."""

    async def work() -> Any:
        async with ScriptedServer(script) as server:
            config = {"llm": {"extra_body": asked}}
            agent = Agent("openai:scripted", [distance], base_url=server.base_url, config=config, home=home, **options)
            return await evaluate(agent, [{"id": "a", "question": QUESTION, "answer": "7"}], name="x")

    return asyncio.run(work())


def export(report: Any, home: Path, form: ExportFormat = "tokens", **options: Any) -> list[dict[str, Any]]:
    return list(export_trials(report, open_store(home), form=form, **options))


def learned(sample: dict[str, Any]) -> list[str]:
    """The texts of the spans with loss."""
    spans, before = [""], 0
    for token, loss in zip(sample["input_ids"], sample["loss_mask"], strict=True):
        if loss:
            spans[-1] += token_text(token)
        elif before:
            spans.append("")
        before = loss
    return [span for span in spans if span]


CALL = '\n<tool_call>distance {"start":"Ulm"}</tool_call><|im_end|>'
FINAL = "The answer is \\boxed{7}.<|im_end|>"


@pytest.mark.parametrize("stream", [False, True])
def test_a_run_becomes_one_sequence_with_loss_on_what_the_model_wrote(tmp_path: Path, stream: bool) -> None:
    report = trial([STEP, DONE], tmp_path, stream=stream)
    (sample,) = export(report, tmp_path)
    text = "".join(map(token_text, sample["input_ids"]))
    assert learned(sample) == [CALL, FINAL]
    assert text.index(QUESTION) < text.index(CALL) < text.index("7 km from Ulm") < text.index("\\boxed{7}")
    expected = [
        -(token % 8) / 8 if loss else 0.0 for token, loss in zip(sample["input_ids"], sample["loss_mask"], strict=True)
    ]
    assert sample["logprobs"] == expected
    assert (sample["task_id"], sample["score"]) == ("a", 1.0)


def test_rolled_back_and_repaired_replies_have_no_loss(tmp_path: Path) -> None:
    misspelt = call("Distance", start="Ulm")
    empty = say("")
    report = trial([empty, misspelt, DONE], tmp_path)
    assert (report.totals.rollbacks, report.totals.repairs) == (1, 1)
    (sample,) = export(report, tmp_path)
    assert learned(sample) == [FINAL]
    marked, whole = export(report, tmp_path, rolled_back=True)
    assert whole == sample
    assert marked["rolled_back"] is True
    assert sum(marked["loss_mask"]) == 0
    assert marked["reply_at"] == len(marked["input_ids"]) - 1  # the reply was empty: only its end


def test_messages_have_the_tokens_of_the_replies(tmp_path: Path) -> None:
    report = trial([STEP, DONE], tmp_path)
    (record,) = export(report, tmp_path, "openai")
    texts = ["".join(map(token_text, m["tokens"]["ids"])) for m in record["messages"] if "tokens" in m]
    assert texts == [CALL, FINAL]
    assert [m["loss"] for m in record["messages"] if "tokens" in m] == [True, True]


def test_texts_and_log_probabilities_without_ids_are_kept_too(tmp_path: Path) -> None:
    report = trial([DONE], tmp_path, asked={"logprobs": True})
    (record,) = export(report, tmp_path, "openai")
    tokens = record["messages"][-1]["tokens"]
    assert "".join(tokens["texts"]) == FINAL
    assert len(tokens["logprobs"]) == len(tokens["texts"])
    with pytest.raises(UsageError, match=r"has no token ids.*return_token_ids"):
        export(report, tmp_path)


def test_nothing_is_kept_unless_it_is_asked_for(tmp_path: Path) -> None:
    report = trial([STEP, DONE], tmp_path, asked={})
    (record,) = export(report, tmp_path, "openai")
    assert not any("tokens" in message for message in record["messages"])


def test_the_journal_keeps_each_token_once(tmp_path: Path) -> None:
    trial([Turn(calls=[call("distance", start=f"Ulm {n}")]) for n in range(6)] + [DONE], tmp_path)
    rows = open_store(tmp_path).read("x.0-a.e1").rows
    kept = [json.loads(row.event.tokens) for row in rows if isinstance(row.event, ModelReplied)]
    assert len(kept) == 7
    assert all("kept" in each for each in kept[1:])
    first, *later = [len(each["prompt"]) for each in kept]
    assert max(later) < first / 2


def test_a_prompt_that_drops_learned_tokens_begins_another_sequence() -> None:
    """As after an eviction, or where the server writes a call otherwise than the model did."""
    prompts = [(1, 2), (1, 2, 10, 3), (1, 9, 3)]
    events: list[Any] = []
    before: tuple[int, ...] = ()
    for turn, prompt in enumerate(prompts):
        tokens = ReplyTokens(ids=(10 + turn,), prompt=prompt, logprobs=(-1.0,))
        events.append(ModelReplied("main", turn, tokens=dump_tokens(tokens, before)))
        events.append(TurnAccepted("main", 1, turn))
        before = (*prompt, *tokens.ids)
    first, second = token_samples([SimpleNamespace(event=event) for event in events])  # type: ignore[misc]
    assert (first["input_ids"], first["loss_mask"]) == ([1, 2, 10, 3, 11], [0, 0, 1, 0, 1])
    assert (second["input_ids"], second["loss_mask"]) == ([1, 9, 3, 12], [0, 0, 0, 1])
    assert second["logprobs"] == [0.0, 0.0, 0.0, -1.0]


def test_what_the_journal_keeps_gives_the_tokens_back() -> None:
    before = (1, 2, 3)
    for prompt in [(), (1, 2, 3, 4), (1, 9), (9,), (1, 2)]:
        tokens = ReplyTokens(ids=(7, 8), prompt=prompt, logprobs=(-0.5, 0.0))
        assert load_tokens(dump_tokens(tokens, before), before) == tokens
    assert dump_tokens(None, before) == ""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"token_ids": [1, 2]}, ReplyTokens(ids=(1, 2))),
        ({"token_ids": "12"}, None),
        ({"token_ids": [1, -2]}, None),
        ({"token_ids": [True]}, None),
        ({"token_ids": []}, None),
        ({"logprobs": {"content": None}}, None),
        ({"logprobs": {"content": [{"token": "a", "logprob": -1}]}}, ReplyTokens(texts=("a",), logprobs=(-1.0,))),
        ({"logprobs": {"content": [{"token": "a", "logprob": None}]}}, ReplyTokens(texts=("a",))),
        ({"logprobs": {"content": [{"token": 5, "logprob": -1}]}}, ReplyTokens(logprobs=(-1.0,))),
        ({"token_ids": [1, 2], "logprobs": {"content": [{"token": "a", "logprob": -1}]}}, ReplyTokens(ids=(1, 2))),
        ({"token_ids": [1], "prompt_token_ids": [5, 6]}, ReplyTokens(ids=(1,), prompt=(5, 6))),
        (
            {"logprobs": {"tokens": ["a", "b"], "token_logprobs": [-1, -2]}},
            ReplyTokens(texts=("a", "b"), logprobs=(-1.0, -2.0)),
        ),
        ({"logprobs": "yes"}, None),
    ],
)
def test_what_a_server_states_is_checked(fields: dict[str, Any], expected: ReplyTokens | None) -> None:
    reply = read_completion({"choices": [{"text": "ab", "finish_reason": "stop", **fields}]})
    assert reply is not None
    assert reply.tokens == expected


def test_a_repair_that_was_rolled_back_does_not_mark_the_reply_that_was_accepted() -> None:
    events = [
        RunStarted("main", "What?"),
        ModelRequested("main", 0),
        ModelReplied("main", 0, "first"),
        Repaired("main", 0, "json"),
        TurnRolledBack("main", 0, 0, reason="no_action"),
        ModelRequested("main", 1),
        ModelReplied("main", 1, "second"),
        ModelRequested("main", 2, purpose="weigh"),
        ModelReplied("main", 2, "0.9"),
        TurnAccepted("main", 0, 0, text="second"),
        RunEnded("main", "answered", "answered", answer="2", closing_text="second"),
    ]
    messages = conversation([Row(seq, 0.0, event) for seq, event in enumerate(events)], rolled_back=True)
    replies = [message for message in messages if message["role"] == "assistant"]
    assert [(each["content"], each["loss"]) for each in replies] == [
        ("first", False),
        ("second", True),
        ("second", True),
    ]
    assert all("repaired" not in each and "closing" not in each for each in replies)
