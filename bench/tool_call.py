"""What governing a tool call costs, what repairing one costs, and what one MCP session for a whole run saves.

Baselines, in the same run: the JSON Schema validator alone; the json-repair library; an MCP session for every call.

    python bench/tool_call.py [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import json_repair
import jsonschema_rs

from closeout import ToolExecutor, repair_arguments, repair_json
from closeout.messages import ToolCall, ToolPolicy, ToolSpec
from closeout.tools.judge import judge
from closeout.tools.manager import ToolManager

HERE = Path(__file__).parent
CASES = [json.loads(line) for line in (HERE / "data/json_repair/cases.jsonl").read_text("utf-8").splitlines()]
HOSTILE = (
    "{",
    "[",
    '"',
    "'",
    ",",
    ":",
    "\\",
    "/*",
    '{"a":',
    "{a:1}",
    "'a':1,",
    '",a:"',
    '"a" ',
    "'''",
    "[1],",
    "a:b,",
    '","',
)

TYPES = ({"type": "string"}, {"type": "integer"}, {"type": "array", "items": {"type": "integer"}}, {"type": "boolean"})
VALUES = ("some words to search for", 5, [1, 2, 3], True)
TEN = {
    "type": "object",
    "properties": {
        f"parameter_{number}": {**TYPES[number % 4], "description": "What it is for"} for number in range(10)
    },
    "required": ["parameter_0", "parameter_1", "parameter_2"],
    "additionalProperties": False,
}
ARGUMENTS = {f"parameter_{number}": VALUES[number % 4] for number in range(10)}
RESULT = {"organic": [{"title": f"Result {number}", "link": "https://example.org"} for number in range(10)]}


def median_us(action: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


class OneTool:
    """A tool manager with one tool that is never run here."""

    def __init__(self, spec: ToolSpec) -> None:
        self._specs = (spec,)

    def specs(self) -> tuple[ToolSpec, ...]:
        return self._specs

    async def call(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> Any:
        raise AssertionError("only the decisions about a call are measured")


def governance(rounds: int) -> tuple[float, float]:
    """Microseconds for a valid call: resolve, repair check, duplicate check, judge; and for the validator alone."""
    spec = ToolSpec("look_up", "", TEN, policy=ToolPolicy(read_only=True, check_content=True))
    executor, call = ToolExecutor(OneTool(spec)), ToolCall("look_up", ARGUMENTS)
    executor.record_query("main_look_up", "another query")
    toolbox = executor._toolbox_of("main")

    def govern() -> None:
        plan = executor._plan(call, toolbox, "main", "r1")
        assert plan.is_to_run(allow_duplicates=False)
        assert judge(RESULT, spec.policy, spec.name).quality == "good"

    validator = jsonschema_rs.validator_for(TEN)
    return median_us(govern, rounds), median_us(lambda: validator.is_valid(ARGUMENTS), rounds)


def broken_text(size: int) -> str:
    """The arguments of a call that writes a file, wrong in six ways that models really are."""
    line = "if x.get('name') == \\\"é\\\":  # a comment\\n    pattern = r'\\d+\\s*'\\n"
    body = line * ((size - 200) // len(line))
    return (
        "```json\n{'path': 'C:\\Users\\me\\new.py', \"content\": \"" + body + '",\n'
        ' "overwrite": True, "mode": None, tags: ["a" "b",], // done\n "note": "he said "yes" twice",}\n```'
    )


def repairing(rounds: int) -> tuple[float, float]:
    """Milliseconds to put right a 4 kB text against its schema; and for json-repair to read it."""
    text = broken_text(4096)
    schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "content": {"type": "string"},
            "overwrite": {"type": "boolean"},
            "mode": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"type": "string"},
        },
        "required": ["path", "content"],
    }
    repaired = repair_arguments(text, schema)
    assert repaired.ok, repaired.errors
    assert repaired.arguments["path"] == r"C:\Users\me\new.py"
    assert repaired.arguments["note"] == 'he said "yes" twice'
    ours = median_us(lambda: repair_arguments(text, schema), rounds)
    return ours / 1000, median_us(lambda: json_repair.loads(text), rounds) / 1000


def worst_case() -> float:
    """Milliseconds of CPU that the hardest of many hostile 64 kB texts takes, the better of two tries."""
    worst = 0.0
    for start in ("", "{", '["', '{"a":"'):
        for piece in HOSTILE:
            text = (start + piece * 65_536)[:65_536]
            tries = []
            for _ in range(2):
                began = time.process_time()
                repair_json(text)
                tries.append(time.process_time() - began)
            worst = max(worst, min(tries) * 1000)
    return worst


def right_readings() -> tuple[int, int]:
    """How many of the cases come out as their suite expects: ours, json-repair's."""

    def agrees(case: dict[str, Any], value: Any, failed: bool) -> bool:
        return failed if "throws" in case else not failed and value == case["expected_obj"]

    ours = theirs = 0
    for case in CASES:
        read = repair_json(case["input"])
        ours += agrees(case, read.value, not read.ok)
        theirs += agrees(case, json_repair.loads(case["input"]), failed=False)
    return ours, theirs


async def sessions(calls: int, sessions_measured: int) -> tuple[float, float]:
    """Milliseconds a call: over one session for all; with a session, and a server process, for each."""
    server = {"name": "adder", "command": sys.executable, "args": [str(HERE / "_mcp_server.py")]}

    async def add(manager: ToolManager, number: int) -> None:
        answer = await manager.execute_tool_call("adder", "add", {"a": number, "b": 1})
        assert "error" not in answer, answer

    began = time.perf_counter()
    async with ToolManager((), [server]) as manager:
        for number in range(calls):
            await add(manager, number)
    reused = (time.perf_counter() - began) * 1000 / calls
    began = time.perf_counter()
    for number in range(sessions_measured):
        async with ToolManager((), [server]) as manager:
            await add(manager, number)
    return reused, (time.perf_counter() - began) * 1000 / sessions_measured


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    rounds = 500 if quick else 5_000
    governed, validated = governance(rounds)
    print(f"a valid call, ten parameters: {governed:.1f} µs governed, {validated:.1f} µs the schema validator alone")
    ours, theirs = repairing(50 if quick else 500)
    print(f"4 kB of broken arguments: {ours:.2f} ms repaired and validated, {theirs:.2f} ms json-repair alone")
    worst = worst_case()
    print(f"the hardest of {4 * len(HOSTILE)} hostile texts of 64 kB: {worst:.0f} ms CPU")
    right, library = right_readings()
    print(f"jsonrepair's cases read as it expects: {right} of {len(CASES)}, json-repair {library}")
    reused, fresh = asyncio.run(sessions(100, 3 if quick else 10))
    print(f"100 calls over stdio: {reused:.1f} ms a call in one session, {fresh:.0f} ms with a session for each")
    print(
        f"bench tool_call: governance {governed:.0f} µs ({governed / validated:.0f} times its schema check); "
        f"4 kB repaired in {ours:.2f} ms ({theirs / ours:.1f} times faster than json-repair reads it); "
        f"64 kB at worst {worst:.0f} ms; {right}/{len(CASES)} cases against {library}; "
        f"one MCP session {fresh / reused:.0f} times faster than one a call"
    )


if __name__ == "__main__":
    main()
