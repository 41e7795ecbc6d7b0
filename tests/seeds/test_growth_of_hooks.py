"""What a subclass overrides is called in a run of any length at the same cost for each turn."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from closeout import Agent, AnswerGenerator, Boxed, CotChatAgentRunner, ToolExecutor, ToolManager, tool
from closeout.testing import RequestView, ScriptedClient, answer, call


@tool(read_only=True)
def look(key: str) -> str:
    """Look up a key."""
    return f"value of {key}"


class Client(ScriptedClient):
    def update_message_history(self, *args: Any, **options: Any) -> Any:
        return super().update_message_history(*args, **options)

    async def create_message(self, **options: Any) -> Any:
        return await super().create_message(**options)


class Generator(AnswerGenerator):
    async def handle_llm_call(self, *args: Any, **options: Any) -> Any:
        return await super().handle_llm_call(*args, **options)


class Executor(ToolExecutor):
    async def execute_single_tool_call(self, *args: Any, **options: Any) -> Any:
        return await super().execute_single_tool_call(*args, **options)


class Manager(ToolManager):
    async def execute_tool_call(self, *args: Any, **options: Any) -> Any:
        return await super().execute_tool_call(*args, **options)


class Runner(CotChatAgentRunner):
    def _organize_instruction_prompt(self) -> str:
        return super()._organize_instruction_prompt()


def made(kind: str, turns: int) -> Agent[Any]:
    def script(view: RequestView) -> Any:
        return call("look", key=str(view.number)) if view.number < turns else answer("1")

    model = (Client if kind == "hooked" else ScriptedClient)(script)
    options: dict[str, Any] = {"home": False, "max_turns": turns + 5, "answer": Boxed()}
    if kind == "runner":
        return Runner(model, [look], "I", **options).agent
    if kind == "plain":
        return Agent(model, [look], **options)
    return Agent(model, Manager([look]), tool_executor=Executor, answer_generator=Generator, **options)


def calls_of_a_turn(kind: str, turns: int) -> float:
    """Calls of functions, which a busy machine does not change."""
    agent, counted = made(kind, turns), 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        assert agent.run_sync("?").turns >= turns - 1
    finally:
        sys.setprofile(None)
    return counted / turns


@pytest.mark.parametrize("kind", ["plain", "hooked", "runner"])
def test_a_turn_costs_the_same_however_long_the_run(kind: str) -> None:
    calls_of_a_turn(kind, 5)  # what is made once in a process
    assert calls_of_a_turn(kind, 80) < 1.1 * calls_of_a_turn(kind, 20)
