"""What stands around every command, so that whatever goes wrong is one sentence on stderr and the right exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import typer

from closeout.cli import exits
from closeout.errors import CloseoutError

__all__ = ["guarded", "say_error"]

DEBUG = "CLOSEOUT_DEBUG"


def guarded(command: Callable[..., int]) -> Callable[..., None]:
    """A command that returns its exit code, as one that never ends in a traceback (unless CLOSEOUT_DEBUG is set)."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        raise typer.Exit(_ended(lambda: command(*arguments, **options)))

    return run


def _ended(command: Callable[[], int]) -> int:
    debug = os.environ.pop(DEBUG, "") not in ("", "0")  # a switch, not one of the settings that CLOSEOUT_… names
    _settle_streams()
    try:
        code = command()
        sys.stdout.flush()
    except CloseoutError as error:
        if debug:
            raise
        say_error(str(error))
        return exits.exit_code_of(error)
    except KeyboardInterrupt:
        say_error("stopped.")
        return exits.STOPPED
    except BrokenPipeError:
        _forget_stdout()
        return exits.BROKEN_PIPE
    except Exception as error:
        if debug:
            raise
        say_error(_unexpected(error))
        return exits.FAILED
    return code


def say_error(sentence: str) -> None:
    """A sentence for the person at the terminal; lost where stderr is closed."""
    with suppress(OSError, ValueError, AttributeError):
        print(f"closeout: {sentence}", file=sys.stderr, flush=True)


def _unexpected(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}. Set {DEBUG}=1 and run it again to see where it happened."
    from closeout.cli.console import one_line

    what = one_line(f"{type(error).__name__}: {error}".removesuffix(": "), 200)
    return f"this is a fault in Closeout, not in what you typed: {what}. Report it with what {DEBUG}=1 shows."


def _settle_streams() -> None:
    """Any text can be printed: what a stream cannot carry (a lone surrogate, Chinese in Latin-1) is escaped."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _forget_stdout() -> None:
    """Nobody reads any more. What is left in the buffer must not fail again when the interpreter flushes it."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
