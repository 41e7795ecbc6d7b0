"""Hostile text is read, and a long run resumed, in proportion to its length (tests/harness/growth.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "harness"))

import growth

from closeout.results.encoding import FORMATS


@pytest.mark.parametrize("reader", sorted(growth.READERS.keys() - growth.DOCUMENTS.keys()))
def test_a_public_parser_reads_hostile_text_in_linear_time(reader: str) -> None:
    _, found = growth.worst_growth(1, readers=[reader], known=10, made=5)
    assert found == []


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "unit", ["[", "{", "[{", "|", "a", " ", "\\", '"', "- ", "? ", "a: ", "<a>", "&a ", "\n", "#raw:1 1\n"]
)
def test_decoding_is_linear_whatever_the_text(form: str, unit: str) -> None:
    measured = growth.growth(f"decode {form}", ("", unit, ""))
    assert measured.exponent < growth.LIMIT, measured


@pytest.mark.parametrize("reader", growth.DOCUMENTS)
def test_a_document_is_read_in_linear_time(reader: str) -> None:
    _, found = growth.worst_growth(1, readers=[reader], known=2, made=1)
    assert found == []


@pytest.mark.parametrize("tag", growth.TAGS)
@pytest.mark.parametrize("reader", ["plain_text", "main_text"])
def test_html_becomes_text_in_linear_time_whatever_its_tags(reader: str, tag: str) -> None:
    measured = growth.growth(reader, ("<html><body>", tag, ""), length=1 << 17)
    assert measured.exponent < growth.LIMIT, measured


@pytest.mark.parametrize("blank", [" ", "\t", "\u2028", "\u3000", "\r"])
@pytest.mark.parametrize(("before", "behind"), [("", ""), ("```", "!\n")])
@pytest.mark.parametrize("reader", [name for name in growth.READERS if name.endswith("reader")])
def test_a_reader_of_streams_reads_a_long_blank_in_linear_time(
    reader: str, before: str, behind: str, blank: str
) -> None:
    assert growth.growth(reader, (before, blank, behind)).exponent < growth.LIMIT


def test_the_rig_finds_a_reader_whose_time_grows_with_the_square(monkeypatch: pytest.MonkeyPatch) -> None:
    def quadratic(text: str) -> None:
        for at in range(0, len(text), 8):
            text[at:].count("b")

    monkeypatch.setitem(growth.READERS, "quadratic", quadratic)
    assert growth.growth("quadratic", ("", "a", "")).exponent > growth.LIMIT


def test_resuming_a_run_takes_calls_in_proportion_to_its_events(tmp_path: Path) -> None:
    short = growth.resumed(tmp_path / "short", 50, growth.calls)
    long = growth.resumed(tmp_path / "long", 400, growth.calls)
    assert growth.slope(long, short) < growth.LIMIT
