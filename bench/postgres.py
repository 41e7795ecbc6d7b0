"""A home in PostgreSQL: its turns per second beside SQLite's, and what kills, pauses, restarts and cuts do to runs.

Needs PostgreSQL's programs and `closeout[postgres]`. The server is the bench's own, on a socket, and waits for the disk
at each commit. Each run has five turns; four of them call a tool that must not be repeated, so that every call costs
two commits on disk.

    python bench/postgres.py [--quick] [--runs 400] [--concurrency 50]
    python bench/postgres.py --soak 2000 --workers 4 --kills 60 --pauses 15 --restarts 5 --cuts 5 [--pooler 4]
        [--pool-mode session] [--tenants 2]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from closeout import Agent, tool
from closeout.homes import as_home
from closeout.journal.events import RunEnded, RunResumed
from closeout.journal.store import close_stores, open_store
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call
from pgbouncer_server import pooler
from postgres_server import PostgresServer

CALLS = 4
TURNS = CALLS + 1
LEASE = 3  # seconds, in the soak


def next_turn(view: RequestView) -> Turn:
    done = sum(message.get("role") == "tool" for message in view.messages)
    return answer("done") if done == CALLS else Turn(calls=[call("pay", purpose=f"{view.question} {done}")])


# ------------------------------------------------------------------------------------------------ throughput


def work(home: str, runs: int, concurrency: int) -> None:
    """Execute runs in this process, and print how long it took and how soon the first request of a run came."""
    begun: dict[str, float] = {}
    waits: list[float] = []

    def turn(view: RequestView) -> Turn:
        if not any(message.get("role") == "tool" for message in view.messages):
            waits.append(time.perf_counter() - begun[view.question])
        return next_turn(view)

    @tool
    async def pay(purpose: str) -> str:
        """Pay."""
        return f"paid {purpose}"

    agent = Agent(ScriptedClient(turn), [pay], home=home)

    async def run(name: str) -> None:
        begun[name] = time.perf_counter()
        result = await agent.run(name)
        assert result.answer == "done", result.error

    async def main() -> None:
        for number in range(20):  # one after the other: what a person waits for
            await run(f"warm {number}")
        alone = statistics.median(waits)
        start = time.perf_counter()
        limit = asyncio.Semaphore(concurrency)

        async def limited(name: str) -> None:
            async with limit:
                await run(name)

        await asyncio.gather(*(limited(f"run {number}") for number in range(runs)))
        print(json.dumps({"seconds": time.perf_counter() - start, "first_request_ms": alone * 1000}))

    asyncio.run(main())
    close_stores()


def measured(home: str, runs: int, concurrency: int, workers: int = 1) -> tuple[float, float]:
    """Return the turns per second of some workers, and the median of begin to first request in milliseconds."""
    share = runs // workers
    command = [sys.executable, __file__, "--work", home, "--runs", str(share), "--concurrency", str(concurrency)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(workers)]
    found = [json.loads(process.communicate()[0]) for process in processes]
    seconds = max(each["seconds"] for each in found)
    return share * workers * TURNS / seconds, statistics.median(each["first_request_ms"] for each in found)


def throughput(runs: int, concurrency: int, rounds: int) -> None:
    server = PostgresServer(fsync="on")
    try:
        server.start()
        rates: dict[str, list[tuple[float, float]]] = {"sqlite": [], "postgres": [], "postgres, 2 workers": []}
        for number in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                rates["sqlite"].append(measured(folder, runs, concurrency))
            url = server.url(schema=f"bench_{number}")
            rates["postgres"].append(measured(url, runs, concurrency))
            rates["postgres, 2 workers"].append(measured(url, runs, concurrency, 2))
    finally:
        server.remove()
    best = {name: max(rate for rate, _ in found) for name, found in rates.items()}
    for name, found in rates.items():
        first = min(each for _, each in found)
        print(f"{name:20} {best[name]:7.0f} turns/s, begin to first request {first:.1f} ms")
    print(
        f"postgres: {best['postgres'] / best['sqlite']:.2f} of SQLite's turns per second with one worker, "
        f"{best['postgres, 2 workers'] / best['sqlite']:.2f} with two (best of {rounds}, {runs} runs of {TURNS} turns, "
        f"{concurrency} at once, {os.cpu_count()} cores)"
    )


# ------------------------------------------------------------------------------------------------ soak


def soak_worker(home: str, runs: int, concurrency: int, seed: int) -> None:
    """Execute all runs that nobody else executes or has executed. Effects are rows of a table."""
    import psycopg

    address, is_over = os.environ["BENCH_EFFECTS"], Path(os.environ["BENCH_STOP"]).exists

    @tool
    async def pay(purpose: str) -> str:
        """Pay."""
        await asyncio.to_thread(paid, purpose)
        await asyncio.sleep(0.01)
        return f"paid {purpose}"

    def paid(purpose: str) -> None:
        attempt = secrets.token_hex(8)  # the table is in the server that is restarted: what was written may look lost
        for _ in range(200):
            try:
                with psycopg.connect(address, autocommit=True) as db:
                    row = (attempt, purpose, os.getpid())
                    db.execute("INSERT INTO effects VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", row)
                return
            except psycopg.OperationalError as error:
                if error.sqlstate is not None and not error.sqlstate.startswith("57P"):
                    raise
                time.sleep(0.1)

    agent = Agent(ScriptedClient(next_turn), [pay], home=home)
    store: Any = open_store(as_home(home))

    async def main() -> None:
        limit = asyncio.Semaphore(concurrency)

        async def once(name: str) -> None:
            async with limit:
                try:
                    if store.query("SELECT 1 FROM runs WHERE run_id=? AND status='answered'", (name,)):
                        return
                    if is_over() and not store.query("SELECT 1 FROM runs WHERE run_id=?", (name,)):
                        return
                    await agent.run_once(name, run_id=name)
                except Exception as error:  # the next round tries again
                    print(f"{os.getpid()} {name}: {type(error).__name__}: {error}", file=sys.stderr)

        names = [f"{store.home.schema}-{number}" for number in range(runs)]
        random.Random(seed).shuffle(names)
        while True:
            found = dict(store.query("SELECT run_id, status FROM runs"))
            done = {name for name, status in found.items() if status == "answered"}
            if len(done) == (len(found) if is_over() else runs):
                return
            await asyncio.gather(*(once(name) for name in names if name not in done))

    asyncio.run(main())
    close_stores()


def soak(
    runs: int,
    workers: int,
    troubles: dict[str, int],
    *,
    seed: int,
    minutes: float,
    pool: int,
    mode: str,
    tenants: int,
) -> bool:
    server = PostgresServer(fsync="on")
    chance = random.Random(seed)
    started = time.monotonic()
    processes: list[subprocess.Popen[bytes]] = []
    paused: list[tuple[float, subprocess.Popen[bytes]]] = []
    done: Counter[str] = Counter()
    between = ExitStack()  # a pooler, if one is asked for
    try:
        server.start()
        server.execute("CREATE TABLE effects (attempt text PRIMARY KEY, purpose text, process integer)")
        schemas = [f"soak_{number}" for number in range(tenants)]
        homes = [server.url(schema=schema, lease=LEASE) for schema in schemas]
        if pool:
            url = between.enter_context(pooler(server, mode=mode, size=pool, lease=LEASE))
            homes = [f"{url}&schema={schema}" for schema in schemas]
        stop = server.folder / "stop"
        env = {**os.environ, "BENCH_EFFECTS": server.url(), "BENCH_STOP": str(stop)}
        log = (server.folder / "workers.log").open("wb")

        def start_worker(home: str) -> None:
            command = [sys.executable, __file__, "--soak-work", home, "--runs", str(runs), "--concurrency", "25"]
            command += ["--seed", str(chance.randrange(10**6))]
            processes.append(subprocess.Popen(command, env=env, stderr=log))

        for number in range(workers):
            start_worker(homes[number % tenants])
        stores = [open_store(as_home(home)) for home in homes]
        count = "SELECT count(*), count(*) FILTER (WHERE status='answered') FROM runs"
        plan = [name for name, number in troubles.items() for _ in range(number)]
        chance.shuffle(plan)
        while True:
            counts = [store.query(count)[0] for store in stores]
            begun, answered = map(sum, zip(*counts, strict=True))
            for process in [each for each in processes if each.poll()]:  # killed, or it began during a restart
                processes.remove(process)
                start_worker(process.args[3])  # type: ignore[index]
            for until, process in [each for each in paused if each[0] < time.monotonic()]:
                paused.remove((until, process))
                process.send_signal(signal.SIGCONT)
            if answered == (begun if stop.exists() else runs * tenants):
                break
            if not stop.exists() and time.monotonic() - started > minutes * 60:
                print(f"after {minutes:g} minutes: no more runs begin, and {len(plan)} troubles are left out")
                plan.clear()
                stop.touch()
            if plan and answered >= runs * tenants * sum(done.values()) // (len(plan) + sum(done.values()) + 1):
                trouble = plan.pop()
                stopped = [process for _, process in paused]
                free = [each for each in processes if each.poll() is None and each not in stopped]
                if trouble in ("kills", "pauses") and len(free) > 1:
                    victim = chance.choice(free)
                    if trouble == "kills":
                        victim.kill()
                        victim.wait()
                    else:
                        victim.send_signal(signal.SIGSTOP)
                        paused.append((time.monotonic() + LEASE * 2, victim))
                elif trouble == "restarts":
                    server.stop()
                    server.start()
                elif trouble == "cuts":
                    server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid<>pg_backend_pid()")
                else:
                    plan.insert(0, trouble)
                    time.sleep(0.2)
                    continue
                done[trouble] += 1
            time.sleep(0.05)
        for process in processes:
            process.send_signal(signal.SIGCONT)
        for process in processes:
            process.wait(120)
        log.close()
        seconds = time.monotonic() - started
        each = [judged(server, home, n, done, seconds) for home, (_, n) in zip(homes, counts, strict=True)]
        return all(each)
    finally:
        for process in processes:
            process.kill()
        close_stores()
        between.close()
        server.remove()


def judged(server: PostgresServer, home: str, runs: int, done: Counter[str], seconds: float) -> bool:
    """Print what became of the runs, and return whether nothing is wrong."""
    store: Any = open_store(as_home(home))
    tenant = f"{store.home.schema}-"
    statuses = Counter(record.status for record in store.each_run())
    purposes = [purpose for (purpose,) in server.execute("SELECT purpose FROM effects") if purpose.startswith(tenant)]
    effects, foreign = Counter(purposes), [run.run_id for run in store.each_run() if not run.run_id.startswith(tenant)]
    damaged, ends, failures, resumed, interrupted = [], Counter[int](), Counter[str](), 0, 0
    for record in store.each_run():
        found = store.read(record.run_id)
        if found.problems:
            damaged.append((record.run_id, found.problems))
        events = [row.event for row in found.rows]
        found_ends = [event for event in events if isinstance(event, RunEnded)]
        ends[sum(event.status == "answered" for event in found_ends)] += 1
        failures.update(f"{event.status}: {event.error[:90]}" for event in found_ends if event.status != "answered")
        resumed += sum(isinstance(event, RunResumed) for event in events)
        paid = sum(effects[f"{record.run_id} {number}"] for number in range(CALLS))
        interrupted += CALLS - paid
    twice = {purpose: times for purpose, times in effects.items() if times > 1}
    lines = (server.folder / "workers.log").read_text(errors="replace").splitlines()
    kinds = Counter(line.split(": ")[1] for line in lines if line[:1].isdigit() and line.count(": ") > 1)
    print(f"{tenant[:-1]}: {runs} runs of {TURNS} turns, {dict(done)} in {seconds:.0f} s")
    print(f"errors in workers: {dict(kinds)}")
    print(f"statuses {dict(statuses)}, answers of a run {dict(ends)}, resumed {resumed} times")
    print(f"ends before that, after which a run was resumed: {dict(failures)}")
    print(f"calls reported as interrupted, effect unknown: {interrupted} of {runs * CALLS}")
    right = not twice and not damaged and not foreign and statuses == {"answered": runs} and ends == {1: runs}
    print(f"effects done twice: {len(twice)} {dict(list(twice.items())[:3])}; damaged records: {damaged[:3]}")
    print(f"runs of another tenant: {foreign[:3]}")
    print("nothing lost, nothing doubled" if right else "WRONG")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=50)
    parser.add_argument("--soak", type=int, default=0, metavar="RUNS")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pooler", type=int, default=0, metavar="SIZE", help="PgBouncer between")
    parser.add_argument("--pool-mode", choices=("transaction", "session"), default="transaction")
    parser.add_argument("--tenants", type=int, default=1, help="each with so many runs, in a schema of its own")
    parser.add_argument("--minutes", type=float, default=60, help="after which the soak begins no more runs")
    for name, number in (("kills", 60), ("pauses", 15), ("restarts", 5), ("cuts", 5), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--soak-work", help=argparse.SUPPRESS)
    given: Any = parser.parse_args()
    if given.work:
        work(given.work, given.runs, given.concurrency)
    elif given.soak_work:
        soak_worker(given.soak_work, given.runs, given.concurrency, given.seed)
    elif given.soak:
        names = ("kills", "pauses", "restarts", "cuts")
        troubles = {name: getattr(given, name) for name in names}
        right = soak(
            given.soak,
            given.workers,
            troubles,
            seed=given.seed,
            minutes=given.minutes,
            pool=given.pooler,
            mode=given.pool_mode,
            tenants=given.tenants,
        )
        return 0 if right else 1
    else:
        throughput(100 if given.quick else given.runs, given.concurrency, 1 if given.quick else 3)
    return 0


if __name__ == "__main__":
    sys.exit(main())
