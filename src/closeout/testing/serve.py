"""`python -m closeout.testing.serve`: run the scripted server in its own process; print its URL, serve until stopped.

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
from closeout.testing.scripted_server import serve_script

__all__ = ["main", "read_misbehaviour", "read_script"]

_PLAN = re.compile(r"(?P<kind>\w+)(?:@(?P<at>\d+))?(?:x(?P<times>\d+|\*))?(?:%(?P<share>[\d.]+))?")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGINT or SIGTERM. The first line of output is the address, with /v1."""
    parser = argparse.ArgumentParser(prog="python -m closeout.testing.serve", description=__doc__.partition("\n")[0])
    parser.add_argument("script", nargs="?", type=Path, help='JSON: [{"calls": [{"name", "arguments"}]}, {"answer"}]')
    parser.add_argument("--calls", type=int, default=1, help="without a script: this many tool calls, then an answer")
    parser.add_argument("--tool", default="lookup", help="the tool that is called, with {key: 'k1'}, {key: 'k2'}, …")
    parser.add_argument("--answer", default="42")
    parser.add_argument("--by", choices=("key", "question"), default="key", help="how conversations are told apart")
    parser.add_argument("--misbehave", action="append", default=[], metavar="KIND[@TURN][xTIMES|x*][%%SHARE]")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        script = read_script(options.script) if options.script else _calls(options.calls, options.tool, options.answer)
        faults = [read_misbehaviour(text) for text in options.misbehave]
    except (UsageError, OSError, ValueError) as error:
        parser.error(str(error))
    try:
        asyncio.run(_serve(script, faults, options.by, options.port))
    except (OSError, OverflowError) as error:
        parser.error(f"--port {options.port}: {error}")


async def _serve(script: Script, faults: Sequence[Misbehaviour], by: Any, port: int) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with serve_script(script, misbehave=faults, by=by, port=port, record=False) as server:
        sys.stdout.write(f"{server.base_url}\n")
        sys.stdout.flush()
        await stopped.wait()


def _calls(number: int, tool: str, answer: str) -> Script:
    turns = [Turn(f"I look up k{i}.", (ToolCall(tool, {"key": f"k{i}"}),)) for i in range(1, number + 1)]
    return [*turns, Turn("I know it now.", answer=answer)]


def read_script(path: Path) -> Script:
    """Read a script from a JSON file: a list of turns, or an object from parts of questions to lists of turns."""
    script = decode_json(path.read_bytes())
    if isinstance(script, dict):
        return {str(question): [_turn(item) for item in turns] for question, turns in script.items()}
    if not isinstance(script, list):
        raise UsageError(
            f"A script must be a list of turns, or an object from parts of questions to such lists, got {script!r:.80}."
        )
    return [_turn(item) for item in script]


def _turn(item: Any) -> Turn:
    if isinstance(item, str):
        return Turn(text=item)
    if not isinstance(item, dict) or not {"thought", "calls", "answer", "text", "reasoning"}.issuperset(item):
        raise UsageError(
            f"A turn must be a text or an object with thought, calls, answer, text, reasoning, got {item!r:.80}."
        )
    calls = item.pop("calls", [])
    if not isinstance(calls, list) or not all(isinstance(call, dict) and "name" in call for call in calls):
        raise UsageError(
            'The calls of a turn must be a list of objects such as {"name": "lookup", "arguments": {"key": "k1"}}.'
        )
    return Turn(calls=tuple(ToolCall(call["name"], call.get("arguments") or {}) for call in calls), **item)


def read_misbehaviour(text: str) -> Misbehaviour:
    """Read `empty@3x2` (at turn 3, twice), `429` (once), `dropped%0.1` (at 10 % of the requests), `slowx*` (always)."""
    match = _PLAN.fullmatch(text)
    if match is None:
        raise UsageError(
            f"Cannot read the misbehaviour '{text}'. Write KIND, KIND@TURN, KIND@TURNxTIMES or KIND%SHARE."
        )
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
