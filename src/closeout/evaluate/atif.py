"""Write runs as ATIF trajectories, the format of Harbor, and read such trajectories as conversations.

Version 1.7 of the Agent Trajectory Interchange Format: https://harborframework.com/docs/trajectory-format
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from closeout.codec import value_or_text
from closeout.errors import UsageError
from closeout.journal.events import ModelReplied, ModelRequested, RunEnded, RunStarted
from closeout.journal.store import Row

__all__ = ["from_atif", "load_atif", "recorded_head", "to_atif"]

VERSION = "ATIF-v1.7"
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}
_MARKS = ("repaired", "rolled_back", "reason", "closing")  # fields of a reply that `conversation` adds beside its loss
# Our names of the numbers of a request, and the format's, in a step and in the sum.
_COUNTS = (
    ("input_tokens", "prompt_tokens"),
    ("output_tokens", "completion_tokens"),
    ("cache_read_tokens", "cached_tokens"),
    ("cost_usd", "cost_usd"),
)
_TOKENS = (("ids", "completion_token_ids"), ("logprobs", "logprobs"))


def to_atif(
    rows: Sequence[Row], messages: Sequence[Mapping[str, Any]], *, run_id: str, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a run as an ATIF document, with the system prompt and the tools that the model was given.

    Args:
        rows: The record of the run.
        messages: Its messages, as `conversation(rows, numbered=True)` returns them.
        run_id: The run.
        extra: Fields of `extra` of the document, such as scores.
    """
    from closeout import __version__

    record = _Record(rows)
    head = [{"role": "system", "content": record.system}] if record.system else []
    agent: dict[str, Any] = {"name": "closeout", "version": __version__}
    if record.model:
        agent["model_name"] = record.model
    if record.tools:
        agent["tool_definitions"] = record.tools
    if record.agent:
        agent["extra"] = {"agent_name": record.agent}
    steps = _steps([*head, *messages], record)
    return {
        "schema_version": VERSION,
        "session_id": run_id,
        "trajectory_id": run_id,
        "agent": agent,
        "steps": steps,
        "final_metrics": {**record.sums(), "total_steps": len(steps)},
        "extra": {**record.ended, **(extra or {})},
    }


def recorded_head(rows: Iterable[Row]) -> tuple[str, list[Mapping[str, Any]]]:
    """Return the system prompt and the tools, in OpenAI's form, that the main model was given first."""
    system, tools = "", list[Mapping[str, Any]]()
    for event in (row.event for row in rows):
        if not isinstance(event, ModelRequested) or event.agent != "main":
            continue
        if not system:
            contents = (m.get("content") for m in event.added if m.get("role") == "system")
            system = next((text for text in contents if isinstance(text, str)), "")
        if event.tools and not tools:
            tools = [{"type": "function", "function": each} for each in json.loads(event.tools)]
    return system, tools


class _Record:
    """The parts of a run's record that a document needs beside the messages."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.model = self.agent = ""
        self.system, self.tools = recorded_head(rows)
        self.replies: dict[int, tuple[str, ModelReplied]] = {}
        self.ended: dict[str, Any] = {}
        self._usages: list[Mapping[str, Any]] = []
        for row in rows:
            event = row.event
            if isinstance(event, ModelReplied):
                self._usages.append(event.usage)
            if event.agent != "main":
                continue
            if isinstance(event, RunStarted):
                self.agent = event.name
            elif isinstance(event, RunEnded):
                self.ended = {"status": event.status, "stop_reason": event.stop_reason, "answer": event.answer}
            elif isinstance(event, ModelReplied):
                self.model = self.model or event.model
                self.replies[event.call] = _timestamp(row.time), event

    def sums(self) -> dict[str, Any]:
        """Return the sums over all requests, including those of sub-agents and those without a step."""
        found: dict[str, Any] = {}
        for ours, theirs in _COUNTS:
            values = [usage.get(ours) for usage in self._usages]
            if any(value is not None for value in values):
                found[f"total_{theirs}"] = sum(value or 0 for value in values)
        return found


def _steps(messages: Sequence[Mapping[str, Any]], record: _Record) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], _content(message.get("content"))
        if role == "tool":
            labels = {"extra": {"labels": message["labels"]}} if message.get("labels") else {}
            result = {"source_call_id": message.get("tool_call_id"), "content": content, **labels}
            steps[-1].setdefault("observation", {"results": []})["results"].append(result)
            continue
        step: dict[str, Any] = {"step_id": len(steps) + 1, "source": "agent" if role == "assistant" else role}
        step["message"] = content
        if role == "assistant":
            step |= _of_agent(message, record)
        steps.append(step)
    return steps


def _of_agent(message: Mapping[str, Any], record: _Record) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if message.get("reasoning_content"):
        found["reasoning_content"] = message["reasoning_content"]
    if message.get("tool_calls"):
        found["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    reply = record.replies.get(message.get("request", -1))
    if reply is not None:
        timestamp, event = reply
        numbers = {theirs: event.usage.get(ours) for ours, theirs in _COUNTS}
        metrics = {name: value for name, value in numbers.items() if value is not None}
        stated = message.get("tokens", {})
        metrics |= {theirs: stated[ours] for ours, theirs in _TOKENS if ours in stated}
        found |= {"timestamp": timestamp, "metrics": metrics}
        if event.model:
            found["model_name"] = event.model
    marks = {name: message[name] for name in ("loss", *_MARKS) if name in message}
    return {**found, "extra": marks} if marks else found


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    value = value_or_text(arguments)
    written = {"arguments": value} if isinstance(value, dict) else {"arguments": {}, "extra": {"text": arguments}}
    return {"tool_call_id": call["id"], "function_name": function["name"], **written}


def _content(content: Any) -> str:
    """Return a message's text; pictures are left out."""
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, Mapping)]
        return "\n".join(str(part.get("text") or f"[{part.get('type', 'part')}: left out]") for part in parts)
    return content or ""


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ------------------------------------------------------------------------------------------------ reading


def load_atif(path: str | Path) -> list[dict[str, Any]]:
    """Return the conversations of a file: one ATIF document as JSON, or one a line.

    Raises:
        UsageError: The file cannot be read, or holds something else.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    try:
        found = [json.loads(text)]
    except ValueError:
        try:
            found = [json.loads(line) for line in text.split("\n") if line.strip()]
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} is neither a JSON document nor lines of JSON: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply.") from error
    documents = found[0] if len(found) == 1 and isinstance(found[0], list) else found
    return [from_atif(document) for document in documents]


def from_atif(document: Any) -> dict[str, Any]:
    """Return a trajectory as `export_trials` writes the form "openai": `messages`, each with `loss`, and `tools`.

    The messages of the agent have loss, unless the step says otherwise, was copied from another trajectory, or no model
    wrote it. `Agent.run(history=…)` takes messages without the system prompt.

    Raises:
        UsageError: It is not an ATIF document.
    """
    if not isinstance(document, Mapping) or not str(document.get("schema_version", "")).startswith("ATIF-v1."):
        raise UsageError('This is not an ATIF document: it has no "schema_version": "ATIF-v1.…".')
    steps, agent = document.get("steps"), document.get("agent")
    if not isinstance(steps, list) or not isinstance(agent, Mapping):
        raise UsageError("An ATIF document has an object `agent` and a list `steps`.")
    messages: list[dict[str, Any]] = []
    for number, step in enumerate(steps, 1):
        if not isinstance(step, Mapping) or str(step.get("source")) not in _ROLES:
            raise UsageError(f"Step {number} must have a source: system, user or agent.")
        messages += _messages_of(step, number)
    named = {"session_id": document.get("session_id"), "agent": agent.get("name"), "model": agent.get("model_name")}
    tools = agent.get("tool_definitions")
    return {
        **_mapping(document.get("extra")),
        "messages": messages,
        **({"tools": tools} if isinstance(tools, list) and tools else {}),
        **{name: value for name, value in named.items() if value},
    }


def _messages_of(step: Mapping[str, Any], number: int) -> Iterator[dict[str, Any]]:
    role = _ROLES[step["source"]]
    message: dict[str, Any] = {"role": role, "content": _content(step.get("message"))}
    if role == "assistant":
        own, calls = _mapping(step.get("extra")), _items(step.get("tool_calls"))
        if step.get("reasoning_content"):
            message["reasoning_content"] = step["reasoning_content"]
        if calls:
            message["tool_calls"] = [_openai_call(call, number) for call in calls]
        by_model = not step.get("is_copied_context") and step.get("llm_call_count") != 0
        message["loss"] = bool(own.get("loss", by_model))
        message |= {name: own[name] for name in _MARKS if name in own}
    else:
        message["loss"] = False
    yield message
    known = [call["id"] for call in message.get("tool_calls", ())]
    for result in _items(_mapping(step.get("observation")).get("results")):
        text, call_id = _content(result.get("content")), result.get("source_call_id")
        if call_id in known:
            labels = _mapping(result.get("extra")).get("labels")
            marks = {"labels": labels} if isinstance(labels, list) and labels else {}
            yield {"role": "tool", "tool_call_id": call_id, "content": text, "loss": False, **marks}
        elif text:  # an observation that no call asked for
            yield {"role": "user", "content": text, "loss": False}


def _openai_call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    name, call_id = call.get("function_name"), call.get("tool_call_id")
    if not isinstance(name, str) or not isinstance(call_id, str):
        raise UsageError(f"A call of step {number} must have a tool_call_id and a function_name.")
    text = _mapping(call.get("extra")).get("text")
    arguments = text if isinstance(text, str) else json.dumps(call.get("arguments") or {}, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
