"""Effects whose outcome is not there yet, such as a person's decision: the run is suspended until it is recorded.

`decide` is the effect. `pending_decisions` and `record_decisions` need the record of a run only, neither its agent nor
its process.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, Literal, TypeAlias

from closeout.errors import DecisionRefused, Suspended, ToolError
from closeout.journal.events import DecisionMade, DecisionRequested, Event, RunEnded
from closeout.journal.run_journal import Journal
from closeout.journal.run_names import call_id
from closeout.journal.store import Row, Store
from closeout.messages import ToolSpec
from closeout.records import record
from closeout.run.plan import Scope
from closeout.tools.mcp.mcp_questions import read_form

__all__ = [
    "AGAIN",
    "Decision",
    "Decisions",
    "PendingDecision",
    "awaited",
    "call_digest",
    "decide",
    "due_time",
    "end_wait",
    "ended_timer",
    "login_digest",
    "must_rerun",
    "noted_due",
    "open_requests",
    "pending_decisions",
    "pending_of",
    "question_digest",
    "record_decisions",
    "recorded_requests",
    "utc_time",
    "wait_until",
]

Verdict: TypeAlias = Literal["approve", "deny", "answer"]
AGAIN = "again"  # "r3.again1": whether call r3, which a crash cut off, is made again
EARLIEST = 1.0  # Seconds since the epoch: any time in the past.
_VERDICTS = ("approve", "deny", "answer")
BY_PERSON = ("approval", "question")  # the kinds that a person decides
_ENDED = {"cancelled": "was cancelled", "failed": "failed"}


@record(kw_only=True)
class PendingDecision:
    """A decision that a run waits for: the approval of a call, the answer to a question, a time, a signal, or a login.

    Attributes:
        id: Its name in the run: the handle of the call, "r3", or "r4:clerk/r2" for a call of the sub-agent in r4.
        kind: "approval" or "question", which a person decides; "timer" or "signal"; "login" to an MCP server.
        tool: The name of the tool; for a login that of the server.
        arguments: The arguments of the call; for a question `question` and `options`; for a signal its name, `signal`,
            or the names of which the first is waited for, `signals`; for a login `server` and `url`,
            and `scope` if it must have more rights.
        hash: SHA-256 of the tool with its definition and the arguments. The decision holds for these alone.
        reason: Why a decision is needed.
        default: The answer if nobody decides in time; None if the run waits for ever.
        expires: When the default counts, the timer ends, or the wait for the signal times out, in seconds since the
            epoch; None if the run waits for ever.
    """

    id: str
    kind: str
    tool: str
    arguments: Mapping[str, Any]
    hash: str
    reason: str = ""
    default: str | None = None
    expires: float | None = None

    @property
    def by_person(self) -> bool:
        """True if a person decides it, rather than a clock or another program."""
        return self.kind in BY_PERSON

    @property
    def may_end_early(self) -> bool:
        """True if it is a wait of the agent itself, for its start or for a model's server, which `end_wait` ends."""
        return self.kind == "timer" and not self.tool

    @property
    def signals(self) -> tuple[str, ...]:
        """The names of the signals of which the first is waited for; empty for other kinds."""
        if self.kind != "signal":
            return ()
        several = self.arguments.get("signals")
        return tuple(map(str, several)) if isinstance(several, list) else (str(self.arguments.get("signal", "")),)


@record(kw_only=True)
class Decision:
    """A decision on what a run waits for.

    Attributes:
        verdict: "approve" or "deny" a call; "answer" a question.
        arguments: For "approve": the arguments to call the tool with instead.
        text: The answer; for "deny" the reason, which the model is shown.
        hash: The hash of what the person who decides was shown, to make sure that it has not changed.
        by: Who decided, for the record.
    """

    verdict: Verdict
    arguments: Mapping[str, Any] | None = None
    text: str = ""
    hash: str = ""
    by: str = ""


Decisions: TypeAlias = Mapping[str, "Decision | Mapping[str, Any] | bool | str"]
"""Decisions by id: True approves, False denies, a text answers a question; or a `Decision`, or its fields as a mapping.
"""


# ------------------------------------------------------------------------------------------------ in a run


def call_digest(spec: ToolSpec, arguments: Any) -> str:
    """Return the SHA-256 of a call: of `[tool, server, arguments, description, parameters]` as JSON.

    It has sorted keys and no spaces. A tool with another definition may do something else with the same arguments.
    """
    return _digest([spec.name, spec.server_name, arguments, spec.description, spec.parameters])


def question_digest(spec: ToolSpec, question: Any) -> str:
    """Return the SHA-256 of a tool's question: of `[tool, server, question]` as JSON."""
    return _digest([spec.name, spec.server_name, question])


def login_digest(server: str, url: str) -> str:
    """Return the SHA-256 of the login to a server: of `["login", server, url]` as JSON."""
    return _digest(["login", server, url])


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


async def decide(
    scope: Scope,
    request: DecisionRequested,
    outcome_of: Callable[[DecisionRequested], Awaitable[DecisionMade | None]] | None = None,
) -> DecisionMade:
    """Return the recorded outcome of a request.

    Args:
        scope: The agent that waits.
        request: What it waits for.
        outcome_of: Returns an outcome that is there but not recorded, None if it is not there. Without it, that is the
            default answer if nobody has decided in time.

    Raises:
        Suspended: The decision has not been made yet.
    """
    journal = scope.journal
    if journal.is_over:  # a task that a suspended call has left behind
        raise Suspended([request])
    recorded = journal.recorded(DecisionRequested, request.agent, request.request)
    if isinstance(recorded, DecisionRequested) and recorded.digest == request.digest:
        request = recorded  # it expires when it was first going to
    if journal.replay_only and not journal.has_decision(request):
        raise Suspended([request])

    async def outcome() -> Event:
        made = await outcome_of(request) if outcome_of is not None else _default_answer(request, scope.run.clock())
        if made is None:
            scope.run.waits.append(request)
            raise Suspended([request])
        return made

    made = await journal.effect(request, outcome)
    assert isinstance(made, DecisionMade)
    return made


def recorded_requests(journal: Journal, agent: str, prefix: str, first: int = 1) -> Iterator[DecisionRequested]:
    """Yield the recorded requests named `prefix` with a number, from `first` on, that the run has not reached yet."""
    for number in count(first):
        asked = journal.recorded(DecisionRequested, agent, f"{prefix}{number}")
        if not isinstance(asked, DecisionRequested):
            return
        yield asked


def utc_time(seconds: float) -> str:
    """Return seconds since the epoch as ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


async def wait_until(scope: Scope, name: str, when: float, reason: str = "") -> None:
    """Wait for a time on behalf of an agent itself, not of a call. Raises Suspended before it."""
    arguments = json.dumps({"until": utc_time(when)})
    request = DecisionRequested(
        scope.path, name, "timer", name="", arguments=arguments, digest="", reason=reason, expires=when
    )
    await decide(scope, request, partial(ended_timer, scope))


async def ended_timer(scope: Scope, request: DecisionRequested) -> DecisionMade | None:
    """Return the end of a timer, None before it."""
    assert request.expires is not None
    if scope.run.clock() < request.expires:
        return None
    return DecisionMade(request.agent, request.request, "time", digest=request.digest, by="clock")


def _default_answer(request: DecisionRequested, now: float) -> DecisionMade | None:
    if request.default is None or request.expires is None or now < request.expires:
        return None
    return DecisionMade(
        request.agent, request.request, "answer", digest=request.digest, text=request.default, by="default"
    )


# ------------------------------------------------------------------------------------------------ in a record


def pending_of(request: DecisionRequested) -> PendingDecision:
    """Return a request as users see it."""
    return PendingDecision(
        id=_id(request),
        kind=request.kind,
        tool=request.name,
        arguments=_shown_arguments(request),
        hash=request.digest,
        reason=request.reason,
        default=request.default,
        expires=request.expires,
    )


def _shown_arguments(request: DecisionRequested) -> dict[str, Any]:
    """The arguments without what a server wants back with an answer."""
    arguments: dict[str, Any] = json.loads(request.arguments)
    return {name: value for name, value in arguments.items() if name != "context" or request.kind != "question"}


def pending_decisions(rows: Iterable[Row]) -> tuple[PendingDecision, ...]:
    """Return what a recorded run waits for, oldest first."""
    return tuple(map(pending_of, open_requests(rows).values()))


def due_time(pending: Sequence[PendingDecision]) -> float:
    """Return when a run that waits for this can continue without a signal; infinity if it cannot.

    That is when a timer ends or a wait for a signal times out, or else when every question has a default answer that
    counts. A run that waits for nothing any more could have continued always.
    """
    own = [each for each in pending if not each.by_person]
    if own:
        return min((each.expires for each in own if each.expires is not None), default=math.inf)
    if any(each.default is None or each.expires is None for each in pending):
        return math.inf
    return max((each.expires for each in pending if each.expires is not None), default=EARLIEST)


def noted_due(pending: Sequence[PendingDecision]) -> float:
    """Return when a run can continue as its journal notes it: 0, to look at its events, if it waits for a login."""
    return 0.0 if any(each.kind == "login" for each in pending) else due_time(pending)


def record_decisions(
    store: Store, run_id: str, decisions: Decisions, *, by: str = "", also: Sequence[Event] = ()
) -> tuple[PendingDecision, ...]:
    """Record decisions of a run that waits, all of them or none. The run is not resumed.

    Args:
        store: Where the run is kept.
        run_id: The run.
        decisions: By the ids of what it waits for.
        by: Who decides, where a decision does not say it itself.
        also: Events to record with them.

    Returns:
        What the run still waits for.

    Raises:
        DecisionRefused: The run does not wait for this, it was decided before, or the decision does not fit it.
        RunNotFound: There is no such run.
        JournalLocked: The run is being executed. What it needs can be decided when it waits.
        JournalError: The decisions cannot be written.
    """

    def events(rows: Sequence[Row], now: float) -> list[Event]:
        requests = open_requests(rows)
        idle = now - rows[-1].time if rows else 0.0
        made: list[Event] = []
        for name, value in decisions.items():
            request = requests.get(name)
            if request is None:
                raise DecisionRefused(_unknown(run_id, name, rows, requests))
            made.append(_made(request, _read_decision(pending_of(request), value), by, idle=0.0 if made else idle))
        return [*made, *also]

    recorded = store.add_events(run_id, events, lambda rows: noted_due(pending_decisions(rows)))
    return pending_decisions(recorded.rows)


def end_wait(store: Store, run_id: str, name: str, *, by: str = "") -> tuple[PendingDecision, ...]:
    """End the wait of an agent itself for a time: for its start, or for a model's server.

    A wait that a tool has begun keeps its time. Returns what the run still waits for.

    Raises:
        DecisionRefused: The run does not wait for this, or a tool does.
        RunNotFound: There is no such run.
        JournalLocked: The run is being executed.
        JournalError: The end cannot be written.
    """

    def events(rows: Sequence[Row], now: float) -> list[Event]:
        request = open_requests(rows).get(name)
        if request is None or not pending_of(request).may_end_early:
            raise DecisionRefused(f"Run {run_id} has no wait {name!r:.80} that can be ended early.")
        idle = now - rows[-1].time
        return [DecisionMade(request.agent, request.request, "time", digest=request.digest, by=by, idle=idle)]

    recorded = store.add_events(run_id, events, lambda rows: noted_due(pending_decisions(rows)))
    return pending_decisions(recorded.rows)


def _id(event: DecisionRequested | DecisionMade) -> str:
    return call_id(event.agent, event.request)


def open_requests(rows: Iterable[Row]) -> dict[str, DecisionRequested]:
    """Return the requests of a record that have no decision, by id."""
    requests: dict[str, DecisionRequested] = {}
    withdrawn: dict[str, DecisionRequested] = {}  # requests of a run that ended, until it waits again
    for row in rows:
        event = row.event
        if isinstance(event, DecisionRequested):
            requests.pop(_id(event), None)
            requests[_id(event)] = event
        elif isinstance(event, DecisionMade):
            request = requests.get(_id(event))
            if request is not None and request.digest == event.digest:
                del requests[_id(event)]
        elif isinstance(event, RunEnded) and event.status == "waiting":
            requests = withdrawn | requests
            withdrawn = {}
        elif isinstance(event, RunEnded):
            withdrawn |= requests
            requests = {}
    return requests


def _unknown(run_id: str, name: str, rows: Iterable[Row], requests: Mapping[str, DecisionRequested]) -> str:
    made = [row.event for row in rows if isinstance(row.event, DecisionMade) and _id(row.event) == name]
    if made:
        return f"{name} of run {run_id} was decided before: {made[-1].verdict}. A decision cannot be changed."
    if not requests:
        ended = [row.event.status for row in rows if isinstance(row.event, RunEnded)]
        if ended and ended[-1] in _ENDED:
            return f"Run {run_id} does not wait for a decision: it {_ENDED[ended[-1]]}. Resume it; it then asks again."
        return f"Run {run_id} does not wait for a decision."
    return f"Run {run_id} does not wait for a decision on {name!r}. It waits for: {', '.join(requests)}."


def _read_decision(pending: PendingDecision, value: Any) -> Decision:
    """Read a decision as users write it, and check that it fits what is asked."""
    name = pending.id
    if isinstance(value, bool):
        value = Decision(verdict="approve" if value else "deny")
    elif isinstance(value, str):
        value = Decision(verdict="answer", text=value)
    elif isinstance(value, Mapping):
        try:
            value = Decision(**value)
        except TypeError:
            raise DecisionRefused(
                f"The decision on {name} must have a verdict ({', '.join(_VERDICTS)}), and may have arguments, text, "
                f"hash and by; got {', '.join(map(str, value)) or 'nothing'}."
            ) from None
    if not isinstance(value, Decision) or value.verdict not in _VERDICTS:
        raise DecisionRefused(f"The decision on {name} must be True, False, a text or a Decision, got {value!r:.80}.")
    if not pending.by_person:
        how = f" {pending.reason}" if pending.kind == "login" else ""
        raise DecisionRefused(f"{name} waits for {awaited(pending)}, which nobody decides.{how}")
    fits = ("approve", "deny") if pending.kind == "approval" else ("answer", "deny")
    if value.verdict not in fits:
        how = "approve or deny it" if pending.kind == "approval" else "answer it with a text, or deny it"
        raise DecisionRefused(f"{name} is the {_what(pending)}: {how}.")
    if value.arguments is not None and (value.verdict != "approve" or not isinstance(value.arguments, Mapping)):
        raise DecisionRefused(f"The arguments of the decision on {name} must be an object, and go with 'approve'.")
    if value.arguments is not None and name.rpartition("/")[2].partition(".")[2].startswith(AGAIN):
        raise DecisionRefused(f"{name} is a call that was interrupted: it is made again as it was, or denied.")
    if not all(isinstance(text, str) for text in (value.text, value.hash, value.by)):
        raise DecisionRefused(f"text, hash and by of the decision on {name} must be strings.")
    form = pending.arguments.get("form") if value.verdict == "answer" else None
    if isinstance(form, Mapping):
        try:
            read_form(form, value.text)
        except ValueError as error:
            raise DecisionRefused(f"{name}: {error}") from None
    if value.hash and value.hash != pending.hash:
        raise DecisionRefused(
            f"The decision on {name} was made on something else: its hash is {value.hash[:12]}…, that of the call is "
            f"{pending.hash[:12]}…. Look at it again."
        )
    return value


def awaited(pending: PendingDecision) -> str:
    """Return what a run waits for, in words: "2026-12-01 08:00:00 UTC", or "the signal 'payment' until …"."""
    until = "" if pending.expires is None else f"{datetime.fromtimestamp(pending.expires, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if pending.kind == "timer":
        return until
    if pending.kind == "signal":
        names = [repr(name) for name in pending.signals]
        what = f"the signal {names[0]}" if len(names) == 1 else f"the first of the signals {' and '.join(names)}"
        return f"{what} until {until}" if until else what
    if pending.kind == "login":
        return f"a login to the MCP server {pending.tool!r}"
    return f"the {_what(pending)}"


def _what(pending: PendingDecision) -> str:
    return f"approval of a call of {pending.tool}" if pending.kind == "approval" else "answer to a question"


def _made(request: DecisionRequested, decision: Decision, by: str, *, idle: float) -> DecisionMade:
    try:
        arguments = None if decision.arguments is None else json.dumps(dict(decision.arguments), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DecisionRefused(f"The arguments of the decision on {_id(request)} are not JSON: {error}.") from None
    return DecisionMade(
        request.agent,
        request.request,
        decision.verdict,
        digest=request.digest,
        arguments=arguments,
        text=decision.text,
        by=decision.by or by,
        idle=idle,
    )


def must_rerun(scope: Scope, spec: ToolSpec, does: str) -> ToolError:
    """Return the error of a tool that waits although a resumed run may not call it again. The developer is warned."""
    text = f"{spec.name} {does}, so it must be read_only or declared on_crash='rerun'."
    scope.warn("Tools", text)
    return ToolError(text)
