"""Runs a real agent on hostile replies and hostile tool results. No run may end with an error inside it.

A case is drawn by hypothesis: replies, how they are streamed, a dialect, a contract, the values that tools return and
the exceptions that they raise. The run is recorded; it must end by itself, its result must be JSON, and resuming it
must give the same result without asking the model again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drawn_cases import check_drawn
from hostile_values import VALUES, Unreadable, broken
from hypothesis import strategies as st

from call_writers import WRITERS
from closeout import (
    Agent,
    Boxed,
    Capabilities,
    Choice,
    Json,
    ModelReply,
    Number,
    OneOf,
    StreamHandler,
    Tagged,
    ToolCall,
    Usage,
    Yaml,
    tool,
)
from closeout.dialects.protocol import DIALECTS
from closeout.journal.events import ModelReplied, Noted
from closeout.journal.store import open_store
from closeout.messages import FINISHED
from closeout.models.base import BaseClient
from closeout.parsing.forms.registry import MARKED
from closeout.testing import ScriptedClient

DIALECT_NAMES = (*DIALECTS, "auto")
CONTRACTS: tuple[Callable[[], Any], ...] = (
    Boxed,
    Number,
    Json,
    Yaml,
    lambda: Choice(["A", "B"]),
    lambda: Tagged("answer"),
    lambda: OneOf(Number(), Boxed()),
    lambda: Json({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
)
ERRORS: tuple[Callable[[], BaseException], ...] = (
    Unreadable,
    lambda: ExceptionGroup("several", [ValueError("a"), Unreadable()]),
    lambda: ValueError("\ud83d"),
    lambda: OSError(28, "no space"),
    RecursionError,
    MemoryError,
    TimeoutError,
    StopAsyncIteration,
    asyncio.CancelledError,
    lambda: KeyError(broken("__repr__")),
)

# ------------------------------------------------------------------------------------------------ replies

_ARGUMENTS = st.dictionaries(
    st.sampled_from(["q", "n", "rows", "Q", "query", "", "\ud83d", "a b", "__class__"]),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)
_NAMES = st.sampled_from(["give", "fail", "read_result", "Give", "giv", "", "none", "no such tool", "\ud83d", "give\n"])
_MARKS = sorted({mark for form in MARKED for mark in form.markers})
_PIECES = st.sampled_from(
    [
        *_MARKS,
        *(
            "<think>",
            "</think>",
            "</s>",
            "```",
            "```json\n",
            "\n",
            "\n\n",
            " ",
            '"',
            "\\",
            "{",
            "}",
            "[",
            "]",
            "<",
            "</",
        ),
        *(
            "Thought: ",
            "Action: give\n",
            "Action Input: ",
            "Observation: ",
            "Final Answer: ",
            "\\boxed{",
            "}",
            "\\boxed",
        ),
        *(
            '{"name": "give", "arguments": {',
            '{"action": "give", "action_input": ',
            "00501",
            "-00",
            "1e999",
            "NaN",
            "0x1",
        ),
        *(
            "\ud83d",
            "\ude00",
            "\0",
            "\x1b[31m",
            "\u202e",
            "查",
            "🦀",
            "---\n",
            "a: &a [*a]",
            "I'll call it now.\n",
            "A",
            "12",
        ),
        *("<answer>", "</answer>", "<use_mcp_tool>", "<server_name>", "<tool_name>give</tool_name>", "<arguments>"),
        *(" " * 3000, "-" * 3000, "\n" * 3000, "ab" * 2000, "[" * 2000, '{"a":' * 1000),
    ]
)


@st.composite
def _written_calls(draw: st.DrawFn) -> str:
    writer = WRITERS[draw(st.sampled_from(sorted(WRITERS)))]
    text = writer.write([(draw(_NAMES), draw(_ARGUMENTS))])
    if draw(st.booleans()):
        at, length = draw(st.integers(0, len(text))), draw(st.integers(0, 20))
        text = text[:at] + text[at + length :]
    return text


_ARGUMENT_TEXTS = st.one_of(
    _ARGUMENTS.map(lambda arguments: json.dumps(arguments, default=str)),
    st.lists(_PIECES | st.text(max_size=6), max_size=5).map("".join),
    st.sampled_from(["", "null", "{}", "[]", '""', "00501", "-00", '{"q": "' + "x" * 9000, '{"q":1}' * 50]),
)
_NATIVE = st.builds(
    lambda name, text, call_id: ToolCall(name, text, call_id, text=text),
    _NAMES,
    _ARGUMENT_TEXTS,
    st.sampled_from(["", "c1", "c1", "\ud83d", "x" * 300]),
)
REPLIES = st.builds(
    ModelReply,
    st.lists(_PIECES | _written_calls() | st.text(max_size=8), max_size=6).map("".join),
    st.sampled_from(["", "", "Hm.", "\ud83d", "<think>", "<tool_call>{}</tool_call>"]),
    st.lists(_NATIVE, max_size=3).map(tuple),
    finish_reason=st.sampled_from(["stop", "stop", "length", "tool_calls", "content_filter", "", "odd"]),
    usage=st.sampled_from([Usage(10, 2, requests=1), Usage(requests=1)]),
)


# ------------------------------------------------------------------------------------------------ cases


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run: its replies (the last one is repeated), and everything that reads them."""

    replies: list[ModelReply]
    value: Callable[[], Any]
    error: Callable[[], BaseException]
    dialect: str
    contract: Callable[[], Any]
    streamed: bool
    pieces: list[int]
    stops: bool
    native: bool


CASES = st.builds(
    Case,
    replies=st.lists(REPLIES, min_size=1, max_size=4),
    value=VALUES,
    error=st.sampled_from(ERRORS),
    dialect=st.sampled_from(DIALECT_NAMES),
    contract=st.sampled_from(CONTRACTS),
    streamed=st.booleans(),
    pieces=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    stops=st.booleans(),
    native=st.booleans(),
)


def _agent(case: Case, home: Path) -> tuple[Agent[Any], BaseClient]:
    @tool(repeatable=True)
    async def give(q: str = "", n: int = 0, rows: list[Any] | None = None) -> Any:
        """Give something."""
        return case.value()

    @tool(repeatable=True, destructive=True)
    async def fail(q: str) -> Any:
        """Fail."""
        raise case.error()

    can = Capabilities(
        native_tools=case.native or case.dialect == "function_call",
        completions=True,
        stop=case.stops,
        known=case.dialect != "auto",
    )
    replies = iter(case.replies)
    client = ScriptedClient(lambda view: next(replies, case.replies[-1]), capabilities=can, chunks=case.pieces)
    agent = Agent(
        client,
        [give, fail],
        dialect=case.dialect,
        answer=case.contract(),
        stream=case.streamed,
        home=home,
        max_turns=4,
    )
    return agent, client


async def problems(case: Case, home: Path) -> list[str]:
    """Run a case and return what is wrong with how it ended."""
    agent, _ = _agent(case, home)
    told: list[str] = []
    handler = StreamHandler(lambda event: told.append(StreamHandler.sse(event)))
    result = await agent.run("What?", listeners=[handler])
    found = _errors_inside(home, result.run_id)
    # A server that ends none of its closing replies has failed; nothing else may. A stream may mix whole calls up.
    arrived = [row.event for row in open_store(home).rows(result.run_id) if isinstance(row.event, ModelReplied)]
    unfinished = result.error_kind == "ServerFailed" and arrived[-1].finish_reason not in FINISHED
    if result.status == "failed" and not unfinished:
        found.append(f"the run failed: {result.error_kind}: {result.error}")
    json.dumps(result.to_dict())
    assert result.task_log is not None
    if handler.dropped:
        found.append(f"{handler.dropped} events were not streamed")
    again, client = _agent(case, home)
    resumed = await again.resume(result.run_id)
    if client.requests:  # type: ignore[attr-defined]
        found.append("resuming a finished run asks the model again")
    if (resumed.status, resumed.answer) != (result.status, result.answer):
        found.append(f"resumed to {resumed.status} {resumed.answer!r}, not {result.status} {result.answer!r}")
    return found


def _errors_inside(home: Path, run_id: str) -> list[str]:
    notes = [row.event for row in open_store(home).rows(run_id) if isinstance(row.event, Noted)]
    return [f"{note.message}\n{note.metadata['traceback']}" for note in notes if note.name == "Internal error"]


def check(home: Path, cases: int, number: int) -> None:
    """Run so many cases, drawn with this seed. The smallest case that goes wrong is the AssertionError."""
    check_drawn(CASES, lambda case: asyncio.run(problems(case, home)), cases=cases, number=number)
