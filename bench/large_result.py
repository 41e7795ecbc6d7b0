"""How long the turns of another run take while a tool returns a large result, and what memory the result takes.

Run: python bench/large_result.py [MEGABYTES]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import resource
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from closeout import Agent, count_tokens, tool
from closeout.testing import ScriptedClient, answer, call


def results(megabytes: int) -> Iterator[tuple[str, Any]]:
    """Results of about so many megabytes of JSON."""
    row = {"name": "a name", "text": "word " * 10, "score": 1.5}
    yield "rows", {"rows": [{"id": number, **row} for number in range(megabytes * 10_000)]}
    yield "pages", {"pages": [f"{number}\n" + "word and word\n" * 70_000 for number in range(megabytes)]}
    yield "text", "word and word\n" * (megabytes * 70_000)
    yield "text beyond ASCII", "wörd and word\n" * (megabytes * 70_000)


async def other_run(home: str, turns: list[tuple[float, float]], done: asyncio.Event) -> None:
    """Take turns until `done`, and note the seconds that each takes, and the seconds of this process's CPU."""
    last, numbers = (time.perf_counter(), time.process_time()), itertools.count()

    @tool(read_only=True)
    async def step(number: int) -> str:
        """Take a step."""
        nonlocal last
        now = (time.perf_counter(), time.process_time())
        turns.append((now[0] - last[0], now[1] - last[1]))
        last = now
        return f"step {number}"

    def next_reply(request: Any) -> Any:
        return answer("done") if done.is_set() else call("step", number=next(numbers))

    await Agent(ScriptedClient(next_reply), [step], home=home, max_turns=1_000_000).run("Go on.")


async def measure(name: str, result: Any) -> None:
    @tool(read_only=True)
    async def read_all() -> Any:
        """Read everything."""
        return result

    with tempfile.TemporaryDirectory() as home:
        turns: list[tuple[float, float]] = []
        done = asyncio.Event()
        other = asyncio.create_task(other_run(home, turns, done))
        while len(turns) < 500:  # noqa: ASYNC110 - an event would be one more step in each turn
            await asyncio.sleep(0.1)
        usual, before = max(turns[100:])[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        turns.clear()
        began = time.perf_counter()
        await Agent(ScriptedClient([call("read_all"), answer("1")]), [read_all], home=home).run("What?")
        seconds = time.perf_counter() - began
        done.set()
        await other
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        longest, cpu = (1000 * max(each) for each in zip(*turns, strict=True))
        print(
            f"{name:<18} {seconds:5.1f} s, peak memory +{grown:,.0f} MB; the other run's {len(turns):,} turns took "
            f"at most {longest:.0f} ms (before: {usual * 1000:.0f} ms), {cpu:.0f} ms of CPU",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("megabytes", type=int, nargs="?", default=100)
    megabytes = parser.parse_args().megabytes
    count_tokens("load the vocabulary, which holds the interpreter's lock for half a second")
    for name, result in results(megabytes):
        asyncio.run(measure(f"{megabytes} MB of {name}", result))


if __name__ == "__main__":
    main()
