"""Runs of many turns in a small context, whose scripted model is asked at the end for facts from all over the run.

In each turn the model writes a thought and reads a page with a fact. A prompt that does not fit into the context is
refused. At the end the model names the facts of twenty pages, and reads those again that it no longer sees.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from closeout import Agent, tool
from closeout.errors import ContextOverflow
from closeout.journal.events import Compacted
from closeout.messages import Capabilities, ModelRequest, Usage
from closeout.results.tokens import estimate_tokens
from closeout.testing import RequestView, ScriptedClient, Turn, answer, call, say

__all__ = ["ASKED", "Outcome", "agent_of", "long_run"]

ASKED = 20  # facts
TOOLS = 400  # tokens of the definitions of the tools
REPLY = 2048  # tokens that the server reserves for a reply
SUMMARY = "Findings: the pages were read in their order. Open questions: what the next pages say."
WORDS = [
    "river",
    "canal",
    "bridge",
    "dam",
    "lock",
    "year",
    "length",
    "width",
    "height",
    "opened",
    "built",
    "city",
    "state",
    "author",
    "film",
    "award",
    "song",
]


class Outcome(NamedTuple):
    """What became of a run.

    Attributes:
        turns: Pages read, without repetition.
        requests: Requests sent.
        breaks: Requests that do not extend the one before.
        summaries: Summaries that the model wrote.
        refused: Prompts that were too long.
        facts: Facts named at the end.
        stop: The reason for which the run stopped.
    """

    turns: int
    requests: int
    breaks: int
    summaries: int
    refused: int
    facts: int
    stop: str


class Reader:
    """A model that reads pages, and its server with a context of a fixed length.

    Args:
        turns: Pages that the model reads before it looks for the facts.
        context: Tokens of the server's context.
        thought: Words of a thought.
        result: Words of a page.
        tells: The server says how long its context is.
        sums_up: The model writes a summary if it is asked for one.
    """

    def __init__(
        self, turns: int, context: int, thought: int, result: int, *, tells: bool = True, sums_up: bool = True
    ) -> None:
        self._random = random.Random(7)
        self.facts = {number: f"fact-{self._random.randrange(10**9):09d}" for number in range(1, turns + 1)}
        self.asked = sorted(self._random.sample(sorted(self.facts), min(ASKED, turns)))
        self.read = 0
        self.named: dict[int, str] = {}
        self.refused = 0
        self._context, self._thought, self._result, self._sums_up = context, thought, result, sums_up
        self.client = ScriptedClient(self._reply, capabilities=Capabilities(max_context=context if tells else None))

    def page(self, number: int) -> str:
        """Read a page."""
        self.read = max(self.read, number)
        return f"Page {number} says {self.facts[number]}. {self._words(self._result)}"

    def _words(self, count: int) -> str:
        return " ".join(self._random.choices(WORDS, k=count))

    def _reply(self, view: RequestView) -> Turn:
        size = _prompt_tokens(view)
        if size + REPLY > self._context:
            self.refused += 1
            raise ContextOverflow("The prompt is too long.", status=400)
        turn = self._turn(view)
        return replace(turn, usage=Usage(size, _tokens(turn.text or turn.thought) + 20, requests=1))

    def _turn(self, view: RequestView) -> Turn:
        if "about to be shortened" in view.text:
            return say(SUMMARY if self._sums_up else "")
        if self.read < len(self.facts):
            return Turn(self._words(self._thought), calls=[call("page", number=self.read + 1)])
        self.named |= {int(number): fact for number, fact in re.findall(r"Page (\d+) says (fact-\d+)", view.text)}
        missing = next((number for number in self.asked if number not in self.named), None)
        if missing is None:
            return answer("found")
        named_by = rf"\br{missing}\b|\(Results r1 to r\d+: read_result shows them"
        if not re.search(named_by, view.text):
            return answer("lost")
        return Turn("I read it again.", calls=[call("read_result", handle=f"r{missing}")])


@lru_cache(maxsize=10_000)
def _tokens(text: str) -> int:
    return 4 + estimate_tokens(text)


def _prompt_tokens(view: RequestView) -> int:
    tokens = TOOLS + _tokens(view.prompt or "")
    for message in view.messages:
        tokens += _tokens(str(message.get("content") or ""))
        tokens += sum(_tokens(made["function"]["arguments"]) for made in message.get("tool_calls") or ())
    return tokens


def _extends(before: ModelRequest, now: ModelRequest) -> bool:
    if now.prompt is not None:
        return now.prompt.startswith((before.prompt or "").removesuffix("Thought:"))
    kept = list(before.messages)
    return list(now.messages[: len(kept)]) == kept


def agent_of(reader: Reader, home: Path | bool = False, dialect: str = "function_call", **settings: Any) -> Agent:
    """Return an agent that reads with a reader. It has all defaults but those in `settings`, and enough turns."""
    config = {"agent": {"main_agent": {"max_turns": 2 * len(reader.facts) + 100}, **settings}}
    pages = tool(reader.page, read_only=True)
    return Agent(reader.client, [pages], dialect=dialect, home=home, config=config)


async def long_run(reader: Reader, dialect: str = "function_call", **settings: Any) -> Outcome:
    """Have an agent read all pages and look for the facts."""
    summaries = 0

    def note(event: Any) -> None:
        nonlocal summaries
        summaries += isinstance(event, Compacted) and bool(event.summary)

    result = await agent_of(reader, dialect=dialect, **settings).run("What do the pages say?", listeners=[note])
    requests = reader.client.requests
    return Outcome(
        turns=reader.read,
        requests=len(requests),
        breaks=sum(not _extends(before, now) for before, now in pairwise(requests)),
        summaries=summaries,
        refused=reader.refused,
        facts=sum(reader.named.get(number) == reader.facts[number] for number in reader.asked),
        stop=result.stop_reason,
    )
