"""Conversations that other tools recorded become runs to look at: `closeout runs import`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from closeout.cli.managing import import_runs
from closeout.errors import JournalError
from closeout.journal.events import ModelReplied, RunStarted
from closeout.journal.store import Store, close_stores
from closeout.journal.usage_totals import usage_totals

ASKED = "How far is the Moon?"
FOUND = "384,400 km"
ARGUMENTS = {"key": "moon"}
FUNCTION = {"name": "lookup", "arguments": json.dumps(ARGUMENTS)}
CALL = {"id": "c1", "type": "function", "function": FUNCTION}
# https://developers.openai.com/api/reference/resources/chat
OPENAI = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": ASKED},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": FOUND},
    {"role": "assistant", "content": f"It is {FOUND}."},
]
LAST = OPENAI[-1]


def attribute(key: str, value: Any) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}


def parts(role: str, *found: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": [*found]}


SPAN = [
    parts("user", {"type": "text", "content": ASKED}),
    parts("assistant", {"type": "tool_call", "id": "c1", "name": "lookup", "arguments": ARGUMENTS}),
    parts("tool", {"type": "tool_call_response", "id": "c1", "response": FOUND}),
]
SAMPLES: dict[str, Any] = {
    "a chat": OPENAI,
    "a log of requests": {
        "request": {"model": "m", "messages": OPENAI[:-1]},
        "response": {"choices": [{"message": LAST}]},
    },
    # https://github.com/ethz-spylab/agentdojo: parts with "content", calls with "function" and "args"
    "AgentDojo": {
        "user_task_id": "user_task_1",
        "messages": [
            {"role": "user", "content": [{"type": "text", "content": ASKED}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "function": "lookup", "args": ARGUMENTS}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "content": FOUND}], "error": None},
            {"role": "assistant", "content": [{"type": "text", "content": f"It is {FOUND}."}]},
        ],
    },
    # https://www.harborframework.com/docs/agents/trajectory-format
    "ATIF": {
        "schema_version": "ATIF-v1.5",
        "session_id": "s1",
        "agent": {"name": "a", "version": "1", "model_name": "m"},
        "steps": [
            {"step_id": 1, "source": "user", "message": ASKED},
            {
                "step_id": 2,
                "source": "agent",
                "message": "",
                "tool_calls": [{"tool_call_id": "c1", "function_name": "lookup", "arguments": ARGUMENTS}],
                "observation": {"results": [{"source_call_id": "c1", "content": FOUND}]},
                "metrics": {"prompt_tokens": 10, "completion_tokens": 2},
            },
            {"step_id": 3, "source": "agent", "message": f"It is {FOUND}."},
        ],
    },
    # https://langfuse.com/docs/api-and-data-platform/features/export-from-ui
    "Langfuse": {
        "id": "t1",
        "name": "chat",
        "observations": [
            {"id": "o1", "type": "GENERATION", "model": "m", "input": OPENAI[:2], "output": OPENAI[2]},
            {"id": "o2", "type": "SPAN", "input": {"key": "moon"}, "output": FOUND},
            {"id": "o3", "type": "GENERATION", "model": "m", "input": {"messages": OPENAI[:-1]}, "output": LAST},
        ],
    },
    # https://docs.langchain.com/langsmith/run-data-format
    "LangSmith": {
        "id": "r1",
        "run_type": "chain",
        "inputs": {},
        "child_runs": [
            {
                "id": "r2",
                "run_type": "llm",
                "inputs": {
                    "messages": [
                        [
                            {"id": ["langchain", "schema", "messages", "HumanMessage"], "kwargs": {"content": ASKED}},
                            {
                                "id": ["langchain", "schema", "messages", "AIMessage"],
                                "kwargs": {
                                    "content": "",
                                    "tool_calls": [{"id": "c1", "name": "lookup", "args": ARGUMENTS}],
                                },
                            },
                            {
                                "id": ["langchain", "schema", "messages", "ToolMessage"],
                                "kwargs": {"content": FOUND, "tool_call_id": "c1"},
                            },
                        ]
                    ]
                },
                "outputs": {
                    "generations": [
                        [
                            {
                                "message": {
                                    "id": ["langchain", "schema", "messages", "AIMessage"],
                                    "kwargs": {"content": LAST["content"]},
                                }
                            }
                        ]
                    ]
                },
            }
        ],
    },
    # https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans, as OTLP JSON
    "OpenTelemetry": {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": "t1",
                                "name": "chat m",
                                "attributes": [
                                    attribute("gen_ai.request.model", "m"),
                                    attribute("gen_ai.input.messages", SPAN),
                                    attribute(
                                        "gen_ai.output.messages",
                                        [parts("assistant", {"type": "text", "content": LAST["content"]})],
                                    ),
                                ],
                            },
                            {"traceId": "t1", "name": "execute_tool lookup", "attributes": []},
                        ]
                    }
                ]
            }
        ]
    },
}


def held(value: Any) -> dict[str, Any]:
    """A value of OTLP that is no text."""
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": held(each)} for key, each in value.items()]}}
    return (
        {"arrayValue": {"values": [held(each) for each in value]}}
        if isinstance(value, list)
        else {"stringValue": value}
    )


CONVENTIONS = {
    "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
    "gen_ai.input.messages": SPAN,
    "gen_ai.output.messages": [parts("assistant", {"type": "text", "content": LAST["content"]})],
}
# The same without what holds a trace together: each row names its trace.
ROWS: dict[str, Any] = {
    "OpenTelemetry, structured": {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": "t",
                                "attributes": [{"key": k, "value": held(v)} for k, v in CONVENTIONS.items()],
                            }
                        ]
                    }
                ]
            }
        ]
    },
    # https://api.reference.langfuse.com: what was sent, as JSON text
    "Langfuse's API": {
        "data": [
            {"traceId": "t1", "type": "SPAN", "input": {"question": ASKED}, "output": FOUND},
            {"traceId": "t1", "type": "GENERATION", "input": json.dumps(OPENAI[:2]), "output": json.dumps(OPENAI[2])},
            {
                "traceId": "t1",
                "type": "GENERATION",
                "input": json.dumps({"messages": OPENAI[:-1]}),
                "output": json.dumps(LAST),
            },
        ]
    },
    "LangSmith's runs": [
        {
            "trace_id": "r1",
            "run_type": "chain",
            "inputs": {"messages": OPENAI[1:2]},
            "outputs": {"messages": OPENAI[1:]},
        },
        {"trace_id": "r1", "run_type": "tool", "inputs": {"input": "moon"}, "outputs": {"output": FOUND}},
        {"trace_id": "r1", **SAMPLES["LangSmith"]["child_runs"][0]},
    ],
}
ROWS["JSON lines"] = "\n".join(map(json.dumps, ROWS["LangSmith's runs"]))
SAMPLES |= ROWS


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOSEOUT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def imported(path: Path, value: Any) -> int:
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return import_runs([str(path)], as_json=True)


def test_each_form_becomes_a_run_with_its_calls_and_its_answer(tmp_path: Path, home: Path) -> None:
    for number, (name, sample) in enumerate(SAMPLES.items()):
        place = home.with_name(f"home{number}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CLOSEOUT_HOME", str(place))
            imported(tmp_path / "trace.json", sample)
        store = Store(place)
        (run,) = store.runs()
        assert (run.status, run.task, run.answer) == ("answered", ASKED, LAST["content"]), name
        read = store.read(run.run_id)
        (made,) = [row.event for row in read.rows if type(row.event).__name__ == "ToolStarted"]
        (done,) = [row.event for row in read.rows if type(row.event).__name__ == "ToolFinished"]
        assert (made.name, json.loads(made.arguments), done.result) == ("lookup", ARGUMENTS, FOUND), name
        assert sum(type(row.event).__name__ == "MessageReceived" for row in read.rows) == 0, name
        if "structured" in name:
            assert read.rows[0].event.instructions == "Be brief."
    close_stores()


USED = {"input": 100, "output": "5", "total": 105}
REPLIED = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def spans(*kinds: tuple[str, Any, Any, int]) -> dict[str, Any]:
    named = ("gen_ai.operation.name", "gen_ai.input.messages", "gen_ai.output.messages")
    return {
        "spans": [
            {
                "traceId": "t",
                "attributes": [
                    *(attribute(name, each) for name, each in zip(named, kind, strict=False)),
                    attribute("user.id", "ann"),
                    {"key": "gen_ai.usage.input_tokens", "value": {"intValue": str(kind[3])}},
                    {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "5"}},
                ],
            }
            for kind in kinds
        ]
    }


@pytest.mark.parametrize(
    "sample",
    [
        {
            "id": "t",
            "userId": "ann",
            "totalCost": 0.5,
            "observations": [
                {"type": "GENERATION", "input": OPENAI[:2], "output": REPLIED, "usageDetails": USED},
                {
                    "type": "GENERATION",
                    "input": OPENAI[:-1],
                    "output": LAST,
                    "usage": USED,
                    "calculatedTotalCost": "no",
                },
                {"type": "SPAN", "input": OPENAI[:-1], "output": LAST, "usage": USED},
            ],
        },
        spans(
            ("chat", SPAN[:1], SPAN[1:2], 100),
            ("chat", SPAN, [parts("assistant", {"type": "text", "content": LAST["content"]})], 100),
            ("invoke_agent", SPAN, [parts("assistant", {"type": "text", "content": LAST["content"]})], 200),
        ),
        {
            "id": "t",
            "run_type": "chain",
            "prompt_tokens": 200,
            "extra": {"metadata": {"user_id": "ann"}},
            "inputs": {"messages": OPENAI[:2]},
            "outputs": {"messages": OPENAI},
            "child_runs": [
                {
                    "run_type": "llm",
                    "prompt_tokens": 100,
                    "completion_tokens": 5,
                    "inputs": {"messages": OPENAI[:at]},
                    "outputs": {"output": OPENAI[at]},
                }
                for at in (2, 4)
            ],
        },
    ],
    ids=["Langfuse", "OpenTelemetry", "LangSmith"],
)
def test_what_requests_used_is_that_of_the_replies_and_sums_do_not_count(
    tmp_path: Path, home: Path, sample: Any
) -> None:
    imported(tmp_path / "trace.json", sample)
    store = Store(home)
    (run,) = store.runs()
    events = [row.event for row in store.read(run.run_id).rows]
    replies = [each for each in events if isinstance(each, ModelReplied)]
    assert [(each.usage["input_tokens"], each.usage["output_tokens"]) for each in replies] == [(100, 5)] * 2
    assert [each.user for each in events if isinstance(each, RunStarted)] == ["ann"]
    close_stores()


def test_a_run_has_the_time_of_its_trace(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    began = 1_762_128_000.0  # 3 November 2025, 00:00 UTC
    written = {"start_time": "2025-11-03T00:00:00", "startTime": "2025-11-03T01:00:00+01:00", "created": int(began)}
    for number, (field, time) in enumerate({**written, "timestamp": "3 November", "createdAt": float("inf")}.items()):
        messages = [{"role": "user", "content": field}, LAST]
        request = {"trace_id": field, "run_type": "llm", "messages": messages}
        imported(tmp_path / "trace.json", [{**request, field: time}, {**request, "start_time": "2025-11-03T00:00:09Z"}])
        run = Store(home).runs()[0]
        assert run.started == (began if number < len(written) else began + 9), field
    span = SAMPLES["OpenTelemetry"]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    imported(tmp_path / "trace.json", {"spans": [{**span, "startTimeUnixNano": "1762128000000000000"}]})
    observed = {"type": "GENERATION", "input": "A trace of Langfuse has its time.", "output": LAST}
    imported(tmp_path / "trace.json", {"id": "t", "timestamp": "2025-11-03T00:00:00.000Z", "observations": [observed]})
    store = Store(home)
    dated = [run for run in store.runs() if run.task in (ASKED, observed["input"])]
    assert [(run.started, run.ended) for run in dated] == [(began, began)] * 2
    assert {each.group["day"] for each in usage_totals(home)} == {"2025-11-03"}
    close_stores()


def test_lines_are_conversations_and_later_messages_are_kept(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some agents give two calls one id: the results belong to the calls before them."""
    two = [*OPENAI, {"role": "user", "content": "And Mars?"}, *[{**each} for each in OPENAI[2:]]]
    two[-2] = {**OPENAI[3], "content": "far"}
    lines = "\n".join(
        [json.dumps({"id": "a", "messages": OPENAI}), "no JSON", json.dumps({"id": "b", "messages": two})]
    )
    for count in (2, 0):  # nothing is added twice
        imported(tmp_path / "log.jsonl", lines)
        assert json.loads(capsys.readouterr().out) == {"imported": count}
    store = Store(home)
    events = [row.event for run in store.runs() if run.run_id for row in store.read(run.run_id).rows]
    assert sorted(each.result for each in events if type(each).__name__ == "ToolFinished") == sorted(
        [FOUND, FOUND, "far"]
    )
    assert [each.text for each in events if type(each).__name__ == "MessageReceived"] == ["And Mars?"]
    assert {run.run_id for run in store.runs()} == set(store.imported_runs())  # nothing of them is executed
    close_stores()


def test_what_is_no_conversation_is_refused(tmp_path: Path, home: Path) -> None:
    for text in (
        "{}",
        "[]",
        '{"messages": 5}',
        '{"messages": [{"role": "user", "content": "Hi"}]}',
        "[1, 2",
        '{"a": "',
    ):
        with pytest.raises(JournalError, match="neither runs of Closeout nor conversations"):
            imported(tmp_path / "x.json", text)
