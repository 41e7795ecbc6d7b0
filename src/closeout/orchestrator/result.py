"""What a run ends with: the answer or why there is none, and the bill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal

from closeout.answers.reading import Value
from closeout.errors import PermanentModelError, error_type
from closeout.journal.task_log import TaskLog
from closeout.messages import Repair, Usage

__all__ = ["RunResult", "Status"]

Status = Literal["answered", "unanswered", "failed", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class RunResult(Generic[Value]):
    """How a run ended.

    `answer`: the answer as text, by the rules of its contract, or None. `value`: the same as the contract's own type
    (a number, an object), None where there is no answer. `stop_reason`: "answered", or what ended it: max_turns,
    max_tokens, max_cost, max_seconds, rollbacks, loop, context_overflow, model_failed, journal_failed, no_answer,
    failed, cancelled. `candidates`: other answers seen, best first, each with its share of the vote. `error` says what
    failed, `error_kind` is the name of the exception that it was (of `closeout.errors`, as a rule), if it was one.
    `turns`: replies that were acted on, and the one that answered. `seconds`: wall clock of the whole run.
    """

    answer: str | None
    status: Status
    stop_reason: str
    run_id: str
    value: Value | None = None
    error: str = ""
    error_kind: str = ""
    final_summary: str = ""
    failure_experience_summary: str | None = None
    turns: int = 0
    attempts: int = 0
    rollbacks: int = 0
    repairs: tuple[Repair, ...] = ()
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    candidates: tuple[tuple[str, float], ...] = ()
    read_log: Callable[[], TaskLog] = field(default=TaskLog, repr=False, compare=False)

    @property
    def permanent(self) -> bool:
        """Whether what failed would fail again as it is: a key, an address, a request has to be put right first."""
        kind = error_type(self.error_kind)
        return kind is not None and issubclass(kind, PermanentModelError)

    @cached_property
    def task_log(self) -> TaskLog:
        """The run as a log for people, read from its journal when it is first asked for."""
        return self.read_log()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, for machines; without the task log."""
        from dataclasses import asdict, fields

        record = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "read_log"}
        record["usage"] = asdict(self.usage)
        record["repairs"] = [asdict(repair) for repair in self.repairs]
        record["candidates"] = [{"answer": answer, "share": share} for answer, share in self.candidates]
        return record
