"""Reads the replies in bench/data/tool_parsers and compares with what three servers' own tests assert. No network.

Run: `python bench/tool_call_forms.py [--failures] [--hint dialect|family|none]`. Content is compared stripped. The
router's cases are read without tools, as its tests read them. The baseline is what an agent does without this reader:
JSON in `<tool_call>` tags, or the whole text as JSON. LEFT_OUT lists the cases that are not about reading.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from closeout.messages import ToolCall
from closeout.parsing.forms import ToolCallsRead, read_tool_calls

DATA = Path(__file__).parent / "data" / "tool_parsers"
UNASSERTED = "$unasserted"

EXPLAINED = {
    "llamacpp-2377": "the prompt opened <think>, the model does it again: the second tag is asserted as thought",
    "sglang-edge_cases-test_multiple_formats_in_text-1": "JSON amid prose, and no tool of that name is known",
    "sglang-qwen-test_qwen_incomplete_tags-2": "a call without its opening tag: read as bare JSON unless hinted",
    "vllm-230": "the server drops the text around a call; here the text in front of it is content",
    "vllm-253": "renames the tools of one benchmark; an alias is declared with a tool, not in a reader",
    "vllm-254": "renames the tools of one benchmark; an alias is declared with a tool, not in a reader",
    **{
        f"vllm-{number}": "Glimmer ignores the types that tools declare; only its own name tells it from Muse"
        for number in (396, 400, 403, 404, 408)
    },
    "vllm-480": "a call without a name, and not JSON: nothing can run it",
    "vllm-528": "a grammar without hyphens in names; the tool exists under that name, so its call is read",
}

# Cases that assert a switch of the server, not a reading of the text.
LEFT_OUT = {
    "vllm-129": "the server was configured for another of the family's formats",
    "vllm-130": "the server was configured for another of the family's formats",
    "vllm-425": "the reading of calls was switched off",
    "vllm-483": "the request forbade calls (tool_choice none)",
    "vllm-499": "the reading of calls was switched off",
    "sglang-mixed_edge_cases-test_boundary_cases_for_extraction-3": "the asserted name belongs to another input",
}


@dataclass(frozen=True)
class Case:
    id: str
    source: str
    family: str
    dialect: str
    text: str
    tools: list[Any] | None
    options: dict[str, bool]  # what the request asked of the server: reasoning apart, the answer as JSON
    check: Callable[[ToolCallsRead], list[str]] = field(repr=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failures", action="store_true", help="print every case that differs")
    parser.add_argument("--hint", choices=["dialect", "family", "none"], help="only this hint")
    options = parser.parse_args()
    cases = [case for case in all_cases() if case.id not in LEFT_OUT]
    rates = {hint: score(cases, hint) for hint in ([options.hint] if options.hint else ["dialect", "family", "none"])}
    shown = next(iter(rates))
    table(cases, rates[shown])
    for hint, failures in rates.items():
        unexplained = [name for name in failures if name not in EXPLAINED]
        print(f"\nhint={hint}: {len(cases) - len(failures)}/{len(cases)}, not as asserted:")
        for name, problems in failures.items():
            print(f"  {name}: {EXPLAINED.get(name, 'differs: ' + problems[0][:150])}")
            if options.failures:
                print("".join(f"      {problem}\n" for problem in problems), end="")
        if unexplained:
            print(f"  ({len(unexplained)} without an explanation)")
    baseline = score(cases, "none", naive)
    rate = ", ".join(f"{hint} hint {percent(cases, failures)}" for hint, failures in rates.items())
    print(f"bench tool_call_forms: {rate} of {len(cases)} asserted complete cases; baseline {percent(cases, baseline)}")


def percent(cases: list[Case], failures: dict[str, list[str]]) -> str:
    return f"{100 * (1 - len(failures) / len(cases)):.1f} %"


def score(cases: list[Case], hint: str, read: Callable[..., ToolCallsRead] = read_tool_calls) -> dict[str, list[str]]:
    """Problems by case, of the cases that have any."""
    failures = {}
    for case in cases:
        own = "muse_glimmer" if case.dialect == "MuseGlimmerToolParser" else case.family  # a family of its own
        family = {"dialect": case.dialect, "family": own, "none": None}[hint]
        problems = case.check(read(case.text, case.tools, family, **case.options))
        if problems:
            failures[case.id] = problems
    return failures


def table(cases: list[Case], failures: dict[str, list[str]]) -> None:
    total, passed = Counter(), Counter()
    for case in cases:
        total[case.family] += 1
        passed[case.family] += case.id not in failures
    print("family                        passed")
    for family, count in sorted(total.items()):
        print(f"{family:30}{passed[family]:3} / {count}")


def naive(text: str, tools: Any = None, family: str | None = None, **options: bool) -> ToolCallsRead:
    """The baseline: `<tool_call>` JSON, or the whole text as one call."""
    bodies = re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL) or [text]
    calls = []
    for body in bodies:
        try:
            value = json.loads(body)
            calls.append(ToolCall(value["name"], value.get("arguments") or value.get("parameters") or {}))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    before = text.partition("<tool_call>")[0] if calls else text
    return ToolCallsRead(tuple(calls), before.strip() if "<tool_call>" in text or not calls else "")


# ------------------------------------------------------------------------------------------------ the three sources


def rows(name: str) -> Iterator[dict[str, Any]]:
    with (DATA / name).open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def all_cases() -> Iterator[Case]:
    for row in rows("vllm_tool_parsers.jsonl"):
        if row["asserted"]:
            yield Case(row["id"], "vllm", row["family"], row["dialect"], row["input"], tools_of(row), {}, vllm(row))
    for row in rows("llama_cpp_test_chat.jsonl"):
        if not row["partial"] and not row["prefill"]:
            split = row.get("reasoning_format", "COMMON_REASONING_FORMAT_NONE") != "COMMON_REASONING_FORMAT_NONE"
            options = {"split": split, "unfence": "json_schema" in row}
            check = llama(row)
            yield Case(
                row["id"], "llama.cpp", row["family"], row["dialect"], row["input"], tools_of(row), options, check
            )
    for row in rows("sglang_router.jsonl"):
        yield Case(row["id"], "sglang", row["family"], row["dialect"], row["input"], None, {}, sglang(row))


def tools_of(row: dict[str, Any]) -> list[Any] | None:
    """The row's tools; some are [name, description, schema text], as the C++ source has them."""
    tools = []
    for tool in row.get("tools") or ():
        if isinstance(tool, list):
            tool = {"name": tool[0], "description": tool[1], "parameters": json.loads(tool[2])}
        elif isinstance(tool, str):
            name = re.search(r"name='([^']+)'", tool)
            tool = {"name": name[1] if name else "", "parameters": {}}
        tools.append(tool)
    return tools or None


def vllm(row: dict[str, Any]) -> Callable[[ToolCallsRead], list[str]]:
    def check(read: ToolCallsRead) -> list[str]:
        problems = []
        if row["n_calls"] is not None and len(read.calls) != row["n_calls"]:
            problems.append(f"{len(read.calls)} calls, asserted {row['n_calls']}: {read.calls}")
        if row["min_calls"] is not None and len(read.calls) < row["min_calls"]:
            problems.append(f"{len(read.calls)} calls, asserted at least {row['min_calls']}")
        for index, wanted in row["calls"].items():
            problems += call_differs(read, int(index), wanted)
        elsewhere = any(path.startswith("content") for path, _, _ in row["other"])
        if row["content"] != UNASSERTED and not (elsewhere and row["content"] == ""):
            problems += differs("content", read.content, row["content"] or "")
        for path, relation, value in row["other"]:
            problems += other(read, path, relation, value)
        return problems

    return check


def call_differs(read: ToolCallsRead, index: int, wanted: dict[str, Any]) -> list[str]:
    if index >= len(read.calls):
        return [f"no call {index}"]
    call, problems = read.calls[index], []
    if "name" in wanted:
        problems += differs("name", call.name, wanted["name"])
    if "arguments" in wanted:
        problems += differs("arguments", call.arguments, wanted["arguments"])
    for path, value in wanted.get("args_subset", {}).items():
        problems += differs(path, follow(call.arguments, re.findall(r"\[([^\]]+)\]", path)), value)
    return problems


def other(read: ToolCallsRead, path: str, relation: str, value: Any) -> list[str]:
    """The assertions about content, reasoning, argument types and whole lists of calls."""
    if path == "tool_calls" and relation == "eq":
        wanted = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in value]
        return differs("calls", [(call.name, call.arguments) for call in read.calls], wanted)
    if path == "tool_calls" and relation == "is" and value is None:
        return differs("calls", len(read.calls), 0)
    found = re.match(r"tool_calls/\[(\d+)\]/function/arguments(?:/\$json)?(?:/\[(\w+)\])?(/\$type)?\Z", path)
    if found and int(found[1]) < len(read.calls):
        arguments = read.calls[int(found[1])].arguments
        if relation in ("contains", "not_contains") and isinstance(value, str):
            inside = value in json.dumps(arguments, ensure_ascii=False)
            return [] if inside == (relation == "contains") else [f"{path} {relation} {value!r}: {arguments}"]
        item = follow(arguments, [found[2]]) if found[2] else arguments
        if relation == "isinstance":
            return differs(path, type(item).__name__, value)
        if relation == "is" and found[3]:
            return differs(path, f"<class '{type(item).__name__}'>", value["$repr"])
        return differs(path, item, value) if relation in ("is", "eq") else []
    name = path.split("/", 1)[0]
    if name in ("content", "reasoning") and isinstance(value, str):
        text = getattr(read, name)
        if relation == "contains":
            return [] if value in text else [f"{value!r} not in {text!r}"]
        if relation == "not_contains":
            return [] if value not in text else [f"{value!r} in {text!r}"]
        return differs(name, text, value) if relation == "eq" else []
    return []


def llama(row: dict[str, Any]) -> Callable[[ToolCallsRead], list[str]]:
    def check(read: ToolCallsRead) -> list[str]:
        calls = [(call.name, call.arguments) for call in read.calls]
        wanted = [(call["name"], call["arguments"]) for call in row["expected_calls"]]
        problems = differs("calls", calls, wanted)
        problems += differs("content", read.content, row["expected_content"])
        return problems + differs("reasoning", read.reasoning, row["expected_reasoning"])

    return check


def sglang(row: dict[str, Any]) -> Callable[[ToolCallsRead], list[str]]:
    def check(read: ToolCallsRead) -> list[str]:
        problems = []
        if row["n_calls"] is not None:
            problems += differs("number of calls", len(read.calls), row["n_calls"])
        for index, name in row["names"].items():
            problems += call_differs(read, int(index), {"name": name})
        for index, wanted in row["args"].items():
            if int(index) >= len(read.calls):
                problems.append(f"no call {index}")
                continue
            for path, value in wanted.items():
                problems += differs(path, follow(read.calls[int(index)].arguments, path.split("/")), value)
        if row["expected_content"] is not None:
            problems += differs("content", read.content, row["expected_content"])
        return problems

    return check


def follow(value: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            value = value[0].get(part)
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value


def differs(what: str, found: Any, wanted: Any) -> list[str]:
    if isinstance(found, str) and isinstance(wanted, str):
        found, wanted = found.strip(), wanted.strip()
    same = found == wanted and isinstance(found, bool) == isinstance(wanted, bool)
    return [] if same else [f"{what}: {found!r}, asserted {wanted!r}"]


if __name__ == "__main__":
    main()
