"""The text of a reply while the model writes it: recorded in pieces, and read back from the record.

A piece is in the journal before a client gets it. Therefore a stream is the same when it is read again, also after the
server was killed while the model wrote.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from closeout.journal.events import (
    AttemptEnded,
    DecisionRequested,
    Event,
    ModelFailed,
    ModelRequested,
    ModelRetried,
    ReplyStreamed,
    RunEnded,
    RunResumed,
    ToolStarted,
    TurnAccepted,
    TurnRolledBack,
    has_conversation,
)
from closeout.journal.story import Change
from closeout.journal.subscribers import Callback, Progress, RunInfo
from closeout.parsing.forms import Form
from closeout.run.page_stream import rest_of
from closeout.server.text_gate import TextGate

__all__ = ["ReplyRecorder", "ReplyText", "TextChange"]

# What was streamed cannot be withdrawn from every client, and the text before a tool call is usually a sentence or two.
MIN_TEXT = 200  # characters that a reply must have before its text is streamed
PIECE_SECONDS = 0.1  # seconds between two recorded pieces of a reply


class ReplyRecorder:
    """A listener that records the text of the agent's replies while they are written, also after a handoff.

    Args:
        wanted: The runs that clients follow as streams, at any time.
        forms: Returns the agent's own forms of calls.
    """

    def __init__(self, wanted: Collection[str], forms: Callable[[], Sequence[Form]]) -> None:
        self._wanted = wanted
        self._forms = forms

    def for_run(self, run: RunInfo) -> Callback:
        """Return the callback for one run."""
        return _RecordedText(run.add, self._forms()) if run.run_id in self._wanted else _ignore


def _ignore(_: Event | Progress) -> None:
    pass


class _RecordedText:
    """Records the replies of one run."""

    def __init__(self, add: Callable[[Event], object], forms: Sequence[Form]) -> None:
        self._make = partial(_Pieces, add, forms)
        self._reply = self._make("main", 0)

    def __call__(self, event: Event | Progress) -> None:
        if not has_conversation(event.agent):
            return
        if isinstance(event, ModelRequested):
            self._reply = self._make(event.agent, event.call)
        elif isinstance(event, Progress) and event.kind in ("text", "answer"):
            self._reply.feed(event.text)
        elif isinstance(event, Progress) and event.kind == "discard":
            self._reply = self._make(event.agent, self._reply.call)


class _Pieces:
    """Records the text of one reply."""

    def __init__(self, add: Callable[[Event], object], forms: Sequence[Form], agent: str, call: int) -> None:
        self.call = call
        self._agent = agent
        self._add = add
        self._gate = TextGate(forms)
        self._text = ""  # not recorded yet
        self._recorded = 0  # characters
        self._next = 0.0  # when the next piece is due

    def feed(self, text: str) -> None:
        self._text += self._gate.feed(text)
        # An answer has no blanks at its ends.
        piece = self._text.rstrip() if self._recorded else self._text.strip()
        if len(piece) < (1 if self._recorded else MIN_TEXT) or time.monotonic() < self._next:
            return
        self._text = self._text[self._text.index(piece) + len(piece) :]
        self._add(ReplyStreamed(self._agent, self.call, self._recorded, piece))
        self._recorded += len(piece)
        self._next = time.monotonic() + PIECE_SECONDS


@dataclass(frozen=True, slots=True)
class TextChange:
    """A change of the streamed text.

    Attributes:
        text: The next piece of it.
        withdrawn: What was streamed before does not count: it was not the answer.
        ends: The text is the answer, and this was its last piece.
    """

    text: str = ""
    withdrawn: bool = False
    ends: bool = False


_NO_ANSWER = (
    RunResumed,
    ModelRequested,
    ModelRetried,
    ModelFailed,
    TurnRolledBack,
    TurnAccepted,
    ToolStarted,
    DecisionRequested,
)


class ReplyText:
    """Reads the streamed text from a run's events."""

    def __init__(self) -> None:
        self._shown: list[str] = []  # the pieces of the current reply

    def feed(self, event: Event, place: Change) -> list[TextChange]:
        """Read the next event of the agent that has the conversation, and its place in the story.

        Returns the changes in order.
        """
        if place.request is not None and place.request.is_extra:
            return []
        match event:
            case ReplyStreamed(offset=offset, text=text):
                changes = self._withdraw() if offset == 0 else []
                self._shown.append(text)
                return [*changes, TextChange(text)]
            case RunEnded(status="answered", answer=answer):
                return self._end(answer or "")
            case RunEnded(status="cancelled" | "waiting"):
                return []  # the run may continue
            case AttemptEnded(answer=None) | RunEnded():
                return self._withdraw()
        return self._withdraw() if isinstance(event, _NO_ANSWER) else []

    def _end(self, answer: str) -> list[TextChange]:
        rest = rest_of(answer, "".join(self._shown))
        if rest is None:
            return [*self._withdraw(), TextChange(answer, ends=True)]
        self._shown.clear()
        return [TextChange(rest, ends=True)]

    def _withdraw(self) -> list[TextChange]:
        if not self._shown:
            return []
        self._shown.clear()
        return [TextChange(withdrawn=True)]
