"""Export trials for training and analysis: conversations and tokens with a loss mask, or flat records."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from closeout.dialects.function_call import FunctionCall
from closeout.dialects.protocol import HistoryView
from closeout.errors import RunNotFound, UsageError
from closeout.evaluate.atif import recorded_head, to_atif
from closeout.evaluate.token_samples import token_samples
from closeout.journal.events import (
    AttemptStarted,
    ModelReplied,
    RunStarted,
    TurnAccepted,
)
from closeout.journal.store import Row, Store
from closeout.journal.story import Story, TurnStory
from closeout.journal.token_record import load_tokens
from closeout.messages import Capabilities, Message, ReplyTokens, Step
from closeout.models.openai import tool_definitions

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.evaluate.report import EvalReport
    from closeout.evaluate.trials import Trial

__all__ = ["ExportFormat", "Which", "chatml", "conversation", "export_trials", "write_export"]

ExportFormat = Literal["openai", "chatml", "tokens", "atif", "rows", "csv", "huggingface"]
Which = Literal["correct", "answered", "finished"]
# The system message, if there is one, and the tools in OpenAI's form.
Head: TypeAlias = tuple[list[dict[str, Any]], Sequence[Mapping[str, Any]]]


def export_trials(
    report: EvalReport,
    store: Store,
    *,
    form: ExportFormat = "openai",
    which: Which = "finished",
    rolled_back: bool = False,
    agent: Agent[Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a record for each chosen trial.

    Args:
        report: The evaluation.
        store: The journal with its runs.
        form: "openai": `messages`, each with `loss`, and with `tokens` as far as the server stated them; "chatml":
            `text`, and `spans` of characters to learn; "tokens": `input_ids` and `loss_mask`, several records for a
            trial whose prompts do not extend each other; "atif": documents of Harbor's format, with the system prompt
            and the tools; "rows" and "csv": the flat records of `report.rows()`; "huggingface": records whose fields
            have the same types in all, as Arrow requires: a field that can hold any JSON value is text.
        which: Trials that are right, that answered, or that have ended.
        rolled_back: Include rolled-back replies, marked, with no loss. Otherwise they are left out.
        agent: The agent whose system prompt and tools are included. Defaults to the recorded ones. A run in a text
            dialect that called tools has none: its system prompt asks for calls in another form than OpenAI's.

    Raises:
        UsageError: There is no such format or choice, or a trial has no token ids.
    """
    if form not in get_args(ExportFormat) or which not in get_args(Which):
        forms, choices = (", ".join(get_args(each)) for each in (ExportFormat, Which))
        raise UsageError(f"The format is one of {forms}; the choice is one of {choices}.")
    chosen = [trial for trial in report.trials if _is_chosen(report, trial, which)]
    runs = {trial.run_id for trial in chosen}
    flat = {row["run_id"]: row for row in report.rows() if row["run_id"] in runs}
    if form in ("rows", "csv"):
        yield from flat.values()
        return
    head = None if agent is None else _head_of(agent)
    for trial in chosen:
        with suppress(RunNotFound):  # pruned
            rows = store.read(trial.run_id).rows
            about = {
                "task_id": trial.task_id,
                "epoch": trial.epoch,
                "run_id": trial.run_id,
                "score": report.value_of(trial),
            }
            rewards = {scorer: score.value for scorer, score in trial.scores.items()}
            if form == "atif":
                messages = conversation(rows, rolled_back=rolled_back, numbered=True)
                yield to_atif(rows, messages, run_id=trial.run_id, extra={**about, "rewards": rewards})
                continue
            if form == "tokens":
                found = token_samples(rows, rolled_back=rolled_back)
                yield from ({**sample, **about, "rewards": rewards} for sample in found)
                continue
            messages = conversation(rows, rolled_back=rolled_back)
            system, tools = head or _recorded_head(rows, messages)
            messages = [*system, *messages]
            if form == "huggingface":
                yield _typed_record(flat[trial.run_id], messages, tools)
            elif form == "openai":
                yield {"messages": messages, **({"tools": tools} if tools else {}), **about}
            else:
                yield {**chatml(messages), **about}


_DATA_CARD = "---\nconfigs: [{config_name: default, data_files: trials.jsonl}]\n---\n"


def write_export(records: Iterable[Mapping[str, Any]], path: Path, form: str = "openai") -> int:
    """Write records and return how many there were.

    Args:
        records: The records.
        path: The file; of "huggingface" the folder, which `datasets.load_dataset` reads.
        form: "csv", "huggingface", or another form of `export_trials`, whose records are lines of JSON.
    """
    if form == "csv":
        listed = [{name: _as_text(value) for name, value in record.items()} for record in records]
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, dict.fromkeys(name for record in listed for name in record))
            table.writeheader()
            table.writerows(listed)
        return len(listed)
    if form == "huggingface":
        path.mkdir(parents=True, exist_ok=True)
        (path / "README.md").write_text(_DATA_CARD, "utf-8")
        path = path / "trials.jsonl"
    number = 0
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
            number += 1
    return number


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _typed_record(row: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], tools: Any) -> dict[str, Any]:
    """Return a flat record and its conversation with the same field types for all tasks."""
    record: dict[str, Any] = {
        name: _as_text(value) if name == "gold" or not isinstance(value, int | float | None) else value
        for name, value in row.items()
    }
    record["messages"] = [
        {name: _as_text(each.get(name)) for name in ("role", "content", "reasoning_content", "tool_call_id")}
        | {"tool_calls": each.get("tool_calls") or [], "loss": bool(each.get("loss"))}
        for each in messages
    ]
    return {**record, "tools": _as_text(tools)}


def _is_chosen(report: EvalReport, trial: Trial, which: Which) -> bool:
    if trial.outcome is None or trial.state != "finished":
        return False
    return which == "finished" or (
        report.is_correct(trial) if which == "correct" else trial.outcome.status == "answered"
    )


def _head_of(agent: Agent[Any]) -> Head:
    plan = agent.plan()
    tools = plan.offered_tools()
    view = HistoryView(plan.full_instructions(), "task", tools)
    messages = plan.made_dialect(plan.dialect).render(view, Capabilities()).messages
    system = [{**message, "loss": False} for message in messages if message["role"] == "system"]
    return system, tool_definitions(tools)


def _recorded_head(rows: Sequence[Row], messages: Sequence[Mapping[str, Any]]) -> Head:
    """Return the recorded head, or an empty one if the system prompt asks for calls in a text dialect."""
    system, tools = recorded_head(rows)
    if not system or (not tools and any(message.get("tool_calls") for message in messages)):
        return [], tools
    return [{"role": "system", "content": system, "loss": False}], tools


def conversation(rows: Sequence[Row], *, rolled_back: bool = False, numbered: bool = False) -> list[dict[str, Any]]:
    """Return the messages of a run's last attempt in OpenAI's form, each with `loss`: whether to learn from it.

    The results of a run with flow rules have `labels`. Only text that the model wrote and the runtime did not repair
    has loss. A reply to the instruction to close, which is not in the record, is marked `closing`.

    Args:
        rows: The record of the run.
        rolled_back: Include rolled-back replies, marked `rolled_back`.
        numbered: Name the `request` of each reply by its number.
    """
    if not rows or not isinstance(rows[0].event, RunStarted):
        return []
    started = rows[0].event
    earlier = tuple(map(Message.of, json.loads(started.earlier))) if started.earlier else ()
    view = HistoryView("", started.question or started.task, earlier=earlier)
    head = [{**message, "loss": False} for message in _rendered(view)]
    messages = list(head)
    story = Story(whole=True)
    sequence: tuple[int, ...] = ()  # ids of the last prompt and its reply
    stated_of: dict[int, dict[str, Any]] = {}  # facts about replies, by the numbers of their requests
    for event in (row.event for row in rows if row.event.agent == "main"):
        story.feed(event)
        if isinstance(event, ModelReplied) and event.tokens:
            loaded = load_tokens(event.tokens, sequence)
            sequence = (*loaded.prompt, *loaded.ids)
            stated_of[event.call] = {"tokens": _stated(loaded)}
        if isinstance(event, ModelReplied) and numbered:
            stated_of.setdefault(event.call, {})["request"] = event.call
    main = story.agents["main"]
    for item in main.items:
        if isinstance(item, AttemptStarted):
            messages = list(head)
        if not isinstance(item, TurnStory):
            continue
        reply = item.reply
        stated = {} if reply is None else stated_of.get(reply.call, {})
        if item.accepted is not None:
            labels = {call.handle: call.finished.labels for call in item.calls if call.finished is not None}
            messages += _turn(item.accepted, view, was_repaired=bool(item.repairs), stated=stated, labels=labels)
        elif item.rolled_back is not None and rolled_back and reply is not None:
            marks = {"loss": False, "rolled_back": True, "reason": item.rolled_back.reason, **stated}
            messages.append({"role": "assistant", "content": reply.text, **_calls(reply), **marks})
    if story.ended is not None and story.ended.closing_text:
        message = {"role": "assistant", "content": story.ended.closing_text, "loss": True}
        if (last := main.turn) is not None and last.reply is not None and last.is_open:
            message |= stated_of.get(last.reply.call, {})
        if last is not None and last.purpose != "act":
            message["closing"] = True
        messages.append(message)
    return messages


def _rendered(view: HistoryView) -> list[Message]:
    messages = FunctionCall().render(view, Capabilities(images=True)).messages
    return [Message({key: value for key, value in message.items() if key != "attached"}) for message in messages]


def _stated(tokens: ReplyTokens) -> dict[str, Any]:
    """Return the tokens of a reply without its prompt, as far as the server stated them."""
    found = {"ids": tokens.ids, "logprobs": tokens.logprobs, "texts": tokens.texts}
    return {name: list(value) for name, value in found.items() if value}


def _turn(
    event: TurnAccepted,
    view: HistoryView,
    *,
    was_repaired: bool,
    stated: Mapping[str, Any],
    labels: Mapping[str, Sequence[str]],
) -> Iterator[dict[str, Any]]:
    calls = event.tool_calls()
    step = Step(event.turn, event.text, calls, returns=event.tool_returns(calls), reasoning=event.reasoning)
    before = len(_rendered(view))
    of_results = iter([labels.get(result.handle, ()) for result in step.returns])
    for message in _rendered(HistoryView("", view.question, steps=(step,), earlier=view.earlier))[before:]:
        by_model = message["role"] == "assistant"
        yield {
            **message,
            "loss": by_model and not was_repaired,
            **({"repaired": True} if by_model and was_repaired else {}),
            **(stated if by_model else {}),
            **({"labels": list(found)} if message["role"] == "tool" and (found := next(of_results, ())) else {}),
        }


def _calls(reply: ModelReplied) -> dict[str, Any]:
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {
                "name": call["name"],
                "arguments": call["arguments"] if isinstance(call["arguments"], str) else json.dumps(call["arguments"]),
            },
        }
        for call in reply.tool_calls
    ]
    return {"tool_calls": calls} if calls else {}


def chatml(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a conversation as ChatML text, with the spans of characters to learn: what the model wrote, and its end.

    Calls are written as Hermes models write them. Marks of ChatML that a text contains are broken by a space, so that
    no text can pose as another message.
    """
    text = ""
    spans: list[list[int]] = []
    for message in messages:
        text += f"<|im_start|>{message['role']}\n"
        start = len(text)
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = "".join(part.get("text", "") for part in content)
        if message.get("reasoning_content"):
            content = f"<think>\n{message['reasoning_content']}\n</think>\n\n{content}"
        parts = [_harmless(content)] if content else []
        for call in message.get("tool_calls", ()):
            function = call["function"]
            written = f'{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}'
            parts.append(f"<tool_call>\n{_harmless(written)}\n</tool_call>")
        text += "\n".join(parts) + "<|im_end|>"
        if message.get("loss"):
            spans.append([start, len(text)])
        text += "\n"
    return {"text": text, "spans": spans}


def _harmless(text: str) -> str:
    return text.replace("<|im_", "<| im_")
