"""What changes when a turn is taken back and the model is asked again, and how often that may happen."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from closeout.messages import ModelRequest
from closeout.orchestrator.review import RollBack

__all__ = ["RollbackPolicy"]

STEP = 0.2  # by which each further rollback in a row raises the temperature
HOTTEST = 1.0
UNSET = 0.6  # what a temperature that is left to the server counts as; most servers take 0.7 to 1
FAILURES = 3  # rollbacks in a row for the same tool after which it is not offered in the next try


@dataclass(slots=True)
class RollbackPolicy:
    """Counts rollbacks, in a row and in all over an attempt, and makes each next request differ from the last.

    The first in a row adds a hint behind the stable prefix; each further one also says how often it was and raises the
    temperature a step, where there is room to. A tool that a row of turns came to nothing with is not offered in the
    next try, if there are `tools` beside it; only then, because leaving it out breaks the cached prefix. All of it is
    dropped once a turn succeeds.
    """

    max_consecutive: int = 5
    max_total: int = 30
    temperature: float | None = None
    tools: Collection[str] = ()
    consecutive: int = 0
    total: int = 0
    note: str = ""
    withheld: frozenset[str] = frozenset()
    _row: list[str] = field(default_factory=list)  # the tool of each rollback in a row

    @property
    def spent(self) -> bool:
        """No further rollback is allowed for now."""
        return self.consecutive >= self.max_consecutive or self.total >= self.max_total

    def roll_back(self, verdict: RollBack) -> str:
        """Take note of a rollback. Returns what will be different, for the journal."""
        self.consecutive += 1
        self.total += 1
        self._row.append(verdict.tool)
        # The same words at the same temperature would bring the same reply; the count makes them others.
        again = f" This was try {self.consecutive}: do it differently." if self.consecutive > 1 else ""
        self.note = f"{verdict.hint}{again}".lstrip()
        self.withheld = self._withheld(verdict.tool)
        changes = ["hint"] if self.note else []
        if (heat := self._heat()) is not None:
            changes.append(f"temperature {heat:.1f}")
        changes += [f"without {name}" for name in sorted(self.withheld)]
        return ", ".join(changes)

    def succeed(self) -> None:
        self.consecutive = 0
        self.note = ""
        self.withheld = frozenset()
        self._row.clear()

    def _withheld(self, tool: str) -> frozenset[str]:
        failed = len(self._row) >= FAILURES and all(name == tool for name in self._row[-FAILURES:])
        return frozenset((tool,)) if tool and failed and set(self.tools) - {tool} else frozenset()

    def _heat(self) -> float | None:
        """The raised temperature, or None where it stays as it is."""
        base = UNSET if self.temperature is None else self.temperature
        if self.consecutive < 2 or base >= HOTTEST:
            return None
        return min(base + (self.consecutive - 1) * STEP, HOTTEST)

    def adjust(self, request: ModelRequest) -> ModelRequest:
        heat = self._heat()
        return request if heat is None else replace(request, temperature=heat)
