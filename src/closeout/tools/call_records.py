"""Records of governed calls: the outcome of one, and the memory of those made before in a run.

The journal does not store the memory: a resumed run makes the same calls again, and their replayed outcomes fill it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias

from closeout.messages import Repair, ToolCall, ToolPolicy, ToolSpec
from closeout.records import record
from closeout.results.normal import compact_json, normalise
from closeout.results.tool_output import ToolOutput

__all__ = [
    "MAX_EXTENSION",
    "CallMemory",
    "CallOutcome",
    "DuplicateCheck",
    "EarlierCall",
    "Progress",
    "Status",
    "cache_name",
    "extensible_timeout",
    "query_key",
]

Status = Literal["ok", "error", "refused", "duplicate", "low_quality", "interrupted"]

Progress: TypeAlias = Callable[[float, float | None, str], None]
"""Receives the progress of a call: how much is done, of how much in total (None: unknown), and a message."""

MAX_EXTENSION = 10  # Timeouts that a call may take in all while it reports progress.


def extensible_timeout(seconds: float | None, receiver: Progress | None) -> tuple[asyncio.Timeout, Progress]:
    """Return a timeout, and the callback for a call's progress, which extends it up to MAX_EXTENSION times.

    The callback also passes the progress on to `receiver`.
    """
    timeout = asyncio.timeout(seconds)
    clock = asyncio.get_running_loop().time
    begun = clock()

    def report(done: float, total: float | None, message: str) -> None:
        if seconds is not None:
            with suppress(RuntimeError):  # the call has just ended
                timeout.reschedule(min(clock() + seconds, begun + seconds * MAX_EXTENSION))
        if receiver is not None:
            receiver(done, total, message)

    return timeout, report


_MAX_KEY = 512  # Characters of a key. Longer keys are replaced by their SHA-256.
_MAX_KEPT = 256  # outcomes kept for reuse


@record(kw_only=True)
class CallOutcome:
    """The outcome of one governed call.

    Attributes:
        call: The call as executed, with repaired name and arguments.
        spec: The tool, or None if no such tool exists.
        output: The tool's output.
        text: What the model is shown. It never changes.
        status: "ok"; "error": the tool failed or reports a failure; "refused": no such tool, or the arguments do not
            fit, and nothing ran; "duplicate": the call was made before, and nothing ran; "low_quality": the result is
            empty or unusable; "interrupted": the program stopped while the call ran.
        reason: One sentence for the model; empty if the status is "ok".
        repairs: What was repaired in the call.
        duration_ms: Milliseconds, with retries.
        handle: The name under which the result is stored, for `read_result`.
        rollback: The turn is better rolled back than shown.
        tokens: Tokens of `text`.
        truncated: `text` does not show the whole result.
        images: OpenAI `image_url` parts, for models that take images.
        warning: What did not go as asked although there is a result; for people.
    """

    call: ToolCall
    spec: ToolSpec | None
    output: ToolOutput
    text: str
    status: Status = "ok"
    reason: str = ""
    repairs: tuple[Repair, ...] = ()
    duration_ms: float = 0.0
    handle: str = ""
    rollback: bool = False
    tokens: int = 0
    truncated: bool = False
    images: tuple[Mapping[str, Any], ...] = ()
    warning: str = ""

    @property
    def ok(self) -> bool:
        """True if the text is a result of the tool, including empty and repeated ones."""
        return self.status in ("ok", "duplicate", "low_quality") and self.output.telemetry.success

    @property
    def was_executed(self) -> bool:
        """True if the tool ran, or a kept result replaced it."""
        return self.output.telemetry.cache_hit or self.status not in ("refused", "duplicate")

    @property
    def was_refused(self) -> bool:
        """True if the call could not be made: no such tool, or the arguments do not fit. Nobody denied it."""
        return self.status == "refused" and self.output.telemetry.error_code != "Denied"


@record
class EarlierCall:
    """A call of an earlier attempt that has taken effect. `unsure`: it was cut off, and may or may not have."""

    spec: ToolSpec
    arguments: Mapping[str, Any]
    output: ToolOutput
    unsure: bool = False


class DuplicateCheck(NamedTuple):
    """The result of a search for duplicates: the number of earlier calls with the same query."""

    is_duplicate: bool
    previous_count: int


def cache_name(agent: str, tool_name: str) -> str:
    """Return the namespace of a tool's queries by one agent: "main_google_search"."""
    return f"{agent}_{tool_name}"


def query_key(tool_name: str, arguments: Mapping[str, Any], policy: ToolPolicy) -> str | None:
    """Return the key that two calls share if they are the same call; None for a tool that may be repeated.

    The key is `NAME_VALUE_VALUE` of the declared duplicate key, else the name and all arguments in canonical JSON.
    """
    if policy.repeatable:
        return None
    names = policy.duplicate_key
    # Calls that leave the key out and differ in other arguments are not the same call.
    if names is not None and (not names or not arguments or not arguments.keys().isdisjoint(names)):
        key = "_".join((tool_name, *(_as_text(arguments.get(name)) for name in names)))
    else:
        key = f"{tool_name}_{_canonical(arguments)}"
    return key if len(key) <= _MAX_KEY else f"{tool_name}_{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()}"


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else _canonical(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=repr)


def _canonical(value: Any) -> str:
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError):  # keys of several types, cycles, depth: not JSON, still comparable
        return compact_json(normalise(value))


class CallMemory:
    """The calls that a run's agents have made. `counts` maps cache name → query → how often it was made."""

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}
        self._kept: OrderedDict[tuple[str, str], CallOutcome] = OrderedDict()
        self._epochs: dict[str, tuple[int, int]] = {}  # agent → how often it changed something, and may have done so
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}  # call → epoch in which the agent was shown its result

    def check(self, cache_name: str, query: str) -> DuplicateCheck:
        """Return whether a query was recorded in a cache, and how often."""
        count = self.counts.get(cache_name, {}).get(query, 0)
        return DuplicateCheck(count > 0, count)

    def record(self, cache_name: str, query: str) -> None:
        """Count one execution of a query."""
        queries = self.counts.setdefault(cache_name, {})
        queries[query] = queries.get(query, 0) + 1

    def look(self, agent: str, spec: ToolSpec, query: str) -> tuple[bool, CallOutcome | None]:
        """Return whether a call repeats an earlier one, and the earlier outcome if it is kept and still current.

        A call is not a repetition if the agent has changed something since.
        """
        place = (agent, query)
        epoch, seen = self._epoch(agent, spec), self._seen.get(place)
        repeated = seen in (None, epoch) and self.check(cache_name(agent, spec.name), query).is_duplicate
        return repeated, self._kept.get(place) if seen == epoch else None

    def keep(self, agent: str, spec: ToolSpec, query: str, outcome: CallOutcome) -> None:
        """Keep an outcome for reuse."""
        place = (agent, query)
        self._seen[place] = self._epoch(agent, spec)
        self._kept[place] = outcome
        self._kept.move_to_end(place)
        if len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)

    def was_executed(self, agent: str, policy: ToolPolicy) -> None:
        """Note a call that changes things, or that may: what was read before it may be read again."""
        if not policy.read_only:
            declared, possible = self._epochs.get(agent, (0, 0))
            self._epochs[agent] = declared + (policy.destructive or policy.idempotent), possible + 1

    def begin_attempt(self, agent: str) -> None:
        """Forget which calls count as repetitions; kept results may still be reused."""
        for cache_name in [name for name in self.counts if name.startswith(f"{agent}_")]:
            del self.counts[cache_name]

    def _epoch(self, agent: str, spec: ToolSpec) -> tuple[int, int]:
        declared, possible = self._epochs.get(agent, (0, 0))
        # Many tools that only read are not declared so. Their calls do not make each other new.
        return declared, possible if spec.policy.read_only else 0
