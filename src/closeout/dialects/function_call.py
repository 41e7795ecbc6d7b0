"""The dialect of models with native tool calls: the server takes tool schemas and gives calls back as such.

Calls that a server lost on the way, and so arrive as text, are the business of `salvage`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from closeout.codec import decode_json
from closeout.dialects.prompts import Prompts
from closeout.dialects.protocol import HistoryView, ReadEvent
from closeout.dialects.thinking import ThinkingSplitter, split_thinking
from closeout.messages import (
    Capabilities,
    Defect,
    Delta,
    Message,
    ModelReply,
    ModelRequest,
    Reading,
    Step,
    ToolCall,
    ToolSpec,
)

__all__ = ["FunctionCall", "FunctionCallReader", "call_ids", "head_messages", "read_native_calls", "user_message"]

NOT_RUN = "No result: this call was not run."
EMPTY = Defect("empty", "Your last reply was empty. Call a tool or give the answer.")


class FunctionCall:
    """Native tool calls, several in one reply if the model likes."""

    name = "function_call"
    parallel_calls = True

    def __init__(self, prompts: Mapping[str, str] | None = None) -> None:
        self._prompts = Prompts(prompts)
        self._head: tuple[tuple[Any, ...], tuple[Message, ...]] | None = None
        # What the steps of the last request were written as, and where in that each of them ends.
        self._steps: tuple[Step, ...] = ()
        self._images = False
        self._messages: list[Message] = []
        self._ends: list[int] = []

    def render(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        head = self._rendered_head(view)
        self._write(view.steps, capabilities.images)
        messages = [*head, *self._messages]
        marks = [len(head) - 1, len(messages) - 1]
        for border in view.borders:
            marks.append(marks[0] + (self._ends[border - 1] if border else 0))
        if view.note or view.closing:
            messages += [Message(role="user", content=hint) for hint in (view.note, view.closing) if hint]
        return ModelRequest(
            messages=messages,
            tools=view.tools,
            tool_choice="none" if view.closing and view.tools else None,
            breakpoints=tuple(sorted(set(marks))),
        )

    def reader(self, tools: Sequence[ToolSpec]) -> FunctionCallReader:
        return FunctionCallReader()

    def _write(self, steps: tuple[Step, ...], images: bool) -> None:
        """Write out what the last request did not have yet; all of it where its steps are no longer the first ones."""
        if self._images != images or steps[: len(self._steps)] != self._steps:
            self._messages, self._ends, self._steps = [], [], ()
        key = "function_call+images" if images else "function_call"
        for step in steps[len(self._steps) :]:
            done = step.rendered.get(key)
            if done is None:
                done = step.rendered[key] = _step_messages(step, images)
            self._messages += done
            self._ends.append(len(self._messages))
        self._steps, self._images = steps, images

    def _rendered_head(self, view: HistoryView) -> tuple[Message, ...]:
        key = (view.instructions, view.question, view.earlier, view.images)
        if self._head is None or self._head[0] != key:
            system = _system_text(self._prompts.source("function_call"), view.instructions)
            self._head = key, head_messages(system, view.earlier, view.question, view.images)
        return self._head[1]


@lru_cache(maxsize=32)
def _system_text(template: str, instructions: str) -> str:
    """The system text, the same in every run of an agent."""
    return Prompts({"function_call": template}).render("function_call", instruction=instructions)


def head_messages(
    system: str, earlier: Sequence[Message], question: str, images: Sequence[Mapping[str, Any]] = ()
) -> tuple[Message, ...]:
    """The start of every chat request: system text if there is any, the conversation so far, the question."""
    first = (Message(role="system", content=system),) if system.strip() else ()
    return (*first, *earlier, user_message(question, images))


def user_message(text: str, images: Sequence[Mapping[str, Any]] = ()) -> Message:
    """A user's message; with images its content is a list of parts."""
    if not images:
        return Message(role="user", content=text)
    return Message(role="user", content=[{"type": "text", "text": text}, *(dict(image) for image in images)])


# ------------------------------------------------------------------------------------------------ writing


def _step_messages(step: Step, with_images: bool) -> tuple[Message, ...]:
    ids = call_ids(step)
    assistant: dict[str, Any] = {"role": "assistant", "content": step.text or None}
    if step.reasoning:
        assistant["reasoning_content"] = step.reasoning
    if step.calls:
        assistant["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": call.name, "arguments": _arguments_text(call)}}
            for id_, call in zip(ids, step.calls, strict=True)
        ]
    elif not step.text:
        assistant["content"] = ""
    messages = [Message(assistant)]
    for id_, text in zip(ids, _results(step), strict=True):
        messages.append(Message(role="tool", tool_call_id=id_, content=text))
    images = [image for result in step.returns for image in result.images] if with_images else []
    if images:
        messages.append(user_message("Images from the tool results above:", images))
    return tuple(messages)


def call_ids(step: Step) -> list[str]:
    """One id for each call: the model's own, or `call_{turn}_{index}` where it gave none or gave one twice."""
    ids: list[str] = []
    for index, call in enumerate(step.calls):
        own = call.id if call.id and call.id not in ids else ""
        ids.append(own or f"call_{step.turn}_{index}")
    return ids


def _results(step: Step) -> list[str]:
    """What is said of each call: its result, found by the call itself, by its id, else the next that is left."""
    if len(step.calls) == 1 == len(step.returns):
        return [step.returns[0].text]
    results = [NOT_RUN] * len(step.calls)
    open_places = dict(enumerate(step.calls))
    for result in step.returns:
        place = next(
            (i for i, call in open_places.items() if call is result.call or (call.id and call.id == result.call.id)),
            next(iter(open_places), None),
        )
        if place is not None:
            del open_places[place]
            results[place] = result.text
    return results


def _arguments_text(call: ToolCall) -> str:
    """The arguments as the model wrote them while that is what they are; else as JSON. Servers refuse anything else."""
    written = call.text or (call.arguments if isinstance(call.arguments, str) else "")
    read = read_object(written)
    if isinstance(call.arguments, str):
        if read is not None:
            return written
        return json.dumps({"unreadable_arguments": call.arguments}, ensure_ascii=False)
    if read is not None and read == call.arguments:
        return written
    return json.dumps(call.arguments, ensure_ascii=False, default=dict)


def read_object(text: str) -> dict[str, Any] | None:
    """A strict JSON object, or None."""
    try:
        value = decode_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


# ------------------------------------------------------------------------------------------------ reading


class FunctionCallReader:
    """Reads native calls; text beside them is a thought, text alone the answer, `<think>` blocks are reasoning."""

    __slots__ = ("_splitter",)

    complete = False  # several calls may come, so nothing is ever cut short

    def __init__(self) -> None:
        self._splitter: ThinkingSplitter | None = None

    def feed(self, delta: Delta) -> list[ReadEvent]:
        if delta.kind == "text":
            if self._splitter is None:  # most replies are read whole
                self._splitter = ThinkingSplitter()
            return [
                ReadEvent("reasoning" if thinking else "text", piece)
                for thinking, piece in self._splitter.feed(delta.text)
            ]
        return [ReadEvent(delta.kind, delta.text, delta.index)] if delta.text else []

    def close(self, reply: ModelReply) -> Reading:
        thinking, text = split_thinking(reply.text)
        reasoning = f"{reply.reasoning}\n{thinking}" if reply.reasoning and thinking else reply.reasoning or thinking
        calls, defects = read_native_calls(reply)
        if calls or defects:
            return Reading(text, reasoning, tuple(calls), defects=tuple(defects), raw=reply.text)
        cut = reply.finish_reason == "length"
        if not text.strip():
            return Reading(text, reasoning, defects=(_cut_defect("reply") if cut else EMPTY,), raw=reply.text)
        return Reading(text, reasoning, answer=text, defects=(_cut_defect("answer"),) if cut else (), raw=reply.text)


def read_native_calls(reply: ModelReply) -> tuple[list[ToolCall], list[Defect]]:
    """The calls with their arguments read where they are JSON objects; what is not is left for repair to judge."""
    calls: list[ToolCall] = []
    for call in reply.tool_calls:
        if not isinstance(call.arguments, str):
            calls.append(call)
            continue
        written = call.arguments
        if reply.finish_reason == "length" and read_object(written) is None:
            return calls, [_cut_defect(f"call of {call.name}")]
        arguments = {} if written.strip() in ("", "null") else read_object(written)
        calls.append(
            ToolCall(call.name, written if arguments is None else arguments, call.id, call.server_name, written)
        )
    return calls, []


def _cut_defect(what: str) -> Defect:
    return Defect("truncated", f"Your last {what} was cut off at the length limit. Write it again, shorter.")
