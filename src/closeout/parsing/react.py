"""`CotAgentOutputParser`: read `Thought / Action / Final Answer` text while it streams in.

The parser is pure and knows no tools. It is linear in the text, loses no character, and gives the same events for any
way of cutting the text into pieces. Its rules are in docs/parser.md.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from closeout.messages import FINISHED, Repair
from closeout.parsing.action_keys import (
    NATIVE_TAGS,
    ActionReading,
    is_final_answer,
    is_no_action,
    plain_input,
    read_action,
    read_input,
)
from closeout.parsing.json_stream import JsonScanner, Signal, StringDecoder
from closeout.parsing.reasoning import THINKING_TAGS, CodeQuotes

__all__ = ["CotAgentOutputParser", "CotEvent", "EventKind", "Markers", "joined"]

# Defects that refuse a reply for safety: a call in it was readable and must not run.
REFUSED = frozenset({"truncated", "invented_observation", "duplicate_key", "action_and_answer"})

_MOST_ATTEMPTS = 1000  # candidates of one form in one reply that turn out not to be an action
_LONGEST_NAME = 128
_LONGEST_INFO = 256  # characters of a code fence's info string
_LONGEST_FENCE = 16
_LONGEST_DECORATION = 12

_SPACE = re.compile(r"[ \t\r\ufeff]*+")
_ALL_SPACE = re.compile(r"[\s\ufeff]*+")
_SPACES = frozenset(" \t\r\ufeff\n")
_DECORATION = re.compile(r"[*#][*# \t]*+")
_RUN = {"`": re.compile(r"`*+"), "~": re.compile(r"~*+")}
_TAG_BEGINS = re.compile(r"<(?=[/tTrRsS]|\Z)")
_INFO_ENDS = re.compile(r"[\n{\[]")
_NAME = re.compile(r"[\w.\-/:]+(?: [\w.\-/:]+){0,3}")
_NAME_ENDS = re.compile(r"[\n({]")

_NO_ACTION = "Your reply had only a thought. End it with one Action or with a Final Answer."
_INVENTED = "You wrote an Observation yourself. Write one Action, then stop and wait for its Observation."
_CUT = "Your reply was cut off at the length limit. Write it again and be brief."
_ACTION_CUT = "The Action was cut off at the length limit. Write it again and be brief."
_EMPTY_ANSWER = "The Final Answer was empty. Write the answer after it."
_NAME_ONLY = "The Action line must hold only a tool name, or one JSON object."


# ------------------------------------------------------------------------------------------------ events

EventKind = Literal[
    "text",  # a thought or plain text; role "json": an object that may turn out to be an action
    "reasoning",  # inside reasoning tags; empty with a span: all text in the span turned out to be reasoning
    "marker",  # structure: markers, tags, fences, the JSON around an input
    "action_start",  # the tool name is known
    "argument_delta",  # a piece of the input, as written
    "action",  # the action is complete
    "final_delta",  # a piece of the final answer, decoded
    "final",  # the final answer is complete; role "plain": a candidate, as the reply had no structure
    "malformed",
    "untrusted",  # text after the first complete action, or after an observation that the model wrote
    "end",
]
_STREAMED = frozenset({"text", "reasoning", "marker", "argument_delta", "final_delta", "untrusted"})


class CotEvent(NamedTuple):
    """One event. `[start, end)` counts code points of the raw text; the ranges of all events tile it exactly.

    Events that summarise (action_start, action, final, malformed, end) have an empty range; their `span` says which
    part of the text they are about. `text` is the piece's value: decoded for final_delta, else as written.
    """

    kind: EventKind
    start: int
    end: int
    text: str = ""
    # "thought", "plain", "json" or "answer" for text and final; "bare" or "native" for an action without a marker.
    role: str = ""
    name: str = ""  # the tool of action_start and action
    input: Any = None  # an action's input: any JSON value
    raw: str = ""  # an action's text as written
    span: tuple[int, int] | None = None
    repairs: tuple[Repair, ...] = ()
    code: str = ""  # malformed: the defect; marker: "stop_prefix"; final: "truncated"; end: the finish reason
    hint: str = ""  # malformed: the hint for the model's next try
    refuses: bool = False  # malformed: refused for safety, so that no later stage may run a call from the text


def joined(events: Iterable[CotEvent]) -> list[CotEvent]:
    """Join adjacent pieces of one kind. The result is the same for any way of feeding one text."""
    result: list[CotEvent] = []
    parts: list[str] = []
    for event in events:
        last = result[-1] if result else None
        alike = last is not None and event.kind in _STREAMED and event.span is None and last.span is None
        if last is not None and alike and (last.kind, last.role, last.code) == (event.kind, event.role, event.code):
            parts.append(event.text)
            result[-1] = last._replace(end=event.end)
            continue
        if parts and last is not None:
            result[-1] = last._replace(text="".join(parts))
        result.append(event)
        parts = [event.text]
    if result:
        result[-1] = result[-1]._replace(text="".join(parts))
    return result


class Tape:
    """The text that has no events yet, and the events since the last `drain`.

    `position` and `emitted` are indices into `text`: where reading continues, and up to where events were made.
    """

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.emitted = 0
        self._base = 0  # absolute offset of text[0]
        self._events: list[CotEvent] = []
        self._parts: list[str] = []  # text of the growing event; `_growing` is its kind, role and code
        self._growing: tuple[EventKind, str, str] = ("text", "", "")
        self._start = 0

    def append(self, text: str) -> None:
        self.text = self.text[self.emitted :] + text
        self.position -= self.emitted
        self._base += self.emitted
        self.emitted = 0

    @property
    def offset(self) -> int:
        """The position as an offset into the whole text."""
        return self._base + self.position

    def emit(self, kind: EventKind, end: int, role: str = "", *, text: str | None = None, code: str = "") -> None:
        """Emit the text up to an index as one kind of piece, and move the position there if it is before that."""
        start = self.emitted
        self.position = max(self.position, end)
        if end <= start:
            return
        if self._parts and self._growing != (kind, role, code):
            self._flush()
        if not self._parts:
            self._growing, self._start = (kind, role, code), self._base + start
        self._parts.append(self.text[start:end] if text is None else text)
        self.emitted = end

    def report(self, kind: EventKind, **fields: Any) -> None:
        """Add an event that summarises."""
        self._flush()
        at = self._base + self.emitted
        self._events.append(CotEvent(kind, at, at, **fields))

    def drain(self) -> list[CotEvent]:
        """Return the events since the last call."""
        self._flush()
        events, self._events = self._events, []
        return events

    def _flush(self) -> None:
        if self._parts:
            kind, role, code = self._growing
            text = "".join(self._parts)
            self._events.append(CotEvent(kind, self._start, self._base + self.emitted, text, role, code=code))
            self._parts = []


# ------------------------------------------------------------------------------------------------ markers and tags

MarkerName = Literal["thought", "action", "action_input", "observation", "final_answer"]
_WORDS: Mapping[MarkerName, tuple[str, ...]] = {
    "action_input": ("Action Input", "Action_Input", "ActionInput"),
    "action": ("Action",),
    "thought": ("Thought",),
    "observation": ("Observation",),
    "final_answer": ("Final Answer", "Final_Answer", "FinalAnswer", "Answer"),
}
HOLD: Literal["hold"] = "hold"
_AFTER_WORD = r"[ \t]?#?\d{0,3}[ \t]?\*{0,3}[ \t]?"
_LONGEST_AFTER_WORD = 10


class Marker(NamedTuple):
    """A marker in a text: what it is, where it ends, and whether `*` precedes it (bold type, closed after it)."""

    name: MarkerName
    end: int
    bold: bool


class Tag(NamedTuple):
    """A tag in a text: of reasoning or of a native tool call, opening or closing, and where it ends."""

    thinking: bool
    closing: bool
    end: int


def _any(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


def _beginnings(words: Iterable[str]) -> str:
    """A pattern for each proper prefix of each word."""
    return f"(?:{_any({word[:size] for word in words for size in range(1, len(word))})})"


class Markers:
    """The words that structure a ReAct text.

    Args:
        translations: Words in addition to the English ones, for example `{"thought": ["思考"]}`.

    Raises:
        ValueError: A key of `translations` is not a marker.
    """

    def __init__(self, translations: Mapping[str, Sequence[str]] | None = None) -> None:
        added = dict(translations or {})
        if unknown := sorted(set(added) - set(_WORDS)):
            raise ValueError(f"no markers are called {unknown}. Use {', '.join(sorted(_WORDS))}.")
        words = {name: (*own, *added.get(name, ())) for name, own in _WORDS.items()}
        patterns = "|".join(f"(?P<{name}>{_any(of_name)})" for name, of_name in words.items())
        everything = [word for of_name in words.values() for word in of_name]
        observation, inline = words["observation"], (*words["observation"], *words["action_input"])
        self._marker = re.compile(rf"(?:{patterns}){_AFTER_WORD}[:：]", re.IGNORECASE)
        self._part = re.compile(rf"{_beginnings(everything)}|(?:{_any(everything)}){_AFTER_WORD}", re.IGNORECASE)
        self._longest = max(map(len, everything)) + _LONGEST_AFTER_WORD
        self.first = "".join(sorted({letter for word in everything for letter in word[0].lower() + word[0].upper()}))
        self.stop_words = tuple(f"{word}:" for word in observation)
        self.added_stop_words = tuple(f"{word}{colon}" for word in added.get("observation", ()) for colon in "：:")
        # Markers that count within a line, and their beginnings at a text's end: on the Action line and in its input.
        self.in_name = re.compile(
            rf"[ \t](?:(?P<input>{_any(words['action_input'])})|(?:{_any(observation)})){_AFTER_WORD}[:：]",
            re.IGNORECASE,
        )
        self.in_name_part = re.compile(
            rf"[ \t](?:(?:{_any(inline)}){_AFTER_WORD}|{_beginnings(inline)})?\Z", re.IGNORECASE
        )
        self.in_input = re.compile(rf"[ \t](?:{_any(observation)})[ \t]?\d{{0,3}}[ \t]?[:：]", re.IGNORECASE)
        self.in_input_part = re.compile(
            rf"[ \t](?:(?:{_any(observation)})[ \t]?\d{{0,3}}[ \t]?|{_beginnings(observation)})?\Z", re.IGNORECASE
        )

    def at(self, text: str, start: int, *, last: bool) -> Marker | Literal["hold"] | None:
        """The marker at a line's first letter; HOLD if more text must decide. `last`: there is no more."""
        decoration = _DECORATION.match(text, start) if text[start : start + 1] in ("*", "#") else None
        word = decoration.end() if decoration else start
        if word - start > _LONGEST_DECORATION:
            return None
        found = self._marker.match(text, word)
        if found is not None:
            name: MarkerName = found.lastgroup  # type: ignore[assignment]
            return Marker(name, found.end(), "*" in text[start:word])
        if last or len(text) - word > self._longest:
            return None
        return HOLD if word == len(text) or self._part.fullmatch(text, word) else None

    def is_stop_prefix(self, line: str) -> bool:
        """True if a last line is a proper prefix of a stop marker: `Observ`."""
        return bool(line) and any(len(line) < len(word) and word.startswith(line) for word in self.stop_words)


@lru_cache(maxsize=1)
def _english_markers() -> Markers:
    return Markers()


_TAG_NAMES = (*THINKING_TAGS, *NATIVE_TAGS)
_TAG = re.compile(
    rf"<(?P<closing>/?)(?:(?P<thinking>{_any(THINKING_TAGS)})|(?:{_any(NATIVE_TAGS)}))\s?>", re.IGNORECASE
)
_TAG_PART = re.compile(rf"</?(?:{_beginnings(_TAG_NAMES)}|(?:{_any(_TAG_NAMES)})\s?)?", re.IGNORECASE)
_LONGEST_TAG = max(map(len, _TAG_NAMES)) + 4


def _tag_at(text: str, start: int, *, last: bool) -> Tag | Literal["hold"] | None:
    """The tag that begins at a `<`; HOLD if more text must decide."""
    found = _TAG.match(text, start)
    if found is not None:
        return Tag(found["thinking"] is not None, found["closing"] == "/", found.end())
    if last or len(text) - start > _LONGEST_TAG:
        return None
    return HOLD if _TAG_PART.fullmatch(text, start) else None


# ------------------------------------------------------------------------------------------------ lines of text


class ReadingStop(Enum):
    """Why a walk stopped before a structure."""

    MORE = auto()  # the rest of the text is used up or held back
    MARKER = auto()
    TAG = auto()
    BRACKET = auto()  # a `{` or `[` at a line's start
    OBSERVATION = auto()  # `Observation:` within the first line


class Place(Enum):
    """The place of a walk within its lines."""

    AFTER_MARKER = auto()  # blanks and closing stars belong to the marker
    LINE_START = auto()  # only blanks since the line began
    IN_LINE = auto()
    FIRST_LINE = auto()  # an input's first line, where an inline `Observation:` ends it
    FENCE_INFO = auto()  # a fence's opening line
    FENCE_LINE_START = auto()
    IN_FENCE_LINE = auto()


class LineWalker:
    """Walk over text of one kind and emit it, up to the next possible structure. Knows lines, code fences and tags.

    `brackets`: stop at JSON at a line's start. `tags`: they count anywhere, at a line's start, or never. The text is
    collected in `kept`.
    """

    def __init__(
        self,
        tape: Tape,
        markers: Markers,
        *,
        kind: EventKind,
        kept: list[str],
        role: str = "",
        brackets: bool = False,
        tags: Literal["anywhere", "line", "never"] = "anywhere",
        place: Place = Place.LINE_START,
    ) -> None:
        self.role = role
        self.brackets = brackets
        self.place = place
        self.marker: Marker | None = None  # set at ReadingStop.MARKER
        self.tag: Tag | None = None  # set at ReadingStop.TAG
        self._tape = tape
        self._markers = markers
        self._kind: EventKind = kind
        self._tags = tags
        self._kept = kept
        self._walked = len(kept)  # pieces that `_code` has seen
        self._code = CodeQuotes()
        self._marks = True  # markers count at this line's start: not directly after another marker
        self._newline_seen = False
        self._fence = ""  # the characters of the open fence
        self._decorated = False  # this line began with more `*` and `#` than a marker has
        self._block_quote = False  # the line begins with `>`
        self._stars = 0  # `*` that may close the bold type of a marker
        self._next = _next_pattern(markers.first, tags == "anywhere")

    def after_marker(self, marker: Marker) -> None:
        """Continue after a marker."""
        self._tape.emit("marker", marker.end)
        self.place = Place.AFTER_MARKER
        self._stars = 3 if marker.bold else 0
        self._marks, self._fence, self._decorated = False, "", False

    def at_line_start(self) -> None:
        """Continue as if a line began here."""
        self.place = Place.LINE_START
        self._marks, self._newline_seen, self._decorated = True, True, False

    def pass_over(self, end: int) -> None:
        """Treat the structure at which the walk stopped as text."""
        self.place = Place.IN_LINE
        self._tape.position = end
        self._emit()

    def walk(self, *, last: bool) -> ReadingStop:
        """Emit text up to the next structure. `last`: there is no more text."""
        tape = self._tape
        if last and self._is_stop_prefix():
            tape.emit("marker", len(tape.text), code="stop_prefix")
            return ReadingStop.MORE
        stop = None
        while stop is None and tape.position < len(tape.text):
            stop = _WALKS[self.place](self, last)
        self._emit()
        return stop or ReadingStop.MORE

    def _is_stop_prefix(self) -> bool:
        """True if the last line is the beginning of a stop marker: the server cut off the rest."""
        on_line = self.place is Place.LINE_START and self._marks and self._newline_seen
        return on_line and self._markers.is_stop_prefix(self._tape.text[self._tape.position :])

    def _emit(self) -> None:
        tape = self._tape
        if tape.position > tape.emitted:
            text = tape.text[tape.emitted : tape.position]
            self._kept.append(text)
            tape.emit(self._kind, tape.position, self.role, text=text)

    def _after_marker(self, last: bool) -> None:
        text, at = self._tape.text, self._tape.position
        while self._stars and at < len(text) and text[at] == "*":
            self._stars -= 1
            at += 1
        if at < len(text):
            self._stars = 0
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            self.place = Place.LINE_START if at < len(text) else self.place
        self._tape.emit("marker", at)

    def _line_start(self, last: bool) -> ReadingStop | None:
        tape, text = self._tape, self._tape.text
        at = tape.position
        while (first := text[at]) in _SPACES:
            if first == "\n":
                self._marks = self._newline_seen = True
                self._decorated = False
                at += 1
            else:
                at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            tape.position = at
            if at == len(text):
                return None
        self._block_quote = first == ">"
        if first in "`~":
            return self._opening_fence(at, last)
        if first == "<" and self._tags != "never":
            return self._at_tag(at, last)
        if self._marks and first in "{[" and self.brackets:
            return ReadingStop.BRACKET
        if self._marks and (first in "*#" or first in self._markers.first):
            return self._at_marker(at, last)
        self.place = Place.IN_LINE
        return None

    def _at_marker(self, at: int, last: bool) -> ReadingStop | None:
        text = self._tape.text
        decoration = _DECORATION.match(text, at) if text[at] in "*#" else None
        if decoration is not None and (self._decorated or decoration.end() - at > _LONGEST_DECORATION):
            self._decorated = True
            self._tape.position = decoration.end()
            return None
        found = self._markers.at(text, at, last=last)
        if found == HOLD:
            return ReadingStop.MORE
        if found is None:
            self.place = Place.IN_LINE
            return None
        self.marker = found
        return ReadingStop.MARKER

    def _at_tag(self, at: int, last: bool) -> ReadingStop | None:
        found = _tag_at(self._tape.text, at, last=last)
        if found == HOLD:
            return ReadingStop.MORE
        quoted: bool | None = True
        if found is not None:
            self._tape.position = at
            quoted = self._is_quoted(found, last)
        if quoted is None:
            return ReadingStop.MORE
        if quoted:
            self.place = Place.IN_LINE
            self._tape.position = found.end if found is not None else at + 1
            return None
        self.tag = found
        return ReadingStop.TAG

    def _is_quoted(self, tag: Tag, last: bool) -> bool | None:
        """True if a tag is in a code span: `<think>`, directly after a backtick, or in a block quote: `<tool_call>`."""
        self._emit()
        line = "".join(self._kept[self._walked :])
        self._code.walk(line, 0, len(line), fences=False)
        self._walked = len(self._kept)
        if not tag.thinking:
            return self._block_quote or (bool(self._kept) and self._kept[-1][-1:] == "`")
        return self._code.quotes_so_far(self._tape.text, tag.end, closing=tag.closing, last=last)

    def _in_line(self, last: bool) -> ReadingStop | None:
        """Go to the next line that may begin with structure, or to a tag."""
        tape = self._tape
        found = self._next.search(tape.text, tape.position)
        end = found.start() if found else len(tape.text)
        if self._block_quote and tape.text.find("\n", tape.position, end) >= 0:
            self._block_quote = False
        tape.position = end
        if found is None:
            return None
        if tape.text[found.start()] == "<":
            return self._at_tag(found.start(), last)
        tape.position += 1
        self.at_line_start()
        return None

    def _first_line(self, last: bool) -> ReadingStop | None:
        text, at = self._tape.text, self._tape.position
        end = text.find("\n", at)
        found = self._markers.in_input.search(text, at, len(text) if end < 0 else end)
        if found is not None:
            self._tape.position = found.start()
            return ReadingStop.OBSERVATION
        if end >= 0:
            self._tape.position = end + 1
            self.at_line_start()
            return None
        part = None if last else self._markers.in_input_part.search(text, max(at, len(text) - 64))
        self._tape.position = part.start() if part else len(text)
        return ReadingStop.MORE if part else None

    def _opening_fence(self, at: int, last: bool) -> ReadingStop | None:
        text = self._tape.text
        end = _RUN[text[at]].match(text, at).end()  # type: ignore[union-attr]
        if end == len(text) and end - at <= _LONGEST_FENCE and not last:
            return ReadingStop.MORE
        self.place = Place.IN_LINE
        if end - at >= 3:
            self._tape.position = end
        if 3 <= end - at <= _LONGEST_FENCE:
            self._fence, self.place = text[at:end], Place.FENCE_INFO
        return None

    def _fence_info(self, last: bool) -> ReadingStop | None:
        """Read the fence's opening line, on which it may also be closed."""
        tape, text = self._tape, self._tape.text
        newline = text.find("\n", tape.position)
        closed = text.find(self._fence, tape.position, len(text) if newline < 0 else newline)
        if closed >= 0:
            tape.position = closed + len(self._fence)
            self._fence, self.place = "", Place.IN_LINE
        elif newline >= 0:
            tape.position = newline + 1
            self.place = Place.FENCE_LINE_START
        else:
            line = text[tape.position :]
            held = 0 if last else len(line) - len(line.rstrip(self._fence[0]))
            tape.position = len(text) - held
            return ReadingStop.MORE if held else None
        return None

    def _fence_line_start(self, last: bool) -> ReadingStop | None:
        tape, text = self._tape, self._tape.text
        _, closing, part = _fence_patterns(self._fence)
        at = tape.position = _SPACE.match(text, tape.position).end()  # type: ignore[union-attr]
        if at == len(text):
            return None
        closed = closing.match(text, at)
        if closed is not None and (closed.end() < len(text) or last):
            tape.position = closed.end()
            self._fence, self.place = "", Place.IN_LINE
        elif part.fullmatch(text, at) and len(text) - at <= 64 and not last:
            return ReadingStop.MORE
        elif text[at] == "\n":
            tape.position = at + 1
        else:
            self.place = Place.IN_FENCE_LINE
        return None

    def _in_fence_line(self, last: bool) -> None:
        tape = self._tape
        found = _fence_patterns(self._fence)[0].search(tape.text, tape.position)
        tape.position = found.end() if found else len(tape.text)
        self.place = Place.FENCE_LINE_START if found else self.place


_WALKS: Mapping[Place, Callable[[LineWalker, bool], ReadingStop | None]] = {
    Place.AFTER_MARKER: LineWalker._after_marker,
    Place.LINE_START: LineWalker._line_start,
    Place.IN_LINE: LineWalker._in_line,
    Place.FIRST_LINE: LineWalker._first_line,
    Place.FENCE_INFO: LineWalker._fence_info,
    Place.FENCE_LINE_START: LineWalker._fence_line_start,
    Place.IN_FENCE_LINE: LineWalker._in_fence_line,
}


@lru_cache(maxsize=64)
def _next_pattern(first: str, tags: bool) -> re.Pattern[str]:
    """A newline before a line that may begin with structure, or the beginning of a tag."""
    line = rf"\n(?=[ \t\r\ufeff]*+(?:[{re.escape(first)}*#`~{{\[<>]|\Z))"
    return re.compile(rf"{line}|<(?=[/tTrRsSfF]|\Z)" if tags else line)


@lru_cache(maxsize=64)
def _fence_patterns(fence: str) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Patterns for a newline before a line that may close a fence, a closing line, and the beginning of one."""
    character, size = re.escape(fence[0]), len(fence)
    return (
        re.compile(rf"\n(?=[ \t\r\ufeff]*+(?:{character}|\Z))"),
        re.compile(rf"{character}{{{size},32}}+[ \t\r]{{0,4}}+(?=\n|\Z)"),
        re.compile(rf"{character}{{1,32}}+[ \t\r]{{0,4}}+"),
    )


@lru_cache(maxsize=32)
def _closing_fence(fence: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns for the closing fence of an input and for its possible beginning at a text's end."""
    character, size = re.escape(fence[0]), len(fence)
    line = rf"\n[ \t]{{0,3}}{character}"
    return re.compile(f"{line}{{{size}}}"), re.compile(rf"\n(?:[ \t]{{0,3}}{character}{{0,{size - 1}}})?\Z")


# ------------------------------------------------------------------------------------------------ the parser


class State(Enum):
    """The part of a reply that the parser is reading."""

    TEXT = auto()  # thoughts and plain text
    ANSWER = auto()  # the text after `Final Answer:`
    REASONING = auto()  # text inside reasoning tags
    UNTRUSTED = auto()  # the text after an action, an answer or a defect
    # The stages of an action, from its marker, tag or bracket to its end:
    VALUE = auto()  # blanks before a JSON value, a fence or a name
    FENCE_INFO = auto()  # the opening line of a fence around the value
    JSON = auto()
    REST_OF_LINE = auto()  # the line after JSON without a marker, which must be alone on its line
    CLOSER = auto()  # blanks before the fence, quote or parenthesis that closes the value
    NAME = auto()  # a tool name on the Action line
    CALL = auto()  # the text after `name(`
    INPUT_MARKER = auto()  # the lines after the name's line
    INPUT_TEXT = auto()  # an input that is free text
    INPUT_FENCE = auto()  # an input in a fence that is not JSON


_IN_REPLY = frozenset({State.TEXT, State.ANSWER, State.REASONING, State.UNTRUSTED})
Form = Literal["action", "input", "bare", "native"]


@dataclass(slots=True)
class _Action:
    """The action that is being read."""

    form: Form  # follows `Action:`, `Action Input:`, a line break (JSON on its own line), or `<tool_call>`
    committed: bool = True  # False: it may yet turn out to be text
    start: int = -1  # the offset of the action's own text
    stars: int = 0  # `*` that may close the bold type of its marker
    line_start: bool = False  # only blanks since the last newline
    size: int = 0  # characters of the name, or of a fence's info string
    name: str = ""  # the name in the text form
    name_pieces: list[str] = field(default_factory=list)
    announced: bool = False  # an action_start event was made
    final: bool = False  # the action is the final answer, as far as it is read
    fence: str = ""
    closer: str = ""  # the text that must follow the JSON: a fence, a quote, a parenthesis
    scanner: JsonScanner = field(default_factory=JsonScanner)
    json_start: int = 0
    opening: str = ""  # the JSON's first bracket
    pieces: list[str] = field(default_factory=list)  # the JSON or the input, in pieces
    raw: list[str] = field(default_factory=list)  # the text, in case this is not an action
    in_input: bool = False
    first_of_input: bool = False  # the next character is the quote that opens the input
    decoder: StringDecoder | None = None
    repairs: list[Repair] = field(default_factory=list)
    walker: LineWalker | None = None  # walks over an input that is free text

    @property
    def kind(self) -> tuple[EventKind, str]:
        """The kind and role of its JSON's events."""
        if not self.committed:
            return "text", "json"
        if self.form == "input" or self.in_input:
            return self.input_kind, ""
        return "marker", ""

    @property
    def input_kind(self) -> EventKind:
        return "final_delta" if self.final else "argument_delta"

    @property
    def on_fresh_line(self) -> bool:
        """True if only blanks were read since the last newline, in the JSON."""
        tail = ""
        for piece in reversed(self.pieces):
            tail = piece + tail
            if "\n" in piece or tail.strip():
                break
        return "\n" in tail and not tail.rpartition("\n")[2].strip()


class CotAgentOutputParser:
    """A streaming parser of one reply.

    Args:
        markers: Translations of the markers, for example `{"thought": ["思考"]}`, or the `Markers` made of them.
        reasoning_open: The prompt ended with an open reasoning tag, so the reply begins inside it.
        thought_open: The prompt ended in `Thought:`, so the reply begins inside a thought.
        max_depth: Levels of nesting in one action; a deeper one is malformed.
        max_size: Characters of one action; a longer one is malformed.

    Raises:
        ValueError: A key of `markers` is not a marker.
    """

    def __init__(
        self,
        markers: Mapping[str, Sequence[str]] | Markers | None = None,
        *,
        reasoning_open: bool = False,
        thought_open: bool = False,
        max_depth: int = 100,
        max_size: int = 16_000_000,
    ) -> None:
        if not isinstance(markers, Markers):
            markers = Markers(markers) if markers else _english_markers()
        self._markers = markers
        self._max_depth = max_depth
        self._max_size = max_size
        self._tape = Tape()
        self._state = State.REASONING if reasoning_open else State.TEXT
        self._structured = False  # a marker was seen, so plain text is not a candidate answer
        self._closed = False
        self._plain: list[str] = []  # the answer, if no structure follows
        self._text = self._new_text_walker()
        self._text.role = "thought" if thought_open else "plain"
        self._answer: LineWalker | None = None
        self._answer_text: list[str] = []
        self._answer_start = 0
        self._depth = 1 if reasoning_open else 0  # open reasoning tags
        self._code = CodeQuotes()  # quotes in the current reasoning
        self._reasoned: list[str] = []  # pieces of reasoning that `_code` has not seen
        self._action = _Action("action")
        self._attempts: Counter[Form] = Counter()
        self._no_action = False  # the last marker was an Action without a tool name

    @property
    def complete(self) -> bool:
        """True if the outcome is certain: any further text would be untrusted."""
        return self._state is State.UNTRUSTED

    def feed(self, text: str) -> list[CotEvent]:
        """Read more text and return the events that are now certain. Raises ValueError after `close`."""
        if not text:
            return []
        if self._closed:
            raise ValueError("The parser is closed. Make a new one for each reply.")
        self._tape.append(text)
        self._advance(last=False)
        return self._tape.drain()

    def close(self, finish_reason: str | None = "stop") -> list[CotEvent]:
        """End the text and return the remaining events.

        Args:
            finish_reason: The server's finish reason. Nothing is completed in an unfinished reply.
        """
        if self._closed:
            return []
        self._closed = True
        # A cancelled reply may be incomplete, too.
        truncated = finish_reason is not None and (finish_reason == "cut" or finish_reason not in FINISHED)
        self._advance(last=True, truncated=truncated)
        if self._state is not State.UNTRUSTED:
            self._conclude(truncated)
        self._tape.report("end", code=finish_reason or "")
        return self._tape.drain()

    def _advance(self, *, last: bool, truncated: bool = False) -> None:
        """Run the states. Each returns False once it needs more text."""
        while True:
            while _STATES[self._state](self, last):
                pass
            if not last or self._state in _IN_REPLY:
                return
            self._end_action(truncated)

    # -------------------------------------------------------------------------------------------- text and answers

    def _new_text_walker(self) -> LineWalker:
        return LineWalker(self._tape, self._markers, kind="text", role="plain", brackets=True, kept=self._plain)

    def _read_text(self, last: bool) -> bool:
        walker = self._text
        stop = walker.walk(last=last)
        if stop is ReadingStop.BRACKET:
            self._begin_action("bare")
        elif stop is ReadingStop.TAG and walker.tag is not None:
            self._meet_tag(walker.tag)
        elif stop is ReadingStop.MARKER and walker.marker is not None:
            self._meet_marker(walker.marker)
        return stop is not ReadingStop.MORE

    def _meet_marker(self, marker: Marker) -> None:
        self._structured = True
        if marker.name != "action_input":
            self._no_action = False
        if marker.name == "thought":
            self._text.role = "thought"
            self._text.after_marker(marker)
        elif marker.name == "final_answer":
            self._answer_text = []
            self._answer = LineWalker(
                self._tape, self._markers, kind="final_delta", tags="line", kept=self._answer_text
            )
            self._answer_start = self._tape.offset
            self._answer.after_marker(marker)
            self._state = State.ANSWER
        elif marker.name == "observation":
            self._reject("invented_observation", _INVENTED)
        elif marker.name == "action":
            self._tape.emit("marker", marker.end)
            self._begin_action("action", bold=marker.bold)
        elif self._no_action:  # the input of an action without a tool name
            self._text.after_marker(marker)
        else:
            self._tape.emit("marker", marker.end)
            self._reject("broken_action", "Write an Action line with a tool name before the Action Input.")

    def _meet_tag(self, tag: Tag) -> None:
        tape = self._tape
        if tag.thinking:
            self._meet_thinking_tag(tag)
        elif tag.closing:
            self._text.pass_over(tag.end)
        else:
            self._plain.append(tape.text[tape.position : tag.end])  # text if no object follows
            tape.emit("marker", tag.end)
            self._begin_action("native")

    def _meet_thinking_tag(self, tag: Tag) -> None:
        tape = self._tape
        tape.emit("reasoning", tag.end, text="")
        if not tag.closing:
            self._depth = 1
            self._state = State.REASONING
            return
        # The prompt opened it: everything before the tag was reasoning.
        tape.report("reasoning", span=(0, tape.offset))
        self._plain.clear()
        self._structured = False
        self._answer = None
        self._text = self._new_text_walker()
        self._text.at_line_start()
        self._state = State.TEXT

    def _read_reasoning(self, last: bool) -> bool:
        """Read inside reasoning tags, which may be nested. Tags in backticks are text there as well."""
        tape = self._tape
        while True:
            found = _TAG_BEGINS.search(tape.text, tape.position)
            self._reason(found.start() if found else len(tape.text))
            if found is None:
                return False
            tag = _tag_at(tape.text, found.start(), last=last)
            if tag == HOLD:
                return False
            if tag is None or not tag.thinking:
                self._reason(found.start() + 1)
                continue
            before = "".join(self._reasoned)
            self._reasoned.clear()
            self._code.walk(before, 0, len(before), fences=False)
            quoted = self._code.quotes_so_far(tape.text, tag.end, closing=tag.closing, last=last)
            if quoted is None:
                return False
            if quoted:
                self._reason(tag.end)
                continue
            self._depth += -1 if tag.closing else 1
            tape.emit("reasoning", tag.end, text=None if self._depth else "")
            if not self._depth:
                self._code = CodeQuotes()
                (self._answer or self._text).at_line_start()
                self._state = State.ANSWER if self._answer else State.TEXT
                return tape.position < len(tape.text)

    def _reason(self, end: int) -> None:
        self._reasoned.append(self._tape.text[self._tape.position : end])
        self._tape.emit("reasoning", end)

    def _read_answer(self, last: bool) -> bool:
        """Stream the final answer. A thought or an observation after it ends it."""
        answer = self._answer
        assert answer is not None
        stop = answer.walk(last=last)
        if stop is ReadingStop.TAG and answer.tag is not None:
            if answer.tag.thinking:
                self._meet_thinking_tag(answer.tag)
            else:
                answer.pass_over(answer.tag.end)
        elif stop is ReadingStop.MARKER and answer.marker is not None:
            if answer.marker.name in ("thought", "observation"):
                self._finish_answer(truncated=False)
            else:
                answer.pass_over(answer.marker.end)
        return stop is not ReadingStop.MORE

    def _finish_answer(self, *, truncated: bool) -> None:
        text = "".join(self._answer_text).strip()
        span = (self._answer_start, self._tape.offset)
        if text:
            self._tape.report("final", text=text, role="answer", span=span, code="truncated" if truncated else "")
            self._state = State.UNTRUSTED
        elif truncated:
            self._reject("truncated", _CUT)
        else:
            self._reject("empty", _EMPTY_ANSWER)

    def _conclude(self, truncated: bool) -> None:
        """Report the outcome of a text that ended without an action."""
        if self._answer is not None:
            self._finish_answer(truncated=truncated)
            return
        text = "".join(self._plain).strip()
        if truncated and (self._structured or not text):
            self._reject("truncated", _CUT)
        elif self._structured:
            self._reject("no_action", _NO_ACTION)
        elif not text:
            self._reject("empty", "Your reply was empty. Write a Thought, then an Action or a Final Answer.")
        else:
            code, span = "truncated" if truncated else "", (0, self._tape.offset)
            self._tape.report("final", text=text, role="plain", span=span, code=code)
            self._state = State.UNTRUSTED

    def _read_untrusted(self, last: bool) -> bool:
        self._tape.emit("untrusted", len(self._tape.text))
        return False

    def _reject(self, code: str, hint: str, *, start: int = -1, refuses: bool = False) -> bool:
        """Report a defect. Nothing after it is trusted."""
        span = (start if start >= 0 else self._tape.offset, self._tape.offset)
        self._tape.report("malformed", code=code, hint=hint, span=span, refuses=refuses or code in REFUSED)
        self._state = State.UNTRUSTED
        return True

    # -------------------------------------------------------------------------------------------- an action begins

    def _begin_action(self, form: Form, *, bold: bool = False) -> None:
        self._no_action = form == "action"  # Matters only if no tool name follows.
        self._attempts[form] += 1
        if self._attempts[form] > _MOST_ATTEMPTS:
            if form == "bare":
                self._text.brackets = False
            elif form == "action":
                self._reject("too_many_actions", f"Your reply had more than {_MOST_ATTEMPTS} Actions. Write one.")
            return
        self._action = _Action(form, committed=form != "bare", stars=3 if bold else 0)
        self._state = State.VALUE
        if form == "bare":
            self._begin_json()

    def _read_value(self, last: bool) -> bool:
        """Choose the next state after `Action:`, `Action Input:`, a native tag or a fence's opening line."""
        action, tape, text = self._action, self._tape, self._tape.text
        self._skip_blanks()
        if tape.position == len(text):
            return False
        first = text[tape.position]
        if not action.fence and (action.line_start or action.form == "action"):
            marker = self._markers.at(text, tape.position, last=last)
            if marker == HOLD:
                return False
            if marker is not None:
                return self._complete_text("") if action.form == "input" else self._not_an_action(at_line_start=True)
        is_object = first in "{[" or (first == "｛" and action.form != "input")
        if is_object or (first in "/#" and action.fence and action.form != "input"):  # a comment may precede it
            return self._begin_json()
        if first in "`~" and not action.fence:
            return self._open_fence(last)
        return self._read_other_value(first, last)

    def _read_other_value(self, first: str, last: bool) -> bool:
        action, tape, text = self._action, self._tape, self._tape.text
        if action.form == "input":
            self._mark_start()
            if action.fence:
                self._state = State.INPUT_FENCE
                return True
            return self._begin_input_text()
        if action.fence:
            return self._reject_action("broken_action", "The Action must be one JSON object with the tool name.")
        if action.form == "native":
            return self._not_an_action()
        if first == "<":
            tag = _tag_at(text, tape.position, last=last)
            if tag == HOLD:
                return False
            if tag is not None and not tag.thinking and not tag.closing:
                tape.emit("marker", tag.end)
                return True
        if first in "\"'`":
            if tape.position + 1 == len(text) and not last:
                return False
            if text[tape.position + 1 : tape.position + 2] in ("{", "["):
                action.closer = first
                action.repairs.append(Repair("outer_quotes", "action", first))
                tape.emit("marker", tape.position + 1)
                return self._begin_json()
        self._mark_start()
        self._state = State.NAME
        return True

    def _skip_blanks(self) -> None:
        action, tape, text = self._action, self._tape, self._tape.text
        at = tape.position
        while at < len(text):
            if action.stars and text[at] == "*":
                action.stars -= 1
                at += 1
                continue
            action.stars = 0
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if at == len(text) or text[at] != "\n":
                break
            action.line_start = True
            at += 1
        action.raw.append(text[tape.position : at])
        tape.emit("marker", at)

    def _mark_start(self) -> None:
        if self._action.start < 0:
            self._action.start = self._tape.offset

    def _open_fence(self, last: bool) -> bool:
        tape, text = self._tape, self._tape.text
        at = tape.position
        end = _RUN[text[at]].match(text, at).end()  # type: ignore[union-attr]
        if end == len(text) and end - at <= _LONGEST_FENCE and not last:
            return False
        if not 3 <= end - at <= _LONGEST_FENCE:
            return self._read_other_value(text[at], last)
        self._mark_start()
        self._action.fence = self._action.closer = text[at:end]
        tape.emit("marker", end)
        self._state = State.FENCE_INFO
        return True

    def _read_fence_info(self, last: bool) -> bool:
        """Read the rest of a fence's opening line: an info string, or the object itself."""
        action, tape, text = self._action, self._tape, self._tape.text
        end = tape.position + _LONGEST_INFO - action.size
        found = _INFO_ENDS.search(text, tape.position, end)
        if found is None:
            action.size += min(len(text), end) - tape.position
            tape.emit("marker", min(len(text), end))
            if action.size >= _LONGEST_INFO:
                return self._reject_action("broken_action", "The Action's code fence holds no JSON object.")
            return False
        action.size = 0
        tape.emit("marker", found.start())
        self._state = State.VALUE
        return True

    # -------------------------------------------------------------------------------------------- the JSON form

    def _begin_json(self) -> bool:
        action = self._action
        self._mark_start()
        action.opening = self._tape.text[self._tape.position]
        action.json_start = self._tape.offset
        action.scanner = JsonScanner(lenient=action.committed, plain=action.form == "input", max_depth=self._max_depth)
        self._state = State.JSON
        return True

    def _read_json(self, last: bool) -> bool:
        action, tape, text = self._action, self._tape, self._tape.text
        allowed = self._max_size - (tape.offset - action.json_start)
        too_large = len(text) - tape.position > allowed
        if too_large:
            text = text[: tape.position + allowed]
        while True:
            signal, end = action.scanner.scan(text, tape.position)
            self._consume_json(end, ended=signal is Signal.INPUT_END)
            if signal is Signal.NAME:
                self._commit(action.scanner.has_input)
            elif signal is Signal.INPUT:
                self._commit(bool(action.scanner.name))
                self._begin_input()
            elif signal is Signal.DONE:
                return self._end_json()
            elif signal is Signal.BROKEN:
                return self._reject_json(last)
            elif signal is Signal.TOO_DEEP:
                return self._exceed("too_deep", f"The Action is nested deeper than {self._max_depth} levels.")
            elif signal is Signal.MORE and too_large:
                return self._exceed("too_large", f"The Action is longer than {self._max_size} characters.")
            elif signal is Signal.MORE:
                return False

    def _consume_json(self, end: int, *, ended: bool) -> None:
        """Emit JSON up to an index; `ended`: the input's value ends there."""
        action, tape = self._action, self._tape
        piece = tape.text[tape.position : end]
        if piece:
            action.pieces.append(piece)
            action.raw.append(piece)
        if action.decoder is not None and action.in_input:
            inner = piece
            if action.first_of_input and inner:
                inner, action.first_of_input = inner[1:], False
            text = action.decoder.feed(inner[:-1] if ended else inner)
            if ended:
                text += action.decoder.flush()
            tape.position = end
            tape.emit("final_delta", end - len(action.decoder.held), text=text)
        else:
            kind, role = action.kind
            tape.emit(kind, end, role)
        if ended:
            action.in_input, action.decoder = False, None

    def _commit(self, both_keys: bool) -> None:
        """Commit to an action. JSON on a line of its own is one once it has both a name and an input key."""
        action = self._action
        if not action.committed and both_keys:
            action.committed = action.scanner.lenient = True
        if action.committed and action.scanner.name:
            action.final = is_final_answer(action.scanner.name)
            self._announce(action.scanner.name)

    def _announce(self, name: str) -> None:
        if not self._action.announced and not self._action.final and not is_no_action(name):
            self._action.announced = True
            self._tape.report("action_start", name=name)

    def _begin_input(self) -> None:
        action = self._action
        if action.committed:
            action.in_input = True
            if action.scanner.input_is_string and action.final:
                action.decoder = StringDecoder()
                action.first_of_input = True

    def _end_json(self) -> bool:
        action = self._action
        if action.form == "bare" and not action.committed:
            return self._not_an_action()
        if action.form != "bare" and not action.closer:
            return self._complete_json()
        self._state = State.REST_OF_LINE if action.form == "bare" else State.CLOSER
        return True

    def _reject_json(self, last: bool) -> bool:
        """Handle an invalid character: this is text, or a malformed action."""
        action, tape, text = self._action, self._tape, self._tape.text
        if not action.committed:
            return self._not_an_action(at_line_start=action.on_fresh_line)
        if action.form == "input" and not action.closer and action.opening == "[":
            return self._begin_input_text("".join(action.pieces))
        if action.scanner.closable and action.on_fresh_line:
            marker = self._markers.at(text, tape.position, last=last)
            if marker == HOLD:
                return False
            if marker is not None:
                return self._complete_json(closing=True)
        found, at = text[tape.position : tape.position + 1], tape.offset - action.json_start
        hint = f"The Action is not valid JSON: {found!r} at character {at} is wrong."
        return self._reject_action("broken_action", hint, refuses=action.scanner.not_finite)

    def _exceed(self, code: str, hint: str) -> bool:
        return self._reject_action(code, hint) if self._action.committed else self._not_an_action()

    def _read_rest_of_line(self, last: bool) -> bool:
        """Read the rest of the line after JSON without a marker, which must be alone on its line."""
        action, tape, text = self._action, self._tape, self._tape.text
        end = _SPACE.match(text, tape.position).end()  # type: ignore[union-attr]
        action.raw.append(text[tape.position : end])
        tape.emit("text", end, "json")
        if end == len(text):
            return False
        return self._complete_json() if text[end] == "\n" else self._not_an_action()

    def _read_closer(self, last: bool) -> bool:
        action, tape, text = self._action, self._tape, self._tape.text
        end = _ALL_SPACE.match(text, tape.position).end()  # type: ignore[union-attr]
        tape.emit("marker", end)
        rest = text[end : end + len(action.closer)]
        if not rest or (len(rest) < len(action.closer) and action.closer.startswith(rest) and not last):
            return False
        if rest == action.closer:
            tape.emit("marker", end + len(action.closer))
            return self._complete_json()
        if action.closer[0] not in "`~":
            return self._reject_action("broken_action", f"A closing {action.closer} is missing after the Action.")
        if rest[0] not in "{[":
            action.repairs.append(Repair("fence_unclosed", "action"))
        return self._complete_json()

    # -------------------------------------------------------------------------------------------- the text form

    def _read_name(self, last: bool) -> bool:
        """Read a tool name on the Action line, up to the line's end or an opening bracket."""
        action, tape, text = self._action, self._tape, self._tape.text
        size = min(len(text), tape.position + _LONGEST_NAME - action.size)
        stop = _NAME_ENDS.search(text, tape.position, size)
        end = stop.start() if stop else size
        inline = self._markers.in_name.search(text, tape.position, end)
        if inline is not None:
            end = inline.start()
        elif stop is None and not last and size == len(text):
            part = self._markers.in_name_part.search(text, max(tape.position, size - 64))
            end = part.start() if part else size
        action.size += end - tape.position
        action.name_pieces.append(text[tape.position : end])
        tape.emit("marker", end)
        if action.size >= _LONGEST_NAME:
            return self._reject_action("broken_action", _NAME_ONLY)
        if inline is not None and inline["input"] is None:
            return self._end_name("")  # an observation that the model wrote
        if inline is not None:
            self._end_name("\n")
            if self._state is State.INPUT_MARKER:
                tape.emit("marker", inline.end())
                self._state = State.VALUE
            return True
        return self._end_name(text[end]) if stop is not None else False

    def _end_name(self, stop: str) -> bool:
        """Complete the name. `stop` is the character that ended it, "" if nothing can follow."""
        action = self._action
        written = "".join(action.name_pieces)
        name = written.strip().rstrip("*:").strip()
        if is_no_action(name):
            return self._not_an_action()
        if len(name) > 2 and name[0] == name[-1] and name[0] in "\"'`":
            action.repairs.append(Repair("outer_quotes", "name", name))
            name = name[1:-1].strip()
        if not _NAME.fullmatch(name):
            return self._reject_action("broken_action", _NAME_ONLY)
        action.name = name
        action.size = 0
        action.final = is_final_answer(name)
        self._announce(name)
        action.form = "input"
        if stop in ("(", "{"):
            if stop == "(" or written.strip() != name or not written.endswith(" "):
                # Not `name {"x": 1}`, which the worked examples for weak models teach.
                action.repairs.append(Repair("call_form", "action", f"{name}{stop}"))
            if stop == "{":
                return self._begin_json()
            action.closer = ")"
            self._tape.emit("marker", self._tape.position + 1)
            self._state = State.CALL
        elif stop == "\n":
            self._state = State.INPUT_MARKER
        else:
            return self._complete_text("")
        return True

    def _read_call(self, last: bool) -> bool:
        """Read what follows `name(`: an object or a closing parenthesis."""
        self._skip_blanks()
        tape = self._tape
        if tape.position == len(tape.text):
            return False
        first = tape.text[tape.position]
        if first == "{":
            return self._begin_json()
        if first == ")":
            tape.emit("marker", tape.position + 1)
            return self._complete_text("")
        hint = "Follow the Action line with an Action Input line. The input is a JSON object."
        return self._reject_action("broken_action", hint)

    def _read_input_marker(self, last: bool) -> bool:
        """Read the line after the name: the input, or other text if there is no input."""
        self._skip_blanks()
        action, tape, text = self._action, self._tape, self._tape.text
        if tape.position == len(text):
            return False
        marker = self._markers.at(text, tape.position, last=last)
        if marker == HOLD:
            return False
        if marker is not None and marker.name == "action_input":
            tape.emit("marker", marker.end)
            action.stars = 3 if marker.bold else 0
        elif marker is None and text[tape.position] in "{[`~":
            action.repairs.append(Repair("input_marker_missing", "action"))
        else:
            return self._complete_text("")
        action.line_start = False
        self._state = State.VALUE
        return True

    def _begin_input_text(self, so_far: str = "") -> bool:
        action = self._action
        action.pieces = [so_far]
        action.walker = LineWalker(
            self._tape,
            self._markers,
            kind=action.input_kind,
            tags="never",
            place=Place.FIRST_LINE,
            kept=action.pieces,
        )
        self._state = State.INPUT_TEXT
        return True

    def _read_input_text(self, last: bool) -> bool:
        """Read free text, up to the next marker."""
        walker = self._action.walker
        assert walker is not None
        stop = walker.walk(last=last)
        if stop is ReadingStop.MORE:
            return False
        marker = walker.marker if stop is ReadingStop.MARKER else None
        if marker is not None and self._action.final and marker.name not in ("observation", "thought"):
            walker.pass_over(marker.end)
            return True
        return self._complete_text("".join(self._action.pieces))

    def _read_input_fence(self, last: bool) -> bool:
        """Read an input in a fence that is not JSON, up to the closing fence."""
        tape, text = self._tape, self._tape.text
        closing, part = _closing_fence(self._action.fence)
        closed = closing.search(text, tape.position)
        held = None if last or closed else part.search(text, max(tape.position, len(text) - 24))
        end = (closed or held).start() if closed or held else len(text)  # type: ignore[union-attr]
        self._action.pieces.append(text[tape.position : end])
        tape.emit(self._action.input_kind, end)
        if closed is None:
            return False
        tape.emit("marker", closed.end())
        return self._complete_text("".join(self._action.pieces), exactly=True)

    # -------------------------------------------------------------------------------------------- an action ends

    def _end_action(self, truncated: bool) -> None:
        """End the action in which the text ends."""
        action, state = self._action, self._state
        if state is State.REST_OF_LINE:
            self._complete_json()
        elif state is State.CLOSER and action.closer[0] in "`~":
            action.repairs.append(Repair("fence_unclosed", "action"))
            self._complete_json()
        elif self._shows_nothing():
            self._not_an_action()
        elif truncated:
            self._reject_action("truncated", _ACTION_CUT)
        elif state is State.JSON and action.committed and action.scanner.closable and not action.closer:
            self._complete_json(closing=True)
        elif state is State.NAME:
            self._end_name("")
        elif state in (State.INPUT_MARKER, State.VALUE) and action.form == "input":
            self._complete_text("")
        elif state is State.INPUT_TEXT:
            self._complete_text("".join(action.pieces))
        elif state is State.INPUT_FENCE:
            action.repairs.append(Repair("fence_unclosed", "action_input"))
            self._complete_text("".join(action.pieces), exactly=True)
        else:
            self._reject_action("broken_action", "The Action is not complete. Write it again as one JSON object.")

    def _shows_nothing(self) -> bool:
        """True if the text so far gives no sign of an action."""
        action = self._action
        if self._state is State.JSON:
            return not action.committed and not action.scanner.name
        return self._state is State.VALUE and action.form in ("action", "native") and not action.fence

    def _not_an_action(self, *, at_line_start: bool = False) -> bool:
        """Treat the text read so far as plain text, or as an Action that names no tool."""
        if self._action.form in ("bare", "native"):
            self._plain.extend(self._action.raw)
        self._text.place = Place.IN_LINE
        if at_line_start:
            self._text.at_line_start()
        self._state = State.TEXT
        return self._tape.position < len(self._tape.text)

    def _reject_action(self, code: str, hint: str, *, refuses: bool = False) -> bool:
        return self._reject(code, hint, start=self._action.start, refuses=refuses)

    def _complete_json(self, *, closing: bool = False) -> bool:
        action = self._action
        raw = "".join(action.pieces)
        if action.form == "input":
            reading = read_input(raw, closing=closing)
            if not reading.code:
                return self._complete(action.name, reading, raw, raw)
        else:
            reading = read_action(raw, closing=closing)
        if action.scanner.duplicate and reading.code != "none":
            return self._reject_action("duplicate_key", f'The Action has the key "{action.scanner.duplicate}" twice.')
        if reading.code == "none":
            return self._not_an_action()
        if reading.code:
            return self._reject_action(reading.code, reading.hint)
        return self._complete(reading.name, reading, raw, reading.answer or "")

    def _complete_text(self, text: str, *, exactly: bool = False) -> bool:
        """The text form is complete. `exactly`: the input is taken as it was written."""
        action = self._action
        value: Any = text
        if action.final:
            text = text.strip()
        elif not exactly:
            value, quotes = _plain_value(text)
            if quotes:
                action.repairs.append(Repair("outer_quotes", "action_input", text.strip()[:40]))
            value, decoded = plain_input(value)
            action.repairs += decoded
        return self._complete(action.name, ActionReading(input=value), text, text)

    def _complete(self, name: str, reading: ActionReading, raw: str, answer: str) -> bool:
        action = self._action
        repairs = (*action.repairs, *reading.repairs)
        span = (action.start, self._tape.offset)
        if is_final_answer(name):
            if not answer.strip():
                return self._reject_action("empty", _EMPTY_ANSWER)
            self._tape.report("final", text=answer, role="answer", span=span, repairs=repairs)
        else:
            self._announce(name)
            value = {} if reading.input is None else reading.input
            role = action.form if action.form in ("bare", "native") else ""
            self._tape.report("action", name=name, input=value, raw=raw, span=span, repairs=repairs, role=role)
        self._state = State.UNTRUSTED
        return True


_STATES: Mapping[State, Callable[[CotAgentOutputParser, bool], bool]] = {
    State.TEXT: CotAgentOutputParser._read_text,
    State.ANSWER: CotAgentOutputParser._read_answer,
    State.REASONING: CotAgentOutputParser._read_reasoning,
    State.UNTRUSTED: CotAgentOutputParser._read_untrusted,
    State.VALUE: CotAgentOutputParser._read_value,
    State.FENCE_INFO: CotAgentOutputParser._read_fence_info,
    State.JSON: CotAgentOutputParser._read_json,
    State.REST_OF_LINE: CotAgentOutputParser._read_rest_of_line,
    State.CLOSER: CotAgentOutputParser._read_closer,
    State.NAME: CotAgentOutputParser._read_name,
    State.CALL: CotAgentOutputParser._read_call,
    State.INPUT_MARKER: CotAgentOutputParser._read_input_marker,
    State.INPUT_TEXT: CotAgentOutputParser._read_input_text,
    State.INPUT_FENCE: CotAgentOutputParser._read_input_fence,
}


def _plain_value(text: str) -> tuple[Any, bool]:
    """Return the value of an input in the text form, and whether a matched pair of quotes was removed."""
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
