"""Walks over plain text in a ReAct reply until something structural stands there. Knows lines, code fences, tags.

What a marker or an action then means is decided in `react_parser` and `react_action_scan`.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache

from closeout.dialects.quoting import CodeQuotes
from closeout.dialects.react_events import EventKind, Lane, PlainLane, Tape
from closeout.dialects.react_markers import HOLD, Marker, Markers, Tag, tag_at

__all__ = ["LINE_END", "Prose", "Stop"]

LINE_END = re.compile(r"\n")
_TAG_OR_END = re.compile(r"[\n<]")
_BLANK_OR_END = re.compile(r"[\n \t]")
_BLANK = re.compile(r"[ \t\r\ufeff]*+")
_SPACES = frozenset(" \t\r\ufeff\n")
_DECORATION = re.compile(r"[*#][*# \t]*+")
_RUN = {"`": re.compile(r"`*+"), "~": re.compile(r"~*+")}
_LONGEST_DECORATION = 12
_LONGEST_FENCE = 16
_TAG_FIRST = "/tTrRsSfF"


class Stop(Enum):
    """Why the walk stopped. It stands before what it stopped at."""

    MORE = auto()  # all text is used up, or held back
    MARKER = auto()  # `marker`
    TAG = auto()  # `tag`
    BRACKET = auto()  # a `{` or `[` at a line's start
    INLINE_OBSERVATION = auto()


class Prose:
    """Plain text of one kind, told to the tape as it is walked over.

    `brackets`: stop at JSON at a line's start. `tags`: where reasoning and native tags count. `inline`: stop at an
    `Observation:` within the first line too. `keep`: where the text is collected.
    """

    def __init__(
        self,
        tape: Tape,
        markers: Markers,
        kind: EventKind,
        role: str = "",
        *,
        brackets: bool = False,
        tags: str = "anywhere",  # "anywhere" | "line": at a line's start only | "never"
        inline: bool = False,
        keep: list[str] | None = None,
    ) -> None:
        self.tape = tape
        self.markers = markers
        self.kind = kind
        self.role = role
        self.marker: Marker | None = None
        self.tag: Tag | None = None
        self.line_start = False  # only blanks since the line began
        self.marks_here = True  # markers count here; not directly behind another marker
        self._brackets = brackets
        self._tags = tags
        self._inline = inline
        self._kept = keep
        self._walked = len(keep) if keep else 0  # pieces of it that `_code` has seen
        self._code = CodeQuotes()
        self._newline_seen = False
        self._fence = ""  # the open fence's characters
        self._in_info = False  # on the fence's opening line
        self._decorated = False  # this line began with more `*` and `#` than a marker has
        self._stars = 0  # `*` that may close the bold type of a marker
        self._leading = False  # blanks behind a marker are its own
        self._stop = _TAG_OR_END if tags == "anywhere" else LINE_END
        self._next = _next_pattern(markers.first, tags == "anywhere")

    def after_marker(self, marker: Marker) -> None:
        """The walk goes on behind a marker: blanks and closing stars belong to it."""
        self.tape.take("marker", marker.end)
        self._leading = True
        self._stars = 3 if marker.bold else 0
        self.line_start, self.marks_here = True, False
        self._fence, self._in_info, self._decorated = "", False, False

    def at_line_start(self, *, newline: bool = True) -> None:
        self.line_start, self.marks_here, self._decorated = True, True, False
        self._newline_seen = self._newline_seen or newline

    def pass_over(self, end: int) -> None:
        """What the walk stopped at is text after all."""
        self.line_start = False
        self._take(end)
        self._tell()

    def ignore_brackets(self) -> None:
        """From now on JSON at a line's start is text."""
        self._brackets = False

    def lane(self) -> Lane | None:
        """Within a line, up to what may be more than text, as most pieces of a stream are."""
        if self.line_start or self._leading or self._in_info:
            return None
        stop = LINE_END if self._fence else _BLANK_OR_END if self._inline else self._stop
        return PlainLane(stop, self.kind, self.role, self._kept)

    def walk(self, *, last: bool) -> Stop:
        stop = self._walk(last)
        self._tell()
        return stop

    def _walk(self, last: bool) -> Stop:
        tape = self.tape
        size = len(tape.text)
        if last and self._at_stop_prefix():
            tape.take("marker", size, code="stop_prefix")
            return Stop.MORE
        if self._leading:
            self._lead(size)
        while tape.position < size:
            if self._fence:
                stop = self._in_fence(size, last)
            elif self.line_start:
                stop = self._line(size, last)
            elif self._inline:
                stop = self._first_line(size, last)
            else:
                stop = self._onward(size, last)
            if stop is not None:
                return stop
        return Stop.MORE

    # -------------------------------------------------------------------------------------------- pieces

    def _at_stop_prefix(self) -> bool:
        """Whether all that is left is a line with the beginning of a stop marker: the server cut the rest off."""
        on_line = self.line_start and self.marks_here and self._newline_seen and not self._fence
        return on_line and self.markers.is_stop_prefix(self.tape.text[self.tape.position :])

    def _take(self, end: int) -> None:
        self.tape.position = end

    def _tell(self) -> None:
        """Tells of what was walked over, at once: all of it is of one kind."""
        tape = self.tape
        if tape.position > tape.told:
            text = tape.text[tape.told : tape.position]
            if self._kept is not None:
                self._kept.append(text)
            tape.take(self.kind, tape.position, self.role, text=text)

    def _lead(self, size: int) -> None:
        text, at = self.tape.text, self.tape.position
        if self._stars:
            while self._stars and at < size and text[at] == "*":
                self._stars -= 1
                at += 1
        if at < size:
            self._stars = 0
            if text[at] in _SPACES:
                at = _BLANK.match(text, at).end()  # type: ignore[union-attr]
            self._leading = at == size
        self.tape.take("marker", at)

    def _line(self, size: int, last: bool) -> Stop | None:
        """At a line's start."""
        tape, text = self.tape, self.tape.text
        at = tape.position
        while (first := text[at]) in _SPACES:
            if first == "\n":
                self.marks_here = self._newline_seen = True
                self._decorated = False
                at += 1
            else:
                at = _BLANK.match(text, at).end()  # type: ignore[union-attr]
            tape.position = at
            if at == size:
                return None
        if first in "`~":
            return self._opens_fence(at, size, last)
        if first == "<" and self._tags != "never":
            return self._tag(at, last)
        if self.marks_here:
            if first in "{[" and self._brackets:
                return Stop.BRACKET
            if first in "*#" or first in self.markers.first:
                return self._marker(at, last)
        self.line_start = False
        return None

    def _marker(self, at: int, last: bool) -> Stop | None:
        text = self.tape.text
        decoration = _DECORATION.match(text, at) if text[at] in "*#" else None
        if decoration is not None and (self._decorated or decoration.end() - at > _LONGEST_DECORATION):
            self._decorated = True
            self._take(decoration.end())
            return None
        found = self.markers.at(text, at, last=last)
        if found == HOLD:
            return Stop.MORE
        if found is None:
            self.line_start = False
            return None
        assert isinstance(found, Marker)
        self.marker = found
        return Stop.MARKER

    def _tag(self, at: int, last: bool) -> Stop | None:
        found = tag_at(self.tape.text, at, last=last)
        if found == HOLD:
            return Stop.MORE
        if found is None:
            self.line_start = False
            self._take(at + 1)
            return None
        assert isinstance(found, Tag)
        self._take(at)
        quoted = self._quotes(found, last)
        if quoted is None:
            return Stop.MORE
        if quoted:
            self.line_start = False
            self._take(found.end)
            return None
        self.tag = found
        return Stop.TAG

    def _quotes(self, tag: Tag, last: bool) -> bool | None:
        """Whether a tag stands in a code span: `<think>`, or right behind a backtick: `<tool_call>{…}`."""
        self._tell()
        kept = self._kept or []
        if self._walked < len(kept):
            line = "".join(kept[self._walked :])
            self._code.walk(line, 0, len(line), fences=False)
            self._walked = len(kept)
        if not tag.thinking:
            return bool(kept) and kept[-1][-1:] == "`"
        return self._code.quotes_so_far(self.tape.text, tag.end, closing=tag.closing, last=last)

    def _onward(self, size: int, last: bool) -> Stop | None:
        """Within a line: on to the next line that may begin with something, or to a tag."""
        found = self._next.search(self.tape.text, self.tape.position)
        if found is None:
            self._take(size)
            return None
        at = found.start()
        self._inline = False
        if self.tape.text[at] == "\n":
            self._take(at + 1)
            self.at_line_start()
            return None
        self._take(at)
        return self._tag(at, last)

    def _first_line(self, size: int, last: bool) -> Stop | None:
        text, at = self.tape.text, self.tape.position
        end = text.find("\n", at)
        found = self.markers.inline_observation.search(text, at, size if end < 0 else end)
        if found is not None:
            self._take(found.start())
            return Stop.INLINE_OBSERVATION
        if end >= 0:
            self._inline = False
            self._take(end + 1)
            self.at_line_start()
            return None
        part = None if last else self.markers.inline_part.search(text, max(at, size - 64))
        self._take(part.start() if part else size)
        return Stop.MORE if part else None

    # -------------------------------------------------------------------------------------------- fences

    def _opens_fence(self, at: int, size: int, last: bool) -> Stop | None:
        end = _RUN[self.tape.text[at]].match(self.tape.text, at).end()  # type: ignore[union-attr]
        length = end - at
        if end == size and length <= _LONGEST_FENCE and not last:
            return Stop.MORE
        self.line_start = False
        if 3 <= length <= _LONGEST_FENCE:
            self._fence = self.tape.text[at:end]
            self._in_info = True
            self._take(end)
        elif length > _LONGEST_FENCE:
            self._take(end)
        return None

    def _in_fence(self, size: int, last: bool) -> Stop | None:
        text, at = self.tape.text, self.tape.position
        if self._in_info:
            return self._info_line(size, last)
        inner, closing, part = _fence_patterns(self._fence)
        if not self.line_start:
            found = inner.search(text, at)
            self._take(found.end() if found else size)
            self.line_start = found is not None
            return None
        at = _BLANK.match(text, at).end()  # type: ignore[union-attr]
        self._take(at)
        if at == size:
            return None
        closed = closing.match(text, at)
        if closed is not None and (closed.end() < size or last):
            self._take(closed.end())
            self._fence, self.line_start = "", False
        elif part.fullmatch(text, at) and size - at <= 64 and not last:
            return Stop.MORE
        elif text[at] == "\n":
            self._take(at + 1)
        else:
            self.line_start = False
        return None

    def _info_line(self, size: int, last: bool) -> Stop | None:
        """The fence's opening line; a fence may be closed on it."""
        text, at = self.tape.text, self.tape.position
        newline = text.find("\n", at)
        end = size if newline < 0 else newline
        closed = text.find(self._fence, at, end)
        if closed >= 0:
            self._take(closed + len(self._fence))
            self._fence, self._in_info = "", False
            return None
        if newline >= 0:
            self._take(newline + 1)
            self._in_info, self.line_start = False, True
            return None
        kept_back = 0 if last else len(text) - at - len(text[at:].rstrip(self._fence[0]))
        self._take(size - kept_back)
        return Stop.MORE if kept_back else None


@lru_cache(maxsize=64)
def _next_pattern(first: str, tags: bool) -> re.Pattern[str]:
    """A newline before a line that may begin with something structural, or the beginning of a tag."""
    line = rf"\n(?=[ \t\r\ufeff]*+(?:[{re.escape(first)}*#`~{{\[<]|\Z))"
    return re.compile(rf"{line}|<(?=[{_TAG_FIRST}]|\Z)" if tags else line)


@lru_cache(maxsize=64)
def _fence_patterns(fence: str) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Of an open fence: a newline before a line that may close it; the closing; what may become the closing."""
    character = re.escape(fence[0])
    size = len(fence)
    return (
        re.compile(rf"\n(?=[ \t\r\ufeff]*+(?:{character}|\Z))"),
        re.compile(rf"{character}{{{size},32}}+[ \t\r]{{0,4}}+(?=\n|\Z)"),
        re.compile(rf"{character}{{1,32}}+[ \t\r]{{0,4}}+"),
    )
