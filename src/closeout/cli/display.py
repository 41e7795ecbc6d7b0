"""Show a run on stderr while it happens: thoughts, tool calls with their time, repairs, tokens.

A terminal also gets a status line, and below it the reply while the model writes it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rich.cells import chop_cells
from rich.console import Console, Group, RenderableType
from rich.text import Text

from closeout.cli.option_types import with_settings
from closeout.cli.terminal import duration, make_console, one_line, printable, usage_line, width_of
from closeout.codec import value_or_text
from closeout.dialects.functions import RUN_PROGRAM
from closeout.journal.events import (
    REFUSED_CALL,
    AgentEnded,
    AgentStarted,
    AttemptEnded,
    AttemptStarted,
    CallDecided,
    Compacted,
    DecisionMade,
    DecisionRequested,
    Event,
    Evicted,
    FlowDecided,
    HandedOver,
    MessageReceived,
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
    Unknown,
    has_conversation,
)
from closeout.journal.recorded import CANCELLED, REPLY_INTERRUPTED
from closeout.journal.story import CallStory, Change, Story
from closeout.journal.subscribers import Progress
from closeout.journal.totals import RunTotals
from closeout.messages import Usage

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["Display"]

WORKING = {
    "act": "thinking",
    "close": "closing",
    "experience": "summing up",
    "compact": "making room",
}
ASCII = str.maketrans({"»": ">", "→": ">", "✗": "x", "↺": "<", "▸": ">", "◂": "<", "·": "-", "—": "-", "…": "~"})
LINE_PERIOD = 5.0  # seconds between two lines about the same work if stderr is not a terminal
EXPERIENCE_LINES = 12
PROGRAM_LINES = 20
THOUGHT_LINES = 3
DEEPEST = 20  # levels of a value that are shown


class _Reply:
    """A reply that is being written."""

    def __init__(self) -> None:
        self.words: list[str] = []  # pieces of thought and text
        self.streamed = False
        self.has_call = False

    def add(self, piece: Progress) -> None:
        if piece.kind == "discard":
            self.words, self.has_call = [], False
            return
        self.streamed = True
        if piece.kind == "tool_name":
            self.has_call = True
        elif piece.kind in ("thought", "text", "answer"):
            self.words.append(piece.text)

    @property
    def text(self) -> str:
        return "".join(self.words).strip()


class Display:
    """A subscriber that prints. As a context manager it always removes the status line at the end.

    The answer is for the command to print.

    Args:
        console: Where to print; stderr by default.
        brief: Leave out turns, repairs and rollbacks, as in a conversation.
    """

    def __init__(self, console: Console | None = None, *, brief: bool = False) -> None:
        self._brief = brief
        self._console = console or make_console(stderr=True)
        self._width = width_of(self._console)
        self._ascii = not (self._console.encoding or "").lower().startswith("utf")
        self._totals = RunTotals()
        self._began = time.monotonic()
        self._live: Live | None = None
        self._story = Story()
        self._replies: dict[str, _Reply] = {}  # agent → the reply that it is writing
        self._final: ModelReplied | None = None  # a reply that may be the answer, not printed yet
        self._final_words = ""
        self._reported: set[str] = set()  # calls of agents whose reports are printed
        self._shown: set[str] = set()  # agents whose current turn is already printed
        self._failure = ""  # why the last request failed; printed if another request follows
        self._turn = 1
        self._doing = "starting"
        self.typed = ""  # what the user is typing, shown below the status line
        self._said: tuple[str, float] = ("", 0.0)

    def __enter__(self) -> Display:
        if self._console.is_interactive and not self._console.is_dumb_terminal:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._status(),
                console=self._console,
                refresh_per_second=8,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the status line."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def say(self, text: str, style: str = "") -> None:
        """Print a paragraph, wrapped to the terminal."""
        self._put(text, style, 0)

    def working(self, doing: str) -> None:
        """Show what is happening: in the status line, or now and then on a line of its own."""
        self._doing = doing
        if self._live is None:
            what, said = re.split(r"[\d%]", doing, maxsplit=1)[0], time.monotonic()
            if what != self._said[0] or said > self._said[1] + LINE_PERIOD:
                self._said = what, said
                self.say(doing, "dim")

    @property
    def unfinished(self) -> str:
        """The reply that the main agent was writing when the run stopped."""
        return "".join(reply.text for agent, reply in self._replies.items() if has_conversation(agent))

    def stopping(self) -> None:
        """Show that the run is being stopped."""
        self._doing = "stopping; Ctrl-C again to stop at once"

    def left_over(self) -> None:
        """Print the calls that started but did not finish."""
        for agent in self._story.agents.values():
            for call in agent.running.values():
                self._put(one_line(f"… {_call_text(call)} · not finished", self._width - 2), "yellow", 2)

    # ------------------------------------------------------------------------------------------ events

    def __call__(self, event: Event | Progress) -> None:  # noqa: C901 - one case for each event
        self._totals(event)
        if isinstance(event, Progress):
            if event.kind == "tool_progress":
                self._progressed(event)
            elif event.agent in self._replies:
                self._replies[event.agent].add(event)
                if event.kind == "tool_name":
                    self._doing = "writing a call"
            return
        change = self._story.feed(event)
        if isinstance(event, ModelRequested | TurnAccepted | TurnRolledBack | RunEnded):
            self._settle(event, change)
        match event:
            case ModelRequested():
                self._requested(event, change)
            case ModelRetried():
                wait = f" Retrying in {event.wait:.1f} s." if event.wait else ""
                self._print(event, f"! {event.reason}{wait}", "yellow")
            case ModelFailed():
                if not (self._brief and event.kind in (CANCELLED, REPLY_INTERRUPTED)):
                    self._failure = event.error  # if no request follows, the command prints it at the end
            case ModelReplied():
                self._replied(event, change)
            case FlowDecided(decision="refuse" | "allow"):
                self._print(event, f"  flow rules {event.decision} {event.handle}: {event.reason}", "cyan")
            case CallDecided():
                self._print(event, f"  {event.by}: {event.decision} {event.name}: {event.reason}", "cyan")
            case DecisionRequested(kind="approval"):
                self._print(event, f"  ? {event.name}({_arguments(event.arguments)}) waits for approval", "cyan")
            case DecisionMade(verdict="approve" | "deny"):
                self._print(event, f"  {event.verdict} {event.request}{event.text and ': '}{event.text}", "cyan")
            case ToolStarted():
                self._started(event)
            case ToolFinished():
                self._finished(event, change)
            case TurnAccepted():
                self._accepted(event, change)
            case TurnRolledBack():
                self._rolled_back(event)
            case HandedOver():
                self._print(event, f"▸ {event.name} continues the conversation", "bold")
            case MessageReceived():
                self._print(event, f"» {event.text}", "bold", cut=False)
            case Repaired():
                self._repaired(event)
            case AttemptStarted() if event.attempt:
                self._print(event, f"— attempt {event.attempt + 1}, with the experience of the last one", "bold")
            case AttemptEnded():
                self._attempt_ended(event)
            case Evicted() | Compacted():
                self._print(event, f"  made room: {event.tokens:,} tokens", "dim")
            case AgentStarted():
                self._print(event, f"▸ {event.name}: {event.task}", "bold")
            case AgentEnded():
                self._reported.add(event.agent.rpartition(":")[0])
                self._print(event, f"◂ {_plain(event.report)}", "bold")
            case Noted(level="warning" | "error") if event.name != REFUSED_CALL:
                self._print(event, f"! {with_settings(event.message)}", "yellow", cut=False)
            case Unknown():
                problem = event.body.get("problem", "written by another version")
                self._print(event, f"! {event.type}: {problem}", "yellow")
            case RunEnded():
                self._doing = "done"

    def _requested(self, event: ModelRequested, change: Change) -> None:
        if self._failure:
            self._print(event, f"✗ {self._failure}", "red")
            self._failure = ""
        if not _is_extra(change):
            self._replies[event.agent] = _Reply()
        if has_conversation(event.agent):
            self._turn = event.turn + 1
        self._doing = WORKING.get(event.purpose, event.purpose)

    def _replied(self, event: ModelReplied, change: Change) -> None:
        is_extra = _is_extra(change)
        reply = _Reply() if is_extra else self._replies.pop(event.agent, None)
        if reply is None or change.request is None or change.turn is None:
            return
        purpose = change.request.purpose
        title = WORKING.get(purpose, purpose)
        if purpose == "act":
            title = f"turn {change.turn.number + 1}{' (answer)' if reply.streamed and not reply.has_call else ''}"
        if not self._brief:
            self._print(event, f"{title} · {duration(event.ms)} · {usage_line(Usage(**event.usage))}", "bold")
        if is_extra:
            return
        closes = purpose != "act"
        readable = event.tool_calls or closes  # the text of a ReAct turn is raw
        words = reply.text if reply.streamed and not closes else event.text if readable else ""
        if has_conversation(event.agent) and not reply.has_call and not event.tool_calls:
            self._final, self._final_words = event, words
        else:
            self._say_words(event, words)

    def _settle(self, event: Event, change: Change) -> None:
        """Print the reply that was held back, unless it is the answer: the command prints that."""
        if _is_extra(change):
            return
        reply, self._final = self._final, None
        if reply is None:
            return
        is_answer = isinstance(event, RunEnded) and (self._brief or _plain(event.answer) == _plain(self._final_words))
        if not is_answer:
            self._say_words(reply, self._final_words)

    def _accepted(self, event: TurnAccepted, change: Change) -> None:
        if event.agent not in self._shown:  # the reply was not streamed
            self._say_words(event, event.text)
        self._shown.discard(event.agent)
        for call in () if change.turn is None else change.turn.calls:
            if call.finished is None and call.shown is not None:
                text, ok = str(call.shown.get("text")), bool(call.shown.get("ok"))
                self._print_call(
                    event,
                    _call_text(call),
                    text,
                    ok=ok,
                    end=" · not run" if call.started is None else " · in the background",
                )

    def _say_words(self, event: Event, words: str) -> None:
        if words.strip():
            self._shown.add(event.agent)
            self._print(event, f"  {_plain(words)}", "italic", cut=False)

    def _progressed(self, piece: Progress) -> None:
        agent = self._story.agents.get(piece.agent)
        call = None if agent is None else agent.running.get(piece.handle)
        name = "tool" if call is None else call.name
        amount = f"{piece.done:g}" if piece.total is None else f"{piece.done:g} of {piece.total:g}"
        self.working(one_line(f"{name}: {piece.text} ({amount})" if piece.text else f"{name}: {amount}", self._width))

    def _started(self, event: ToolStarted) -> None:
        lines = _program(event).strip("\n").splitlines()  # the calls that it makes are printed below them
        for line in lines[:PROGRAM_LINES]:
            self._print(event, f"    {line}", "cyan")
        if len(lines) > PROGRAM_LINES:
            self._print(event, f"    … {len(lines) - PROGRAM_LINES} more lines", "dim")
        self._doing = f"running {event.name}"

    def _finished(self, event: ToolFinished, change: Change) -> None:
        text = _result(event.record) if event.ok else event.note
        if f"{event.agent}/{event.handle}" in self._reported:
            text = ""
        call = event.name if change.call is None else _call_text(change.call)
        self._print_call(event, call, text, ok=event.ok, end=f" · {duration(event.ms)}")
        self._doing = "thinking"

    def _print_call(self, event: Event, call: str, result: str, *, ok: bool, end: str) -> None:
        room = self._width - self._indent(event) - 4 - len(end)
        mark, style = ("→", "cyan") if ok else ("✗", "red")
        self._print(event, f"  {mark} {one_line(call, room)}{end}", style)
        if result.strip():
            self._print(event, f"    {result}", "dim")

    def _repaired(self, event: Repaired) -> None:
        if self._brief:
            return
        what = f" {event.where}: {one_line(event.before, 40)} → {one_line(event.after, 40)}" if event.where else ""
        self._print(event, f"  repaired: {event.kind.replace('_', ' ')}{what}", "dim")

    def _rolled_back(self, event: TurnRolledBack) -> None:
        self._shown.discard(event.agent)
        if self._brief:
            return
        detail = f": {event.detail.rstrip('.')}" if event.detail else ""
        change = f" Trying again with {event.change}." if event.change else ""
        self._print(event, f"  ↺ {event.reason.replace('_', ' ')}{detail}.{change}", "yellow")

    def _attempt_ended(self, event: AttemptEnded) -> None:
        if event.answer is None and event.experience and event.reason != "model_failed":
            self._print(event, f"— no answer ({event.reason}); what it learned:", "bold")
            for line in event.experience.splitlines()[:EXPERIENCE_LINES]:
                self._print(event, f"  {line}", "dim", cut=False)

    # ------------------------------------------------------------------------------------------ printing

    def _indent(self, event: Event) -> int:
        return 2 * event.agent.count("/")

    def _print(self, event: Event, line: str, style: str, *, cut: bool = True) -> None:
        """Print one line, or with `cut=False` a short paragraph with its indent."""
        indent = self._indent(event) + len(line) - len(line.lstrip())
        room = self._width - indent
        self._put(one_line(line, room if cut else room * THOUGHT_LINES), style, indent)

    def _put(self, text: str, style: str, indent: int) -> None:
        if self._ascii:
            text = text.translate(ASCII)
        lines = [Text(text)]
        if self._console.is_terminal:
            lines = list(lines[0].wrap(self._console, max(self._width - indent, 8)))
        for line in lines:
            line.rstrip()
            self._console.print(Text(" " * indent + line.plain, style))

    def _status(self) -> Callable[[], RenderableType]:
        """Return what renders the status line at each refresh, so that its seconds advance."""
        from rich.spinner import Spinner

        spinner = Spinner("dots" if not self._ascii else "line")

        def now() -> RenderableType:
            width = width_of(self._console) - 4  # room for the ^C that a terminal echoes
            spinner.update(text=Text(self._line(width - 2)))
            typed = [Text(f"» {printable(self.typed)}"[-width:])] if self.typed else []
            written = self._written(width_of(self._console), max(self._console.height - 3 - len(typed), 1))
            return Group(*written, spinner, *typed)

        return now

    def _line(self, width: int) -> str:
        """Return turn, work, seconds, tokens and cost. A work text that is too long keeps its end, a percentage."""
        usage = self._totals.usage
        before = f"turn {self._turn} · "
        parts = [f"{time.monotonic() - self._began:.0f} s", f"{usage.total_tokens:,} tokens"]
        if usage.cost_usd:
            parts.append(f"${usage.cost_usd:.4f}")
        after = "".join(f" · {part}" for part in parts)
        room = max(width - len(before) - len(after), 12)
        doing = self._doing
        if len(doing) > room:
            doing = f"{doing[: room - 8]}…{doing[-7:]}"
        return one_line(before + doing + after, width)

    def _written(self, width: int, height: int) -> list[Text]:
        """Return the last lines of the reply that is being written."""
        text = next((reply.text for reply in reversed(list(self._replies.values())) if reply.words), "")
        shown = printable(text[-width * height :]).expandtabs()
        if self._ascii:
            shown = shown.translate(ASCII)
        # Broken where the terminal breaks the answer, so that nothing moves when it is printed.
        lines = [part for line in shown.splitlines() for part in chop_cells(line, width) or [""]]
        return [Text(line, no_wrap=True) for line in lines[-height:]]


def _arguments(text: str) -> str:
    """Return `{"query": "x"}` as `query="x"`."""
    try:
        return _named_values(json.loads(text))
    except (ValueError, AttributeError, RecursionError):
        return text


def _program(event: ToolStarted) -> str:
    """Return the program that a call runs; empty if it runs another tool."""
    try:
        code = json.loads(event.arguments).get("code") if event.name == RUN_PROGRAM else ""
    except (ValueError, AttributeError, RecursionError):
        return ""
    return code if isinstance(code, str) else ""


def _named_values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())


def _is_extra(change: Change) -> bool:
    return change.request is not None and change.request.is_extra


def _call_text(call: CallStory) -> str:
    if call.arguments is None or (call.started is not None and _program(call.started)):
        return call.name
    given = call.arguments
    return f"{call.name}({_named_values(given) if isinstance(given, Mapping) else _arguments(str(given))})"


def _result(record: str) -> str:
    value = value_or_text(record)
    return _plain(value.get("result") if isinstance(value, dict) else "")


def _plain(value: Any, depth: int = 0) -> str:
    """Return a value, or a text that begins with one in JSON, without brackets and quotation marks."""
    rest = ""
    if isinstance(value, str):
        text = value.strip()
        if not text.startswith(("{", "[")):
            return text
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return text
        rest = text[end:]
    if depth == DEEPEST:
        return "…"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_plain(each, depth + 1)}" for name, each in value.items()) + rest
    if isinstance(value, list):
        return " · ".join(_plain(each, depth + 1) for each in value) + rest
    return json.dumps(value)
