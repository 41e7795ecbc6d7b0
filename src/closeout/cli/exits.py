"""The end of a command: its exit code, one sentence on stderr if it failed, and what to do next.

`terminal` is imported when something has to be printed, so that `closeout --help` does not load it.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from closeout.cli.option_types import command_settings, settings_named, with_settings
from closeout.errors import (
    CloseoutError,
    JournalDamaged,
    JournalFull,
    JournalLocked,
    McpServerUnavailable,
    ModelError,
    ModelUnavailable,
)

__all__ = [
    "FAILED",
    "MISUSED",
    "OK",
    "OUTCOMES",
    "STOPPED",
    "WAITING",
    "CommandGroup",
    "guarded",
]

OK = 0
UNANSWERED = 1
MISUSED = 2  # bad usage or configuration: change the command
FAILED = 3  # the command is right, but the run failed
WAITING = 4  # the run waits for a decision (closeout approve), a time or a signal (closeout runs signal)
STOPPED = 130  # Ctrl-C: 128 + SIGINT, as shells count
BROKEN_PIPE = 141  # the reader of our output is gone: 128 + SIGPIPE

OUTCOMES = {"answered": OK, "unanswered": UNANSWERED, "failed": FAILED, "cancelled": STOPPED, "waiting": WAITING}
"""The exit code for each status of a run."""

DEBUG = "CLOSEOUT_DEBUG"
_FAILURES = (ModelError, McpServerUnavailable, JournalFull, JournalLocked, JournalDamaged)


def guarded(command: Callable[..., int]) -> Callable[..., None]:
    """Wrap a command that returns its exit code so that errors become one sentence instead of a traceback.

    With CLOSEOUT_DEBUG=1 the traceback is printed too.
    """

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        command_settings.set(settings_named(options))
        raise typer.Exit(_exit_code(lambda: command(*arguments, **options), as_json=bool(options.get("json"))))

    return run


def _exit_code(command: Callable[[], int], *, as_json: bool) -> int:
    debug = os.environ.pop(DEBUG, "") not in ("", "0")  # not a setting, although it starts with CLOSEOUT_
    _configure_streams()
    try:
        code = command()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        if as_json:
            _print_object({"answer": None, "status": "cancelled", "run_id": None})
        from closeout.cli.terminal import say_error

        say_error("stopped.")
        return STOPPED
    except BrokenPipeError:
        _discard_stdout()
        return BROKEN_PIPE
    except Exception as error:
        if debug:
            traceback.print_exc()
        sentence, code = _explain(error)
        sentence = with_settings(sentence)
        if as_json:
            _print_object(_failure(sentence, type(error).__name__))
        from closeout.cli.terminal import say_error

        say_error(sentence)
        return code


class CommandGroup(TyperGroup):
    """The commands of `closeout`. With --json, arguments that the parser refuses print a JSON object too."""

    default = ""  # the command that takes arguments which name none

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names_one = args[:1] == ["--help"] or (args and args[0] in self.commands)
        if self.default and not names_one and (args or not self.no_args_is_help):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        params = [] if command is None else command.params
        if any(each.name == "agent" and each.param_type_name == "argument" for each in params):
            rest = _agent_first(rest)
        return name, command, rest

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        try:
            return super().main(args, *more, **options)
        except SystemExit as end:
            message = getattr(end.__context__, "format_message", None)  # the parser has printed its error already
            if message is not None and _wants_json(arguments):
                _configure_streams()
                _print_object(_failure(message(), "UsageError"))
            raise


def _agent_first(args: list[str]) -> list[str]:
    """Move the agent of `-a AGENT` to the front, for commands whose first argument it is."""
    for place, arg in enumerate(args):
        if arg in ("-a", "--agent") and args[place + 1 :]:
            return [args[place + 1], *args[:place], *args[place + 2 :]]
        if arg.startswith("--agent="):
            return [arg.partition("=")[2], *args[:place], *args[place + 1 :]]
    return args


def _wants_json(arguments: list[str]) -> bool:
    return "--json" in (arguments[: arguments.index("--")] if "--" in arguments else arguments)


def _explain(error: Exception) -> tuple[str, int]:
    """Return the sentence and the exit code for an error."""
    if isinstance(error, CloseoutError):
        happened = isinstance(error, _FAILURES) and not isinstance(error, ModelUnavailable)
        return str(error), FAILED if happened else MISUSED
    if isinstance(error, OSError) and error.strerror:
        if error.filename is None and error.errno == errno.ENOSPC:
            _discard_stdout()
            return "the output could not be written: No space left on device. Nothing else was lost.", FAILED
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}. Set {DEBUG}=1 to see where that happened.", FAILED
    from closeout.cli.terminal import one_line

    what = one_line(f"{type(error).__name__}: {error}".removesuffix(": "), 200)
    return (
        f"this is a bug in Closeout, not in your command: {what}. Please report it with the output of {DEBUG}=1.",
        FAILED,
    )


def _failure(sentence: str, kind: str) -> dict[str, Any]:
    return {"answer": None, "status": "failed", "error": sentence, "error_kind": kind}


def _print_object(value: dict[str, Any]) -> None:
    from closeout.cli.terminal import print_json

    with suppress(OSError, ValueError):
        print_json(value)
        sys.stdout.flush()


def _configure_streams() -> None:
    """Let any text be printed: escape what a stream cannot encode (a lone surrogate, Chinese in Latin-1)."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent process
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - stays open
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _discard_stdout() -> None:
    """Redirect stdout to nothing, so that flushing it at exit does not fail again."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
