"""Watch a reply while the model writes it: publish its pieces, and stop it once it is whole or only repeats itself."""

from __future__ import annotations

from collections.abc import Callable

from closeout.journal.subscribers import Progress, Subscribers
from closeout.messages import Defect, Delta
from closeout.parsing.readers import Reader

__all__ = ["REPEATING", "RepetitionWatch", "ReplyListener", "repeated_tail"]


class ReplyListener:
    """The `on_delta` of one turn's requests. Returns True when the model can stop.

    What it published of a reply that does not count is withdrawn with a `discard`.

    Args:
        subscribers: Who receives the pieces.
        agent: The agent's path in the run.
        turn: The number of the turn.
        make_reader: Makes a reader of the dialect in use.
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
        """Take note that the reply is not the answer. `kept` is its text if the next reply continues it."""
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


# ------------------------------------------------------------------------------------------------ repetition

TAIL = 2400  # characters of the end that are examined
SHORTEST_RUN = 480  # characters that a repetition must cover
TIMES = 4  # how often the unit must occur
PLAIN_RUN = 1600  # the same for units of up to three different characters: rules, table borders and padding are shorter
PLAIN_CHARACTERS = 3
CHECK_EVERY = 200  # characters between two checks of a stream

REPEATING = Defect("repeating", "Your last reply repeated itself. Be brief: call one tool or give the answer.")


def repeated_tail(text: str) -> int:
    """Return the offset where a text begins to repeat itself up to its end, or -1.

    A repetition is one unit of up to 600 characters that occurs at least four times and covers at least 480 characters.
    A unit of up to three different characters, such as `-`, blanks or newlines, must cover 1,600.
    """
    tail = text[-TAIL:]
    if len(tail) < SHORTEST_RUN:
        return -1
    for period in _periods(tail):
        start = _run_start(tail, period)
        length = len(tail) - start
        if length >= max(SHORTEST_RUN, TIMES * period) and (
            length >= PLAIN_RUN or len(set(tail[start:])) > PLAIN_CHARACTERS
        ):
            return len(text) - len(tail) + start
    return -1


def _periods(tail: str) -> list[int]:
    """Return the distances at which the last 24 characters occurred before: the only possible periods."""
    mark, found = tail[-24:], []
    place = len(tail) - 24
    for _ in range(32):
        place = tail.rfind(mark, 0, place + 23)
        if place < 0:
            break
        found.append(len(tail) - 24 - place)
    return found


def _run_start(tail: str, period: int) -> int:
    start = len(tail) - period
    while start >= period and tail[start - period : start] == tail[start : start + period]:
        start -= period
    return start


class RepetitionWatch:
    """Watches a reply as it streams. Looks at it once in 200 characters."""

    __slots__ = ("_since", "_tail")

    def __init__(self) -> None:
        self._tail = ""
        self._since = 0

    def feed(self, text: str) -> bool:
        """Add a piece. Returns whether the end of the reply repeats itself."""
        self._tail += text
        self._since += len(text)
        if self._since < CHECK_EVERY:
            return False
        self._since = 0
        self._tail = self._tail[-TAIL:]
        return repeated_tail(self._tail) >= 0
