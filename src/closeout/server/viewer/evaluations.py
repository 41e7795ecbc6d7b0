"""Evaluations as the viewer's pages receive them: their list, and one with its trials as a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from closeout.codec import encode_json
from closeout.evaluate.overview import list_evaluations, show_evaluation
from closeout.evaluate.trials import TrialStore, evaluation_file, evaluations_in
from closeout.homes import Home
from closeout.journal.store import Store

__all__ = ["evaluation_shape", "evaluations_shape", "trial_shape"]

MOST_TASKS = 20_000  # rows of the matrix
LONGEST_TEXT = 300  # characters of an answer or a reason in the matrix


def evaluations_shape(home: Home) -> list[dict[str, Any]]:
    """Return the evaluations of a home, the latest first. Waits for the disk."""
    return [
        {
            **each,
            "state": _state(each["state"], each["workers"], each["planned"] - each["finished"], each["suspended"]),
        }
        for each in list_evaluations(home)
    ]


def evaluation_shape(home: Home, name: str, *, scorer: str = "", version: str = "") -> dict[str, Any]:
    """Return an evaluation with its trials; only its state if the page has this version of it. Waits for the disk.

    Raises:
        UsageError: There is no such evaluation or scorer.
    """
    path = evaluation_file(home, name)
    now = _version(path)
    with TrialStore(path) as store:
        progress, created = store.progress(scorer or store.spec["scorers"][0]), store.created
    state = _state(
        progress.control.state, progress.workers, progress.planned - progress.finished, progress.control.suspended
    )
    if now == version:
        return {"state": state, "version": now}
    found = show_evaluation(home, name, scorer=scorer, tasks=MOST_TASKS)
    shown = ("name", "scorer", "scorers", "stopped", "score", "bootstrap", "epochs", "pass_at", "pass_hat", "totals")
    return {
        **{key: found[key] for key in (*shown, "failures", "provenance")},
        "state": state,
        "version": now,
        "created": created,
        "model": found["spec"]["agent"].get("model", ""),
        "matrix": [_row(row, at_work=progress.workers > 0) for row in found["matrix"]],
    }


def trial_shape(store: Store, run_id: str) -> dict[str, Any] | None:
    """Return the expected answer and the verdicts if a run is a trial of an evaluation, else None. Waits for the disk.

    Raises:
        RunNotFound: No run has this name.
    """
    started, home = store.beginning(run_id), store.home
    name = None if started is None else started.origin.get("evaluation")
    if name not in evaluations_in(home):
        return None
    with TrialStore(evaluation_file(home, name)) as trials:
        found = trials.trial(run_id)
    if found is None:
        return None
    task, trial = found
    return {
        "evaluation": name,
        "task": task.id,
        "epoch": trial.epoch,
        "expected": _text(task.answer),
        "scores": [
            {"scorer": scorer, "value": s.value, "correct": s.correct, "judged": s.judged, "reason": s.reason}
            for scorer, s in trial.scores.items()
        ],
    }


def _state(state: str, workers: int, unfinished: int, suspended: int) -> str:
    """Return where an evaluation is: finished, running, paused, stopped, waiting, or interrupted.

    Without a worker it is interrupted, or waiting if only people's decisions are missing.
    """
    if not unfinished:
        return "finished"
    if not workers and unfinished == suspended:
        return "waiting"
    if state == "running" and not workers:
        return "interrupted"
    return state


def _version(path: Path) -> str:
    """Return what differs whenever the file has changed."""
    found = []
    for file in (path, Path(f"{path}-wal")):
        try:
            stat = file.stat()
        except OSError:
            found.append("-")
        else:
            found.append(f"{stat.st_mtime_ns:x}-{stat.st_size:x}")
    return ".".join(found)


def _row(row: Mapping[str, Any], *, at_work: bool) -> dict[str, Any]:
    return {
        "task": row["task"],
        "question": row["question"],
        "answer": _short(row["answer"]),
        "trials": [
            {
                "epoch": trial["epoch"],
                "run_id": None if trial["state"] == "waiting" else trial["run_id"],
                "outcome": _outcome(trial, at_work=at_work),
                "score": trial["score"],
                "answer": trial["answer"],
                "reason": _short(trial["reason"]),
            }
            for trial in row["trials"]
        ],
    }


def _outcome(trial: Mapping[str, Any], *, at_work: bool) -> str:
    """Return what a cell of the matrix shows. A trial whose worker died is claimed until another one frees it."""
    if trial["state"] == "suspended":
        return "waiting"
    if trial["state"] != "finished":
        return "running" if trial["state"] == "running" and at_work else "unfinished"
    if trial["correct"]:
        return "right"
    return {"answered": "wrong", "failed": "failed"}.get(trial["status"], "unanswered")


def _short(value: Any) -> str:
    return (_text(value) or "")[:LONGEST_TEXT]


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else encode_json(value).decode()
