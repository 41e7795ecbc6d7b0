"""`ask_user`: the agent asks a person, and the run is suspended until there is an answer."""

from __future__ import annotations

from typing import Any

from closeout.config import AskSettings
from closeout.tools.run_context import RunContext
from closeout.tools.tool import Tool, tool

__all__ = ["ask_tool", "ask_user"]


def ask_tool(*, max_wait: float | None = None, default: str = AskSettings().default) -> Tool[..., Any]:
    """Return the tool `ask_user`.

    Args:
        max_wait: Seconds after which `default` is the answer; 0 never waits. None waits for ever.
        default: The answer that the model gets if nobody answers in time.
    """

    @tool(name="ask_user", read_only=True, timeout=None, returns="trusted")
    async def ask(question: str, context: RunContext, options: list[str] | None = None) -> str:
        """Ask the user, if you cannot continue without knowing something that only they know.

        Args:
            question: one clear question
            options: answers to choose from
        """
        return await context.ask(question, options or (), max_wait=max_wait, default=default)

    return ask


ask_user = ask_tool()
