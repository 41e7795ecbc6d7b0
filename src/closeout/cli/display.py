"""What a person sees of a run while it goes on: thoughts, tool calls with their time, repairs, tokens. On stderr.

On a terminal a status line says what is under way; elsewhere there are plain lines only.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from closeout.journal.events import (
    AgentEnded,
    AgentStarted,
    AttemptStarted,
    Compacted,
    Event,
    Evicted,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    ModelRetried,
    Noted,
    Repaired,
    RunEnded,
    ToolFinished,
    ToolStarted,
    TurnAccepted,
    TurnRolledBack,
)
from closeout.journal.journal import Progress
from closeout.journal.ledger import Ledger

if TYPE_CHECKING:
    from rich.status import Status

__all__ = ["Display", "short"]

WIDTH = 160  # characters of a line of arguments or of a result
WORKING = {"act": "thinking", "close": "closing", "experience": "summing up", "compact": "summing up"}


def short(text: str, width: int = WIDTH) -> str:
    """One line of a text, shortened, without control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: width * 4]).split())
    return line if len(line) <= width and len(text) <= width * 4 else line[: width - 1] + "…"


class Display:
    """A listener that prints. `with display:` so that the status line is taken away whatever happens."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._ledger = Ledger()
        self._began = time.monotonic()
        self._status: Status | None = None
        self._names: dict[str, str] = {}
        self._written = 0
        self._doing = "starting"

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._status = self._console.status(self._line(), spinner="dots")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def say(self, text: str, style: str = "") -> None:
        """A line of the display's own."""
        self._console.print(Text(text, style))

    def working(self, doing: str) -> None:
        """Say what is under way, on the status line if there is one."""
        self._doing = doing
        self._refresh()

    # ------------------------------------------------------------------------------------------ as a listener

    def __call__(self, event: Event | Progress) -> None:
        self._ledger(event)
        if isinstance(event, Progress):
            self._progress(event)
        elif isinstance(event, (ModelRequested, ModelReplied, ModelRetried, ModelFailed)):
            self._model(event)
        elif isinstance(event, (ToolStarted, ToolFinished)):
            self._tool(event)
        else:
            self._other(event)
        self._refresh()

    def _progress(self, piece: Progress) -> None:
        if piece.kind == "discard":
            self._written = 0
        elif piece.kind == "tool_name":
            self._doing = f"calling {short(piece.text, 40)}"
        else:
            self._written += len(piece.text)

    def _model(self, event: ModelRequested | ModelReplied | ModelRetried | ModelFailed) -> None:
        if isinstance(event, ModelRequested):
            self._doing, self._written = WORKING.get(event.purpose, "asking"), 0
        elif isinstance(event, ModelRetried):
            self._print(event, f"! {short(event.reason)} Asking again in {event.wait:.1f} s.", "yellow")
        elif isinstance(event, ModelFailed):
            self._print(event, f"✗ {short(event.error, 400)}", "red")

    def _tool(self, event: ToolStarted | ToolFinished) -> None:
        place = f"{event.agent}:{event.handle}"
        if isinstance(event, ToolStarted):
            self._names[place] = f"{event.name}({short(_arguments(event.arguments))})"
            self._doing = f"running {event.name}"
            return
        call = self._names.pop(place, event.name)
        if event.ok:
            self._print(event, f"→ {call}  {_seconds(event.ms)}", "cyan")
            self._print(event, f"  {short(_result(event.record))}", "dim")
        else:
            self._print(event, f"✗ {call}  {_seconds(event.ms)}", "red")
            self._print(event, f"  {short(event.note)}", "dim")

    def _other(self, event: Event) -> None:
        match event:
            case TurnAccepted() if event.text.strip():
                self._print(event, f"  {short(event.text, 320)}", "dim italic")
            case Repaired():
                what = f" {event.where}: {short(event.before, 40)} → {short(event.after, 40)}" if event.where else ""
                self._print(event, f"  repaired: {event.kind}{what}", "dim")
            case TurnRolledBack():
                change = f" Asking again with {event.change}." if event.change else ""
                self._print(event, f"↺ {event.reason}: {short(event.detail)}{change}".replace(": .", "."), "yellow")
            case AttemptStarted(attempt=attempt) if attempt:
                self._print(event, f"— attempt {attempt + 1}, with what the one before learned", "bold")
            case Evicted() | Compacted():
                self._print(event, f"  made room: {event.tokens:,} tokens", "dim")
            case AgentStarted():
                self._print(event, f"▸ {event.name}: {short(event.task)}", "bold")
            case AgentEnded():
                self._print(event, f"◂ {short(event.report)}", "bold")
            case Noted(level="warning" | "error"):
                self._print(event, f"! {short(event.message, 400)}", "yellow")
            case RunEnded():
                self._doing = "done"

    def _print(self, event: Event, line: str, style: str) -> None:
        depth = event.agent.count("/")
        self._console.print(Text("  " * depth + line, style))

    def _line(self) -> str:
        usage = self._ledger.usage
        parts = [f"turn {self._ledger.turns + 1}", self._doing, f"{usage.total_tokens:,} tokens"]
        if self._written:
            parts.append(f"{self._written:,} characters so far")
        if usage.cost_usd:
            parts.append(f"${usage.cost_usd:.4f}")
        parts.append(f"{time.monotonic() - self._began:.0f} s")
        return " · ".join(parts)

    def _refresh(self) -> None:
        if self._status is not None:
            self._status.update(Text(self._line()))


def _arguments(text: str) -> str:
    """`{"query": "x"}` as `query="x"`."""
    try:
        values = json.loads(text)
        return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    except (ValueError, AttributeError):
        return text


def _result(record: str) -> str:
    try:
        found = json.loads(record)
    except ValueError:
        return ""
    result = found.get("result")
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _seconds(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"
