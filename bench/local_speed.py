"""Speed of the embedded model: the README's question with one thread and with all, cold and from the state on disk.

Each run is a process of its own; the configurations alternate. "One thread, cold" is how the model ran before it used
idle cores and kept the state of its instructions. Weights must be downloaded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from closeout import Agent
from closeout.messages import ModelReply, ModelRequest
from closeout.models.local.embedded import LocalClient
from closeout.models.local.local_machine import usable_cores
from closeout.models.local.weights import find_weights
from closeout.tools.builtin import calculate, document_tools

ROOT = Path(__file__).parent.parent
QUESTION = "How many years passed between the opening of the Rideau Canal and the opening of the Panama Canal?"
ANSWER = "82"


class TimedClient(LocalClient):
    """Adds up the seconds of its requests; loading is counted apart."""

    seconds = 0.0
    speeds: tuple[float, float] = (0.0, 0.0)

    async def complete(self, request: ModelRequest, **keys: Any) -> ModelReply:
        began = time.perf_counter()
        try:
            return await super().complete(request, **keys)
        finally:
            self.seconds += time.perf_counter() - began
            self.speeds = (max(self.speeds[0], self.speed.prompt), max(self.speeds[1], self.speed.reply))


async def ask(model: str, threads: int) -> dict[str, Any]:
    async with TimedClient(model, threads=threads) as client:
        began = time.perf_counter()
        await client.complete(ModelRequest(prompt="a", max_tokens=1))
        loading, client.seconds = time.perf_counter() - began, 0.0
        tools = [calculate, *document_tools(ROOT / "examples" / "documents", plain=True)]
        result = await Agent(client, tools, home=False).run(QUESTION)
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "answer": result.answer,
            "loading": loading,
            "model": client.seconds,
            "cpu": used.ru_utime + used.ru_stime,
            "prompt": client.speeds[0],
            "reply": client.speeds[1],
            "tokens_in": result.usage.input_tokens,
            "cached": result.usage.cache_read_tokens,
            "tokens_out": result.usage.output_tokens,
            "rss": used.ru_maxrss // 1024,
        }


def run_child(model: str, threads: int, folder: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", "--model", model, "--threads", str(threads)]
    done = subprocess.run(
        command, env={**os.environ, "CLOSEOUT_MODELS": folder}, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(model: str, threads: list[int], rounds: int) -> list[tuple[str, dict[str, Any]]]:
    weights = find_weights(model)
    if weights is None:
        sys.exit(f"The weights of {model} are missing: closeout models pull {model}")
    rows = []
    for _ in range(rounds):
        for count in threads:
            with tempfile.TemporaryDirectory() as folder:
                for file in weights.parent.glob(f"{weights.name}*"):
                    (Path(folder) / file.name).symlink_to(file)
                for state in ("cold", "from disk"):
                    rows.append((f"{count} thread{'s' * (count > 1)}, {state}", run_child(model, count, folder)))
                    show(*rows[-1])
    return rows


def show(name: str, row: dict[str, Any]) -> None:
    print(
        f"{name:<22} {row['model']:>7.1f} {row['loading']:>8.1f} {row['cpu']:>7.1f} {row['prompt']:>8.1f} "
        f"{row['reply']:>7.1f} {row['tokens_in']:>7} {row['cached']:>7} {row['tokens_out']:>5} {row['rss']:>6} "
        f" {row['answer']}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="local")
    parser.add_argument("--threads", type=int, action="append", help="default: 1 and all cores")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(asyncio.run(ask(options.model, options.threads[0]))))
        return
    print(
        f"{'':<22} {'model s':>7} {'loading':>8} {'cpu s':>7} {'prompt/s':>8} {'reply/s':>7} {'in':>7} {'cached':>7} "
        f"{'out':>5} {'MB':>6}  answer"
    )
    threads = options.threads or sorted({1, 2, usable_cores()} & set(range(1, usable_cores() + 1)))
    rows = measure(options.model, threads, options.rounds)
    first, last = rows[0][1], rows[-1][1]
    cold = rows[-2][1]
    right = all(row["answer"] == ANSWER for _, row in rows)
    print(
        f"\nbench local_speed: {options.model}: {first['model']:.0f} s with one thread and cold, {cold['model']:.0f} s "
        f"with {threads[-1]} ({first['model'] / cold['model']:.1f} times as fast), {last['model']:.0f} s from disk "
        f"({first['model'] / last['model']:.1f} times); answers {'right' if right else 'WRONG'}"
    )


if __name__ == "__main__":
    main()
