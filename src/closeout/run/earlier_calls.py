"""The calls with effects that agents have made in a run, also in programs, as later attempts and calls know them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from closeout.answers.reading import shorten
from closeout.dialects.functions import RUN_PROGRAM
from closeout.journal.events import HANDOFF, ModelReplied, ToolFinished, ToolStarted
from closeout.messages import ToolSpec
from closeout.results.escape import escape_markers
from closeout.results.summary import summarise
from closeout.results.tool_output import ToolOutput
from closeout.tools.call_records import EarlierCall
from closeout.tools.executor import is_unsure
from closeout.tools.judge import judge

__all__ = ["CallsWithEffects", "described"]

CUT_OFF = "cut off, and may have taken effect: check that before it is repeated"


@dataclass(frozen=True, slots=True)
class _Ended:
    path: str
    spec: ToolSpec
    arguments: str
    finished: ToolFinished

    def call(self) -> EarlierCall | None:
        """Return the call; None if it has taken no effect."""
        output = ToolOutput.from_record(json.loads(self.finished.record))
        unsure = is_unsure(self.spec, output)
        if unsure or (output.success and judge(output.value, self.spec.policy, self.spec.name).quality != "error"):
            return EarlierCall(self.spec, json.loads(self.arguments), output, unsure)
        return None


class CallsWithEffects:
    """Collects, from the events of a run, the calls of its agents that must not be made twice.

    An agent's own calls of earlier attempts count as made before, and so do those of the same agent when it was called
    earlier, or handed the conversation over. What other calls of the same reply do at the same time does not. The same
    events give the same calls, so a resumed or forked run knows what the first one knew.
    """

    def __init__(self) -> None:
        self._tools: dict[str, Callable[[], Sequence[ToolSpec]]] = {}  # of the agents at work, by their paths
        self._started: dict[tuple[str, str], tuple[ToolSpec, str]] = {}  # with the arguments
        self._ended: list[_Ended] = []
        self._replied: dict[str, int] = {}  # path → calls that had ended when the agent's last reply came

    def join(self, path: str, tools: Callable[[], Sequence[ToolSpec]]) -> None:
        """Note the calls of an agent from now on. `tools` returns the tools that it is offered."""
        self._tools[path] = tools

    def leave(self, path: str) -> None:
        """Note no more calls of an agent."""
        self._tools.pop(path, None)

    def __call__(self, event: Any) -> None:
        """Note an event of the run."""
        if type(event) is ModelReplied:
            self._replied[event.agent] = len(self._ended)
        elif type(event) is ToolStarted and self._tools:
            tools = self._tools.get(_agent_of(event.agent), tuple)
            spec = next((tool for tool in tools() if tool.name == event.name), None)
            if spec is not None and _has_effects(spec):
                self._started[event.agent, event.handle] = spec, event.arguments
        elif type(event) is ToolFinished and (event.agent, event.handle) in self._started:
            spec, arguments = self._started.pop((event.agent, event.handle))
            self._ended.append(_Ended(event.agent, spec, arguments, event))

    def count(self, path: str) -> int:
        """Return how many calls of an agent have ended, also those that failed."""
        return sum(_agent_of(each.path) == path for each in self._ended)

    def of(self, path: str, number: int = 0) -> list[EarlierCall]:
        """Return the calls of an agent that have, or may have, taken effect, without the first `number` that ended."""
        own = [each for each in self._ended if _agent_of(each.path) == path]
        return [call for each in own[number:] if (call := each.call()) is not None]

    def before(self, path: str, specs: Sequence[ToolSpec]) -> list[EarlierCall]:
        """Return the calls that an agent which begins an attempt must not make again: those of these tools."""
        own, found = _names(path), []
        for number, each in enumerate(self._ended):
            if _names(each.path) == own and (_agent_of(each.path) == path or self._is_over(number, each.path, path)):
                call = each.call()
                if call is not None and call.spec in specs:
                    found.append(call)
        return found

    def _is_over(self, number: int, path: str, agent: str) -> bool:
        """Return whether a call belongs to an earlier reply of the agent from which both paths come."""
        pairs = zip(path.split("/"), agent.split("/"), strict=False)
        shared = "/".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return shared == path or shared.endswith(":program") or number < self._replied.get(shared, 0)


def _agent_of(path: str) -> str:
    """Return the path of the agent whose calls these are: those of a program, "main/r3:program", are its agent's."""
    return path.rpartition("/")[0] if path.endswith(":program") else path


def _names(path: str) -> list[str]:
    """Return the names on a path. The calls that started each of them, programs and handoffs are left out."""
    parts = [part.partition(":") for part in path.split("/")]
    return [name or call for call, _, name in parts if name != "program" and call != HANDOFF]


def _has_effects(spec: ToolSpec) -> bool:
    """Return whether a tool is not declared to be repeatable. A program is not a call: those in it are looked at."""
    policy = spec.policy
    return not (policy.read_only or policy.idempotent or policy.repeatable or spec.name == RUN_PROGRAM)


def described(call: EarlierCall) -> str:
    """Return a call and its result on one line of a prompt; nothing in it can pass for a marker."""
    arguments = ", ".join(f"{name}={_brief(value)}" for name, value in call.arguments.items())
    result = CUT_OFF if call.unsure else shorten(_brief(call.output.value), 160)
    return escape_markers(f"{call.spec.name}({shorten(arguments, 160)}) → {result}")


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else summarise(value)
