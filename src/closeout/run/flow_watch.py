"""The labels of a run's texts: which agent has read what, and what its flow rules decide."""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from closeout.journal.events import Event, FlowDecided, RunStarted, ToolFinished, ToolStarted
from closeout.messages import Message, ToolCall, ToolSpec
from closeout.records import record
from closeout.run.task import Task
from closeout.tools.flow import (
    MAX_SEARCHED,
    MAX_SOURCE,
    TRUSTED,
    UNTRUSTED,
    CallLabels,
    Flow,
    FlowVerdict,
    Labels,
    longest_passage,
    strictest,
)

__all__ = [
    "FlowWatch",
    "all_labelled",
    "decisions_after",
    "labels_of_events",
    "labels_of_messages",
    "labels_of_task",
    "written_labels",
]

MOST_SOURCES = 200  # the latest results in which a passage is looked for
MAX_KEPT = 400_000  # characters of a result that are kept for that
_OWN_ROLES = ("system", "developer", "user", "assistant")  # all other messages are results
_TEXT_PARTS = ("text", "refusal", "thinking", "redacted_thinking", "reasoning", "tool_use", "tool_call")
_IN_CALL = re.compile(r"/r\d+(?=:)")  # The part of a path that names the call.


@record
class _LabelledText:
    """A result with labels that an agent has read."""

    agent: str
    handle: str
    name: str
    labels: Labels
    record: str

    @property
    def title(self) -> str:
        return f"{self.name} ({self.handle})"


class FlowWatch:
    """The labels of one run, which all its agents share. They only grow: what has left the context was read, too.

    Args:
        rules: The flow rules that apply. If there are several, the strictest decision counts.
        begins_with: The labels of what the main agent begins with.
    """

    def __init__(self, rules: Sequence[Flow], begins_with: Labels) -> None:
        self._rules = tuple(rules)
        self._begins_with = begins_with
        self._read: defaultdict[str, set[str]] = defaultdict(set)  # agent → labels of its results
        self._inputs: dict[str, Labels] = {}  # call of an agent or a program → what it was made of
        self._below: defaultdict[str, set[str]] = defaultdict(set)  # call → labels of the results inside it
        self._everything = set(begins_with)
        self._files = set(begins_with)  # labels of the files of the run
        self._sources: list[_LabelledText] = []
        self._planners: dict[str, Callable[[str], list[tuple[ToolCall, CallLabels]]]] = {}
        self._plans: dict[str, frozenset[str]] = {}  # programs that were approved, with the reasons that were named

    def with_rules(self, flow: Flow | None) -> FlowWatch:
        """Return the watch for an agent with rules of its own, which apply beside these."""
        if flow is None or flow in self._rules:
            return self
        watch = copy(self)  # it shares what was read
        watch._rules = (*self._rules, flow)
        return watch

    # -------------------------------------------------------------------------------------------- labels

    def context(self, agent: str) -> Labels:
        """Return the labels of what an agent has read so far."""
        call = agent.rpartition(":")[0]
        given = self._inputs.get(call, self.top) if call else self._begins_with
        return given.union(self._read[agent]) if agent in self._read else given

    @property
    def top(self) -> Labels:
        """The labels of a value of which nothing is known: all that were read."""
        return self.everything | {UNTRUSTED}

    @property
    def everything(self) -> Labels:
        """The labels of all that was read in the run."""
        return frozenset(self._everything)

    def read_inside(self, agent: str) -> Labels:
        """Return the labels of all that the calls inside an agent's calls have read."""
        found = (self._read[each] for each in self._read if each.startswith(f"{agent}/"))
        return frozenset[str]().union(*found)

    @property
    def files(self) -> Labels:
        """The labels of the files that any script of the run may read."""
        return frozenset(self._files)

    @property
    def conversation(self) -> Labels:
        """The labels of what the agents of the conversation have read, and of the files that it continues with.

        What happened inside their calls is not counted, but for the files.
        """
        return self.files.union(*(read for agent, read in self._read.items() if not _call_above(agent)))

    def labels_of(self, tool: ToolSpec) -> Labels:
        """Return the labels of a tool's results, whatever it is called with."""
        if tool.policy.returns == "read":
            return self.everything
        if tool.policy.returns == "below":
            return self.top
        own = frozenset[str]().union(*(flow.labels_of(tool) for flow in self._rules))
        return own | self._files if tool.policy.returns == "files" else own

    def note_inputs(self, call: str, labels: Labels) -> None:
        """Note what the task of an agent, or a program, is made of. `call` is the path of the call that begins it."""
        self._inputs[call] = labels

    def made_under(self, agent: str, labels: CallLabels) -> CallLabels:
        """Return the labels of a call in a program, with those of what the program itself was made of."""
        given = self._inputs.get(agent.rpartition(":")[0], frozenset())
        if not given:
            return labels
        arguments = {name: each | given for name, each in labels.arguments.items()}
        return replace(labels, decided=labels.decided | given, arguments=arguments)

    def result_labels(self, tool: ToolSpec, call: str, labels: CallLabels) -> Labels:
        """Return the labels of the result of a call that has ended. `call` is its path: agent and handle."""
        if tool.policy.returns == "below":
            return labels.all | self._below.get(call, set())
        return labels.all | self.labels_of(tool)

    def note(self, finished: ToolFinished, tool: ToolSpec | None = None) -> None:
        """Note that an agent has read a result. `tool` is None for a call inside a recorded one."""
        agent = finished.agent
        if finished.labels:
            labels = frozenset(finished.labels) - {TRUSTED}
        else:  # the run was recorded before the agent had flow rules
            labels = self.top if tool is None else self.labels_of(tool)
        if not labels:
            return
        self._read[agent] |= labels
        self._everything |= labels
        if finished.files:
            self._files |= labels
        if call := _call_above(agent):
            self._below[call] |= labels
        self._sources.append(_LabelledText(agent, finished.handle, finished.name, labels, finished.record[:MAX_KEPT]))
        del self._sources[:-MOST_SOURCES]

    def note_shown(self, call: str, labels: Labels) -> None:
        """Note the labels of what the calls inside a call have shown of their results."""
        self._below[call] = {*labels}

    # -------------------------------------------------------------------------------------------- decisions

    def decide(self, started: ToolStarted, call: ToolCall, labels: CallLabels) -> FlowDecided | None:
        """Return the decision on a call that is about to start, None if nothing speaks against it."""
        if labels.tool.policy.returns == "below":  # its own calls are decided on, each by itself
            reasons = sorted(self._plan_reasons(started.agent, call, labels))
            verdict = FlowVerdict("ask", f"In this program, {'; '.join(reasons)}") if reasons else None
        else:
            verdict = strictest(flow.decide(call, labels) for flow in self._rules)
        if verdict is None:
            return None
        program = started.agent.rpartition(":")[0]
        if verdict.guard == "ask" and verdict.reason in self._plans.get(program, ()):
            verdict = FlowVerdict("allow", f"{verdict.reason} (the program was approved)")
        return FlowDecided(
            started.agent,
            started.handle,
            started.name,
            decision=verdict.guard,
            reason=self._explained(verdict, call, labels),
            labels=written_labels(labels.all),
            arguments=started.arguments,
        )

    # -------------------------------------------------------------------------------------------- plans

    def plan_with(self, agent: str, planner: Callable[[str], list[tuple[ToolCall, CallLabels]]]) -> None:
        """Let a function say which calls of a program of an agent depend on something with labels."""
        self._planners[agent] = planner

    def plan_approved(self, agent: str, handle: str, call: ToolCall, labels: CallLabels) -> None:
        """Note that a person has approved a program, with what depends on text in it."""
        self._plans[f"{agent}/{handle}"] = frozenset(self._plan_reasons(agent, call, labels))

    def _plan_reasons(self, agent: str, call: ToolCall, labels: CallLabels) -> set[str]:
        """Return what a person is asked about a program; empty if they are asked about its calls, or not at all."""
        code = call.arguments.get("code") if isinstance(call.arguments, Mapping) else None
        is_plan = agent in self._planners and UNTRUSTED not in labels.all and isinstance(code, str)
        if not is_plan or any(flow.ask != "plans" for flow in self._rules):
            return set()
        inner = self._planners[agent](str(code))
        found = [strictest(flow.decide(*each) for flow in self._rules) for each in inner]
        return {each.reason for each in found if each is not None and each.guard == "ask"}

    def _explained(self, verdict: FlowVerdict, call: ToolCall, labels: CallLabels) -> str:
        """The reason in one sentence, with what was read and the passage that an argument repeats."""
        wanted = labels.all
        sources = [source for source in reversed(self._sources) if source.labels & wanted]
        arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
        texts = list(_texts(arguments, MAX_SEARCHED))
        best, first, where, argument, left = "", 0, "", "", MAX_SOURCE
        for source in sources if texts else ():
            read = _text_of(source.record)[:left]
            left -= len(read)
            for place, (name, text) in enumerate(texts):
                passage = longest_passage(text, read)
                if (len(passage), first) > (len(best), place):  # of equal ones that of the first argument
                    best, first, where, argument = passage, place, source.title, name
        if best:
            quoted = json.dumps(best, ensure_ascii=False)
            return f"{verdict.reason}; its argument {argument} repeats {quoted} from {where}."
        if sources:
            return f"{verdict.reason}: {sources[0].title}."
        return f"{verdict.reason}."


def labels_of_task(rules: Sequence[Flow], task: Task) -> Labels:
    """Return the labels of what a run begins with."""
    labels = frozenset(task.labels) - {TRUSTED}
    if task.earlier and not task.labels and not all(flow.trust_history for flow in rules):
        labels |= {UNTRUSTED}
    has_files = task.files or task.texts or task.images or (task.kept and not task.labels)
    if has_files and not all(flow.trust_files for flow in rules):
        labels |= {UNTRUSTED}
    return labels


def written_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return labels as events hold them: "trusted" or "untrusted" first. None at all means that nobody kept labels."""
    found = {*labels} - {TRUSTED}
    return (UNTRUSTED if UNTRUSTED in found else TRUSTED, *sorted(found - {UNTRUSTED}))


def labels_of_events(events: Iterable[Event]) -> tuple[str, ...]:
    """Return the labels of the conversation of a recorded run: see `FlowWatch.conversation`.

    Empty if the run kept no labels.
    """
    found: set[str] = set()
    for event in events:
        if isinstance(event, RunStarted) or (
            isinstance(event, ToolFinished) and (event.files or not _call_above(event.agent))
        ):
            found.update(event.labels)
    return written_labels(found) if found else ()


def _call_above(agent: str) -> str:
    """Return the path of the call that an agent or a program works for; empty for those of the conversation itself.

    An agent that another one has handed over to works for the same call.
    """
    found = [match.end() for match in _IN_CALL.finditer(agent)]
    return agent[: found[-1]] if found else ""


# ------------------------------------------------------------------------------------------------ other agents' runs


def _watch_of(
    flow: Flow, messages: Iterable[Message], tools: Mapping[str, ToolSpec], begins_with: Iterable[str] = ()
) -> FlowWatch:
    """Return the watch of a conversation that is led elsewhere, of which only the messages are known.

    Everything in it was read. A result belongs to each call before it that has its id, whatever name it states itself;
    nobody vouches for one of no call, nor for what is neither text nor a call.
    """
    labels = frozenset(begins_with) - {TRUSTED}
    callers: defaultdict[str, set[str]] = defaultdict(set)  # id of calls → their tools
    results: list[ToolFinished] = []
    for message in messages:
        made = message.get("tool_calls") if message.role == "assistant" else None
        for call in made if isinstance(made, list) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping):
                callers[str(call.get("id"))].add(str(function.get("name")))
        parts = message.content if isinstance(message.content, list) else []
        has_more = any(not isinstance(part, Mapping) or part.get("type") not in _TEXT_PARTS for part in parts)
        if message.role not in _OWN_ROLES:
            names = sorted(callers.get(str(message.get("tool_call_id")), ()))
            found = [flow.labels_of(tools.get(name) or ToolSpec(name)) for name in names]
            of_result = frozenset[str]().union(*found) if found else frozenset({UNTRUSTED})
            name = " or ".join(names) or "a result of no call"
            text = json.dumps({"result": message.text[:MAX_SOURCE]}, ensure_ascii=False)
            handle = str(message.get("tool_call_id") or "")
            results.append(ToolFinished("main", handle, name, ok=True, record=text, labels=written_labels(of_result)))
        elif has_more and (message.role != "user" or not flow.trust_files):
            labels |= {UNTRUSTED}
    watch = FlowWatch((flow,), labels)
    for result in results:
        watch.note(result)
    return watch


def labels_of_messages(
    flow: Flow, messages: Iterable[Message], tools: Mapping[str, ToolSpec], begins_with: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the labels of a conversation that is led elsewhere. The arguments are as for `decisions_after`."""
    return written_labels(_watch_of(flow, messages, tools, begins_with).context("main"))


def decisions_after(
    flow: Flow,
    messages: Iterable[Message],
    calls: Iterable[ToolCall],
    *,
    tools: Mapping[str, ToolSpec],
    begins_with: Iterable[str] = (),
) -> list[FlowDecided | None]:
    """Return the decisions on the calls of a reply to a conversation that is led elsewhere.

    Args:
        flow: The rules.
        messages: What the model has read.
        calls: The calls.
        tools: The tools that are known, by name. All others have effects.
        begins_with: Labels of what was read besides.
    """
    watch = _watch_of(flow, messages, tools, begins_with)
    found = []
    for call in calls:
        labels = replace(all_labelled(watch.context("main"), call), tool=tools.get(call.name) or ToolSpec(call.name))
        given = call.arguments
        arguments = given if isinstance(given, str) else json.dumps(dict(given), ensure_ascii=False, sort_keys=True)
        found.append(watch.decide(ToolStarted("main", call.id, call.name, arguments=arguments), call, labels))
    return found


def all_labelled(labels: Labels, call: ToolCall) -> CallLabels:
    """Return the labels of a call of a model: it has read everything in its prompt when it writes any part of it."""
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    return CallLabels(tool=ToolSpec(call.name), decided=labels, arguments=dict.fromkeys(arguments, labels))


def _texts(arguments: Mapping[str, Any], most: int) -> Iterable[tuple[str, str]]:
    """Yield the texts in arguments, of so many characters at most, each with the parameter that it is in."""
    left = deque(arguments.items())
    while left and most > 0:
        name, value = left.popleft()
        if isinstance(value, str):
            yield name, value[:most]
            most -= len(value)
        elif isinstance(value, Mapping):
            left.extend((name, each) for each in value.values())
        elif isinstance(value, list | tuple):
            left.extend((name, each) for each in value)


def _text_of(record: str) -> str:
    try:
        found = json.loads(record)
    except ValueError:
        return record
    result = found.get("result", found.get("summary", ""))
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
