"""Tools wrapped as the tool-output design shows, in a run: each format shows what it says, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from closeout import Agent, ResponseFormat, ToolOutput, ToolTelemetry, UnifiedToolWrapper, tool
from closeout.results.artifacts import MemoryArtifacts
from closeout.testing import answer, call, serve_script


def reader(response_format: ResponseFormat, **options: Any) -> Any:
    @UnifiedToolWrapper.wrap_tool(tool_name="file_reader", response_format=response_format, **options)
    def file_reader_impl(path: str, **kwargs: Any) -> dict[str, Any]:
        """Read a file."""
        return {"rows": 1000, "columns": 5, "names": ["date", "region"]}

    return file_reader_impl


async def shown(tools: list[Any], *calls: Any, home: Path, stream: bool = False) -> list[str]:
    """What the model is shown of each call's result."""
    async with serve_script([*calls, answer("done")]) as server:
        agent = Agent("openai:scripted", tools, base_url=server.base_url, api_key="k", home=home, stream=stream)
        result = await agent.run("Read.")
        assert result.answer == "done"
    messages = server.requests[-1].json["messages"]
    return [message["content"] for message in messages if message["role"] == "tool"]


@pytest.mark.parametrize("stream", [False, True])
async def test_each_format_shows_what_the_design_says(stream: bool, tmp_path: Path) -> None:
    async def text(response_format: ResponseFormat) -> str:
        asked = call("file_reader", path="data/sales.csv")
        (content,) = await shown([reader(response_format)], asked, home=tmp_path, stream=stream)
        return content

    summary = "rows: 1000, columns: 5, names: 2 items"
    assert await text(ResponseFormat.CONCISE) == f'{summary}\nThe whole result: read_result("r1")'
    standard = await text(ResponseFormat.STANDARD)
    assert standard.startswith(f"{summary}\n\nResult Type: dict\nStatus: Success\n")
    assert '"names":["date","region"]' in standard
    detailed = await text(ResponseFormat.DETAILED)
    assert "Tool: file_reader\nExecution ID: " in detailed
    assert await text(ResponseFormat.RAW) == '{"rows":1000,"columns":5,"names":["date","region"]}'


@pytest.mark.parametrize("store", [None, MemoryArtifacts()])
async def test_a_concise_result_can_be_read_whole(store: Any, tmp_path: Path) -> None:
    concise = reader(ResponseFormat.CONCISE, store=store)
    contents = await shown(
        [concise], call("file_reader", path="a"), call("read_result", handle="r1", path="names[1]"), home=tmp_path
    )
    assert contents[1] == "region"


async def test_a_tools_declaration_chooses_the_format(tmp_path: Path) -> None:
    @tool(response_format="concise", version="2.1.0")
    def table(n: int) -> list[dict[str, int]]:
        """Rows of a table."""
        return [{"id": number, "square": number * number} for number in range(n)]

    first, more = await shown(
        [table], call("table", n=500), call("read_result", handle="r1", path="[499].square"), home=tmp_path
    )
    assert first == '500 rows × 2 columns: id, square\nThe whole result: read_result("r1")'
    assert more == str(499 * 499)


async def test_a_tool_that_returns_an_output_decides_for_itself(tmp_path: Path) -> None:
    @tool
    def note() -> ToolOutput:
        """Take a note."""
        return ToolOutput(summary="3 rows updated")

    assert await shown([note], call("note"), home=tmp_path) == ["3 rows updated"]


def test_what_a_wrapped_tool_reports_of_its_call_stays_and_sums_fit_it() -> None:
    def translate(text: str) -> ToolOutput:
        """Translate a text."""
        return ToolOutput(summary="Done.", telemetry=ToolTelemetry(input_tokens=3, output_tokens=11))

    telemetry = UnifiedToolWrapper.wrap_tool(translate, "translate")("a text").output.telemetry
    assert (telemetry.input_tokens, telemetry.output_tokens, telemetry.total_tokens) == (3, 11, 14)
