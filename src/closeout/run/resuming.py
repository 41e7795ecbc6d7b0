"""Resume a recorded run, with the agent that began it or with one that has changed since."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any

from closeout.errors import (
    CloseoutError,
    DecisionRefused,
    JournalDamaged,
    McpServerUnavailable,
    ResumeRefused,
    Suspended,
)
from closeout.journal.events import (
    AgentStarted,
    DecisionRequested,
    Event,
    InstructionsWritten,
    ModelRequested,
    RunResumed,
    RunStarted,
    ToolFinished,
    ToolsChanged,
    ToolStarted,
)
from closeout.journal.run_journal import Journal, describe_damage, open_journal
from closeout.journal.run_names import LAB
from closeout.journal.store import Row, RunRecord, Store
from closeout.journal.subscribers import Listener
from closeout.records import record
from closeout.run.agent_tool import SubAgentTool
from closeout.run.files_of_run import Load, no_content
from closeout.run.lifecycle import as_recorded, beginning, execute_on, execute_run, recorded_task
from closeout.run.offered_tools import dump_definitions, load_specs, with_server_tools
from closeout.run.plan import AgentPlan, OnChange, check_on_change, differences, missing_servers
from closeout.run.result import RunResult
from closeout.run.waits.decisions import Decisions, record_decisions
from closeout.tools.pinned_tools import RemovedTool, pin_tools

__all__ = ["Continuation", "check_same", "continuation", "plan_at", "resume_run"]

_CONTINUE_ANYWAY = (
    "Resume it with the agent that began it, or accept that it continues from there (--force, in Python "
    "despite_changes=True)."
)


@record(kw_only=True)
class Continuation:
    """The way in which a recorded run continues with an agent, or the reason why it cannot.

    Attributes:
        plan: The agent as it continues the run.
        differences: How the agent differs from the one that began the run.
        problem: Why it cannot continue the run; empty if it can.
        remedy: What to do about the problem.
        event: The number of the event of the record at which the run would stop, None if it is not a certain one.
    """

    plan: AgentPlan
    differences: tuple[str, ...] = ()
    problem: str = ""
    remedy: str = ""
    event: int | None = None


_EFFECTS = (ModelRequested, ToolStarted, DecisionRequested)


async def resume_run(
    plan: AgentPlan,
    store: Store,
    run_id: str,
    listeners: Sequence[Listener] = (),
    *,
    decisions: Decisions | None = None,
    on_change: OnChange | None = None,
    despite_changes: bool = False,
    despite_damage: bool = False,
    limits: Mapping[str, Any] | None = None,
    seen: RunRecord | None = None,
) -> RunResult:
    """Continue a recorded run from where it stopped, with decisions on what it waits for.

    `limits` are those of this run from now on, by the names in `OVERRIDES`.

    Raises:
        RunNotFound: No such run.
        JournalLocked: Another process is running it, or has run it since it was `seen`.
        JournalDamaged: Parts of the record are missing or cannot be read, and `despite_damage` is not set.
        ResumeRefused: The agent cannot continue the run as it is, and `despite_changes` is not set.
        DecisionRefused: The run does not wait for a decision, or it was decided before.
        McpServerUnavailable: A required server whose tools the run has cannot be used. The run stays as it is.
    """
    recorded = await store.off_loop(store.read, run_id)
    if recorded.problems and not despite_damage:
        await store.off_loop(store.check_unlocked, run_id)
        raise JournalDamaged(describe_damage(run_id, recorded.problems))
    rows = recorded.rows
    if LAB in beginning(rows, run_id).origin:
        raise ResumeRefused(
            f"Run {run_id} was kept by a what-if comparison, and its calls must not be made. `closeout eval what-if` "
            "with the same arguments continues a comparison that was stopped."
        )
    plan = as_recorded(plan, rows)
    before = plan.overrides
    plan = plan.limited(limits or {})
    mode = check_on_change(on_change or plan.spec.on_change)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(plan.manager)
        task = recorded_task(rows, run_id, load=store.content)
        resumed = RunResumed("main")
        # A run that waits for a login does nothing before it, and its server's tools are not known yet.
        found = [] if plan.manager.missing_logins else _differences(plan, rows, run_id)
        if found and _has_begun(rows):
            _check_servers(plan, run_id)
        for below in _at_work(plan, rows):  # without its servers, a sub-agent's open calls would be lost
            await stack.enter_async_context(below.manager)
            _check_servers(below, run_id)
        if found and despite_changes:
            resumed = replace(resumed, differences=tuple(found), on_change="take")
        elif found:
            how = await _continued(Continuation(plan=plan, differences=tuple(found)), rows, run_id, mode, store.content)
            if how.problem:
                raise _refused(run_id, how)
            plan = how.plan
            resumed = replace(_in_force_from_now(plan, rows), differences=how.differences, on_change=mode)
        if plan.overrides != before:
            resumed = replace(resumed, overrides=plan.overrides)
        if decisions:
            await store.off_loop(record_decisions, store, run_id, decisions)
        journal = await open_journal(
            Journal.reopen, store, run_id, despite_damage=despite_damage, resumed=resumed, seen=seen
        )
        return await execute_run(plan, task, journal, listeners)


async def continuation(
    plan: AgentPlan, rows: Sequence[Row], run_id: str, on_change: OnChange = "keep", *, load: Load = no_content
) -> Continuation:
    """Find out how an agent continues a recorded run, by running the record again in memory.

    No model is asked and no tool called.

    Args:
        plan: The agent, `as_recorded`. Its tools must be open.
        rows: The record.
        run_id: The name of the run.
        on_change: What the run does about differences.
        load: Returns the content of a file by its SHA-256.

    Raises:
        JournalError: The record has no readable beginning.
        UsageError: `on_change` is something else.
        McpServerUnavailable: A required server cannot be used.
    """
    check_on_change(on_change)
    how = Continuation(plan=plan, differences=tuple(_differences(plan, rows, run_id)))
    if how.differences:
        _check_servers(plan, run_id)
        return await _continued(how, rows, run_id, on_change, load)
    tried = await _tried(how, rows, run_id, load)
    # Its settings or its code differ, which a fingerprint does not show. It continues from there.
    return replace(how, differences=(f"departs at event {tried.event}: {tried.problem}",)) if tried.problem else how


async def check_continues(plan: AgentPlan, rows: Sequence[Row], run_id: str, load: Load) -> None:
    """Check that an agent can continue a run, before a decision on it is recorded.

    Raises:
        DecisionRefused: The agent has changed so that it cannot.
    """
    plan = as_recorded(plan, rows)
    async with plan.manager:
        with suppress(McpServerUnavailable):  # the run continues when the server is back
            if _differences(plan, rows, run_id):
                how = await continuation(plan, rows, run_id, plan.spec.on_change, load=load)
                if how.problem:
                    raise DecisionRefused(f"The decision was not recorded. {_refused(run_id, how)}")


async def _continued(
    how: Continuation, rows: Sequence[Row], run_id: str, on_change: OnChange, load: Load
) -> Continuation:
    """Find out how an agent that differs continues a record."""
    plan = how.plan
    if on_change == "refuse":
        return replace(
            how, problem="; ".join(how.differences), remedy="Resume it with that agent, or with on_change='keep'."
        )
    if on_change == "take":
        return await _tried(how, rows, run_id, load)
    kept, misfits = _kept(plan, rows)
    if misfits:
        name, why = next(iter(misfits.items()))
        problem = f"tool {name} has changed, and the run has called it"
        return replace(how, problem=problem, remedy=why[:1].upper() + why[1:], event=_call_of(rows, name))
    left = _differences(kept, rows, run_id, kept=True)
    if left:
        remedy = "Resume it with that agent, or let it take the changes: on_change='take', --on-change take."
        return replace(how, problem="; ".join(left), remedy=remedy)
    return await _tried(replace(how, plan=kept), rows, run_id, load)


def check_same(plan: AgentPlan, rows: Sequence[Row], run_id: str) -> None:
    """Check that an agent is the one that made a record. Its tools must be open.

    Raises:
        JournalError: The record has no readable beginning.
        ResumeRefused: The agent differs.
        McpServerUnavailable: A required server cannot be used.
    """
    found = tuple(_differences(plan, rows, run_id))
    if found:
        _check_servers(plan, run_id)
        remedy = "Resume it with that agent, or accept the differences (--force, in Python despite_changes=True)."
        raise _refused(run_id, Continuation(plan=plan, differences=found, problem="; ".join(found), remedy=remedy))


def _check_servers(plan: AgentPlan, run_id: str) -> None:
    """Raise McpServerUnavailable if the tools that an agent lacks may be those of a server that cannot be used now."""
    if problem := missing_servers(plan.manager):
        raise McpServerUnavailable(
            f"{problem.rstrip('.')}. Run {run_id} stays as it is. Correct that, and resume it with the same agent."
        )


def _at_work(plan: AgentPlan, rows: Sequence[Row]) -> list[AgentPlan]:
    """Return the sub-agents with MCP servers that a record has begun and not ended."""
    if not any(isinstance(each, SubAgentTool) for each in plan.manager.local_tools):
        return []
    at_work: dict[str, None] = {}
    for event in (row.event for row in rows):
        if isinstance(event, AgentStarted):
            at_work[event.agent] = None
        elif isinstance(event, ToolFinished) and at_work:
            call = f"{event.agent}/{event.handle}:"
            at_work = {path: None for path in at_work if not path.startswith(call)}
    plans = (plan_at(plan, path) for path in at_work)
    return [below for below in plans if below is not None and below.manager.has_servers]


def plan_at(plan: AgentPlan, path: str) -> AgentPlan | None:
    """Return the plan of the sub-agent at a path such as `main/r1:clerk`, None if the agent has no such tool."""
    for step in path.split("/")[1:]:
        below = {each.name: each for each in plan.manager.local_tools if isinstance(each, SubAgentTool)}
        found = below.get(step.partition(":")[2])
        if found is None:
            return None
        plan = found.plan_of(False)
    return plan


def _refused(run_id: str, how: Continuation) -> ResumeRefused:
    where = "" if how.event is None else f" It would stop at event {how.event}."
    text = f"Run {run_id} was made by another agent: {how.problem}.{where} {how.remedy}"
    return ResumeRefused(text, how.differences or (how.problem,))


# ------------------------------------------------------------------------------------------------ what differs


def _differences(plan: AgentPlan, rows: Sequence[Row], run_id: str, *, kept: bool = False) -> list[str]:
    """Return how the agent differs from the recorded one, whose servers may have changed their tools since.

    `kept` leaves out the agent's own tools, and instructions that are those of the record. A run that has done nothing
    yet takes the tools of servers as they are, perhaps because it ended for want of such a server.
    """
    started, agent = beginning(rows, run_id), _in_force(rows)
    then, now = agent.fingerprint, plan.fingerprint(plan.offered_tools())
    if kept:
        own = {name for name, *_ in json.loads(agent.own_tools or "[]")}
        own |= {spec.name for spec in plan.offered_tools() if spec.server_name is None}
        if not _has_begun(rows):
            own |= {*(then.get("tools") or {}), *(now.get("tools") or {})}
        then, now = ({**each, "tools": _without(each.get("tools") or {}, own)} for each in (then, now))
        if _written(rows) is not None:
            then, now = {**then, "instructions": ""}, {**now, "instructions": ""}
    found = differences(then, now)
    changes = [row.event for row in rows if isinstance(row.event, ToolsChanged) and row.event.agent == "main"]
    if found and changes:
        tools = with_server_tools(plan.offered_tools(), load_specs(changes[-1].tools))
        found = min(found, differences({**then, "tools": plan.fingerprint(tools)["tools"]}, now), key=len)
    if found and started.version != plan.spec.version:
        found.insert(0, f"version: {started.version or 'none'} then, {plan.spec.version or 'none'} now")
    return found


def _has_begun(rows: Sequence[Row]) -> bool:
    """Return True if a run has done more than to wait for a login."""
    return any(isinstance(row.event, _EFFECTS) and getattr(row.event, "kind", "") != "login" for row in rows)


def _in_force(rows: Sequence[Row]) -> RunStarted | RunResumed:
    """Return the last event that says with which agent the run continues."""
    events = (row.event for row in reversed(rows))
    taken = (each for each in events if isinstance(each, RunResumed) and each.fingerprint)
    started = rows[0].event
    assert isinstance(started, RunStarted)
    return next(taken, started)


def _in_force_from_now(plan: AgentPlan, rows: Sequence[Row]) -> RunResumed:
    """Return the event with which a run continues. It describes the agent if that is not the one in force."""
    offered, before = plan.offered_tools(), _in_force(rows)
    fingerprint, tools = plan.fingerprint(offered), dump_definitions(offered)
    if (fingerprint, tools) == (before.fingerprint, before.own_tools):
        return RunResumed("main")
    instructions = plan.instructions if plan.record_prompts else ""
    return RunResumed("main", fingerprint=fingerprint, instructions=instructions, own_tools=tools)


def _kept(plan: AgentPlan, rows: Sequence[Row]) -> tuple[AgentPlan, dict[str, str]]:
    """Return the plan with the instructions and the tools of its own that the run has so far, as far as recorded.

    Returns:
        The plan, and the tools that the run has called whose calls do not fit them any more, each with the reason.
    """
    agent, written = _in_force(rows), _written(rows)
    if written is None:
        plan = replace(plan, instructions=agent.instructions, write_instructions=None)
    else:
        plan = replace(plan, instructions=written)
    if not agent.own_tools:
        return plan, {}
    used = (row.event.name for row in rows if isinstance(row.event, (ToolStarted, DecisionRequested)))
    manager, misfits = pin_tools(plan.manager, agent.own_tools, used)
    return replace(plan, manager=manager), misfits


def _without(tools: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: digest for name, digest in tools.items() if name not in names}


def _written(rows: Iterable[Row]) -> str | None:
    """Return the instructions that a function wrote when the run began, None if they were a text."""
    events = (row.event for row in rows)
    return next((each.text for each in events if isinstance(each, InstructionsWritten) and each.agent == "main"), None)


def _call_of(rows: Iterable[Row], name: str) -> int | None:
    """Return the number of the first event of a tool's calls."""
    calls = (
        row.seq for row in rows if isinstance(row.event, (ToolStarted, DecisionRequested)) and row.event.name == name
    )
    return next(calls, None)


# ------------------------------------------------------------------------------------------------ trying it


async def _tried(how: Continuation, rows: Sequence[Row], run_id: str, load: Load) -> Continuation:
    """Run a record again in memory up to its end, and return why the run could not continue there."""
    journal = Journal.replay(run_id, rows, suspends=True, load=load)
    open_effects: dict[tuple[str, str], Event] = {}

    def follow(event: Any) -> None:
        if isinstance(event, (ToolStarted, DecisionRequested)):
            open_effects[event.agent, event.key] = event
        elif isinstance(event, ToolFinished):
            open_effects.pop((event.agent, event.key), None)

    journal.subscribers.subscribe(follow)
    ended = False
    try:
        await execute_on(how.plan, recorded_task(rows, run_id, load=load), journal)
        ended = True
    except Suspended as suspended:
        for effect in suspended.requests:
            follow(effect)
            made = journal.outcome_of(ToolStarted, effect.agent, effect.key)
            if made is not None and effect.kind == "approval":
                at = next((row.seq for row in reversed(rows) if row.event == made), None)
                problem = f"it would ask for the approval of a call of {effect.name} in the place of one that was made"
                return replace(how, problem=problem, remedy=_CONTINUE_ANYWAY, event=at)
    except CloseoutError as error:
        return replace(how, problem=f"the agent fails on the record: {error}", remedy="Correct the agent.")
    broken = journal.broken(open_effects.keys())
    if broken is not None:
        recorded, text = broken
        at = next((row.seq for row in rows if row.event is recorded), None)
        return replace(how, problem=text, remedy=_CONTINUE_ANYWAY, event=at)
    removed = {tool.spec.name for tool in how.plan.manager.local_tools if isinstance(tool, RemovedTool)}
    for event in open_effects.values():
        name = getattr(event, "name", "")
        if name in removed and not ended:
            remedy = f"If it has a new name: @tool(replaces={name!r})."
            problem = f"tool {name} is gone, and a call of it is open"
            return replace(how, problem=problem, remedy=remedy, event=_call_of(rows, name))
    return how
