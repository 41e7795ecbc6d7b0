"""Every method of the seeds' classes that a subclass overrides is called, in every dialect and every way to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from closeout import (
    Agent,
    AnswerGenerator,
    Boxed,
    Capabilities,
    OutputFormatter,
    TaskLog,
    TelemetryCollector,
    ToolExecutor,
    ToolManager,
    tool,
)
from closeout.dialects.protocol import DIALECTS
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call

HOOKS: dict[type, tuple[str, ...]] = {
    ToolExecutor: (
        "fix_tool_call_arguments",
        "get_query_str_from_tool_call",
        "is_duplicate_query",
        "record_query",
        "execute_single_tool_call",
        "post_process_tool_call_result",
        "should_rollback_result",
        "format_tool_result_for_llm",
    ),
    OutputFormatter: ("format_tool_result_for_user", "format_final_summary_and_log", "_extract_boxed_content"),
    AnswerGenerator: ("handle_llm_call", "generate_and_finalize_answer", "generate_final_answer_with_retries"),
    ToolManager: ("execute_tool_call",),
    ScriptedClient: (
        "create_message",
        "process_llm_response",
        "extract_tool_calls_info",
        "update_message_history",
        "format_token_usage_summary",
    ),
    TelemetryCollector: ("record",),
    TaskLog: ("log_step",),
}
WAYS = ("run", "stream", "session", "map", "resume", "sub-agent")


def noting(base: type, seen: set[str]) -> Any:
    """A subclass whose methods note their names and do what those of the base class do."""

    def method(name: str) -> Any:
        def noted(self: Any, *arguments: Any, **options: Any) -> Any:
            seen.add(name)
            return getattr(super(made, self), name)(*arguments, **options)

        return noted

    made = type(f"Own{base.__name__}", (base,), {name: method(name) for name in HOOKS[base]})
    return made


@tool(read_only=True, approval="always")
def look(key: str) -> str:
    """Look something up."""
    return f"{key} is 42"


def play(view: RequestView) -> Turn:
    return answer(r"\boxed{42}") if "is 42" in view.text else call("look", key="a")


class Hooked:
    """An agent in which every hook is overridden."""

    def __init__(self, home: Path, dialect: str, *, asks: bool) -> None:
        self.seen: set[str] = set()
        own = look if asks else tool(read_only=True)(look.function)
        native = dialect == "function_call"
        self.log = noting(TaskLog, self.seen)()
        self.agent = Agent(
            noting(ScriptedClient, self.seen)(
                play, capabilities=Capabilities(completions=True, native_tools=native, known=True)
            ),
            noting(ToolManager, self.seen)([own]),
            dialect=dialect,
            answer=Boxed(),
            home=home,
            output_formatter=noting(OutputFormatter, self.seen)(),
            tool_executor=noting(ToolExecutor, self.seen),
            answer_generator=noting(AnswerGenerator, self.seen),
            telemetry=noting(TelemetryCollector, self.seen)(),
        )


async def ask(hooked: Hooked, way: str, home: Path) -> str | None:
    agent, listeners = hooked.agent, [hooked.log]
    if way == "run":
        return (await agent.run("What is a?", listeners=listeners)).answer
    if way == "stream":
        stream = agent.stream("What is a?", listeners=listeners)
        async for _ in stream:
            pass
        return stream.result.answer
    if way == "session":
        return (await agent.session("s").run("What is a?", listeners=listeners)).answer
    if way == "map":
        (answered,) = [result.answer async for result in agent.map(["What is a?"], listeners=listeners)]
        return answered
    if way == "resume":
        waiting = await agent.run("What is a?")
        assert waiting.status == "waiting"
        hooked.seen.clear()
        result = await agent.resume(waiting.run_id, decisions={waiting.waiting[0].id: True}, listeners=listeners)
        return result.answer
    outer = Agent(
        ScriptedClient([call("helper", task="What is a?"), answer("42")]),
        [agent.as_tool("helper", "Help.")],
        home=home,
    )
    return (await outer.run("What is a?", listeners=listeners)).answer


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_every_overridden_method_is_called(dialect: str, way: str, tmp_path: Path) -> None:
    if dialect == "code":
        pytest.importorskip("pydantic_monty")
    hooked = Hooked(tmp_path, dialect, asks=way == "resume")
    assert await ask(hooked, way, tmp_path) == "42"
    # One growing text has no history of messages.
    without = {"update_message_history"} if dialect == "cot_completion" else set()
    assert {name for names in HOOKS.values() for name in names} - hooked.seen == without
