"""`closeout` and `python -m closeout`: the command line. Ctrl-C is one sentence from the first import on."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point. Exit codes: see docs/cli.md."""
    try:
        from closeout.cli.main import main as command_line
    except KeyboardInterrupt:
        print("closeout: stopped.", file=sys.stderr)
        sys.exit(130)  # the exit code of cli.exits, which is not loaded yet
    command_line()


if __name__ == "__main__":
    main()
