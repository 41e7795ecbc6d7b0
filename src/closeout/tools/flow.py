"""Flow rules: what an agent may still do by itself once it has read text that nobody vouches for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from closeout.errors import UsageError
from closeout.messages import ToolCall, ToolSpec
from closeout.records import record

__all__ = [
    "TRUSTED",
    "UNTRUSTED",
    "CallLabels",
    "Flow",
    "FlowPolicy",
    "FlowVerdict",
    "Guard",
    "Labels",
    "longest_passage",
    "strictest",
]

UNTRUSTED = "untrusted"
TRUSTED = "trusted"  # how records and settings write the absence of `UNTRUSTED`

Labels: TypeAlias = frozenset[str]
"""`"untrusted"` for text that nobody vouches for, and the names of who may have it."""

Guard: TypeAlias = Literal["ask", "refuse", "allow"]
"""The decision on a call: ask a person, refuse it, or allow it."""

_STRICTEST: tuple[Guard, ...] = ("refuse", "ask", "allow")

_FREE: Mapping[str, str] = {"local": "its effect stays on this machine", "reversible": "it can be undone"}

NO_LABELS: Labels = frozenset()

MAX_SEARCHED = 1_000  # characters of the arguments that a passage is looked for
MAX_SOURCE = 100_000  # characters of results that it is looked for in
MIN_PASSAGE = 8  # characters of a passage that is shown although it is not a whole argument


@record(kw_only=True)
class CallLabels:
    """The labels of what a call depends on.

    Attributes:
        tool: The tool, with its policy.
        decided: The labels of the text on which the decision to make the call may depend.
        arguments: By parameter, the labels of the text that the argument may come from.
    """

    tool: ToolSpec
    decided: Labels = NO_LABELS
    arguments: Mapping[str, Labels] = field(default_factory=dict)

    @property
    def all(self) -> Labels:
        """The labels of the decision and of every argument."""
        return self.decided.union(*self.arguments.values())


FlowPolicy: TypeAlias = Callable[[ToolCall, CallLabels], Guard | None]
"""Decides on a call. None leaves it to the next policy, and then to the default rule."""


@record
class FlowVerdict:
    """The decision of flow rules on a call, and the reason in one sentence."""

    guard: Guard
    reason: str


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The flow rules of an agent: `Agent(flow=Flow(trusted=["crm"]))`.

    Results of tools are untrusted, but for the tools that you trust. Tasks, instructions and messages of people are
    trusted. A call with effects that was decided after untrusted text was read, or whose arguments come from it, is
    guarded. So is a call that passes a labelled value to a tool that may not have it. Tools are named `"tool"`; those
    of an MCP server `"server"`, which means all of them, or `"server/tool"`.

    Args:
        trusted: The tools whose results are trusted.
        guard: What becomes of a guarded call: `"ask"` a person, as for approvals, `"refuse"`, or `"allow"`. Or a
            mapping of tools to these, with `"*"` for all others.
        effects: By tool, what a call changes, in place of what the tool says: `"local"`, `"reversible"` or `"outside"`.
        free: The effects that a call may have after untrusted text was read, unless `guard` or `allow` names its tool:
            those that stay on this machine, and those that can be undone. Such a call is recorded with the reason.
        allow: By tool, the parameters that may be untrusted in programs, or `"untrusted"`: the tool is never guarded
            for what was read. A tool with an entry is guarded even if it only reads.
        labels: By tool, the labels of its results: `{"payroll": ["hr"]}`.
        accepts: By tool, the labels that it may have.
        policies: Functions of the call and its `CallLabels`, asked first. Each returns `"allow"`, `"ask"`, `"refuse"`,
            or None to leave it to the next one. One that fails never allows a call.
        ask: `"calls"` asks about each guarded call, with its arguments. `"plans"` asks once about a program that was
            written before anything untrusted was read, with what in it depends on text that it will read; a call that
            was not listed is asked about as well.
        trust_files: The contents of the task's files are trusted.
        trust_history: The messages before the task are trusted. Those of a session have the labels of its runs.

    Raises:
        UsageError: An argument is not valid.
    """

    trusted: Sequence[str] = ()
    guard: Guard | Mapping[str, Guard] = "ask"
    effects: Mapping[str, Literal["local", "reversible", "outside"]] = field(default_factory=dict)
    free: Sequence[Literal["local", "reversible"]] = ("local", "reversible")
    allow: Mapping[str, Sequence[str] | str] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    accepts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    policies: Sequence[FlowPolicy] = ()
    ask: Literal["calls", "plans"] = "calls"
    trust_files: bool = False
    trust_history: bool = False

    def __post_init__(self) -> None:
        _check_names("trusted", self.trusted)
        guards = self.guard.values() if isinstance(self.guard, Mapping) else (self.guard,)
        for each in guards:
            if each not in get_args(Guard):
                raise UsageError(f"guard must be 'ask', 'refuse' or 'allow', got {each!r:.40}.")
        _check_effects(self.effects, self.free)
        for name in ("allow", "labels", "accepts"):
            given = getattr(self, name)
            if not isinstance(given, Mapping):
                raise UsageError(f"{name} must map tools to names, got {given!r:.60}. Pass {name}={{'tool': ['…']}}.")
            for tool, names in given.items():
                if not (name == "allow" and names == UNTRUSTED):
                    _check_names(f"{name}[{tool!r}]", names)
        for label in (name for names in self.labels.values() for name in names):
            if label in (TRUSTED, UNTRUSTED):
                raise UsageError(f"labels must not be {label!r}. Use trusted= to say which tools are trusted.")
        if self.ask not in ("calls", "plans"):
            raise UsageError(f"ask must be 'calls' or 'plans', got {self.ask!r:.40}.")
        for policy in self.policies:
            if not callable(policy):
                raise UsageError(f"A policy must be a function of a call and its labels, got {policy!r:.60}.")

    @property
    def names(self) -> list[str]:
        """The tools that the rules name."""
        guarded = [name for name in self.guard if name != "*"] if isinstance(self.guard, Mapping) else []
        return [*self.trusted, *guarded, *self.effects, *self.allow, *self.labels, *self.accepts]

    def described(self) -> list[Any]:
        """Return the rules as JSON values, for the fingerprint of an agent."""
        tables = (self.guard, self.effects, self.allow, self.labels, self.accepts)
        policies = [getattr(policy, "__qualname__", type(policy).__name__) for policy in self.policies]
        flags = (self.ask, self.trust_files, self.trust_history, sorted(self.free))
        return [sorted(self.trusted), *tables, policies, *flags]

    # -------------------------------------------------------------------------------------------- labels

    def trusts(self, tool: ToolSpec) -> bool:
        """Return whether the results of a tool are trusted."""
        return tool.policy.returns == TRUSTED or not _names_of(tool).isdisjoint(self.trusted)

    def labels_of(self, tool: ToolSpec) -> Labels:
        """Return the labels of the results of a tool, whatever it is called with."""
        own = frozenset((*tool.policy.labels, *_entries(self.labels, tool)))
        return own if self.trusts(tool) else own | {UNTRUSTED}

    # -------------------------------------------------------------------------------------------- decisions

    def decide(self, call: ToolCall, labels: CallLabels) -> FlowVerdict | None:
        """Return the decision on a call; None if nothing speaks against it and no policy has decided."""
        secret = self._secret(labels)
        problem = self._untrusted(labels) or secret
        for policy in self.policies:
            name = getattr(policy, "__qualname__", type(policy).__name__)
            try:
                found = policy(call, labels)
            except Exception as error:
                return self._failed(labels.tool, f"the policy {name} raised {type(error).__name__}: {error}")
            if found is None:
                continue
            if found not in get_args(Guard):
                return self._failed(labels.tool, f"the policy {name} returned {found!r:.60}")
            return FlowVerdict(found, f"{problem or call.name} (the policy {name} says: {found})")
        if not problem:
            return None
        if not secret and (effects := self._effects(labels.tool)) in self.free:
            return FlowVerdict("allow", f"{problem}, but {_FREE[effects]}")
        return FlowVerdict(self._guard_of(labels.tool), problem)

    def _effects(self, tool: ToolSpec) -> str:
        """Return what a call changes. A tool that `guard` or `allow` names is judged by these rules alone."""
        stated = {self.effects[name] for name in _names_of(tool) if name in self.effects}
        if stated:
            return stated.pop() if len(stated) == 1 else "outside"
        named = isinstance(self.guard, Mapping) and not _names_of(tool).isdisjoint(self.guard)
        return "outside" if named or tool.policy.destructive or self._states(tool) else tool.policy.effects or "outside"

    def _states(self, tool: ToolSpec) -> bool:
        """Return whether the tool, or a rule for it, says what of a call may be untrusted."""
        return tool.policy.allow is not None or not _names_of(tool).isdisjoint(self.allow)

    def _failed(self, tool: ToolSpec, problem: str) -> FlowVerdict:
        guard = self._guard_of(tool)
        return FlowVerdict("ask" if guard == "allow" else guard, f"{tool.name} cannot be decided on: {problem}")

    def _guard_of(self, tool: ToolSpec) -> Guard:
        if not isinstance(self.guard, Mapping):
            return self.guard
        found = {self.guard[name] for name in _names_of(tool) if name in self.guard}
        return next((each for each in _STRICTEST if each in found), self.guard.get("*", "ask"))

    def _untrusted(self, labels: CallLabels) -> str:
        """Return why a call depends on untrusted text that it may not depend on; empty if it does not."""
        tool, allowed = labels.tool, self._allowed(labels.tool)
        if allowed is None or (tool.policy.only_reads and not self._states(tool)):
            return ""
        if UNTRUSTED in labels.decided:
            return f"{tool.name} was decided after untrusted text was read"
        wrong = [name for name, each in labels.arguments.items() if UNTRUSTED in each and name not in allowed]
        return f"{tool.name} takes {' and '.join(wrong)} from untrusted text" if wrong else ""

    def _secret(self, labels: CallLabels) -> str:
        """Return which labels of a call its tool may not have; empty if it may have all."""
        tool = labels.tool
        if tool.policy.only_reads and (tool.policy.returns == "read" or self.trusts(tool)):
            return ""
        may_have = {UNTRUSTED, *tool.policy.accepts, *tool.policy.labels}
        may_have.update(_entries(self.accepts, tool), _entries(self.labels, tool))
        secret = labels.all - may_have
        return f"{tool.name} may not have values with the label {' and '.join(sorted(secret))}" if secret else ""

    def _allowed(self, tool: ToolSpec) -> frozenset[str] | None:
        """Return the parameters of a tool that may be untrusted; None if the whole call may be."""
        stated = tool.policy.allow
        entries = [self.allow[name] for name in _names_of(tool) if name in self.allow]
        if stated == UNTRUSTED or UNTRUSTED in entries:
            return None
        listed = [] if stated is None or isinstance(stated, str) else [*stated]
        return frozenset((*listed, *(name for entry in entries for name in entry)))


def strictest(verdicts: Iterable[FlowVerdict | None]) -> FlowVerdict | None:
    """Return the strictest decision, None without any."""
    found = [each for each in verdicts if each is not None]
    return min(found, key=lambda each: _STRICTEST.index(each.guard), default=None)


def _check_names(name: str, value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(each, str) for each in value):
        raise UsageError(f"{name} must be a list of names, got {value!r:.60}.")


def _check_effects(effects: Any, free: Any) -> None:
    if isinstance(free, str) or not {*free} <= _FREE.keys():
        raise UsageError(f"free must be a list of 'local' and 'reversible', got {free!r:.60}.")
    if not isinstance(effects, Mapping):
        raise UsageError(
            f"effects must map tools to their effects, got {effects!r:.60}. Pass effects={{'tool': 'local'}}."
        )
    for tool, each in effects.items():
        if each not in (*_FREE, "outside"):
            raise UsageError(f"effects[{tool!r}] must be 'local', 'reversible' or 'outside', got {each!r:.60}.")


def _names_of(tool: ToolSpec) -> frozenset[str]:
    """The names that rules may use for a tool. A server cannot take the name of one of the agent's own tools."""
    if tool.server_name is None:
        return frozenset((tool.name,))
    return frozenset((tool.server_name, f"{tool.server_name}/{tool.name}"))


def _entries(table: Mapping[str, Sequence[str]], tool: ToolSpec) -> list[str]:
    if not table:
        return []
    return [each for name in _names_of(tool) for each in table.get(name, ())]


def longest_passage(text: str, source: str) -> str:
    """Return the longest passage of a text that is in a source too; empty if only a trifle is.

    Time is linear in the text; each step searches the source.
    """
    text, source = text[:MAX_SEARCHED], source[:MAX_SOURCE]
    best, begin = "", 0
    for end in range(1, len(text) + 1):
        while begin < end and text[begin:end] not in source:
            begin += 1
        if end - begin > len(best):
            best = text[begin:end]
    best = best.strip()
    return best if len(best) >= MIN_PASSAGE or best == text.strip() else ""
