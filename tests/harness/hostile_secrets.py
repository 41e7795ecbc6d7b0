"""Runs a real agent whose tools give a secret away, and looks for it in everything that is written or sent.

A case is drawn by hypothesis: how the value is written, what it is wrapped in, how it leaves the tool, the dialect, and
whether the run is cut off and resumed. The value must be in no request, event, log, result, page or byte of the home.
"""

from __future__ import annotations

import asyncio
import base64
import html
import json
import logging
import sqlite3
import string
from collections import UserDict, UserList, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, quote_plus

from drawn_cases import check_drawn
from hypothesis import strategies as st
from pydantic import create_model

from closeout import Agent, File, RunContext, Secret, ToolFinished, ToolOutput, tool
from closeout.errors import ToolError
from closeout.journal.store import close_stores, open_store
from closeout.server.viewer.page_export import export_run
from closeout.testing import ScriptedClient, answer, call

DIALECTS = ("function_call", "cot_chat", "mcp_xml", "code")
LETTERS = string.ascii_letters + string.digits + "+/=_-&<>\"' %äß中"


def _base64(before: bytes, text: str) -> str:
    return base64.b64encode(before + text.encode()).decode()


# How a tool, a server or a library writes a text.
WRITINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "json": json.dumps,
    "json in json": lambda text: json.dumps({"body": json.dumps({"t": text})}),
    "utf-8 json": lambda text: json.dumps(text, ensure_ascii=False),
    "repr": repr,
    "bytes": lambda text: repr(text.encode()),
    "html": html.escape,
    "quoted": quote,
    "query": quote_plus,
    "hex": lambda text: text.encode().hex(),
    **{f"base64 {n}": lambda text, n=n: _base64(b"user:"[:n], text) for n in range(5)},  # type: ignore[misc]
    "header": lambda text: f"Authorization: Bearer {text}\r\n",
}


class Shown:
    def __init__(self, text: Any) -> None:
        self.text = text

    def __str__(self) -> str:
        return f"<{self.text}>"

    __repr__ = __str__


# What the text is a part of.
WRAPPINGS: dict[str, Callable[[str], Any]] = {
    "text": lambda text: text,
    "sentence": lambda text: f"It was{text}, they said.",
    "long text": lambda text: "word " * 3000 + text + " word" * 3000,
    "list": lambda text: [text],
    "tuple": lambda text: (1, text),
    "set": lambda text: {text},
    "key": lambda text: {text: 1},
    "value": lambda text: {"a": {"b": [text]}},
    "rows": lambda text: [{"id": n, "t": text} for n in range(30)],
    "bytes": lambda text: text.encode(),
    "bytes in a dict": lambda text: {"raw": bytearray(text.encode())},
    "memory": lambda text: memoryview(text.encode()),
    "user dict": lambda text: UserDict({"t": text}),
    "user list": lambda text: UserList([text]),
    "named tuple": lambda text: namedtuple("Row", "t")(text),
    "dataclass": lambda text: make_dataclass("Row", ["t"])(text),
    "model": lambda text: create_model("Row", t=(str, ...))(t=text),
    "nested model": lambda text: {"row": create_model("Row", t=(dict, ...))(t={"t": text})},
    "enum": lambda text: Enum("Kind", {"T": text}).T,
    "path": lambda text: PurePosixPath("/tmp") / text,
    "object": Shown,
    "objects": lambda text: [Shown(text), {"x": Shown({"t": text})}],
    "namespace": lambda text: SimpleNamespace(t=text),
    "exception": lambda text: ValueError(text),
    "generator": lambda text: (each for each in [text]),
}


def _raise(made: Any) -> Any:
    raise made


def _noted(value: Any) -> Exception:
    error = ValueError("no")
    error.add_note(str(value))
    return error


def _caused(value: Any) -> Any:
    try:
        raise KeyError(value)
    except KeyError as cause:
        raise RuntimeError("no") from cause


def _log(context: RunContext[Any], value: Any) -> str:
    context.logger.warning("sent %s", value)
    context.logger.error("%r failed", value, extra={"value": value})
    context.progress(1, 2, str(value))
    try:
        raise ValueError(value)
    except ValueError:
        context.logger.exception("failed")
    return "ok"


# How it leaves the tool.
WAYS: dict[str, Callable[[RunContext[Any], Any], Any]] = {
    "returned": lambda context, value: value,
    "raised": lambda context, value: _raise(ValueError(value)),
    "told": lambda context, value: _raise(ToolError(str(value))),
    "noted": lambda context, value: _raise(_noted(value)),
    "caused": lambda context, value: _caused(value),
    "group": lambda context, value: _raise(ExceptionGroup("no", [ValueError(value)])),
    "no file": lambda context, value: _raise(FileNotFoundError(2, "missing", str(value))),
    "logged": _log,
    "output": lambda context, value: ToolOutput(
        result=value,
        summary=str(value),
        observation=str(value),
        metadata={"m": value},
        state_update={"s": str(value)},
        checkpoint=str(value)[:60],
    ),
    "file": lambda context, value: [File("a.txt", str(value)), File("b.bin", b"\xff\0" + str(value).encode())],
    "table": lambda context, value: {"rows": File.table("t.csv", [{"t": str(value)}])},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """A run whose tools give a value away."""

    value: str
    writing: str
    wrapping: str
    way: str
    dialect: str
    by_function: bool
    resumed: bool


LEAKS = st.builds(
    Leak,
    # The ends are no part of any other text.
    value=st.text(LETTERS, min_size=6, max_size=40).map(lambda text: f"x9q{text}7zj"),
    writing=st.sampled_from(sorted(WRITINGS)),
    wrapping=st.sampled_from(sorted(WRAPPINGS)),
    way=st.sampled_from(sorted(WAYS)),
    dialect=st.sampled_from(DIALECTS),
    by_function=st.booleans(),
    resumed=st.booleans(),
)


def traces(leak: Leak) -> set[str]:
    """The texts that must be nowhere: the value as it can be written, without what depends on what is around it."""
    data = leak.value.encode()
    written = {leak.value, quote(leak.value), quote_plus(leak.value), html.escape(leak.value), data.hex()}
    written |= {json.dumps(leak.value)[1:-1], repr(leak.value)[1:-1], repr(data)[2:-1]}
    for before in range(3):
        whole = _base64(b"\0" * before, leak.value)
        written.add(whole[4 * (before > 0) : len(whole) - 4])
    return {each for each in written if len(each) >= 8}


def _agent(leak: Leak, home: Path) -> tuple[Agent[Any], ScriptedClient]:
    @tool(on_crash="rerun", repeatable=True)
    def use(token: str, context: RunContext) -> Any:
        """Use a token."""
        if token != leak.value:
            raise ToolError("This is not the token.")
        return WAYS[leak.way](context, WRAPPINGS[leak.wrapping](WRITINGS[leak.writing](token)))

    @tool(on_crash="rerun", repeatable=True)
    def other(n: int = 0) -> Any:
        """What another tool found, where the first has left it."""
        return {"found": WRAPPINGS["value"](WRITINGS[leak.writing](leak.value))}

    made = [call("use", token="secret:k"), call("other")]
    if leak.dialect == "code":
        code = (
            "try:\n    print(use(token='secret:k'))\nexcept Exception as error:\n    print(repr(error))\nprint(other())"
        )
        made = [f"```python\n{code}\n```"]  # type: ignore[list-item]
    client = ScriptedClient([*made, answer("done")])
    secret = Secret("k", (lambda context: leak.value) if leak.by_function else leak.value, tools=["use"])
    return Agent(client, [use, other], secrets=[secret], dialect=leak.dialect, home=home), client


async def _run(leak: Leak, home: Path) -> tuple[str, str]:
    """Run a case. Return its run id, and all that was sent and shown."""
    seen: list[Any] = []
    agent, client = _agent(leak, home)
    if leak.resumed:

        def cut_off(event: Any) -> None:
            seen.append(event)
            if isinstance(event, ToolFinished):
                running.cancel()

        running = asyncio.ensure_future(agent.run("Use it.", run_id="r", listeners=[cut_off]))
        await asyncio.gather(running, return_exceptions=True)
        agent, again = _agent(leak, home)
        result = await agent.resume("r", listeners=[seen.append])
        seen.append(again.requests)
    else:
        result = await agent.run("Use it.", run_id="r", listeners=[seen.append])
    log = result.task_log.to_json() if result.task_log is not None else ""
    return result.run_id, f"{seen!r} {client.requests!r} {result!r} {result.to_dict()!r} {log}"


def found_of(leak: Leak, home: Path) -> list[str]:
    """Run a case in a new home and return where the value was found."""
    logged: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(logging.Formatter("%(message)s %(exc_text)s").format(record) + repr(record.__dict__))

    keep, root = Keep(), logging.getLogger()
    before, root.level = root.level, logging.DEBUG
    root.addHandler(keep)
    try:
        run_id, shown = asyncio.run(_run(leak, home))
        page = export_run(open_store(home), run_id)
    finally:
        root.removeHandler(keep)
        root.level = before
        close_stores()
    for path in home.rglob("*.db"):
        sqlite3.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    bytes_of = b"\n".join(path.read_bytes() for path in home.rglob("*") if path.is_file()).decode("utf-8", "replace")
    places = {"shown": shown, "log": "\n".join(logged), "page": page, "home": bytes_of}
    assert "secret:k" in shown
    return [f"{trace!r} in the {name}" for trace in traces(leak) for name, text in places.items() if trace in text]


def check(home: Path, cases: int, number: int) -> None:
    """Run so many cases, drawn with this seed. The smallest case that goes wrong is the AssertionError."""
    numbers = iter(range(10**9))
    check_drawn(LEAKS, lambda leak: found_of(leak, home / str(next(numbers))), cases=cases, number=number)
