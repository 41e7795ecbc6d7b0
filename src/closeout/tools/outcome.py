"""The outcome of one governed call: what was executed, what came back, what the model is shown, and what to make of it.

How it comes about is told in `executor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from closeout.messages import Repair, ToolCall, ToolSpec
from closeout.outputs.models import ToolOutput
from closeout.records import record

__all__ = ["CallOutcome", "Status"]

Status = Literal["ok", "error", "refused", "duplicate", "low_quality", "interrupted"]


@record
class CallOutcome:
    """One call, done. `text` is what the model is shown; the same bytes for ever.

    `status`: "ok"; "error" the tool failed or says so; "refused" there is no such tool or its arguments do not fit,
    nothing was run; "duplicate" the call was made before, nothing was run; "low_quality" it brought nothing of use;
    "interrupted" it was under way when the program stopped. `reason` is one sentence for the model, "" when ok.
    `rollback` says that the turn is better taken back than shown.
    """

    call: ToolCall  # as executed: repaired name and arguments
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
    images: tuple[Mapping[str, Any], ...] = ()  # OpenAI image_url parts, for models that take them

    @property
    def ok(self) -> bool:
        """Whether the text is a result that the tool meant to give, empty ones and repeated ones included."""
        return self.status in ("ok", "duplicate", "low_quality") and self.output.telemetry.success
