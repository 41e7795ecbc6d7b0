"""The prompts of an MCP server: templates of a task, with arguments that are texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from closeout.errors import ToolError, UsageError
from closeout.tools.mcp.mcp_pages import all_pages

if TYPE_CHECKING:
    from mcp import Client

__all__ = ["completed_argument", "listed_prompts", "rendered_prompt"]

MAX_PROMPTS = 1_000


async def listed_prompts(client: Client) -> list[dict[str, Any]]:
    """Return the server's prompts with `name`, `description` and `arguments`, which have a name and a description too.

    `required` in an argument says whether it must be given.
    """
    if getattr(client.session.server_capabilities, "prompts", None) is None:
        return []
    prompts, _ = await all_pages(client.list_prompts, "prompts", MAX_PROMPTS)
    return [
        {
            "name": prompt.name,
            "description": prompt.description or prompt.title or "",
            "arguments": [
                {"name": each.name, "description": each.description or "", "required": bool(each.required)}
                for each in prompt.arguments or ()
            ],
        }
        for prompt in prompts
    ]


async def rendered_prompt(client: Client, name: str, arguments: Mapping[str, str]) -> str:
    """Return the text of a prompt with its arguments filled in; messages of the assistant are marked as such.

    Raises:
        UsageError: The server has no such prompt, or the arguments are not those that it takes.
        ToolError: The prompt holds something besides text.
    """
    prompts = await listed_prompts(client)
    prompt = next((each for each in prompts if each["name"] == name), None)
    if prompt is None:
        raise UsageError(f"No prompt {name!r}. There are: {', '.join(each['name'] for each in prompts) or 'none'}.")
    taken = {each["name"]: each["required"] for each in prompt["arguments"]}
    if unknown := [each for each in arguments if each not in taken]:
        raise UsageError(f"The prompt {name!r} has no argument {unknown[0]!r}. It takes: {', '.join(taken) or 'none'}.")
    if missing := [each for each, required in taken.items() if required and each not in arguments]:
        raise UsageError(f"The prompt {name!r} needs {missing[0]}=… as well.")
    texts = []
    for message in (await client.get_prompt(name, dict(arguments))).messages:
        content: Any = message.content
        if content.type == "resource" and hasattr(content.resource, "text"):
            text = content.resource.text
        elif content.type == "text":
            text = content.text
        else:
            raise ToolError(f"The prompt {name!r} holds {content.type}, which is not a text.")
        texts.append(text if message.role == "user" else f"(assistant) {text}")
    return "\n\n".join(texts)


async def completed_argument(client: Client, name: str, argument: str, value: str) -> list[str]:
    """Return the values that the server suggests for an argument of a prompt that begins with a text."""
    from mcp.types import PromptReference

    if getattr(client.session.server_capabilities, "completions", None) is None:
        return []
    found = await client.complete(PromptReference(name=name), {"name": argument, "value": value})
    return [each for each in found.completion.values if each.isprintable()]
