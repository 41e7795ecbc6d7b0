"""A table that fits where it is shown: some columns stay whole, others give way or are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from closeout.cli.console import one_line

__all__ = ["Column", "fitted"]

GAP = 2  # spaces between columns
WIDEST = 200  # columns of a cell where nothing limits it
NARROWEST = 4  # columns that are left of a shortened one where the whole ones take nearly all


@dataclass(frozen=True, slots=True)
class Column:
    """`least` None: always whole. A number: may be shortened to so many columns of the terminal, or to four where even
    that is too wide.

    `rank` 0: always there; the higher the rank, the sooner it is left out where room is short.
    """

    name: str
    least: int | None = None
    rank: int = 0
    right: bool = False


Cell = tuple[str, str]  # text, style


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None) -> Iterator[Text]:
    """The lines, header first, none wider than `width` as far as whole columns allow; None: uncut."""
    texts = [[one_line(text, WIDEST) for text, _ in row] for row in rows]
    natural = [max(cell_len(column.name), *(cell_len(row[i]) for row in texts), 0) for i, column in enumerate(columns)]
    sizes = dict(enumerate(natural)) if width is None else _sizes(columns, natural, width)
    yield _line(columns, sizes, [(column.name, "bold") for column in columns])
    for row, shown in zip(rows, texts, strict=True):
        yield _line(columns, sizes, [(text, style) for text, (_, style) in zip(shown, row, strict=True)])


def _sizes(columns: Sequence[Column], natural: Sequence[int], width: int) -> dict[int, int]:
    """Which columns there are and how wide they are."""
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
            given = min(max(sizes[index] - NARROWEST, 0), -(left + GAP))
            sizes[index] -= given
            left += given
    spare = max(left + GAP, 0)
    for index in sorted(sizes, key=lambda i: natural[i] - sizes[i]):  # who wants least is satisfied first
        hungry = sum(natural[i] > sizes[i] for i in sizes)
        given = min(natural[index] - sizes[index], spare // max(hungry, 1))
        sizes[index] += given
        spare -= given
    return dict(sorted(sizes.items()))


def _line(columns: Sequence[Column], sizes: dict[int, int], cells: Sequence[Cell]) -> Text:
    line = Text()
    for position, (index, size) in enumerate(sizes.items()):
        text = one_line(cells[index][0], max(size, 1)) if columns[index].least is not None else cells[index][0]
        padding = " " * max(size - cell_len(text), 0)
        line.append(padding + text if columns[index].right else text, cells[index][1])
        if position < len(sizes) - 1:
            line.append(" " * GAP if columns[index].right else padding + " " * GAP)
    line.rstrip()
    return line
