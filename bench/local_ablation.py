"""The embedded model over documents: the agent, one search and one request without an agent, and one before the other.

The request asks for a chain of thought, or for the answer at once.

    python bench/local_ablation.py --home FOLDER --hotpotqa hotpot.json --musique musique.jsonl [--questions 20]

The files are those that HotpotQA and MuSiQue publish, whole or in part; so many questions of each are drawn by a seed,
and the documents are the paragraphs of all of them. Questions of `closeout eval multihop` are left out. The rows are
paired: each question is asked in every way before the next one. Called again, it continues; `--report` only reports,
and `--retrieval` asks no model.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from closeout import Agent
from closeout.answers.boxed import find_boxes
from closeout.answers.sources import Evidence
from closeout.context.archive import ArchivePolicy
from closeout.evaluate import EvalReport, EvalTask, evaluate, load_report
from closeout.evaluate.benchmarks.benchmark import DATA
from closeout.evaluate.comparison import task_means
from closeout.evaluate.estimates import mean_estimate, paired_estimate
from closeout.journal import events as ev
from closeout.journal.store import open_store
from closeout.messages import Message, ModelRequest, Reading
from closeout.models.local.embedded import LocalClient
from closeout.run.strategy import CallFirst, ModelTurn
from closeout.strategies.small_model import IN_WORDS, SmallModel, facts_in
from closeout.tools.builtin import calculate, document_tools
from closeout.tools.builtin.document_index import DocumentIndex
from closeout.tools.builtin.embeddings import Embed

POLICY_TURNS = ArchivePolicy().turns
INSTRUCTIONS = "Search the documents for each fact that the question needs. Answer in as few words as possible."


STEP_BY_STEP = """{facts}

Question: {question}

Answer from these facts only. Think step by step, briefly, and put the final answer, a bare number or name, \
within \\boxed{{}}."""


class Alone:
    """An answer from what was found, in one request: no agent. It is the reply's last box, or else the reply."""

    def __init__(self, name: str, prompt: str) -> None:
        self.name, self.version, self._prompt = name, "2", prompt

    async def ask(self, turn: ModelTurn) -> Reading:
        text = self._prompt.format(facts=facts_in(turn.view.steps), question=turn.task)
        request = ModelRequest(messages=[Message(role="user", content=text)], max_tokens=300)
        reply = (await turn.send(request, purpose="in words")).text
        boxes = [box.content for box in find_boxes(reply) if box.complete]
        return Reading(answer=(boxes[-1].replace("\\text{", "") if boxes else reply).strip(" .{}$\\\n") or "-")


def records(path: Path) -> list[dict[str, Any]]:
    text = path.read_text("utf-8")
    return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]


def paragraphs(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for each in record.get("context", ()):
        yield each[0], "".join(each[1])
    for each in record.get("paragraphs", ()):
        yield each["title"], each["paragraph_text"]


def prepare(options: argparse.Namespace) -> tuple[list[EvalTask], Path]:
    known = {json.loads(line)["question"] for line in (DATA / "multihop.jsonl").read_text("utf-8").splitlines()}
    known |= {json.loads(line)["question"] for each in options.without for line in each.read_text("utf-8").splitlines()}
    drawn = []
    for name in ("hotpotqa", "musique"):
        found = [each for each in records(getattr(options, name)) if each["question"] not in known]
        drawn.append([(name, each) for each in random.Random(options.seed).sample(found, options.questions)])
    chosen = [each for pair in zip(*drawn, strict=True) for each in pair]
    folder = options.home / "documents"
    folder.mkdir(parents=True, exist_ok=True)
    texts = dict.fromkeys(each for _, record in chosen for each in paragraphs(record))
    for number, (title, text) in enumerate(texts):
        named = re.sub(r"\W+", "-", title)[:60]
        (folder / f"{named}-{number}.md").write_text(f"# {title}\n\n{text}\n", "utf-8")
    tasks = [
        EvalTask(
            id=f"{name}-{record.get('_id') or record['id']}",
            question=record["question"],
            answer=[record["answer"], *record.get("answer_aliases", ())],
            metadata={"dataset": name},
        )
        for name, record in chosen
    ]
    return tasks, folder


def agents(client: LocalClient, folder: Path, options: argparse.Namespace) -> dict[str, Agent]:
    """Return the agent of each way. In "small-model" the search tool is not marked as one to begin with."""
    found = {}
    for ending, embed in (("", None), ("-vectors", options.embed)):
        if embed is None and ending:
            continue
        search, read = document_tools(folder, plain=True, embed=embed)
        for name, prompt in (("at-once", IN_WORDS), ("step-by-step", STEP_BY_STEP)):
            way = CallFirst(search.name, then=Alone(name + ending, prompt))
            found[name + ending] = Agent(client, [calculate, search, read], strategy=way, home=options.home)
        found["shipped" + ending] = Agent(
            client, [calculate, search, read], instructions=INSTRUCTIONS, strategy=SmallModel(), home=options.home
        )
        unmarked, read = document_tools(folder, plain=True, embed=embed)
        unmarked.policy = replace(unmarked.policy, example=None)
        found["small-model" + ending] = Agent(
            client, [calculate, unmarked, read], instructions=INSTRUCTIONS, strategy=SmallModel(), home=options.home
        )
    return {name: found[name] for name in options.ways}


async def ask(tasks: list[EvalTask], folder: Path, options: argparse.Namespace) -> None:
    """Ask each question in every way before the next one."""
    async with LocalClient("local", threads=options.threads, on_status=print) as client:
        ways = agents(client, folder, options)
        for number in range(1, len(tasks) + 1):
            for name, agent in ways.items():
                await evaluate(agent, tasks[:number], scorer="f1", name=name, concurrency=1)
            print(number, "questions", flush=True)


def was_read(report: EvalReport, home: Path) -> dict[str, bool]:
    """Return of each task whether its answer is in what the search found, literally."""
    store, found = open_store(home), {}
    questions = {task.id: json.dumps(task.question) for task in report.tasks}
    for trial in report.trials:
        if trial.outcome is None:
            continue
        texts = [str(row.event.result) for row in store.rows(trial.run_id) if isinstance(row.event, ev.ToolFinished)]
        found[trial.task_id] = Evidence("", "", questions[trial.task_id], 0, "\n".join(texts)).contains(
            trial.outcome.answer or ""
        )
    return found


def retrieve(tasks: list[EvalTask], folder: Path, embed: Embed | None) -> None:
    """Print for how many questions one search finds the answer at all, literally: no model is asked."""
    index = DocumentIndex(folder, embed=embed)
    for most in (3, 5, 10):
        found = dict.fromkeys((task.metadata["dataset"] for task in tasks), 0)
        for task in tasks:
            text = "\n".join(f"{hit.title}\n{hit.text}" for hit in index.search(task.question, most))
            evidence = Evidence("", "", "{}", 0, text)
            found[task.metadata["dataset"]] += any(evidence.contains(gold) for gold in task.golds)
        print(f"{most} passages: the answer is in them for {found} of {len(tasks) // 2} each")


def show(options: argparse.Namespace) -> None:
    reports = {way: load_report(way, home=options.home) for way in options.ways}
    read = was_read(reports["at-once"], options.home)
    scores = {way: task_means(report) for way, report in reports.items()}
    shared = [task for task in read if all(task in each for each in scores.values())]
    sets = {task.id: task.metadata["dataset"] for task in reports["at-once"].tasks}
    for dataset in ("hotpotqa", "musique", ""):
        of = [task for task in shared if sets[task].startswith(dataset)]
        for name, each in scores.items():
            mean = mean_estimate([[each[task]] for task in of])
            paired = paired_estimate({task: scores["at-once"][task] for task in of}, each)
            print(
                f"{dataset or 'both'}, {len(of)} questions, {name}: "
                f"F1 {mean.mean:.1%} ({mean.low:.1%} to {mean.high:.1%}), {sum(each[task] == 1 for task in of)} exact; "
                f"against the answer at once {100 * paired.difference:+.1f} points "
                f"({100 * paired.low:+.1f} to {100 * paired.high:+.1f})"
            )
    print(f"in the results: {sum(read[task] for task in shared)} of {len(shared)} answers")
    for name, report in reports.items():
        ended = [each.outcome for each in report.trials if each.outcome is not None and each.task_id in shared]
        tokens = fmean(each.output_tokens for each in ended)
        long = sum(each.requests > POLICY_TURNS for each in ended)
        print(
            name,
            f"{fmean(each.requests for each in ended):.1f} requests, {tokens:.0f} tokens out, "
            f"{fmean(each.seconds for each in ended):.0f} s a question; a policy of "
            f"the context could act in {long} of {len(ended)} runs",
        )


def named(text: str) -> Embed:
    module, _, function = text.partition(":")
    found: Embed = getattr(importlib.import_module(module), function)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--hotpotqa", type=Path, required=True)
    parser.add_argument("--musique", type=Path, required=True)
    parser.add_argument("--without", type=Path, action="append", default=[], help="JSONL of questions to leave out")
    parser.add_argument("--questions", type=int, default=20, help="of each")
    parser.add_argument("--seed", type=int, default=57)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument(
        "--ways", nargs="+", default=["at-once", "step-by-step", "shipped"], help="the first is at-once"
    )
    parser.add_argument(
        "--embed", type=named, help="MODULE:FUNCTION that embeds texts, for the ways that end with -vectors"
    )
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--retrieval", action="store_true", help="ask no model: see what one search finds")
    options = parser.parse_args()
    if options.embed is None and any(way.endswith("-vectors") for way in options.ways):
        parser.error("ways that end with -vectors need --embed MODULE:FUNCTION")
    tasks, folder = prepare(options)
    if options.retrieval:
        retrieve(tasks, folder, options.embed)
        return
    if not options.report:
        asyncio.run(ask(tasks, folder, options))
    show(options)


if __name__ == "__main__":
    main()
