"""The calls with effects that an agent has made in its run, also inside programs, as its further attempts know them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from closeout.answers.reading import shorten
from closeout.dialects.functions import RUN_PROGRAM
from closeout.journal.events import ToolFinished, ToolStarted
from closeout.messages import ToolSpec
from closeout.results.escape import escape_markers
from closeout.results.summary import summarise
from closeout.results.tool_output import ToolOutput
from closeout.tools.call_records import EarlierCall
from closeout.tools.executor import is_unsure
from closeout.tools.judge import judge

__all__ = ["CallsWithEffects", "described"]

CUT_OFF = "cut off, and may have taken effect: check that before it is repeated"


class CallsWithEffects:
    """Collects, from the events of a run, the calls of one agent that must not be made twice.

    The same events give the same calls, so a resumed or forked run knows what the first one knew.

    Args:
        path: The agent's path in the run.
        tools: Returns the tools that are offered now.
    """

    def __init__(self, path: str, tools: Callable[[], Sequence[ToolSpec]]) -> None:
        self._path = path
        self._tools = tools
        self._started: dict[tuple[str, str], tuple[ToolSpec, ToolStarted]] = {}
        self._ended: list[tuple[ToolSpec, ToolStarted, ToolFinished]] = []

    def __call__(self, event: Any) -> None:
        """Note an event of the run."""
        if not isinstance(event, ToolStarted | ToolFinished) or not self._is_own(event.agent):
            return
        place = event.agent, event.handle
        if isinstance(event, ToolStarted):
            spec = next((tool for tool in self._tools() if tool.name == event.name), None)
            if spec is not None and _has_effects(spec):
                self._started[place] = spec, event
        elif place in self._started:
            self._ended.append((*self._started.pop(place), event))

    def __len__(self) -> int:
        """The calls that have ended, also those that failed."""
        return len(self._ended)

    def since(self, number: int = 0) -> list[EarlierCall]:
        """Return the calls that have, or may have, taken effect, without those among the first `number` that ended."""
        found = []
        for spec, started, finished in self._ended[number:]:
            output = ToolOutput.from_record(json.loads(finished.record))
            unsure = is_unsure(spec, output)
            if unsure or (output.success and judge(output.result, spec.policy, spec.name).quality != "error"):
                found.append(EarlierCall(spec, json.loads(started.arguments), output, unsure))
        return found

    def _is_own(self, agent: str) -> bool:
        """Return whether a path is the agent's own, or that of one of its programs, "main/r3:program"."""
        below = agent.removeprefix(f"{self._path}/")
        return agent == self._path or (below != agent and "/" not in below and below.endswith(":program"))


def _has_effects(spec: ToolSpec) -> bool:
    """Return whether a tool is not declared to be repeatable. A program is not a call: those in it are looked at."""
    policy = spec.policy
    return not (policy.read_only or policy.idempotent or policy.repeatable or spec.name == RUN_PROGRAM)


def described(call: EarlierCall) -> str:
    """Return a call and its result on one line of a prompt; nothing in it can pass for a marker."""
    arguments = ", ".join(f"{name}={_brief(value)}" for name, value in call.arguments.items())
    result = CUT_OFF if call.unsure else shorten(_brief(call.output.result), 160)
    return escape_markers(f"{call.spec.name}({shorten(arguments, 160)}) → {result}")


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else summarise(value)
