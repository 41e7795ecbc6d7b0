"""The JSON form of an action, and how any action ends: the state of one scan. Where it begins: `react_action_scan`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

from closeout.dialects.action_keys import is_final_answer, is_no_action
from closeout.dialects.json_scanner import JsonScanner, Signal
from closeout.dialects.react_action import ActionReading, read_action, read_input
from closeout.dialects.react_events import EventKind, Lane, PlainLane, Tape
from closeout.dialects.react_markers import HOLD, Markers
from closeout.dialects.string_decoder import StringDecoder
from closeout.messages import Repair

__all__ = ["Form", "JsonForm", "Limits", "Outcome"]

Outcome = Literal["", "action", "final", "malformed", "none"]  # "": not yet; "none": it was no action after all
Form = Literal["action", "input", "bare", "native"]

_SPACE = re.compile(r"[ \t\r\ufeff]*+")
_ALL_SPACE = re.compile(r"[\s\ufeff]*+")


class Limits:
    """Bounds of one action: levels of nesting, characters."""

    __slots__ = ("depth", "size")

    def __init__(self, depth: int, size: int) -> None:
        self.depth = depth
        self.size = size


class _JsonLane:
    """The JSON of an action while its scanner has nothing to tell."""

    __slots__ = ("_kept", "_room", "_scan", "kind", "role")

    def __init__(self, kind: EventKind, role: str, scan: Callable[[str], bool], kept: list[str], room: int) -> None:
        self.kind: EventKind = kind
        self.role = role
        self._scan = scan
        self._kept = kept
        self._room = room

    def takes(self, text: str) -> bool:
        if len(text) > self._room or not self._scan(text):
            return False
        self._room -= len(text)
        self._kept.append(text)
        return True


class JsonForm:
    """One action that is being scanned: its JSON, what follows it, and its end."""

    def __init__(self, tape: Tape, markers: Markers, limits: Limits, form: Form, *, bold: bool = False) -> None:
        self.outcome: Outcome = ""
        self.resumes_at_line_start = False  # of a "none": whether only blanks stand before on the line
        self._tape = tape
        self._markers = markers
        self._limits = limits
        self._form: Form = form
        self._stars = 3 if bold else 0
        self._line_start = False  # only blanks since the last newline
        self._name = ""  # of the text form
        self._name_pieces: list[str] = []
        self._repairs: list[Repair] = []
        self._start = -1  # where the action's own text begins
        self._pieces: list[str] = []  # of the text of the JSON or of the input
        self._size = 0
        self._before: list[str] = []  # blanks around the JSON, which are text if it is no action
        self._behind: list[str] = []
        self._scanner = JsonScanner(lenient=form != "bare", max_depth=limits.depth)
        self._seen: tuple[Signal, int] | None = None  # what a scan ahead came to
        self._committed = form != "bare"
        self._told_name = ""
        self._in_input = False
        self._first_of_input = False
        self._decoder: StringDecoder | None = None
        self._opening = ""  # the JSON's first bracket
        self._closer = ""  # what must follow the JSON: a fence, a quote, a parenthesis
        self._fence = ""
        self._read: Callable[[bool], bool] = self._json
        self._at_value = self._read  # where reading goes on before a value of unknown form
        self._read_as_text: Callable[[str], None] | None = None  # for an input that only looked like JSON
        self._final = False  # the action is the final answer, as far as is known
        self._json_start = tape.offset
        if form == "bare":
            self._start = tape.offset

    @property
    def text(self) -> str:
        """What was scanned, for a scan that ends as "none": it is plain text then."""
        return "".join((*self._before, *self._pieces, *self._behind))

    def _mark_start(self) -> None:
        if self._start < 0:
            self._start = self._tape.offset

    def _begin_json(self) -> bool:
        self._mark_start()
        self._opening = self._tape.text[self._tape.position]
        self._json_start = self._tape.offset
        plain = self._form == "input"
        self._scanner = JsonScanner(plain=plain, max_depth=self._limits.depth)
        self._read = self._json
        return True

    def _json(self, last: bool) -> bool:
        tape, text = self._tape, self._tape.text
        allowed = self._limits.size - self._json_size()
        cut = len(text) - tape.position > allowed
        if cut:
            text = text[: tape.position + allowed]
        while True:
            signal, end = self._seen or self._scanner.scan(text, tape.position)
            self._seen = None
            self._consume(end, ended=signal is Signal.INPUT_END)
            if signal is Signal.MORE:
                return self._too_large() if cut else False
            if signal is Signal.NAME:
                self._commit(self._scanner.has_input)
            elif signal is Signal.INPUT:
                self._commit(bool(self._scanner.name))
                self._input_begins()
            elif signal is Signal.DONE:
                return self._json_done(last)
            elif signal is Signal.TOO_DEEP:
                return self._too_deep()
            elif signal is Signal.BROKEN:
                return self._json_broken(last)

    def lane(self) -> Lane | None:
        """Within the JSON; where a string is decoded, up to its end or an escape."""
        if self._read != self._json:
            return None
        kind, role = self._kind()
        room = self._limits.size - self._json_size()
        if self._decoder is None or not self._in_input:
            return _JsonLane(kind, role, self._scan_ahead, self._pieces, room)
        stop = self._scanner.string_ends
        return None if stop is None or self._first_of_input else PlainLane(stop, kind, role, self._pieces, room)

    def _scan_ahead(self, text: str) -> bool:
        """Whether a new piece of text is used up and nothing is to be told; else `_json` goes on from here."""
        signal, end = self._scanner.scan(text, 0)
        if signal is Signal.MORE and end == len(text):
            return True
        self._seen = signal, end
        return False

    def _json_size(self) -> int:
        return self._tape.offset - self._json_start

    def _consume(self, end: int, *, ended: bool) -> None:
        tape = self._tape
        piece = tape.text[tape.position : end]
        if piece:
            self._pieces.append(piece)
        if self._decoder is not None and self._in_input:
            inner = piece
            if self._first_of_input and inner:
                inner, self._first_of_input = inner[1:], False
            text = self._decoder.feed(inner[:-1] if ended else inner)
            if ended:
                text += self._decoder.flush()
            tape.position = end
            tape.take("final_delta", end - len(self._decoder.held), text=text)
        else:
            kind, role = self._kind()
            tape.take(kind, end, role)
        if ended:
            self._in_input = False
            self._decoder = None

    def _kind(self) -> tuple[EventKind, str]:
        if not self._committed:
            return "text", "json"
        if self._form == "input" or self._in_input:
            return ("final_delta" if self._final else "argument_delta"), ""
        return "marker", ""

    def _commit(self, both_keys: bool) -> None:
        """JSON on a line of its own is taken for an action from where it shows both a name and an input key."""
        if not self._committed and both_keys:
            self._committed = self._scanner.lenient = True
        if self._committed and self._scanner.name:
            self._final = is_final_answer(self._scanner.name)
            self._tell_name(self._scanner.name)

    def _tell_name(self, name: str) -> None:
        if not self._told_name and not self._final and not is_no_action(name):
            self._told_name = name
            self._tape.put("action_start", name=name)

    def _input_begins(self) -> None:
        if not self._committed:
            return
        self._in_input = True
        if self._scanner.input_is_string and self._final:
            self._decoder = StringDecoder()
            self._first_of_input = True

    def _json_done(self, last: bool) -> bool:
        if self._form == "bare":
            if not self._committed:
                return self._nothing(at_line_start=False)
            self._read = self._rest_of_line
        elif self._closer:
            self._read = self._closing
        else:
            return self._complete_json()
        return True

    def _json_broken(self, last: bool) -> bool:
        tape, text = self._tape, self._tape.text
        if not self._committed:
            return self._nothing(at_line_start=self._on_fresh_line())
        if self._read_as_text and self._form == "input" and not self._closer and self._opening == "[":
            self._read_as_text("".join(self._pieces))
            return True
        if self._scanner.closable and self._on_fresh_line():
            marker = self._markers.at(text, tape.position, last=last)
            if marker == HOLD:
                return False
            if marker is not None:
                return self._complete_json(closing=True)
        at = self._json_size()
        found = text[tape.position : tape.position + 1]
        return self._malformed("broken_action", f"The Action is not valid JSON: {found!r} at character {at} is wrong.")

    def _on_fresh_line(self) -> bool:
        tail = ""
        for piece in reversed(self._pieces):
            tail = piece + tail
            if "\n" in piece or tail.strip():
                break
        return "\n" in tail and not tail.rpartition("\n")[2].strip()

    def _rest_of_line(self, last: bool) -> bool:
        """Behind JSON that is not marked as an action: it must be alone."""
        tape, text = self._tape, self._tape.text
        end = _SPACE.match(text, tape.position).end()  # type: ignore[union-attr]
        self._behind.append(text[tape.position : end])
        tape.take("text", end, "json")
        if end == len(text):
            return False
        return self._complete_json() if text[end] == "\n" else self._nothing(at_line_start=False)

    def _closing(self, last: bool) -> bool:
        """Behind the JSON: its closing fence, quote or parenthesis."""
        tape, text = self._tape, self._tape.text
        end = _ALL_SPACE.match(text, tape.position).end()  # type: ignore[union-attr]
        tape.take("marker", end)
        rest = text[end : end + len(self._closer)]
        if not rest or (len(rest) < len(self._closer) and self._closer.startswith(rest) and not last):
            return False
        if rest == self._closer:
            tape.take("marker", end + len(self._closer))
            return self._complete_json()
        if self._closer[0] not in "`~":
            return self._malformed("broken_action", f"A closing {self._closer} is missing behind the Action.")
        if rest[0] not in "{[":
            self._repairs.append(Repair("fence_unclosed", "action"))
        return self._complete_json()

    def _complete_json(self, *, closing: bool = False) -> bool:
        raw = "".join(self._pieces)
        if self._form == "input":
            reading = read_input(raw, closing=closing)
            if not reading.code:
                return self._complete(self._name, reading.input, reading, raw, raw)
        else:
            reading = read_action(raw, closing=closing)
        if self._scanner.duplicate and reading.code != "none":
            return self._malformed("duplicate_key", f'The Action holds "{self._scanner.duplicate}" twice.')
        if reading.code == "none":
            return self._nothing(at_line_start=False)
        if reading.code:
            return self._malformed(reading.code, reading.hint)
        return self._complete(reading.name, reading.input, reading, raw, reading.answer or "")

    def _too_large(self) -> bool:
        if not self._committed:
            return self._nothing(at_line_start=False)
        return self._malformed("too_large", f"The Action is longer than {self._limits.size} characters.")

    def _too_deep(self) -> bool:
        if not self._committed:
            return self._nothing(at_line_start=False)
        return self._malformed("too_deep", f"The Action is nested deeper than {self._limits.depth} levels.")

    def _nothing(self, *, at_line_start: bool) -> bool:
        self.outcome = "none"
        self.resumes_at_line_start = at_line_start
        return True

    def _malformed(self, code: str, hint: str) -> bool:
        self.outcome = "malformed"
        span = (self._start if self._start >= 0 else self._tape.offset, self._tape.offset)
        self._tape.put("malformed", code=code, hint=hint, span=span)
        return True

    def _complete(self, name: str, value: Any, reading: ActionReading, raw: str, answer: str) -> bool:
        if not name:
            return self._malformed("broken_action", "A tool's name must stand on the Action line.")
        span = (self._start, self._tape.offset)
        repairs = (*self._repairs, *reading.repairs)
        if is_final_answer(name):
            self.outcome = "final"
            if answer.strip():
                self._tape.put("final", text=answer, role="answer", span=span, repairs=repairs)
            else:
                self._tape.put("malformed", code="empty", hint="The Final Answer was empty. Give it.", span=span)
            return True
        self.outcome = "action"
        self._tell_name(name)
        value = {} if value is None else value
        self._tape.put("action", name=name, input=value, raw=raw, span=span, repairs=repairs)
        return True
