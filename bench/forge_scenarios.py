"""Forge's own scenarios in four ways with the same weights: bare, a plain loop, Forge and Closeout.

The scenarios are loaded from a checkout of https://github.com/antoinezambelli/forge (`tests/eval/scenarios`); nothing
of them is here. It needs Python 3.12, with Forge and the extras `local` and `code` of Closeout installed.

    python bench/forge_scenarios.py CHECKOUT [--base-url URL] [--first N] [--only NAME …] [--results FILE] [--seconds S]
    python bench/forge_scenarios.py --table FILE

"bare" is Forge's runner without its guardrails (its ablation of that name). The plain loop is the least that anyone
would write: native calls, errors of calls are returned to the model, a text without a call ends it. Forge runs with its
defaults. Closeout has its defaults for the model; that the required tools and the last one must be called, which Forge
enforces, is a check here. All have temperature 0 and as many requests as the scenario allows. A scenario is right if
Forge's own validators say so. Systems take turns scenario by scenario, so an interrupted measurement compares the same.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MODEL = "qwen2.5-coder-1.5b-instruct-q4_k_m"  # Closeout sees by the name that the model is small
REPLY_TOKENS = 256  # for all, because the bare model writes on until its context is full


@dataclass
class Outcome:
    scenario: str
    way: str
    right: bool
    requests: int
    seconds: float
    error: str = ""


@dataclass
class Prepared:
    """A fresh world of a scenario: its workflow, the arguments of the last tool, and what validates its state."""

    workflow: Any
    captured: dict[str, Any]
    state: Callable[[], bool] | None


# ------------------------------------------------------------------------------------------------ the ways


def arguments_of(spec: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a tool of Forge gets, validated by its own model."""
    return dict(spec.parameters(**given).model_dump())


async def plain(address: str, scenario: Any, world: Prepared) -> int:
    from openai import AsyncOpenAI

    workflow, client, requests = world.workflow, AsyncOpenAI(base_url=address, api_key="none"), 0
    tools: Any = [
        {
            "type": "function",
            "function": {"name": spec.name, "description": spec.description, "parameters": spec.get_json_schema()},
        }
        for spec in workflow.get_tool_specs()
    ]
    system = workflow.build_system_prompt()
    messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": scenario.user_message}]
    while requests < scenario.max_iterations and not world.captured:
        requests += 1
        reply = await client.chat.completions.create(
            model=MODEL, messages=messages, tools=tools, temperature=0, max_tokens=REPLY_TOKENS
        )
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            name = call.function.name
            try:
                given = arguments_of(workflow.tools[name].spec, json.loads(call.function.arguments))
                text = str(workflow.get_callable(name)(**given))
            except Exception as error:
                text = f"Error: {type(error).__name__}: {error}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    return requests


async def closeout(address: str, scenario: Any, world: Prepared) -> int:
    from closeout import Agent, Check, OpenAIClient
    from closeout.messages import ToolPolicy
    from closeout.tools.tool import Tool

    workflow, last = world.workflow, "/".join(world.workflow.terminal_tools)

    def made(name: str) -> Tool[..., Any]:
        spec, function = workflow.tools[name].spec, workflow.get_callable(name)

        def run(**given: Any) -> Any:
            return function(**arguments_of(spec, given))

        run.__name__ = name
        return Tool(
            run, name=name, description=spec.description, parameters=spec.get_json_schema(), policy=ToolPolicy()
        )

    def all_called(_: str, run: Any) -> str | None:
        called = {call.name for call in run.calls if call.ok}
        missing = [name for name in workflow.required_steps if name not in called]
        if not missing and not called.intersection(workflow.terminal_tools):
            missing = [last]
        return f"Call {missing[0]} before you answer." if missing else None

    client = OpenAIClient(MODEL, address, temperature=0.0, max_tokens=REPLY_TOKENS)
    agent = Agent(
        client,
        [made(name) for name in workflow.tools],
        instructions=workflow.build_system_prompt(),
        check=Check(all_called, times=5, then="unanswered"),
        max_turns=scenario.max_iterations,
        home=False,
    )
    result = await agent.run(scenario.user_message)
    await client.aclose()
    return result.usage.requests


async def forge(address: str, scenario: Any, world: Prepared, *, guarded: bool = True) -> int:
    from forge.clients.openai_compat import OpenAICompatClient
    from forge.context.manager import ContextManager
    from forge.context.strategies import NoCompact
    from forge.core.runner import WorkflowRunner

    client: Any = OpenAICompatClient(MODEL, address, temperature=0.0)
    requests, send = 0, client.send

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal requests
        requests += 1
        limit = {**(options.pop("passthrough", None) or {}), "max_tokens": REPLY_TOKENS}
        return await send(*args, passthrough=limit, **options)

    client.send = counted
    if not guarded:
        world.workflow.required_steps = []
    runner = WorkflowRunner(
        client=client,
        context_manager=ContextManager(strategy=NoCompact(), budget_tokens=scenario.budget_tokens),
        max_iterations=scenario.max_iterations,
        max_retries_per_step=scenario.max_retries_per_step if guarded else 0,
        max_tool_errors=scenario.max_tool_errors if guarded else 0,
        rescue_enabled=guarded,
    )
    with contextlib.suppress(Exception):  # how it ended is seen in what was done
        await runner.run(world.workflow, scenario.user_message)
    return requests


async def bare(address: str, scenario: Any, world: Prepared) -> int:
    return await forge(address, scenario, world, guarded=False)


WAYS: Mapping[str, Callable[[str, Any, Prepared], Awaitable[int]]] = {
    "bare": bare,
    "plain loop": plain,
    "Forge": forge,
    "Closeout": closeout,
}

# ------------------------------------------------------------------------------------------------ the scenarios


def prepared(scenario: Any) -> Prepared:
    """A fresh world, whose last tool notes its arguments."""
    from forge.core.workflow import ToolDef, Workflow

    workflow, state = scenario.workflow, scenario.validate_state
    if scenario.build_workflow is not None:
        workflow, state = scenario.build_workflow()
    captured: dict[str, Any] = {}
    tools = dict(workflow.tools)
    for name in workflow.terminal_tools:
        tools[name] = ToolDef(spec=tools[name].spec, callable=noting(workflow.get_callable(name), captured))
    fresh = Workflow(
        name=workflow.name,
        description=workflow.description,
        tools=tools,
        required_steps=list(workflow.required_steps),
        terminal_tool=workflow.terminal_tool,
        system_prompt_template=workflow.system_prompt_template,
    )
    return Prepared(fresh, captured, state)


def noting(function: Callable[..., Any], captured: dict[str, Any]) -> Callable[..., Any]:
    """The function, which notes its arguments once it has returned."""

    def run(**given: Any) -> Any:
        returned = function(**given)
        captured["arguments"] = given
        return returned

    return run


def is_right(scenario: Any, world: Prepared) -> bool:
    """Whether the last tool was called and Forge's validators accept its arguments and the state."""
    if not world.captured:
        return False
    try:
        said = scenario.validate is None or scenario.validate(world.captured["arguments"])
        return bool(said and (world.state is None or world.state()))
    except Exception:
        return False


async def measure(address: str, scenarios: list[Any], ways: list[str], results: Path, limit: float) -> None:
    done = {(each["scenario"], each["way"]) for each in read(results)}
    for scenario in scenarios:
        for way in ways:
            if (scenario.name, way) in done:
                continue
            world, began, requests, error = prepared(scenario), time.monotonic(), 0, ""
            try:
                async with asyncio.timeout(limit):
                    requests = await WAYS[way](address, scenario, world)
            except Exception as failed:
                error = f"{type(failed).__name__}: {failed}"[:200]
            seconds = time.monotonic() - began
            found = Outcome(scenario.name, way, is_right(scenario, world), requests, round(seconds, 1), error)
            with results.open("a", encoding="utf-8") as file:
                print(json.dumps(asdict(found)), file=file)
            said = "right" if found.right else "wrong"
            print(f"{scenario.name:<32} {way:<11} {said:<6} {requests:>3} {seconds:>6.1f} s {error}", flush=True)


def read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text("utf-8").splitlines()] if results.exists() else []


def table(results: Path) -> str:
    """The scenarios that were run in every way."""
    found = read(results)
    ways = [way for way in WAYS if any(each["way"] == way for each in found)]
    names = dict.fromkeys(each["scenario"] for each in found)
    whole = [name for name in names if sum(each["scenario"] == name for each in found) == len(ways)]
    lines = [f"{len(whole)} scenarios", "", "| | right | requests | seconds |", "|---|---:|---:|---:|"]
    for way in ways:
        rows = [each for each in found if each["way"] == way and each["scenario"] in whole]
        right, count = sum(each["right"] for each in rows), max(len(rows), 1)
        means = [sum(each[key] for each in rows) / count for key in ("requests", "seconds")]
        lines.append(f"| {way} | {right} of {len(rows)} | {means[0]:.1f} | {means[1]:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", nargs="?", type=Path, help="of Forge's repository")
    parser.add_argument("--base-url", help="a server that runs already, instead of the embedded model's weights")
    parser.add_argument("--first", type=int, help="only the first so many scenarios")
    parser.add_argument("--only", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--results", type=Path, default=Path("forge_scenarios.jsonl"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=240.0, help="for one scenario in one way")
    parser.add_argument("--table", action="store_true", help="print the table of --results only")
    options = parser.parse_args()
    if not options.table:
        if options.checkout is None or not (options.checkout / "tests/eval/scenarios").is_dir():
            parser.error("Name a checkout of Forge's repository, with tests/eval/scenarios in it.")
        sys.path[:0] = [str(options.checkout), str(options.checkout / "src")]
        from tests.eval.scenarios import ALL_SCENARIOS

        scenarios = [each for each in ALL_SCENARIOS if not each.name.startswith("compaction_chain")][: options.first]
        with contextlib.ExitStack() as stack:
            address = options.base_url or stack.enter_context(served(options.threads))
            asyncio.run(measure(address, scenarios, options.only, options.results, options.seconds))
    print(table(options.results))


@contextlib.contextmanager
def served(threads: int) -> Any:
    from closeout.models.local.weights import find_weights, pull_weights
    from weak_models import model_server

    with model_server(find_weights("local") or pull_weights("local"), threads) as address:
        yield f"{address}/v1"


if __name__ == "__main__":
    main()
