"""Reasoning marks in text (`<think>`, `[THINK]`, …): separate what a model thinks from what it says.

A mark that is quoted as code, in a fence or a code span, is text. `CodeQuotes` tells where code is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

__all__ = [
    "THINKING_TAGS",
    "WRAPPER_TAGS",
    "CodeQuotes",
    "Thinking",
    "ThinkingSplitter",
    "has_mark",
    "plain_content",
    "split_reasoning",
    "split_thinking",
    "split_until",
    "without_turn_marks",
]

THINKING_TAGS = ("think", "thinking", "thought", "reasoning", "seed:think", "mm:think")
# The other pairs of marks that chat templates use.
_PAIRS = (
    ("<ifm|think>", "</ifm|think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("◁think▷", "◁/think▷"),
    ("<|channel>thought", "<channel|>"),
)
_TAG_NAMES = "|".join(THINKING_TAGS)
_ANY_PAIR = "|".join(
    rf"(?P<o{index}>{re.escape(opening).replace('channel>thought', 'channel>(?:thought)?')})"
    rf"|(?P<c{index}>{re.escape(closing)})"
    for index, (opening, closing) in enumerate(_PAIRS, 1)
)
_EVERY = rf"(?P<o0>(?i:<(?:{_TAG_NAMES})\s?>))|(?P<c0>(?i:<//?(?:{_TAG_NAMES})\s?>))|{_ANY_PAIR}"
_MARK = re.compile(rf"(?=[<\[◁])(?:{_EVERY})")
_SIGNS = re.compile(r"[<\[◁`~\n]")
_BEGINNINGS = sorted({mark[:size] for pair in _PAIRS for mark in pair for size in range(1, len(mark))}, reverse=True)
_PART = re.compile(rf"(?:</?/?[a-z:_]{{0,14}}\s?|{'|'.join(map(re.escape, _BEGINNINGS))})\Z", re.IGNORECASE)
_LONGEST = max(map(len, (*THINKING_TAGS, *(mark for pair in _PAIRS for mark in pair)))) + 5

# What ends a turn or names its speaker in the common chat templates; never part of the reply.
_TURN_END = re.compile(
    r"(?:</s>|<\|(?:im_end|eot_id|eom_id|eot|eom|end|return|call|endoftext|end_of_text|role_end|observation|user|eos"
    r"|END_OF_TURN_TOKEN|message_sep)\|>|<｜end▁of▁sentence｜>|<turn\|>|<end_of_turn>|\[e~\[|<eos>"
    r"|<\|im_start\|>\w{0,16})\Z"
)
_TURN_BEGIN = re.compile(r"\s*<\|(?:assistant\|>|im_start\|>(?:assistant\b)?)\s*")
_LONGEST_END = 24  # characters
_RESPONSE_MARK = re.compile(r"<\|(?:(?:START|END)_(?:RESPONSE|TEXT)|(?:begin|end)_of_solution)\|>")
_CITATION = re.compile(r"</?co(?:: ?[\d:,\[\] ]{1,200})?>")
_WRAPPERS = (("<response>", "</response>"), ("<answer>", "</answer>"))
WRAPPER_TAGS = tuple(opener for opener, _ in _WRAPPERS)  # alone before a call, where its closing tag is after it

# Code quotes.
_LONGEST_RUN = 16  # backticks or tildes; more are decoration
_LONGEST_BEHIND = 200  # characters from a tag to the end of the code span around it
_SIGN = re.compile(r"(?P<line>\n[ \t]{0,12}+)?(?P<run>`++|~{3,}+)|\n")
_FIRST_SIGN = re.compile(r"[ \t]*+(?P<run>`{3,}+|~{3,}+)")
_SPAN_ENDS = re.compile(r"\n|`++")
_LINE_ENDS = re.compile(r"[ \t\r]{0,4}+(?:\n|\Z)")
_TAIL = re.compile(r"\n[ \t]{0,12}+[`~]{0,16}+[ \t\r]{0,4}+\Z|(?:`{1,16}+|~{1,16}+)\Z")
_LONGEST_TAIL = 1 + 12 + _LONGEST_RUN + 4


def undecided_tail(text: str) -> int:
    """The position at a text's end of what more text may turn into a fence or a longer run of backticks."""
    for found in _TAIL.finditer(text, max(0, len(text) - _LONGEST_TAIL)):
        if text[found.start() - 1 : found.start()] != text[found.start()] or text[found.start()] == "\n":
            return found.start()
    return len(text)


class CodeQuotes:
    """Walk over a text and tell at each tag whether it is quoted as code.

    A fence begins and ends on a line of its own. A code span is within a line and ends with the same number of
    backticks that opened it. Reasoning has no fences, because models leave theirs open there.
    """

    __slots__ = ("_fence", "_fresh", "_info", "_long", "_never", "_opened", "_quotation", "_span", "_span_blank")

    def __init__(self) -> None:
        self._never: dict[str, int] = {}  # each character's run length from which on a run closes nothing
        self.begin()

    def begin(self) -> None:
        """Begin a new part of the text, such as the one after reasoning."""
        self._fresh = True  # only blanks so far
        self._long = False  # the run of backticks is too long to be a mark
        self._fence = ""  # the open fence's run
        self._info = False  # the fence's opening line has not ended
        self._opened = False  # tags in the fence are quoted for certain
        self._span = 0  # backticks that opened a code span
        self._span_blank = False  # the span has only blanks so far
        self._quotation = False  # the span is a quotation for certain

    def walk_plain(self, text: str) -> None:
        """Walk over a piece without line ends, backticks and tildes, as nearly every piece of a stream is."""
        if self._fresh or self._long or self._span_blank:
            self.walk(text, 0, len(text))

    def walk(self, text: str, start: int, end: int, *, fences: bool = True) -> None:
        """Walk over a part without tags. `fences`: one may begin here."""
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
        """Handle a run that ends at `at`, in a part of the text that ends at `end`."""
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
        """True if a tag is in a code span, judged by no more than the character after its `end`.

        A closing tag is quoted if backticks enclose it, or after an opening tag in the same span.

        Returns:
            None if the character after it is not there yet.
        """
        if not self._span:
            return False
        if closing and end == len(text) and not last:
            return None
        enclosed = text[end : end + 1] == "`"
        self._quotation = self._quotation or not closing or (self._span_blank and enclosed)
        return self._quotation

    def quotes(self, text: str, start: int, end: int, *, closing: bool, last: bool = True) -> bool | None:
        """True if the tag `text[start:end]` is quoted. The text before it must have been walked over.

        A code span around a tag must be closed on its line, and a closing tag must begin it or follow an opening tag
        in it: a lone backtick in reasoning does not keep the reasoning open. For the same reason a closing tag in a
        fence that nothing closes (`last`: there is no more text) ends the reasoning that it is in.

        Returns:
            None if more text must decide.
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
        """True if the open code span is closed on this line, close enough; None if more text must decide."""
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
        """True if the open fence is closed anywhere after `start`."""
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


# ------------------------------------------------------------------------------------------------ splitting


class Thinking(NamedTuple):
    """A text taken apart. `cut` is the position of an opening mark that nothing closes."""

    reasoning: str
    content: str
    cut: int | None = None


class ThinkingSplitter:
    """Split streamed text into (is reasoning, piece).

    The beginning of a mark, and a mark that may be quoted, are held back until more text decides.

    Args:
        stop: A tag at which splitting ends, unless it is quoted or in reasoning; what follows it is left in `rest`.
    """

    def __init__(self, *, stop: str = "") -> None:
        self.rest: str | None = None
        self._mark = _stopping(stop) if stop else _MARK
        self._code = CodeQuotes()
        self._depth = 0
        self._family = ""  # the open mark's family: only its own closing mark closes it
        self._held = ""  # text to examine again, together with the next piece
        self._sent = 0  # how much of it was returned already
        self.tagged = False  # true once a mark counted
        self.lone_at: int | None = None  # number of pieces before a closing mark that came first of all marks
        self.cut: int | None = None  # position of the open mark, in a text that is read whole

    def feed(self, text: str) -> list[tuple[bool, str]]:
        if not self._held and _SIGNS.search(text) is None:
            self._code.walk_plain(text)
            return [(self._depth > 0, text)] if text else []
        text = self._held + text
        part = _PART.search(text, max(0, len(text) - _LONGEST))
        if part is not None:
            return self._split(text, part.start(), part.start())
        return self._split(text, undecided_tail(text), len(text))

    def flush(self) -> list[tuple[bool, str]]:
        """Return what was held back."""
        return self._split(self._held, len(self._held), len(self._held), last=True)

    def read(self, text: str, shields: Sequence[tuple[int, int]] = ()) -> list[tuple[bool, str]]:
        """Split a whole text. Marks inside a shield `[start, end)` are data."""
        return self._split(text, len(text), len(text), last=True, shields=shields)

    def _split(
        self, text: str, decided: int, end: int, *, last: bool = False, shields: Sequence[tuple[int, int]] = ()
    ) -> list[tuple[bool, str]]:
        """Split a text up to `end`, but no further than a mark that more text must decide.

        What follows `decided` holds no mark; more text may make a fence of it.
        """
        pieces: list[tuple[bool, str]] = []
        code, sent, walked, shielded = self._code, self._sent, 0, 0
        for mark in self._mark.finditer(text, 0, decided):
            if mark.lastgroup == "stop" and self._depth:
                continue
            while shielded < len(shields) and shields[shielded][1] <= mark.start():
                code.walk(text, walked, shields[shielded][0], fences=not self._depth)
                walked = max(walked, shields[shielded][1])
                shielded += 1
            if shielded < len(shields) and shields[shielded][0] <= mark.start():
                continue
            code.walk(text, walked, mark.start(), fences=not self._depth)
            walked = mark.start()
            kind, family = str(mark.lastgroup)[0], str(mark.lastgroup)[1:]
            closing = kind == "c"
            quoted = code.quotes(text, *mark.span(), closing=closing, last=last)
            if quoted is None:
                decided = end = mark.start()
                break
            walked = mark.end()
            if mark.lastgroup == "stop" and not quoted:
                self.rest = text[mark.end() :]
                decided = end = mark.start()
                break
            if quoted or (closing and self._depth and family != self._family):
                continue
            if mark.start() > sent:
                pieces.append((self._depth > 0, text[sent : mark.start()]))
            if closing and not self.tagged:
                self.lone_at = len(pieces)
            if not closing and not self._depth:
                self._family, self.cut = family, mark.start()
            sent = mark.end()
            self.tagged = True
            if closing:
                self._depth = max(0, self._depth - 1)
            elif not self._depth or family == self._family == "0":  # only tags nest
                self._depth += 1
            code.begin()
        code.walk(text, walked, decided, fences=not self._depth)
        if end > sent:
            pieces.append((self._depth > 0, text[sent:end]))
        self.cut = self.cut if self._depth else None
        self._held, self._sent = text[decided:], max(0, end - decided)
        return pieces


@lru_cache(maxsize=8)
def _stopping(tag: str) -> re.Pattern[str]:
    return re.compile(rf"(?=[<\[◁])(?:(?P<stop>(?i:{re.escape(tag)}))|{_EVERY})")


def has_mark(text: str, start: int, end: int) -> bool:
    """True if a reasoning mark occurs in `text[start:end]`."""
    return _MARK.search(text, start, end) is not None


def split_reasoning(text: str, shields: Sequence[tuple[int, int]] = ()) -> Thinking:
    """Separate what a whole text thinks from what it says.

    A closing mark that nothing opens ends reasoning that the prompt opened. After an opening mark that nothing closes
    everything is reasoning. Marks that are quoted as code, or inside a shield `[start, end)`, are data.
    """
    if _MARK.search(text) is None:
        return Thinking("", text)
    splitter = ThinkingSplitter()
    return _taken_apart(splitter, splitter.read(text, shields))


def _taken_apart(splitter: ThinkingSplitter, pieces: Sequence[tuple[bool, str]]) -> Thinking:
    before = splitter.lone_at or 0
    thought = [piece.strip() for index, (thinking, piece) in enumerate(pieces) if thinking or index < before]
    said = "".join(piece for index, (thinking, piece) in enumerate(pieces) if not thinking and index >= before)
    reasoning = "\n".join(filter(None, thought))
    return Thinking(_CITATION.sub("", reasoning) if "</co" in reasoning else reasoning, said, splitter.cut)


def split_thinking(text: str) -> tuple[str, str]:
    """(reasoning, reply, stripped); a text without reasoning is returned unchanged."""
    reasoning, said, _ = split_reasoning(text)
    return reasoning, said if said == text else said.strip()


def split_until(text: str, tag: str) -> tuple[str, str, str | None]:
    """(reasoning, reply, the text after the tag) up to a tag that is neither quoted nor in reasoning."""
    splitter = ThinkingSplitter(stop=tag)
    thinking = _taken_apart(splitter, splitter.read(text))
    said = thinking.content if splitter.rest is None and not splitter.tagged else thinking.content.strip()
    return thinking.reasoning, said, splitter.rest


def _stripped(text: str, stop: int) -> int:
    while stop and text[stop - 1].isspace():
        stop -= 1
    return stop


def without_turn_marks(text: str) -> str:
    """Return a reply without the marks of turns and responses around it; unchanged if it has none."""
    if "<" not in text and "[" not in text:
        return text
    said = _RESPONSE_MARK.sub("", text) if "<|" in text else text
    stop = _stripped(said, len(said))
    while end := _TURN_END.search(said, max(0, stop - _LONGEST_END), stop):
        stop = _stripped(said, end.start())
    begin = _TURN_BEGIN.match(said, 0, stop)
    bare = said[begin.end() if begin else 0 : stop]
    return text if bare == text.rstrip() else bare


def plain_content(text: str) -> str:
    """The reply, without the marks of turns, responses and citations around it, stripped."""
    text = without_turn_marks(text).strip()
    if "</co" in text:
        text = _CITATION.sub("", text)
    for opener, closer in _WRAPPERS:
        if text.startswith(opener) and text.endswith(closer):
            text = text[len(opener) : -len(closer)].strip()
    return text
