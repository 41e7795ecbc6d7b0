"""The dialect of models with native tool calls: the server takes tool schemas and returns calls as such."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from closeout.codec import Snapshot, shared_items
from closeout.dialects.prompts import Prompts
from closeout.dialects.protocol import HistoryView
from closeout.messages import Capabilities, Message, ModelRequest, Step, ToolCall, ToolSpec
from closeout.parsing.action_keys import read_object
from closeout.parsing.forms import Form
from closeout.parsing.readers import NativeReader

__all__ = ["FunctionCall", "Transcript", "call_ids", "head_messages", "new_call_id", "user_message"]

NOT_RUN = "No result: this call was not run."


class FunctionCall:
    """Native tool calls, any number in one reply."""

    name = "function_call"
    parallel_calls = True
    writes_messages = True

    def __init__(self, prompts: Mapping[str, str] | None = None, forms: Sequence[Form] = ()) -> None:
        self._prompts = Prompts(prompts)
        self._forms = forms
        self._head: tuple[tuple[Any, ...], tuple[Message, ...]] | None = None
        self._transcript = Transcript()

    def render(self, view: HistoryView, capabilities: Capabilities) -> ModelRequest:
        head, images = self._rendered_head(view), capabilities.images
        key = "function_call+images" if images else "function_call"
        used = self._transcript.call_ids
        written = self._transcript.write(head, view.steps, key, lambda step: _step_messages(step, images, used))
        hints = [Message(role="user", content=hint) for hint in (view.note, view.closing) if hint]
        return ModelRequest(
            messages=[*written, *hints] if hints else written,
            tools=view.tools,
            tool_choice="none" if view.closing and view.tools else None,
            breakpoints=tuple(sorted({len(head) - 1, len(written) - 1, *map(self._transcript.last_of, view.borders)})),
        )

    def reader(self, tools: Sequence[ToolSpec]) -> NativeReader:
        return NativeReader(tools, self._forms)

    def _rendered_head(self, view: HistoryView) -> tuple[Message, ...]:
        key = (view.instructions, view.question, view.earlier, view.images, view.messages)
        if self._head is None or self._head[0] != key:
            system = _system_text(self._prompts.source("function_call"), view.instructions)
            head = head_messages(system, view.earlier, view.question, view.images)
            self._head = key, (*head, *map(user_message, view.messages))
        return self._head[1]


class Transcript:
    """The messages of one conversation, from its head to its last step. A request for more steps adds to them."""

    def __init__(self) -> None:
        self._head: tuple[Message, ...] = ()
        self._key = ""
        self._steps: Sequence[Step] = ()
        self._messages: list[Message] = []
        # The messages before the last change, and how many it kept.
        self._origin: tuple[list[Message], int] | None = None
        self._ends: list[int] = []  # the number of messages up to the end of each step
        self.call_ids: set[str] = set()  # of all calls in the messages

    def write(
        self,
        head: tuple[Message, ...],
        steps: Sequence[Step],
        key: str,
        step_messages: Callable[[Step], Iterable[Message]],
    ) -> Snapshot[Message]:
        """Return the messages of a head and steps. Only those are written that the last request did not have.

        An unchanged head must be the same object. A step keeps its messages under `key`.
        """
        same = shared_items(self._steps, steps) if head is self._head and key == self._key else 0
        if head is not self._head or same < len(self._ends):
            del self._ends[same:]
            kept = self._ends[-1] if same else 0
            self.call_ids.difference_update(_ids_in(self._messages[kept:]))
            self._origin = self._messages, kept
            self._messages = self._messages[:kept] if same else list(head)
            if not same:
                self.call_ids.update(_ids_in(head))
        for step in steps[same:]:
            done = step.rendered.get(key)
            if done is None:
                done = step.rendered[key] = tuple(step_messages(step))
            self._messages += done
            if step.calls:
                self.call_ids.update(_ids_in(done))
            self._ends.append(len(self._messages))
        self._head, self._key, self._steps = head, key, steps
        return Snapshot(self._messages, self._origin)

    def last_of(self, steps: int) -> int:
        """Return the index of the last message of the first `steps` steps."""
        return (self._ends[steps - 1] if steps else len(self._head)) - 1


@lru_cache(maxsize=32)
def _system_text(template: str, instructions: str) -> str:
    """The system text, the same in every run of an agent."""
    return Prompts({"function_call": template}).render("function_call", instruction=instructions)


def head_messages(
    system: str, earlier: Sequence[Message], question: str, images: Sequence[Mapping[str, Any]] = ()
) -> tuple[Message, ...]:
    """The start of every chat request: the system text, if any, the earlier conversation, the question."""
    first = (Message(role="system", content=system),) if system.strip() else ()
    return (*first, *earlier, user_message(question, images))


def user_message(text: str, images: Sequence[Mapping[str, Any]] = ()) -> Message:
    """A user's message; with images its content is a list of parts."""
    if not images:
        return Message(role="user", content=text)
    return Message(role="user", content=[{"type": "text", "text": text}, *(dict(image) for image in images)])


# ------------------------------------------------------------------------------------------------ writing


def _step_messages(step: Step, with_images: bool, used: Container[str]) -> tuple[Message, ...]:
    ids = call_ids(step, used)
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
    if step.attached:
        given = {id_: call.id for id_, call in zip(ids, step.calls, strict=True) if id_ != call.id}
        assistant["attached"] = {**step.attached, "ids": given} if given else step.attached
    messages = [Message(assistant)]
    for id_, text in zip(ids, _results(step), strict=True):
        messages.append(Message(role="tool", tool_call_id=id_, content=text))
    images = [(result.handle, image) for result in step.returns for image in result.images]
    if images and with_images:
        messages.append(user_message("Images from the tool results above:", [*_named(images)]))
    elif unseen := [image["name"] for _, image in images if isinstance(image.get("name"), str)]:
        messages.append(user_message(f"Images from the tool results above that you cannot see: {', '.join(unseen)}"))
    return (*messages, *map(user_message, step.messages)) if step.messages else tuple(messages)


def _named(images: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Mapping[str, Any]]:
    """Yield each image of a result after its name, by which the result mentions it."""
    for handle, image in images:
        if isinstance(image.get("name"), str):
            yield {"type": "text", "text": f"{image['name']} ({handle}):" if handle else f"{image['name']}:"}
        yield {key: value for key, value in image.items() if key != "name"}


def call_ids(step: Step, used: Container[str] = ()) -> list[str]:
    """One id per call: the model's own, or `call_{turn}_{index}` if it has none or used one twice.

    Servers number the calls of each reply from the beginning, and others refuse a conversation with an id twice. An id
    that an earlier call has is replaced by one of nine letters and digits, which every server takes.
    """
    ids: list[str] = []
    for index, call in enumerate(step.calls):
        own = call.id if call.id and call.id not in ids else f"call_{step.turn}_{index}"
        id_, number = own, 0
        while id_ in used or id_ in ids:
            id_ = new_call_id(own, step.turn, index, number)
            number += 1
        ids.append(id_)
    return ids


def new_call_id(given: str, *place: int) -> str:
    """Return an id for a call whose own id another call has. It depends on the id and the place of the call only."""
    text = "\0".join([given, *map(str, place)])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _ids_in(messages: Iterable[Message]) -> Iterator[str]:
    return (str(call.get("id")) for message in messages for call in message.get("tool_calls") or ())


def _results(step: Step) -> list[str]:
    """The result of each call, matched by the call itself, by its id, or else by order."""
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
    """The arguments as the model wrote them if that is valid JSON, else as JSON: servers refuse anything else."""
    written = call.text or (call.arguments if isinstance(call.arguments, str) else "")
    read = read_object(written)
    if isinstance(call.arguments, str):
        if read is not None:
            return written
        return json.dumps({"unreadable_arguments": call.arguments}, ensure_ascii=False)
    if read is not None and read == call.arguments:
        return written
    return json.dumps(call.arguments, ensure_ascii=False, default=dict)
