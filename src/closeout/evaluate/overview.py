"""List, show and delete the evaluations of a home, as JSON values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from closeout.errors import JournalError, UsageError
from closeout.evaluate.report import read_report
from closeout.evaluate.trials import TrialStore, evaluation_file, evaluations_in
from closeout.evaluate.wording import finite
from closeout.homes import Home

__all__ = ["delete_evaluation", "list_evaluations", "runs_of", "show_evaluation"]


def list_evaluations(home: Home, on_error: Callable[[Exception], object] | None = None) -> list[dict[str, Any]]:
    """Return the evaluations of a home, the latest first, each with its progress. Waits for the disk.

    Files that cannot be read are left out; `on_error` receives the error.
    """
    found = []
    for name in evaluations_in(home):
        try:
            with TrialStore(evaluation_file(home, name)) as store:
                spec, progress = store.spec, store.progress(store.spec["scorers"][0])
                found.append(
                    {
                        "name": name,
                        "created": store.created,
                        "model": spec["agent"].get("model", ""),
                        "scorer": spec["scorers"][0],
                        "planned": progress.planned,
                        "finished": progress.finished,
                        "suspended": progress.control.suspended,
                        "score_so_far": finite(asdict(progress.score)),
                        "failures": dict(progress.failures),
                        "cost": progress.control.cost,
                        "tokens": progress.control.tokens,
                        "state": progress.control.state,
                        "workers": progress.workers,
                    }
                )
        except (UsageError, JournalError) as error:
            if on_error is not None:
                on_error(error)
    return found


def show_evaluation(home: Home, name: str, *, scorer: str = "", first: int = 0, tasks: int = 500) -> dict[str, Any]:
    """Return an evaluation: its report, and for some of its tasks the trials, epoch by epoch. Waits for the disk.

    Args:
        home: The folder that keeps it.
        name: The evaluation.
        scorer: Whose scores; by default those of its first scorer.
        first: The first task of the matrix.
        tasks: How many tasks the matrix has.

    Raises:
        UsageError: There is no such evaluation or scorer.
    """
    with TrialStore(evaluation_file(home, name)) as store:
        report = read_report(store, scorer)
    shown = {task.id: task for task in report.tasks[first : first + tasks]}
    matrix = [
        {
            "task": task_id,
            "question": shown[task_id].question[:200],
            "answer": shown[task_id].answer,
            "trials": [
                {
                    "epoch": trial.epoch,
                    "run_id": trial.run_id,
                    "state": trial.state,
                    "status": trial.outcome.status if trial.outcome is not None else "",
                    "score": report.value_of(trial),
                    "correct": report.is_correct(trial),
                    "answer": (trial.outcome.answer or "")[:200] if trial.outcome is not None else "",
                    "reason": trial.scores[report.scorer].reason if report.scorer in trial.scores else "",
                }
                for trial in trials
            ],
        }
        for task_id, trials in report.by_task.items()
        if task_id in shown
    ]
    return {
        **report.to_dict(),
        "lines": [list(line) for line in report.lines()],
        "provenance": [list(line) for line in report.provenance()],
        "scorers": report.scorers,
        "matrix": matrix,
    }


def runs_of(home: Home, name: str) -> list[str]:
    """Return the ids of the runs of an evaluation's trials.

    Raises:
        UsageError: There is no such evaluation.
    """
    with TrialStore(evaluation_file(home, name)) as store:
        return [trial.run_id for trial in store.trials()]


def delete_evaluation(home: Home, name: str) -> None:
    """Delete the trials and scores of an evaluation. The runs of its trials stay.

    Raises:
        UsageError: There is no such evaluation, or processes work on it.
    """
    file = evaluation_file(home, name)
    with TrialStore(file) as store:
        workers = store.progress(store.spec["scorers"][0]).workers
    if workers:
        raise UsageError(f"{workers} processes work on {name}. Stop them first: closeout eval control {name} --stop")
    for path in (file, *(file.with_name(f"{file.name}{end}") for end in ("-wal", "-shm", "-workers"))):
        path.unlink(missing_ok=True)
