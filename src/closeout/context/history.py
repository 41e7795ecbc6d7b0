"""The history view: what of an agent's journal the model sees. A pure fold of events; dialects write it out.

The same fold serves the live loop, which listens with it, and whoever reads a record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from closeout.dialects.protocol import HistoryView
from closeout.journal.events import AttemptStarted, Compacted, Event, Evicted, TurnAccepted
from closeout.messages import Message, Step, ToolReturn, ToolSpec

__all__ = ["History", "stub_text"]

_SEEN = frozenset({TurnAccepted, AttemptStarted, Evicted, Compacted})


class History:
    """One agent's history in its present attempt. `apply` takes in the agent's events; `view` is what the model sees.

    Steps are written once: a step changes only by an eviction or a compaction, and then the earlier ones stay as they
    are, so that a cached prefix breaks at most there.
    """

    def __init__(
        self,
        instructions: str,
        question: str,
        tools: Sequence[ToolSpec] = (),
        earlier: Sequence[Message] = (),
        images: Sequence[dict[str, Any]] = (),
        agent: str = "main",
    ) -> None:
        self._instructions = instructions
        self._question = question
        self._task = question  # as given
        self._begun = question  # with the experience of earlier attempts
        self._tools = tuple(tools)
        self._earlier = tuple(earlier)
        self._images = tuple(images)
        self._agent = agent
        self.steps: tuple[Step, ...] = ()
        self.evicted_before = 0  # turns before this one show stubs
        self._evictions: tuple[int, ...] = ()  # the turns before which results were evicted, the last two times
        self._gone: tuple[str, ...] = ()  # handles of the first and the last result that a summary stands for

    def after(self, events: Iterable[Event]) -> Self:
        """This history with recorded events taken in."""
        for event in events:
            self.apply(event)
        return self

    def __call__(self, event: Any) -> None:
        """As a listener: what the model sees of is taken in, anything else let pass."""
        if type(event) in _SEEN:
            self.apply(event)

    def hears(self, kind: type) -> Callable[[Event], None] | None:
        """As a journal's listener: what takes in events of a type."""
        return self.apply if kind in _SEEN else None

    def apply(self, event: Event) -> None:
        """Take in an event; those of other agents, and those that the model does not see, change nothing."""
        if event.agent != self._agent:
            return
        if isinstance(event, TurnAccepted):
            self._accept(event)
        elif isinstance(event, AttemptStarted):
            self._start(event)
        elif isinstance(event, Evicted):
            first, end = self._place(self.evicted_before), self._place(event.before)
            self.evicted_before = event.before
            self._evictions = (*self._evictions[-1:], event.before)
            self.steps = (*self.steps[:first], *map(_stubbed, self.steps[first:end]), *self.steps[end:])
        elif isinstance(event, Compacted):
            self._compact(event)

    def _compact(self, event: Compacted) -> None:
        self._evictions = ()
        handles = [r.handle for step in self.steps if step.turn < event.before for r in step.returns if r.handle]
        if handles:
            self._gone = ((*self._gone, *handles)[0], handles[-1])
        readable = f"\n(Results {self._gone[0]} to {self._gone[1]}: read_result shows them.)" if self._gone else ""
        # Into the question rather than into a step: the oldest part of the prompt changes either way, and roles go on
        # alternating.
        self._question = f"{self._begun}\n\nSummary of your work so far:\n{event.summary}{readable}"
        self.steps = tuple(step for step in self.steps if step.turn >= event.before)

    def _start(self, event: AttemptStarted) -> None:
        self.steps = ()
        self.evicted_before = 0
        self._evictions = self._gone = ()
        self._question = self._begun = "\n\n".join((self._task, *event.experiences))

    def _accept(self, event: TurnAccepted) -> None:
        calls = event.tool_calls()
        step = Step(event.turn, event.text, calls, event.tool_returns(calls), event.reasoning, event.raw)
        if self.steps and self.steps[-1].turn == event.turn:  # written anew after a departure from the record
            self.steps = self.steps[:-1]
        self.steps = (*self.steps, step)

    def _place(self, turn: int) -> int:
        """How many steps lie before a turn."""
        return bisect_left(self.steps, turn, key=lambda step: step.turn)

    def view(self, note: str = "", closing: str = "", withheld: frozenset[str] = frozenset()) -> HistoryView:
        """What the model sees now. `note` is a hint that is not kept; `withheld` names tools that are not offered."""
        tools = tuple(tool for tool in self._tools if tool.name not in withheld) if withheld else self._tools
        borders = tuple(map(self._place, self._evictions)) if self._evictions else ()
        return HistoryView(
            self._instructions, self._question, tools, self.steps, self._earlier, note, closing, self._images, borders
        )


def stub_text(returned: ToolReturn) -> str:
    """What stands for a result that was evicted: how to see it again."""
    if not returned.handle:
        return "[left out to save room]"
    return f'[result {returned.handle} left out to save room; read_result("{returned.handle}") shows it]'


def _stubbed(step: Step) -> Step:
    if not step.returns or all(r.tokens == 0 and r.text == stub_text(r) for r in step.returns):
        return step
    returns = tuple(ToolReturn(r.call, stub_text(r), r.handle, r.ok) for r in step.returns)
    return Step(step.turn, step.text, step.calls, returns, step.reasoning, step.raw)
