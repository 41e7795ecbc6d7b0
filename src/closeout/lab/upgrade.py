"""Check before a deployment how the open runs of an agent continue with its new version."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal, TypeAlias

from closeout.errors import CloseoutError
from closeout.journal.events import RunStarted
from closeout.journal.run_journal import describe_damage
from closeout.journal.run_names import LAB
from closeout.journal.store import RunRecord, RunRows, Store
from closeout.records import record
from closeout.run.handoff import is_run_of
from closeout.run.lifecycle import as_recorded
from closeout.run.plan import AgentPlan, OnChange
from closeout.run.resuming import continuation

__all__ = ["RunCheck", "UpgradeReport", "Verdict", "check_open_runs"]

Verdict: TypeAlias = Literal["unchanged", "changed", "stops"]
"""A run continues as if nothing had changed, or with named differences, or it cannot continue."""

_OPEN = ("waiting", "interrupted", "running")


@record(kw_only=True)
class RunCheck:
    """The check of one open run.

    Attributes:
        run_id: The run.
        task: The beginning of its task.
        status: "waiting", "interrupted", or "running" in another process.
        verdict: "unchanged", "changed", or "stops".
        differences: How the agent differs from the one that began the run.
        problem: Why the run stops.
        remedy: What to do about it.
        event: The number of the event at which the run stops, None if it is not a certain one.
    """

    run_id: str
    task: str
    status: str
    verdict: Verdict
    differences: tuple[str, ...] = ()
    problem: str = ""
    remedy: str = ""
    event: int | None = None


@record(kw_only=True)
class UpgradeReport:
    """The checks of an agent's open runs.

    Attributes:
        runs: The open runs, newest first.
        others: The number of open runs that agents of other names began. They are not checked.
    """

    runs: tuple[RunCheck, ...] = ()
    others: int = 0

    def of(self, verdict: Verdict) -> tuple[RunCheck, ...]:
        """Return the runs with a verdict."""
        return tuple(each for each in self.runs if each.verdict == verdict)

    @property
    def ok(self) -> bool:
        """True if every run continues."""
        return not self.of("stops")


async def check_open_runs(
    plan: AgentPlan,
    store: Store,
    run_ids: Iterable[str] | None = None,
    *,
    on_change: OnChange | None = None,
    progress: Callable[[int], object] | None = None,
) -> UpgradeReport:
    """Run the records of open runs again in memory, with no model, no tool and no effect.

    Args:
        plan: The agent.
        store: Where its runs are kept.
        run_ids: The runs to check. Default: all open ones that an agent of this name began.
        on_change: What runs do about differences; default: as the agent says.
        progress: Called with the number of runs that are checked, after each.

    Raises:
        RunNotFound: There is no such run.
        JournalError: The journal cannot be read.
    """
    checks: list[RunCheck] = []
    others = 0
    plan = replace(plan, remember_dialect=None, remember_rules=None)
    found = store.each_run(not_under=[LAB]) if run_ids is None else map(store.run, run_ids)
    async with plan.manager:
        for run in found:
            if run_ids is None and run.status not in _OPEN:
                continue
            recorded = await store.off_loop(store.read, run.run_id)
            started = recorded.rows[0].event if recorded.rows else None
            if run_ids is None and isinstance(started, RunStarted) and not is_run_of(plan, started):
                others += 1
                continue
            checks.append(await _check(plan, store, run, recorded, on_change or plan.spec.on_change))
            if progress is not None:
                progress(len(checks))
    return UpgradeReport(runs=tuple(checks), others=others)


async def _check(plan: AgentPlan, store: Store, run: RunRecord, recorded: RunRows, on_change: OnChange) -> RunCheck:
    check = RunCheck(run_id=run.run_id, task=run.task, status=run.status, verdict="stops")
    if recorded.problems:
        problem = describe_damage(run.run_id, recorded.problems)
        return replace(check, problem=problem, remedy="See `closeout doctor --check`.")
    rows = recorded.rows
    try:
        how = await continuation(as_recorded(plan, rows), rows, run.run_id, on_change, load=store.content)
    except CloseoutError as error:
        return replace(check, problem=str(error), remedy="Correct the agent.")
    return replace(
        check,
        verdict="stops" if how.problem else "changed" if how.differences else "unchanged",
        differences=how.differences,
        problem=how.problem,
        remedy=how.remedy,
        event=how.event,
    )
