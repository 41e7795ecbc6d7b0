"""Judge one runtime, or print the table of all results.

    python bench/crash_suite/run.py closeout-sqlite      makes its virtual environment, judges it, writes results/
    python bench/crash_suite/run.py --table              writes the table of all results into README.md and the docs
    python bench/crash_suite/run.py closeout-sqlite --scenarios pay read --verbose --keep

Linux, Python 3.11 or newer, a C compiler, and for some runtimes PostgreSQL's programs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from database import Postgres
from endpoints import Server
from judge import FAULTS, Case, Runtime, Verdict
from world import TASKS, Cut

WRITES = 5  # moments after a write that are tried in each scenario, evenly spread
FULL = 2  # moments at which the disk becomes full


def runtimes() -> dict[str, dict[str, Any]]:
    return tomllib.loads((HERE / "runtimes.toml").read_text())


def environment(name: str, settings: dict[str, Any], folder: Path) -> str:
    """Make the virtual environment of a runtime, unless it is there, and return its Python."""
    place = folder / settings.get("environment", name)
    done = place / ".made"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        wanted = [each.format(root=HERE.parent.parent) for each in settings["requirements"]]
        print(f"{name}: installing {', '.join(wanted) or 'nothing'} into {place}", file=sys.stderr)
        if wanted:
            subprocess.run([place / "bin" / "pip", "install", "-q", "--no-compile", *wanted], check=True)
        done.touch()
    return str(place / "bin" / "python")


def preload(folder: Path) -> Path:
    """Compile what counts the writes of a process."""
    library = folder / "cut.so"
    if not library.exists() or library.stat().st_mtime < (HERE / "cut.c").stat().st_mtime:
        command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O2", "-o", library, HERE / "cut.c", "-ldl"]
        subprocess.run(command, check=True)
    return library


def spread(count: int, most: int) -> Iterator[int]:
    """Yield numbers from 1 to a count, evenly spread, at most so many."""
    step = max(1.0, count / most)
    yield from sorted({min(count, 1 + int(number * step)) for number in range(min(count, most))})


def cuts(scenario: str, counts: dict[str, int], writes: int, *, files: bool) -> Iterator[Cut]:
    """Yield the moments of a scenario, from what an undisturbed run does."""
    amid = ("before", "during", "after") if scenario == "stream" else ("before", "after")
    for at, whens in (("request", amid), ("pay", ("before", "during", "after")), ("read", ("before", "after"))):
        for number in range(1, counts.get(at, 0) + 1):
            yield from (Cut(at, number, when) for when in whens)
    for number in range(1, counts.get("pay", 0) + 1):
        yield Cut("pay", number, "during", "stop")
    made = counts.get("write", 0)
    yield from (Cut("write", number) for number in spread(made, writes))
    if files:
        for at, whens in (("request", ("before", "after")), ("pay", ("during", "after")), ("read", ("after",))):
            for number in range(1, counts.get(at, 0) + 1):
                yield from (Cut(at, number, when, "power") for when in whens)
        yield from (Cut("write", number, "after", "full") for number in spread(made, FULL))


def judged(runtime: Runtime, server: Server, options: argparse.Namespace, keep: Callable[..., None]) -> list[Verdict]:
    """Judge the scenarios that the runtime offers, and keep the verdicts of each."""
    verdicts: list[Verdict] = []

    def one(scenario: str, cut: Cut | None) -> Verdict:
        verdict = Case(runtime, server, scenario, cut, keep=options.keep).judge()
        if options.verbose and (verdict.faults or options.verbose > 1):
            print(f"  {scenario}: {cut}: {verdict.faults} {verdict.counts}", flush=True)
            if options.verbose > 1 and verdict.faults:
                print(verdict.log)
        return verdict

    with ThreadPoolExecutor(options.jobs) as pool:
        for scenario in options.scenarios or TASKS:
            if scenario in runtime.not_offered:
                continue
            undisturbed = one(scenario, None)
            if undisturbed.faults:  # a busy machine may have been too slow once
                undisturbed = one(scenario, None)
            if undisturbed.faults:
                print(f"{scenario}: fails undisturbed: {undisturbed.faults}\n{undisturbed.log}", file=sys.stderr)
                runtime.not_offered[scenario] = f"does not end undisturbed: {undisturbed.faults}"
                continue
            moments = (
                []
                if options.undisturbed
                else list(cuts(scenario, undisturbed.counts, options.writes, files=runtime.postgres is None))
            )
            found = [undisturbed, *pool.map(lambda cut, name=scenario: one(name, cut), moments)]
            verdicts += found
            if moments:
                keep(found)
            print(f"{scenario:9} {line(found)}", flush=True)
    return verdicts


def line(verdicts: Sequence[Verdict]) -> str:
    reached = [each for each in verdicts if each.cut is not None and each.reached]
    faults = {kind: sum(kind in each.faults for each in reached) for kind in FAULTS}
    return f"{len(reached):4} cuts: " + ", ".join(f"{count} {kind}" for kind, count in faults.items())


def commit() -> str:
    """Return the commit, marked as dirty if anything but the results differs from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!results")
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def versions(python: str, names: Sequence[str]) -> dict[str, str]:
    if not names:
        return {}
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    got = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    return dict(zip(names, got.stdout.split(), strict=True))


def times(runtime: Runtime, server: Server) -> dict[str, Any]:
    """Return the CPU time and the shortest time of five resumes after a kill before the second request."""
    cut = Cut("request", 2, "before")
    found = [Case(runtime, server, "pay", cut).judge() for _ in range(6)][1:]  # the first one imports
    cpu, seconds = (
        [value for each in found if (value := getattr(each, name)) is not None] for name in ("cpu", "seconds")
    )
    resumed = {"resume_cpu": round(median(cpu), 2), "resume_seconds": round(min(seconds), 2)} if cpu else {}
    return {"import_cpu": round(runtime.import_cpu, 2), **resumed}


def head(settings: dict[str, Any], python: str) -> dict[str, Any]:
    """Return what a result says of the runtime and of the suite."""
    shims = [HERE / "shims" / f"{each}.py" for each in settings.get("lines_of", [settings["shim"]])]
    return {
        "title": settings["title"],
        "versions": versions(python, settings["versions"]),
        "documentation": settings["documentation"],
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "python": platform.python_version(),
        "shim_lines": sum(1 for file in shims for text in file.read_text().splitlines() if text.strip()),
    }


def record(place: Path, head: dict[str, Any], not_offered: dict[str, str], verdicts: list[Verdict]) -> None:
    """Keep the verdicts of a scenario: how many cells, and each faulty one."""
    scenarios: dict[str, Any] = {}
    for verdict in verdicts:
        fresh = {"cut": 0, "paused": 0, "power": 0, "keyed_twice": 0, "faults": {}}
        entry = scenarios.setdefault(verdict.scenario, fresh)
        if verdict.cut is None or not verdict.reached:
            continue
        entry[{"stop": "paused", "power": "power"}.get(verdict.cut.how, "cut")] += 1
        entry["keyed_twice"] += bool(verdict.keyed_twice)
        if verdict.faults:
            entry["faults"][str(verdict.cut)] = verdict.faults
    keep(place, head | {"not_offered": not_offered, "scenarios": scenarios})


def keep(place: Path, result: dict[str, Any]) -> None:
    """Add to a result. What was recorded from another commit is dropped."""
    before = json.loads(place.read_text()) if place.exists() else {}
    if before.get("commit") != result["commit"]:
        before = {}
    scenarios = before.get("scenarios", {}) | result.get("scenarios", {})
    ordered = {each: scenarios[each] for each in TASKS if each in scenarios}
    place.parent.mkdir(exist_ok=True)
    result = before | result | {"scenarios": ordered}
    place.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runtime", nargs="?", choices=list(runtimes()))
    parser.add_argument("--scenarios", nargs="*", choices=list(TASKS))
    parser.add_argument("--writes", type=int, default=WRITES)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--python", help="use this Python, in which the runtime is installed")
    parser.add_argument("--folder", type=Path, default=HERE / ".environments", help="for the virtual environments")
    parser.add_argument("--verbose", "-v", action="count", default=0)
    parser.add_argument("--undisturbed", action="store_true", help="run each scenario once, without cuts")
    parser.add_argument("--times", action="store_true", help="measure only how long a resume takes")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the cases")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table or not options.runtime:
        import table

        table.write()
        return
    settings = runtimes()[options.runtime]
    options.folder.mkdir(parents=True, exist_ok=True)
    python = options.python or environment(options.runtime, settings, options.folder)
    postgres = Postgres() if settings.get("postgres") else None
    server = Server()
    place, about = HERE / "results" / f"{options.runtime}.json", head(settings, python)
    with tempfile.TemporaryDirectory() as name:
        runtime = Runtime(settings["shim"], python, preload(options.folder), Path(name) / "log", postgres)
        began = time.monotonic()
        try:
            verdicts = (
                []
                if options.times
                else judged(runtime, server, options, partial(record, place, about, runtime.not_offered))
            )
            if options.times or not (options.undisturbed or options.scenarios):
                keep(place, about | times(runtime, server))
        finally:
            runtime.close()
            server.close()
            if postgres is not None:
                postgres.close()
    print(f"{options.runtime}: {line(verdicts)}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
