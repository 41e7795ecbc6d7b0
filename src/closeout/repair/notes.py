"""Keeps count of what was put right in one text: the first place of each kind, and how many there were."""

from __future__ import annotations

from closeout.messages import Repair

__all__ = ["Notes"]


class Notes:
    """The repairs made in one text. A kind that occurs a thousand times is one entry that says so."""

    __slots__ = ("_counts", "_firsts", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._firsts: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def __contains__(self, kind: str) -> bool:
        return kind in self._counts

    def add(self, kind: str, position: int) -> None:
        if kind in self._counts:
            self._counts[kind] += 1
        else:
            self._counts[kind] = 1
            self._firsts[kind] = position

    @property
    def repairs(self) -> tuple[Repair, ...]:
        return tuple(
            Repair(
                kind,
                f"character {at}",
                self._text[max(0, at - 8) : at + 16],
                "" if self._counts[kind] == 1 else f"{self._counts[kind]} places",
            )
            for kind, at in self._firsts.items()
        )
