"""The history view: what the model sees of an agent's journal. A pure fold of events; dialects write it out.

The live loop subscribes it to the journal; the events of a recorded run can be applied as well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, ClassVar, Self

from closeout.codec import Snapshot
from closeout.dialects.protocol import HistoryView
from closeout.journal.events import AttemptStarted, Compacted, Event, Evicted, MessageReceived, TurnAccepted
from closeout.journal.subscribers import Progress
from closeout.messages import Message, Step, ToolReturn, ToolSpec

__all__ = ["History", "stub_text"]


class History:
    """One agent's history in its current attempt. `apply` adds an event of the agent; `view` is what the model sees.

    A step is written once. Only an eviction or a compaction changes steps, and then the earlier ones stay as they are,
    so that a cached prefix ends there at the earliest.

    Args:
        instructions: The agent's instructions.
        question: The task as the model gets it.
        tools: The tools on offer.
        earlier: The conversation before the task.
        images: Pictures of the task, OpenAI `image_url` parts.
        agent: The agent's path in the run.
        answer: The JSON Schema of the answer, if its contract has one.
        taken_over: The conversation of the agent that handed it over. Every attempt begins with it.
    """

    def __init__(
        self,
        instructions: str,
        question: str,
        tools: Sequence[ToolSpec] = (),
        *,
        earlier: Sequence[Message] = (),
        images: Sequence[dict[str, Any]] = (),
        agent: str = "main",
        answer: Mapping[str, Any] | None = None,
        taken_over: HistoryView | None = None,
    ) -> None:
        self.tools = tuple(tools)
        self.evicted_before = 0  # turns before this one show stubs
        self._instructions = instructions
        self._question = question
        self._task = question  # the question as it was passed
        self._with_experience = question  # the task and the experience of earlier attempts
        self._earlier = tuple(earlier)
        self._images = tuple(images)
        self._agent = agent
        self._answer = answer
        self._taken_over = _before_the_first(taken_over.steps) if taken_over is not None else []
        self._steps = [*self._taken_over]  # only appended to; any other change makes a new list
        self._origin: tuple[list[Step], int] | None = None  # the list before an eviction, and the steps both begin with
        self._evictions: tuple[int, ...] = ()  # the turns before which results were evicted, the last two times
        # Of the user's, before the first step.
        self._messages: tuple[str, ...] = taken_over.messages if taken_over is not None else ()
        self._summary = ""  # the last one
        self._summarised: tuple[str, ...] = ()  # handles of the first and the last result of the turns that left

    @property
    def steps(self) -> Snapshot[Step]:
        """The accepted turns of the attempt, oldest first. Evicted results are stubs."""
        return Snapshot(self._steps, self._origin)

    def shows(self, handle: str) -> bool:
        """Return whether a result is in view: neither its turn nor its text has been left out."""
        steps = takewhile(lambda step: step.turn >= self.evicted_before, reversed(self._steps))
        return any(returned.handle == handle for step in steps for returned in step.returns)

    @property
    def messages(self) -> tuple[str, ...]:
        """The messages that the user sent to the running agent, oldest first."""
        return (*self._messages, *(message for step in self._steps for message in step.messages))

    def after(self, events: Iterable[Event]) -> Self:
        """Apply recorded events, and return the history."""
        for event in events:
            self.apply(event)
        return self

    def apply(self, event: Event | Progress) -> None:
        """Apply an event. Those of other agents, and those that the model does not see, change nothing."""
        change = self._CHANGES.get(type(event))
        if change is not None and event.agent == self._agent:
            change(self, event)

    def _accept(self, event: TurnAccepted) -> None:
        step = event.step()
        if self._steps and self._steps[-1].turn == event.turn:  # repeated after a departure from the record
            self._replace(self._steps[:-1])
        self._steps.append(step)

    def _receive(self, event: MessageReceived) -> None:
        if not self._steps:
            self._messages = (*self._messages, event.text)
            return
        *others, last = self._steps
        self._replace([*others, last.followed_by(event.text)], kept=len(others))

    def _start(self, event: AttemptStarted) -> None:
        own = (step for step in self._steps if step.turn >= 0)
        self._messages += tuple(message for step in own for message in step.messages)
        self._replace([*self._taken_over])
        self.evicted_before = 0
        self._evictions = self._summarised = ()
        self._summary = ""
        self._question = self._with_experience = "\n\n".join((self._task, *event.experiences))

    def _evict(self, event: Evicted) -> None:
        first, end = self._index_of(self.evicted_before), self._index_of(event.before)
        self.evicted_before = event.before
        self._evictions = (*self._evictions[-1:], event.before)
        steps = self._steps.copy()
        steps[first:end] = map(_stubbed, self._steps[first:end])
        self._replace(steps, kept=first)

    def _compact(self, event: Compacted) -> None:
        self._evictions = ()
        end = self._index_of(event.before)
        # The user's words are kept as they are: they belong to the task.
        self._messages = (*self._messages, *(message for step in self._steps[:end] for message in step.messages))
        handles = [r.handle for step in self._steps[:end] for r in step.returns if r.handle]
        if handles:
            self._summarised = ((*self._summarised, *handles)[0], handles[-1])
        self._summary = event.summary or self._summary  # which the model read when it wrote the new one
        left = f"Summary of your work so far:\n{self._summary}" if self._summary else "Old turns are left out."
        if self._summarised:
            first, last = self._summarised
            left += f"\n(Results {first} to {last}: read_result shows them.)"
        # The list goes into the question, not into a step: the oldest part of the prompt changes either way, and roles
        # must alternate.
        self._question = f"{self._with_experience}\n\n{left}"
        self._replace(self._steps[end:])

    _CHANGES: ClassVar[Mapping[type, Callable[[History, Any], None]]] = {
        TurnAccepted: _accept,
        AttemptStarted: _start,
        Evicted: _evict,
        Compacted: _compact,
        MessageReceived: _receive,
    }

    def _replace(self, steps: list[Step], kept: int = 0) -> None:
        self._origin = (self._steps, kept) if kept else None
        self._steps = steps

    def _index_of(self, turn: int) -> int:
        """Return the number of steps before a turn."""
        return bisect_left(self._steps, turn, key=lambda step: step.turn)

    def view(self, note: str = "", closing: str = "", *, withheld: frozenset[str] = frozenset()) -> HistoryView:
        """Return what the model sees now, without the `withheld` tools.

        `note` is a hint after the conversation that is not kept, `closing` an instruction that ends the conversation.
        """
        tools = tuple(tool for tool in self.tools if tool.name not in withheld) if withheld else self.tools
        return HistoryView(
            self._instructions,
            self._question,
            tools,
            steps=self.steps,
            earlier=self._earlier,
            messages=self._messages,
            note=note,
            closing=closing,
            images=self._images,
            borders=tuple(map(self._index_of, self._evictions)),
            answer=self._answer,
        )


def _before_the_first(steps: Iterable[Step]) -> list[Step]:
    """Return steps with turns below 0, as those of an agent that another one succeeds."""
    found = [*steps]
    return [replace(step, turn=index - len(found), rendered={}) for index, step in enumerate(found)]


def stub_text(returned: ToolReturn) -> str:
    """Return the text that replaces an evicted result: it says how to read the result again."""
    if not returned.handle:
        return "[left out to save room]"
    return f'[result {returned.handle} left out to save room; read_result("{returned.handle}") shows it]'


def _stubbed(step: Step) -> Step:
    if not step.returns or all(r.tokens == 0 and r.text == stub_text(r) for r in step.returns):
        return step
    returns = tuple(ToolReturn(r.call, stub_text(r), r.handle, ok=r.ok) for r in step.returns)
    return replace(step, returns=returns, rendered={})
