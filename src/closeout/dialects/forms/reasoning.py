"""Reasoning marks and turn marks in a whole text: what is thought, what is said. Looks for no calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from closeout.dialects.quoting import CodeQuotes
from closeout.dialects.thinking import THINKING_TAGS

__all__ = ["WRAPPER_TAGS", "Thinking", "has_mark", "plain_content", "split_reasoning"]

_PAIRS = {
    **{f"<{tag}>": f"</{tag}>" for tag in THINKING_TAGS},
    "<ifm|think>": "</ifm|think>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "◁think▷": "◁/think▷",
    "<|channel>thought": "<channel|>",
    "<|channel>": "<channel|>",
}
_MARK = re.compile("|".join(map(re.escape, sorted({*_PAIRS, *_PAIRS.values()}, key=len, reverse=True))))

# What ends a turn or names its speaker in the common chat templates; never part of what is said.
_TURN_END = re.compile(
    r"(?:</s>|<\|(?:im_end|eot_id|eom_id|eot|eom|end|return|call|endoftext|end_of_text|role_end|observation|user|eos"
    r"|END_OF_TURN_TOKEN|message_sep)\|>|<｜end▁of▁sentence｜>|<turn\|>|<end_of_turn>|\[e~\[|<eos>)\Z"
)
_LONGEST_END = 24  # characters
_RESPONSE_MARK = re.compile(r"<\|(?:START|END)_(?:RESPONSE|TEXT)\|>")
_CITATION = re.compile(r"</?co(?:: ?[\d:,\[\] ]{1,200})?>")
_WHOLE_FENCE = re.compile(r"```\w{0,16}[ \t]*\n(?P<body>[^`]*+(?:`(?!``)[^`]*+)*+)```\Z")
_WRAPPERS = (("<response>", "</response>"), ("<answer>", "</answer>"))
WRAPPER_TAGS = tuple(opener for opener, _ in _WRAPPERS)  # alone in front of a call, where its closing is behind it


class Thinking(NamedTuple):
    """A text taken apart. `cut` is where in the text an opening mark stands that nothing closes, else None."""

    reasoning: str
    content: str
    cut: int | None = None


def has_mark(text: str, start: int, end: int) -> bool:
    """Whether a reasoning mark stands in `text[start:end]`."""
    return _MARK.search(text, start, end) is not None


def split_reasoning(text: str, shields: Sequence[tuple[int, int]] = ()) -> Thinking:
    """What is thought and what is said. Marks inside a shield `[start, end)` are data, such as an argument's.

    A closing mark that nothing opens ends reasoning which the prompt began. An opening mark that nothing closes makes
    all behind it reasoning. Marks that are quoted as code are data too.
    """
    thought: list[str] = []
    said: list[str] = []
    opener, at, nested, cut = "", 0, 0, None
    code, walked = CodeQuotes(), 0
    shielded = 0  # shields passed; both they and the marks are in order
    for mark in _MARK.finditer(text):
        while shielded < len(shields) and shields[shielded][1] <= mark.start():
            code.walk(text, walked, shields[shielded][0], fences=not opener)
            walked = max(walked, shields[shielded][1])
            shielded += 1
        if shielded < len(shields) and shields[shielded][0] <= mark.start():
            continue
        token = mark[0]
        code.walk(text, walked, mark.start(), fences=not opener)
        walked = mark.end()
        if code.quotes(text, *mark.span(), closing=token not in _PAIRS):
            continue
        piece = text[at : mark.start()]
        if token in _PAIRS:
            (thought if opener else said).append(piece)
            nested += bool(opener)
            cut = cut if opener else mark.start()
            opener = opener or token
        elif opener and token != _PAIRS[opener]:
            continue
        elif opener or nested or not (thought or "".join(said).strip()):
            thought.append(piece)
            nested -= not opener and nested > 0
            opener, cut = "", None
        else:
            said.append(piece)
        at = mark.end()
        code.begin()
    (thought if opener else said).append(text[at:])
    reasoning = "\n".join(filter(None, map(str.strip, thought)))
    return Thinking(_CITATION.sub("", reasoning) if "</co" in reasoning else reasoning, "".join(said), cut)


def _stripped(text: str, stop: int) -> int:
    while stop and text[stop - 1].isspace():
        stop -= 1
    return stop


def plain_content(text: str, unfence: bool = False) -> str:
    """What is said, without the marks of turns, responses and citations around it, stripped.

    `unfence`: and without the code fence that holds all of it.
    """
    if "<|" in text:
        text = _RESPONSE_MARK.sub("", text)
    stop = _stripped(text, len(text))
    while end := _TURN_END.search(text, max(0, stop - _LONGEST_END), stop):
        stop = _stripped(text, end.start())
    text = text[:stop].strip()
    if "</co" in text:
        text = _CITATION.sub("", text)
    for opener, closer in _WRAPPERS:
        if text.startswith(opener) and text.endswith(closer):
            text = text[len(opener) : -len(closer)].strip()
    fence = _WHOLE_FENCE.match(text) if unfence else None
    return fence["body"].strip() if fence else text
