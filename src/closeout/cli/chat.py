"""`closeout chat`: a conversation in the terminal. Replies are streamed; Ctrl-C stops a reply, not the program."""

from __future__ import annotations

import asyncio
import codecs
import io
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from typing import Any, TypeVar

from closeout.agent import Agent
from closeout.cli import exits
from closeout.cli.chat_templates import ChatTemplates
from closeout.cli.continuing import last_conversation, options_of_session
from closeout.cli.deciding import ask_at_terminal, can_ask, describe_pending
from closeout.cli.display import Display
from closeout.cli.options import RunOptions, make_agent, with_own_deps
from closeout.cli.signals import Signals, Stopped, exit_now_if_blocked
from closeout.cli.terminal import amount, duration, make_console, print_answer, printable, say_error, usage_line
from closeout.errors import CloseoutError
from closeout.journal.events import REPLIED
from closeout.run.conversation import Session
from closeout.run.result import RunResult
from closeout.run.subagents import closing_clients
from closeout.visible import visible

__all__ = ["chat_command"]

T = TypeVar("T")

PROMPT = "> "
NOW = "/now "  # The prefix of a line that interrupts the reply.
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|.)?")  # Escape sequences of keys such as arrows.
HELP = """\
/help      show this
/history   show the conversation
/retry     continue a reply that was stopped, failed or interrupted
/new       begin a new conversation
/prompts   list the agent's task templates and the prompts of its MCP servers; /NAME KEY=VALUE … sends one
/exit      leave; Ctrl-D does too
A line that ends in \\ continues on the next one. Ctrl-C stops a reply.
What you type while the agent works reaches it before its next request; /now TEXT interrupts its reply."""


def chat_command(options: RunOptions, session_id: str, *, continue_last: bool, quiet: bool) -> int:
    """Talk with an agent until the input ends. Return the exit code."""
    if continue_last and not session_id:
        session_id = last_conversation()
    if session_id:
        options = options.over(options_of_session(session_id))
    agent = make_agent(options)
    with asyncio.Runner() as runner:
        chat = _TerminalChat(agent, options, session_id, runner, quiet=quiet)
        runner.run(agent.__aenter__())
        try:
            code = chat.talk()
            return exit_now_if_blocked(code) if chat.stopped else code
        finally:
            with suppress(KeyboardInterrupt):
                runner.run(_close(agent))


async def _close(agent: Agent[Any]) -> None:
    async with closing_clients(agent.plan()):
        await agent.__aexit__()


class _Typing:
    """Reads the lines that are typed during a reply. The terminal does not echo them into it: `show` does.

    Args:
        is_terminal: Whether stdin is a terminal. Lines of a pipe wait for their turn.
        show: Receives what is being typed.
        enter: Receives a line.
    """

    def __init__(self, is_terminal: bool, show: Callable[[str], object], enter: Callable[[str], object]) -> None:
        self.text = ""  # the beginning of a line
        self._is_terminal = is_terminal
        self._show = show
        self._enter = enter
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._before: list[Any] | None = None

    def __enter__(self) -> None:
        if self._is_terminal:
            with suppress(ImportError, OSError):  # Windows has no termios
                import termios

                self._before = termios.tcgetattr(sys.stdin)
                quiet = termios.tcgetattr(sys.stdin)
                quiet[3] &= ~(termios.ECHO | termios.ICANON)
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)

    def __exit__(self, *_: object) -> None:
        self.on()

    async def during(self, work: Awaitable[T]) -> T:
        """Wait for the work while reading the keyboard."""
        if self._before is None:
            return await work
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin, self._read_keys)
        try:
            return await work
        finally:
            loop.remove_reader(sys.stdin)

    def _read_keys(self) -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            asyncio.get_running_loop().remove_reader(sys.stdin)
        for key in _ESCAPES.sub("", self._decoder.decode(data)):
            if key in "\r\n":
                line, self.text = self.text, ""
                self._enter(line)
            elif key in "\b\x7f":
                self.text = self.text[:-1]
            elif key == "\x15":  # Ctrl-U
                self.text = ""
            elif key.isprintable():
                self.text += key
        self._show(self.text)

    def on(self) -> None:
        """Echo again."""
        if self._before is not None:
            import termios

            with suppress(OSError):
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)
            self._before = None


@contextmanager
def _prefilled(text: str) -> Iterator[None]:
    """Let the next line begin with a text, if line editing is available."""
    if not text:
        yield
        return
    try:
        import readline
    except ImportError:
        yield
        return
    readline.set_startup_hook(lambda: readline.insert_text(text))
    try:
        yield
    finally:
        readline.set_startup_hook()


class _TerminalChat:
    """A series of conversations in the terminal."""

    def __init__(
        self, agent: Agent[Any], options: RunOptions, session_id: str, runner: asyncio.Runner, *, quiet: bool
    ) -> None:
        self._agent = agent
        self._origin = options.as_origin()
        self._files = options.files  # sent with the first message
        self._runner = runner
        self._quiet = quiet
        self._is_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._session: Session[Any] = agent.session(session_id)
        self.stopped = False  # True once a reply was stopped: its tool may still be running
        self._late: list[str] = []  # lines that were typed too late for a reply: the next messages
        self._typed = ""  # the beginning of the next line
        self._sending: set[asyncio.Task[None]] = set()
        self._words: list[str] = []  # completions of the word before the cursor
        self._code = exits.OK
        self._notes = Display(brief=True)
        self._commands: dict[str, Callable[[], object]] = {
            "/help": lambda: self._say(HELP),
            "/history": self._show_history,
            "/retry": self._retry,
            "/new": self._begin,
            "/prompts": lambda: self._say(self._templates.listed()),
        }
        self._templates = ChatTemplates(agent, runner.run)

    def talk(self) -> int:
        """Read messages and answer them. Return the exit code: of the last reply if stdin is not a terminal."""
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        self._greet()
        for text in self._messages():
            if not text:
                continue
            if text in ("/exit", "/quit"):
                break
            with suppress(KeyboardInterrupt):  # Ctrl-C just after the end of a reply
                self._act(text)
        if self._is_terminal and self._session.messages:
            self._say(f"To continue: closeout chat -c   or: closeout chat --session {self._session.id}")
        return exits.OK if self._is_terminal else self._code

    def _act(self, text: str) -> None:
        if text.startswith("/") and text.split()[0] in self._commands:
            self._commands[text.split()[0]]()
            return
        try:
            task = self._templates.filled(text) if text.startswith("/") else text
        except CloseoutError as error:
            say_error(str(error))
            self._code = exits.FAILED
            return
        if task is None and self._is_terminal and " " not in text:
            self._say(f"Unknown command {text}. /help lists the commands.")
            return
        if task not in (None, text):
            self._say(visible(task, keep="\n"))
        files, self._files = self._files, ()
        self._reply(lambda **more: self._session.run(task or text, files=files, **more))

    def _greet(self) -> None:
        if not self._is_terminal:
            return
        replies = sum(message.role == "user" for message in self._session.messages)
        earlier = f" · {amount(replies, 'message')} so far" if replies else ""
        self._say(f"{self._agent.plan().client.name}{earlier} · /help lists the commands")
        with suppress(ImportError):
            import readline  # line editing for input()

            readline.set_completer(self._completed)
            readline.set_completer_delims(" ")
            readline.parse_and_bind("tab: complete")
            for message in self._session.messages:
                if message.role == "user" and "\n" not in message.text:
                    readline.add_history(printable(message.text))

    def _completed(self, _: str, number: int) -> str | None:
        """Return a completion of the word before the cursor, as readline asks for it."""
        import readline

        if number == 0:
            line = readline.get_line_buffer()[: readline.get_endidx()]
            self._words = self._templates.completions(line, self._commands)
        return self._words[number] if number < len(self._words) else None

    def _messages(self) -> Iterator[str]:
        """Yield what the user types, or the lines of stdin."""
        while True:
            while self._late:
                text = self._late.pop(0)
                self._say(f"{PROMPT}{text}")
                yield text
            try:
                yield self._read_message()
            except EOFError:
                if self._is_terminal:
                    print(file=sys.stderr)
                return
            except KeyboardInterrupt:
                self._say("\nCtrl-D or /exit leaves.")

    def _read_message(self) -> str:
        lines = [self._line(PROMPT)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._line("… "))
        return "\n".join(lines).strip()

    def _line(self, prompt: str) -> str:
        if self._is_terminal:
            typed, self._typed = self._typed, ""
            with _prefilled(typed):
                return input(prompt)
        line = sys.stdin.readline() if sys.stdin is not None else ""
        if not line:
            raise EOFError
        return line.rstrip("\n")

    # -------------------------------------------------------------------------------------------- replies

    def _reply(self, start: Callable[..., Any], *, resumes: bool = False) -> None:
        """Run the agent, show its reply while it is written, and stop it at the first Ctrl-C."""
        display = None if self._quiet else Display(brief=True)

        def show(typed: str) -> None:
            if display is not None:
                display.typed = typed

        typing = _Typing(self._is_terminal, show, lambda line: self._send(line, display))

        listeners: Sequence[Any] = () if display is None else (display,)
        try:
            with Signals(display, typing.on) as signals, typing, display or nullcontext():
                work = self._with_deps(start, listeners, resumes)
                try:
                    result = signals.run(typing.during(self._with_messages(work)), self._runner)
                finally:
                    self._typed = typing.text
        except Stopped as stopped:
            self.stopped = True
            if display is not None and display.unfinished:
                display.say(display.unfinished)
            self._say("Stopped. /retry continues.")
            if stopped.number != signal.SIGINT:
                raise SystemExit(stopped.code) from None
            self._code = stopped.code
        except CloseoutError as error:
            say_error(str(error))
            self._code = exits.FAILED
        else:
            self._show(result, display)
            if result.status == "waiting" and can_ask(False) and (decisions := ask_at_terminal(result.waiting)):
                self._reply(lambda origin, **more: self._session.resume(decisions=decisions, **more), resumes=True)

    async def _with_deps(self, start: Callable[..., Any], listeners: Sequence[Any], resumes: bool) -> Any:
        """Send a message, or resume its run, with the dependencies that the agent's settings name."""
        async with AsyncExitStack() as stack:
            runs = self._session.runs if resumes else []
            run_id = runs[-1].run_id if runs else self._session.next_run_id()
            agent = await with_own_deps(self._agent, stack, run_id)
            return await start(origin=self._origin, listeners=listeners, deps=agent.plan().deps)

    def _send(self, line: str, display: Display | None) -> None:
        """Send a line that was typed during a reply. If it is too late, it becomes the next message."""
        interrupt = line.startswith(NOW)
        text = line.removeprefix(NOW).strip()
        if not text:
            return
        if text.startswith("/") and " " not in text and not interrupt:  # a command
            self._late.append(text)
            return

        async def send() -> None:
            try:
                await self._session.send(text, interrupt=interrupt, by="terminal")
            except CloseoutError:
                self._late.append(text)
            else:
                if display is not None:
                    display.working("interrupting" if interrupt else "your message goes with the next request")

        task = asyncio.get_running_loop().create_task(send())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _with_messages(self, work: Awaitable[T]) -> T:
        """Wait for a reply, and for the messages that are still being sent."""
        try:
            return await work
        finally:
            if self._sending:
                await asyncio.wait(self._sending)

    def _show(self, result: RunResult[Any], display: Display | None) -> None:
        self._code = exits.OUTCOMES.get(result.status, exits.FAILED)
        reply = result.closing_text or result.answer if result.status in REPLIED else None
        if reply:
            print_answer(reply)
        if result.status == "waiting":
            self._say(describe_pending(result.run_id, result.waiting))
        elif result.status == "failed":
            say_error(f"{result.error or result.stop_reason} /retry tries again.")
        elif not reply:
            say_error(result.error or f"no answer was found ({result.stop_reason}).")
        if display is not None and self._is_terminal:
            parts = [usage_line(result.usage), duration(result.seconds * 1000)]
            display.say(" · ".join(parts), "dim")

    # -------------------------------------------------------------------------------------------- commands

    def _retry(self) -> None:
        self._reply(lambda origin, **more: self._session.resume(**more), resumes=True)

    def _begin(self) -> None:
        self._session = self._agent.session()
        self._say("A new conversation.")

    def _show_history(self) -> None:
        console = make_console(stderr=True)
        for message in self._session.messages:
            if message.role in ("user", "assistant") and message.text.strip():
                mark = PROMPT if message.role == "user" else ""
                console.print(f"{mark}{printable(message.text.strip())}", markup=False, style="bold" if mark else "")

    def _say(self, text: str) -> None:
        for line in text.splitlines():
            self._notes.say(line)
