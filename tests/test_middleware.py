"""Middleware: what governs requests and calls, in an order that is part of its meaning."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from closeout.run.middleware.chain import Middleware, through
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

    assert through([Middleware(), Middleware()], post) is post
    send = through([Noting("a", notes), Middleware(), Noting("b", notes)], post)
    assert await send("request") == "request"  # type: ignore[arg-type, comparison-overlap]
    assert notes == ["a before", "b before", "post", "b after", "a after"]


def test_the_order_is_part_of_the_meaning() -> None:
    assert [each.__name__.removesuffix("Middleware") for each in ORDER] == [
        "Flow",
        "Gate",  # a request that waits for the gate has reserved nothing
        "Budget",
        "Secrets",
    ]


def test_a_scope_does_not_grow_with_the_features() -> None:
    assert len(fields(Scope)) <= 13
