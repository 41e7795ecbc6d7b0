"""The benchmark `multihop`: questions that need several passages of a local collection."""

from __future__ import annotations

import atexit
import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from closeout.evaluate.benchmarks.benchmark import DATA, Benchmark
from closeout.evaluate.tasks import load_tasks
from closeout.tools.builtin import document_tools


@cache
def _tools() -> Sequence[Any]:
    """Return search and reading in the passages, which are documents in a folder until the process ends.

    The tools have no state, so all trials share them.
    """
    folder = tempfile.TemporaryDirectory(prefix="closeout-multihop-")
    atexit.register(folder.cleanup)
    for number, line in enumerate((DATA / "multihop_passages.jsonl").read_text("utf-8").splitlines()):
        passage = json.loads(line)
        name = "".join(c if c.isalnum() else "-" for c in passage["title"])[:60]
        text = f"# {passage['title']}\n\n{passage['text']}\n"
        Path(folder.name, f"{name}-{number}.md").write_text(text, "utf-8")
    return document_tools(folder.name, plain=True)


BENCHMARK = Benchmark(
    about="50 multi-hop questions over 350 passages",
    tasks=lambda: load_tasks(DATA / "multihop.jsonl"),
    scorer="f1",
    tools=lambda _: _tools(),
    instructions="Search the documents for each fact that the question needs. Answer in as few words as possible.",
)
