"""Scans one action from behind its marker or tag to its end: which form it has, and what its end means.

Where actions begin is decided in `react_parser`; what complete JSON says is read in `react_action`.
"""

from __future__ import annotations

import re

from closeout.dialects.react_events import Tape
from closeout.dialects.react_json_form import Form, Limits
from closeout.dialects.react_markers import HOLD, Markers, tag_at
from closeout.dialects.react_text_form import TextForm
from closeout.messages import Repair

__all__ = ["ActionScan"]

_INFO_ENDS = re.compile(r"[\n{\[]")
_LONGEST_INFO = 256
_LONGEST_FENCE = 16
_CUT = "The Action was cut off at the length limit. Write it again, shorter."


class ActionScan(TextForm):
    """One action. `step` reads on; once `outcome` is set the scan is over and the tape stands behind the action."""

    def __init__(self, tape: Tape, markers: Markers, limits: Limits, form: Form, *, bold: bool = False) -> None:
        super().__init__(tape, markers, limits, form, bold=bold)
        self._read_as_text = self._begin_text
        if form != "bare":
            self._read = self._value
        self._at_value = self._value

    def step(self, *, last: bool, truncated: bool = False) -> bool:
        """Reads on; False if more text is needed. With `last` no more comes, and the outcome is set in the end."""
        while not self.outcome:
            if not self._read(last):
                if last and not self.outcome:
                    self._end(truncated)
                return bool(self.outcome)
        return True

    def _value(self, last: bool) -> bool:
        """Behind `Action:`, `Action Input:`, a native tag or a fence's opening line: what comes?"""
        tape, text = self._tape, self._tape.text
        self._skip_blanks()
        if tape.position == len(text):
            return False
        first = text[tape.position]
        if not self._fence and (self._line_start or self._form == "action"):
            marker = self._markers.at(text, tape.position, last=last)
            if marker == HOLD:
                return False
            if marker is not None:
                self._nothing_given()
                return True
        if first in "{[" or (first in "/#" and self._fence and self._form != "input"):  # a comment may be in front
            return self._begin_json()
        if first in "`~" and not self._fence:
            return self._opening_fence(last)
        return self._other_value(first, last)

    def _other_value(self, first: str, last: bool) -> bool:
        tape, text = self._tape, self._tape.text
        if self._form == "input":
            self._mark_start()
            if self._fence:
                self._read = self._fenced_text
            else:
                self._begin_text()
            return True
        if self._form == "native" and not self._fence:
            return self._nothing(at_line_start=False)
        if self._fence:
            return self._malformed("broken_action", "The Action must be one JSON object with the tool's name.")
        if first == "<":
            tag = tag_at(text, tape.position, last=last)
            if tag == HOLD:
                return False
            if tag is not None and not tag.thinking and not tag.closing:
                tape.take("marker", tag.end)
                return True
        if first in "\"'":
            if tape.position + 1 == len(text) and not last:
                return False
            if text[tape.position + 1 : tape.position + 2] in ("{", "["):
                self._closer = first
                self._repairs.append(Repair("outer_quotes", "action", first))
                tape.take("marker", tape.position + 1)
                return self._begin_json()
        self._mark_start()
        self._read = self._text_name
        return True

    def _nothing_given(self) -> None:
        if self._form == "input":
            self._complete_text("")
        else:
            self._nothing(at_line_start=True)

    def _opening_fence(self, last: bool) -> bool:
        tape, text = self._tape, self._tape.text
        at = tape.position
        end = len(text) - len(text[at:].lstrip(text[at]))
        if end == len(text) and end - at <= _LONGEST_FENCE and not last:
            return False
        if not 3 <= end - at <= _LONGEST_FENCE:
            return self._other_value("", last)
        self._mark_start()
        self._fence = self._closer = text[at:end]
        tape.take("marker", end)
        self._read = self._fence_info
        return True

    def _fence_info(self, last: bool) -> bool:
        """The rest of a fence's opening line: an info string, or at once the object."""
        tape, text = self._tape, self._tape.text
        end = tape.position + _LONGEST_INFO - self._size
        found = _INFO_ENDS.search(text, tape.position, end)
        if found is None:
            self._size += min(len(text), end) - tape.position
            tape.take("marker", min(len(text), end))
            if self._size >= _LONGEST_INFO:
                return self._malformed("broken_action", "The Action's code fence holds no JSON object.")
            return False
        self._size = 0
        tape.take("marker", found.start())
        self._read = self._value
        return True

    def _end(self, truncated: bool) -> None:
        """No more text comes."""
        read = self._read
        if read == self._rest_of_line:
            self._complete_json()
        elif read == self._closing and self._closer[0] in "`~":
            self._repairs.append(Repair("fence_unclosed", "action"))
            self._complete_json()
        elif self._shows_nothing():
            self._nothing(at_line_start=False)
        elif truncated:
            self._malformed("truncated", _CUT)
        elif read == self._json and self._committed and self._scanner.closable and not self._closer:
            self._complete_json(closing=True)
        elif read == self._text_name:
            self._named("", last=True)
        elif read in (self._before_input, self._value) and self._form == "input":
            self._complete_text("")
        elif read == self._input_text:
            self._complete_text("".join(self._pieces))
        elif read == self._fenced_text:
            self._repairs.append(Repair("fence_unclosed", "action_input"))
            self._complete_text("".join(self._pieces), exactly=True)
        else:
            self._malformed("broken_action", "The Action is not complete. Write it again as one JSON object.")

    def _shows_nothing(self) -> bool:
        """Whether what was read so far gives no sign of an action."""
        if self._read == self._json:
            return not self._committed and not self._scanner.name
        return self._read == self._value and self._form in ("action", "native") and not self._fence
