"""A scripted model that misbehaves, over real HTTP: do runs still end with the right answer, and what does it cost?

Each kind of fault once, three times running, and, where a repair exists, at every reply; then 20-turn tasks in which
30 % of the replies go wrong at random, in every dialect. Reported are right answers, extra requests and waiting.

    python bench/faults.py [--seeds 200] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from closeout import Agent, Boxed, OpenAIClient, tool
from closeout.journal.events import ModelRetried, TurnRolledBack
from closeout.models.retry import RetryPolicy
from closeout.testing import MISBEHAVIOURS, NON_ANSWERS, Misbehaviour, Turn, answer, call, serve_script

DIALECTS = ("function_call", "cot_chat", "cot_completion", "mcp_xml")
REPAIRABLE = ("malformed", "wrong_types", "wrong_dialect")
SHARE = 0.3  # of the replies that go wrong in the mixed plan
ANSWER = "4711"
WAITS = RetryPolicy(first_wait=0.002, longest_wait=0.01, total=60)
TIMEOUT = 5.0  # seconds that a reply may take: also on a busy machine
AT_ONCE = 40


@tool(read_only=True, inline=True)
def lookup(key: str, limit: int = 3) -> str:
    """Look up a key.

    Args:
        key: the key
        limit: how many values to give at most
    """
    return f"The value of {key} is {len(key) * 7 + limit}."


def script(calls: int) -> list[Turn]:
    thought = "I need the value of the next key before I can say."
    return [Turn(f"{thought} Number {n}.", calls=[call("lookup", key=f"key {n}", limit=5)]) for n in range(calls)] + [
        answer(ANSWER, "All keys are known now.")
    ]


@dataclass(slots=True)
class Tally:
    """Of one plan: runs, right answers, requests beyond those of an undisturbed run, seconds waited."""

    runs: int = 0
    right: int = 0
    extra: int = 0
    waited: float = 0.0
    wrong: Counter[str] = field(default_factory=Counter)

    def line(self, name: str) -> str:
        wrong = f"   {dict(self.wrong)}" if self.wrong else ""
        runs = max(self.runs, 1)
        return (
            f"{name:<42}{self.right:>5}/{self.runs:<5} right, {self.extra / runs:>5.2f} extra requests a run, "
            f"{self.waited / runs:.3f} s waited{wrong}"
        )


async def one(tally: Tally, dialect: str, calls: int, plan: Sequence[Misbehaviour], stream: bool) -> None:
    """One run against a server of its own."""
    waits: list[float] = []

    def listen(event: object) -> None:
        if isinstance(event, ModelRetried):
            waits.append(event.wait)
        elif isinstance(event, TurnRolledBack):
            tally.wrong[f"({event.reason})"] += 0

    async with serve_script(script(calls), misbehave=plan, record=False) as server:
        client = OpenAIClient("scripted", server.base_url, "k", retry=WAITS, timeout=TIMEOUT)
        settings = {"agent": {"max_rollbacks": 60}, "llm": {"timeout": TIMEOUT}}
        agent = Agent(
            client, [lookup], dialect=dialect, max_turns=calls + 5, answer=Boxed(), config=settings, home=False
        )
        result = await agent.run("What is behind the last key?", listeners=(listen,) if stream else ())
        await client.aclose()
    tally.runs += 1
    tally.extra += result.usage.requests - calls - 1
    tally.waited += sum(waits)
    if result.answer == ANSWER:
        tally.right += 1
    else:
        tally.wrong[f"{result.stop_reason}: {result.error[:60] or result.answer}"] += 1


async def gather(jobs: list[tuple[Tally, str, int, Sequence[Misbehaviour], bool]]) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def run(job: tuple[Tally, str, int, Sequence[Misbehaviour], bool]) -> None:
        async with slots:
            await one(*job)

    await asyncio.gather(*map(run, jobs))


async def single_kinds() -> dict[str, Tally]:
    """Every kind alone, in every dialect, streamed and not."""
    tallies: dict[str, Tally] = {}
    jobs: list[tuple[Tally, str, int, Sequence[Misbehaviour], bool]] = []
    for kind in MISBEHAVIOURS:
        plans = {"once": Misbehaviour(kind, 2), "3 in a row": Misbehaviour(kind, None, 3)}
        if kind in REPAIRABLE:
            plans["always"] = Misbehaviour(kind, None, None)
        # Each text that neither acts nor answers comes first once.
        seeds = range(len(NON_ANSWERS)) if kind == "non_answer" else range(1)
        for times, plan in plans.items():
            tally = tallies[f"{kind}, {times}"] = Tally()
            jobs += [
                (tally, dialect, 5, (replace(plan, seed=seed),), stream)
                for dialect in DIALECTS
                for stream in (False, True)
                for seed in seeds
            ]
    await gather(jobs)
    return tallies


async def mixed(seeds: int) -> dict[str, Tally]:
    """Every kind at random, so that 30 % of the replies go wrong, over tasks of 20 turns."""
    each = 1 - (1 - SHARE) ** (1 / len(MISBEHAVIOURS))
    tallies = {dialect: Tally() for dialect in DIALECTS}
    jobs: list[tuple[Tally, str, int, Sequence[Misbehaviour], bool]] = [
        (
            tallies[dialect],
            dialect,
            19,
            tuple(Misbehaviour(kind, times=None, share=each, seed=seed) for kind in MISBEHAVIOURS),
            seed % 2 == 1,
        )
        for dialect in DIALECTS
        for seed in range(seeds)
    ]
    await gather(jobs)
    return tallies


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    single = asyncio.run(single_kinds())
    for name, tally in single.items():
        print(tally.line(name))
    mix = asyncio.run(mixed(20 if options.quick else options.seeds))
    for name, tally in mix.items():
        print(tally.line(f"mixed, {name}"))
    runs, right = sum(t.runs for t in single.values()), sum(t.right for t in single.values())
    mixed_runs, mixed_right = sum(t.runs for t in mix.values()), sum(t.right for t in mix.values())
    repaired = sum(t.extra for name, t in single.items() if name.endswith("always"))
    print(
        f"bench faults: single kinds {right}/{runs} right, mixed {mixed_right}/{mixed_runs} "
        f"({mixed_right / mixed_runs:.1%}), {repaired} extra requests for defects that repair can fix although always "
        f"made, {time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
