"""Where in a text code is quoted: fences of backticks or tildes, and code spans. A tag that stands there is text.

Which tags there are, and what a tag means that is not quoted, is decided by those who read them.
"""

from __future__ import annotations

import re

__all__ = ["CodeQuotes", "undecided_tail"]

_LONGEST_RUN = 16  # backticks or tildes; more are decoration
_LONGEST_BEHIND = 200  # characters from a tag to the end of the code span around it
_SIGN = re.compile(r"(?P<line>\n[ \t]{0,12}+)?(?P<run>`++|~{3,}+)|\n")
_FIRST_SIGN = re.compile(r"[ \t]*+(?P<run>`{3,}+|~{3,}+)")
_SPAN_ENDS = re.compile(r"\n|`++")
_LINE_ENDS = re.compile(r"[ \t\r]{0,4}+(?:\n|\Z)")
_TAIL = re.compile(r"\n[ \t]{0,12}+[`~]{0,16}+[ \t\r]{0,4}+\Z|(?:`{1,16}+|~{1,16}+)\Z")
_LONGEST_TAIL = 1 + 12 + _LONGEST_RUN + 4


def undecided_tail(text: str) -> int:
    """Where at the end of a text something begins that more text may make a fence or a longer run."""
    for found in _TAIL.finditer(text, max(0, len(text) - _LONGEST_TAIL)):
        if text[found.start() - 1 : found.start()] != text[found.start()] or text[found.start()] == "\n":
            return found.start()
    return len(text)


class CodeQuotes:
    """Walks over a text and knows at each tag whether it stands in quoted code.

    Fences are told by lines, code spans by one line: what a run of backticks opens, a run of as many closes. Within
    reasoning there are no fences, as models leave theirs open there.
    """

    __slots__ = ("_fence", "_fresh", "_info", "_long", "_never", "_opened", "_quotation", "_span", "_span_blank")

    def __init__(self) -> None:
        self._never: dict[str, int] = {}  # runs of so many of a character close nothing any more
        self.begin()

    def begin(self) -> None:
        """A new part of the text begins, such as the one behind reasoning."""
        self._fresh = True  # only blanks so far
        self._long = False  # within a run of backticks that is too long to be one
        self._fence = ""  # the open fence's run
        self._info = False  # on the fence's opening line
        self._opened = False  # tags in the fence are quoted for certain
        self._span = 0  # backticks that opened a code span
        self._span_blank = False  # with nothing but blanks in it so far
        self._quotation = False  # and it is one for certain

    def walk_plain(self, text: str) -> None:
        """Over a part without line ends, backticks and tildes, as nearly every piece of a stream is."""
        if self._fresh or self._long or self._span_blank:
            self.walk(text, 0, len(text))

    def walk(self, text: str, start: int, end: int, *, fences: bool = True) -> None:
        """Over a part without tags. `fences`: whether one may begin here."""
        if start >= end:
            return
        if self._long:
            while start < end and text[start] == "`":
                start += 1
            self._long = start == end
        at = start
        if self._fresh:
            first = _FIRST_SIGN.match(text, start, end)
            if first is not None:
                at = first.end()
                self._meet_run(first["run"], text, at, end, fences=fences, on_line=True)
            self._fresh = first is None and not text[start:end].strip(" \t")
        spanned = at
        for sign in _SIGN.finditer(text, at, end):
            run = sign["run"]
            if run is None or sign["line"] is not None:
                self._span, self._info = 0, False
            if run is not None:
                was_open = self._span > 0
                self._meet_run(run, text, sign.end(), end, fences=fences, on_line=sign["line"] is not None)
                spanned = spanned if was_open else sign.end()
        if self._span and self._span_blank:
            self._span_blank = not text[spanned:end].strip()

    def _meet_run(self, run: str, text: str, at: int, end: int, *, fences: bool, on_line: bool) -> None:
        """A run that ends at `at`; the part that is walked over ends at `end`."""
        if len(run) > _LONGEST_RUN:
            self._long = at == end and run[0] == "`"
            return
        if self._fence:
            if self._info:
                closed = run == self._fence
            else:
                closed = on_line and run.startswith(self._fence) and _LINE_ENDS.match(text, at) is not None
            if closed:
                self._fence, self._info, self._opened = "", False, False
        elif fences and on_line and len(run) >= 3:
            self._fence, self._info = run, True
        elif run[0] == "`" and not self._span:
            self._span, self._span_blank, self._quotation = len(run), True, False
        elif len(run) == self._span and run[0] == "`":
            self._span = 0

    def quotes_so_far(self, text: str, end: int, *, closing: bool, last: bool) -> bool | None:
        """Whether the tag that was walked up to stands in a code span, by no more than the character behind its `end`.

        None: that one is still to come. A closing tag counts as quoted if backticks enclose it, or behind an opening
        one in the same span.
        """
        if not self._span:
            return False
        if closing and end == len(text) and not last:
            return None
        enclosed = text[end : end + 1] == "`"
        self._quotation = self._quotation or not closing or (self._span_blank and enclosed)
        return self._quotation

    def quotes(self, text: str, start: int, end: int, *, closing: bool, last: bool = True) -> bool | None:
        """Whether the tag `text[start:end]`, which was walked up to, is quoted. None: more text must tell.

        A code span around a tag must be closed on its line, and a closing tag must begin it or follow an opening one in
        it: a lone backtick in reasoning does not keep the reasoning open. For the same reason a closing tag in a fence
        that nothing closes (`last`: as far as the text goes) ends the reasoning that it stands in.
        """
        if self._fence:
            self._opened = self._opened or not closing or not last or self._closes_fence(text, end)
            if not self._opened:
                self.begin()
            return self._opened
        if not self._span or self._quotation:
            return self._span > 0
        closed = self._closes_span(text, end, last=last)
        if closed is None:
            return None
        self._quotation = closed and (not closing or self._span_blank)
        if not closed:
            self._span = 0
        return self._quotation

    def _closes_span(self, text: str, start: int, *, last: bool) -> bool | None:
        """Whether the open code span is closed on this line, near enough. None: more text must tell."""
        limit = start + _LONGEST_BEHIND
        for found in _SPAN_ENDS.finditer(text, start, limit):
            if found[0] == "\n":
                return False
            if found.end() >= min(limit, len(text)):
                break
            if found.end() - found.start() == self._span:
                return True
        if len(text) < limit:
            return None if not last else text.endswith("`" * self._span) and not text.endswith("`" * (self._span + 1))
        return False

    def _closes_fence(self, text: str, start: int) -> bool:
        """Whether the open fence is closed at all behind `start`."""
        sign, size = self._fence[0], len(self._fence)
        line_end = text.find("\n", start)
        if self._info and text.find(self._fence, start, line_end if line_end >= 0 else len(text)) >= 0:
            return True
        if size >= self._never.get(sign, size + 1):
            return False
        closing = rf"\n[ \t]{{0,12}}+{re.escape(sign)}{{{size},}}+[ \t\r]{{0,4}}+(?:\n|\Z)"
        if re.compile(closing).search(text, start) is not None:
            return True
        self._never[sign] = size
        return False
