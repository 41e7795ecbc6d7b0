"""How things are put on a terminal or into a pipe: consoles, text on one line, JSON, amounts. Not what is said."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console

from closeout.cli.guard import printable
from closeout.messages import Usage

__all__ = ["amount", "bill", "duration", "make_console", "one_line", "print_answer", "print_json", "width_of"]

PIPE_WIDTH = 160  # columns of a shortened line where there is no terminal


class _Console(Console):
    """A console whose reader may leave: a run goes on although nobody watches it any more."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def make_console(*, stderr: bool = False) -> Console:
    """A console that adds nothing of its own: no highlighting, no wrapping."""
    return _Console(stderr=stderr, highlight=False, soft_wrap=True)


def width_of(console: Console) -> int:
    """Columns a line may take; in a pipe there is no edge, only what is pleasant to read."""
    return max(console.width, 20) if console.is_terminal else PIPE_WIDTH


def one_line(text: str, width: int = PIPE_WIDTH) -> str:
    """A text on one line of at most `width` columns, shortened with …, without control characters."""
    head = text[: width * 4]
    line = " ".join("".join(c if c.isprintable() else " " for c in head).split())
    if cell_len(line) <= width and len(text) == len(head):
        return line
    return set_cell_size(line, max(width - 1, 0)).rstrip() + "…"


def print_answer(text: str) -> None:
    """The answer on stdout: as it is for a program, without control characters (escape sequences) for a terminal."""
    if sys.stdout.isatty():
        text = printable(text)
    print(text)


def print_json(value: Any) -> None:
    """One JSON document on stdout, in whatever encoding that has."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    try:
        text = json.dumps(value, ensure_ascii=not utf8, default=str, allow_nan=False)
    except ValueError:  # JSON knows neither NaN nor Infinity: their names stand for them
        plain = json.loads(json.dumps(value, default=str), parse_constant=str)
        text = json.dumps(plain, ensure_ascii=not utf8)
    print(text)


def amount(number: int, thing: str) -> str:
    """`1 turn`, `1,200 turns`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def duration(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def bill(usage: Usage) -> str:
    """Tokens and cost: `1,140 tokens in (658 cached), 48 out · $0.0012`."""
    cached = f" ({usage.cache_read_tokens:,} cached)" if usage.cache_read_tokens else ""
    cost = f" · ${usage.cost_usd:.4f}" if usage.cost_usd else ""  # None: unknown, 0: an own model
    return f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out{cost}"
