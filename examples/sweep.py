"""Measure models on a set of questions and print a table of accuracy, tokens and cost.

    python examples/sweep.py examples/data/questions.jsonl --docs examples/documents -m openai:gpt-5 -m local

Each question is asked several times. A sweep that was stopped continues where it was; finished runs cost nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from closeout import Agent, Boxed, grade
from closeout.tools.builtin import calculate, document_tools


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions", type=Path, help="JSON lines with id, question and answer")
    parser.add_argument("--docs", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("-m", "--model", action="append", required=True)
    parser.add_argument("--trials", type=int, default=3, help="how often each question is asked")
    options = parser.parse_args()

    questions = [json.loads(line) for line in options.questions.read_text("utf-8").splitlines() if line.strip()]
    trials = [question for question in questions for _ in range(options.trials)]
    tasks = [{"task": question["question"], "task_id": question["id"]} for question in trials]
    table = Table("model", "right", "accuracy", "no answer", "tokens", "cost")
    for model in options.model:
        agent = Agent(model, tools=[calculate, *document_tools(options.docs)], answer=Boxed(), max_turns=20)
        results = await agent.run_many(tasks, limit=20, key=f"sweep {options.questions.stem} {model}", progress=True)
        right = sum(
            grade(result.answer, question["answer"]).correct for question, result in zip(trials, results, strict=True)
        )
        missing = sum(result.answer is None for result in results)
        tokens = sum(result.usage.total_tokens for result in results)
        costs = [result.usage.cost_usd for result in results]
        cost = "unknown" if None in costs else f"${sum(filter(None, costs)):.2f}"
        table.add_row(
            model, f"{right}/{len(results)}", f"{right / len(results):.0%}", str(missing), f"{tokens:,}", cost
        )
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
