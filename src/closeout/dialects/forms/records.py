"""The records of the tool-call forms: what a form is, what it found in a text, what a reader gets. No reading here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from closeout.messages import Defect, Repair, ToolCall

if TYPE_CHECKING:
    from closeout.dialects.forms.source import Source
    from closeout.dialects.forms.toolbox import Toolbox

__all__ = ["Block", "Form", "Found", "ToolCallsRead"]


class ToolCallsRead(NamedTuple):
    """What a model's text holds: calls, what it says besides them, what it thought, and what had to be put right.

    `calls` have their arguments as dicts; `content` is the text in front of the first call, stripped; `reasoning` is
    what stood in reasoning tags or channels; `defects` name calls that were begun but cannot be read.
    """

    calls: tuple[ToolCall, ...] = ()
    content: str = ""
    reasoning: str = ""
    repairs: tuple[Repair, ...] = ()
    family: str = ""  # the form that the calls were written in, "" without calls
    defects: tuple[Defect, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of text, `[start, end)` in code points, that is a call or several, or the ruin of one."""

    start: int
    end: int
    calls: tuple[ToolCall, ...] = ()
    repairs: tuple[Repair, ...] = ()
    broken: str = ""  # why it is no call, for a person; then `calls` is empty
    hidden: bool = False  # a ruin made of control tokens: never part of the content


@dataclass(frozen=True, slots=True)
class Found:
    """What one form found. `content` and `reasoning` are set by forms that have channels for them."""

    blocks: tuple[Block, ...] = ()
    content: str | None = None
    reasoning: str = ""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(call for block in self.blocks for call in block.calls)


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which models write tool calls as text.

    `markers` are literal strings of which one must occur in a text of this form; without markers the form is bare
    and only tried when it is named or nothing else fits. `read` gives a text's blocks in order and raises nothing.
    `channels`: the form has its own marks for reasoning and content. `keeps_tail`: text behind the calls is meant for
    the reader, as the model's template has it.
    """

    family: str
    markers: tuple[str, ...]
    read: Callable[[Source, Toolbox], Found]
    channels: bool = False
    keeps_tail: bool = False
