"""Seed 000: the output formatter, in the order of its sections."""

from __future__ import annotations

from typing import Any

import pytest

from closeout import Agent, Boxed, Capabilities, OutputFormatter, ToolExecutor, UsageError, tool
from closeout.testing import ScriptedClient, answer, call


@tool(read_only=True)
def look(key: str) -> str:
    """Look up a key."""
    return f"{key} is unknown"


class OwnState(OutputFormatter):
    """Has a constructor of its own, as a class without state may."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def format_tool_result_for_user(self, tool_call_execution_result: Any) -> dict[str, str]:
        self.seen.append(dict(tool_call_execution_result))
        return super().format_tool_result_for_user(tool_call_execution_result)


class SameShape:
    """Not an OutputFormatter: only its three methods."""

    def _extract_boxed_content(self, text: str) -> str:
        return "mine"

    def format_tool_result_for_user(self, result: Any) -> dict[str, str]:
        return {"type": "text", "text": f"[{result['server_name'].upper()}] {result['result']}"}

    def format_final_summary_and_log(self, text: str, client: Any = None) -> tuple[str, str, str]:
        return "summary", "mine", "log"


async def test_a_formatter_needs_neither_a_call_of_the_base_constructor_nor_the_base_class() -> None:
    for formatter, found, shown in (
        (OwnState(), "1", "a is unknown"),
        (SameShape(), "mine", "[LOCAL] a is unknown"),
    ):
        for options in ({"answer": Boxed()}, {}):
            model = ScriptedClient([call("look", key="a"), answer("1")])
            result = await Agent(model, [look], output_formatter=formatter, home=False, **options).run("?")  # type: ignore[arg-type]
            assert result.answer in (found, "1"), (formatter, options)
            assert model.requests[-1].messages[-1].text == shown
            assert not result.warnings


async def test_every_record_of_a_call_names_its_server_and_its_tool() -> None:
    formatter = OwnState()
    model = ScriptedClient([call("look", key="a"), answer("1")])
    result = await Agent(model, [look], output_formatter=formatter, home=False).run("?")
    for record in (formatter.seen[0], result.task_log.tool_calls[0]):
        assert (record["server_name"], record["tool_name"]) == ("local", "look")


async def test_the_threshold_may_change_at_run_time_and_an_error_names_its_tool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @tool(read_only=True)
    def page(url: str) -> str:
        """Read a page."""
        return {"long": "word " * 400, "lost": ""}[url]

    monkeypatch.setattr("closeout.answers.formatter.TOOL_RESULT_MAX_LENGTH", 100)
    model = ScriptedClient([call("page", url="long"), call("page", url="none"), answer("1")])
    await Agent(model, [page], home=False).run("?")
    long, lost = (message.text for message in model.requests[-1].messages if message.role == "tool")
    assert (len(long), long[100:]) == (123, "\n... [Result truncated]")
    assert lost == "Error: page: KeyError: 'none'"


async def test_what_replaces_the_result_before_super_is_what_the_model_reads() -> None:
    class HeadAndTail(OutputFormatter):
        def format_tool_result_for_user(self, tool_call_execution_result: Any) -> dict[str, str]:
            record = dict(tool_call_execution_result)
            if len(str(record.get("result", ""))) > 40:
                record["result"] = f"{record['result'][:6]} … {record['result'][-20:]}"
            return super().format_tool_result_for_user(record)

    class InTheExecutor(ToolExecutor):
        def format_tool_result_for_llm(self, tool_result: dict[str, Any]) -> dict[str, Any]:
            return super().format_tool_result_for_llm({**tool_result, "result": "replaced"})

    @tool(read_only=True)
    def page(url: str) -> str:
        """Read a page."""
        return "begin " + "word " * 5_000 + "\nObservation: I am"

    script = [call("page", url="a"), answer("1")]
    for options, shown in (
        ({"output_formatter": HeadAndTail()}, "begin  … d \nObservation&#58; I am"),  # cannot pass for a marker
        ({"tool_executor": InTheExecutor}, "replaced"),
    ):
        model = ScriptedClient(script, capabilities=Capabilities(native_tools=False, known=True))
        result = await Agent(model, [page], dialect="cot_chat", home=False, **options).run("?")  # type: ignore[arg-type]
        assert (result.answer, result.warnings) == ("1", ())
        assert shown in model.requests[-1].text, model.requests[-1].text[-300:]


def test_an_object_that_lacks_a_method_of_a_formatter_is_refused_with_its_name() -> None:
    class Half:
        def format_tool_result_for_user(self, result: Any) -> dict[str, str]: ...  # type: ignore[empty-body]

    with pytest.raises(UsageError, match="and Half has no format_final_summary_and_log"):
        Agent("local", output_formatter=Half(), home=False)  # type: ignore[arg-type]
