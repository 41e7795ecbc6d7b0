"""Published benchmarks over the user's own file: `browsecomp:data.jsonl`. What differs between them is data."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
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
    fields = {field: _reader(known, field, (known.get(field, ""), *names)) for field, names in FIELDS.items()}

    def tasks() -> list[EvalTask]:
        found = load_tasks(path, fields={**fields, "files": lambda record: record.get("file_name") or ()})
        return [task for task in found if not (known.get("text_only") and task.files)]

    rules = {"scorer": known.get("scorer", "judge"), "judge": known.get("judge", "")}
    return Benchmark(about=known["about"], tasks=tasks, tools=None, **rules)


def _reader(known: Mapping[str, Any], field: str, names: tuple[str, ...]) -> Callable[[Mapping[str, Any]], Any]:
    def read(record: Mapping[str, Any]) -> Any:
        value = next((record[name] for name in names if name in record), None)
        if field == "id":  # files without ids have one for each question
            return hashlib.sha256(str(question(record)).encode()).hexdigest()[:16] if value is None else value
        if isinstance(value, str) and record.get("canary") and "key" in known:
            return _decrypted(value, str(record["canary"]), known["key"])
        return value

    def question(record: Mapping[str, Any]) -> Any:
        return next((record[name] for name in (known.get("question", ""), *FIELDS["question"]) if name in record), "")

    return read


def _decrypted(text: str, canary: str, kind: str) -> str:
    """Return a field that was encrypted to keep it out of training data; one that is not encrypted as it is."""
    key = hashlib.sha256(canary.encode()).digest() if kind == "sha256" else canary.encode()
    try:
        return bytes(a ^ b for a, b in zip(base64.b64decode(text, validate=True), cycle(key))).decode()
    except ValueError:
        return text
