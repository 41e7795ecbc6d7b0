"""What changes when a turn is taken back and the model is asked again, and how often that may happen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from closeout.messages import ModelRequest
from closeout.orchestrator.review import RollBack

__all__ = ["RollbackPolicy"]

STEP = 0.2  # by which each further rollback in a row raises the temperature
HOTTEST = 1.0


@dataclass(slots=True)
class RollbackPolicy:
    """Counts rollbacks, in a row and in all over an attempt, and makes each next request differ from the last.

    The first in a row adds a hint behind the stable prefix; each further one also raises the temperature a step. A tool
    that the verdict names is not offered in the next try. All of it is dropped once a turn succeeds.
    """

    max_consecutive: int = 5
    max_total: int = 30
    temperature: float | None = None
    consecutive: int = 0
    total: int = 0
    note: str = ""
    withheld: frozenset[str] = frozenset()

    @property
    def spent(self) -> bool:
        """No further rollback is allowed for now."""
        return self.consecutive >= self.max_consecutive or self.total >= self.max_total

    def roll_back(self, verdict: RollBack) -> str:
        """Take note of a rollback. Returns what will be different, for the journal."""
        self.consecutive += 1
        self.total += 1
        self.note = verdict.hint
        self.withheld = frozenset((verdict.withhold,)) if verdict.withhold else frozenset()
        changes = ["hint"] if verdict.hint else []
        if self._heat() is not None:
            changes.append(f"temperature {self._heat():.1f}")
        changes += [f"without {name}" for name in sorted(self.withheld)]
        return ", ".join(changes)

    def succeed(self) -> None:
        self.consecutive = 0
        self.note = ""
        self.withheld = frozenset()

    def _heat(self) -> float | None:
        """The raised temperature, or None where it stays as it is."""
        steps = self.consecutive - 1
        if steps <= 0:
            return None
        return min((self.temperature or 0.0) + steps * STEP, max(HOTTEST, self.temperature or 0.0))

    def adjust(self, request: ModelRequest) -> ModelRequest:
        heat = self._heat()
        return request if heat is None else replace(request, temperature=heat)
