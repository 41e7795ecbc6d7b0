"""Tasks are read from files and iterables; an error names the place of the faulty one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from closeout.errors import UsageError
from closeout.evaluate import EvalTask, load_tasks

RECORDS = [{"id": 1, "problem": "What is 1+1?", "gold": "2", "level": "easy", "extra": {"source": "x"}}]
FIELDS = {"question": "problem", "answer": "gold"}


def test_the_formats_hold_the_same_tasks(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\ufeff" + "\n\n".join(map(json.dumps, RECORDS)), "utf-8")
    (tmp_path / "a.json").write_text(json.dumps(RECORDS))
    (tmp_path / "a.csv").write_text('id,problem,gold,level\n1,What is 1+1?,2,"easy"\n')
    (tmp_path / "a.tsv").write_text("id\tproblem\tgold\tlevel\n1\tWhat is 1+1?\t2\teasy\n")
    for name in ("a.jsonl", "a.json", "a.csv", "a.tsv"):
        (task,) = load_tasks(tmp_path / name, fields=FIELDS)
        assert (task.id, task.question, task.golds, task.metadata["level"]) == ("1", "What is 1+1?", ("2",), "easy")
    assert load_tasks(RECORDS, fields=FIELDS) == load_tasks(tmp_path / "a.jsonl", fields=FIELDS)


def test_a_saved_data_set_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    folder = tmp_path / "set" / "test"
    folder.mkdir(parents=True)
    table = pyarrow.Table.from_pylist(RECORDS)
    with pyarrow.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    assert load_tasks(folder, fields=FIELDS) == load_tasks(RECORDS, fields=FIELDS)
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["test"]}')
    with pytest.raises(UsageError, match=r"several splits. Name one: .*test"):
        load_tasks(tmp_path / "set", fields=FIELDS)
    (folder / "data-00000-of-00001.arrow").write_bytes(b"not arrow")
    with pytest.raises(UsageError, match="not a data set that can be read"):
        load_tasks(folder, fields=FIELDS)
    with pytest.raises(UsageError, match=r"no state\.json"):
        load_tasks(tmp_path, fields=FIELDS)


def test_parquet_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(RECORDS), tmp_path / "a.parquet")
    assert load_tasks(tmp_path / "a.parquet", fields=FIELDS) == load_tasks(RECORDS, fields=FIELDS)
    (tmp_path / "b.parquet").write_bytes(b"not parquet")
    with pytest.raises(UsageError, match="not a Parquet file"):
        load_tasks(tmp_path / "b.parquet")


def test_fields_may_be_nested_or_computed() -> None:
    record = {"meta": {"uid": "x1"}, "ask": {"text": "Who?"}}
    (task,) = load_tasks([record], fields={"id": "meta.uid", "question": lambda r: r["ask"]["text"].upper()})
    assert (task.id, task.question, task.answer) == ("x1", "WHO?", None)


def test_files_are_found_beside_the_tasks(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "a", "question": "Sum?", "files": ["data/x.csv"]}\n')
    (task,) = load_tasks(tmp_path / "a.jsonl")
    assert task.files == (str(tmp_path / "data" / "x.csv"),)


def test_a_task_names_its_tools() -> None:
    records = [{"id": n, "question": "Who?", "tools": tools} for n, tools in enumerate([None, [], ["a"], "a, b", ""])]
    assert [task.tools for task in load_tasks(records)] == [None, (), ("a",), ("a", "b"), ()]
    (mapped,) = load_tasks([{"id": 1, "question": "Who?", "tools": [{"type": "function"}]}], fields={"tools": "none"})
    assert (mapped.tools, mapped.metadata) == (None, {"tools": [{"type": "function"}]})
    empty = EvalTask(id="a", question="Who?", tools=())
    assert EvalTask.of(json.loads(json.dumps(empty.to_dict()))) == empty
    assert len({EvalTask(id="a", question="Who?", tools=tools).digest() for tools in (None, (), ("a",))}) == 3


def test_a_limit_takes_the_first() -> None:
    endless = ({"id": n, "question": "Who?"} for n in iter(int, 1))
    with pytest.raises(UsageError, match="'0' is taken by task 1"):
        load_tasks(endless)
    many = ({"id": n, "question": "Who?"} for n in range(10**9))
    assert [task.id for task in load_tasks(many, limit=3)] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"question": "Who?"}, "task 1: the task has no id. .*Its fields: question"),
        ({"id": "", "question": "Who?"}, "task 1: the id must be a printable text"),
        ({"id": "a\nb", "question": "Who?"}, "the id must be a printable text"),
        ({"id": "x" * 1001, "question": "Who?"}, "the id must be a printable text"),
        ({"id": 1.5, "question": "Who?"}, "has no id"),
        ({"id": "a"}, "the task has no question"),
        ({"id": "a", "question": 7}, "the task has no question"),
        ({"id": "a", "question": "Who?", "files": 7}, "`files` must be"),
        (
            {"id": "a", "question": "Who?", "tools": [{"name": "x"}]},
            "`tools` must be a list of names.*--field tools=NONE",
        ),
        ("Who?", "a task must be an object"),
    ],
)
def test_a_malformed_task_is_refused(record: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        load_tasks([record])


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.jsonl", b'{"id": 1}\n{broken', r"a\.jsonl, line 1: the task has no question"),
        ("a.jsonl", b"{broken", r"a\.jsonl, line 1: not JSON"),
        ("a.jsonl", b"[" * 100_000, "not JSON"),
        ("a.jsonl", b"\xff\xfe", "is not UTF-8 text"),
        ("a.jsonl", b"\n\n", "There are no tasks"),
        ("a.json", b"{}", "must hold a list"),
        ("a.csv", b"id,question\n1\n", "does not have as many fields"),
        ("a.csv", b'id,question\n1,"open\n', "not CSV"),
        ("a.txt", b"Who?", r"tasks are read from \.jsonl"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=problem):
        load_tasks(tmp_path / name)


def test_a_missing_file_and_an_unknown_field_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_tasks(tmp_path / "a.jsonl")
    with pytest.raises(UsageError, match="'gold' is not a field of a task"):
        load_tasks(RECORDS, fields={"gold": "x"})


def test_a_task_survives_being_stored() -> None:
    task = EvalTask(id="a", question="Who?", answer=["x", 1], files=("/f",), metadata={"level": 1})
    assert EvalTask.of(json.loads(json.dumps(task.to_dict()))) == task
    assert task.golds == ("x", "1")
    assert task.digest() != EvalTask(id="a", question="Who?", answer=["x", 2]).digest()


def test_tasks_are_chosen_by_id_and_put_in_the_order_of_a_seed() -> None:
    tasks = [{"id": f"t{n}", "question": "?"} for n in range(50)]

    def ids(**options: Any) -> list[str]:
        return [task.id for task in load_tasks(tasks, **options)]

    assert ids(ids=["t7", "t3"]) == ["t3", "t7"]
    shuffled = ids(shuffle=1)
    assert sorted(shuffled) == sorted(ids()) != shuffled
    assert ids(shuffle=1, limit=10) == shuffled[:10]
    assert ids(shuffle=2) != shuffled
    with pytest.raises(UsageError, match="No task has the id 'x'"):
        load_tasks(tasks, ids=["x"])
