"""What somebody hands to an Agent or a run, looked at before anything begins. Wrong kinds of things are UsageErrors.

Each function gives back what it was given, if that is what its name says. Settings are looked at in `config`, tools in
`tools`, servers in `tools.mcp_config`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from closeout.errors import UsageError

if TYPE_CHECKING:
    from closeout.journal.journal import Listener

__all__ = ["a_contract", "a_conversation", "a_folder", "a_list", "a_task", "a_text", "listeners"]


def a_list(name: str, such_as: str, given: Any) -> tuple[Any, ...]:
    """The things in it. One in place of a list is told by name; a text would pass for a list of its letters."""
    try:
        if not isinstance(given, (str, bytes)):
            return tuple(given)
    except TypeError:
        pass
    raise UsageError(f"{name}={given!r:.80} is no list. Write it like {name}={such_as}.")


def a_contract(given: Any) -> Any:
    """An answer contract, or None."""
    if given is not None and (isinstance(given, type) or not hasattr(given, "instruction")):
        raise UsageError(f"answer={given!r:.80} is no contract. Give one as it is made: Boxed(), Number(), ….")
    return given


def a_text(name: str, given: Any) -> str:
    """The text, or "" for None."""
    if not isinstance(given, str | None):
        raise UsageError(f"{name}={given!r:.80} is no text. Join what the agent is to know into one.")
    return given or ""


def a_folder(given: Any) -> Any:
    """A path; None and True mean the usual place, False none."""
    if not isinstance(given, str | os.PathLike | bool | None):
        raise UsageError(f"home={given!r:.80} is no folder. Give its path, or False to keep runs in memory only.")
    return given


def a_task(given: Any) -> str:
    """A text with something in it."""
    if not isinstance(given, str):
        raise UsageError(f"The task is {given!r:.80}. Give a text; what was said before goes into history=.")
    if not given.strip():
        raise UsageError("The task is empty. Say what the agent is to find out or do.")
    return given


def a_conversation(given: Any) -> Sequence[Mapping[str, Any]]:
    """The messages before the task; what is none would be refused by the model's server, if at all."""
    messages: tuple[Any, ...] = a_list("history", '[{"role": "user", "content": "…"}]', given)
    for message in messages:
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise UsageError(
                f"history holds {message!r:.80}. Write each message as "
                '{"role": "user", "content": "…"}, or with "assistant".'
            )
    return messages


def listeners(given: Any) -> tuple[Listener, ...]:
    """Those who can hear. A class would be called with each event, and nothing would be heard; so would a coroutine."""
    found = a_list("listeners", "[print]", given)
    if not found:
        return ()
    from inspect import iscoroutinefunction

    for listener in found:
        if isinstance(listener, type) or not (callable(listener) or hasattr(listener, "follow")):
            raise UsageError(
                f"listeners holds {listener!r:.80}, which cannot be told of events. "
                "Give a function, or a listener as it is made: JsonLogListener()."
            )
        if iscoroutinefunction(listener) or iscoroutinefunction(getattr(listener, "__call__", None)):  # noqa: B004
            raise UsageError(
                f"listeners holds {listener!r:.80}, which is async, and events are told without waiting. "
                "Give a plain function, asyncio.Queue().put_nowait for example, or use agent.stream(…)."
            )
    return found
