"""`closeout doctor`: checks what a run needs and says for each part whether it is there and what to do if not."""

from __future__ import annotations

import asyncio
import importlib.util
import platform
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Literal

from closeout.cli import exits
from closeout.cli.console import print_json
from closeout.cli.guard import printable
from closeout.cli.options import model_in, read_settings
from closeout.config import Config
from closeout.errors import CloseoutError

__all__ = ["Check", "doctor_command"]

# Extra → the module that shows it is installed, and what it brings.
EXTRAS = {
    "local": ("xllamacpp", "the embedded model"),
    "mcp": ("mcp", "MCP servers"),
    "tokens": ("quicktok", "exact token counts"),
    "toon": ("toon_format", "the TOON encoding"),
    "documents": ("pypdf", "PDF, Word and Excel files"),
    "html": ("trafilatura", "main text of web pages"),
    "math": ("math_verify", "grading of mathematics"),
    "otel": ("opentelemetry.sdk", "OpenTelemetry export"),
    "langgraph": ("langgraph", "the LangGraph node"),
}
MARKS = {"ok": "✓", "note": "·", "problem": "✗"}
PLAIN_MARKS = {"ok": "ok  ", "note": "note", "problem": "BAD "}  # where the output has no such characters


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `level`: ok, note (an optional part is missing), problem (a run would fail)."""

    name: str
    level: Literal["ok", "note", "problem"]
    message: str


def doctor_command(model: str | None, base_url: str | None, settings: tuple[str, ...], *, as_json: bool) -> int:
    """Returns OK, or MISUSED if there is a problem."""
    checks = list(_checks(model, base_url, settings))
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        marks = MARKS if (sys.stdout.encoding or "").lower().startswith("utf") else PLAIN_MARKS
        for check in checks:
            print(f"{marks[check.level]} {check.name}: {printable(check.message)}")
    return exits.MISUSED if any(check.level == "problem" for check in checks) else exits.OK


def _checks(model: str | None, base_url: str | None, settings: tuple[str, ...]) -> Iterator[Check]:
    yield from _here()
    yield _journal()
    yield from _extras()
    try:
        config = read_settings(settings)
    except CloseoutError as error:
        yield Check("settings", "problem", str(error))
        return
    yield Check("settings", "ok", "all keys are known")
    yield _model(model or model_in(config), base_url, config)


def _here() -> Iterator[Check]:
    from closeout import __version__

    yield Check("closeout", "ok", f"{__version__}, Python {platform.python_version()}, {sys.platform}")
    try:
        with closing(sqlite3.connect(":memory:")) as db:
            db.execute("CREATE VIRTUAL TABLE t USING fts5(x)")
        yield Check("sqlite", "ok", f"{sqlite3.sqlite_version} with full-text search")
    except sqlite3.Error:
        yield Check("sqlite", "problem", f"{sqlite3.sqlite_version} has no FTS5; use a Python whose sqlite3 has it.")


def _journal() -> Check:
    from closeout.config import home_folder
    from closeout.journal.store import open_store

    try:
        runs = open_store(home_folder()).runs(1)
    except CloseoutError as error:
        return Check("journal", "problem", str(error))
    return Check("journal", "ok", f"{home_folder()}{', last run ' + runs[0].run_id if runs else ', no runs yet'}")


def _extras() -> Iterator[Check]:
    for extra, (module, brings) in EXTRAS.items():
        if _installed(module):
            yield Check(extra, "ok", brings)
        else:
            yield Check(extra, "note", f"not installed; {brings}: pip install 'closeout[{extra}]'")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _model(model: str, base_url: str | None, config: Config) -> Check:
    if model == "local" or model.startswith("local:"):
        return _weights(model)
    try:
        return Check("model", "ok", asyncio.run(_one_reply(model, base_url, config)))
    except CloseoutError as error:
        return Check("model", "problem", str(error))


async def _one_reply(model: str, base_url: str | None, config: Config) -> str:
    """One very short reply without second tries, so that key, name and address are really tested."""
    from closeout.llm.connect import connect
    from closeout.messages import Message, ModelRequest

    client = connect(model, base_url, settings=config.llm.model_copy(update={"max_retries": 0}))
    try:
        request = ModelRequest(messages=[Message(role="user", content="Say ok.")], max_tokens=8, timeout=60)
        reply = await client.complete(request)
        return f"{client.name} answers ({reply.usage.input_tokens} tokens in, {reply.usage.output_tokens} out)"
    finally:
        await client.aclose()


def _weights(model: str) -> Check:
    from closeout.llm.weights import find_weights

    if not _installed("xllamacpp"):
        return Check("model", "problem", f"{model} needs the extra 'local': pip install 'closeout[local]'.")
    try:
        path = find_weights(model)
    except CloseoutError as error:
        return Check("model", "problem", str(error))
    if path is None:
        how = f"the weights of {model} are fetched at the first run, or now: closeout models pull {model}"
        return Check("model", "note", how)
    return Check("model", "ok", f"{model}: {path}")
