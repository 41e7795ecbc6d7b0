"""Answers of types that are texts in JSON: the bare value counts, as models write it, and a guess does not."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from enum import IntEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from closeout import Agent
from closeout.answers.typed import contract_of
from closeout.testing import ScriptedClient, say


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (dt.date, "2026-01-02", dt.date(2026, 1, 2)),
        (dt.date, "The date is **2026-01-02**.", dt.date(2026, 1, 2)),
        (dt.date, r"So \boxed{2026-01-02}, not 2025-12-31.", dt.date(2026, 1, 2)),
        (dt.date, '"2026-01-02"', dt.date(2026, 1, 2)),
        (dt.date | None, "null", None),
        (dt.datetime, "2026-01-02T03:04:05", dt.datetime(2026, 1, 2, 3, 4, 5)),
        (dt.time, "It opens at 09:30.", dt.time(9, 30)),
        (dt.timedelta, "PT1H", dt.timedelta(hours=1)),
        (UUID, "00000000-0000-0000-0000-000000000005", UUID(int=5)),
        (Decimal, "The price is 19.90", Decimal("19.90")),
        (Decimal, "12345678901234567.89", Decimal("12345678901234567.89")),
        (Path, "docs/index.md", Path("docs/index.md")),
        (Decimal, "1,234.50", Decimal("1234.50")),
        (IPv4Address, "It is 10.0.0.1.", IPv4Address("10.0.0.1")),
        (IntEnum("Level", {"LOW": 1, "HIGH": 2}), "2", 2),
        (str | int, "seven", "seven"),
        (str | int, "7", 7),
    ],
)
def test_the_bare_value_is_the_answer(kind: Any, written: str, value: Any) -> None:
    reading = contract_of(kind).read(written)
    assert (reading.ok, reading.value) == (True, value)


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (dt.date, "Between 2026-01-02 and 2026-02-03."),
        (dt.date, "I do not know."),
        (dt.datetime, "After 20260102 steps, 5 are left."),
        (dt.date, "2026-02-30"),
        (UUID, "No id."),
        (Decimal, "Between 5 and 7."),
    ],
)
def test_two_values_none_or_a_number_for_a_time_are_no_answer(kind: Any, written: str) -> None:
    assert not contract_of(kind).read(written).ok


def test_a_run_ends_with_the_first_bare_reply() -> None:
    model = ScriptedClient([say("The canal opened on 1832-05-30.")])
    assert Agent(model, answer=dt.date, home=False).run_sync("When?").value == dt.date(1832, 5, 30)
    assert len(model.requests) == 1
