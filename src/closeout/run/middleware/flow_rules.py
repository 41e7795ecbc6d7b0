"""Decides on an agent's calls by the flow rules of its run, and labels their results."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from closeout.journal.events import HANDOFF, FlowDecided, ToolFinished
from closeout.journal.run_journal import Journal
from closeout.messages import ToolSpec
from closeout.run.flow_watch import FlowWatch, all_labelled, labels_of_task, written_labels
from closeout.run.middleware.chain import AgentPlace, Calling, Middleware
from closeout.tools.flow import UNTRUSTED, Labels
from closeout.tools.running import stopped_output

__all__ = ["FlowMiddleware"]


class FlowMiddleware(Middleware):
    """Labels the calls of one agent, decides on them by the flow rules, and labels their results.

    Attributes:
        watch: The labels of what the run's agents have read, with the rules of this agent.
    """

    records_itself = True

    def __init__(self, watch: FlowWatch, agent: str, journal: Journal) -> None:
        self.watch = watch
        self._agent = agent
        self._journal = journal
        self._read: Labels = frozenset()  # what the agent had read when it wrote the reply

    @classmethod
    def at(cls, place: AgentPlace) -> Self | None:
        plan, task = place.plan, place.task
        if task is not None and plan is not None and plan.flows:
            watch = FlowWatch(plan.flows, labels_of_task(plan.flows, task))
        elif task is None and plan is not None and plan.spec.flow is not None:
            watch = FlowWatch((plan.spec.flow,), frozenset({UNTRUSTED}))  # its caller keeps no labels
        else:
            return None
        return cls(watch, place.scope.path, place.scope.journal)

    def below(self, place: AgentPlace) -> FlowMiddleware:
        if place.handed_over:  # the successor sees all that this agent has read
            self.watch.note_inputs(f"{self._agent}/{HANDOFF}", self.watch.context(self._agent))
        own = None if place.plan is None else place.plan.spec.flow
        return FlowMiddleware(self.watch.with_rules(own), place.scope.path, place.scope.journal)

    def begin(self, turn: int) -> None:
        self._read = self.watch.context(self._agent)

    async def decide(self, calling: Calling) -> None:
        watch, plan, served = self.watch, calling.plan, calling.served
        labels = all_labelled(self._read, plan.call) if calling.labels is None else calling.labels
        if served.policy.returns == "files":
            labels = replace(labels, arguments={**labels.arguments, "files": watch.files})
        calling.labels = labels = watch.made_under(self._agent, replace(labels, tool=served))
        watch.note_inputs(f"{self._agent}/{plan.handle}", labels.all)
        started = calling.started(plan.call, served)
        decided = self._journal.decision_on(FlowDecided, started, plan.handle)
        if decided is None and not self._journal.has_started(started):  # what has begun was allowed without a word
            decided = watch.decide(started, plan.call, labels)
        if decided is None:
            return
        self._journal.append(decided)
        if decided.decision == "refuse":
            calling.output = stopped_output(plan.tool.name, f"Not allowed: {decided.reason}", "Denied")
        elif decided.decision == "ask":
            calling.reasons.append(decided.reason)

    def approved(self, calling: Calling) -> None:
        if calling.reasons and calling.labels is not None and calling.plan.tool.policy.returns == "below":
            self.watch.plan_approved(self._agent, calling.plan.handle, calling.plan.call, calling.labels)

    def record(self, calling: Calling, finished: ToolFinished, *, made: bool) -> ToolFinished:
        labels = calling.labels
        assert labels is not None
        call = f"{self._agent}/{calling.plan.handle}"
        found = self.watch.result_labels(calling.served, call, labels) if made else labels.all
        return replace(finished, labels=written_labels(found))

    def read(self, finished: ToolFinished, tool: ToolSpec | None) -> None:
        self.watch.note(finished, tool)
