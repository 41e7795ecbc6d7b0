"""The dialect of models trained on `<use_mcp_tool>` tags: one call in a reply, results in user messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from closeout.dialects.function_call import NOT_RUN
from closeout.dialects.protocol import HistoryView
from closeout.dialects.text_chat import TextChat
from closeout.messages import Message, Step, ToolCall, ToolSpec
from closeout.parsing.readers import LOCAL_SERVER, McpXmlReader

__all__ = ["McpXml"]

# The lines that introduce a tool in the prompt. In a description, which a server wrote, they would introduce another.
_SLOT = re.compile(r"(?im)^([ \t#]*(?:server name|tool name|input json schema)[ \t]*):")
CONTINUE = "Continue: use a tool, or give the answer."


class McpXml(TextChat):
    """Calls in XML tags over a chat endpoint."""

    name = "mcp_xml"
    # No stop words: a model that reasons in text mentions its tags there and would be stopped in its reasoning.

    def reader(self, tools: Sequence[ToolSpec]) -> McpXmlReader:
        return McpXmlReader(tools)

    def system_text(self, view: HistoryView, examples: bool) -> str:
        return self._prompts.render(
            "mcp_xml",
            instruction=view.instructions,
            servers=_by_server(view.tools),
            examples=self._examples(view.tools, "weak_examples_xml") if examples else "",
        )

    def step_messages(self, step: Step) -> Iterator[Message]:
        results = [result.text for result in step.returns]
        for index, call in enumerate(step.calls):
            thought = f"{step.text}\n\n" if index == 0 and step.text else ""
            yield Message(role="assistant", content=thought + call_tags(call))
            yield Message(role="user", content=results[index] if index < len(results) else NOT_RUN)
        if not step.calls:
            yield Message(role="assistant", content=step.text)
            yield Message(role="user", content=CONTINUE)


def call_tags(call: ToolCall) -> str:
    """Write a call as the prompt teaches it."""
    if isinstance(call.arguments, str):
        arguments = call.arguments
    else:
        arguments = json.dumps(call.arguments, ensure_ascii=False, default=dict)
    return (
        f"<use_mcp_tool>\n<server_name>{call.server_name or LOCAL_SERVER}</server_name>\n"
        f"<tool_name>{call.name}</tool_name>\n<arguments>\n{arguments}\n</arguments>\n</use_mcp_tool>"
    )


def _by_server(tools: Sequence[ToolSpec]) -> list[tuple[str, list[dict[str, Any]]]]:
    named = sorted(((tool.server_name or LOCAL_SERVER, tool) for tool in tools), key=lambda pair: pair[0])
    return [
        (
            server,
            [
                {
                    "name": tool.name,
                    "description": _SLOT.sub(r"\1&#58;", tool.description),
                    "schema": json.dumps(tool.parameters, ensure_ascii=False, default=dict),
                }
                for _, tool in group
            ],
        )
        for server, group in groupby(named, key=lambda pair: pair[0])
    ]
