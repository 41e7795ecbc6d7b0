"""Listens to replies while they are written: tells the journal's listeners of them, and says when it is enough."""

from __future__ import annotations

from collections.abc import Callable

from closeout.dialects.protocol import Reader
from closeout.journal.journal import Journal, Progress
from closeout.messages import Delta
from closeout.orchestrator.loops import RepetitionWatch

__all__ = ["ReplyListener"]


class ReplyListener:
    """Goes into `complete` as `on_delta`; True stops the model: its one action is whole, or it only repeats itself.

    One listens to the replies of one turn. What it told of a reply that does not count is taken back with a `discard`.
    """

    def __init__(self, journal: Journal, agent: str, turn: int, make_reader: Callable[[], Reader]) -> None:
        self.turn = turn
        self.heard = False  # something was told that was not taken back
        self.closing = False  # no action is asked for: the contract judges the reply as a whole
        self._journal = journal
        self._agent = agent
        self._make_reader = make_reader
        self._kept = ""  # a text that the next reply only finishes
        self.begin()

    def begin(self) -> None:
        """Another reply follows."""
        self._begun = not self._kept
        self._reader = self._make_reader()
        self._repetition = RepetitionWatch()

    def void(self) -> None:
        """The reply broke off, or failed: what was heard of this turn does not count."""
        if self.heard:
            self._journal.tell(Progress(self._agent, self.turn, "discard"))
            self.heard = False
        self.begin()

    def refused(self, kept: str = "") -> None:
        """The reply is not the answer; `kept` is its text where the next reply is only to finish it."""
        if not kept:
            self.void()
        self._kept = kept

    def __call__(self, delta: Delta) -> bool:
        if not self._begun:
            self._begun = True
            self._tell_kept()
        for event in self._reader.feed(delta):
            self.heard = True
            self._journal.tell(Progress(self._agent, self.turn, event.kind, event.text, event.index))
        return (self._reader.complete and not self.closing) or self._repetition.feed(delta.text)

    def _tell_kept(self) -> None:
        """What the reply goes on from stands before it, told again if it was taken back."""
        if not self.heard:
            for event in self._make_reader().feed(Delta("text", self._kept)):
                self._journal.tell(Progress(self._agent, self.turn, event.kind, event.text, event.index))
        self.heard = True
        self._journal.tell(Progress(self._agent, self.turn, "text", "\n\n"))
