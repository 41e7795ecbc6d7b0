"""What a person sees of a run while it goes on: thoughts, tool calls with their time, repairs, tokens. On stderr.

On a terminal a status line says what is under way; elsewhere there are plain lines only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from closeout.cli.console import bill, duration, make_console, one_line, width_of
from closeout.journal.events import (
    AgentEnded,
    AgentStarted,
    AttemptEnded,
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
    Unknown,
)
from closeout.journal.journal import Progress
from closeout.journal.ledger import Ledger
from closeout.messages import Usage

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["Display"]

WORKING = {"act": "thinking", "close": "closing", "experience": "summing up", "compact": "making room"}
ASCII = str.maketrans({"→": ">", "✗": "x", "↺": "<", "▸": ">", "◂": "<", "·": "-", "—": "-", "…": "~"})
PLAIN_PERIOD = 5.0  # seconds between two lines about one long piece of work where there is no terminal
EXPERIENCE_LINES = 12
LONGEST = 3  # how many lines of the terminal a thought may take


class _Reply:
    """A reply while it is written."""

    def __init__(self, request: ModelRequested) -> None:
        self.request = request
        self.words: list[str] = []  # thought and text, as they come
        self.heard = False
        self.acts = False

    def take(self, piece: Progress) -> None:
        if piece.kind == "discard":
            self.words, self.acts = [], False
            return
        self.heard = True
        if piece.kind == "tool_name":
            self.acts = True
        elif piece.kind in ("thought", "text"):
            self.words.append(piece.text)

    def title(self) -> str:
        if self.request.purpose != "act":
            return WORKING.get(self.request.purpose, self.request.purpose)
        return f"turn {self.request.turn + 1}{' (answer)' if self.heard and not self.acts else ''}"


class Display:
    """A listener that prints. `with display:` so that the status line is taken away whatever happens."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or make_console(stderr=True)
        self._width = width_of(self._console)
        self._plain = not (self._console.encoding or "").lower().startswith("utf")
        self._ledger = Ledger()
        self._began = time.monotonic()
        self._live: Live | None = None
        self._calls: dict[str, str] = {}  # agent:handle → the call as it is shown
        self._replies: dict[str, _Reply] = {}  # agent → its reply under way
        self._shown: set[str] = set()  # agents whose present turn has its words on the screen
        self._finished_calls: set[str] = set()  # agent:handle, of turns that are not accepted yet
        self._failure = ""  # of the last request, until it is known whether that was the end
        self._turn = 1
        self._doing = "starting"
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
        """Take the status line away."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def say(self, text: str, style: str = "") -> None:
        """A paragraph of the display's own, wrapped at the terminal's edge."""
        self._put(text, style, 0)

    def working(self, doing: str) -> None:
        """Say what is under way: on the status line if there is one, else now and then on a line of its own."""
        self._doing = doing
        if self._live is None:
            what, said = doing.rstrip("0123456789 %.,:"), time.monotonic()
            if what != self._said[0] or said > self._said[1] + PLAIN_PERIOD:
                self._said = what, said
                self.say(doing, "dim")

    def stopping(self) -> None:
        """The run was asked to end; said where a person may wait for it."""
        self._doing = "stopping; Ctrl-C again to stop at once"

    def left_over(self) -> None:
        """Name the calls that began and did not end, of a run that was cut off."""
        for call in self._calls.values():
            self._put(one_line(f"… {call} · not finished", self._width - 2), "yellow", 2)

    # ------------------------------------------------------------------------------------------ as a listener

    def __call__(self, event: Event | Progress) -> None:
        self._ledger(event)
        if isinstance(event, Progress):
            if event.agent in self._replies:
                self._replies[event.agent].take(event)
                if event.kind == "tool_name":
                    self._doing = "writing a call"
            return
        show = _SHOWS.get(type(event))
        if show is not None:
            show(self, event)

    def _requested(self, event: ModelRequested) -> None:
        if self._failure:
            self._print(event, f"✗ {self._failure}", "red")
            self._failure = ""
        self._replies[event.agent] = _Reply(event)
        if event.agent == "main":
            self._turn = event.turn + 1
        self._doing = WORKING.get(event.purpose, event.purpose)

    def _retried(self, event: ModelRetried) -> None:
        self._print(event, f"! {event.reason} Asking again in {event.wait:.1f} s.", "yellow")

    def _failed(self, event: ModelFailed) -> None:
        self._failure = event.error  # if nothing follows, the command says it as its last word

    def _replied(self, event: ModelReplied) -> None:
        reply = self._replies.pop(event.agent, None)
        if reply is None:
            return
        title = f"{reply.title()} · {duration(event.ms)} · {bill(Usage(**event.usage))}"
        self._print(event, title, "bold")
        closes = reply.request.purpose != "act"
        as_it_is = event.tool_calls or closes  # not the raw text of a ReAct turn
        words = "".join(reply.words) if reply.heard and not closes else event.text if as_it_is else ""
        self._say_words(event, words)

    def _accepted(self, event: TurnAccepted) -> None:
        if event.agent not in self._shown:  # nothing was heard while it was written: a reply that was not streamed
            self._say_words(event, event.text)
        self._shown.discard(event.agent)
        for call, given in zip(event.calls, event.returns, strict=False):
            place = f"{event.agent}:{given.get('handle')}"
            if place not in self._finished_calls:
                self._print_call(event, _shown_call(call), bool(given.get("ok")), " · not run", str(given.get("text")))
            self._finished_calls.discard(place)

    def _say_words(self, event: Event, words: str) -> None:
        if words.strip():
            self._shown.add(event.agent)
            self._print(event, f"  {words.strip()}", "italic", cut=False)

    def _started(self, event: ToolStarted) -> None:
        self._calls[f"{event.agent}:{event.handle}"] = f"{event.name}({_arguments(event.arguments)})"
        self._doing = f"running {event.name}"

    def _finished(self, event: ToolFinished) -> None:
        place = f"{event.agent}:{event.handle}"
        call = self._calls.pop(place, event.name)
        self._finished_calls.add(place)
        text = _result(event.record) if event.ok else event.note
        self._print_call(event, call, event.ok, f" · {duration(event.ms)}", text)
        self._doing = "thinking"

    def _print_call(self, event: Event, call: str, ok: bool, end: str, result: str) -> None:
        room = self._width - self._indent(event) - 4 - len(end)
        mark, style = ("→", "cyan") if ok else ("✗", "red")
        self._print(event, f"  {mark} {one_line(call, room)}{end}", style)
        if result.strip():
            self._print(event, f"    {result}", "dim")

    def _repaired(self, event: Repaired) -> None:
        what = f" {event.where}: {one_line(event.before, 40)} → {one_line(event.after, 40)}" if event.where else ""
        self._print(event, f"  repaired: {event.kind.replace('_', ' ')}{what}", "dim")

    def _rolled_back(self, event: TurnRolledBack) -> None:
        self._shown.discard(event.agent)
        detail = f": {event.detail.rstrip('.')}" if event.detail else ""
        change = f" Asking again with {event.change}." if event.change else ""
        self._print(event, f"  ↺ {event.reason.replace('_', ' ')}{detail}.{change}", "yellow")

    def _attempt(self, event: AttemptStarted) -> None:
        if event.attempt:
            self._print(event, f"— attempt {event.attempt + 1}, with what the one before learned", "bold")

    def _attempt_ended(self, event: AttemptEnded) -> None:
        if event.answer is None and event.experience and event.reason != "model_failed":
            self._print(event, f"— no answer ({event.reason}); what was learned:", "bold")
            for line in event.experience.splitlines()[:EXPERIENCE_LINES]:
                self._print(event, f"  {line}", "dim", cut=False)

    def _made_room(self, event: Evicted | Compacted) -> None:
        self._print(event, f"  made room: {event.tokens:,} tokens", "dim")

    def _agent_started(self, event: AgentStarted) -> None:
        self._print(event, f"▸ {event.name}: {event.task}", "bold")

    def _agent_ended(self, event: AgentEnded) -> None:
        self._print(event, f"◂ {event.report}", "bold")

    def _noted(self, event: Noted) -> None:
        if event.level in ("warning", "error"):
            self._print(event, f"! {event.message}", "yellow", cut=False)

    def _unknown(self, event: Unknown) -> None:
        self._print(event, f"! {event.type}: {event.body.get('problem', 'written by another version')}", "yellow")

    def _ended(self, _: RunEnded) -> None:
        self._doing = "done"

    # ------------------------------------------------------------------------------------------ printing

    def _indent(self, event: Event) -> int:
        return 2 * event.agent.count("/")

    def _print(self, event: Event, line: str, style: str, *, cut: bool = True) -> None:
        """One line, or a short paragraph (`cut` False) that keeps its indent."""
        indent = self._indent(event) + len(line) - len(line.lstrip())
        room = self._width - indent
        self._put(one_line(line, room if cut else room * LONGEST), style, indent)

    def _put(self, text: str, style: str, indent: int) -> None:
        if self._plain:
            text = text.translate(ASCII)
        lines = [Text(text)]
        if self._console.is_terminal:
            lines = list(lines[0].wrap(self._console, max(self._width - indent, 8)))
        for line in lines:
            line.rstrip()
            self._console.print(Text(" " * indent + line.plain, style))

    def _status(self) -> Callable[[], RenderableType]:
        """The status line, made afresh at each refresh: the seconds go on while nothing happens."""
        from rich.spinner import Spinner

        spinner = Spinner("dots" if not self._plain else "line")

        def now() -> RenderableType:
            width = width_of(self._console) - 4  # room for the ^C that a terminal echoes
            spinner.update(text=Text(self._line(width - 2)))
            tail = self._tail(width - 4)
            return Group(spinner, Text(f"  {tail}", "dim italic")) if tail else spinner

        return now

    def _line(self, width: int) -> str:
        """Turn, what is under way, seconds, tokens, cost. Where room is short the work keeps its end: a percentage."""
        usage = self._ledger.usage
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

    def _tail(self, width: int) -> str:
        """The end of what is being written."""
        for reply in list(self._replies.values()):
            pieces: list[str] = []
            for piece in reversed(reply.words):
                pieces.append(piece)
                if sum(map(len, pieces)) > width:
                    break
            text = one_line("".join(reversed(pieces))[-width // 2 :], width)
            if text:
                return text
        return ""


_SHOWS: dict[type[Event], Callable[[Display, Any], None]] = {
    AgentEnded: Display._agent_ended,
    AgentStarted: Display._agent_started,
    AttemptEnded: Display._attempt_ended,
    AttemptStarted: Display._attempt,
    Compacted: Display._made_room,
    Evicted: Display._made_room,
    ModelFailed: Display._failed,
    ModelReplied: Display._replied,
    ModelRequested: Display._requested,
    ModelRetried: Display._retried,
    Noted: Display._noted,
    Repaired: Display._repaired,
    RunEnded: Display._ended,
    ToolFinished: Display._finished,
    ToolStarted: Display._started,
    TurnAccepted: Display._accepted,
    TurnRolledBack: Display._rolled_back,
    Unknown: Display._unknown,
}


def _arguments(text: str) -> str:
    """`{"query": "x"}` as `query="x"`."""
    try:
        return _named_values(json.loads(text))
    except (ValueError, AttributeError, RecursionError):
        return text


def _named_values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())


def _shown_call(call: Mapping[str, Any]) -> str:
    arguments = call.get("arguments")
    return f"{call.get('name')}({_named_values(arguments) if isinstance(arguments, Mapping) else arguments or ''})"


def _result(record: str) -> str:
    try:
        result = json.loads(record).get("result")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
