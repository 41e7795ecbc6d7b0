"""Watch a reply while the model writes it: publish its pieces, and stop it once it is whole or only repeats itself."""

from __future__ import annotations

from collections.abc import Callable

from closeout.journal.subscribers import Progress, Subscribers
from closeout.messages import Delta
from closeout.parsing.readers import Reader
from closeout.parsing.repetition import RepetitionWatch

__all__ = ["ReplyListener"]


class ReplyListener:
    """The `on_delta` of one turn's requests. Returns True when the model can stop.

    Subscribers receive the pieces, as a reader of the dialect in use finds them. What was published of a reply that
    does not count is withdrawn with a `discard`.
    """

    def __init__(self, subscribers: Subscribers, agent: str, turn: int, make_reader: Callable[[], Reader]) -> None:
        self.turn = turn
        self.published = False  # something of this turn was published and not withdrawn
        self.closing = False  # no action is expected: the contract judges the reply as a whole
        self._subscribers = subscribers
        self._agent = agent
        self._make_reader = make_reader
        self._kept = ""  # a text that the next reply continues
        self.begin()

    def begin(self) -> None:
        """Expect another reply."""
        self._begun = not self._kept
        self._reader = self._make_reader()
        self._repetition = RepetitionWatch()

    def discard(self) -> None:
        """Withdraw what was published of this turn: the reply broke off, failed, or does not count."""
        if self.published:
            self._subscribers.publish(Progress(self._agent, self.turn, "discard"))
            self.published = False
        self.begin()

    def refused(self, kept: str = "") -> None:
        """Note that the reply is not the answer. `kept` is its text if the next reply continues it."""
        if not kept:
            self.discard()
        self._kept = kept

    def __call__(self, delta: Delta) -> bool:
        """Publish a piece. Returns whether the model can stop."""
        if not self._begun:
            self._begun = True
            self._publish_kept()
        for event in self._reader.feed(delta):
            self.published = True
            self._subscribers.publish(Progress(self._agent, self.turn, event.kind, event.text, event.index))
        return (self._reader.complete and not self.closing) or self._repetition.feed(delta.text)

    def replace(self, text: str) -> None:
        """Publish a text in place of what was published of this turn."""
        self.discard()
        self._publish(Delta("text", text))

    def _publish_kept(self) -> None:
        """Publish the text that this reply continues, if it was withdrawn."""
        if not self.published:
            self._reader = self._make_reader()
            self._publish(Delta("text", self._kept))
            self._reader = self._make_reader()
        self._subscribers.publish(Progress(self._agent, self.turn, "text", "\n\n"))

    def _publish(self, delta: Delta) -> None:
        for event in self._reader.feed(delta):
            self._subscribers.publish(Progress(self._agent, self.turn, event.kind, event.text, event.index))
        self.published = True
