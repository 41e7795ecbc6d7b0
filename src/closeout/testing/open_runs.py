"""Test in CI that an agent's open runs continue with its new version."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.lab.upgrade import UpgradeReport
    from closeout.run.plan import OnChange

__all__ = ["assert_runs_continue"]


async def assert_runs_continue(
    agent: Agent[Any, Any], run_ids: Iterable[str] | None = None, *, on_change: OnChange | None = None
) -> UpgradeReport:
    """Check the open runs of an agent in its home, see `Agent.check_runs`, and return the report.

    Raises:
        AssertionError: A run would stop. The message names the runs, the reasons, and what to do.
    """
    report = await agent.check_runs(run_ids, on_change=on_change)
    stops = report.of("stops")
    if stops:
        lines = "\n".join(f"{each.run_id}: {each.problem}. {each.remedy}" for each in stops[:20])
        raise AssertionError(f"{len(stops)} of {len(report.runs)} open runs would stop:\n{lines}")
    return report
