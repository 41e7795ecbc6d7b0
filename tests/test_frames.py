"""A reader can follow a request from `Agent.run` to the HTTP POST: few frames, each with a name of its own."""

from __future__ import annotations

import sys
from typing import Any

import aiohttp
import pytest

from closeout import Agent, Boxed, tool
from closeout.testing import ScriptedClient, answer, call, say, serve_script

MOST_FRAMES = 12
MOST_FRAMES_CLOSING = 13


def our_frames() -> list[str]:
    """The qualified names of this package's functions on the stack, the innermost first."""
    frame, names = sys._getframe(1), []
    while frame is not None:
        if frame.f_globals.get("__name__", "").split(".")[0] == "closeout":
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return names


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The frames at each POST, filled while a run continues."""
    found: list[list[str]] = []
    send = aiohttp.ClientSession._request

    async def recorded(session: Any, method: str, *arguments: Any, **options: Any) -> Any:
        if method.upper() == "POST":
            found.append(our_frames())
        return await send(session, method, *arguments, **options)

    monkeypatch.setattr(aiohttp.ClientSession, "_request", recorded)
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["function_call", "cot_chat", "cot_completion", "mcp_xml"])
async def test_a_request_is_at_most_twelve_frames_deep(dialect: str, stream: bool, stacks: list[list[str]]) -> None:
    @tool(read_only=True)
    def look(key: str) -> str:
        """Look up a key.

        Args:
            key: the key
        """
        return f"{key} is 42"

    async with serve_script([call("look", key="a"), answer("42")]) as server:
        agent = Agent(
            "openai:x", [look], base_url=server.base_url, api_key="k", dialect=dialect, stream=stream, home=False
        )
        result = await agent.run("What is a?")
    assert result.answer == "42"
    assert len(stacks) == 2
    for stack in stacks:
        assert stack[-1] == "Agent.run"
        assert len(stack) <= MOST_FRAMES, stack
        names = [name.rpartition(".")[2].strip("_") for name in stack]
        assert len(names) - names.count("run") == len(set(names) - {"run"}), stack


@pytest.mark.parametrize("dialect", ["function_call", "cot_completion"])
async def test_a_closing_request_is_at_most_thirteen_frames_deep(dialect: str, stacks: list[list[str]]) -> None:
    """The turns are spent: the first request asks for the answer, the second for its form."""
    async with serve_script([say("It is 42."), answer("42")]) as server:
        agent = Agent("openai:x", base_url=server.base_url, api_key="k", dialect=dialect, answer=Boxed(), home=False)
        result = await agent.run("What is a?", max_turns=1)
    assert result.answer == "42"
    assert [len(stack) for stack in stacks] == [MOST_FRAMES, MOST_FRAMES_CLOSING], stacks
    names = [name.rpartition(".")[2].strip("_") for name in stacks[1]]
    assert len(names) - names.count("run") == len(set(names) - {"run"}), stacks[1]


async def test_a_tool_is_called_at_most_twelve_frames_below_the_run() -> None:
    stacks: list[list[str]] = []

    @tool(read_only=True, timeout=None)  # a call with a timeout has a task, and with it a stack, of its own
    async def look(key: str) -> str:
        """Look up a key."""
        stacks.append(our_frames())
        return "42"

    result = await Agent(ScriptedClient([call("look", key="a"), answer("42")]), [look], home=False).run("What is a?")
    assert result.answer == "42"
    assert stacks[0][-1] == "Agent.run"
    assert len(stacks[0]) <= MOST_FRAMES, stacks
