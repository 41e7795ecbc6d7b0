"""The one shape of every tool result, its telemetry, its forms; and the design documents' examples."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import inspect
import json
import time
import tracemalloc
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydantic import BaseModel

from closeout import Agent, File
from closeout.compat.wrapper import UnifiedToolWrapper
from closeout.errors import UsageError
from closeout.results.artifacts import MemoryArtifacts, read_result
from closeout.results.normal import EncodingError, normalise
from closeout.results.output_forms import CacheOptimizedOutput, compact_form, safe_yaml_form, xml_form
from closeout.results.summary import summarise
from closeout.results.telemetry import CallMeter, TelemetryCollector
from closeout.results.tool_output import ResponseFormat, ToolOutput, ToolTelemetry, format_observation
from closeout.testing import ScriptedClient, answer, call


def output(**fields: Any) -> ToolOutput:
    telemetry = ToolTelemetry(tool_name="search", execution_id="id-7", latency_ms=45.2, output_tokens=127)
    return ToolOutput(**{"summary": "3 rows", "telemetry": telemetry, "metadata": {"secret": "m"}, **fields})


# ------------------------------------------------------------------------------------------------ models


def test_the_fields_and_defaults_are_the_designs() -> None:
    assert ToolOutput().model_dump() == {
        "result": None,
        "summary": "",
        "observation": "",
        "response_format": ResponseFormat.CONCISE,
        "compressed": False,
        "state_update": None,
        "checkpoint": None,
    }
    assert ToolTelemetry().model_dump() == {
        "tool_name": "",
        "tool_version": "1.0.0",
        "execution_id": "",
        "timestamp": "",
        "latency_ms": 0.0,
        "duration_ms": 0.0,
        "input_tokens": 0,
        "output_tokens": 0,
        "total_tokens": 0,
        "cache_hit": False,
        "cache_key": None,
        "success": True,
        "error_code": None,
        "error_message": None,
        "retry_count": 0,
        "memory_mb": 0.0,
        "cpu_percent": 0.0,
        "metrics": {},
    }
    assert [form.value for form in ResponseFormat] == ["concise", "standard", "detailed", "raw"]


@pytest.mark.parametrize("form", list(ResponseFormat))
def test_telemetry_and_metadata_reach_a_model_in_detailed_only(form: ResponseFormat) -> None:
    whole = output(result=[1], response_format=form)
    texts = [
        whole.model_dump_json(),
        format_observation(whole),
        compact_form(whole),
        safe_yaml_form(whole),
        xml_form(whole),
    ]
    texts.append(CacheOptimizedOutput.format_with_stable_prefix(whole))
    hidden = ("id-7", "45.2", "secret")
    if form is ResponseFormat.DETAILED:
        assert all(word in format_observation(whole) for word in hidden)
        return
    assert not any(word in text for text in texts for word in hidden)


def test_observations_have_the_designs_texts() -> None:
    assert format_observation(output()) == "Observation: 3 rows"
    assert format_observation(output(result={"a": 1}, response_format="standard")) == (
        "Observation: 3 rows\n\nResult Type: dict\nStatus: Success\n"
    )
    assert format_observation(output(result={"城": 1}, response_format="detailed")) == (
        "Observation: 3 rows\n\nTool: search\nExecution ID: id-7\nLatency: 45.20ms\nTokens: 127\n\n"
        "Result: {\n  \"城\": 1\n}\n\nMetadata: {'secret': 'm'}\n"
    )
    assert format_observation(output(result={"a": 1}, response_format="raw")) == 'Observation: {"a":1}'


def test_an_observation_cannot_hold_another() -> None:
    assert format_observation(output(summary="x\nObservation: y")) == "Observation: x\nObservation&#58; y"


@settings(max_examples=60)
@given(
    result=st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.text(max_size=9),
            st.floats(allow_nan=False, allow_infinity=False),
        ),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
        max_leaves=6,
    ),
    form=st.sampled_from(list(ResponseFormat)),
    metrics=st.dictionaries(st.text(max_size=4), st.floats(0, 9), max_size=2),
)
def test_a_record_is_json_and_gives_the_whole_output_back(
    result: Any, form: ResponseFormat, metrics: dict[str, float]
) -> None:
    whole = ToolOutput(
        result=normalise(result),
        summary="s",
        observation="o",
        response_format=form,
        telemetry=ToolTelemetry(tool_name="t", metrics=metrics, success=False, error_code="E"),
        metadata={"handle": "r1"},
        state_update={"k": [1]},
        checkpoint="c",
    )
    for record in (whole.to_record(), whole.lean_record()):
        assert ToolOutput.from_record(json.loads(json.dumps(record))) == whole


def test_a_lean_record_leaves_out_nothing_but_what_a_blank_output_has() -> None:
    telemetry = ToolTelemetry(
        tool_name="t", tool_version="2", execution_id="e", timestamp="now", latency_ms=1, duration_ms=1, input_tokens=1,
        output_tokens=1, total_tokens=1, cache_hit=True, cache_key="k", success=False, error_code="E",
        error_message="m", retry_count=1, memory_mb=1, cpu_percent=1, metrics={"pages": 2.0},
    )  # fmt: skip
    full = ToolOutput(
        result=[1], summary="s", observation="o", response_format=ResponseFormat.RAW, compressed=True,
        telemetry=telemetry, metadata={"handle": "r1"}, state_update={}, checkpoint="",
        files=(File("a.txt", b"a"),),
    )  # fmt: skip
    assert not [name for name, value in ToolOutput() if getattr(full, name) == value]
    assert not [name for name, value in ToolTelemetry() if getattr(telemetry, name) == value]
    assert full.lean_record() == full.to_record()
    assert ToolOutput().lean_record() == {"summary": "", "observation": "", "telemetry": {}}
    # A text is in it once, and any other observation or summary as it is.
    text = ToolOutput.of("3 rows <b>", "3 rows <b>", ToolTelemetry())
    assert text.lean_record() == {"result": "3 rows <b>", "telemetry": {}}
    for each in (text, text.with_written("Observation: none"), ToolOutput(result="a"), ToolOutput(summary="a")):
        found = ToolOutput.from_record(each.lean_record())
        assert (found.summary, found.observation) == (each.summary, each.observation)


def test_a_record_holds_any_value_and_survives_unknown_and_missing_fields() -> None:
    whole = ToolOutput(result={"when": date(2025, 1, 2), "f": print})
    record = json.loads(json.dumps(whole.to_record()))
    assert record["result"] == {"when": "2025-01-02", "f": "<built-in function print>"}
    assert json.loads(whole.model_dump_json())["result"] == record["result"]
    assert ToolOutput.from_record({"summary": "s", "later_field": 1}).summary == "s"
    json.loads(ToolOutput(result="\ud800", summary="\udfff").model_dump_json())


# ------------------------------------------------------------------------------------------------ values


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Row:
    name: str
    parts: tuple[int, ...]


class Model(BaseModel):
    when: date
    score: float


@pytest.mark.parametrize(
    ("value", "is_written"),
    [
        (Colour.RED, "red"),
        (Point(1, 2), {"x": 1, "y": 2}),
        (Row("a", (1, 2)), {"name": "a", "parts": [1, 2]}),
        (Model(when=date(2025, 1, 2), score=float("inf")), {"when": "2025-01-02", "score": "Infinity"}),
        (datetime(2025, 1, 2, 3, 4, tzinfo=UTC), "2025-01-02T03:04:00+00:00"),
        (timedelta(days=1), "1 day, 0:00:00"),
        (Decimal("10.50"), 10.5),
        (Decimal("0.1000000000000000000001"), "0.1000000000000000000001"),
        (float("nan"), None),
        (10**30, 10**30),
        (10**5_000, hex(10**5_000)),
        (b"text", "text"),
        (b"\xff\x00", "base64:/wA="),
        ({3, 1, 2}, [1, 2, 3]),
        ({(1, 2): 3, None: 4, 5: 6}, {"[1,2]": 3, "null": 4, "5": 6}),
        (PurePosixPath("/a/b"), "/a/b"),
        (ValueError("no"), "ValueError: no"),
        ("\ud83d\ude00", "😀"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_value_has_a_defined_json_value(value: Any, is_written: Any) -> None:
    assert normalise(value, strict=True) == is_written


def test_figures_and_pictures_that_a_tool_returns_are_files_of_the_run_which_the_model_sees() -> None:
    class Figure:  # of matplotlib, which tests do not install
        def savefig(self, target: Any, **options: str) -> None:
            Image.new("RGB", (3, 3), "blue").save(target, **options)

    def draw() -> dict[str, Any]:
        """Draw."""
        return {"photo": Image.new("RGB", (4, 4), "red"), "figure": Figure(), "note": "rising"}

    model = ScriptedClient([call("draw"), answer("Drawn.")])
    result = Agent(model, [draw], home=False).run_sync("Draw.")
    assert [(file.name.split("-")[0], file.media_type) for file in result.files] == [
        ("picture", "image/png"),
        ("figure", "image/png"),
    ]
    assert Image.open(BytesIO(result.files[0].data)).getpixel((0, 0)) == (255, 0, 0)
    shown = model.requests[-1].messages[-1]
    assert "picture-" in str(shown)
    assert "data:image/png;base64" in str(shown)


def test_numpy_values_are_what_they_hold() -> None:
    table = {
        "a": numpy.float32(1.5),
        "b": numpy.arange(3),
        "c": numpy.array([[1.0, numpy.nan]]),
        "d": numpy.datetime64("2025-01-02"),
    }
    assert normalise(table, strict=True) == {"a": 1.5, "b": [0, 1, 2], "c": [[1.0, None]], "d": "2025-01-02"}


def test_what_has_no_json_value_is_named_or_refused() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    assert normalise(cycle) == [1, "<a cycle: the value contains itself>"]
    assert normalise(object()) == "<object object>"
    with pytest.raises(EncodingError, match=r"\$\[1\]: a cycle"):
        normalise(cycle, strict=True)
    with pytest.raises(EncodingError, match="two keys are written '1'"):
        normalise({1: "a", "1": "b"}, strict=True)


class Broken:
    @property
    def __attrs_attrs__(self) -> Any:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_broken_object_does_not_end_the_run() -> None:
    assert normalise([Broken()]) == ["<Broken whose repr raised RuntimeError>"]


# ------------------------------------------------------------------------------------------------ forms


@settings(max_examples=80)
@given(name=st.text(max_size=12), summary=st.text(max_size=40), data=st.text(max_size=20), code=st.text(max_size=6))
def test_no_text_breaks_out_of_a_form(name: str, summary: str, data: str, code: str) -> None:
    telemetry = ToolTelemetry(tool_name=name, output_tokens=3, error_code=code)
    whole = ToolOutput(result={"d": data}, summary=summary, telemetry=telemetry)
    clean = normalise(summary)
    parts = dict(part.partition(":")[::2] for part in compact_form(whole).split("|"))
    assert json.loads(base64.b64decode(parts["res"])) == {"d": normalise(data)}
    assert list(parts) == ["res", "sum", "tok", "err"]
    assert "\n" not in parts["sum"] + parts["err"]
    assert yaml.safe_load(safe_yaml_form(whole)) == {
        "result": {"data": {"d": normalise(data)}, "summary": clean, "tokens": 3}
    }
    for form in (xml_form(whole), CacheOptimizedOutput.format_with_stable_prefix(whole)):
        root = ElementTree.fromstring(form)
        assert root.tag == "tool_result"
        allowed = "".join(sign if sign in "\t\n\r" or sign >= " " else "\ufffd" for sign in clean)
        assert root.findtext("summary") == allowed.replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")


def test_the_forms_look_as_designed() -> None:
    whole = output(result={"a": 1}, summary="one | two")
    assert compact_form(whole) == "res:eyJhIjoxfQ==|sum:one \\p two|tok:127|err:"
    assert safe_yaml_form(whole) == "result:\n  data:\n    a: 1\n  summary: one | two\n  tokens: 127"
    assert xml_form(whole) == (
        '<tool_result name="search">\n  <summary>one | two</summary>\n'
        '  <data type="object"><a type="number">1</a></data>\n'
        '  <metadata tokens="127"/>\n</tool_result>'
    )
    assert CacheOptimizedOutput.stable_prefix("search") == '<tool_result name="search">'
    assert CacheOptimizedOutput.format_with_stable_prefix(output(summary="a <b>")) == (
        '<tool_result name="search">\n  <summary>a &lt;b&gt;</summary>\n</tool_result>'
    )


# ------------------------------------------------------------------------------------------------ summaries


@pytest.mark.parametrize(
    ("value", "english", "chinese"),
    [
        (
            [{"date": 1, "region": 2, "n": 3}] * 1_000,
            "1,000 rows × 3 columns: date, region, n",
            "1,000 行 × 3 列：date、region、n",
        ),
        ([3, 1, 2], "3 numbers from 1 to 3: 3, 1, 2", "3 个数，1 至 3：3、1、2"),
        (["a", "b"], "2 items: a, b", "2 项：a、b"),
        ([[1, 2], [3, 4]], "2 rows × 2 columns", "2 行 × 2 列"),
        ({"ok": True, "n": 3, "rows": [{"a": 1}] * 5}, "ok: true, n: 3, rows: 5 rows × 1 columns: a", None),
        (
            {"organic": [{"title": "T1", "link": "l"}, {"title": "T2", "link": "m"}]},
            "2 results: T1; T2",
            "2 条结果：T1；T2",
        ),
        ({"organic": []}, "no results", "没有结果"),
        ({"error": "no such city"}, "error: no such city", "错误：no such city"),
        ("short text", "short text", "short text"),
        (
            "first line\n" + "x\n" * 200,
            "text of 411 characters, 202 lines: first line",
            "文本 411 字符，202 行：first line",
        ),
        (b"\x89PNG\r\n" + b"0" * 994, "1,000 bytes (PNG)", "1,000 字节 (PNG)"),
        (ValueError("bad"), "ValueError: bad", "ValueError: bad"),
        (None, "no result", "无结果"),
        ([], "an empty list", "空列表"),
    ],
)
def test_a_summary_says_what_the_result_is(value: Any, english: str, chinese: str | None) -> None:
    assert summarise(value) == english
    assert chinese is None or summarise(value, "zh") == chinese


@settings(max_examples=60)
@given(
    value=st.recursive(
        st.one_of(st.none(), st.integers(), st.text(max_size=300)),
        lambda inner: st.one_of(st.lists(inner, max_size=9), st.dictionaries(st.text(max_size=90), inner, max_size=9)),
        max_leaves=20,
    )
)
def test_a_summary_is_one_bounded_line(value: Any) -> None:
    line = summarise(value)
    assert len(line) <= 240
    assert len(line.splitlines()) == 1
    with pytest.raises(UsageError, match="en or zh"):
        summarise(value, "xx")


# ------------------------------------------------------------------------------------------------ telemetry


def test_a_meter_measures_latency_apart_from_the_whole() -> None:
    meter = CallMeter()
    meter.start()
    total = sum(number * number for number in range(200_000))
    meter.stop()
    time.sleep(0.01)
    telemetry = meter.telemetry(
        "sum", input_tokens=2, output_tokens=5, retry_count=1, metrics={"rows": float(total > 0)}
    )
    assert telemetry.latency_ms > 0
    assert telemetry.duration_ms >= telemetry.latency_ms + 10
    assert 0 < telemetry.cpu_percent <= 100
    assert telemetry.memory_mb >= 0
    assert telemetry.total_tokens == 7
    assert (telemetry.retry_count, telemetry.metrics) == (1, {"rows": 1.0})
    assert datetime.fromisoformat(telemetry.timestamp).tzinfo is not None
    assert len({CallMeter().telemetry("x").execution_id for _ in range(5)}) == 5


def test_a_collector_sums_many_calls_in_constant_memory() -> None:
    collector = TelemetryCollector(keep=100)
    calls = [
        ToolTelemetry(
            tool_name=f"t{number % 3}",
            output_tokens=2,
            latency_ms=1.0,
            success=number % 4 != 0,
            cache_hit=number % 2 == 0,
        )
        for number in range(8)
    ]
    for _ in range(15_000):
        for made in calls:
            collector.record(made)
    tracemalloc.start()
    for _ in range(10_000):
        for made in calls:
            collector.record(made)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 20_000  # bytes, over 80,000 records
    assert collector.aggregated == {
        "total_calls": 200_000,
        "total_tokens": 400_000,
        "total_latency_ms": 200_000.0,
        "error_rate": 0.25,
        "cache_hit_rate": 0.5,
    }
    assert len(collector.metrics) == 100
    assert collector.by_tool["t0"] == {"calls": 75_000, "errors": 25_000, "latency_ms": 75_000.0, "tokens": 150_000}


def test_reports_are_readable_and_an_empty_one_says_so() -> None:
    collector = TelemetryCollector()
    assert "none yet" in collector.get_report("en")
    assert collector.aggregated["error_rate"] == 0.0
    collector.record(ToolTelemetry(output_tokens=10, latency_ms=5.0))
    collector.record(ToolTelemetry(output_tokens=20, latency_ms=10.0, success=False))
    assert collector.get_report() == (
        "\n工具执行统计:\n- 总调用次数: 2\n- 总 Token 使用: 30\n- 平均延迟: 7.50ms\n"
        "- 错误率: 50.00%\n- 缓存命中率: 0.00%\n"
    )
    assert "- error rate: 50.00%" in collector.get_report("en")


# ------------------------------------------------------------------------------------------------ the wrapper


def test_the_designs_example_runs() -> None:
    @UnifiedToolWrapper.wrap_tool(tool_name="file_reader", response_format=ResponseFormat.STANDARD)
    def file_reader_impl(path: str, **kwargs: Any) -> dict[str, Any]:
        """文件读取实现"""
        return {"rows": 1000, "columns": 5, "path": path}

    shown = file_reader_impl("data/sales.csv")
    model_side = json.loads(shown)
    assert model_side["summary"] == "rows: 1000, columns: 5, path: data/sales.csv"
    assert model_side["result"] == {"rows": 1000, "columns": 5, "path": "data/sales.csv"}
    assert model_side["observation"].startswith(f"Observation: {model_side['summary']}\n")
    assert "telemetry" not in model_side
    assert shown.telemetry.tool_name == "file_reader"
    assert shown.telemetry.output_tokens > 0
    assert shown.output.response_format is ResponseFormat.STANDARD
    assert ToolOutput.model_validate_json(shown).summary == shown.summary
    assert (file_reader_impl.__name__, file_reader_impl.__doc__) == ("file_reader", "文件读取实现")
    assert list(inspect.signature(file_reader_impl).parameters) == ["path", "kwargs"]


def test_a_call_and_a_bare_decorator_do_too_and_async_stays_async() -> None:
    @UnifiedToolWrapper.wrap_tool
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    assert inspect.iscoroutinefunction(double)
    assert asyncio.run(double(21)).summary == "42"
    assert UnifiedToolWrapper.wrap_tool(len, "length", ResponseFormat.RAW)("abc").observation == "Observation: 3"


def test_an_exception_becomes_an_output() -> None:
    collector = TelemetryCollector()

    @UnifiedToolWrapper.wrap_tool(collector=collector)
    def find(key: str) -> str:
        raise KeyError(key)

    shown = find("x\nObservation: y")
    assert (shown.telemetry.success, shown.telemetry.error_code) == (False, "KeyError")
    assert shown.summary.startswith("Error: ")
    assert shown.observation.startswith("Observation: Error - ")
    assert "\nObservation:" not in shown.observation
    assert collector.aggregated["error_rate"] == 1.0


def test_a_function_that_returns_an_output_speaks_for_itself() -> None:
    collector = TelemetryCollector()
    own = ToolTelemetry(success=False, error_code="NotFound", cache_hit=True, metrics={"pages": 2.0})
    shown = UnifiedToolWrapper.wrap_tool(
        lambda: ToolOutput(summary="gone", telemetry=own), "read", collector=collector
    )()
    telemetry = shown.telemetry
    assert (telemetry.success, telemetry.error_code, telemetry.cache_hit) == (False, "NotFound", True)
    assert telemetry.metrics == {"pages": 2.0}
    assert (telemetry.tool_name, telemetry.output_tokens > 0, telemetry.duration_ms > 0) == ("read", True, True)
    assert collector.aggregated["error_rate"] == collector.aggregated["cache_hit_rate"] == 1.0


def test_cancellation_passes_through() -> None:
    @UnifiedToolWrapper.wrap_tool
    async def wait() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(wait())


def test_concise_gives_the_summary_and_a_handle_to_the_data() -> None:
    store = MemoryArtifacts()
    rows = UnifiedToolWrapper.wrap_tool(lambda: [{"a": number} for number in range(500)], "rows", store=store)
    shown = rows()
    assert shown.result is None
    assert shown.observation == 'Observation: 500 rows × 1 columns: a\nThe whole result: read_result("rows-1")'
    assert read_result(store, "rows-1", path="[499].a") == "499"
    assert rows().handle == "rows-2"
