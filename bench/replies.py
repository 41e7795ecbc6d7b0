"""Reads raw replies of 20 models to the Berkeley function-calling questions and compares the calls with the gold ones.

Run: `python bench/replies.py [--data FOLDER] [--model NAME] [--failures N]`. FOLDER holds `items.jsonl`,
`replies/MODEL.jsonl` and `no_call.jsonl`; without it the small sample in bench/data/bfcl_replies is read, whose README
names source and licence. One reader, `read_tool_calls`, reads all models, without a hint.

- right: every call matches a gold call as BFCL's checker compares them, and none is missing or left over.
- recall: right, of the replies that BFCL's own decoder for the model gets right.
- precision: of the replies to questions that no offered function fits, and in which BFCL's decoder finds no call, the
  share in which the reader finds none either. The names that such a reply mentions are offered as tools, so that a
  mention alone could be taken for a call.
- in a run: what a run does with the replies that are read right, if all tools only read, and if the tools say nothing
  of their effects: it makes the calls, asks for them once more because text surrounds them, or takes them for text.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from closeout.messages import ModelReply, ToolCall, ToolPolicy, ToolSpec
from closeout.parsing.forms import read_tool_calls
from closeout.parsing.read_reply import read_reply
from closeout.parsing.readers import NativeReader
from closeout.parsing.salvage import AMID_TEXT

SAMPLE = Path(__file__).parent / "data" / "bfcl_replies"
JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
PYTHON_TYPES = {"string": str, "integer": int, "float": float, "boolean": bool, "array": list, "tuple": list,
                "dict": dict}  # fmt: skip
MENTION = re.compile(r"[^\W\d][\w.]{2,80}(?=\s?\(|[`'\"])")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SAMPLE, help="folder with items.jsonl, replies/ and no_call.jsonl")
    parser.add_argument("--model", default="", help="only models whose name contains this")
    parser.add_argument("--failures", type=int, default=0, help="print that many wrong replies of each model")
    parser.add_argument("--lost", action="store_true", help="print only failures that BFCL's decoder reads")
    options = parser.parse_args()
    items = {item["id"]: item for item in lines(options.data / "items.jsonl")}
    schemas = {name: [json_schema(function) for function in item["functions"]] for name, item in items.items()}
    paths = [p for p in sorted((options.data / "replies").glob("*.jsonl")) if options.model.lower() in p.stem.lower()]
    rows = [score_model(path, items, schemas, options) for path in paths]
    print(f"\n{'model':44}{'replies':>8}{'right':>8}{'BFCL':>8}{'recall':>8}{'extra':>7}")
    for name, replies, right, theirs, both, _ in rows:
        print(f"{name[:43]:44}{replies:8}{pct(right, replies):>8}{pct(theirs, replies):>8}{pct(both, theirs):>8}"
              f"{right - both:7}")  # fmt: skip
    replies, right, theirs, both, characters = (sum(row[index] for row in rows) for index in range(1, 6))
    silent, found = precision(options)
    runs = {name: in_run(paths, items, schemas, policy) for name, policy in POLICIES.items()}
    for name, done in runs.items():
        shares = ", ".join(f"{what} {pct(count, done.total())}" for what, count in done.most_common())
        print(f"in a run, tools that {name}: {shares}")
    print(
        f"bench replies: right {pct(right, replies)} of {replies} (BFCL's decoders {pct(theirs, replies)}), "
        f"recall {pct(both, theirs)} of {theirs}, precision {pct(silent - found, silent)} of {silent}, "
        f"{characters / 1e6:.1f} MB"
    )


def score_model(path: Path, items: Mapping[str, Any], schemas: Mapping[str, Any], options: Any) -> tuple[Any, ...]:
    replies = right = theirs = both = characters = shown = 0
    for reply in lines(path):
        item = items[reply["id"]]
        text = reply["output"]
        read = read_tool_calls(text, schemas[reply["id"]])
        problem = mismatch(read.calls, item)
        replies += 1
        characters += len(text)
        right += not problem
        theirs += reply["bfcl_valid"]
        both += reply["bfcl_valid"] and not problem
        if problem and shown < options.failures and (reply["bfcl_valid"] or not options.lost):
            shown += 1
            verdict = "BFCL reads it" if reply["bfcl_valid"] else "BFCL fails too"
            print(f"--- {path.stem} {reply['id']} ({verdict}): {problem}\n{text[:600]!r}\n  read: {read.calls}"[:1500])
            print(f"  gold: {item['gold_calls']}"[:400])
    return path.stem, replies, right, theirs, both, characters


POLICIES = {"only read": ToolPolicy(read_only=True), "say nothing": ToolPolicy()}


def in_run(
    paths: Sequence[Path], items: Mapping[str, Any], schemas: Mapping[str, Any], policy: ToolPolicy
) -> Counter[str]:
    """Count what a run does with the replies whose calls are read right."""
    done: Counter[str] = Counter()
    for path in paths:
        for reply in lines(path):
            item, given, text = items[reply["id"]], schemas[reply["id"]], reply["output"]
            if mismatch(read_tool_calls(text, given).calls, item):
                continue
            tools = [ToolSpec(each["name"], each["description"], each["parameters"], policy=policy) for each in given]
            reading = read_reply(ModelReply(text, finish_reason="stop"), NativeReader(tools), tools)
            if reading.calls:
                done["makes other calls" if mismatch(reading.calls, item) else "makes them"] += 1
            else:
                done["asks again" if AMID_TEXT in reading.defects else "takes them for text"] += 1
    return done


def precision(options: Any) -> tuple[int, int]:
    """(replies to questions that no function fits, those in which calls are found)."""
    silent = found = 0
    for reply in lines(options.data / "no_call.jsonl"):
        if not reply["their_no_call"] or options.model.lower() not in reply["model"].lower():
            continue
        silent += 1
        mentioned = sorted(
            {name for name in MENTION.findall(reply["output"].replace("\\_", "_")) if name != "no_function"}
        )
        tools = [{"name": name, "parameters": {"type": "object"}} for name in mentioned]
        calls = read_tool_calls(reply["output"], tools).calls
        found += bool(calls)
        if calls and found <= options.failures:
            print(
                f"--- no call meant? {reply['model']} {reply['id']}: {reply['output'][:500]!r}\n  read: {calls}"[:1200]
            )
    return silent, found


def lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def json_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """A function of BFCL as a tool in the OpenAI shape, its types translated to JSON Schema's."""

    def translated(value: Any) -> Any:
        if isinstance(value, list):
            return [translated(item) for item in value]
        if not isinstance(value, dict):
            return value
        schema = {key: translated(item) for key, item in value.items()}
        if isinstance(schema.get("type"), str):
            kind = JSON_TYPES.get(schema["type"], schema["type"])
            if kind is None:
                schema.pop("type")
            else:
                schema["type"] = kind
        return schema

    parameters = translated(function["parameters"])
    return {"name": function["name"], "description": function["description"], "parameters": parameters}


# ------------------------------------------------------------------------------------------ BFCL's comparison


def mismatch(calls: tuple[ToolCall, ...], item: Mapping[str, Any]) -> str:
    """Why the calls are not the gold ones, "" if they are. The order does not matter."""
    gold = item["gold_calls"]
    if len(calls) != len(gold):
        return f"{len(calls)} calls instead of {len(gold)}"
    functions = {function["name"]: function for function in item["functions"]}
    left = list(gold)
    for call in calls:
        problems = [differs(call, wanted, functions) for wanted in left]
        if "" not in problems:
            return problems[0]
        del left[problems.index("")]
    return ""


def differs(call: ToolCall, wanted: Mapping[str, Any], functions: Mapping[str, Any]) -> str:
    name, accepted = wanted["name"], wanted["args"]
    known = call.name in functions and (call.name == name or call.name.endswith(f".{name}"))
    if not known:  # one gold call leaves the namespace out
        return f"the name {call.name!r} instead of {name!r}"
    parameters = functions[call.name]["parameters"]
    if not isinstance(call.arguments, Mapping):
        return "the arguments are no object"
    for key in parameters.get("required", ()):
        if key not in call.arguments:
            return f"{key!r} is missing"
    for key, value in call.arguments.items():
        schema = parameters["properties"].get(key)
        if schema is None or key not in accepted:
            return f"{key!r} is not expected"
        if value in ([], {}, "") and "" in accepted[key]:
            continue
        if not any(same(value, option, schema["type"]) for option in accepted[key]):
            return f"{key}={value!r} instead of one of {accepted[key]!r}"
    missing = [key for key, options in accepted.items() if key not in call.arguments and "" not in options]
    return f"{missing[0]!r} is missing" if missing else ""


def same(value: Any, option: Any, kind: str) -> bool:
    """Whether a value is an accepted one: strings up to punctuation and case, integers for floats, lists in order."""
    if kind == "float" and type(value) is int:
        value = float(value)
    if isinstance(option, str):
        return isinstance(value, str) and plain(value) == plain(option)
    if isinstance(option, list):
        return isinstance(value, list | tuple) and len(value) == len(option) and all(map(alike, value, option))
    if isinstance(option, dict):
        return isinstance(value, dict) and set(value) <= set(option) and all(
            any(alike(value[key], one) for one in options) if key in value else "" in options
            for key, options in ((key, ones if isinstance(ones, list) else [ones]) for key, ones in option.items())
        )  # fmt: skip
    expected = PYTHON_TYPES.get(kind)
    if expected is not None and type(value) is not expected and not isinstance(option, type(value)):
        return False
    return (
        type(value) is not bool and type(option) is not bool and value == option
        if kind != "boolean"
        else (type(value) is bool and value == option)
    )


def alike(value: Any, option: Any) -> bool:
    if isinstance(option, str):
        return isinstance(value, str) and plain(value) == plain(option)
    if isinstance(option, list):
        return isinstance(value, list | tuple) and len(value) == len(option) and all(map(alike, value, option))
    if isinstance(option, dict):
        return same(value, option, "dict")
    return isinstance(value, bool) == isinstance(option, bool) and value == option


def plain(text: str) -> str:
    return re.sub(r"[ \,\.\/\-\_\*\^]", "", text).lower().replace("'", '"')


def pct(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


if __name__ == "__main__":
    main()
