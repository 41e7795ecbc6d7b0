"""Writes evaluations with many trials straight into their file: running them would take minutes."""

from __future__ import annotations

import random
import sqlite3
import time
from pathlib import Path
from typing import Any

from closeout.evaluate.tasks import EvalTask
from closeout.evaluate.trials import TrialStore, evaluation_file

SPEC = {
    "agent": {"model": "openai:m", "dialect": "function_call", "tools": {"search": "1"}},
    "settings": {"temperature": 0.7},
    "tasks": "canals.jsonl",
    "scorers": ["exact"],
    "versions": {"closeout": "0.1.0"},
    "command": "closeout eval canals.jsonl --agent agent.yaml --epochs 5",
    "seed": 0,
}
# How often each outcome is: right, wrong, without an answer, failed.
OUTCOMES = (("answered", 1, 60), ("answered", 0, 25), ("unanswered", 0, 9), ("failed", 0, 6))


def write_evaluation(
    home: Path,
    name: str,
    *,
    tasks: int,
    epochs: int,
    finished: float = 1.0,
    running: int = 0,
    questions: Any = "In which year was canal {} opened?",
) -> Path:
    """Write an evaluation, the given share of its trials finished, some of the others running.

    Args:
        home: The folder that keeps it.
        name: Its name.
        tasks: How many tasks it has.
        epochs: How many trials each has.
        finished: The share of trials that have ended.
        running: How many others are at work.
        questions: The questions' text, with the number in {}.
    """
    path = evaluation_file(home, name)
    store = TrialStore(path, SPEC)
    try:
        found = [
            EvalTask(id=f"canal-{n:05d}", question=questions.format(n), answer=str(1800 + n % 120))
            for n in range(tasks)
        ]
        store.add_tasks(found, epochs)
    finally:
        store.close()
    random_ = random.Random(name)
    db = sqlite3.connect(path)
    try:
        numbers = [number for (number,) in db.execute("SELECT number FROM trials ORDER BY number")]
        ended = int(len(numbers) * finished)
        kinds = random_.choices(OUTCOMES, [weight for *_, weight in OUTCOMES], k=ended)
        rows, scores = [], []
        for number, (status, right, _) in zip(numbers, kinds, strict=False):
            answer = "1832" if status == "answered" else None
            error = "RateLimited" if status == "failed" else ""
            rows.append((answer, status, "answered" if answer else "max_turns", error, number))
            scores.append((number, "exact", float(right), right, 1, "" if right else "expected 1850"))
        db.executemany(
            "UPDATE trials SET state='finished', started=0, ended=1, answer=?, status=?, stop_reason=?, error='', "
            "error_kind=?, permanent=0, turns=5, attempts=1, rollbacks=0, repairs=0, tool_calls=4, tool_failures=0, "
            "requests=5, input_tokens=900, output_tokens=80, cached_tokens=700, cost=0.001, seconds=3.5 "
            "WHERE number=?",
            rows,
        )
        db.executemany("INSERT INTO scores VALUES (?,?,?,?,?,?)", scores)
        busy = [(number,) for number in numbers[ended : ended + running]]
        db.executemany("UPDATE trials SET state='running', started=0 WHERE number=?", busy)
        db.execute("UPDATE evaluation SET cost=?, tokens=?, created=?", (0.001 * ended, 980 * ended, time.time()))
        db.commit()
    finally:
        db.close()
    return path
