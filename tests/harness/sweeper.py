"""An evaluation whose workers are killed at random moments, and replaced, until every trial is done.

    python tests/harness/sweeper.py FOLDER TASKS TURNS CONCURRENCY WORKERS KILLS SEED

The runs live in FOLDER/home. The script of the model has no memory: a reply depends on nothing but the request. Each
request appends `request TASK TURN` to FOLDER/noted.txt, each tool call `tool TASK TURN`. Workers are forked, so that
the imports are paid once. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from closeout import Agent, tool
from closeout.evaluate import evaluate
from closeout.evaluate.report import EvalReport
from closeout.journal.store import close_stores
from closeout.messages import Capabilities, ModelReply, ModelRequest, ToolCall, Usage
from closeout.models.base import BaseClient, OnDelta, OnRetry


class Noted(BaseClient):
    """Calls `step` so many times, then answers with the task's number, every seventh one wrongly."""

    name = "scripted"
    capabilities = Capabilities(known=True)

    def __init__(self, turns: int, note: Any, seconds: float = 0.0) -> None:
        self._turns, self._note, self._seconds = turns, note, seconds

    async def complete(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
    ) -> ModelReply:
        messages = request.messages
        task = next(m["content"] for m in messages if m["role"] == "user").split()[1]
        turn = sum(message["role"] == "tool" for message in messages)
        self._note(f"request {task} {turn}")
        await asyncio.sleep(self._seconds)
        usage = Usage(100 + turn, 10, requests=1, cost_usd=0.001)
        self.charge(usage)
        if turn < self._turns - 1:
            arguments = json.dumps({"task": task, "turn": turn})
            calls = (ToolCall("step", arguments, f"c{turn}", text=arguments),)
            return ModelReply("", "", calls, finish_reason="tool_calls", usage=usage, model="scripted")
        answer = "wrong" if int(task) % 7 == 0 else task
        return ModelReply(f"It is \\boxed{{{answer}}}.", finish_reason="stop", usage=usage, model="scripted")


def make_agent(
    folder: Path, turns: int, *, seconds: float = 0.0, note: bool = True, home: Path | bool | None = None
) -> Agent[Any]:
    file = os.open(folder / "noted.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(line: str) -> None:
        if note:
            os.write(file, f"{line}\n".encode())

    @tool(read_only=True, inline=True)
    def step(task: str, turn: int) -> str:
        """Take a step."""
        write(f"tool {task} {turn}")
        return f"step {turn} of task {task} is done"

    return Agent(Noted(turns, write, seconds), [step], home=home or folder / "home")


def tasks(number: int) -> list[dict[str, Any]]:
    return [{"id": f"t{i}", "question": f"Task {i} of many.", "answer": str(i)} for i in range(number)]


def table(report: EvalReport) -> dict[str, Any]:
    """What must be the same however often the workers were killed."""
    return {
        "score": report.score.mean,
        "error": report.score.error,
        "right": report.totals.correct,
        "turns": report.totals.turns,
        "tool_calls": report.totals.tool_calls,
        "answers": [(t.task_id, t.epoch, t.outcome and t.outcome.answer, t.state) for t in report.trials],
    }


async def work(folder: Path, number: int, turns: int, concurrency: int) -> EvalReport:
    agent = make_agent(folder, turns, seconds=0.001)
    return await evaluate(agent, tasks(number), scorer="exact", name="sweep", concurrency=concurrency)


def start(folder: Path, *size: int) -> int:
    """Start a worker and return its process id. At its end it writes the table of its report."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        found = json.dumps(table(asyncio.run(work(folder, *size))))
        close_stores()
        (folder / f"table-{os.getpid()}.json").write_text(found)
        code = 0
    except BaseException as error:
        (folder / "error.txt").write_text(f"{type(error).__name__}: {error}")
    os._exit(code)


def sweep(folder: Path, *size: int, workers: int, kills: int, seed: int) -> dict[str, Any]:
    """Let workers do an evaluation, kill as many at random moments, and return the tables and what was noted."""
    draw = random.Random(seed)
    noted = folder / "noted.txt"
    noted.touch()
    lines = len(b"request 100 10\n") * size[0] * (2 * size[1] - 1)  # about what will be noted
    moments = sorted(draw.uniform(0, 0.9) * lines for _ in range(kills))
    running = {start(folder, *size) for _ in range(workers)}
    killed = 0
    while running:
        while moments and noted.stat().st_size > moments[0]:
            moments.pop(0)
            victim = draw.choice(sorted(running))
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            killed += 1
            running = {*running - {victim}, start(folder, *size)}
        pid, _ = os.waitpid(-1, os.WNOHANG)
        running.discard(pid)
        time.sleep(0.002)
    counts = Counter(noted.read_text().splitlines())
    return {
        "killed": killed,
        "tables": [json.loads(file.read_text()) for file in folder.glob("table-*.json")],
        "error": (folder / "error.txt").read_text() if (folder / "error.txt").exists() else "",
        "requests": sum(number for line, number in counts.items() if line.startswith("request")),
        "expected": size[0] * size[1],
        "different": sum(line.startswith("request") for line in counts),
    }


def main() -> None:
    folder, (number, turns, concurrency, workers, kills, seed) = Path(sys.argv[1]), map(int, sys.argv[2:8])
    print(json.dumps(sweep(folder, number, turns, concurrency, workers=workers, kills=kills, seed=seed)), flush=True)


if __name__ == "__main__":
    main()
