"""Evaluate agents on datasets: trials, scoring, statistics, reports.

from closeout import evaluate  # the package can be called: evaluate(agent, tasks)
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from closeout.lazy_names import lazy_names

if TYPE_CHECKING:
    from closeout.evaluate.comparison import Comparison, compare, compare_all
    from closeout.evaluate.estimates import Estimate, PairedEstimate
    from closeout.evaluate.evaluation import edit_score, evaluate, rescore, retry
    from closeout.evaluate.report import EvalReport, load_report
    from closeout.evaluate.report_html import write_html
    from closeout.evaluate.scorers import Judge, Panel, Scorer
    from closeout.evaluate.scores import Attempted, Score
    from closeout.evaluate.simulated_user import SimulatedUser
    from closeout.evaluate.tasks import EvalTask, load_tasks
    from closeout.evaluate.what_if_report import WhatIfReport, what_if

__all__ = [
    "Attempted",
    "Comparison",
    "Estimate",
    "EvalReport",
    "EvalTask",
    "Judge",
    "PairedEstimate",
    "Panel",
    "Score",
    "Scorer",
    "SimulatedUser",
    "WhatIfReport",
    "compare",
    "compare_all",
    "edit_score",
    "evaluate",
    "load_report",
    "load_tasks",
    "rescore",
    "retry",
    "what_if",
    "write_html",
]

_HOMES = {
    "comparison": ("Comparison", "compare", "compare_all"),
    "estimates": ("Estimate", "PairedEstimate"),
    "evaluation": ("edit_score", "evaluate", "rescore", "retry"),
    "report": ("EvalReport", "load_report"),
    "report_html": ("write_html",),
    "scorers": ("Judge", "Panel", "Scorer"),
    "scores": ("Attempted", "Score"),
    "simulated_user": ("SimulatedUser",),
    "tasks": ("EvalTask", "load_tasks"),
    "what_if_report": ("WhatIfReport", "what_if"),
}

__getattr__ = lazy_names(__name__, _HOMES)


class _Package(ModuleType):
    """The package, which can be called as its function `evaluate`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.evaluate(*args, **kwargs)

    @property
    def __signature__(self) -> Any:
        from inspect import signature

        return signature(self.evaluate)


sys.modules[__name__].__class__ = _Package
