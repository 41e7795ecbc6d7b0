"""What stands around every command, so that whatever goes wrong is one sentence on stderr and the right exit code."""

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

from closeout.cli import exits
from closeout.errors import CloseoutError

__all__ = ["Answering", "guarded", "printable", "say_error"]

DEBUG = "CLOSEOUT_DEBUG"


def guarded(command: Callable[..., int]) -> Callable[..., None]:
    """A command that returns its exit code, as one that never ends in a traceback (unless CLOSEOUT_DEBUG is set)."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        raise typer.Exit(_ended(lambda: command(*arguments, **options), as_json=bool(options.get("json"))))

    return run


def _ended(command: Callable[[], int], *, as_json: bool) -> int:
    debug = os.environ.pop(DEBUG, "") not in ("", "0")  # a switch, not one of the settings that CLOSEOUT_… names
    _settle_streams()
    try:
        code = command()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        say_error("stopped.")
        return exits.STOPPED
    except BrokenPipeError:
        _forget_stdout()
        return exits.BROKEN_PIPE
    except Exception as error:
        if debug:
            traceback.print_exc()
        sentence, code = _told(error)
        if as_json:
            _print_failure(sentence, type(error).__name__)
        say_error(sentence)
        return code


class Answering(TyperGroup):
    """The commands, so that whoever asks for an object gets one for arguments that the parser refuses, too."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        try:
            return super().main(args, *more, **options)
        except SystemExit as end:
            refusal = getattr(end.__context__, "format_message", None)  # the parser's error, which it has shown
            if refusal is not None and _asks_for_json(given):
                _settle_streams()
                _print_failure(refusal(), "UsageError")
            raise


def _asks_for_json(arguments: list[str]) -> bool:
    return "--json" in (arguments[: arguments.index("--")] if "--" in arguments else arguments)


def _print_failure(sentence: str, kind: str) -> None:
    """Whoever asked for an object gets one, here too."""
    from closeout.cli.console import print_json

    with suppress(OSError, ValueError):
        print_json({"answer": None, "status": "failed", "error": sentence, "error_kind": kind})
        sys.stdout.flush()


def _told(error: Exception) -> tuple[str, int]:
    if isinstance(error, CloseoutError):
        return str(error), exits.exit_code_of(error)
    if isinstance(error, OSError) and error.strerror:
        if error.filename is None and error.errno == errno.ENOSPC:
            _forget_stdout()
            return "the output could not be written: No space left on device. Nothing else was lost.", exits.FAILED
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}. {DEBUG}=1 shows where that happened.", exits.FAILED
    from closeout.cli.console import one_line

    what = one_line(f"{type(error).__name__}: {error}".removesuffix(": "), 200)
    sentence = f"this is a fault in Closeout, not in what you typed: {what}. Report it with what {DEBUG}=1 shows."
    return sentence, exits.FAILED


def say_error(sentence: str) -> None:
    """A sentence for the person at the terminal; lost where stderr is closed."""
    with suppress(OSError, ValueError, AttributeError):
        print(f"closeout: {printable(sentence)}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """The text without control characters: models, servers and files must not write escape sequences to a terminal.

    Line breaks and tabs stay; what a stream cannot carry is the stream's business (a lone surrogate is escaped).
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" or "\ud800" <= c <= "\udfff" else " " if c.isspace() else "" for c in text
    )


def _settle_streams() -> None:
    """Any text can be printed: what a stream cannot carry (a lone surrogate, Chinese in Latin-1) is escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for good
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _forget_stdout() -> None:
    """Nobody reads any more. What is left in the buffer must not fail again when the interpreter flushes it."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
