"""What type checkers say of the public vocabulary, as a strict script meets it. `make check` reads it; nothing runs it.

Each `ignore` is a mistake that a checker must find: an unused one is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, assert_type

from pydantic import BaseModel

from closeout import (
    Agent,
    Boxed,
    CheckedRun,
    Choice,
    Event,
    Json,
    Number,
    OneOf,
    Progress,
    RunContext,
    RunResult,
    ToolManager,
    judge,
    tool,
)
from closeout.answers.grading import Grade
from closeout.messages import Usage


@dataclass
class Moon:
    name: str


class Planet(BaseModel):
    name: str


class Color(Enum):
    RED = 1


@tool
def look_up(key: str, limit: int = 5) -> list[str]:
    """Look up a key."""
    return [key] * limit


@tool(read_only=True)
async def count(key: str) -> int:
    """Count a key."""
    return len(key)


class Shop:
    @tool
    def price(self, item: str) -> float:
        """The price of an item."""
        return float(len(item))


def of_any_kind(agent: Agent, result: RunResult) -> None:
    """Neither needs its type argument."""
    assert_type(result.value, Any | None)


async def tools_keep_their_signatures() -> None:
    assert_type(look_up("a", 2), list[str])
    assert_type(await count("a"), int)
    assert_type(Shop().price("tea"), float)
    look_up(3)  # type: ignore[arg-type]
    look_up(keyy="a")  # type: ignore[call-arg]
    Shop().price(3)  # type: ignore[arg-type]
    tool(read_onlyy=True)  # type: ignore[call-overload]
    ToolManager([look_up, count, Shop().price])


async def the_answers_type_is_the_contracts() -> None:
    moons = Agent("openai:x", [look_up, count], answer=Json(Moon))
    assert_type(moons, Agent[None, Moon])
    assert_type((await moons.run("Which?")).value, Moon | None)
    assert_type(moons.run_sync("Which?", files=["a.csv"]).value, Moon | None)
    assert_type((await moons.resume("run")).value, Moon | None)
    of_any_kind(moons, moons.run_sync("Which?"))
    assert_type(Agent(answer=Json(list[int])).run_sync("Which?").value, list[int] | None)
    assert_type(Agent(answer=Json({"type": "object"})).run_sync("Which?").value, Any | None)
    assert_type(Agent(answer=Json(int | str)).run_sync("Which?").value, Any | None)
    assert_type(Agent(answer=Number()).run_sync("How many?").value, int | float | None)
    assert_type(Agent(answer=Choice(["a", "b"])).run_sync("Which?").value, str | None)
    assert_type(Agent(answer=OneOf(Boxed(), Choice(["a"]))).run_sync("Which?").value, str | None)
    assert_type(Agent().run_sync("Which?").value, Any | None)


async def the_answers_type_may_be_a_python_type() -> None:
    moons = Agent("openai:x", [look_up], answer=Moon)
    assert_type(moons, Agent[None, Moon])
    assert_type((await moons.run("Which?")).value, Moon | None)
    assert_type(Agent(answer=Planet), Agent[None, Planet])
    assert_type(Agent(answer=Color), Agent[None, Color])
    assert_type(Agent(answer=str), Agent[None, str])
    assert_type(Agent(answer=int), Agent[None, int])
    assert_type(Agent(answer=bool), Agent[None, bool])
    assert_type(Agent(answer=list[int]), Agent[None, list[int]])
    # Checkers cannot read a type from these, so the value is Any.
    assert_type(Agent(answer=Literal["a", "b"]), Agent[None, Any])
    assert_type(Agent(answer={"type": "object"}), Agent[None, Any])
    Agent(answer="number")  # type: ignore[arg-type]
    Agent(answer=5)  # type: ignore[arg-type]


async def an_agent_takes_familiar_parameters() -> None:
    agent = Agent("openai:x", ["calculate", look_up], temperature=0, max_tokens=500, max_seconds=60, max_cost=0.5)
    agent.run_sync("Which?", max_turns=5, temperature=0.2)
    assert_type(agent.resume_sync("run"), RunResult[Any])
    await agent.run("Which?", max_turns="5")  # type: ignore[arg-type]
    Agent("openai:x", system_prompt="Be brief.")  # type: ignore[arg-type]
    assert_type(await judge("4", "four", "How many?", "openai:x"), Grade)


async def a_run_takes_what_it_takes() -> None:
    agent = Agent(answer=Boxed())
    agent.run_sync("Which?", file=["a.csv"])  # type: ignore[call-arg]
    stream = agent.stream("Which?", history=[{"role": "user", "content": "Before."}])
    async for event in stream:
        assert_type(event, Event | Progress)
    assert_type(stream.result, RunResult[str])
    async with agent as opened:
        assert_type(opened, Agent[None, str])


def records_are_frozen(usage: Usage) -> None:
    usage.input_tokens = 3  # type: ignore[misc]
    Usage(1, 2, 3)  # type: ignore[call-arg]


@dataclass
class Tenant:
    name: str


def greet(context: RunContext[Tenant]) -> str:
    assert_type(context.deps, Tenant)
    return context.deps.name


async def dependencies_are_of_the_agents_type(context: RunContext) -> None:
    """A context without a type argument has dependencies of any type."""
    assert_type(context.deps, Any)
    agent = Agent("openai:x", deps_type=Tenant, answer=int, instructions=greet)
    assert_type(agent, Agent[Tenant, int])
    await agent.run("Which?", deps=Tenant("a"))
    await agent.resume("run", deps=Tenant("a"))
    assert_type(agent.with_deps(Tenant("a")), Agent[Tenant, int])
    await agent.run("Which?", deps="a")  # type: ignore[arg-type]
    await agent.resume("run", deps=5)  # type: ignore[arg-type]
    agent.run_sync("Which?", deps="a")  # type: ignore[arg-type]
    agent.stream("Which?", deps=3)  # type: ignore[arg-type]
    agent.map(["Which?"], deps=3)  # type: ignore[arg-type]
    agent.run_many_sync(["Which?"], deps=3)  # type: ignore[arg-type]
    await agent.run_once("Which?", run_id="r", deps=3)  # type: ignore[arg-type]
    await agent.session("s").run("Which?", deps=3)  # type: ignore[arg-type]
    agent.session("s").stream("Which?", deps=3)  # type: ignore[arg-type]
    agent.session("s").run_sync("Which?", deps=Tenant("a"))
    agent.with_deps(Moon("a"))  # type: ignore[arg-type]
    await Agent("openai:x").run("Which?", deps=Tenant("a"))  # type: ignore[arg-type]
    Agent("openai:x", deps_type=Moon, instructions=greet)  # type: ignore[arg-type]


def has_a_name(answer: str, run: CheckedRun[None, Moon]) -> str | None:
    assert_type(run.value, Moon)
    return None if run.value.name else "Name the moon."


def is_of_the_tenant(answer: str, run: CheckedRun[Tenant]) -> str | None:
    assert_type((run.deps, run.value), tuple[Tenant, Any])
    return None


def a_check_is_for_the_agents_types() -> None:
    assert_type(Agent("openai:x", answer=Moon, check=has_a_name), Agent[None, Moon])
    assert_type(Agent("openai:x", answer=Moon, check=[is_of_the_tenant], deps_type=Tenant), Agent[Tenant, Moon])
    assert_type(Agent("openai:x", check=lambda answer, run: None), Agent)
    Agent("openai:x", answer=Planet, check=has_a_name)  # type: ignore[arg-type]
    Agent("openai:x", answer=int, check=is_of_the_tenant, deps_type=Moon)  # type: ignore[arg-type]
