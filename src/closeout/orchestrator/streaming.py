"""Listens to a reply while it is written: tells the journal's listeners what is known, and says when it is enough."""

from __future__ import annotations

from collections.abc import Callable

from closeout.dialects.protocol import Reader
from closeout.journal.journal import Journal, Progress
from closeout.llm.base import RetryNote
from closeout.messages import Delta
from closeout.orchestrator.loops import RepetitionWatch

__all__ = ["ReplyListener"]


class ReplyListener:
    """Goes into `complete` as `on_delta`; True stops the model: its one action is whole, or it only repeats itself."""

    def __init__(self, journal: Journal, agent: str, turn: int, make_reader: Callable[[], Reader]) -> None:
        self._journal = journal
        self._agent = agent
        self._turn = turn
        self._make_reader = make_reader
        self._restart()

    def _restart(self) -> None:
        self.reader = self._make_reader()
        self._repetition = RepetitionWatch()

    def retried(self, _: RetryNote) -> None:
        """The reply broke off and is asked for again: what was heard of it is void."""
        self._restart()
        self._journal.tell(Progress(self._agent, self._turn, "discard"))

    def __call__(self, delta: Delta) -> bool:
        for event in self.reader.feed(delta):
            self._journal.tell(Progress(self._agent, self._turn, event.kind, event.text, event.index))
        return self.reader.complete or self._repetition.feed(delta.text)
