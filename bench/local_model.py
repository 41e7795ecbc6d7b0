"""A smoke test of the embedded models: questions of one and two steps over a folder of invented documents.

Not a score: the questions were written here, and prompts were made by looking at them. For a score on questions from
outside, run `closeout eval multihop`. Baseline, in the same run: the same weights asked the same questions without
tools. Run `python bench/local_model.py --help` for the choice of model, dialect, set and prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from closeout import Agent, Boxed
from closeout.messages import Message, ModelRequest, Usage
from closeout.models.local.embedded import LocalClient
from closeout.tools.builtin import calculate, document_tools
from closeout.tools.tool import Tool

DATA = Path(__file__).parent / "data"
SETS = {"one": "one-step", "two": "two-step"}
DOCUMENTS = DATA / "local_documents"
DIALECTS = ("cot_chat", "cot_completion", "code", "mcp_xml", "function_call")
TEMPLATES_OF_EXAMPLES = ("weak_examples", "weak_examples_code", "weak_examples_completion", "weak_examples_xml")


@dataclass(frozen=True, slots=True)
class Question:
    set: str  # one of SETS
    kind: str
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Outcome:
    question: Question
    right: bool
    answer: str | None
    usage: Usage
    rollbacks: int
    seconds: float


def normal(text: str) -> str:
    """An answer without case, punctuation, articles, and thousands commas; a number with its sign."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text.strip().casefold().replace("\u2212", "-"))
    text = re.sub(r"[^\w.% -]|(?<=\w)-|-(?!\d)", " ", text)
    text = " ".join(text.split()).strip(". ")
    text = re.sub(r"^(the|a|an) ", "", text)
    try:
        return repr(float(text))
    except ValueError:
        return text


def is_right(answer: str | None, gold: str) -> bool:
    """`gold` may list several forms, joined by " | "."""
    return answer is not None and normal(answer) in map(normal, gold.split(" | "))


def questions(sets: str, quick: bool, first: int | None, skip: int) -> list[Question]:
    rows = [Question(**row) for row in json.loads((DATA / "local_questions.json").read_text("utf-8"))]
    of_set = [[row for row in rows if row.set == name] for name in (SETS if sets == "all" else (sets,))]
    asked = [row for rows in of_set for row in rows[skip:][:first]]
    return asked[:: max(1, len(asked) // 5)] if quick else asked


def tools(*, guarded: bool) -> list[Tool[..., Any]]:
    """What `closeout run --docs` gives the embedded models. Not `guarded`: no call counts as repeated or as empty."""
    given = [calculate, *document_tools(DOCUMENTS, plain=True)]
    if not guarded:
        for each in given:
            each.policy = replace(each.policy, repeatable=True, accept_empty=True)
    return given


async def with_tools(client: LocalClient, asked: Iterable[Question], options: argparse.Namespace) -> list[Outcome]:
    config: dict[str, Any] = {"agent": {"constrain": options.constrain}}
    if options.no_examples:
        config["prompts"] = dict.fromkeys(TEMPLATES_OF_EXAMPLES, "")
    if options.plain_loop:
        config["agent"]["max_consecutive_rollbacks"] = 0
    agent = Agent(
        client,
        tools(guarded=not options.plain_loop),
        dialect=options.dialect,
        max_turns=options.max_turns,
        answer=Boxed(),
        config=config,
        home=options.home or False,
    )
    outcomes = []
    for question in asked:
        started = time.perf_counter()
        result = await agent.run(question.question)
        right = is_right(result.answer, question.answer)
        seconds = time.perf_counter() - started
        outcomes.append(Outcome(question, right, result.answer, result.usage, result.rollbacks, seconds))
        mark = "right" if right else "WRONG"
        print(
            f"{mark}  {question.question}  {result.answer}"
            + ("" if right else f"  (gold: {question.answer}; {result.stop_reason})")
            + f"  [{result.usage.requests} requests, {seconds:.0f} s{f', {result.run_id}' if options.home else ''}]",
            flush=True,
        )
    return outcomes


async def without_tools(client: LocalClient, asked: Iterable[Question]) -> int:
    right = 0
    for question in asked:
        text = f"{question.question} Answer with the bare answer only, no sentence."
        reply = await client.complete(ModelRequest(messages=[Message(role="user", content=text)], max_tokens=24))
        right += is_right(reply.text.strip().split("\n")[0], question.answer)
    return right


def table(outcomes: list[Outcome]) -> None:
    print(f"\n{'kind':<24} {'right':>8} {'requests':>9} {'input':>8} {'cached':>8} {'output':>7} {'seconds':>8}")
    for kind in dict.fromkeys(outcome.question.kind for outcome in outcomes):
        row(kind, [outcome for outcome in outcomes if outcome.question.kind == kind])
    row("all", outcomes)


def row(name: str, outcomes: list[Outcome]) -> None:
    usage = sum((outcome.usage for outcome in outcomes), Usage())
    right = f"{sum(outcome.right for outcome in outcomes)}/{len(outcomes)}"
    seconds = sum(outcome.seconds for outcome in outcomes)
    print(
        f"{name:<24} {right:>8} {usage.requests:>9} {usage.input_tokens:>8} {usage.cache_read_tokens:>8} "
        f"{usage.output_tokens:>7} {seconds:>8.0f}"
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="local", help="local, local:small, or a .gguf file")
    parser.add_argument("--dialect", default="auto", choices=("auto", *DIALECTS))
    parser.add_argument("--set", default="all", choices=(*SETS, "all"))
    parser.add_argument("--constrain", default="auto", choices=("auto", "on", "off"))
    parser.add_argument("--no-examples", action="store_true", help="leave the worked examples out")
    parser.add_argument("--plain-loop", action="store_true", help="no duplicate detection, no rollback")
    parser.add_argument("--no-baseline", action="store_true")
    parser.add_argument("--only", default="", help="questions that hold this text")
    parser.add_argument("--first", type=int, help="that many questions of each set")
    parser.add_argument("--skip", type=int, default=0, help="leave out that many questions of each set")
    parser.add_argument("--home", help="keep the runs here, to look at with `closeout runs`")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--max-turns", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="every sixth or so question")
    options = parser.parse_args()
    asked = questions(options.set, options.quick, options.first, options.skip)
    asked = [each for each in asked if options.only in each.question]
    async with LocalClient(options.model, threads=options.threads, on_status=print) as client:
        bare = None if options.no_baseline else await without_tools(client, asked)
        outcomes = await with_tools(client, asked, options)
    table(outcomes)
    parts = []
    for name, title in SETS.items():
        of_set = [outcome for outcome in outcomes if outcome.question.set == name]
        if of_set:
            parts.append(f"{title} {sum(outcome.right for outcome in of_set)}/{len(of_set)}")
    usage = sum((outcome.usage for outcome in outcomes), Usage())
    seconds = sum(outcome.seconds for outcome in outcomes)
    right = sum(outcome.right for outcome in outcomes)
    ratio = "" if bare is None else f"; without tools {bare}/{len(asked)}, ratio {right / max(bare, 1):.1f}"
    print(
        f"\nbench local_model: {options.model} {options.dialect}: {', '.join(parts)}{ratio}; {usage.requests} "
        f"requests, {usage.input_tokens} tokens in ({usage.cache_read_tokens} cached), {usage.output_tokens} out, "
        f"{seconds:.0f} s"
    )


if __name__ == "__main__":
    asyncio.run(main())
