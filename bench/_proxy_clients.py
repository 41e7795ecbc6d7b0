"""Clients of Chat Completions for `bench/proxy.py --clients PYTHON`; run by a Python that has them installed.

    pip install openai openai-agents 'pydantic-ai-slim[openai]' langgraph langchain-openai 'smolagents[openai]'

Each line of standard input is a task: {"client", "url", "key", "stream"}. Each line of output is what came of it: the
answer, and the arguments of the calls that were made.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import warnings
from typing import Any

QUESTION = "Look up all keys."
MAX_TURNS = 8
SECONDS = 30.0
PARAMETERS = {
    "type": "object",
    "properties": {"search_term": {"type": "string"}, "limit": {"type": "integer"}},
    "required": ["search_term", "limit"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": "lookup", "description": "Look up.", "parameters": PARAMETERS}}]


class Task:
    """One task of one client."""

    def __init__(self, url: str, key: str, stream: bool) -> None:
        self.url, self.key, self.stream = url, key, stream
        self.made: list[str] = []

    def lookup(self, search_term: str, limit: int) -> str:
        """Look up a key.

        Args:
            search_term: the key
            limit: how many results
        """
        self.made.append(search_term)
        return "The value is 5."

    def openai(self) -> Any:
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=self.url, api_key=self.key)


async def bare(task: Task) -> str:
    """A loop over the SDK, as its documentation shows it: a call that cannot be read is an error for the model."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    client = task.openai()
    for _ in range(MAX_TURNS):
        request: Any = {"model": "m", "messages": messages, "tools": TOOLS}
        if task.stream:
            async with client.chat.completions.stream(**request) as events:
                choice = (await events.get_final_completion()).choices[0]
        else:
            choice = (await client.chat.completions.create(**request)).choices[0]
        message = choice.message
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            try:
                text = task.lookup(**json.loads(call.function.arguments)) if call.function.name == "lookup" else "?"
            except (ValueError, TypeError) as error:
                text = f"Error: {error}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    return ""


async def openai_agents(task: Task) -> str:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(model="m", openai_client=task.openai())
    agent = Agent(name="a", tools=[function_tool(task.lookup)], model=model)
    if not task.stream:
        return str((await Runner.run(agent, QUESTION, max_turns=MAX_TURNS)).final_output)
    result = Runner.run_streamed(agent, QUESTION, max_turns=MAX_TURNS)
    async for _ in result.stream_events():
        pass
    return str(result.final_output)


async def pydantic_ai(task: Task) -> str:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=task.openai()))
    agent = Agent(model, tools=[task.lookup])
    if not task.stream:
        return str((await agent.run(QUESTION)).output)

    async def seen(_: Any, events: Any) -> None:  # its `run_stream` ends at the first text, also before a call
        async for _event in events:
            pass

    return str((await agent.run(QUESTION, event_stream_handler=seen)).output)


async def langgraph(task: Task) -> str:
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    model: Any = ChatOpenAI(model="m", base_url=task.url, api_key=task.key, streaming=task.stream)  # type: ignore[arg-type]
    found = await create_react_agent(model, [task.lookup]).ainvoke({"messages": [("user", QUESTION)]})
    return str(found["messages"][-1].content)


async def smolagents(task: Task) -> str:
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def lookup(search_term: str, limit: int) -> str:
        """Look up a key.

        Args:
            search_term: the key
            limit: how many results
        """
        return task.lookup(search_term, limit)

    model = OpenAIServerModel("m", api_base=task.url, api_key=task.key)
    agent = ToolCallingAgent([lookup], model, max_steps=MAX_TURNS, stream_outputs=task.stream, verbosity_level=-1)
    return str(await asyncio.to_thread(agent.run, QUESTION))


CLIENTS = {
    "bare openai loop": bare,
    "OpenAI Agents": openai_agents,
    "Pydantic AI": pydantic_ai,
    "LangGraph": langgraph,
    "smolagents": smolagents,
}


async def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    answers, sys.stdout = sys.stdout, sys.stderr  # what a framework prints is not an answer
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        given = json.loads(line)
        task = Task(given["url"], given["key"], given["stream"])
        try:
            answer, error = await asyncio.wait_for(CLIENTS[given["client"]](task), SECONDS), ""
        except Exception as failed:
            answer, error = "", f"{type(failed).__name__}: {failed}"[:200]
        answers.write(json.dumps({"answer": answer, "made": task.made, "error": error}) + "\n")
        answers.flush()


if __name__ == "__main__":
    os.environ.setdefault("OPENAI_API_KEY", "none")
    asyncio.run(main())
