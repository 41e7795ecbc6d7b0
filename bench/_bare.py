"""What every agent is measured against: a bare aiohttp loop with the same requests, each message serialised once.

It does nothing that an agent is for: no checks, no journal, no limits.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp

from closeout.run.subagents import read_result_tool

QUESTION = "What is behind the last key?"
# What the agent sends besides the question, word for word: its instruction, and the tool that reads on in results.
SYSTEM = "End with the final answer, and nothing else, in \\boxed{...}."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Look up a key.",
            "parameters": {
                "type": "object",
                "properties": {"key": {"type": "string", "description": "the key"}},
                "required": ["key"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "read_result", "description": read_result_tool.spec.description,
                                      "parameters": dict(read_result_tool.spec.parameters)}},
]  # fmt: skip


def found(key: str) -> str:
    """What the one tool does."""
    return f"The value of {key} is {len(key)}."


@contextmanager
def served(calls: int, by: str = "key") -> Iterator[str]:
    """A scripted server in another process that plays `calls` tool calls and then an answer; gives its address.

    `by`: whether it tells conversations apart by their "key" or by their "question".
    """
    command = [sys.executable, "-m", "closeout.testing.serve", "--calls", str(calls), "--tool", "lookup", "--by", by]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(timeout=20)


async def bare_run(
    session: aiohttp.ClientSession,
    url: str,
    key: str,
    question: str = QUESTION,
    *,
    call: Callable[..., Awaitable[str]] | None = None,
) -> int:
    """The same conversation as an agent has; returns the number of turns. `call` calls the tool instead."""
    head = json.dumps({"model": "scripted", "tools": TOOLS})[:-1].encode() + b', "messages": ['
    opening: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    parts = [json.dumps(message).encode() for message in opening]
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    turns = 0
    while True:
        async with session.post(
            f"{url}/chat/completions", data=head + b",".join(parts) + b"]}", headers=headers
        ) as got:
            reply: dict[str, Any] = json.loads(await got.read())
        turns += 1
        message = reply["choices"][0]["message"]
        if not message.get("tool_calls"):
            return turns
        parts.append(json.dumps(message).encode())
        for each in message["tool_calls"]:
            arguments = json.loads(each["function"]["arguments"])
            result = found(**arguments) if call is None else await call(**arguments)
            parts.append(json.dumps({"role": "tool", "tool_call_id": each["id"], "content": result}).encode())
