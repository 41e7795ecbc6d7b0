"""The parts of a benchmark: its tasks, their scorers, and the settings of its agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from closeout.evaluate.scorers import ScorerSource
from closeout.evaluate.tasks import EvalTask

__all__ = ["DATA", "Benchmark"]

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark.

    Attributes:
        about: What it measures, in a sentence.
        tasks: Reads the tasks.
        scorer: What scores them; "judge" is a model that judges by `judge`.
        judge: What such a model must know in addition to the usual instructions.
        tools: Makes the tools for a task: new ones for each trial if they have state. None: the agent is the user's.
        instructions: What its agent should know.
        settings: Settings that its agent needs, by dotted key.
    """

    about: str
    tasks: Callable[[], list[EvalTask]]
    scorer: ScorerSource
    judge: str = ""
    tools: Callable[[EvalTask], Sequence[Any]] | None = lambda _: ()
    instructions: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
