"""Evaluations at size: throughput, memory, the size of the database, and workers that are killed.

    python bench/evaluate.py size [--trials 10000] [--turns 5]
    python bench/evaluate.py kills [--trials 10000] [--turns 5] [--kills 100] [--workers 4]
    python bench/evaluate.py ray [--trials 10000] [--turns 5] [--workers 3]

`size` runs scripted trials in one process. `kills` kills random workers of one evaluation at random moments, replaces
them, and compares the table with what it must be. `ray` runs trials on a local Ray cluster of so many nodes, kills one
after a third of the trials, and compares the table.
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
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "harness"))

import sweeper  # noqa: E402

from closeout.evaluate import EvalReport, evaluate, load_report  # noqa: E402
from closeout.evaluate.sweep import Sweep  # noqa: E402
from closeout.evaluate.trials import TrialStore  # noqa: E402
from closeout.journal.store import close_stores, open_store  # noqa: E402

MEGABYTE = 1_000_000


def memory() -> float:
    """Resident megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MEGABYTE


async def measure_size(folder: Path, trials: int, turns: int) -> None:
    agent = sweeper.make_agent(folder, turns, note=False)
    seen: list[tuple[int, float]] = []

    async def watch(path: Path) -> None:
        store = TrialStore(path)
        try:
            while True:
                seen.append((store.progress("exact").finished, memory()))
                await asyncio.sleep(2)
        finally:
            store.close()

    watching: list[asyncio.Task[None]] = []

    def started(_: Sweep, store: TrialStore) -> None:
        watching.append(asyncio.ensure_future(watch(store.path)))

    began, cpu = time.perf_counter(), time.process_time()
    report = await evaluate(
        agent, sweeper.tasks(trials), scorer="exact", name="sweep", concurrency=50, on_start=started
    )
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    print(f"{report.totals.finished:,} trials of {turns} turns, {report.totals.correct:,} right")
    print(f"{seconds:.1f} s wall ({trials / seconds:.0f} trials/s), {1000 * cpu / trials:.2f} ms CPU a trial")
    for share in (0.1, 0.25, 0.5, 0.75, 1.0):
        done, used = min(seen, key=lambda each: abs(each[0] - share * trials))
        print(f"memory at {done:,} trials: {used:.0f} MB")


def measure_files(folder: Path, trials: int) -> None:
    close_stores()
    sizes = {file.name: file.stat().st_size / MEGABYTE for file in folder.rglob("*.sqlite3")}
    print("; ".join(f"{name} {size:.1f} MB ({1000 * size / trials:.1f} kB a trial)" for name, size in sizes.items()))
    began, cpu = time.perf_counter(), time.process_time()
    str(load_report("sweep", home=folder / "home"))
    print(f"report: {time.perf_counter() - began:.2f} s wall, {time.process_time() - cpu:.2f} s CPU")
    began = time.perf_counter()
    command = [sys.executable, "-m", "closeout", "eval", "show", "sweep"]
    environment = {"CLOSEOUT_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
    subprocess.run(command, env=environment, capture_output=True, check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"closeout eval show: {time.perf_counter() - began:.2f} s wall, {used.ru_utime + used.ru_stime:.2f} s CPU, "
        "with the start of Python"
    )


def measure_kills(folder: Path, trials: int, turns: int, kills: int, workers: int, seed: int) -> None:
    began = time.perf_counter()
    concurrency = 20
    found = sweeper.sweep(folder, trials, turns, concurrency, workers=workers, kills=kills, seed=seed)
    tables = found.pop("tables")
    answers = [[f"t{n}", 1, str(n) if n % 7 else "wrong", "finished"] for n in range(trials)]
    right = sum(bool(n % 7) for n in range(trials))
    same = [
        table["answers"] == answers
        and (table["right"], table["turns"], table["tool_calls"]) == (right, trials * turns, trials * (turns - 1))
        for table in tables
    ]
    print(json.dumps(found))
    again = found["requests"] - found["expected"]
    print(f"{workers} processes, {found['killed']} kills, {time.perf_counter() - began:.0f} s")
    print(f"tables as without kills: {sum(same)} of {len(same)}")
    print(f"requests sent again: {again:,} of {found['expected']:,} ({again / max(kills, 1):.1f} a kill)")
    if not tables or not all(same):
        sys.exit("FAILED")


def measure_ray(folder: Path, trials: int, turns: int, nodes: int) -> None:
    import ray
    from ray.cluster_utils import Cluster

    os.environ["CLOSEOUT_HOME"] = str(folder / "home")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests" / "harness"), str(ROOT / "src")])
    small: dict[str, Any] = {"object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    make_agent = partial(sweeper.make_agent, folder, turns, note=False, home=True)
    began = time.perf_counter()

    async def work() -> tuple[EvalReport, int]:
        stores: list[TrialStore] = []
        sweep = evaluate(
            make_agent,
            sweeper.tasks(trials),
            scorer="exact",
            name="sweep",
            ray="auto",
            on_start=lambda _, store: stores.append(TrialStore(store.path)),
        )
        running = asyncio.ensure_future(sweep)
        finished = 0
        while finished < trials / 3 and not running.done():
            await asyncio.sleep(0.5)
            finished = stores[0].progress("exact").finished if stores else 0
        await asyncio.to_thread(cluster.remove_node, members[-1], allow_graceful=False)
        report = await running
        stores[0].close()
        return report, finished

    try:
        members = [cluster.add_node(num_cpus=1, **small) for _ in range(nodes)]
        ray.init(address=cluster.address, log_to_driver=False)
        report, finished = asyncio.run(work())
    finally:
        ray.shutdown()
        cluster.shutdown()
    seconds = time.perf_counter() - began
    runs = sum(1 for _ in open_store(folder / "home").each_run())
    right = sum(bool(n % 7) for n in range(trials))
    print(f"{trials:,} trials of {turns} turns on {nodes} Ray nodes; one killed after {finished:,} trials")
    print(f"{seconds:.0f} s wall ({trials / seconds:.0f} trials/s); {runs:,} runs brought home")
    found = sweeper.table(report)
    expected = (right, trials * turns, trials * (turns - 1), trials)
    if (found["right"], found["turns"], found["tool_calls"], runs) != expected:
        sys.exit(f"FAILED: {(found['right'], found['turns'], found['tool_calls'], runs)} is not {expected}")
    print("table as without the loss")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["size", "kills", "ray"])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--workers", type=int, help="processes (4), or nodes of the cluster (3)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "size":
            asyncio.run(measure_size(Path(folder), options.trials, options.turns))
            measure_files(Path(folder), options.trials)
        elif options.what == "ray":
            measure_ray(Path(folder), options.trials, options.turns, options.workers or 3)
        else:
            workers = options.workers or 4
            measure_kills(Path(folder), options.trials, options.turns, options.kills, workers, options.seed)


if __name__ == "__main__":
    main()
