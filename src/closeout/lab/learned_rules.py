"""Rules learned from the decisions of people: the narrowest ones that agree with every decision of the record."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from closeout.errors import UsageError
from closeout.journal.events import DecisionMade, DecisionRequested, FlowDecided, RunStarted, ToolStarted
from closeout.journal.run_names import call_id
from closeout.journal.store import Row, Store
from closeout.records import record
from closeout.shared_files import write_whole
from closeout.tools.approval_rules import ApprovalRule, Condition, as_text, called

__all__ = [
    "LEAST",
    "MadeDecision",
    "Suggestion",
    "add_to_settings",
    "decisions_of",
    "recorded_decisions",
    "rule_for",
    "suggestions",
]

LEAST = 5  # approvals that a rule rests on, at least
CHANCE = 0.01  # the highest probability that a rule saw no denial by chance
MOST_VALUES = 12  # different values that a rule lists
MOST_TESTS = 100  # ways to divide decisions by one argument that are tried
MOST_RUNS = 1_000  # the latest runs whose decisions are looked at for a rule beside a question
MOST_SPLITS = 6  # of the decisions on one tool, one within the other
_BOUNDARIES = "/@.:_- "  # a common beginning or end of texts stops at one of these


@record(kw_only=True)
class MadeDecision:
    """A decision of a person on a call.

    Attributes:
        run_id: The run.
        call: The name of the decision in its run, such as r3.
        tool: The tool, or `server/tool` if the call was made at an MCP server.
        arguments: The arguments: those that were approved, or those that were denied.
        approved: True if the call was approved.
        counts: True if an approval is evidence for a rule. One that was asked for by flow rules is not: the call
            depends on text that nobody vouches for.
    """

    run_id: str
    call: str
    tool: str
    arguments: Mapping[str, Any]
    approved: bool
    counts: bool = True


@record(kw_only=True)
class Suggestion:
    """A rule with its evidence.

    Attributes:
        rule: The rule.
        approved: The approvals that it agrees with. It agrees with no denial.
        denied: The denials of the same tool, none of which it would have let through.
    """

    rule: ApprovalRule
    approved: tuple[MadeDecision, ...]
    denied: int


def decisions_of(run_id: str, rows: Iterable[Row]) -> Iterator[MadeDecision]:
    """Yield what people decided on the calls of a run.

    A changed call is a denial of the old arguments and an approval of the new ones.
    """
    asked: dict[tuple[str, str], DecisionRequested] = {}
    made: list[DecisionMade] = []
    by_flow: set[tuple[str, str]] = set()
    servers: dict[tuple[str, str], ToolStarted] = {}
    for row in rows:
        event = row.event
        if isinstance(event, DecisionRequested) and event.kind == "approval" and "." not in event.request:
            asked[event.agent, event.request] = event
        elif isinstance(event, DecisionMade) and event.verdict in ("approve", "deny"):
            made.append(event)
        elif isinstance(event, FlowDecided):
            by_flow.add((event.agent, event.handle))
        elif isinstance(event, ToolStarted):
            servers[event.agent, event.handle] = event
    for each in made:
        place = each.agent, each.request
        if (request := asked.get(place)) is None:
            continue
        tool = called(servers[place]) if place in servers else request.name
        given = each.verdict == "approve", request.arguments
        changed = [(False, request.arguments), (True, each.arguments)] if each.arguments is not None else [given]
        for approved, arguments in changed:
            found = json.loads(arguments or "{}")
            if isinstance(found, dict):
                yield MadeDecision(
                    run_id=run_id,
                    call=call_id(each.agent, each.request),
                    tool=tool,
                    arguments=found,
                    approved=approved,
                    counts=place not in by_flow,
                )


def recorded_decisions(store: Store, agent: str | None = None, most: int = sys.maxsize) -> Iterator[MadeDecision]:
    """Yield what people decided in the runs of a store, the latest last.

    Args:
        store: The store.
        agent: Only runs of the agent with this name.
        most: Look only at so many runs.
    """
    imported = store.imported_runs()  # what they say that somebody approved is not known to be true
    for run_id in reversed(store.runs_with(DecisionMade, most)):
        if run_id not in imported:
            rows = [*store.rows(run_id)]
            began = rows[0].event if rows else None
            if agent is None or (isinstance(began, RunStarted) and began.name == agent):
                yield from decisions_of(run_id, rows)


def rule_for(store: Store, run_id: str, call: str) -> Suggestion | None:
    """Return the suggested rule that would approve a call that waits for approval, or None.

    A call that flow rules ask about has no such rule, which would not answer their question.
    """
    began = None
    for event in (row.event for row in store.rows(run_id)):
        if isinstance(event, RunStarted):
            began = event
        elif isinstance(event, DecisionRequested | FlowDecided):
            name = event.request if isinstance(event, DecisionRequested) else event.handle
            if call_id(event.agent, name) != call:
                continue
            if isinstance(event, FlowDecided) or event.kind != "approval" or began is None:
                return None
            given = json.loads(event.arguments or "{}")
            made = recorded_decisions(store, began.name, MOST_RUNS)
            named = (each for each in suggestions(made) if each.rule.tool.rpartition("/")[2] == event.name)
            return next((each for each in named if each.rule.fits(each.rule.tool, given)), None)
    return None


def add_to_settings(path: Path, rule: ApprovalRule) -> None:
    """Write a rule into a settings file, as one line under `tools.approved`. The rest of the file stays as it is.

    Raises:
        UsageError: The file has these keys in a form to which no line can be added.
    """
    before = path.read_text("utf-8")
    wanted = yaml.safe_load(before) or {}
    is_new = "tools" not in wanted
    rules = wanted.setdefault("tools", {}).setdefault("approved", [])
    if rule.written() in rules:
        return
    rules.insert(0, rule.written())
    line, at, added = f"- {rule}\n", 0, ""
    if is_new:
        at, added = len(before), f"tools:\n  approved:\n    {line}"
        added = added if before.endswith("\n") or not before else f"\n{added}"
    elif found := re.search(r"^ +approved: *\n(?: *#.*\n)*(?=( *)- )", before, re.MULTILINE):
        at, added = found.end(), found[1] + line
    elif found := re.search(r"^tools: *\n(?: *#.*\n)*(?=( +)\S)", before, re.MULTILINE):
        at, added = found.end(), f"{found[1]}approved:\n{found[1]}  {line}"
    after = before[:at] + added + before[at:]
    with suppress(yaml.YAMLError):
        if yaml.safe_load(after) == wanted:
            write_whole(path, after.encode())
            return
    raise UsageError(f"{path} has `tools.approved` in a form to which no line can be added. Add this one: {line}")


def suggestions(decisions: Iterable[MadeDecision]) -> list[Suggestion]:
    """Return rules that agree with every decision, those with the most evidence first.

    A rule is the narrowest description of the approvals that it rests on: the values, ranges, beginnings and ends that
    they have. Where denials lie among them, the decisions are divided by the argument that tells them apart best. A
    rule rests on at least five approvals; where decisions were divided, on so many that it is unlikely to have met no
    denial by chance, and a range ends so many approvals before the limit that divides them.
    """
    tools: defaultdict[str, list[MadeDecision]] = defaultdict(list)
    for each in decisions:
        tools[each.tool].append(each)
    found: list[Suggestion] = []
    for tool, made in tools.items():
        # A call that was denied was not made, so its server is not known.
        denied = [each for name in {tool, tool.rpartition("/")[2]} for each in tools[name] if not each.approved]
        approved = [each for each in made if each.approved and each.counts]
        shapes: defaultdict[frozenset[str], list[MadeDecision]] = defaultdict(list)
        for each in approved:
            shapes[frozenset(each.arguments)].append(each)
        for shape, alike in shapes.items():
            against = [each for each in denied if each.arguments.keys() == shape]
            for rule, evidence in _learned(tool, alike, against, _Grounds()):
                found.append(Suggestion(rule=rule, approved=tuple(evidence), denied=len(denied)))
    return sorted(found, key=lambda each: -len(each.approved))


@record
class _Grounds:
    """The evidence that a rule needs.

    Attributes:
        rate: How often calls were denied among those that were divided last.
        splits: How often the decisions may be divided further.
        tried: The ways to divide them that were tried so far. Each is a chance to find approvals without a denial.
    """

    rate: float = 1.0
    splits: int = MOST_SPLITS
    tried: int = 0

    def suffices(self, approvals: int) -> bool:
        """Return whether so many approvals without a denial are hardly an accident."""
        if approvals < LEAST or not self.tried:
            return approvals >= LEAST
        return approvals * math.log1p(-self.rate) <= math.log(CHANCE / self.tried)


def _learned(
    tool: str, approved: Sequence[MadeDecision], denied: Sequence[MadeDecision], grounds: _Grounds
) -> Iterator[tuple[ApprovalRule, Sequence[MadeDecision]]]:
    """Yield rules that approve of some of the approved calls and of none that was denied."""
    if not grounds.suffices(len(approved)):
        return
    names = approved[0].arguments
    rule = ApprovalRule(tool, {name: _hull([each.arguments[name] for each in approved]) for name in names})
    against = [each for each in denied if rule.fits(tool, each.arguments)]
    if not against:
        yield rule, approved
    elif grounds.splits:
        best, tried = _best_split(approved, against)
        if best is None:
            return
        name, test = best
        rate = len(against) / (len(against) + len(approved))
        further = _Grounds(rate, grounds.splits - 1, grounds.tried + tried)
        edge = math.ceil(math.log(CHANCE) / math.log1p(-rate))  # so few approvals next to a limit may be an accident
        for side in (True, False):
            within = [each for each in approved if test(each) is side]
            if name:
                within = sorted(within, key=lambda each: each.arguments[name], reverse=side)[edge:]
            yield from _learned(tool, within, against, further)


def _hull(values: Sequence[Any]) -> Condition:
    """Return the narrowest condition that values fit."""
    different = dict.fromkeys(map(as_text, values))
    if len(different) <= (1 if _are_numbers(values) else MOST_VALUES) and len(values) >= 2 * len(different) - 1:
        return Condition(tuple(different))
    if _are_numbers(values):
        return Condition(at_least=min(values), at_most=max(values))
    texts = _texts_in(values)
    if texts is None:
        return Condition(anything=True)
    begins, ends = _common(texts), _common([each[::-1] for each in texts])[::-1]
    return Condition(begins=begins, ends=ends) if begins or ends else Condition(anything=True)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def _texts_in(values: Sequence[Any]) -> list[str] | None:
    """Return texts and the items of lists of texts; None if there is anything else."""
    found = [item for each in values for item in _items(each)]
    return found if found and all(isinstance(each, str) for each in found) else None


def _common(texts: Sequence[str]) -> str:
    """Return how texts begin in common, up to a boundary between words."""
    first, last = min(texts), max(texts)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[: max(first.rfind(each, 0, same) for each in _BOUNDARIES) + 1]


def _best_split(approved: Sequence[MadeDecision], denied: Sequence[MadeDecision]) -> tuple[Any, int]:
    """Return the test that divides the approvals and tells them from the denials best, and how many were tried.

    The test comes with the argument that it compares with a limit, "" for another. It is None if no test divides them.
    """
    best, least, tried = None, _disorder(len(approved), len(denied)) - 1e-9, 0
    for tried, (name, test) in enumerate(_tests(approved, denied), 1):  # noqa: B007
        yes, no = sum(map(test, approved)), sum(map(test, denied))
        left = _disorder(yes, no) + _disorder(len(approved) - yes, len(denied) - no)
        if left < least and 0 < yes < len(approved):
            best, least = (name, test), left
    return best, tried


def _disorder(yes: int, no: int) -> float:
    """Return the entropy of so many decisions, times their number."""
    return -sum(each * math.log2(each / (yes + no)) for each in (yes, no) if each)


def _tests(approved: Sequence[MadeDecision], denied: Sequence[MadeDecision]) -> Iterator[Any]:
    for name in approved[0].arguments:
        values = [each.arguments[name] for each in (*approved, *denied)]
        if _are_numbers(values):
            limits = sorted(set(values))
            for limit in limits[1 :: 1 + len(limits) // MOST_TESTS]:
                yield name, lambda each, name=name, limit=limit: each.arguments[name] < limit
            continue
        for text, _ in Counter(map(as_text, values)).most_common(MOST_TESTS):
            yield "", lambda each, name=name, text=text: as_text(each.arguments[name]) == text
        texts = _texts_in(values) or ()
        for part, _ in Counter(part for each in texts for part in _parts(each)).most_common(MOST_TESTS):
            yield "", lambda each, name=name, part=part: all(part.fits(item) for item in _items(each.arguments[name]))


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _parts(text: str) -> Iterator[Condition]:
    """Yield the beginnings and ends of a text, up to each boundary between words."""
    for at, character in enumerate(text):
        if character in _BOUNDARIES:
            yield Condition(begins=text[: at + 1])
            yield Condition(ends=text[at:])
