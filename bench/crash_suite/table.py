"""Writes the tables of all results into the README and the page of the documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGES = (HERE / "README.md", HERE.parent.parent / "docs" / "crash-suite.md")
FAULTS = ("twice", "never", "stuck", "wrong", "untold")
BEGIN, END = "<!-- results: written by run.py --table -->", "<!-- end of results -->"
SCENARIOS = {
    "pay": "one payment",
    "three": "three in one reply",
    "read": "payment, then a read",
    "approval": "waits for a person",
    "timer": "waits for a time",
    "subagent": "a sub-agent pays",
    "handoff": "handed over",
    "stream": "watched stream",
    "two": "two resume",
    "rollback": "malformed call",
    "code": "new code",
    "overflow": "context overflows",
}


def results() -> list[dict[str, Any]]:
    """Return the results in the order of runtimes.toml, which the files are named after."""
    import tomllib

    order = list(tomllib.loads((HERE / "runtimes.toml").read_text()))
    found = {file.stem: json.loads(file.read_text()) for file in (HERE / "results").glob("*.json")}
    return [found[name] for name in order if name in found]


def row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def counted(result: dict[str, Any], *, paused: bool) -> tuple[int, dict[str, int]]:
    """Return how many cells there are, and how many have each fault: those of SIGSTOP, or all others."""
    total, faults = 0, dict.fromkeys(FAULTS, 0)
    for entry in result["scenarios"].values():
        total += entry["paused" if paused else "cut"]
        for cell, found in entry["faults"].items():
            if cell.startswith("stop") == paused:
                for kind in found:
                    faults[kind] += 1
    return total, faults


def summary(found: list[dict[str, Any]]) -> Iterator[str]:
    heads = [
        "scenarios",
        "cuts",
        *FAULTS,
        "pauses",
        "of them faulty",
        "CPU s to resume",
        "CPU s to import",
        "lines of shim",
    ]
    yield row(["", *heads])
    yield row(["---", *["--:"] * len(heads)])
    for result in found:
        cuts, faults = counted(result, paused=False)
        pauses, _ = counted(result, paused=True)
        faulty = sum(cell.startswith("stop") for entry in result["scenarios"].values() for cell in entry["faults"])
        name = f"[{result['title']}]({result['documentation']})"
        cells = [len(result["scenarios"]), cuts, *(faults[kind] for kind in FAULTS), pauses, faulty]
        yield row([name, *cells, result.get("resume_cpu", ""), result.get("import_cpu", ""), result["shim_lines"]])


def by_scenario(found: list[dict[str, Any]]) -> Iterator[str]:
    yield row(["", *(result["title"] for result in found)])
    yield row(["---", *["--:"] * len(found)])
    for name, text in SCENARIOS.items():
        cells = []
        for result in found:
            entry = result["scenarios"].get(name)
            no_cells = "–" if name in result["not_offered"] else ""
            cells.append(f"{len(entry['faults'])} of {entry['cut'] + entry['paused']}" if entry else no_cells)
        yield row([text, *cells])


def missing(found: list[dict[str, Any]]) -> Iterator[str]:
    for result in found:
        reasons: dict[str, list[str]] = {}
        for name, why in sorted(result["not_offered"].items()):
            reasons.setdefault(why, []).append(SCENARIOS[name])
        if reasons:
            parts = [f"{', '.join(names)} ({why})" for why, names in reasons.items()]
            yield f"- {result['title']}: {'; '.join(parts)}"


def measured(found: list[dict[str, Any]]) -> Iterator[str]:
    for result in found:
        versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items()) or "standard library"
        where = f"Python {result['python']}, {result['date']}, commit {result['commit']}"
        yield f"- {result['title']}: {versions}; {where}"


def text() -> str:
    found = results()
    parts = [
        "Cells with each fault:",
        "\n".join(summary(found)),
        "Cells with any fault, of all cells of a scenario; – is not offered, empty is not measured yet:",
        "\n".join(by_scenario(found)),
        "Not offered:",
        "\n".join(missing(found)),
        "Measured:",
        "\n".join(measured(found)),
    ]
    return "\n\n".join(parts)


def write() -> None:
    for page in PAGES:
        before = page.read_text()
        pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
        page.write_text(pattern.sub(lambda _: f"{BEGIN}\n\n{text()}\n\n{END}", before))
    print(text())
