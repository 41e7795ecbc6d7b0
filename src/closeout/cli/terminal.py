"""Write to a terminal or a pipe: consoles, one-line texts, tables, JSON, error sentences."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from closeout.cli.option_types import with_settings
from closeout.errors import UsageError
from closeout.evaluate.wording import amount
from closeout.messages import Usage

__all__ = [
    "Cell",
    "Column",
    "agrees",
    "amount",
    "confirmed",
    "duration",
    "make_console",
    "one_line",
    "print_answer",
    "print_json",
    "print_table",
    "printable",
    "say_error",
    "usage_line",
    "width_of",
]

PIPE_WIDTH = 160  # columns of a shortened line if the output is not a terminal
GAP = 2  # spaces between the columns of a table
WIDEST = 200  # columns of a table cell if nothing else limits it
NARROWEST = 4  # columns that a shortened table cell keeps at least


class _Console(Console):
    """A console that falls silent when its reader leaves, so that the run continues."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that neither highlights nor wraps."""
    return _Console(stderr=stderr, highlight=False, soft_wrap=True)


def width_of(console: Console) -> int:
    """Return how many columns a line may take."""
    return max(console.width, 20) if console.is_terminal else PIPE_WIDTH


# ------------------------------------------------------------------------------------------------ texts


def printable(text: str) -> str:
    """Return the text without control characters, so that it cannot send escape sequences to a terminal.

    Line breaks and tabs stay. A lone surrogate stays too: the stream escapes it.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" or "\ud800" <= c <= "\udfff" else " " if c.isspace() else "" for c in text
    )


def one_line(text: str, width: int = PIPE_WIDTH) -> str:
    """Return the text on one line of at most `width` columns, shortened with …, without control characters."""
    head = text[: width * 4]
    line = " ".join("".join(c if c.isprintable() else " " for c in head).split())
    if cell_len(line) <= width and len(text) == len(head):
        return line
    return set_cell_size(line, max(width - 1, 0)).rstrip() + "…"


def duration(ms: float) -> str:
    """Return `850 ms`, `2.4 s`."""
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def usage_line(usage: Usage) -> str:
    """Return tokens and cost: `1,140 tokens in (658 cached), 48 out · $0.0012`."""
    cached = f" ({usage.cache_read_tokens:,} cached)" if usage.cache_read_tokens else ""
    cost = f" · ${usage.cost_usd:.4f}" if usage.cost_usd else ""  # None: unknown, 0: one's own model
    return f"{usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out{cost}"


# ------------------------------------------------------------------------------------------------ output


def confirmed(command: str, what: str) -> bool:
    """Ask whether to delete something.

    Raises:
        UsageError: There is nobody to ask.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{command} would delete {what}. Add --yes to do it without a question.")
    print(f"Delete {what}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def agrees(question: str) -> bool:
    """Ask a person at the terminal. False if there is nobody to ask."""
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def say_error(sentence: str) -> None:
    """Print a sentence on stderr; do nothing if stderr is closed."""
    with suppress(OSError, ValueError, AttributeError):
        print(f"closeout: {printable(with_settings(sentence))}", file=sys.stderr, flush=True)


def print_answer(text: str) -> None:
    """Print the answer on stdout: unchanged into a pipe, without control characters on a terminal."""
    if sys.stdout.isatty():
        text = printable(text)
    print(text)


def print_json(value: Any) -> None:
    """Print one JSON document on stdout, in the encoding that stdout has."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    try:
        text = json.dumps(value, ensure_ascii=not utf8, default=str, allow_nan=False)
    except ValueError:  # JSON has no NaN and no Infinity: write their names
        plain = json.loads(json.dumps(value, default=str), parse_constant=str)
        text = json.dumps(plain, ensure_ascii=not utf8)
    print(text)


# ------------------------------------------------------------------------------------------------ tables


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: The heading.
        least: The width to which the column may shrink, or None if it is never shortened. If even that is too wide, it
            shrinks to four.
        rank: 0 for a column that is always shown; if space is short, higher ranks are left out first.
        right: Whether to align the column on the right.
    """

    name: str
    least: int | None = None
    rank: int = 0
    right: bool = False


Cell = str | tuple[str, str]  # text, or text and style


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], console: Console | None = None) -> None:
    """Print a table, header first: as wide as the terminal if the columns allow it, in a pipe without limit."""
    console = console or make_console()
    cells = [[(cell, "") if isinstance(cell, str) else cell for cell in row] for row in rows]
    for line in _table_lines(columns, cells, width_of(console) if console.is_terminal else None):
        console.print(line)


def _table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[tuple[str, str]]], width: int | None
) -> Iterator[Text]:
    texts = [[one_line(text, WIDEST) for text, _ in row] for row in rows]
    natural = [max(cell_len(column.name), *(cell_len(row[i]) for row in texts), 0) for i, column in enumerate(columns)]
    sizes = dict(enumerate(natural)) if width is None else _column_sizes(columns, natural, width)
    yield _table_line(columns, sizes, [(column.name, "bold") for column in columns])
    for row, shown in zip(rows, texts, strict=True):
        yield _table_line(columns, sizes, [(text, style) for text, (_, style) in zip(shown, row, strict=True)])


def _column_sizes(columns: Sequence[Column], natural: Sequence[int], width: int) -> dict[int, int]:
    """Return the width of each column that is shown."""
    sizes: dict[int, int] = {}
    left = width
    for index in sorted(range(len(columns)), key=lambda i: (columns[i].rank, i)):
        least = columns[index].least
        size = natural[index] if least is None else min(natural[index], least)
        if columns[index].rank and size + GAP > left:
            continue
        sizes[index] = size
        left -= size + GAP
    for index in sizes:
        if columns[index].least is not None and left + GAP < 0:
            taken = min(max(sizes[index] - NARROWEST, 0), -(left + GAP))
            sizes[index] -= taken
            left += taken
    spare = max(left + GAP, 0)
    for index in sorted(sizes, key=lambda i: natural[i] - sizes[i]):  # the smallest shortfall first
        short = sum(natural[i] > sizes[i] for i in sizes)
        extra = min(natural[index] - sizes[index], spare // max(short, 1))
        sizes[index] += extra
        spare -= extra
    return dict(sorted(sizes.items()))


def _table_line(columns: Sequence[Column], sizes: dict[int, int], cells: Sequence[tuple[str, str]]) -> Text:
    line = Text()
    for position, (index, size) in enumerate(sizes.items()):
        text = one_line(cells[index][0], max(size, 1)) if columns[index].least is not None else cells[index][0]
        padding = " " * max(size - cell_len(text), 0)
        line.append(padding + text if columns[index].right else text, cells[index][1])
        if position < len(sizes) - 1:
            line.append(" " * GAP if columns[index].right else padding + " " * GAP)
    line.rstrip()
    return line
