"""The tasks with slots that a chat can send: the agent's task templates, and the prompts of its MCP servers."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from closeout.assembly.task_templates import task_templates
from closeout.cli.terminal import one_line
from closeout.errors import CloseoutError, UsageError
from closeout.visible import visible

if TYPE_CHECKING:
    from closeout.agent import Agent
    from closeout.tools.mcp.mcp_client import McpServer

__all__ = ["ChatTemplates", "named_values", "prompt_line"]

COMPLETION_SECONDS = 3.0  # seconds that a server may take to complete an argument


class ChatTemplates:
    """Templates by the command that fills them in: `/plan city=Rome`, `/shop:plan city=Rome` for a server's prompt.

    Args:
        agent: The agent, which has been entered.
        run: Runs a coroutine in the agent's event loop.
    """

    def __init__(self, agent: Agent[Any], run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._own = {each.name: each for each in task_templates(agent.config.agent)}
        self._servers: dict[str, McpServer] = {
            each.name: each for each in getattr(agent.plan().manager, "mcp_servers", ())
        }
        self._run = run
        self._listed: dict[str, list[dict[str, Any]]] = {}  # prompts by server

    def listed(self) -> str:
        """Return a line for each template, and one for each server that does not list its prompts."""
        lines = [
            "/" + _line(each.name, each.description, {name: slot.required for name, slot in each.slots.items()})
            for each in self._own.values()
        ]
        for server in self._servers:
            try:
                lines += [f"/{server}:{prompt_line(each)}" for each in self._prompts(server)]
            except CloseoutError as error:
                lines.append(str(error))
        return "\n".join(map(visible, lines)) or "There are no templates."

    def filled(self, line: str) -> str | None:
        """Return the task that a line fills in, None if it names no template.

        Raises:
            CloseoutError: The arguments do not fit, or the server failed.
        """
        name, _, rest = line.removeprefix("/").partition(" ")
        server, colon, prompt = name.partition(":")
        if name in self._own:
            template, arguments = self._own[name], _arguments(rest)
            if problem := template.problem(arguments):
                raise UsageError(problem)
            return str(template.render(arguments))
        if not colon or server not in self._servers:
            return None
        from closeout.tools.mcp.mcp_prompts import rendered_prompt

        act = partial(rendered_prompt, name=prompt, arguments=_arguments(rest))
        return str(self._run(self._servers[server].use(act)))

    def completions(self, line: str, commands: Iterable[str]) -> list[str]:
        """Return the completions of the last word of a line; none if a server does not answer."""
        if not line.startswith("/"):
            return []
        *before, last = line.split(" ")
        with suppress(CloseoutError, TimeoutError):
            if not before:
                names = [*self._own, *(f"{s}:{each['name']}" for s in self._servers for each in self._prompts(s))]
                return [each for each in (*commands, *(f"/{name}" for name in names)) if each.startswith(last)]
            return self._words(before[0].removeprefix("/"), last)
        return []

    def _words(self, name: str, begun: str) -> list[str]:
        """Return the completions of a template's argument: its names, or the values after `NAME=`."""
        argument, equals, value = begun.partition("=")
        server, _, prompt = name.partition(":")
        if name in self._own:
            names = list(self._own[name].slots)
        elif server in self._servers:
            names = [a["name"] for each in self._prompts(server) if each["name"] == prompt for a in each["arguments"]]
        else:
            return []
        if not equals:
            return [f"{each}=" for each in names if each.startswith(begun)]
        if argument not in names:
            return []
        if name in self._own:
            found: Sequence[str] = self._own[name].slots[argument].values
        else:
            from closeout.tools.mcp.mcp_prompts import completed_argument

            act = partial(completed_argument, name=prompt, argument=argument, value=value)
            found = self._run(asyncio.wait_for(self._servers[server].use(act), COMPLETION_SECONDS))
        return [f"{argument}={shlex.quote(each)}" for each in found if each.startswith(value)]

    def _prompts(self, server: str) -> list[dict[str, Any]]:
        from closeout.tools.mcp.mcp_prompts import listed_prompts

        if server not in self._listed:
            self._listed[server] = self._run(self._servers[server].use(listed_prompts))
        return self._listed[server]


def prompt_line(prompt: Mapping[str, Any]) -> str:
    """Return a prompt of an MCP server on one line: `plan city=… [days=…]  Plan a journey`."""
    required = {each["name"]: each["required"] for each in prompt["arguments"]}
    return _line(prompt["name"], prompt["description"], required)


def _line(name: str, about: str, required: Mapping[str, bool]) -> str:
    takes = " ".join(f"{each}=…" if needed else f"[{each}=…]" for each, needed in required.items())
    return f"{name} {takes}  {one_line(about, 100)}".rstrip()


def _arguments(text: str) -> dict[str, str]:
    """Return the arguments in a text such as `city="New York" days=3`."""
    try:
        return named_values(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"The arguments cannot be split: {error}.") from None


def named_values(words: Iterable[str]) -> dict[str, str]:
    """Return the values that words such as `days=3` name.

    Raises:
        UsageError: A word has no `=`.
    """
    pairs = [each.partition("=") for each in words]
    if bad := next((each for each in pairs if not each[1]), None):
        raise UsageError(f"An argument is written NAME=VALUE, got {bad[0]!r}.")
    return {key: value for key, _, value in pairs}
