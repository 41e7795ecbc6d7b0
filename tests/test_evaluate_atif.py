"""ATIF trajectories: written with system prompt and tools, and read back as the same conversation."""

from __future__ import annotations

import asyncio
import csv
import json
from pathlib import Path
from typing import Any

import pytest

from cli_process import here
from closeout import Agent, tool
from closeout.errors import UsageError
from closeout.evaluate import evaluate
from closeout.evaluate.atif import from_atif, load_atif
from closeout.evaluate.export import export_trials, write_export
from closeout.journal.store import open_store
from closeout.testing import ScriptedServer, Turn, answer, call, say


@tool(read_only=True, inline=True)
def distance(start: str) -> str:
    """Look up a distance."""
    return f"7 km from {start} 米"


SCRIPT: list[Any] = [
    Turn(calls=[call("distance", start="Ulm"), call("distance", start="Bonn")], reasoning="I look it up."),
    say(""),
    call("Distance", start="Köln"),
    answer("7"),
]


def exported(home: Path, form: Any, **options: Any) -> Any:
    """Run one trial with a rollback and a repair, and return its record in a form."""

    async def work() -> Any:
        async with ScriptedServer(list(SCRIPT)) as server:
            config = {"llm": {"extra_body": {"return_token_ids": True, "logprobs": True}}}
            agent = Agent(
                "openai:scripted",
                [distance],
                base_url=server.base_url,
                config=config,
                home=home,
                name="walker",
                instructions="Be exact.",
            )
            tasks = [{"id": "a", "question": "How far? 多远", "answer": "7"}]
            report = await evaluate(agent, tasks, scorer=["numeric", "exact"], name="x")
            found = list(export_trials(report, open_store(home), form=form, **options))
            return found, list(export_trials(report, open_store(home), form="openai", agent=agent, **options))

    return asyncio.run(work())


def test_the_form_of_openai_begins_with_the_recorded_prompt_and_tools(home: Path) -> None:
    [record], [with_agent] = exported(home, "openai")
    assert record["messages"][0]["role"] == "system"
    assert (record["messages"], record["tools"]) == (with_agent["messages"], with_agent["tools"])


def test_a_run_is_an_atif_document_with_system_prompt_tools_and_metrics(home: Path) -> None:
    [document], _ = exported(home, "atif")
    assert document["schema_version"] == "ATIF-v1.7"
    assert document["session_id"] == "x.0-a.e1"
    assert document["agent"]["model_name"] == "scripted"
    definition = document["agent"]["tool_definitions"][0]
    assert (definition["type"], definition["function"]["name"]) == ("function", "distance")
    steps = document["steps"]
    assert [step["step_id"] for step in steps] == [1, 2, 3, 4, 5]
    assert [step["source"] for step in steps] == ["system", "user", "agent", "agent", "agent"]
    assert "Be exact." in steps[0]["message"]
    assert steps[1]["message"] == "How far? 多远"
    first = steps[2]
    assert first["reasoning_content"] == "I look it up."
    assert [each["arguments"] for each in first["tool_calls"]] == [{"start": "Ulm"}, {"start": "Bonn"}]
    results = first["observation"]["results"]
    assert [each["source_call_id"] for each in results] == [each["tool_call_id"] for each in first["tool_calls"]]
    assert [each["content"] for each in results] == ["7 km from Ulm 米", "7 km from Bonn 米"]
    metrics = first["metrics"]
    assert len(metrics["completion_token_ids"]) == len(metrics["logprobs"])
    assert document["final_metrics"]["total_prompt_tokens"] > metrics["prompt_tokens"] > 0
    assert steps[3]["extra"] == {"loss": False, "repaired": True}
    assert document["extra"]["rewards"] == {"numeric": 1.0, "exact": 1.0}
    assert document["extra"]["answer"] == "7"


def test_trials_are_a_table_and_a_data_set_of_hugging_face(home: Path, tmp_path: Path) -> None:
    rows, _ = exported(home, "csv")
    assert write_export(rows, tmp_path / "t.csv", "csv") == 1
    with (tmp_path / "t.csv").open(encoding="utf-8", newline="") as file:
        [row] = csv.DictReader(file)
    assert (row["task_id"], row["question"], row["correct"], float(row["score"])) == ("a", "How far? 多远", "true", 1.0)

    assert here("eval", "export", "x", "-o", str(tmp_path / "named.csv")).code == 0
    assert (tmp_path / "named.csv").read_bytes() == (tmp_path / "t.csv").read_bytes(), "the suffix says the format"

    done = here("eval", "export", "x", "--format", "huggingface", "-o", str(tmp_path / "set"))
    assert (done.code, "1 of 1 trials (finished) written" in done.err) == (0, True)
    assert (tmp_path / "set" / "README.md").read_text().startswith("---\nconfigs: [{config_name: default, data_files")
    [record] = map(json.loads, (tmp_path / "set" / "trials.jsonl").read_text("utf-8").splitlines())
    assert (record["gold"], record["correct"], record["epoch"]) == ("7", True, 1)
    assert [message["role"] for message in record["messages"]][:3] == ["system", "user", "assistant"]
    assert {tuple(message) for message in record["messages"]} == {tuple(record["messages"][0])}, "one type for all"
    assert json.loads(record["tools"])[0]["function"]["name"] == "distance"


@pytest.mark.parametrize("rolled_back", [False, True])
def test_a_document_is_read_back_as_the_same_conversation(home: Path, tmp_path: Path, rolled_back: bool) -> None:
    documents, [whole] = exported(home, "atif", rolled_back=rolled_back)
    write_export(documents, tmp_path / "t.jsonl")
    (tmp_path / "t.json").write_text(json.dumps(documents[0], indent=1))
    [read] = load_atif(tmp_path / "t.jsonl")
    assert [read] == load_atif(tmp_path / "t.json")
    expected = [{**message, "content": message.get("content") or ""} for message in whole["messages"]]
    for message in expected:
        message.pop("tokens", None)
        for each in message.get("tool_calls", ()):
            each["function"]["arguments"] = json.loads(each["function"]["arguments"])
    for message in read["messages"]:
        for each in message.get("tool_calls", ()):
            each["function"]["arguments"] = json.loads(each["function"]["arguments"])
    assert read["messages"] == expected
    assert read["tools"] == whole["tools"]
    assert any(message.get("rolled_back") for message in read["messages"]) is rolled_back


def test_documents_of_others_are_read() -> None:
    document = {
        "schema_version": "ATIF-v1.4",
        "session_id": "s",
        "agent": {"name": "other", "version": "1"},
        "steps": [
            {"step_id": 1, "source": "system", "message": "S", "observation": {"results": [{"content": "reset"}]}},
            {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "Q"}, {"type": "image"}]},
            {"step_id": 3, "source": "agent", "message": "A", "is_copied_context": True},
            {"step_id": 4, "source": "agent", "message": "B", "observation": {"results": [{"content": "seen"}]}},
        ],
    }
    messages = from_atif(document)["messages"]
    assert [(m["role"], m["content"], m["loss"]) for m in messages] == [
        ("system", "S", False),
        ("user", "reset", False),
        ("user", "Q\n[image: left out]", False),
        ("assistant", "A", False),
        ("assistant", "B", True),
        ("user", "seen", False),
    ]


def test_fields_and_line_separators_of_others_change_nothing(tmp_path: Path) -> None:
    document = {
        "schema_version": "ATIF-v1.7",
        "agent": {"name": "other"},
        "steps": [{"source": "user", "message": "one\u2028two\x85three"}],
        "extra": {"messages": [], "tools": "none", "agent": "me", "score": 1},
    }
    path = tmp_path / "two.jsonl"
    path.write_text("\n".join([json.dumps(document, ensure_ascii=False)] * 2), "utf-8")
    first, second = load_atif(path)
    assert first == second
    assert [message["content"] for message in first["messages"]] == ["one\u2028two\x85three"]
    assert (first["agent"], first["score"]) == ("other", 1)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "not an ATIF document"),
        ({"schema_version": "ATIF-v1.7"}, "an object `agent` and a list `steps`"),
        ({"schema_version": "ATIF-v1.7", "agent": {}, "steps": [{"source": "tool"}]}, "Step 1 must have a source"),
        ({"schema_version": "ATIF-v1.7", "agent": {}, "steps": [{"source": []}]}, "Step 1 must have a source"),
        (
            {"schema_version": "ATIF-v1.7", "agent": {}, "steps": [{"source": "agent", "tool_calls": [{}]}]},
            "A call of step 1 must have",
        ),
    ],
)
def test_what_is_no_trajectory_is_refused(document: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        from_atif(document)
    with pytest.raises(UsageError, match="cannot be read"):
        load_atif(tmp_path / "missing.json")
