"""Tasks: what an evaluation asks, read from JSONL, JSON, CSV, TSV, Parquet or any iterable."""

from __future__ import annotations

import csv
import hashlib
import json
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from closeout.codec import encode_json
from closeout.errors import UsageError
from closeout.miroflow_settings import task_file
from closeout.settings_tree import read_yaml

__all__ = ["EvalTask", "Fields", "TaskSource", "load_tasks"]

FIELDS = ("id", "question", "answer", "files", "tools", "metadata")
LONGEST_ID = 1_000  # characters; ids of tau2-bench have 215
_MOST_FIELD = 2**31 - 1  # Characters that a CSV field may have.

Fields: TypeAlias = "Mapping[str, str | Callable[[Mapping[str, Any]], Any]]"
"""The place in a record of each field of a task (id, question, answer, files, tools): a field's name (`a.b` for a
nested one), or a function of the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTask:
    """One task of an evaluation.

    Attributes:
        id: Its stable name, unique in the evaluation.
        question: What the agent is asked.
        answer: What scorers compare with: a text, a number, a list of texts any of which is right, any JSON value, or
            None. The agent never sees it.
        files: Paths of its files.
        tools: Which of the agent's tools it has, None for all.
        metadata: Further fields of the task, for slices and scorers.
    """

    id: str
    question: str
    answer: Any = None
    files: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def golds(self) -> tuple[str, ...]:
        """The right answers as texts; empty if the task has no answer."""
        if self.answer is None:
            return ()
        answers = self.answer if isinstance(self.answer, list | tuple) else [self.answer]
        return tuple(each if isinstance(each, str) else encode_json(each).decode() for each in answers)

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON values, without empty fields."""
        found = asdict(self)
        return {
            name: value for name, value in found.items() if value is not None and (value or name in ("answer", "tools"))
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> EvalTask:
        """Return the task that `to_dict` wrote."""
        tools = record.get("tools")
        return cls(
            **{**record, "files": tuple(record.get("files", ())), "tools": None if tools is None else tuple(tools)}
        )

    def digest(self) -> str:
        """Return a hash of the fields that the agent and the scorers see. A changed task has another one."""
        seen = [self.question, self.answer, self.files, *(() if self.tools is None else (self.tools,))]
        return hashlib.sha256(json.dumps(seen, sort_keys=True, default=str).encode()).hexdigest()[:16]


TaskSource: TypeAlias = "str | Path | Iterable[EvalTask | Mapping[str, Any]]"
"""The path of a file, or tasks, or mappings with the fields of a task."""


def load_tasks(
    source: TaskSource,
    *,
    fields: Fields | None = None,
    ids: Collection[str] | None = None,
    shuffle: int | None = None,
    limit: int | None = None,
) -> list[EvalTask]:
    """Return the tasks of a file or an iterable.

    Fields of a record that are not a task's own become its metadata.

    Args:
        source: A path that ends in .jsonl, .json, .csv, .tsv or .parquet, the folder of a saved Hugging Face data set,
            a benchmark file of MiroFlow (.yaml), or an iterable of tasks or mappings.
        fields: Where records hold `id`, `question`, `answer`, `files` and `tools`, if they name them otherwise.
        ids: Take only the tasks with these ids.
        shuffle: Put them in the order of this seed, which is the same each time; a larger `limit` then adds tasks.
        limit: Take only this many, from the first.

    Raises:
        UsageError: A task is malformed, its id is missing or not found, or two tasks have the same id.
    """
    mapping: dict[str, Any] = dict(fields or {})
    for name in mapping:
        if name not in FIELDS:
            raise UsageError(f"'{name}' is not a field of a task. Map one of {', '.join(FIELDS)}.")
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        if path.suffix.lower() in (".yaml", ".yml"):
            named = task_file(path, lambda other: read_yaml(other)[0])
            path, mapping, limit = named.path, {**named.fields, **mapping}, named.limit if limit is None else limit
        records, folder = _read_file(path), path.parent
    else:
        records, folder = ((f"task {number}", record) for number, record in enumerate(source, 1)), Path()
    tasks: list[EvalTask] = []
    seen: dict[str, str] = {}
    every = ids is None and shuffle is None
    for where, record in islice(records, limit if every else None):
        task = record if isinstance(record, EvalTask) else _task(record, mapping, where, folder)
        _check_id(task.id, where, seen)
        tasks.append(task)
    if ids is not None:
        if missing := [task_id for task_id in ids if task_id not in seen]:
            first = ", ".join(list(seen)[:5])
            raise UsageError(f"No task has the id {missing[0]!r:.80}. The first of {len(seen):,} ids: {first}.")
        tasks = [task for task in tasks if task.id in ids]
    if shuffle is not None:
        random.Random(shuffle).shuffle(tasks)  # noqa: S311 - not for secrets
    tasks = tasks if every else tasks[:limit]
    if not tasks:
        raise UsageError(f"There are no tasks in {source if isinstance(source, str | Path) else 'the iterable'}.")
    return tasks


def _check_id(task_id: str, where: str, seen: dict[str, str]) -> None:
    if not task_id.strip() or len(task_id) > LONGEST_ID or not task_id.isprintable():
        raise UsageError(
            f"{where}: the id must be a printable text of 1 to {LONGEST_ID} characters, got {task_id[:50]!r}."
        )
    if task_id in seen:
        raise UsageError(f"{where}: the id {task_id!r} is taken by {seen[task_id]}. Ids must be unique.")
    seen[task_id] = where


def _task(record: Any, fields: Mapping[str, Any], where: str, folder: Path) -> EvalTask:
    if not isinstance(record, Mapping):
        raise UsageError(f"{where}: a task must be an object with the fields id and question, got {record!r:.60}.")
    task_id = _value(record, fields, "id")
    if task_id is None or isinstance(task_id, bool | float | list | Mapping):
        raise UsageError(
            f"{where}: the task has no id. Give each task an `id`, or say which field holds it: "
            f"fields={{'id': 'FIELD'}} (--field id=FIELD). Its fields: {', '.join(map(str, record))[:200]}."
        )
    question = _value(record, fields, "question")
    if not isinstance(question, str) or not question.strip():
        raise UsageError(
            f"{where}: the task has no question. Say which field holds it: fields={{'question': 'FIELD'}} "
            f"(--field question=FIELD). Its fields: {', '.join(map(str, record))[:200]}."
        )
    metadata = _value(record, fields, "metadata")
    used = {fields[name] if isinstance(fields.get(name), str) else name for name in FIELDS}
    rest = {str(name): value for name, value in record.items() if name not in used}
    return EvalTask(
        id=str(task_id),
        question=question,
        answer=_value(record, fields, "answer"),
        files=_files(_value(record, fields, "files"), where, folder),
        tools=_tools(_value(record, fields, "tools"), where),
        metadata={**rest, **(metadata if isinstance(metadata, Mapping) else {})},
    )


def _value(record: Mapping[str, Any], fields: Mapping[str, Any], name: str) -> Any:
    where = fields.get(name, name)
    if callable(where):
        return where(record)
    if where in record:
        return record[where]
    value: Any = record
    for part in str(where).split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _files(value: Any, where: str, folder: Path) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) and value else value or ()
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{where}: `files` must be a path or a list of paths, got {value!r:.60}.")
    return tuple(str((folder / name).absolute()) for name in names)


def _tools(value: Any, where: str) -> tuple[str, ...] | None:
    names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
    if names is None:
        return None
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"{where}: `tools` must be a list of names of the agent's tools, got {value!r:.60}. If the field means "
            "something else, map another one: fields={'tools': 'NONE'} (--field tools=NONE)."
        )
    return tuple(names)


# ------------------------------------------------------------------------------------------------ files


def _read_file(path: Path) -> Iterator[tuple[str, Any]]:
    readers = {
        ".jsonl": _read_jsonl,
        ".ndjson": _read_jsonl,
        ".json": _read_json,
        ".csv": _read_csv,
        ".tsv": _read_csv,
        ".parquet": _read_parquet,
    }
    reader = _read_dataset if path.is_dir() else readers.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{path}: tasks are read from {', '.join(readers)} files.")
    try:
        yield from reader(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from None


def _read_dataset(path: Path) -> Iterator[tuple[str, Any]]:
    """Read a folder that `Dataset.save_to_disk` of the package `datasets` wrote; only pyarrow is needed."""
    if (path / "dataset_dict.json").is_file():
        splits = _parsed((path / "dataset_dict.json").read_text("utf-8"), path.name)["splits"]
        raise UsageError(f"{path} holds several splits. Name one: {', '.join(str(path / each) for each in splits)}.")
    if not (path / "state.json").is_file():
        raise UsageError(f"{path} is a folder without a data set: it has no state.json. Name a file of tasks.")
    try:
        from pyarrow import ArrowException, ipc, memory_map
    except ImportError:
        raise UsageError(f"Reading {path.name} needs pyarrow: pip install 'closeout[parquet]'.") from None
    number = 0
    for each in _parsed((path / "state.json").read_text("utf-8"), path.name)["_data_files"]:
        try:
            with memory_map(str(path / Path(each["filename"]).name)) as source:
                for batch in ipc.open_stream(source):
                    for record in batch.to_pylist():
                        number += 1
                        yield f"{path.name}, row {number}", record
        except ArrowException as error:
            raise UsageError(f"{path} is not a data set that can be read ({error}).") from None


def _read_jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{path.name}, line {number}", _parsed(line, f"{path.name}, line {number}")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({error}).") from None


def _read_json(path: Path) -> Iterator[tuple[str, Any]]:
    records = _parsed(path.read_text("utf-8-sig"), path.name)
    if not isinstance(records, list):
        raise UsageError(f"{path.name} must hold a list of tasks, got {type(records).__name__}.")
    for number, record in enumerate(records, 1):
        yield f"{path.name}, item {number}", record


def _read_csv(path: Path) -> Iterator[tuple[str, Any]]:
    csv.field_size_limit(_MOST_FIELD)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        try:
            for record in reader:
                where = f"{path.name}, line {reader.line_num}"
                if None in record or None in record.values():
                    raise UsageError(f"{where}: the row does not have as many fields as the header.")
                yield where, record
        except csv.Error as error:
            raise UsageError(f"{path.name}, line {reader.line_num}: not CSV ({error}).") from None


def _read_parquet(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UsageError(f"Reading {path.name} needs pyarrow: pip install 'closeout[parquet]'.") from None
    try:
        batches = parquet.ParquetFile(path).iter_batches(batch_size=1000)
        for number, record in enumerate((record for batch in batches for record in batch.to_pylist()), 1):
            yield f"{path.name}, row {number}", record
    except ArrowException as error:
        raise UsageError(f"{path.name} is not a Parquet file that can be read ({error}).") from None
