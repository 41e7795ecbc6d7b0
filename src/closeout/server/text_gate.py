"""Hold back the text of a streamed reply from where it may be a tool call, or a result that the model made up."""

from __future__ import annotations

from collections.abc import Sequence

from closeout.parsing.forms import Form, FormDetector
from closeout.parsing.read_reply import invents_result

__all__ = ["TextGate"]

TAIL = 200  # characters of the shown text in which the beginning of a made-up result is looked for


class TextGate:
    """Passes on the text of one reply until it may be something other than text."""

    def __init__(self, forms: Sequence[Form]) -> None:
        self._detector = FormDetector(forms)
        self._tail = ""
        self._closed = False

    def feed(self, piece: str) -> str:
        """Take a piece of text. Returns the text that may be shown now, including text held back before."""
        if self._closed:
            return ""
        shown = self._detector.feed(piece)
        self._tail = (self._tail + shown)[-TAIL:]
        self._closed = self._detector.family is not None or invents_result(self._tail)
        return shown

    @property
    def holds(self) -> bool:
        """True if any text is held back."""
        return self._closed or bool(self._detector.held)
