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


def faulty(result: dict[str, Any], *kinds: str) -> list[dict[str, str]]:
    """Return the faults of each faulty cell whose cut is of one of these kinds."""
    entries = result["scenarios"].values()
    return [found for entry in entries for cell, found in entry["faults"].items() if cell.split()[0] in kinds]


def summary(found: list[dict[str, Any]]) -> Iterator[str]:
    heads = [
        "scenarios",
        "cuts",
        *FAULTS,
        "power cuts",
        "of them faulty",
        "pauses",
        "of them faulty",
        "CPU s to resume",
        "CPU s to import",
        "lines of shim",
    ]
    yield row(["", *heads])
    yield row(["---", *["--:"] * len(heads)])
    for result in found:
        total = {
            kind: sum(entry[kind] for entry in result["scenarios"].values()) for kind in ("cut", "power", "paused")
        }
        cuts = faulty(result, "kill", "full")
        name = f"[{result['title']}]({result['documentation']})"
        cells = [len(result["scenarios"]), total["cut"], *(sum(kind in each for each in cuts) for kind in FAULTS)]
        power = [total["power"], len(faulty(result, "power"))] if total["power"] else ["–", "–"]
        cells += [*power, total["paused"], len(faulty(result, "stop"))]
        yield row([name, *cells, result.get("resume_cpu", ""), result.get("import_cpu", ""), result["shim_lines"]])


def by_scenario(found: list[dict[str, Any]]) -> Iterator[str]:
    yield row(["", *(result["title"] for result in found)])
    yield row(["---", *["--:"] * len(found)])
    for name, text in SCENARIOS.items():
        cells = []
        for result in found:
            entry = result["scenarios"].get(name)
            no_cells = "–" if name in result["not_offered"] else ""
            cells.append(
                f"{len(entry['faults'])} of {entry['cut'] + entry['power'] + entry['paused']}" if entry else no_cells
            )
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
