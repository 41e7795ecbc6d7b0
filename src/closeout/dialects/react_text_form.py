"""The text form of an action: `Action:` with a name, `Action Input:` with anything; and call forms, `name({…})`."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from closeout.dialects.action_keys import is_final_answer, is_no_action
from closeout.dialects.react_action import ActionReading, plain_input
from closeout.dialects.react_events import EventKind, Lane, PlainLane
from closeout.dialects.react_json_form import JsonForm
from closeout.dialects.react_markers import HOLD, Marker
from closeout.dialects.react_prose import LINE_END, Prose, Stop
from closeout.messages import Repair

__all__ = ["TextForm"]

_SPACE = re.compile(r"[ \t\r\ufeff]*+")
_NAME = re.compile(r"[\w.\-/:]+(?: [\w.\-/:]+){0,3}")
_NAME_ENDS = re.compile(r"[\n({]")
_LONGEST_NAME = 128
_NAME_ONLY = "The Action line must hold a tool's name only, or one JSON object."
_INPUT_TEXT = "Follow the Action line with an Action Input line."


class TextForm(JsonForm):
    """Adds to the JSON form what is written as lines of text."""

    _prose: Prose | None = None  # walks over an input that is free text

    def lane(self) -> Lane | None:
        if self._prose is not None and self._read == self._input_text:
            return self._prose.lane()
        if self._read == self._fenced_text:
            return PlainLane(LINE_END, self._input_kind(), "", self._pieces)
        return super().lane()

    def _input_kind(self) -> EventKind:
        return "final_delta" if self._final else "argument_delta"

    def _skip_blanks(self) -> None:
        tape, text = self._tape, self._tape.text
        at, size = tape.position, len(text)
        while at < size:
            if self._stars and text[at] == "*":
                self._stars -= 1
                at += 1
                continue
            self._stars = 0
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if at == size or text[at] != "\n":
                break
            self._line_start = True
            at += 1
        if self._form == "native":
            self._before.append(text[tape.position : at])
        tape.take("marker", at)

    def _text_name(self, last: bool) -> bool:
        """A tool's name on the Action line, up to the line's end or an opening bracket."""
        tape, text = self._tape, self._tape.text
        limit = tape.position + _LONGEST_NAME - self._size
        size = min(len(text), limit)
        stop = _NAME_ENDS.search(text, tape.position, size)
        end = stop.start() if stop else size
        inline = self._markers.in_name.search(text, tape.position, end)
        if inline is not None:
            end = inline.start()
        elif stop is None and not last and size == len(text):
            part = self._markers.in_name_part.search(text, max(tape.position, size - 64))
            end = part.start() if part else size
        self._size += end - tape.position
        self._name_pieces.append(text[tape.position : end])
        tape.take("marker", end)
        if self._size >= _LONGEST_NAME:
            return self._malformed("broken_action", _NAME_ONLY)
        if inline is not None and inline["input"] is None:
            return self._named("", last)
        if inline is not None and self._named("\n", last):
            if not self.outcome:
                tape.take("marker", inline.end())
                self._read = self._at_value
            return True
        return self._named(text[end], last) if stop is not None else False

    def _named(self, stop: str, last: bool) -> bool:
        """The name's line is read; `stop` is what ended it, "" if the text or a forged observation did."""
        name = "".join(self._name_pieces).strip().rstrip("*:").strip()
        if is_no_action(name):
            return self._nothing(at_line_start=False)
        for quote in "\"'`":
            if len(name) > 2 and name[0] == name[-1] == quote:
                self._repairs.append(Repair("outer_quotes", "name", name))
                name = name[1:-1].strip()
                break
        if not _NAME.fullmatch(name):
            return self._malformed("broken_action", _NAME_ONLY)
        self._name = name
        self._size = 0
        self._final = is_final_answer(name)
        self._tell_name(name)
        self._form = "input"
        if stop in ("(", "{"):
            self._repairs.append(Repair("call_form", "action", f"{name}{stop}"))
            if stop == "{":
                return self._begin_json()
            self._closer = ")"
            self._tape.take("marker", self._tape.position + 1)
            self._read = self._call_brackets
        elif stop == "\n":
            self._read = self._before_input
        else:
            return self._complete_text("")
        return True

    def _call_brackets(self, last: bool) -> bool:
        """Behind `name(`: an object, or nothing."""
        self._skip_blanks()
        tape = self._tape
        if tape.position == len(tape.text):
            return False
        first = tape.text[tape.position]
        if first == "{":
            return self._begin_json()
        if first == ")":
            tape.take("marker", tape.position + 1)
            return self._complete_text("")
        return self._malformed("broken_action", f"{_INPUT_TEXT} The input is a JSON object.")

    def _before_input(self, last: bool) -> bool:
        """Behind the name's line: the input, or anything else, which means that there is none."""
        self._skip_blanks()
        tape, text = self._tape, self._tape.text
        if tape.position == len(text):
            return False
        marker = self._markers.at(text, tape.position, last=last)
        if marker == HOLD:
            return False
        if isinstance(marker, Marker) and marker.name == "action_input":
            tape.take("marker", marker.end)
            self._stars = 3 if marker.bold else 0
            self._line_start = False
            self._read = self._at_value
        elif marker is None and text[tape.position] in "{[`~":
            self._repairs.append(Repair("input_marker_missing", "action"))
            self._line_start = False
            self._read = self._at_value
        else:
            return self._complete_text("")
        return True

    def _begin_text(self, so_far: str = "") -> None:
        self._pieces = [so_far]
        self._prose = Prose(self._tape, self._markers, self._input_kind(), tags="never", inline=True, keep=self._pieces)
        self._read = self._input_text

    def _input_text(self, last: bool) -> bool:
        """Free text, up to the next marker."""
        assert self._prose is not None
        stop = self._prose.walk(last=last)
        if stop is Stop.MORE:
            return False
        if stop is Stop.MARKER and self._final:
            assert self._prose.marker is not None
            if self._prose.marker.name not in ("observation", "thought"):
                self._prose.pass_over(self._prose.marker.end)
                return True
        return self._complete_text("".join(self._pieces))

    def _fenced_text(self, last: bool) -> bool:
        """An input in a fence that is not JSON: all of it, up to the closing fence."""
        tape, text = self._tape, self._tape.text
        closing, part = _closing_fence(self._fence)
        closed = closing.search(text, tape.position)
        if closed is not None:
            self._take_input(closed.start())
            tape.take("marker", closed.end())
            return self._complete_text("".join(self._pieces), exactly=True)
        maybe = None if last else part.search(text, max(tape.position, len(text) - 24))
        self._take_input(maybe.start() if maybe else len(text))
        return False

    def _take_input(self, end: int) -> None:
        self._pieces.append(self._tape.text[self._tape.position : end])
        self._tape.take(self._input_kind(), end)

    def _complete_text(self, text: str, *, exactly: bool = False) -> bool:
        """The text form is complete, its input as it was written."""
        value: Any = text
        if self._final:
            text = text.strip()
        elif not exactly:
            value, quotes = _plain_value(text)
            if quotes:
                self._repairs.append(Repair("outer_quotes", "action_input", text.strip()[:40]))
            value, decoded = plain_input(value)
            self._repairs += decoded
        return self._complete(self._name, value, ActionReading(), text, text)


@lru_cache(maxsize=32)
def _closing_fence(fence: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What closes a fence, and what may be the beginning of that at a text's end."""
    character, size = re.escape(fence[0]), len(fence)
    line = rf"\n[ \t]{{0,3}}{character}"
    return re.compile(f"{line}{{{size}}}"), re.compile(rf"\n(?:[ \t]{{0,3}}{character}{{0,{size - 1}}})?\Z")


def _plain_value(text: str) -> tuple[Any, bool]:
    """The value that the text form's input means, and whether a matched pair of quotes was taken off."""
    text = text.strip()
    if text in ("", "None", "null"):
        return {}, False
    if text[0] in '"-0123456789tf[{':
        try:
            return json.loads(text, parse_constant=str), False
        except (ValueError, RecursionError):
            pass
    quote = text[0]
    if quote in "\"'`" and len(text) > 1 and text[-1] == quote and quote not in text[1:-1]:
        return text[1:-1], True
    return text, False
