"""Published benchmarks over the user's own file: `browsecomp:data.jsonl`. What differs between them is data."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache, partial
from itertools import cycle
from typing import Any

from closeout.evaluate.benchmarks.benchmark import DATA, Benchmark
from closeout.evaluate.tasks import EvalTask, load_tasks
from closeout.settings_tree import read_yaml

__all__ = ["named_files", "over_own_file"]

# The names in files that MiroFlow has prepared, and those that most files have.
FIELDS = {"id": ("task_id", "id"), "question": ("task_question", "question"), "answer": ("ground_truth", "answer")}


@cache
def named_files() -> Mapping[str, Mapping[str, Any]]:
    """Return the known benchmarks by their names."""
    return read_yaml(DATA / "own_files.yaml")[0]


def over_own_file(name: str, path: str) -> Benchmark:
    """Return the benchmark of a name over a file."""
    known = named_files()[name]
    fields = {field: partial(_read_field, known, field) for field in FIELDS}

    def tasks() -> list[EvalTask]:
        found = load_tasks(path, fields={**fields, "files": lambda record: record.get("file_name") or ()})
        return [task for task in found if not (known.get("text_only") and task.files)]

    rules = {"scorer": known.get("scorer", "judge"), "judge": known.get("judge", "")}
    return Benchmark(about=known["about"], tasks=tasks, tools=None, **rules)


def _read_field(known: Mapping[str, Any], field: str, record: Mapping[str, Any]) -> Any:
    value = _as_written(known, field, record)
    if field == "id":  # A file without ids: the question identifies the task.
        question = str(_as_written(known, "question", record))
        return hashlib.sha256(question.encode()).hexdigest()[:16] if value is None else value
    if isinstance(value, str) and record.get("canary") and "key" in known:
        return _decrypted(value, str(record["canary"]), known["key"])
    return value


def _as_written(known: Mapping[str, Any], field: str, record: Mapping[str, Any]) -> Any:
    names = (known.get(field, ""), *FIELDS[field])
    return next((record[name] for name in names if name in record), None)


def _decrypted(text: str, canary: str, kind: str) -> str:
    """Decrypt a field that its publisher encrypted to keep it out of training data. Plain text is returned as it is."""
    key = hashlib.sha256(canary.encode()).digest() if kind == "sha256" else canary.encode()
    try:
        return bytes(a ^ b for a, b in zip(base64.b64decode(text, validate=True), cycle(key))).decode()
    except ValueError:
        return text
