"""`python -m closeout.testing.serve`: the scripted server in a process of its own; prints its URL, serves until told.

python -m closeout.testing.serve --calls 200 --tool lookup --by question
python -m closeout.testing.serve script.json --misbehave 429@2 --misbehave empty@3x2 --misbehave dropped%0.1
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from closeout.codec import decode_json
from closeout.errors import UsageError
from closeout.messages import ToolCall
from closeout.testing.misbehaviour import Misbehaviour
from closeout.testing.script import Script, Turn
from closeout.testing.server import serve_script

__all__ = ["main", "read_misbehaviour", "read_script"]

_PLAN = re.compile(r"(?P<kind>\w+)(?:@(?P<at>\d+))?(?:x(?P<times>\d+|\*))?(?:%(?P<share>[\d.]+))?")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves until SIGINT or SIGTERM; the first line of its output is its address, with /v1."""
    parser = argparse.ArgumentParser(prog="python -m closeout.testing.serve", description=__doc__.partition("\n")[0])
    parser.add_argument("script", nargs="?", type=Path, help='JSON: [{"thought", "calls": [{"name", "arguments"}]}, …]')
    parser.add_argument("--calls", type=int, default=1, help="without a script: so many tool calls, then an answer")
    parser.add_argument("--tool", default="lookup", help="the tool that is called, with {key: 'k1'}, {key: 'k2'}, …")
    parser.add_argument("--answer", default="42")
    parser.add_argument("--by", choices=("key", "question"), default="key", help="how conversations are told apart")
    parser.add_argument("--misbehave", action="append", default=[], metavar="KIND[@TURN][xTIMES|x*][%%SHARE]")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        script = read_script(options.script) if options.script else _calls(options.calls, options.tool, options.answer)
        plan = [read_misbehaviour(text) for text in options.misbehave]
    except (UsageError, OSError, ValueError) as error:
        parser.error(str(error))
    try:
        asyncio.run(_serve(script, plan, options.by, options.port))
    except (OSError, OverflowError) as error:
        parser.error(f"--port {options.port}: {error}")


async def _serve(script: Script, plan: Sequence[Misbehaviour], by: Any, port: int) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    async with serve_script(script, misbehave=plan, by=by, port=port, record=False) as server:
        sys.stdout.write(f"{server.base_url}\n")
        sys.stdout.flush()
        await over.wait()


def _calls(number: int, tool: str, answer: str) -> Script:
    turns = [Turn(f"I look up k{i}.", (ToolCall(tool, {"key": f"k{i}"}),)) for i in range(1, number + 1)]
    return [*turns, Turn("I know it now.", answer=answer)]


def read_script(path: Path) -> Script:
    """A script from a JSON file: a list of turns, or an object from pieces of questions to lists of turns."""
    given = decode_json(path.read_bytes())
    if isinstance(given, dict):
        return {str(question): [_turn(item) for item in turns] for question, turns in given.items()}
    if not isinstance(given, list):
        raise UsageError("A script is a list of turns, or an object from pieces of questions to lists of turns.")
    return [_turn(item) for item in given]


def _turn(item: Any) -> Turn:
    if isinstance(item, str):
        return Turn(text=item)
    if not isinstance(item, dict) or not {"thought", "calls", "answer", "text", "reasoning"}.issuperset(item):
        raise UsageError("A turn is a text, or an object of thought, calls, answer, text, reasoning.")
    calls = item.pop("calls", [])
    if not isinstance(calls, list) or not all(isinstance(call, dict) and "name" in call for call in calls):
        raise UsageError('The calls of a turn are a list of objects: {"name": …, "arguments": {…}}.')
    return Turn(calls=tuple(ToolCall(call["name"], call.get("arguments") or {}) for call in calls), **item)


def read_misbehaviour(text: str) -> Misbehaviour:
    """`empty@3x2`: at turn 3, twice; `429`: once; `dropped%0.1`: at a tenth of all requests; `slowx*`: always."""
    match = _PLAN.fullmatch(text)
    if match is None:
        raise UsageError(f"'{text}' is no misbehaviour. Write KIND, KIND@TURN, KIND@TURNxTIMES or KIND%SHARE.")
    share = float(match["share"] or 1.0)
    endless = match["times"] == "*" or (match["share"] is not None and match["times"] is None)
    return Misbehaviour(
        match["kind"],
        at=int(match["at"]) if match["at"] else None,
        times=None if endless else int(match["times"] or 1),
        share=share,
    )


if __name__ == "__main__":
    main()
