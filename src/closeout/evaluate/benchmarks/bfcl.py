"""The benchmark `bfcl`: the Berkeley Function Calling Leaderboard v4, judged by its own checkers.

Tasks, simulated backends and checkers are those of the installed package `bfcl-eval`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from closeout.errors import UsageError
from closeout.evaluate.benchmarks.benchmark import Benchmark
from closeout.evaluate.benchmarks.bfcl_package import Backends, check_calls, check_conversation, read_lines
from closeout.evaluate.scores import Attempted, Score
from closeout.evaluate.tasks import EvalTask
from closeout.journal.events import ToolStarted
from closeout.messages import ToolPolicy
from closeout.results.tool_output import ToolOutput
from closeout.tools.run_context import RunContext
from closeout.tools.tool import Tool

__all__ = ["CATEGORIES", "make_benchmark"]

NON_LIVE = ("simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple")
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
WITHOUT_ANSWER = ("irrelevance", "live_irrelevance", "live_relevance")  # Judged only by the presence of a call.
MULTI_TURN = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
GROUPS = {"single_turn": (*NON_LIVE, *LIVE, *WITHOUT_ANSWER), "multi_turn": MULTI_TURN}
CATEGORIES = (*GROUPS["single_turn"], *MULTI_TURN)

ONE_REQUEST = """\
Call the functions that the request needs, with the values that it gives. If no function fits the request, or a value
that a function needs is missing, call none and say so. After the calls, answer: done."""
CONVERSATION = """\
The task is the first request of a user. Do what it asks with the functions, then call answer_user: it returns the next
request. If a request cannot be done with these functions, or a value is missing, say so with answer_user. When the user
has no more requests, answer: done."""
MORE_FUNCTIONS = "There are more functions now. Can you do it with them?"
GOODBYE = "The user has no more requests. Answer: done."

_TYPES = {
    **dict.fromkeys(("string", "any", "char", "String"), "string"),
    **dict.fromkeys(("integer", "byte", "short", "long", "Bigint"), "integer"),
    **dict.fromkeys(("number", "float", "double"), "number"),
    **dict.fromkeys(("boolean", "bool", "Boolean"), "boolean"),
    **dict.fromkeys(("array", "list", "tuple", "ArrayList", "Array", "Set", "Stack", "Queue"), "array"),
    **dict.fromkeys(("dict", "object", "HashMap", "Hashtable"), "object"),
}


def make_benchmark(names: str) -> Benchmark:
    """Return the benchmark of categories, or of the groups `single_turn` and `multi_turn`, separated by commas.

    Raises:
        UsageError: There is no such category, or both kinds are named: they need different instructions.
    """
    chosen = [each for name in names.split(",") for each in GROUPS.get(name, (name,))]
    unknown = [name for name in chosen if name not in CATEGORIES]
    several = [name in MULTI_TURN for name in chosen]
    if unknown or len(set(several)) > 1:
        raise UsageError(
            f"bfcl takes categories of one kind, such as bfcl:simple_python,parallel, got '{names}'. Single turn: "
            f"{', '.join(GROUPS['single_turn'])}, or single_turn for all. Several turns: {', '.join(MULTI_TURN)}, or "
            "multi_turn for all."
        )
    return Benchmark(
        about=f"BFCL v4, {', '.join(chosen)}",
        tasks=lambda: [task for category in chosen for task in _tasks(category)],
        scorer=bfcl,
        tools=tools,
        instructions=CONVERSATION if several[0] else ONE_REQUEST,
        # Backends have one state: calls of a reply run one after the other, and there is no second attempt.
        settings={"agent.max_parallel_calls": 1, "agent.context_compress_limit": 0},
    )


def _tasks(category: str) -> list[EvalTask]:
    answers = [] if category in WITHOUT_ANSWER else read_lines(f"possible_answer/BFCL_v4_{category}.json")
    right = {answer["id"]: answer["ground_truth"] for answer in answers}
    return [
        EvalTask(
            id=entry["id"],
            question=_text(entry["question"][0]),
            answer=right.get(entry["id"]),
            metadata={"category": category, "entry": entry},
        )
        for entry in read_lines(f"BFCL_v4_{category}.json")
    ]


def _text(messages: Sequence[Mapping[str, str]]) -> str:
    roles = any(message["role"] == "assistant" for message in messages)
    return "\n\n".join(f"{m['role']}: {m['content']}" if roles else m["content"] for m in messages)


# ------------------------------------------------------------------------------------------------ tools


def tools(task: EvalTask) -> Sequence[Any]:
    """Return the functions of a task: stubs that accept every call, or the methods of its simulated backends."""
    entry, category = task.metadata["entry"], task.metadata["category"]
    if category in MULTI_TURN:
        return _simulated_tools(entry, category)
    language = {"simple_java": "Java", "simple_javascript": "JavaScript"}.get(category, "")
    policy = ToolPolicy(repeatable=True, read_only=True)
    return [
        Tool(
            lambda **_: "Accepted.",
            name=function["name"].replace(".", "_"),
            description=function["description"],
            parameters=_parameters(function["parameters"], language),
            policy=policy,
            inline=True,
        )
        for function in entry["function"]
    ]


def _parameters(described: Mapping[str, Any], language: str = "") -> dict[str, Any]:
    """Return a JSON Schema for a function's parameters. Java's and JavaScript's values are strings with their code."""
    properties = {
        name: _code(parameter, language) if language else _schema(parameter)
        for name, parameter in described["properties"].items()
    }
    return {"type": "object", "properties": properties, "required": list(described.get("required", ()))}


def _schema(described: Mapping[str, Any]) -> dict[str, Any]:
    kind = _TYPES.get(described.get("type", ""), "string")
    found = {
        "type": kind,
        **{name: described[name] for name in ("description", "enum", "default") if name in described},
    }
    if kind == "array" and "items" in described:
        found["items"] = _schema(described["items"])
    if kind == "object" and "properties" in described:
        required = described.get("required")
        found["properties"] = {name: _schema(each) for name, each in described["properties"].items()}
        found["required"] = required if isinstance(required, list) else []
    return found


def _code(described: Mapping[str, Any], language: str) -> dict[str, Any]:
    kind, items = described.get("type") or "any", described.get("items")
    parts = [described.get("description", ""), f"The {language} code of a value of type {kind}, as a string."]
    parts += [f"Its items are of type {items['type']}."] if items else []
    parts += [f"Its entries: {json.dumps(described['properties'])}."] if "properties" in described else []
    return {"type": "string", "description": " ".join(filter(None, parts))}


def _simulated_tools(entry: Mapping[str, Any], category: str) -> list[Tool[..., Any]]:
    """Return the methods of the backends of a task, and the scripted user.

    A run that another process resumes has its earlier calls in its state: they are repeated in new backends first.
    """
    # A turn without a request brings functions that were missing until then.
    requests = [_text(messages) or MORE_FUNCTIONS for messages in entry["question"][1:]]
    later = {name: _since(turn) for turn, names in entry.get("missed_function", {}).items() for name in names}
    backends = Backends(entry, long_context="long_context" in category)
    done: set[str] = set()
    in_turn = asyncio.Lock()

    def method(name: str) -> Any:
        async def call(context: RunContext, **arguments: Any) -> ToolOutput:
            place = f"call {context.agent} {context.handle}"  # each program numbers its own handles
            async with in_turn:
                earlier = [each for each in context.state if each.startswith("call ") and each not in done]
                for each in earlier:
                    backends.call(*context.state[each])
                result = backends.call(name, arguments)
                done.update((*earlier, place))
            return ToolOutput(result=result, state_update={place: [name, arguments]})

        return call

    async def answer_user(message: str, context: RunContext) -> ToolOutput:
        answered = int(context.state.get("answered", 0))
        request = requests[answered] if answered < len(requests) else GOODBYE
        return ToolOutput(result=request, state_update={"answered": answered + 1, _since(answered + 1): True})

    policy = ToolPolicy(repeatable=True, accept_empty=True, on_crash="rerun")
    told = "Answer the user's request, and get the next one."
    return [
        Tool(answer_user, description=told, policy=policy),
        *(
            Tool(
                method(function["name"]),
                name=function["name"],
                description=function["description"],
                parameters=_parameters(function["parameters"]),
                policy=replace(policy, needs_state=later.get(function["name"])),
            )
            for function in backends.functions
        ),
    ]


def _since(turn: int | str) -> str:
    """The name in the state of a run whose conversation has come to a turn, counted from 0."""
    return f"turn {turn}"


# ------------------------------------------------------------------------------------------------ the verdict


def bfcl(attempt: Attempted) -> Score:
    """Score a trial by the calls that were made in it."""
    task, category = attempt.task, attempt.task.metadata["category"]
    events = [row.event for row in attempt.read_rows() if isinstance(row.event, ToolStarted)]
    calls = [(event.name, json.loads(event.arguments)) for event in events]
    if category in WITHOUT_ANSWER:
        right = bool(calls) == category.endswith("_relevance")
        return Score(float(right), right, f"Called: {', '.join(name for name, _ in calls) or 'nothing'}.")
    if category not in MULTI_TURN:
        return _score(check_calls(task.metadata["entry"], calls, task.answer, category))
    turns: list[list[tuple[str, Any]]] = [[]]
    for name, arguments in calls:
        if name != "answer_user":
            turns[-1].append((name, arguments))
        elif len(turns) < len(task.answer):
            turns.append([])
    if len(turns) < len(task.answer):
        return Score(0.0, False, f"The conversation ended in turn {len(turns)} of {len(task.answer)}.")
    return _score(check_conversation(task.metadata["entry"], turns, task.answer, category))


def _score(problem: str) -> Score:
    return Score(float(not problem), not problem, problem or "As BFCL's checker expects.")
