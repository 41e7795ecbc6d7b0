"""An agent whose model makes one call after another, until the turns are used up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from closeout import Agent, ModelReply, tool
from closeout.messages import ToolCall, Usage
from closeout.models.base import BaseClient

__all__ = ["endless_agent"]


class _Endless(BaseClient):
    name = "endless"

    def __init__(self) -> None:
        self._turns = 0

    async def complete(self, request: Any, *, on_delta: Any = None, on_retry: Any = None) -> ModelReply:
        self._turns += 1
        await asyncio.sleep(0)  # as any model server lets the event loop work
        usage = Usage(100, 5, requests=1)
        if request.tool_choice == "none":
            return ModelReply("\\boxed{done}", usage=usage)
        text = f'{{"key":"k{self._turns}"}}'
        return ModelReply("", tool_calls=(ToolCall("look", text, f"c{self._turns}", text=text),), usage=usage)


def endless_agent(home: Path, turns: int, *, read_only: bool = True) -> Agent[Any]:
    """Return an agent that calls a tool in each of so many turns."""

    @tool(read_only=read_only, inline=True)
    def look(key: str) -> str:
        """Look up a key."""
        return f"about {key}"

    return Agent(_Endless(), [look], home=home, max_turns=turns, keep_tool_result=5)
