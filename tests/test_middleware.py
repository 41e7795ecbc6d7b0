"""Middleware: what governs requests and calls, in an order that is part of its meaning."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import closeout
from closeout.run.middleware.chain import Middleware, sent_through
from closeout.run.middleware.order import ORDER
from closeout.run.plan import Scope


class Noting(Middleware):
    """Notes when it sends."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    async def send(self, sending: Any, send: Any) -> Any:
        self.notes.append(f"{self.name} before")
        found = await send(sending)
        self.notes.append(f"{self.name} after")
        return found


async def test_the_first_middleware_is_outermost_and_one_that_does_not_send_adds_no_frame() -> None:
    notes: list[str] = []

    async def post(sending: Any) -> Any:
        notes.append("post")
        return sending

    assert sent_through([Middleware(), Middleware()], post) is post
    send = sent_through([Noting("a", notes), Middleware(), Noting("b", notes)], post)
    assert await send("request") == "request"  # type: ignore[arg-type, comparison-overlap]
    assert notes == ["a before", "b before", "post", "b after", "a after"]


def test_the_order_is_part_of_the_meaning() -> None:
    assert [each.__name__.removesuffix("Middleware") for each in ORDER] == [
        # decided again when a record is executed again
        "Flow",  # its reasons are among those that a person is asked for
        "Approval",
        "Crash",
        # done once
        "Gate",  # a request that waits for the gate has reserved nothing
        "Budget",
        "Login",
        "Deadline",
        "Secrets",  # nobody outside sees a value
    ]


LOOP = ("attempt", "session", "orchestrator", "requests", "calls", "closing")
CONCERNS = re.compile(r"(?<!over)flow|secret|ledger|\bgate|gate\b|login|approval|timer", re.IGNORECASE)


def test_the_loop_names_no_concern() -> None:
    run = Path(closeout.__file__).parent / "run"
    found = {
        f"{name}.py:{number}: {line.strip()}"
        for name in LOOP
        for number, line in enumerate((run / f"{name}.py").read_text("utf-8").splitlines(), 1)
        if CONCERNS.search(line)
    }
    assert not found


def test_a_scope_does_not_grow_with_the_features() -> None:
    assert len(fields(Scope)) <= 13
