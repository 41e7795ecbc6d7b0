"""No runtime: a loop of requests and calls that keeps nothing and begins again. The control of the experiment.

https://platform.openai.com/docs/guides/function-calling: the loop of the documentation, with the standard library.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import kit

NOT_OFFERED = dict.fromkeys(("approval", "timer", "handoff", "stream", "overflow"), "a bare loop has none")


def schema(function: Any) -> dict[str, Any]:
    names = [name for name in function.__annotations__ if name not in ("return", "key")]
    properties = {name: {"type": "string"} for name in names}
    parameters = {"type": "object", "properties": properties, "required": names}
    return {"type": "function", "function": {"name": function.__name__, "parameters": parameters}}


def clerk(request: str) -> str:
    """Let the clerk do something."""
    return str(converse("clerk", request)[-1]["content"])


def converse(name: str, task: str) -> list[dict[str, Any]]:
    tools = [*kit.readers(name), *kit.payers(name)]
    tools += [clerk] if name == "main" and kit.scenario() == "subagent" else []
    messages: list[dict[str, Any]] = [{"role": "system", "content": kit.instructions(name)}]
    messages.append({"role": "user", "content": task})
    while True:
        body = json.dumps({"model": "scripted", "messages": messages, "tools": list(map(schema, tools))}).encode()
        request = urllib.request.Request(f"{kit.model_url()}/chat/completions", body)
        with urllib.request.urlopen(request, timeout=60) as reply:
            messages.append(json.loads(reply.read())["choices"][0]["message"])
        if not messages[-1].get("tool_calls"):
            return messages
        for call in messages[-1]["tool_calls"]:
            function = next(each for each in tools if each.__name__ == call["function"]["name"])
            try:
                result = function(**json.loads(call["function"]["arguments"]))
            except TypeError as error:
                result = f"Error: {error}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def start() -> kit.Shown:
    messages = converse("main", kit.task())
    return kit.Shown("answered", messages[-1]["content"], kit.text_of(messages))


resume = start
