"""The vocabulary of the tool-call forms: `Form`, and what a form finds in a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from closeout.messages import Defect, Repair, ToolCall
from closeout.parsing.forms.json_values import Source, refusal_in
from closeout.parsing.forms.offered import OfferedNames

__all__ = ["Block", "Form", "Found", "ToolCallsRead"]

_NO_TOOL = re.compile(r"(?:no|non|null)(?:[\s_-]?(?:ne|function|tool|action)s?)?(?:[\s_-]?calls?)?", re.IGNORECASE)
_REFUSING_REPAIRS = {"not_a_number": "an argument is not a number", "duplicate_key": "a key has two different values"}


class ToolCallsRead(NamedTuple):
    """The tool calls in a model's text, and the rest of the text.

    Attributes:
        calls: The calls, with arguments as dicts.
        content: The text before the first call, stripped.
        reasoning: The text in reasoning tags or channels.
        repairs: What was repaired, in order.
        family: The family of the form that the calls were written in, "" without calls.
        defects: Calls that were begun but cannot be read, and calls that were refused.
    """

    calls: tuple[ToolCall, ...] = ()
    content: str = ""
    reasoning: str = ""
    repairs: tuple[Repair, ...] = ()
    family: str = ""
    defects: tuple[Defect, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of text, `[start, end)` in code points, that holds one or more calls, or a malformed one."""

    start: int
    end: int
    calls: tuple[ToolCall, ...] = ()
    repairs: tuple[Repair, ...] = ()
    broken: str = ""  # why no call could be read, for a person; then `calls` is empty
    hidden: bool = False  # a malformed call made of control tokens: never part of the content
    refuses: bool = False  # refused for safety: no form may read a call from this text


@dataclass(frozen=True, slots=True)
class Found:
    """The calls that one form found in a text. Forms with channels set `content` and `reasoning`."""

    blocks: tuple[Block, ...] = ()
    content: str | None = None
    reasoning: str = ""
    family: str = ""  # set if the blocks show it better than the form does

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(call for block in self.blocks for call in block.calls)


@dataclass(frozen=True, slots=True, eq=False)  # hashed by identity: tuples of forms are looked up in every turn
class Form:
    """One way in which models write tool calls as text.

    Attributes:
        family: The name of the family of models or servers that use the form.
        markers: Literal strings, one of which every text in this form contains. A form without markers is bare: it is
            used only if it is named.
        read: Returns the blocks of a text in order. It raises nothing and takes linear time.
        channels: The form marks reasoning and content itself.
        keeps_tail: Text after the calls is content.
    """

    family: str
    markers: tuple[str, ...]
    read: Callable[[Source, OfferedNames], Found]
    channels: bool = False
    keeps_tail: bool = False

    def find(self, source: Source, toolbox: OfferedNames) -> Found:
        """Read a text, and refuse calls whose meaning is contradictory.

        Returns:
            What `read` returns; a block with such a call is marked as refused and has no calls. A call of a tool that
            is named "none", and is not offered, says that there is no call.
        """
        found = self.read(source, toolbox)
        blocks = tuple(_checked(block) for block in found.blocks if not _is_none(block, toolbox))
        return found if blocks == found.blocks else replace(found, blocks=blocks)


def _is_none(block: Block, toolbox: OfferedNames) -> bool:
    """True if a block calls nothing but a tool named "none"."""
    names = [call.name for call in block.calls]
    return bool(names) and all(_NO_TOOL.fullmatch(name) and name not in toolbox for name in names)


def _checked(block: Block) -> Block:
    reason = next((_REFUSING_REPAIRS[repair.kind] for repair in block.repairs if repair.kind in _REFUSING_REPAIRS), "")
    reason = reason or next(filter(None, (refusal_in(call.arguments) for call in block.calls)), "")
    return replace(block, calls=(), broken=reason, refuses=True) if reason and block.calls else block
