"""CPU of a turn in Closeout and in its peers, with one tool that returns at once, at several lengths of a run.

Each framework runs in its own virtual environment (those of the crash suite by default), against the same scripted
model server, one after another, and the rounds are repeated in turn. Closeout writes its journal; the others keep
nothing. The baseline is the bare aiohttp loop of bench/turns.py.

    python bench/peers/turns.py [--environments bench/crash_suite/.environments] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
LENGTHS = (10, 50, 200)
QUESTION = "What is behind the last key?"
Run = Callable[[str], Awaitable[None]]


def lookup(key: str) -> str:
    """Look up a key.

    Args:
        key: the key
    """
    return f"The value of {key} is {len(key)}."


# ------------------------------------------------------------------------------------------------ the frameworks


async def bare(url: str, _: int) -> tuple[Run, str]:
    import aiohttp

    from _bare import bare_run

    async def run(question: str) -> None:
        async with aiohttp.ClientSession() as session:
            await bare_run(session, url, "k", question)

    return run, f"aiohttp {version('aiohttp')}"


async def closeout(url: str, turns: int) -> tuple[Run, str]:
    from closeout import Agent, tool

    home = Path(tempfile.mkdtemp(dir=os.environ["PEERS_FOLDER"]))
    found = tool(read_only=True)(lookup)
    agent = Agent("openai:scripted", [found], base_url=url, api_key="k", home=home, max_turns=turns + 5)

    async def run(question: str) -> None:
        assert (await agent.run(question)).status == "answered"

    return run, f"closeout {version('closeout')}"


async def openai(url: str, _: int) -> tuple[Run, str]:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url, api_key="k")
    schema = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
    tools: Any = [{"type": "function", "function": {"name": "lookup", "parameters": schema}}]

    async def run(question: str) -> None:
        messages: list[Any] = [{"role": "user", "content": question}]
        while True:
            reply = await client.chat.completions.create(model="scripted", messages=messages, tools=tools)
            message = reply.choices[0].message
            if not message.tool_calls:
                return
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                result = lookup(**json.loads(call.function.arguments))  # type: ignore[union-attr]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    return run, f"openai {version('openai')}, a loop over its client"


async def langgraph(url: str, turns: int) -> tuple[Run, str]:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    agent: Any = create_agent(ChatOpenAI(model="scripted", base_url=url, api_key="k"), tools=[lookup])

    async def run(question: str) -> None:
        messages = {"messages": [{"role": "user", "content": question}]}
        await agent.ainvoke(messages, {"recursion_limit": 3 * turns + 10})

    return run, f"langgraph {version('langgraph')}, langchain {version('langchain')}"


async def openai_agents(url: str, turns: int) -> tuple[Run, str]:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel("scripted", AsyncOpenAI(base_url=url, api_key="k"))
    agent: Any = Agent(name="main", model=model, tools=[function_tool(lookup)])

    async def run(question: str) -> None:
        await Runner.run(agent, question, max_turns=turns + 5)

    return run, f"openai-agents {version('openai-agents')}"


async def pydantic_ai(url: str, _: int) -> tuple[Run, str]:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.usage import UsageLimits

    agent: Any = Agent(OpenAIChatModel("scripted", provider=OpenAIProvider(base_url=url, api_key="k")), tools=[lookup])

    async def run(question: str) -> None:
        await agent.run(question, usage_limits=UsageLimits(request_limit=None))

    return run, f"pydantic-ai {version('pydantic-ai-slim')}"


# The virtual environment of each; None: the one that runs this.
FRAMEWORKS = {
    bare: None,
    closeout: None,
    openai: "openai-agents",
    langgraph: "langgraph",
    openai_agents: "openai-agents",
    pydantic_ai: "pydantic_ai",
}


# ------------------------------------------------------------------------------------------------ measuring


async def measured(name: str, url: str, turns: int) -> tuple[float, str]:
    """Return the milliseconds of CPU of a turn, and the versions. Each conversation has a question of its own."""
    made = next(each for each in FRAMEWORKS if each.__name__ == name)
    run, versions = await made(url, turns)
    await run(f"{QUESTION} (warm)")
    repeats, began = max(1, 200 // turns), time.process_time()
    for number in range(repeats):
        await run(f"{QUESTION} ({number})")
    return (time.process_time() - began) * 1000 / (repeats * turns), versions


def in_environment(name: str, environment: str | None, environments: Path, turns: int) -> tuple[float, str]:
    """Measure in a process of the framework's own Python, with a server of its own."""
    from _bare import served  # the frameworks' own environments do not have what it imports

    python = sys.executable if environment is None else str(environments / environment / "bin" / "python")
    with served(turns - 1, by="question") as url, tempfile.TemporaryDirectory() as folder:
        command = [python, __file__, "--one", name, url, str(turns)]
        env = {**os.environ, "PEERS_FOLDER": folder, "CLOSEOUT_HOME": folder}
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout
    ms, versions = json.loads(out.splitlines()[-1])
    return ms, versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = HERE.parent / "crash_suite" / ".environments"
    parser.add_argument("--environments", type=Path, default=default, help="of bench/crash_suite/run.py")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, url, turns = options.one
        print(json.dumps(asyncio.run(measured(name, url, int(turns)))))
        return
    found: dict[tuple[str, int], list[float]] = {}
    said: dict[str, str] = {}
    for _ in range(options.rounds):
        for turns in LENGTHS:
            for made, environment in FRAMEWORKS.items():
                name = made.__name__
                ms, said[name] = in_environment(name, environment, options.environments, turns)
                found.setdefault((name, turns), []).append(ms)
    print(f"| | {' | '.join(f'{turns} turns' for turns in LENGTHS)} | |")
    print(f"|---|{'--:|' * len(LENGTHS)}---|")
    for name, versions in said.items():
        cells = " | ".join(f"{median(found[name, turns]):.2f}" for turns in LENGTHS)
        print(f"| {name.replace('_', '-')} | {cells} | {versions} |")
    times = [median(found["closeout", turns]) / median(found["bare", turns]) for turns in LENGTHS]
    print(
        f"bench peers/turns: ms CPU a turn at {', '.join(map(str, LENGTHS))} turns; Closeout takes "
        f"{', '.join(f'{each:.1f}' for each in times)} times the bare loop's"
    )


if __name__ == "__main__":
    main()
