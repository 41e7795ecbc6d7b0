"""Measures how the time of every public parser grows with the length of hostile text, and that of resuming with events.

A reader takes a text. A pattern is (head, body, tail): the body is repeated up to a length. The exponent is the slope,
on logarithmic scales, between the CPU time for a length and for a sixteenth of it. The short text is read sixteen
times for each time that the long one is, so that what else the machine does slows both alike. A figure over the limit
is measured again in several rounds, then on longer texts: a real power law shows again, noise does not.

The growth of resuming is measured in function calls, not in time: their number does not depend on the machine.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import documents
from endless import endless_agent

from closeout import (
    Boxed,
    Choice,
    CloseoutError,
    CotAgentOutputParser,
    Delta,
    Json,
    ModelReply,
    Number,
    Tagged,
    ToolOutput,
    ToolPolicy,
    ToolSpec,
    Yaml,
    decode,
    encode,
    extract_boxed,
    format_observation,
    grade,
    read_tool_calls,
    repair_arguments,
    repair_json,
    salvage,
)
from closeout.dialects.protocol import DIALECTS, get_dialect
from closeout.journal.store import close_stores
from closeout.messages import ToolCall
from closeout.parsing.forms import FormDetector
from closeout.parsing.forms.registry import MARKED
from closeout.parsing.reasoning import split_thinking
from closeout.results.encoding import FORMATS
from closeout.results.escape import escape_markers
from closeout.results.html_text import html_title, main_text, plain_text
from closeout.tools.builtin.scrape import split_text

LIMIT = 1.3
RANGE = 16  # the longest text is so many times the shortest
NEGLIGIBLE = 0.004  # seconds for the longest text: too fast to measure a slope, and too fast to matter
SCHEMA = {
    "type": "object",
    "properties": {"q": {"type": "string"}, "n": {"type": "integer"}, "rows": {"type": "array"}},
}
TOOLS = [ToolSpec("f", "", SCHEMA), ToolSpec("wipe", "", SCHEMA, policy=ToolPolicy(destructive=True))]

Pattern = tuple[str, str, str]
Reader = Callable[[str], Any]


class Growth(NamedTuple):
    """A reader, a pattern, and the exponent that was measured, with the CPU seconds for the longest text."""

    reader: str
    pattern: Pattern
    exponent: float
    length: int
    seconds: float


# ------------------------------------------------------------------------------------------------ readers


def _streamed(dialect: str) -> Reader:
    def read(text: str) -> None:
        reader = get_dialect(dialect).reader(TOOLS)
        for at in range(0, len(text), 64):
            reader.feed(Delta("text", text[at : at + 64]))
        reader.close(ModelReply(text))

    return read


def _detect(text: str) -> None:
    detector = FormDetector()
    for at in range(0, len(text), 16):
        detector.feed(text[at : at + 16])
    detector.close()


def _parse(text: str) -> None:
    parser = CotAgentOutputParser()
    for at in range(0, len(text), 16):
        parser.feed(text[at : at + 16])
    parser.close("stop")


def _native(text: str) -> None:
    reply = ModelReply("", tool_calls=(ToolCall("f", text, "c1", text=text),))
    get_dialect("function_call").reader(TOOLS).close(reply)


DOCUMENTS: dict[str, Reader] = {
    "Word paragraphs": documents.read_docx_paragraphs,
    "Word rows": documents.read_docx_rows,
    "Word cells": documents.read_docx_cells,
    "Excel": documents.read_xlsx,
    "PDF": documents.read_pdf,
}
READERS: dict[str, Reader] = {
    "read_tool_calls": lambda text: read_tool_calls(text, TOOLS),
    "salvage": lambda text: salvage(text, tools=TOOLS),
    "FormDetector": _detect,
    "CotAgentOutputParser": _parse,
    **{f"{name} reader": _streamed(name) for name in DIALECTS},
    "native arguments": _native,
    "repair_json": repair_json,
    "repair_arguments": lambda text: repair_arguments(text, SCHEMA),
    "repair_arguments, one value": lambda text: repair_arguments({"rows": text, "n": text}, SCHEMA),
    "extract_boxed": extract_boxed,
    "split_thinking": split_thinking,
    "escape_markers": escape_markers,
    "Boxed": lambda text: Boxed().read(text),
    "Tagged": lambda text: Tagged("answer").read(text),
    "Number": lambda text: Number().read(text),
    "Choice": lambda text: Choice(["A", "B"]).read(text),
    "Json": lambda text: Json().read(text),
    "Yaml": lambda text: Yaml().read(text),
    "encode": encode,
    "encode, budget": lambda text: encode([text, text[:99]], budget=100),
    "encode, lines": lambda text: encode([{"a": part} for part in text.split("\n")]),
    "format_observation": lambda text: format_observation(ToolOutput(result=text)),
    "grade": lambda text: grade("What?", "12", text),
    "plain_text": plain_text,
    "main_text": main_text,
    "html_title": html_title,
    "split_text": split_text,
    "HTML file": documents.read_html_file,
    **DOCUMENTS,
    **{f"decode {name}": (lambda text, name=name: decode(text, name)) for name in FORMATS},
}

# ------------------------------------------------------------------------------------------------ patterns

PIECES = (
    "", " ", "\n", "\t", "a", "0", "9", "-", "_", ".", ",", ":", "|", "\\", "/", "'", '"', "`", "#", "*", ">", "<", "&",
    "(", ")", "[", "]", "{", "}", "$", "😀", "é", "\ud800", "\0", "\r\n", "\u2028",
    "```\n", "```json\n", "~~~", "`a`", "> a\n", "- a\n", "1. a\n", "a: b\n", "- - ", "a:\n ", "| a | b |\n", "|-|-|\n",
    "a,b\n", '"a",', '""', "[1],", "[[", "]]", '{"a":', '{"a":1}', '{"a":1},', "{'a':", "{a:", '{"name":"f"', '\\"',
    "\\\\",
    '{"name": "f", "arguments": {"q": "x"}}\n', '{"action": "f", "action_input": ',
    '{"action": "f", "action_input": 1} no\n',
    "f(q='x')\n", "f(", "[f(q=", "[f(q='x'),", "f\n{", "1e9", "0.", "+1 ", "1,000", "1/2 ", "nan ", "None,", "// x\n",
    "/* ",
    "\\boxed{", "\\boxed{}", "\\boxed", "\\text{", "\\frac{1}{", "\\left(", "{{", "}}", "The answer is ",
    "Answer: A\n", "(A)",
    "<", "</", "<a>", "</a>", "<a ", "<a b='", "<!--", "<![CDATA[", "]]>", "&amp;", "&lt;", "&#", "<answer>",
    "</answer>",
    "<think>", "</think>", "<think></think>", "<tool_call>", "</tool_call>", "<function=f>", "<parameter=q>",
    "</parameter>",
    "<arg_key>", "</arg_key><arg_value>", "<use_mcp_tool>", "<server_name>", "<tool_name>f</tool_name>", "<arguments>",
    "Thought: ", "Thought:\n", "Action: f\n", "Action Input: ", "Action: f\nAction Input: {", "Observation: ", "\nObs",
    "Final Answer: ", "Question: ", "I'll search. ", "The page says:\n", "---\n", "&a *a ", "? ", "!!str ", "%TAG ",
    "@", "\"\n",
    "rows[2]{a,b}:\n", "  1,2\n", "#cols", "<<<", ">>>f\n", "data:", "=", ";", "functools[", "[TOOL_CALLS]", "[ARGS]",
    "<|", "|>", "<|channel|>", "<|message|>", "<|tool_call_begin|>", "functions.f:0", "<｜", "｜DSML｜",
)  # fmt: skip
TAGS = (
    "<ul><li>a", "<li>a", "<li>a</li>", "<li><p>a</p></li>", "<ul><li>a</li></ul>", "<dt>a<dd>b", "<table><tr><td>a",
    "<tr><td>a</td></tr>", "<td>a</td>", "<td>", "<tr>", "<div>a", "<p>a</p>", "<b>a</b> ", "<br>a", "<h1>a</h1>",
    "<a href='/x'>a b</a> ", "<nav>", "</nav>", "<article>", "</article>", "<title>", "<script>", "<!--", "<!-- a -->",
    "&amp;", "<", "<a",
)  # fmt: skip
_MARKS = sorted({mark for form in MARKED for mark in form.markers})
WORST: tuple[Pattern, ...] = (
    *(("", piece, "") for piece in PIECES if piece),
    *(("", mark, "") for mark in _MARKS),
    *(("", mark + '{"name": "f", "arguments": {', "") for mark in _MARKS),
    ("[", "[", ""), ("", "[", "]"), ('{"a": "', "\\", '"}'), ('{"a": ', "[", "1"), ("| a |\n|---|\n", "| b |\n", ""),
    ("| a |\n|---|\n", "| ", "|"), ("a:\n", "  - b\n", ""), ("", "a: ", "b"), ("Action: ", "{", ""), ("\\boxed{", "{",
    ""),
    ('Action: {"action": "f", "action_input": "', "a", ""), ("Action: f\nAction Input: ", '{"q":', ""),
    ("<tool_call>", "<", "</tool_call>"), ("<use_mcp_tool><arguments>", "</arguments>", ""),
    ('<tool_call>{"name": "f", "arguments": {"q": "', "<tool_call>", '"}}</tool_call>'),
    ("x" * 100 + " ", "a, ", "b"), ('"', "a", ""), ("'", "\\'", ""), ("```json\n", "{", "\n```"), ("[{", '"a":1},{',
    "}]"),
)  # fmt: skip


def patterns(chance: random.Random) -> Iterator[Pattern]:
    """Yield random patterns without end: one to three pieces for the body, and a head and a tail."""
    pieces = (*PIECES, *_MARKS)
    while True:
        body = "".join(chance.choices(pieces, k=chance.choice((1, 2, 2, 3))))
        if body:
            yield (chance.choice(pieces), body, chance.choice(pieces))


def text_of(pattern: Pattern, length: int) -> str:
    head, body, tail = pattern
    return head + body * max(1, (length - len(head) - len(tail)) // len(body)) + tail


# ------------------------------------------------------------------------------------------------ measuring


def cpu(work: Callable[[], Any], runs: int = 1) -> float:
    """Mean CPU seconds of this thread. An error that the package documents is a result."""
    began = time.thread_time()
    for _ in range(runs):
        with suppress(CloseoutError, ValueError):
            work()
    return (time.thread_time() - began) / runs


def growth(reader: str, pattern: Pattern, length: int = 1 << 15, again: int = 2) -> Growth:
    """Measure one reader on one pattern; what exceeds the limit is measured again, on texts twice as long."""
    read = READERS[reader]
    long, short = text_of(pattern, length), text_of(pattern, length // RANGE)
    spent = cpu(lambda: read(long))
    if spent < NEGLIGIBLE:
        return Growth(reader, pattern, 0.0, length, spent)
    exponent = slope(spent, cpu(lambda: read(short), RANGE))
    if exponent > LIMIT:
        rounds = [(cpu(lambda: read(long)), cpu(lambda: read(short), RANGE)) for _ in range(3)]
        spent = min(spent, *(one for one, _ in rounds))
        exponent = min(exponent, *(slope(*both) for both in rounds))
    if exponent > LIMIT and again and spent < 10:
        return growth(reader, pattern, 2 * length, again - 1)
    return Growth(reader, pattern, exponent, length, spent)


def slope(long: float, short: float, ratio: float = RANGE) -> float:
    return math.log(long / max(short, 1e-6), ratio)


def worst_growth(
    seed: int, *, known: int | None, made: int, readers: Iterable[str] = READERS, until: float = math.inf
) -> tuple[int, list[Growth]]:
    """Measure readers on hostile texts.

    Args:
        seed: Chooses the patterns.
        known: How many of WORST each reader gets; None is all.
        made: How many random patterns each reader gets.
        readers: Names of readers.
        until: No measurement starts after this time of the monotonic clock.

    Returns:
        The number of measurements, and those whose exponent exceeds LIMIT.
    """
    tried, found = 0, []
    for reader in readers:
        chance = random.Random(f"{seed} {reader}")
        chosen = WORST if known is None else chance.sample(WORST, known)
        for pattern in (*chosen, *islice(patterns(chance), made)):
            if time.monotonic() > until:
                return tried, found
            tried += 1
            measured = growth(reader, pattern)
            if measured.exponent > LIMIT:
                found.append(measured)
    return tried, found


# ------------------------------------------------------------------------------------------------ resuming


def resumed(home: Path, turns: int, measure: Callable[[Callable[[], Any]], float]) -> float:
    """Measure how a run of so many turns that has ended is resumed."""
    asyncio.run(endless_agent(home, turns).run("What?", run_id="run"))
    try:
        return measure(lambda: asyncio.run(endless_agent(home, turns).resume("run")))
    finally:
        close_stores()


def seconds(work: Callable[[], Any]) -> float:
    """CPU seconds of the process."""
    began = time.process_time()
    work()
    return time.process_time() - began


def calls(work: Callable[[], Any]) -> float:
    """How many functions of Python and C are called, in all threads that begin meanwhile."""
    counts = Counter[str]()

    def count(frame: Any, event: str, arg: Any) -> None:
        counts[event] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return counts["call"] + counts["c_call"]
