"""The task of a run: its text, its files and the conversation before it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from closeout.file_values import File
from closeout.messages import Message

__all__ = ["FileText", "Task", "dump_texts", "load_texts"]


@dataclass(frozen=True, slots=True)
class FileText:
    """The whole text of a file of which the prompt holds only the head. `handle` is what `read_result` takes."""

    handle: str
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The task of a run.

    Attributes:
        text: The task.
        question: The text that the model gets: the task after the texts of its files.
        task_id: A name for graders.
        ground_truth: The right answer, for graders.
        files: The paths of its files.
        images: Pictures, OpenAI `image_url` parts.
        earlier: The conversation before the task.
        origin: Notes for the program that resumes the run.
        texts: Texts of which the question holds only the beginning.
        notes: What was left out of the files, a sentence each.
        state: The state that the run begins with.
        user: The person for whom it runs.
        kept: The files that scripts and tools see: its own, and those of earlier messages of a session.
        handed: The agents that the conversation was handed over to before.
        labels: The labels of the conversation before the task, of a recorded run those of all that it begins with.
        start_at: When the run is to begin, in seconds since the epoch; None for at once.
    """

    text: str
    question: str = ""
    task_id: str = ""
    ground_truth: str | None = None
    files: tuple[str, ...] = ()
    images: tuple[dict[str, Any], ...] = ()
    earlier: tuple[Message, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)
    texts: tuple[FileText, ...] = ()
    notes: tuple[str, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    user: str = ""
    kept: tuple[File, ...] = ()
    handed: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    start_at: float | None = None


def dump_texts(texts: Iterable[FileText]) -> str:
    """Write texts as JSON for the journal, empty for no texts."""
    rows = [(text.handle, text.name, text.text) for text in texts]
    return json.dumps(rows, ensure_ascii=False) if rows else ""


def load_texts(record: str) -> tuple[FileText, ...]:
    """Return the texts that `dump_texts` wrote."""
    return tuple(FileText(*row) for row in json.loads(record)) if record else ()
