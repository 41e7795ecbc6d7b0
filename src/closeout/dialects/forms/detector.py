"""`FormDetector`: while a reply streams, holds back what is turning into a tool call. Reads no call."""

from __future__ import annotations

import re

from closeout.dialects.forms.table import MARKED

__all__ = ["FormDetector"]

# Marks that ordinary text contains: they say nothing until the whole reply is there. The others are as the forms have
# them, and what stands in front of them as a wrapper.
_WEAK = ("Action", "action", "ACTION", ">>>", "<tool_call", "<invoke", "<｜tool", "<|tool calls")
_WRAPPERS = {
    "<tool_call>": "hermes",
    "<tool_call:": "glm45_xml",
    "<tool_calls:": "glm45_xml",
    "<ifm|tool_calls>": "k2_horizon",
    "<|message_sep|>": "gigachat",
    "<invoke name=": "invoke",
    "<｜tool▁call": "deepseek_v3",
    "<|tool_calls_begin|>": "deepseek_v3",
    "<｜tool_calls_begin｜>": "step3",
    "<｜tool_call_begin｜>": "step3",
    "<|start|>assistant": "harmony",
}
_FAMILY_OF = {mark: form.family for form in reversed(MARKED) for mark in form.markers if mark not in _WEAK} | _WRAPPERS
_MARKS = re.compile("|".join(map(re.escape, sorted(_FAMILY_OF, key=len, reverse=True))))
_LONGEST = max(map(len, _FAMILY_OF))
_PREFIXES = frozenset(mark[:length] for mark in _FAMILY_OF for length in range(1, len(mark)))
_JSON_START = re.compile(
    r'[\[{]\s*(?:\{\s*)?"(?:(?:name|tool_calls|tool_name|function|function_call|action)"'
    r'|(?:role"\s*:\s*"assistant|type"\s*:\s*"(?:function|tool_use))")'
)
_JSON_SHAPE = re.compile(r'[\[{]\s*(?:\{\s*)?(?:"(?:[a-z_]{0,13}"?|(?:role|type)"\s*:\s*(?:"[a-z_]{0,9}"?)?))?\Z')
_LONGEST_JSON_START = 64  # characters


class FormDetector:
    """`feed` text as it comes, show what it returns; `family` is set once a call's mark has been seen.

    Held back: the beginning of one mark, or of a reply that may be a bare JSON call; from a mark on, everything.
    Whatever way the text is cut into pieces, the same text is shown. `held` is what was not shown.
    """

    __slots__ = ("_pending", "_started", "_tail", "family")

    def __init__(self) -> None:
        self.family: str | None = None
        self._pending = ""
        self._tail: list[str] = []
        self._started = False

    @property
    def held(self) -> str:
        """What has been fed and not shown."""
        return "".join(self._tail) + self._pending

    def feed(self, text: str) -> str:
        """The text that may be shown now."""
        if self.family is not None:
            self._tail.append(text)
            return ""
        self._pending += text
        if not self._started and self._may_be_json():
            return ""
        return self._shown()

    def close(self) -> str:
        """The rest, at the end of the reply: what was held and is no call. Empty once a mark has been seen."""
        if self.family is not None:
            return ""
        rest, self._pending = self._pending, ""
        return rest

    def _may_be_json(self) -> bool:
        """Whether the reply, so far, is or may become a bare JSON call; sets the family when it is one."""
        start = self._pending.lstrip()
        if not start:
            return True
        if _JSON_START.match(start):
            self._hold(len(self._pending) - len(start), "json")
            return True
        self._started = len(start) > _LONGEST_JSON_START or not _JSON_SHAPE.match(start)
        return not self._started

    def _shown(self) -> str:
        pending = self._pending
        mark = _MARKS.search(pending)
        if mark:
            shown = pending[: mark.start()]
            self._hold(mark.start(), _FAMILY_OF[mark[0]])
            return shown
        keep = next((n for n in range(min(_LONGEST, len(pending)), 0, -1) if pending[-n:] in _PREFIXES), 0)
        self._pending = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def _hold(self, start: int, family: str) -> None:
        self.family = family
        self._tail, self._pending = [self._pending[start:]], ""
